"""Files that are whole or not there."""

import errno
import os
import stat
import sys

import pytest

from experiments import files


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o007])
def test_replacing(tmp_path, umask):
  path = tmp_path / "file"
  path.write_text("before")
  with pytest.raises(RuntimeError), files.replacing(path) as temporary:
    temporary.write_text("half")
    raise RuntimeError
  assert path.read_text() == "before"
  before = os.umask(umask)
  try:
    with files.replacing(path) as temporary:
      temporary.write_text("after")
  finally:
    os.umask(before)
  assert path.read_text() == "after"
  assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
  assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_named(tmp_path):
  with (
    pytest.raises(OSError, match="No space left.*file"),
    files.replacing(tmp_path / "file"),
  ):
    raise OSError(errno.ENOSPC, "No space left on device")
  assert not list(tmp_path.iterdir())


def test_only_own_leftovers_are_removed(tmp_path):
  with files.replacing(tmp_path / "file") as temporary:
    own = [temporary.name.replace("file", "study.json")]
  own += [".study.json-0123abcd.part", ".a.npy-______x1.part"]
  others = [".film.part", ".study.json-old.part", ".other.json-0123abcd.part"]
  others += ["study.json-0123abcd.part", ".study.json-0123abcd.part.txt"]
  for name in own + others:
    (tmp_path / name).write_text("half")
  (tmp_path / ".study.json-01234567.part").mkdir()
  files.remove_leftovers(tmp_path, "study.json", "*.npy")
  left = {path.name for path in tmp_path.iterdir()}
  assert left == {*others, "file", ".study.json-01234567.part"}


@pytest.mark.parametrize("name", ["a", "table1", "sgd_0.1", "a b", "ä"])
def test_names(name):
  assert files.is_name(name)


@pytest.mark.parametrize(
  "name", ["", ".", "..", "../x", "/x", "a/b", "a\\b", 3]
)
def test_what_is_no_name(name):
  assert not files.is_name(name)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no sh")
def test_run_bounded(tmp_path):
  write = "import sys; open(sys.argv[1], 'wb').write(bytes(int(sys.argv[2])))"
  for size, code in ((100_000, 0), (300_000, 1)):
    path = str(tmp_path / "file")
    command = [sys.executable, "-c", write, path, str(size)]
    assert files.run_bounded(command, 100_000).returncode == code
