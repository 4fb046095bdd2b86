"""CIFAR-10-C against images that the published procedure made."""

import dataclasses
import hashlib
import io
import pathlib
import tarfile
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest
from scipy import ndimage, stats
import small_cifar

from experiments.datasets import (
  cache,
  cifar,
  corruptions,
  sheet,
  sources,
  spatter,
)
from experiments.datasets import frost as textures_of_frost

REFERENCE = pathlib.Path(__file__).parents[4] / "shared/cifar10c_reference.npz"
DETERMINISTIC = (
  "brightness",
  "contrast",
  "defocus_blur",
  "gaussian_blur",
  "jpeg",
  "pixelate",
  "saturate",
  "zoom_blur",
)
ALL = corruptions.ALL_CORRUPTIONS
RANDOM = tuple(name for name in ALL if name not in DETERMINISTIC)


@pytest.fixture(scope="module")
def published():
  if not REFERENCE.is_file():
    pytest.skip("the images of the published procedure are not here")
  with np.load(REFERENCE) as arrays:
    return dict(arrays)


@pytest.fixture(autouse=True)
def frost(request, monkeypatch):
  """Clouds in place of frost, where its textures are not in the cache."""
  random = np.random.default_rng(0)
  textures = random.integers(0, 256, (5, 60, 94, 3), np.uint8)
  sizes = np.full(5, 60), np.arange(90, 95)
  if "published" not in request.fixturenames:
    monkeypatch.setattr(
      textures_of_frost, "load_frost", lambda: (textures, *sizes)
    )


def test_names():
  assert len(corruptions.CORRUPTIONS) == 15
  assert len(set(ALL)) == 19
  assert set(corruptions.PARAMETERS) == set(ALL)


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_ones_agree(published, name, severity):
  actual = corruptions.corrupt(
    published["clean"], name, severity, jax.random.key(0)
  )
  expected = published[name][severity - 1].astype(int)
  difference = np.abs(np.asarray(actual).astype(int) - expected)
  assert np.mean(difference <= 1) >= 0.99
  assert difference.max() <= 3


def change(images, clean):
  """Mean, mean absolute and r.m.s. change, and its correlations."""
  x = images.astype(float) - clean
  correlation = lambda a, b: np.corrcoef(a.ravel(), b.ravel())[0, 1]
  return [
    x.mean(),
    np.abs(x).mean(),
    np.sqrt(np.mean(x**2)),
    correlation(x[:, :, 1:], x[:, :, :-1]),
    correlation(x[:, 1:], x[:, :-1]),
    correlation(x[..., 0], x[..., 1]),
  ]


@pytest.mark.mostly_slow(7)
@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("name", RANDOM)
def test_random_ones_agree_in_distribution(published, name, severity):
  """The published draw is one that ours could be."""
  clean = published["clean"]
  if name == "frost":
    try:
      textures_of_frost.load_frost()
    except cache.DataError:
      pytest.skip("the textures of frost are not in the cache")
  draws = np.array(
    [
      change(
        np.asarray(
          corruptions.corrupt(clean, name, severity, jax.random.key(i))
        ),
        clean,
      )
      for i in range(16)
    ]
  )
  expected = change(published[name][severity - 1], clean)
  # Of one draw against 16, in their standard deviations.
  z = (expected - draws.mean(axis=0)) / draws.std(axis=0, ddof=1)
  assert np.all(np.abs(z / np.sqrt(1 + 1 / 16)) < 4.1), z


