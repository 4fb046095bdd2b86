"""Checkpoints that are kept, damaged, found out and gone back from."""

import errno
import os
import pathlib
import re
import shutil
import subprocess
import threading
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from experiments.engine import checkpoints
from experiments.files import UserError

GROUP = {"group": "0123456789abcdef", "config_hash": "fedcba9876543210"}


def state_of(epoch):
  random = np.random.default_rng(epoch)
  arrays = {"w": random.normal(size=(3, 40)), "n": np.arange(3) + epoch}
  return jax.device_put(arrays)


def save(folder, *epochs):
  with checkpoints.Checkpoints(folder, GROUP) as saved:
    for epoch in epochs:
      saved.save(epoch, state_of(epoch))


def restored(folder):
  """By epoch, the first being the last that is there."""
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  like = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
    jax.eval_shape(lambda: state_of(0)),
  )
  with checkpoints.Checkpoints(folder, GROUP) as saved:
    return {epoch: saved.restore(epoch, like) for epoch in saved.epochs}


def assert_restored(folder, *epochs):
  actual = restored(folder)
  assert list(actual) == list(epochs)
  for epoch, state in actual.items():
    jax.tree.map(np.testing.assert_array_equal, state, state_of(epoch))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  folder = tmp_path_factory.mktemp("checkpoints") / "state"
  save(folder, 1, 2)
  return folder


@pytest.fixture
def copy(whole, tmp_path):
  return pathlib.Path(shutil.copytree(whole, tmp_path / "state"))


def files(folder):
  return sorted(path for path in folder.glob("**/*") if path.is_file())


def test_the_last_two_are_kept(copy):
  assert_restored(copy, 2, 1)
  save(copy, 3, 10)
  assert_restored(copy, 10, 3)
  # As when epochs are to be evaluated that were not.
  save(copy, 2)
  assert_restored(copy, 2)
  save(copy, 2, 4)
  assert_restored(copy, 4, 2)
  assert checkpoints.remove_damaged(copy, GROUP) == []


def test_every_flipped_bit_is_found(copy):
  random = np.random.default_rng(0)
  for path in files(copy / "2"):
    content = path.read_bytes()
    for _ in range(3):
      if not content:
        break
      wrong = bytearray(content)
      wrong[random.integers(len(wrong))] ^= 1 << random.integers(8)
      path.write_bytes(wrong)
      what = checkpoints._problem(copy / "2", GROUP)
      assert what and (path.name in what or path.name == checkpoints.DIGESTS), (
        path
      )
    path.write_bytes(content)
  assert checkpoints.remove_damaged(copy, GROUP) == []


@pytest.mark.parametrize("fault", ["truncated", "emptied", "deleted", "added"])
def test_what_is_not_whole_is_removed(whole, copy, fault):
  for path in files(whole / "2"):
    name = path.relative_to(whole)
    other = copy / name
    if fault == "deleted":
      other.unlink()
    elif fault == "added":
      other.with_name("more").write_bytes(b"more")
    elif not path.stat().st_size:
      continue
    else:
      half = path.stat().st_size // 2 if fault == "truncated" else 0
      os.truncate(other, half)
    (problem,) = checkpoints.remove_damaged(copy, GROUP)
    assert f"removed the damaged checkpoint {copy / '2'}: " in problem
    assert [p.name for p in copy.iterdir()] == ["1"]
    shutil.copytree(whole / "2", copy / "2")
  shutil.rmtree(copy / "2")
  assert_restored(copy, 1)


