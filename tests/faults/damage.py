"""Flipped bits, truncated files and garbled contents, for every reader."""

from collections.abc import Callable, Iterable
import pathlib
import random
import traceback

from experiments import config
from experiments.engine import checkpoints
from faults import images, inputs
from faults.figures import Figures
from faults.inputs import Reader

Spoil = Callable[[bytes, random.Random], bytes]


def spoil(
  reader: Reader,
  how: Spoil,
  times: int,
  chance: random.Random,
  figures: Figures,
) -> None:
  """Reads a damaged file a number of times, each with other damage."""
  reader.path.write_bytes(reader.content)
  whole, expected = inputs.attempt(reader.read)
  assert whole == "read", (
    f"{reader.name} is refused when it is whole: {expected}"
  )
  for _ in range(times):
    content = how(reader.content, chance)
    reader.path.write_bytes(content)
    try:
      outcome, value = inputs.attempt(reader.read)
    except Exception:
      figures.outcomes["a traceback"] += 1
      figures.wrong.append(f"{reader.name}: {content[:500]!r}: {_trace()}")
      continue
    if outcome == "read" and reader.same:
      outcome = "read as it was" if value == expected else "read otherwise"
      if value != expected:
        figures.wrong.append(
          f"{reader.name}: read otherwise: {content[:500]!r}"
        )
    figures.outcomes[outcome] += 1
  reader.path.write_bytes(reader.content)


def _trace() -> str:
  return traceback.format_exc(limit=-3)


def each(
  readers: Iterable[Reader],
  what: str,
  how: Spoil,
  times: int,
  chance: random.Random,
) -> Figures:
  figures = Figures(what)
  for reader in readers:
    spoil(reader, how, times, chance, figures)
  return figures


def damage_checkpoints(
  folder: pathlib.Path, share: float, chance: random.Random
) -> list[Figures]:
  """Of a real study: each damage is found, and what is whole is not."""
  (state,) = folder.glob("checkpoints/*/state")
  study = config.load_settings(folder)
  group = {"group": state.parent.name, "config_hash": study.config.hash}
  flips = Figures("a flipped bit in a checkpoint")
  parts = Figures("a checkpoint truncated")
  paths = sorted(state.iterdir())

  def look(path: pathlib.Path, figures: Figures) -> None:
    try:
      checkpoints._verify(path, group)
    except (OSError, ValueError):
      figures.outcomes["refused"] += 1
    else:
      figures.outcomes["not seen"] += 1
      figures.wrong.append(f"{figures.what}: {path}")

  for path in chance.choices(paths, k=round(1000 * share)):
    content = path.read_bytes()
    path.write_bytes(inputs.flip(content, chance))
    look(path, flips)
    path.write_bytes(content)
  for path in paths:
    content = path.read_bytes()
    for length in {0, len(content) // 2, max(len(content) - 1, 0)}:
      if length < len(content):
        path.write_bytes(content[:length])
        look(path, parts)
    path.write_bytes(content)
  assert not checkpoints.remove_damaged(state, group)
  return [flips, parts]


def run(folder: pathlib.Path, seed: int, share: float) -> list[Figures]:
  chance = random.Random(f"damage {seed}")
  times = lambda n: max(round(n * share), 1)
  (folder / "json").mkdir(parents=True)
  (folder / "data").mkdir()
  (folder / "rows").mkdir()
  texts = inputs.json_readers(folder / "json")
  measured, kept = inputs.row_readers(folder / "rows")
  with inputs.small() as files, images.small():
    data = inputs.data_readers(folder / "data", files)
    others = images.readers(folder / "images")
    (lists,) = (x for x in others if x.path.suffix == ".json")
    data += [*others, *kept]
    figures = [
      each(data, "a flipped bit in data", inputs.flip, times(150), chance),
      each(data, "data truncated", inputs.truncate, times(60), chance),
      each(data, "garbled data (fuzz)", inputs.garble, times(150), chance),
      each([lists], "shapes of lists", inputs.reshape, times(60), chance),
    ]
  figures += [
    each(
      [measured],
      "rows that are edited, moved, left out or there twice",
      inputs.tamper,
      times(1000),
      chance,
    ),
    each(
      texts[:1],
      "rows of another shape, with checks that are right",
      inputs.forge,
      times(2000),
      chance,
    ),
    each(texts, "JSON of another shape", inputs.reshape, times(2000), chance),
    each(texts, "garbled JSON (fuzz)", inputs.garble, times(2000), chance),
  ]
  return figures
