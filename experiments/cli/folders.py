"""A study's folder: what its page needs, shows and leaves out."""

import pathlib
import shlex

from experiments import config
from experiments.config import Study
from experiments.report import query
from experiments.report.build import PROGRAM, command
from experiments.report.query import Results
from experiments.rows import Rows, RowsError


def left_out(folder: pathlib.Path) -> list[str]:
  """Returns a line for each setting whose runs the folder's page leaves out."""
  rows = Rows(folder / "rows.jsonl", write=False)
  return [
    f"Not in the comparison: {others}, which {rows.path} also has."
    for others in rows.left_out(config.load_settings(folder))
  ]


def check_folder(folder: pathlib.Path) -> None:
  """Checks that the folder's study has two seeds of both methods of a pair.

  Raises:
    RowsError: if not, with the seeds that there are and the command that
      trains the others.
  """
  study, results = query.load(folder)
  if not _can_compare(study, results):
    raise RowsError(_too_little(study, results, folder))


def next_step(study: Study, folder: pathlib.Path) -> str:
  """Says what to do after a study has run in a folder, and why."""
  number, count = study.share
  if count > 1:
    return (
      f"Share {number} of {count} is complete. When all are, join them:\n  "
      f"{_line('merge')} {folder.parent}/*-of-{count} --output OUTPUT"
    )
  shown = config.load_settings(folder)
  if shown != study:  # A study that shares a folder leaves its settings alone.
    return _page_of_another(study, shown, folder)
  own = config.own_study(study.name) == study
  if own and (len(study.methods) == 1 or study.config.evaluate_on != "test"):
    return f"Next, keep the rows for other studies:\n  {_line('keep', folder)}"
  _, results = query.load(folder)
  if not _can_compare(study, results):
    return _too_little(study, results, folder)
  return (
    f"Next, write the page that compares them:\n  {_line('report', folder)}"
  )


def _can_compare(study: Study, results: Results) -> bool:
  return any(len(results.seeds(pair)) > 1 for pair in query.pairs(study))


def _page_of_another(study: Study, shown: Study, folder: pathlib.Path) -> str:
  """Says how to get a study's page in a folder whose page is another's."""
  text = (
    f"`{_line('report', folder)}` writes the page of {shown.name}, by the "
    f"settings in {folder / 'study.json'}."
  )
  if config.own_study(study.name) != study:
    return f"{text} For a page of these runs, give --output a new folder."
  commands = f"  {_line('keep', folder)}\n  {_line('report')}"
  return f"{text} Next, write the page of {study.name}:\n{commands}"


def _too_little(study: Study, results: Results, folder: pathlib.Path) -> str:
  """Says which seeds there are, and the command that trains enough of them."""
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
  return (
    f"{text} Train the others:\n"
    f"  {_training(study, folder)}\n"
    f"Or list what is there:\n  {_line('show', folder)}"
  )


def _training(study: Study, folder: pathlib.Path) -> str:
  """Returns the command that trains what a comparison lacks."""
  wanted = {}
  if study.seeds < 2:
    wanted["seeds"] = "2"
  if len(study.methods) < 2:
    names = dict.fromkeys([*study.method_names, "sgd", "orthograd"])
    wanted["methods"] = ",".join(list(names)[:2])
  if not wanted or study.name not in config.study_names():
    return _line("resume", folder)
  return f"{command(study, **wanted)} --output {shlex.quote(str(folder))}"


def _line(*words: str | pathlib.Path) -> str:
  """Returns a command for a shell, its paths quoted."""
  quote = lambda word: shlex.quote(str(word))
  texts = (quote(w) if isinstance(w, pathlib.Path) else w for w in words)
  return " ".join([PROGRAM, *texts])
