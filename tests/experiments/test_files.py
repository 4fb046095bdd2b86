"""Files that are whole or not there."""

import errno
import fcntl
import os
import stat
import subprocess
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


@pytest.mark.parametrize(
  "name", ["a", "table1", "sgd_0.1", "a b", "größe", "100%", "a|b"]
)
def test_names(name):
  assert files.is_name(name)


@pytest.mark.parametrize(
  "name",
  ["", " ", ".", "../x", "/x", "a/b", "a\\b", "a\nb", "\x1b[2J", "\ud800", 3],
)
def test_what_is_no_name(name):
  assert not files.is_name(name)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no sh")
def test_run_bounded(tmp_path, monkeypatch):
  """Files, memory, time and output are limited."""

  def status(script, *args, seconds=60):
    command = [sys.executable, "-c", script, *args]
    return files.run_bounded(command, str(tmp_path), 100_000, seconds)

  write = "import sys; open(sys.argv[1], 'wb').write(bytes(int(sys.argv[2])))"
  for size, code in (("100000", 0), ("300000", 1)):
    assert status(write, str(tmp_path / "file"), size)[0] == code
  monkeypatch.setattr(files, "MOST_MEMORY", 200_000_000)
  for size, code in ((1_000, 0), (300_000_000, 1)):
    assert status(f"x = bytes({size})")[0] == code
  _, output = status(
    "import sys; print(5_000 * 'x'); print('last', file=sys.stderr)"
  )
  assert len(output) == 2000 and output.endswith("xx\nlast\n")
  with pytest.raises(subprocess.TimeoutExpired):
    status("import time; time.sleep(60)", seconds=0.5)


@pytest.mark.parametrize(
  "code",
  [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO, errno.ESTALE],
  ids=errno.errorcode.get,
)
def test_a_file_system_without_locks(tmp_path, monkeypatch, code):
  """Also one whose lock server fails only when the lock is released."""
  whole = fcntl.flock

  def flock(fd, operation):
    if operation == fcntl.LOCK_UN or acquire:
      raise OSError(code, os.strerror(code))
    whole(fd, operation)

  monkeypatch.setattr(fcntl, "flock", flock)
  acquire = True
  message = f"working file locks, but .*{os.strerror(code)}.*--output.*ORTHO"
  with pytest.raises(files.UserError, match=message):
    with files.locked(tmp_path, pytest.fail):
      pytest.fail("it is locked")
  acquire = False
  with files.locked(tmp_path, pytest.fail):
    pass


def test_remove(tmp_path):
  target, link = tmp_path / "target", tmp_path / "link"
  target.mkdir()
  (target / "file").write_text("hello")
  link.symlink_to(target)
  files.remove(link)
  assert (target / "file").exists() and not link.is_symlink()
  files.remove(target)
  assert not list(tmp_path.iterdir())
