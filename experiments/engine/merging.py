"""Joins the folders of a study's shares to one."""

from collections.abc import Sequence
import pathlib

from experiments.config import Study, differences, load_settings
from experiments.engine.runner import write_settings
from experiments.files import UserError, locked
from experiments.rows import Missing, Rows, join


def merge(
  folders: Sequence[pathlib.Path], output: pathlib.Path
) -> tuple[Study, int]:
  """Writes the rows of study folders to one; checkpoints and logits stay.

  Returns the study, and the number of its runs that are complete. Raises a
  UserError if settings differ, a row is in two folders, or the output has rows
  that none of them has.
  """
  study = load_settings(folders[0]).replace(share=(1, 1))
  for folder in folders:
    other = load_settings(folder).replace(share=(1, 1))
    if other != study:
      changes = differences(other, study).items()
      listed = ", ".join(f"{k}={v}" for k, v in changes) or "other methods"
      raise UserError(
        f"Expected folders of one study, got {folders[0]} ({study.name}) and "
        f"{folder} ({other.name}), which has {listed}. Merge each separately."
      )
  paths = [folder / "rows.jsonl" for folder in folders]
  keys = set().union(*(Rows(path, write=False).keys for path in paths))
  output.mkdir(parents=True, exist_ok=True)

  def busy():
    raise UserError(f"Another process is at work in {output}. Wait for it.")

  with locked(output, busy):
    if there := Rows(output / "rows.jsonl", write=False).keys - keys:
      raise UserError(
        f"{output} has {len(there)} rows that are in none of the folders to "
        "merge. Add it to them, and give --output a new folder."
      )
    write_settings(study, output)
    join(paths, output / "rows.jsonl")
  missing = Missing(study, keys)
  return study, sum(not missing(run) for run in study.runs)