@pytest.mark.slow
def test_motion_blur_is_imagemagicks(published):
  """At the angle that fits, each image agrees to one grey level."""
  clean = jnp.asarray(published["clean"], jnp.float32)
  weights = corruptions.motion_weights(9, 2.5, most=9)
  expected = published["motion_blur"][4].astype(float)
  blur = jax.jit(lambda a: corruptions._motion(clean, a, weights))
  worst = np.full(32, np.inf)
  for angle in np.arange(-45, 45, 0.5):
    actual = np.asarray(blur(jnp.full(32, angle)))
    worst = np.minimum(worst, np.abs(actual - expected).max(axis=(1, 2, 3)))
  assert np.mean(worst <= 1) > 0.9


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize("c", corruptions.PARAMETERS["shot_noise"])
def test_photons_have_poissons_distribution(c):
  for level in (1, 100, 255):
    x = jnp.full((20, 32, 32, 3), float(level))
    noisy = corruptions.shot_noise(jax.random.key(level), x, c)
    photons = np.round(np.asarray(noisy) * c / 255).ravel()
    rate = level * c / 255
    support = np.arange(photons.max() + 1)
    expected = photons.size * stats.poisson.pmf(support, rate)
    observed = np.bincount(photons.astype(int))
    common = expected > 10
    observed = np.append(observed[common], observed[~common].sum())
    rest = photons.size - expected[common].sum()
    expected = np.append(expected[common], max(rest, 1e-9))
    if rest < 5:
      observed, expected = observed[:-1], expected[:-1]
      expected *= observed.sum() / expected.sum()
    if len(expected) > 1:
      assert stats.chisquare(observed, expected).pvalue > 1e-4


# Six images at severity 5, in these tests, are of one program each.


