"""The site. Its source is the whole clone: links work here as in the files.

    make docs

A page is a Markdown file, wherever it lies; `PAGES` names them all. So is each
file of examples/: `example_page` makes Markdown of it.
"""

import ast
import functools
import hashlib
import importlib.metadata
import pathlib
import re
import sys

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx import addnodes
from sphinx.util import logging

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import notebooks  # noqa: E402

logger = logging.getLogger(__name__)
# docutils lacks \big and \Big.
latex2mathml.bigdelimiters |= {"big": 1, "Big": 2}
PAGES = [
  "docs/*.md",
  "docs/*/*.md",
  "examples/*.py",
  "experiments/*.md",
  "experiments/results/*.md",
  "benchmarks/results/*.md",
  "CONTRIBUTING.md",
  "CHANGELOG.md",
]
# Pages of the studies, which `study_pages` writes.
STUDIES = ROOT / "docs" / "studies"
# Pages below a page, whose own file does not list them.
BELOW = {
  "experiments/results/README": """
The replication </experiments/results/replication>
The replication: appendix </experiments/results/replication_appendix>
/docs/studies/*
""",
}

# Pages that readers can also download as a notebook.
NOTEBOOKS = ["docs/guides/start", "docs/guides/calibrate_any_model"]

project = "orthograd-optax"
author = "The orthograd-optax authors"
copyright = author
version = release = importlib.metadata.version(project)

extensions = [
  "myst_nb",
  "sphinx.ext.autodoc",
  "sphinx.ext.napoleon",
  "sphinx_copybutton",
]
root_doc = "docs/index"
include_patterns = PAGES
exclude_patterns = [".*", "**/.*", "docs/_build", "build", "dist", "runs"]
source_suffix = {".md": "myst-nb", ".py": "myst-nb"}
nitpicky = True
# Other projects' names: looking them up would need a network.
nitpick_ignore_regex = [
  (
    r"py:.*",
    r"(chex|collections|jax|jaxlib|matplotlib|numpy|np|optax|os|pathlib)\..*",
  ),
  (r"py:class", r"ArrayLike|ArrayTree|Figure"),
  # The fields of a Report, without its text.
  (r"py:class", r"orthograd_optax\.calibration\._results\.Results"),
]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
myst_ref_domains = ["std"]
nb_execution_mode = "cache"
# Pages run again if their cells, the code or what is installed changes.
CODE = [
  *sorted(ROOT.glob("orthograd_optax/**/*.py")),
  *sorted(ROOT.glob("experiments/**/*.py")),
  ROOT / "constraints.txt",
]
DIGEST = hashlib.sha256(b"".join(p.read_bytes() for p in CODE)).hexdigest()[:16]
nb_execution_cache_path = str(ROOT / "docs" / "_build" / "executed" / DIGEST)
nb_execution_in_temp = True
nb_execution_show_tb = True
nb_execution_timeout = 300
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
maximum_signature_line_length = 80

html_theme = "sphinx_book_theme"
html_title = "orthograd-optax"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_root"]
html_theme_options = {"show_toc_level": 2, "use_download_button": False}
html_copy_source = False
html_math_renderer = "mathml"
copybutton_exclude = ".linenos, .gp, .go"


def study_pages(app):
  """Writes the pages of the studies, if rows, words or code changed."""
  sources = sorted((ROOT / "experiments" / "report").glob("**/*.[mt]*"))
  sources += [ROOT / "experiments" / "results" / "SHA256SUMS", *CODE]
  content = b"".join(path.read_bytes() for path in sources)
  stamp, digest = STUDIES / ".digest", hashlib.sha256(content).hexdigest()
  if not stamp.exists() or stamp.read_text("utf-8") != digest:
    from experiments import report

    for path in STUDIES.glob("*.*"):
      path.unlink()
    list(report.write_pages(STUDIES))
    stamp.write_text(digest, "utf-8")


