"""Small models, their reports and pages, and the command line."""

import functools
import html.parser

import numpy as np

from orthograd_optax import __main__ as command
from orthograd_optax import calibration

EXAMPLES = 400
CLASSES = 3


def overconfident(seed=0, examples=EXAMPLES, temperature=2.0):
  random = np.random.default_rng(seed)
  logits = 3 * random.normal(size=(examples, CLASSES))
  noise = random.gumbel(size=logits.shape)
  labels = np.argmax(logits / temperature + noise, axis=1)
  return logits.astype(np.float32), labels


def calibrated(seed, classes, examples=1000, scale=2.0):
  """Labels are drawn from the model itself; some classes are rare."""
  random = np.random.default_rng(seed)
  logits = scale * random.normal(size=(examples, classes))
  logits -= np.linspace(0, 3, classes)
  labels = np.argmax(logits + random.gumbel(size=logits.shape), axis=1)
  return logits.astype(np.float32), labels


# Fewer draws than usual, for speed.
report = functools.partial(calibration.report, resamples=200)


@functools.cache
def made():
  logits, labels = overconfident()
  groups = np.where(np.arange(EXAMPLES) % 4 == 0, "few <&>", "many")
  names = ["cat", "dog", "<i>yak</i>"]
  return report(logits, labels, groups=groups, classes=names, name="a <b>")


class Page(html.parser.HTMLParser):
  """Checks that elements are closed in order, and keeps what is in them."""

  def __init__(self, text):
    super().__init__()
    self.open, self.headings, self.links, self.text = [], [], [], []
    self.feed(text)
    self.close()
    assert self.open == []

  def handle_starttag(self, tag, attrs):
    self.links += [v for k, v in attrs if k in ("src", "href")]
    if tag not in ("meta", "br", "link"):
      self.open.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href")]

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    if self.open and self.open[-1] == "h2":
      self.headings.append(data)
    self.text.append(data)


def run(capsys, *arguments):
  """Exit status, and what was printed."""
  status = command.main([*arguments, "--resamples", "200"])
  out, err = capsys.readouterr()
  return status, out, err
