# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, told what to do over a pipe in the DevTools protocol: nothing to install."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--disable-gpu",
    "--hide-scrollbars",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
    "about:blank",
)
BROWSER_READS, BROWSER_WRITES = 3, 4  # file descriptors, fixed by --remote-debugging-pipe
TIMEOUT = 60.0  # seconds, for one answer on a busy machine


def find_chromium() -> str | None:
    """The Chromium or Chrome on the path."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class BrowserError(RuntimeError):
    """Chromium ended, did not answer, or refused a command."""


class Tab:
    """One page. `events` are those that came with the answers so far."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._buffer = b""
        self._last = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._last:
            self.events.append(answer)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, url: str, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Loads a page in a window of this size and colour scheme."""
        self.resize(width, height)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[feature])
        self.send("Page.navigate", url=url)
        deadline = time.monotonic() + TIMEOUT
        while self.evaluate("document.readyState + location.href") != f"complete{url}":
            if time.monotonic() > deadline:
                raise BrowserError(f"{url} did not load in {TIMEOUT:.0f} s")
            time.sleep(0.02)

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def becomes(self, expression: str, value: Any = True) -> bool:
        """Whether an expression has this value soon: pages answer the mouse in their own time."""
        deadline = time.monotonic() + TIMEOUT
        while self.evaluate(expression) != value:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def click(self, selector: str) -> None:
        """Clicks the middle of an element with the mouse."""
        x, y = self._middle(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def point_at(self, selector: str) -> None:
        """Moves the mouse onto an element."""
        x, y = self._middle(selector)
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str, code: int, text: str = "") -> None:
        """Presses and releases a key."""
        common = {"key": key, "windowsVirtualKeyCode": code}
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.send("Input.dispatchKeyEvent", **common, **down)
        self.send("Input.dispatchKeyEvent", **common, type="keyUp")

    def screenshot(self, *, whole_page: bool = False) -> bytes:
        """A PNG of the window, or of the whole page."""
        data = self.send("Page.captureScreenshot", captureBeyondViewport=whole_page)["data"]
        return base64.b64decode(data)

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and exceptions nobody caught."""
        self.evaluate("0")  # what happened before has arrived after this answer
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(e["params"]) for e in self.events if e.get("method") in kinds]

    def requests(self) -> list[str]:
        """The addresses that were asked for."""
        asked = (e for e in self.events if e.get("method") == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in asked]

    def _middle(self, selector: str) -> tuple[float, float]:
        element = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{element}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = self.evaluate(f"JSON.stringify({element}.getBoundingClientRect())")
        place = json.loads(box)
        return place["x"] + place["width"] / 2, place["y"] + place["height"] / 2

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reader], [], [], TIMEOUT)
            piece = os.read(self._reader, 1 << 16) if ready else b""
            if not piece:
                raise BrowserError("Chromium ended" if ready else "Chromium does not answer")
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        received: dict[str, Any] = json.loads(message)
        return received


@contextmanager
def chromium(profile: Path) -> Iterator[Tab]:
    """A browser with a new `profile` folder, ended afterwards."""
    program = find_chromium()
    if program is None:
        raise BrowserError("no Chromium on the path")
    its_input, writer = (_above(fd) for fd in os.pipe())
    reader, its_output = (_above(fd) for fd in os.pipe())

    def connect() -> None:
        os.dup2(its_input, BROWSER_READS)
        os.dup2(its_output, BROWSER_WRITES)

    sandbox = ("--no-sandbox",) if os.getuid() == 0 else ()
    browser = subprocess.Popen(
        (program, f"--user-data-dir={profile}", *sandbox, *FLAGS),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(BROWSER_READS, BROWSER_WRITES),
        preexec_fn=connect,
    )
    os.close(its_input)
    os.close(its_output)
    try:
        yield Tab(reader, writer)
    finally:
        browser.terminate()
        browser.wait(TIMEOUT)
        os.close(reader)
        os.close(writer)


def _above(descriptor: int) -> int:
    """The same file under a number that is clear of those Chromium wants."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved
