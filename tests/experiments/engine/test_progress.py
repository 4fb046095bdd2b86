"""Progress goes to terminals and to files."""

from experiments.engine import progress


def test_progress(monkeypatch):
  class Terminal:
    def __init__(self, live):
      self.live, self.text = live, ""

    def isatty(self):
      return self.live

    def write(self, text):
      self.text += text

    def flush(self):
      pass

  monkeypatch.delenv("CI", raising=False)
  for live in (True, False):
    terminal = Terminal(live)
    say = progress.Progress(terminal)
    for text in ("s: begins", "s: epoch 1/2 · long", "s: epoch 2/2", "s: done"):
      say(text)
    if live:
      assert terminal.text.count("\r") == 2 and terminal.text.endswith("\n")
    else:
      assert terminal.text == "s: begins\ns: done\n" or (
        "epoch 1/2" in terminal.text and "epoch 2/2" not in terminal.text
      )
  monkeypatch.setenv("CI", "1")
  terminal = Terminal(True)
  progress.Progress(terminal)("s: begins")
  assert terminal.text == ""
