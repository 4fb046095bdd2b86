"""Trains and evaluates many runs at once, and writes the results as rows."""

from experiments.engine.group import Options as Options
from experiments.engine.progress import Progress as Progress
from experiments.engine.runner import run_study as run_study
