"""A headless Chromium, told what to do by WebDriver's plain HTTP."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from mirrorq.demo.ports import free_ports

DEADLINE_S = 60.0
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    # Whatever proxy the environment names, the page is on this machine.
    "--no-proxy-server",
)
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


class Chromium:
    """One browser with one page. `close` ends it and its driver."""

    def __init__(self, profile: Path, *, width: int = 1360, dark: bool = False) -> None:
        assert BROWSER is not None, "apt-get install chromium chromium-driver"
        assert DRIVER is not None, "apt-get install chromium chromium-driver"
        port = free_ports(1)[0]
        self._base = f"http://127.0.0.1:{port}"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with (profile.parent / "chromedriver.log").open("wb") as log:
            self._driver = subprocess.Popen([DRIVER, f"--port={port}"], stdout=log, stderr=log)
        self._session = ""
        try:
            self._wait_for(self._is_ready)
            flags = [*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},1000"]
            flags += ["--force-dark-mode"] if dark else []
            capabilities = {
                "browserName": "chrome",
                "goog:chromeOptions": {"binary": BROWSER, "args": flags},
                "goog:loggingPrefs": {"browser": "ALL"},
            }
            made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
            self._session = f"/session/{made['sessionId']}"
            self.resize(width)
        except BaseException:
            self.close()
            raise

    def _is_ready(self) -> bool:
        try:
            return bool(self._call("GET", "/status")["ready"])
        except (urllib.error.URLError, ConnectionError):
            return False

    def _wait_for(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end, "never came"
            time.sleep(0.05)

    def _call(self, method: str, path: str, given: object = None) -> Any:
        data = None if given is None and method == "GET" else json.dumps(given or {}).encode()
        request = urllib.request.Request(self._base + path, data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with self._opener.open(request, timeout=DEADLINE_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None

    def resize(self, width: int, height: int = 1000, *, dark: bool = False) -> None:
        """The page is so wide, as on a phone if that is narrow, and light or dark."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[feature])

    def devtools(self, command: str, **parameters: object) -> Any:
        path = f"{self._session}/goog/cdp/execute"
        return self._call("POST", path, {"cmd": command, "params": parameters})

    def open(self, url: str) -> None:
        self._call("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str) -> Any:
        """What a function with this body returns in the page."""
        path = f"{self._session}/execute/sync"
        return self._call("POST", path, {"script": script, "args": []})

    def until(self, script: str) -> Any:
        """The first value of this expression that is true."""
        found: list[Any] = []
        try:
            self._wait_for(lambda: found.append(self.run(f"return {script};")) or found[-1])
        except AssertionError:
            raise AssertionError(f"{script} never came:\n{self.text()}") from None
        return found[-1]

    def text(self) -> str:
        return str(self.run("return document.body.innerText;"))

    def complaints(self) -> list[str]:
        """What the browser has complained about since the last call."""
        told = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [f"{each['level']}: {each['message']}" for each in told]

    def shoot(self, path: Path, *, whole: bool = True) -> None:
        """A picture of the whole page."""
        shot = self.devtools("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        if self._session:
            with suppress(AssertionError, OSError):
                self._call("DELETE", self._session)
        self._driver.terminate()
        try:
            self._driver.wait(10)
        except subprocess.TimeoutExpired:
            self._driver.kill()
            self._driver.wait()