@pytest.mark.parametrize(
  "severity", [5, pytest.param(1, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", ALL)
def test_keys(name, severity):
  images = cifar.load_sample().test_images[:6]
  first, again, other = (
    np.asarray(corruptions.corrupt(images, name, severity, jax.random.key(i)))
    for i in (0, 0, 1)
  )
  assert first.dtype == np.uint8 and first.shape == images.shape
  np.testing.assert_array_equal(first, again)
  assert np.array_equal(first, other) == (name in DETERMINISTIC)
  assert not np.array_equal(first, images)


@pytest.mark.parametrize("name", RANDOM)
def test_each_image_has_its_own_draw(name):
  images = np.repeat(cifar.load_sample().test_images[:1], 6, axis=0)
  out = np.asarray(corruptions.corrupt(images, name, 5, jax.random.key(0)))
  assert len({image.tobytes() for image in out}) == 6


def test_input_that_makes_no_sense():
  images, key = cifar.load_sample().test_images[:2], jax.random.key(0)
  with pytest.raises(ValueError, match="'rain'.*gaussian_noise.*saturate"):
    corruptions.corrupt(images, "rain", 1, key)
  for severity in (0, 6, 1.5, "1"):
    with pytest.raises(ValueError, match="severity is .*1, 2, 3, 4 or 5"):
      corruptions.corrupt(images, "fog", severity, key)
  for wrong in (images[0], images.astype(float), images[:, :16], [[1]]):
    with pytest.raises(ValueError, match=r"uint8 of shape \(n, 32, 32, 3\)"):
      corruptions.corrupt(wrong, "fog", 1, key)


def layers(parameters, n=200):
  loc, scale, sigma, threshold, *_ = parameters
  random = np.random.default_rng(0)
  noise = loc + scale * random.normal(size=(n, 32, 32))
  smooth = corruptions.dot(corruptions.gaussian_matrix(sigma), noise)
  smooth = np.asarray(smooth)
  return np.floor(np.where(smooth < threshold, 0, smooth) * 255) % 256


@pytest.fixture
def cv2():
  """OpenCV, with its own whole numbers for distances, as on any processor.

  On Intel's, it calls a library of Intel's, which rounds otherwise.
  """
  module = pytest.importorskip("cv2")
  before = module.ipp.useIPP()
  module.ipp.setUseIPP(False)
  yield module
  module.ipp.setUseIPP(before)


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize("parameters", corruptions.PARAMETERS["spatter"][:3])
def test_water_is_opencvs(cv2, parameters):
  x = layers(parameters)
  water = np.asarray(spatter.water(jnp.asarray(x)))
  for layer, actual in zip(x.astype(np.uint8), water, strict=True):
    free = 255 - cv2.Canny(layer, 50, 150)
    distance = np.minimum(cv2.distanceTransform(free, cv2.DIST_L2, 5), 20)
    relief = cv2.equalizeHist(cv2.blur(distance, (3, 3)).astype(np.uint8))
    slope = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    relief = cv2.blur(cv2.filter2D(relief, cv2.CV_8U, slope), (3, 3))
    expected = layer.astype(float) * relief
    np.testing.assert_allclose(actual, expected / expected.max(), atol=1e-6)


def test_steps_of_water_are_opencvs(cv2):
  x = layers((0.62, 0.3, 0.7, 0.9))
  few = np.random.default_rng(1).random(x.shape) < 1e-3  # and far apart
  for edges in (np.asarray(spatter.canny(jnp.asarray(x), 50, 150)), few):
    distances = np.asarray(spatter.distance_transform(jnp.asarray(edges)))
    for layer, edge, distance in zip(x, edges, distances, strict=True):
      if edges is not few:
        expected = cv2.Canny(layer.astype(np.uint8), 50, 150) > 0
        np.testing.assert_array_equal(edge, expected)
      mask = np.where(edge, 0, 255).astype(np.uint8)
      expected = np.minimum(cv2.distanceTransform(mask, cv2.DIST_L2, 5), 20)
      actual = np.minimum(distance / spatter.UNIT, 20)
      np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_glass_blur_is_cut_off_as_often():
  """Before pixels move, blurred levels are cut off, by rounding or by rule."""
  images = cifar.load_sample().test_images
  blurred = ndimage.gaussian_filter(
    images / 255, (0, 0.25, 0.25, 0), mode="nearest"
  )
  expected = np.floor(blurred * 255)
  x = jnp.asarray(images, jnp.float32)
  blur = corruptions.gaussian_matrix(0.25)
  # In no round does a pixel move.
  actual = corruptions.glass_blur(jax.random.key(0), x, blur, 0)
  again = corruptions.dot(blur, jnp.asarray(expected, jnp.float32))
  difference = np.asarray(actual - again)
  assert np.mean(np.abs(difference) > 0.5) < 0.02
  assert abs(difference.mean()) < 0.005


@pytest.fixture
def small_frost(monkeypatch, tmp_path):
  """Five pictures as if they were imagecorruptions', and their textures."""
  monkeypatch.undo()  # load_frost is the real one
  random, textures = np.random.default_rng(0), []
  for i, name in enumerate(textures_of_frost.TEXTURES):
    image = random.integers(0, 256, (40 + 5 * i, 50, 3), np.uint8)
    PIL.Image.fromarray(image).save(tmp_path / name, "PNG")
    textures.append(image[2::5, 2::5])
    size = image.shape[1], image.shape[0]
    monkeypatch.setitem(textures_of_frost.TEXTURES, name, size)
  content = b"".join(a.tobytes() for a in textures)
  digest = hashlib.sha256(content).hexdigest()
  files = textures_of_frost.FROST
  monkeypatch.setitem(files.digests, "frost.bin", digest)
  return files, textures


def test_frost_without_textures(small_frost, tmp_path):
  files, textures = small_frost
  cached = tmp_path / "cache"
  with pytest.raises(cache.DataError, match="frost.bin.*missing.*fetch frost"):
    textures_of_frost.load_frost(cached)
  sources.fetch(files, str(tmp_path), cached)
  loaded = textures_of_frost.load_frost(cached)
  assert loaded[0].dtype == np.uint8 and loaded[0].shape == (5, 12, 10, 3)
  for actual, rows, columns, expected in zip(*loaded, textures, strict=True):
    np.testing.assert_array_equal(actual[:rows, :columns], expected)
    assert not actual[rows:].any() and not actual[:, columns:].any()
  path = cached / "frost.bin"
  whole = path.read_bytes()
  for wrong in (b"hello", whole[:-1], whole + b"x", whole[::-1]):
    path.write_bytes(wrong)
    with pytest.raises(cache.DataError, match="damaged.*data fetch frost"):
      textures_of_frost.load_frost(cached)


def test_frost_with_other_textures(small_frost, tmp_path):
  """They are refused, and what was there stays."""
  files, _ = small_frost
  path = tmp_path / "cache" / "frost.bin"
  path.parent.mkdir()
  path.write_bytes(b"as before")
  picture = tmp_path / "frost1.png"
  whole = picture.read_bytes()
  black = io.BytesIO()
  PIL.Image.new("RGB", (50, 40)).save(black, "PNG")
  for wrong, message in (
    (whole[:-40], "frost1.png is not a complete picture"),
    ((tmp_path / "frost2.png").read_bytes(), "frost1.png.*got 50 × 45"),
    (black.getvalue(), "is not a file of the textures of frost"),
  ):
    picture.write_bytes(wrong)
    with pytest.raises(cache.DataError, match=message):
      sources.fetch(files, str(tmp_path), path.parent)
    assert path.read_bytes() == b"as before"


def test_frost_from_pip(small_frost, tmp_path, monkeypatch):
  """A wheel is read if it has the right digest."""
  files, textures = small_frost
  path = tmp_path / "wheels" / "imagecorruptions-1.1.2-py3-none-any.whl"
  path.parent.mkdir()
  metadata = "Metadata-Version: 2.1\nName: imagecorruptions\nVersion: 1.1.2\n"
  with zipfile.ZipFile(path, "w") as wheel:
    for name in textures_of_frost.TEXTURES:
      wheel.write(tmp_path / name, f"imagecorruptions/frost/{name}")
    wheel.writestr("imagecorruptions-1.1.2.dist-info/METADATA", metadata)
    wheel.writestr("imagecorruptions-1.1.2.dist-info/WHEEL", "Wheel-Version: 1")
  monkeypatch.setenv("PIP_NO_INDEX", "1")
  monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
  with pytest.raises(cache.DataError, match="any.whl must have the SHA-256"):
    sources.fetch(files, "pip", tmp_path / "cache")
  pip = files.pip[0], hashlib.sha256(path.read_bytes()).hexdigest()
  files = dataclasses.replace(files, pip=pip)
  sources.fetch(files, "pip", tmp_path / "cache")
  loaded, _, _ = textures_of_frost.load_frost(tmp_path / "cache")
  np.testing.assert_array_equal(loaded[0, :8], textures[0])


def test_no_code_of_frost_is_run(tmp_path, monkeypatch):
  """pip has a source distribution only, whose backend would leave a trace."""
  trace = tmp_path / "trace"
  files = {
    "PKG-INFO": "Metadata-Version: 2.1\nName: imagecorruptions\n"
    "Version: 1.1.2\n",
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "x"\n'
    'backend-path = ["."]\n',
    "x.py": f"open({str(trace)!r}, 'w')",
  }
  packages = tmp_path / "packages"
  packages.mkdir()
  with tarfile.open(
    packages / "imagecorruptions-1.1.2.tar.gz", "w:gz"
  ) as sdist:
    for name, text in files.items():
      small_cifar.add(sdist, f"imagecorruptions-1.1.2/{name}", text.encode())
  monkeypatch.setenv("PIP_NO_INDEX", "1")
  monkeypatch.setenv("PIP_FIND_LINKS", str(packages))
  with pytest.raises(cache.DataError, match="pip failed to get imagecorrup"):
    sources.fetch(textures_of_frost.FROST, "pip", tmp_path / "cache")
  assert not trace.exists()


def test_sheet(monkeypatch, tmp_path):
  """A column for the image itself and for each severity."""
  monkeypatch.setattr(corruptions, "corrupt", lambda x, _, i, key: x ^ i)
  image = cifar.load_sample().test_images[19]
  path = tmp_path / "new" / "sheet.png"
  sheet.draw(19, path)
  with PIL.Image.open(path) as picture:
    pixels = np.asarray(picture.convert("RGB"))
  cell = 32 * sheet.SCALE + sheet.GAP
  # "severity", above the middle of its five columns.
  _, dark = np.nonzero(np.any(pixels[: sheet.TOP // 2] < 128, axis=2))
  assert abs(np.mean(dark) - (sheet.LEFT + 3.5 * cell)) < sheet.GAP
  for row in range(19):
    top = sheet.TOP + row * cell
    tiles = [
      pixels[top : top + cell - sheet.GAP, left : left + cell - sheet.GAP]
      for left in range(sheet.LEFT, pixels.shape[1], cell)
    ]
    for i, tile in enumerate(tiles):
      assert i < 6
      np.testing.assert_array_equal(
        tile[:: sheet.SCALE, :: sheet.SCALE], image ^ np.uint8(i)
      )
