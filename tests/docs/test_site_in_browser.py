"""The built site in Chromium: every page fits a phone, searches find answers.

Skipped without Chromium, or before `make docs`. Chromium loads one page of our
own, which opens the others in a frame and sends back what it sees.
"""

import functools
import http.server
import json
import pathlib
import shutil
import subprocess
import threading

import pytest

SITE = pathlib.Path(__file__).parents[2] / "docs" / "_build" / "html"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PHONE = 390
# What someone may search for, and the page that answers.
SEARCHES = {
  "cite": "docs/cite.html",
  "EMA": "docs/guides/recipes.html",
  "Muon": "docs/guides/recipes.html",
  "PyTorch": "docs/guides/from_pytorch.html",
  "TPU pod": "docs/guides/recipes_devices.html",
  "multi-host": "docs/guides/recipes_devices.html",
}
FLAGS = (
  *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
  *("--no-first-run", "--disable-background-networking", "--disable-quic"),
  *("--disable-component-update", "--disable-sync", "--window-size=1000,900"),
)
PAGE = """<!doctype html><meta charset="utf-8"><script>
const sleep = ms => new Promise(done => setTimeout(done, ms));
async function open(path, width) {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 800px; border: 0`;
  const loaded = new Promise(done => frame.onload = done);
  frame.src = path;
  document.body.append(frame);
  await loaded;
  return frame;
}
async function measure() {
  const widths = {}, hits = {};
  for (const page of PAGES) {
    const frame = await open(page, PHONE);
    widths[page] = frame.contentDocument.documentElement.scrollWidth;
    frame.remove();
  }
  for (const word of WORDS) {
    const query = encodeURIComponent(word);
    const frame = await open("search.html?q=" + query, 900);
    const page = frame.contentDocument;
    const links = () => page.querySelectorAll("ul.search li > a");
    for (let i = 0; i < 200 && links().length < 3; i++) await sleep(50);
    hits[word] = [...links()].slice(0, 3).map(a => new URL(a.href).pathname);
    frame.remove();
  }
  await fetch("/", {method: "POST", body: JSON.stringify({widths, hits})});
}
onload = measure;
</script><body></body>"""


class Handler(http.server.SimpleHTTPRequestHandler):
  def log_message(self, format, *args):
    pass

  def do_GET(self):
    if self.path != "/":
      return super().do_GET()
    self.send_response(200)
    self.send_header("Content-Type", "text/html")
    self.end_headers()
    pages = [
      path.relative_to(SITE).as_posix()
      for path in sorted(SITE.rglob("*.html"))
      if "_static" not in path.parts
    ]
    known = f"PAGES={json.dumps(pages)},WORDS={json.dumps(list(SEARCHES))}"
    script = f"<script>const PHONE={PHONE},{known}</script>"
    self.wfile.write((script + PAGE).encode())

  def do_POST(self):
    length = int(self.headers["Content-Length"])
    self.server.seen.append(json.loads(self.rfile.read(length)))
    self.send_response(200)
    self.end_headers()
    self.server.done.set()


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
  """The width of every page and the first hits of every search."""
  if not CHROMIUM:
    pytest.skip("Chromium is not installed")
  if not (SITE / "docs" / "index.html").exists():
    pytest.skip("`make docs` has not run")
  handler = functools.partial(Handler, directory=SITE)
  with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
    server.seen, server.done = [], threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    profile = tmp_path_factory.mktemp("chromium")
    browser = subprocess.Popen(
      [
        CHROMIUM,
        *FLAGS,
        f"--user-data-dir={profile}",
        f"http://127.0.0.1:{server.server_port}/",
      ],
      stderr=subprocess.DEVNULL,
    )
    try:
      assert server.done.wait(300), "Chromium did not answer"
    finally:
      browser.terminate()
      browser.wait()
      server.shutdown()
  return server.seen[0]


@pytest.mark.slow
def test_no_page_scrolls_sideways_on_a_phone(seen):
  assert len(seen["widths"]) > 40
  wide = {page: w for page, w in seen["widths"].items() if w > PHONE}
  assert not wide


@pytest.mark.slow
def test_a_search_leads_to_an_answer(seen):
  for word, page in SEARCHES.items():
    assert f"/{page}" in seen["hits"][word], word
