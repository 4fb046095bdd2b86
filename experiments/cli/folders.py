"""A study's folder: what its page needs, shows and leaves out."""

import pathlib
import shlex

from experiments import config
from experiments.config import Study
from experiments.report import query
from experiments.report.build import PROGRAM, command
from experiments.rows import Rows


def left_out(folder: pathlib.Path) -> list[str]:
  """Returns a line for each setting whose runs the folder's page leaves out."""
  rows = Rows(folder / "rows.jsonl", write=False)
  return [
    f"Not in the comparison: {others}, which {rows.path} also has."
    for others in rows.left_out(config.load_settings(folder))
  ]


def next_step(study: Study, folder: pathlib.Path) -> str:
  """Says what to do after a study has run in a folder, and why."""
  number, count = study.share
  if count > 1:
    return (
      f"Share {number} of {count} is complete. When all are, join them:\n  "
      f"{_line('merge', folder.parent)}/*-of-{count} --output OUTPUT"
    )
  shown, own = config.load_settings(folder), config.own_study(study.name)
  if shown != study:  # A study that shares a folder leaves its settings alone.
    text = (
      f"`{_line('report', folder)}` writes the page of {shown.name}, by the "
      f"settings in {folder / 'study.json'}."
    )
    if own != study:
      return f"{text} For a page of these runs, give --output a new folder."
    commands = f"  {_line('keep', folder)}\n  {_line('report')}"
    return f"{text} Next, write the page of {study.name}:\n{commands}"
  compares = len(study.methods) > 1 and study.config.evaluate_on == "test"
  if own == study and not compares:
    return f"Next, keep the rows for other studies:\n  {_line('keep', folder)}"
  page = (
    f"Next, write the page that compares them:\n  {_line('report', folder)}"
  )
  return too_little(folder) or page


def too_little(folder: pathlib.Path) -> str:
  """Says what a folder lacks for a comparison, and the command that trains it.

  Returns "" if it has two seeds of both methods of a pair.
  """
  study, results = query.load(folder)
  if any(len(results.seeds(pair)) > 1 for pair in query.pairs(study)):
    return ""
  seeds = {name: len(results.seeds([name])) for name in study.method_names}
  there = ", ".join(
    f"{count} seed{'' if count == 1 else 's'} of {name}"
    for name, count in seeds.items()
  )
  text = (
    f"A comparison needs two seeds of each of two methods, and {folder} has "
    f"{there} after epoch {study.config.epochs}."
  )
  if lost := query.diverged(study, results):
    runs = ", ".join(f"{name} {seeds}" for name, seeds in lost.items())
    return f"{text} Seeds that diverged: {runs}. Lower the learning rate."
  wanted = {"seeds": "2"} if study.seeds < 2 else {}
  if len(study.methods) < 2:
    names = dict.fromkeys([*study.method_names, "sgd", "orthograd"])
    wanted["methods"] = ",".join(list(names)[:2])
  train = _line("resume", folder)
  if wanted and study.name in config.study_names():
    train = f"{command(study, **wanted)} --output {shlex.quote(str(folder))}"
  show = _line("show", folder)
  return (
    f"{text} Train the others:\n  {train}\nOr list what is there:\n  {show}"
  )


def _line(*words: object) -> str:
  """Returns a command for a shell."""
  return f"{PROGRAM} {shlex.join(map(str, words))}"
