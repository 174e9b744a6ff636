"""The documentation's search in a real browser: from a server, and from the disk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from .chromium import BROWSER, DRIVER, Chromium

pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="apt-get install chromium chromium-driver"
)
ROOT = Path(__file__).parents[2]
FOUND = "[...document.querySelectorAll('.md-search-result__link')].map(each => each.href)"


class Quiet(SimpleHTTPRequestHandler):
    """Says nothing of requests."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("docs") / "site"
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    return path


@pytest.fixture(scope="module", params=["disk", "server"])
def home(site: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Address of the first page."""
    if request.param == "disk":
        yield (site / "index.html").as_uri()
        return
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/index.html"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_word_is_found(home: str, tmp_path: Path) -> None:
    """In the pages that have it, with an address that can be followed."""
    page = Chromium(tmp_path / "profile")
    try:
        page.open(f"{home}?q=watermark")
        page.until(f"{FOUND}.length")
        found = page.run(f"return {FOUND};")
        assert any("concepts.html" in each for each in found)
        assert all(each.startswith(home.rpartition("/")[0]) for each in found)
    finally:
        page.close()
