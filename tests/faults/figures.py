"""What came of each kind of fault."""

import collections
from collections.abc import Callable, Iterator
import dataclasses
import traceback
from typing import Any

# Its name, and what raises an error unless all is as it should be.
Case = tuple[str, Callable[[], Any]]


@dataclasses.dataclass
class Figures:
  """Of one kind of fault.

  Attributes:
    what: was done.
    outcomes: how often it came to what.
    wrong: what should not have been, each in words.
  """

  what: str
  outcomes: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )
  wrong: list[str] = dataclasses.field(default_factory=list)

  @property
  def cases(self) -> int:
    return self.outcomes.total()

  def __str__(self) -> str:
    outcomes = ", ".join(f"{n:,} {what}" for what, n in self.outcomes.items())
    return f"| {self.what} | {self.cases:,} | {outcomes} | {len(self.wrong)} |"


def each(what: str, cases: Iterator[Case]) -> Figures:
  figures = Figures(what)
  for name, attempt in cases:
    try:
      attempt()
      figures.outcomes["as it should be"] += 1
    except Exception:
      figures.outcomes["otherwise"] += 1
      figures.wrong.append(f"{what}: {name}: {traceback.format_exc(limit=-3)}")
  return figures


def table(figures: list[Figures]) -> str:
  head = "| fault | cases | outcome | wrong |\n|---|---:|---|---:|"
  return "\n".join([head, *map(str, figures)])
