"""The README is short, and each of its examples runs on its own."""

import pathlib
import re

README = pathlib.Path(__file__).parents[1] / "README.md"


def test_is_a_door():
  assert len(README.read_text("utf-8").splitlines()) <= 150


def test_examples_run(capsys):
  text = README.read_text("utf-8")
  blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
  assert len(blocks) == 2
  for block in blocks:
    exec(compile(block, README.name, "exec"), {})
    # Each number in a comment behind a `print` is what it prints.
    printed = [f"{float(x):.2f}" for x in capsys.readouterr().out.split()]
    assert printed == re.findall(r"print\(.*# ([\d.]+)", block)