@pytest.mark.parametrize("content", ["null", "3", "{}", "[]", '{"x": 1}', "{"])
def test_digests_of_another_form(copy, content):
  (copy / "1" / checkpoints.DIGESTS).write_text(content)
  (problem,) = checkpoints.remove_damaged(copy, GROUP)
  assert str(copy / "1") in problem
  assert_restored(copy, 2)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ("rm -r 2; cp -r 1 2", "expected one of epoch 2, got one of epoch 1"),
    ("mv 1 x; mv 2 1; mv x 2", "expected one of epoch 1, got one of epoch 2"),
    ("cp -r 2 3", "expected one of epoch 3, got one of epoch 2"),
    ("rm -r 2; cp -r ../other 2", "expected one of group .*, got one of group"),
    ("rm -r 2; cp -r ../rate 2", "expected one of config_hash .*, got one of"),
  ],
)
def test_swapped_checkpoints_are_removed(copy, tmp_path, change, message):
  """They are complete, but of another epoch, group or learning rate."""
  for name, key in (("other", "group"), ("rate", "config_hash")):
    folder = tmp_path / f"{name}-state"
    with checkpoints.Checkpoints(folder, GROUP | {key: "other"}) as saved:
      saved.save(2, state_of(9))
    (folder / "2").rename(tmp_path / name)
  subprocess.run(["sh", "-c", change], cwd=copy, check=True)
  problems = checkpoints.remove_damaged(copy, GROUP)
  assert re.search(message, problems[0])
  for epoch, state in restored(copy).items():
    jax.tree.map(np.testing.assert_array_equal, state, state_of(epoch))


@pytest.mark.parametrize("kind", ["link", "dangling link", "file", "loop"])
def test_what_is_not_a_folder_is_removed(copy, tmp_path, kind):
  """A link only; what it points to stays, whatever it is."""
  path, target = copy / "2", tmp_path / "target"
  shutil.move(path, target)
  (target / checkpoints.DIGESTS).write_text("{}")
  if kind == "dangling link":
    shutil.rmtree(target)
  if kind == "file":
    path.write_text("hello")
  else:
    path.symlink_to("2" if kind == "loop" else target)
  (problem,) = checkpoints.remove_damaged(copy, GROUP)
  assert f"removed the damaged checkpoint {path}: " in problem
  assert target.exists() == (kind != "dangling link")
  save(copy, 2)
  assert_restored(copy, 2, 1)


def test_an_undamaged_link_is_used(copy, tmp_path):
  shutil.move(copy / "2", tmp_path / "elsewhere")
  (copy / "2").symlink_to(tmp_path / "elsewhere")
  assert checkpoints.remove_damaged(copy, GROUP) == []
  assert_restored(copy, 2, 1)


@pytest.mark.parametrize("years", [-100, -50, 50, 100])
def test_a_clock_that_jumps(tmp_path, monkeypatch, years):
  """Orbax measures its timeouts by the wall clock."""
  now, jump = time.time, years * 365.25 * 86400
  moved = threading.Event()
  monkeypatch.setattr(time, "time", lambda: now() + jump * moved.is_set())
  with checkpoints.Checkpoints(tmp_path, GROUP) as saved:
    saved.save(1, state_of(1))
    moved.set()  # while it is written
    saved.save(2, state_of(2))
  assert_restored(tmp_path, 2, 1)


def test_only_own_leftovers_are_removed(copy):
  own = ["3.new", "3.new.orbax-checkpoint-tmp", "1.old"]
  others = ["notes", "3.newer", ".x.part"]
  for name in own + others:
    (copy / name).mkdir()
  (copy / "4.new").symlink_to(copy / "notes")
  checkpoints.remove_unfinished(copy)
  assert {p.name for p in copy.iterdir()} == {"1", "2", *others}


def test_one_that_is_intact_but_of_another_form(copy):
  with checkpoints.Checkpoints(copy, GROUP) as saved:
    with pytest.raises(UserError, match="2 is undamaged, but can't be"):
      saved.restore(2, {"other": jax.ShapeDtypeStruct((5,), np.float32)})
  assert checkpoints.remove_damaged(copy, GROUP) == []


@pytest.mark.parametrize("when", ["save", "wait_until_finished"])
def test_one_that_can_not_be_written(tmp_path, monkeypatch, when):
  """Whether it fails at once, or while training goes on."""
  whole = getattr(ocp.AsyncCheckpointer, when)

  def full(*args, **options):
    whole(*args, **options)
    raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(ocp.AsyncCheckpointer, when, full)
  with pytest.raises(UserError, match="No space left.*repeat the command"):
    save(tmp_path, 1)
  monkeypatch.undo()
  assert restored(tmp_path) == {}


def test_a_full_disk_is_seen_before(copy, monkeypatch):
  usage = shutil.disk_usage(copy)._replace(free=1_000_000)
  monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
  message = "takes 1.0 MB, and 1.0 MB are free.*repeat the command"
  with pytest.raises(UserError, match=message):
    save(copy, 3)
  assert_restored(copy, 2, 1)
