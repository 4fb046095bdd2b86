"""Checkpoints that are kept, damaged, found out and gone back from."""

import errno
import hashlib
import os
import pathlib
import re
import shutil
import subprocess

import jax
import numpy as np
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


def test_a_checkpoint_is_of_the_state_when_it_was_saved(tmp_path):
  """Not of the next one, which gets the same memory."""
  step = jax.jit(lambda x: x + 1, donate_argnums=0)
  with checkpoints.Checkpoints(tmp_path, GROUP) as saved:
    state = step(jax.numpy.zeros(10**6))
    for epoch in range(1, 6):
      saved.save(epoch, state)
      state = step(step(state))
      like = jax.ShapeDtypeStruct((10**6,), "float32", sharding=state.sharding)
      saved._wait()
      assert np.all(saved.restore(epoch, like) == 2 * epoch - 1)


def test_every_flipped_bit_is_found(copy):
  random = np.random.default_rng(0)
  path = copy / "2"
  content = path.read_bytes()
  for _ in range(30):
    wrong = bytearray(content)
    wrong[random.integers(len(wrong))] ^= 1 << random.integers(8)
    path.write_bytes(wrong)
    (problem,) = checkpoints.remove_damaged(copy, GROUP)
    assert "removed" in problem and "SHA-256 digest" in problem
    assert [p.name for p in copy.iterdir()] == ["1"]
  path.write_bytes(content)
  assert_restored(copy, 2, 1)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 500, -33, -1])
def test_what_is_not_whole_is_removed(copy, size):
  os.truncate(copy / "2", size % (copy / "2").stat().st_size)
  (problem,) = checkpoints.remove_damaged(copy, GROUP)
  assert f"removed the damaged checkpoint {copy / '2'}: " in problem
  assert_restored(copy, 1)


def test_what_was_damaged_before_its_digest_is_removed(copy):
  content = bytearray((copy / "2").read_bytes()[: -checkpoints.DIGEST_SIZE])
  content[-22:-18] = b"zip?"  # the end of the directory
  digest = hashlib.sha256(content).digest()
  (copy / "2").write_bytes(content + digest)
  with pytest.raises(UserError, match="2 can't be restored: .*Repeat"):
    restored(copy)
  (problem,) = checkpoints.remove_damaged(copy, GROUP)
  assert f"removed the damaged checkpoint {copy / '2'}: " in problem
  assert_restored(copy, 1)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ("cp 1 2", "expected epoch 2, got 1"),
    ("mv 1 x; mv 2 1; mv x 2", "expected epoch 1, got 2"),
    ("cp 2 3", "expected epoch 3, got 2"),
    ("cp ../other-state/2 2", "expected group '0123456789abcdef', got 'other'"),
    ("cp ../rate-state/2 2", "expected config_hash '.*', got 'other'"),
  ],
)
def test_swapped_checkpoints_are_removed(copy, tmp_path, change, message):
  """They are complete, but of another epoch, group or learning rate."""
  for name, key in (("other", "group"), ("rate", "config_hash")):
    folder = tmp_path / f"{name}-state"
    with checkpoints.Checkpoints(folder, GROUP | {key: "other"}) as saved:
      saved.save(2, state_of(9))
  subprocess.run(["sh", "-c", change], cwd=copy, check=True)
  problems = checkpoints.remove_damaged(copy, GROUP)
  assert re.search(message, problems[0])
  for epoch, state in restored(copy).items():
    jax.tree.map(np.testing.assert_array_equal, state, state_of(epoch))


@pytest.mark.parametrize(
  "kind", ["link", "dangling link", "folder", "loop", "pipe", "device"]
)
def test_what_is_not_a_file_is_removed(copy, tmp_path, kind):
  """A link only; what it points to stays, whatever it is."""
  path, target = copy / "2", tmp_path / "target"
  path.unlink()
  if kind != "dangling link":
    target.write_text("hello")
  if kind == "folder":
    path.mkdir()
    (path / "file").write_text("hello")
  elif kind == "pipe":
    os.mkfifo(path)
  else:
    path.symlink_to({"loop": "2", "device": "/dev/zero"}.get(kind, target))
  (problem,) = checkpoints.remove_damaged(copy, GROUP)
  assert f"removed the damaged checkpoint {path}: " in problem
  assert target.exists() == (kind != "dangling link")
  save(copy, 2)
  assert_restored(copy, 2, 1)


def test_what_can_not_be_read_now_is_kept(copy, monkeypatch):
  """A disk or a network may work again."""

  def fail(path, mode):
    raise OSError(errno.EIO, "Input/output error")

  monkeypatch.setattr(pathlib.Path, "open", fail)
  with pytest.raises(UserError, match="1 can't be read: .*repeat the command"):
    checkpoints.remove_damaged(copy, GROUP)
  monkeypatch.undo()
  assert_restored(copy, 2, 1)


def test_an_undamaged_link_is_used(copy, tmp_path):
  shutil.move(copy / "2", tmp_path / "elsewhere")
  (copy / "2").symlink_to(tmp_path / "elsewhere")
  assert checkpoints.remove_damaged(copy, GROUP) == []
  assert_restored(copy, 2, 1)


def test_one_that_is_intact_but_of_another_form(copy):
  with checkpoints.Checkpoints(copy, GROUP) as saved:
    with pytest.raises(UserError, match="2 is undamaged, but can't be"):
      saved.restore(2, {"other": jax.ShapeDtypeStruct((5,), np.float32)})
  assert checkpoints.remove_damaged(copy, GROUP) == []


def test_one_that_can_not_be_written(copy, monkeypatch):
  def full(file, *arrays, **named):
    file.write(b"half")
    raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(np, "savez", full)
  with pytest.raises(UserError, match="No space left.*repeat the command"):
    save(copy, 3)
  assert_restored(copy, 2, 1)
  assert {path.name for path in copy.iterdir()} == {"1", "2"}
