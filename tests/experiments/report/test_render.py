"""Markdown from templates, and HTML from Markdown."""

import importlib.resources

import jinja2
import numpy as np
import pytest

from experiments.report import render as module
from orthograd_optax import plots


@pytest.fixture
def write(tmp_path, monkeypatch):
  """Writes a template, for a test of its own."""
  loader = jinja2.FileSystemLoader(tmp_path)
  monkeypatch.setattr(module.ENVIRONMENT, "loader", loader)
  return lambda name, text: (tmp_path / name).write_text(text, "utf-8")


@pytest.mark.parametrize(
  ("expression", "facts", "why"),
  [
    ("{{ loss }}", {}, "'loss' is undefined"),
    ("{{ it.loss }}", {"it": {}}, "no attribute 'loss'"),
    ("{{ it.loss | number }}", {"it": {}}, "no attribute 'loss'"),
    ("{{ loss }}", {"loss": None}, "is None"),
    ("{{ loss }}", {"loss": np.float32("nan")}, "is nan"),
    ("{{ loss | form('.2f') }}", {"loss": float("inf")}, "is inf"),
    ("{{ loss | number('loss') }}", {"loss": None}, "is None"),
    ("{{ loss | p_value }}", {"loss": float("nan")}, "is nan"),
    ("{{ loss | mean }}", {"loss": [1.0, float("nan")]}, "is nan"),
    ("{{ loss | spread }}", {"loss": [1.0, -float("inf")]}, "must be finite"),
    ("{{ it.values }}", {"it": {}}, "neither text nor a number"),
    ("{{ said[verdict] }}", {"said": {}, "verdict": "new"}, "'new'"),
  ],
)
def test_missing_number(write, expression, facts, why):
  write("some.md", f"A sentence.\nAnother one has {expression} in it.\n")
  with pytest.raises(module.TemplateError) as raised:
    module.markdown("some.md", facts)
  said = str(raised.value)
  assert said.startswith("some.md, line 2: ") and expression in said
  assert why in said


def test_missing_number_in_a_macro(write):
  write(
    "shared.md", "{% macro row(it) %}\n| {{ it | p_value }} |\n{% endmacro %}"
  )
  write("some.md", '{% from "shared.md" import row %}\n{{ row(p) }}')
  assert module.markdown("some.md", {"p": 0.25}) == "| 0.250 |"
  with pytest.raises(module.TemplateError, match=r"^shared.md, line 2: .* nan"):
    module.markdown("some.md", {"p": float("nan")})


def test_lines_are_joined(write):
  write(
    "some.md",
    """# A title

One sentence.
Another, with
{{ change }} in it.

{% if change < 0 %}
- An item
  of two lines.
- Another.
{% endif %}



| a
| b |
|---|---:|
{% for x in (1, 2) %}
| {{ x }}
| {{ change }} |
{% endfor %}

A note.
""",
  )
  assert (
    module.markdown("some.md", {"change": -1})
    == """# A title

One sentence. Another, with -1 in it.

- An item of two lines.
- Another.

| a | b |
|---|---:|
| 1 | -1 |
| 2 | -1 |

A note."""
  )


def test_html():
  text = """# A & B

- a
- b

|  | a\\|b |
|---|---:|
| x < y | **1** |

A `note` <b>."""
  result = module.Page(text, {}).html()
  assert "<title>A &amp; B</title>" in result
  assert "<h1>A &amp; B</h1>" in result
  assert "<ul>\n<li>a</li>\n<li>b</li>\n</ul>" in result
  assert '<th class="text"></th>\n<th>a|b</th>' in result
  assert '<td class="text">x &lt; y</td>' in result
  assert "<td><strong>1</strong></td>" in result
  assert "</table></div>\n<p>A <code>note</code> &lt;b&gt;.</p>" in result


def test_headline_numbers_and_the_stylesheet():
  """A table before the first section is a row of cards."""
  table = "|  | a |\n|---|---:|\n| x | 1 |\n"
  result = module.Page(f"# A\n\n{table}\n## B\n\n{table}", {}).html()
  assert result.index('<div class="numbers">') < result.index("<h2>B</h2>")
  assert result.index("<h2>B</h2>") < result.index('<div class="wide">')
  style = importlib.resources.files("orthograd_optax.calibration") / "page.css"
  assert style.read_text("utf-8").strip() in result


def test_pictures(tmp_path):
  draw = lambda: plots.curves({"ECE": {"SGD": [0.2, 0.3]}}, [1, 2])
  drawings = {"ece": draw, "unused": lambda: pytest.fail("drawn")}
  page = module.Page("# A\n\n![Of `ECE`.](ece.png)", drawings)
  result = page.html()
  assert '<figure><svg role="img" aria-label="Of ECE."' in result
  assert "<figcaption>Of ECE.</figcaption></figure>" in result
  page.write_markdown(tmp_path / "README.md")
  assert {p.name for p in tmp_path.iterdir()} == {"README.md", "ece.png"}
  with pytest.raises(module.TemplateError, match="shows loss, .* ece, unused"):
    module.Page("# A\n\n![B](loss.png)", drawings).html()
