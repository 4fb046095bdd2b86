"""Makes tables, figures and pages from rows, without training."""

from experiments.report import language as language
from experiments.report.build import show as show
from experiments.report.build import write_pages as write_pages
from experiments.report.build import write_study as write_study
from experiments.rows.kept import begin as begin
from experiments.rows.kept import keep as keep
