"""The sources, commit and machine that rows are made with."""

import hashlib
import pathlib
import subprocess

import pytest

from experiments.rows import environment, provenance

ROOT = pathlib.Path(__file__).parents[3]


def git(folder, *words):
  names = "-c", "user.name=x", "-c", "user.email=x@example.org"
  done = subprocess.run(
    ["git", *names, *words], cwd=folder, capture_output=True, text=True
  )
  if done.returncode:
    pytest.skip(f"not a clone: {done.stderr}")
  return done.stdout


def test_hash_of_the_sources():
  """As git and coreutils would compute it, by the docstring."""
  files = "ls-files", "--cached", "--others", "--exclude-standard", "--"
  listed = git(ROOT, *files, *provenance.SOURCES).splitlines()
  names = [name for name in sorted(set(listed)) if (ROOT / name).exists()]
  assert "experiments/rows/provenance.py" in names
  assert "orthograd_optax/_sums.py" in names
  assert not any(name.startswith("experiments/report/") for name in names)
  digest = lambda name: hashlib.sha256((ROOT / name).read_bytes()).hexdigest()
  text = "".join(f"{digest(name)}  {name}\n" for name in names)
  expected = hashlib.sha256(text.encode()).hexdigest()[:16]
  assert provenance.sources() == expected
  assert environment()["sources"] == expected


@pytest.fixture
def clone(tmp_path, monkeypatch):
  """A repository with one source file, from which rows would come."""
  package = tmp_path / "experiments"
  package.mkdir()
  (package / "train.py").write_text("1\n")
  (package / "report").mkdir()
  (package / "report" / "page.py").write_text("1\n")
  monkeypatch.setattr(provenance, "EXPERIMENTS", package)
  monkeypatch.setattr(provenance, "PACKAGES", (package,))
  return package


def test_commit(clone):
  assert provenance.commit() == "unknown"
  before = provenance.sources()
  git(clone.parent, "init", "--quiet")
  assert provenance.commit() == "unknown"
  git(clone.parent, "add", ".")
  git(clone.parent, "commit", "--quiet", "--message", "x")
  head = git(clone.parent, "rev-parse", "HEAD")[:12]
  assert provenance.commit() == head
  # Pages and texts do not change rows.
  (clone / "report" / "page.py").write_text("2\n")
  (clone.parent / "README.md").write_text("2\n")
  assert provenance.commit() == head and provenance.sources() == before
  (clone / "train.py").write_text("2\n")
  changed = provenance.sources()
  assert provenance.commit() == f"{head}-dirty" and changed != before
  git(clone.parent, "commit", "--all", "--quiet", "--message", "y")
  (clone / "new.py").write_text("1\n")
  head = git(clone.parent, "rev-parse", "HEAD")[:12]
  assert provenance.commit() == f"{head}-dirty"
  assert provenance.sources() not in (before, changed)


def test_a_copy_within_another_repository(clone):
  """Its commit says nothing about these sources."""
  git(clone.parent, "init", "--quiet")
  (clone.parent / "README.md").write_text("another project\n")
  git(clone.parent, "add", "README.md")
  git(clone.parent, "commit", "--quiet", "--message", "x")
  assert provenance.commit().endswith("-dirty")


def test_without_git(clone, monkeypatch):
  def run(*command, **options):
    raise FileNotFoundError("git")

  git(clone.parent, "init", "--quiet")
  monkeypatch.setattr(subprocess, "run", run)
  assert provenance.commit() == "unknown"


def test_the_index_of_the_clone_is_left_alone(monkeypatch):
  """`git status` would lock the index, to refresh it."""
  seen = []

  def run(command, env, **options):
    seen.append(env["GIT_OPTIONAL_LOCKS"])
    return subprocess.CompletedProcess(command, 0, "0123456789ab\n", "")

  monkeypatch.setattr(subprocess, "run", run)
  assert provenance.commit() == "0123456789ab-dirty" and seen == ["0", "0"]
