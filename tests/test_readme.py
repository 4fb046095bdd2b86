"""The examples of the README run, one after the other."""

import pathlib
import re

README = pathlib.Path(__file__).parents[1] / "README.md"


def test_examples_run():
  blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
  assert len(blocks) >= 4
  assert len(blocks[0].strip().splitlines()) == 12
  namespace = {}
  for block in blocks:
    exec(compile(block, README.name, "exec"), namespace)
  # A network that knows nothing has a loss of log 3.
  assert namespace["loss"](namespace["params"]) < 1.05
