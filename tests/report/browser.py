"""A headless Chromium, driven through a pipe by its own protocol: no driver, port or library."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from base64 import b64decode
from typing import TYPE_CHECKING, Any, Final, Self

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM: Final = next(filter(None, map(shutil.which, _NAMES)), None)
FLAGS: Final = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-dev-shm-usage "
    "--disable-background-networking --disable-component-update --disable-sync --hide-scrollbars "
    "--disable-extensions --remote-debugging-pipe"
)
TIMEOUT_S: Final = 60.0


class Browser:
    """One page at a time. What it logs, throws and asks the network for is collected."""

    def __init__(self) -> None:
        if CHROMIUM is None:
            pytest.skip("there is no Chromium, and it could not be installed")
        self._home = tempfile.mkdtemp(prefix="stratalog-chromium-")
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        command = (
            f"exec {CHROMIUM} {FLAGS} --user-data-dir={self._home} about:blank "
            f"3<&{theirs_in} 4>&{theirs_out}"
        )
        self._process = subprocess.Popen(
            ["bash", "-c", command],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._out, self._in = ours_out, ours_in
        self._pending = b""
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.complaints: list[str] = []
        """Console messages of any kind, exceptions and failed loads."""
        self.requests: list[str] = []

    def __enter__(self) -> Self:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Performance.enable", timeDomain="threadTicks")
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._out)
        os.close(self._in)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its result."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            received = self._receive()
            if received.get("id") == number:
                if "error" in received:
                    raise RuntimeError(f"{method}: {received['error']}")
                result: dict[str, Any] = received["result"]
                return result
            self._note(received)

    def open(self, page: Path, *, width: int, height: int = 900, is_dark: bool = False) -> float:
        """Show a page; returns the seconds until it was laid out and painted."""
        self.complaints.clear()
        self.requests.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        start = time.perf_counter()
        self.call("Page.navigate", url=page.as_uri())
        painted = "new Promise(r => requestAnimationFrame(() => setTimeout(r, 0)))"
        while self.evaluate("document.readyState + location.href") != f"complete{page.as_uri()}":
            time.sleep(0.01)
        self.evaluate(painted)
        return time.perf_counter() - start

    def busy_seconds(self) -> float:
        """How long the page's thread has worked so far, however busy the machine is otherwise."""
        found = self.call("Performance.getMetrics")["metrics"]
        return next(float(each["value"]) for each in found if each["name"] == "TaskDuration")

    def evaluate(self, code: str) -> Any:
        """The value of an expression on the page."""
        result = self.call(
            "Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """A key, as from a keyboard."""
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, text=text
            )

    def picture(self, *, is_whole: bool = True) -> bytes:
        """A PNG of the page."""
        found = self.call(
            "Page.captureScreenshot", captureBeyondViewport=is_whole, **self._clip(is_whole)
        )
        return b64decode(found["data"])

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def _clip(self, is_whole: bool) -> dict[str, Any]:
        if not is_whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {**size, "scale": 1}}

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._pending:
            if time.monotonic() > deadline:
                raise TimeoutError("Chromium does not answer")
            chunk = os.read(self._in, 1 << 20)
            if not chunk:
                raise RuntimeError(f"Chromium ended with status {self._process.wait(10)}")
            self._pending += chunk
        message, _, self._pending = self._pending.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.complaints.append(str(params["args"]))
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(str(params["entry"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