def pages_below(app, docname, content):
  """Adds a list of the pages below a page."""
  if docname in BELOW:
    toctree = f"```{{toctree}}\n:maxdepth: 1\n:glob:\n{BELOW[docname]}```"
    content[0] += f"\n## All pages\n\n{toctree}\n"


def example_page(app, docname, content):
  """Makes a page of an example: its docstring, its picture, its code."""
  path = pathlib.Path(app.env.doc2path(docname))
  if path.suffix != ".py":
    return
  module = ast.parse(content[0])
  title, _, text = (ast.get_docstring(module) or "").partition("\n")
  code = "\n".join(content[0].splitlines()[module.body[0].end_lineno :])
  picture = path.with_suffix(".png")
  content[0] = "\n\n".join(
    [
      f"# {title.removesuffix('.')}",
      text.strip("\n"),
      f"![{title}]({picture.name})" if picture.exists() else "",
      f"## The code\n\n{{download}}`{path.name}`",
      f"```python\n{code.strip()}\n```",
    ]
  )


def notebook_page(app, docname, content):
  """Adds a link to the notebook version of a page, below its title."""
  if docname in NOTEBOOKS:
    page = pathlib.Path(app.env.doc2path(docname))
    path = notebooks.write(page, ROOT / "docs" / "_build" / "notebooks")
    link = f"{{download}}`notebook </{path.relative_to(ROOT)}>`"
    note = f"This page is also a {link} for Jupyter or Colab."
    title = re.compile(r"^(# .*\n)", re.M)
    content[0] = title.sub(rf"\1\n{note}\n", content[0], count=1)


def short_signature(app, what, name, obj, options, signature, returns):
  """Hides how classes are made, and shortens types.

  Functions return instances of classes, with the fields that are listed.
  """
  if what == "class":
    return "", returns
  if signature:
    return ARRAY_LIKE.sub("ArrayLike", signature), returns


# How Sphinx spells jax.typing.ArrayLike.
ARRAY_LIKE = re.compile(
  r"~?[\w.]*\bArray \| ~?[\w.]*ndarray \| ~?[\w.]*bool \| ~?[\w.]*number"
  r" \| bool \| int \| float \| complex"
)


def short_types(app, what, name, obj, options, lines):
  """Drops private modules from how the types of fields read."""
  private = re.compile(r"\borthograd_optax\.(\w+\.)*_")
  array = re.compile(r"~?\bjax\.jaxlib\._jax\.Array\b")
  for i, line in enumerate(lines):
    lines[i] = array.sub("~jax.Array", private.sub(r"~\g<0>", line))


def downloads(app, doctree):
  """Lets readers download a linked file that is not a page."""
  for link in list(doctree.findall(addnodes.pending_xref)):
    if link["refdomain"] != "doc" or link["reftarget"] in app.env.found_docs:
      continue
    for suffix in source_suffix:
      if (ROOT / (link["reftarget"] + suffix)).is_file():
        file = "/" + link["reftarget"] + suffix
        link.replace_self(
          addnodes.download_reference("", *link.children, reftarget=file)
        )


def math(self, node, as_block=False):
  """Draws a formula as MathML, by the browser: no script, no network."""
  try:
    self.body.append(latex2mathml.tex2mathml(node.astext(), as_block))
  except MathError as error:
    logger.warning("%s In: %s", error, node.astext(), location=node)
  raise nodes.SkipNode


def setup(app):
  app.connect("builder-inited", study_pages)
  app.connect("source-read", pages_below)
  app.connect("source-read", example_page)
  app.connect("source-read", notebook_page)
  app.connect("autodoc-process-signature", short_signature)
  app.connect("autodoc-process-docstring", short_types)
  app.connect("doctree-read", downloads, priority=100)
  block = functools.partial(math, as_block=True)
  app.add_html_math_renderer("mathml", (math, None), (block, None))
