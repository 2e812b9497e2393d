"""Pages opened in headless Chromium: run JavaScript, press keys, take screenshots, collect messages and requests.

    def test_my_page(browser, tmp_path):                 # `browser` is a fixture of conftest.py
        page = browser.open(path, width=390, phone=True, dark=True, fragment="norm=3")
        assert page.run("document.title") == "…"         # any expression; a promise is awaited
        page.press("Tab"); page.click("#play")
        assert page.serious() == []                      # axe-core: findings that are serious or critical
        page.screenshot(tmp_path / "phone.png")
        assert page.messages == page.requests == []

Chromium is spoken to in its DevTools protocol through a pipe: JSON messages that end with a zero byte. No port is
opened, and no driver is needed.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"),
    *("--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--hide-scrollbars", "--remote-debugging-pipe"),
)
PIPES = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)
KEYS = {"Enter": 13, "Tab": 9, "Escape": 27, " ": 32, "End": 35, "Home": 36}
KEYS |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


class Browser:
    """One Chromium; skips the test where there is none."""

    def __init__(self) -> None:
        if CHROMIUM is None:
            pytest.skip("no chromium on PATH to open the page with")
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        # The protocol wants file descriptors 3 and 4, which may be in use here: a second process arranges them.
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 5) for fd in (commands, answers)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", PIPES, *map(str, ends), CHROMIUM, *FLAGS, f"--user-data-dir={self._profile.name}"],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (commands, answers, *ends):
            os.close(fd)
        self._received, self._next, self._replies = b"", 0, dict[int, dict[str, Any]]()
        self._events: dict[str | None, list[dict[str, Any]]] = defaultdict(list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.call("Browser.close")
            self._process.wait(timeout=20)
        except (RuntimeError, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._profile.cleanup()

    def open(
        self,
        page: Path | str,
        *,
        width: int = 1200,
        height: int = 800,
        dark: bool = False,
        still: bool = False,
        phone: bool = False,
        fragment: str = "",
    ) -> "Page":
        """Open a file, or a text of HTML, in a profile of its own; `still` asks for reduced motion."""
        if isinstance(page, str):
            file = Path(self._profile.name) / f"page-{self._next}.html"
            file.write_text(page, encoding="utf-8")
            page = file
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        opened = Page(self, session, context)
        for domain in ("Page", "Runtime", "Log", "Network"):
            opened.call(f"{domain}.enable")
        opened.resize(width, height, phone=phone)
        opened.media(dark=dark, still=still)
        opened.go(page.resolve().as_uri() + (f"#{fragment}" if fragment else ""))
        return opened

    def call(self, method: str, session: str | None = None, **parameters: object) -> dict[str, Any]:
        self._next += 1
        message: dict[str, object] = {"id": self._next, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        number, data = self._next, json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while number not in self._replies:
            self._receive(f"an answer to {method}")
        reply = self._replies.pop(number)
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']['message']}")
        result: dict[str, Any] = reply["result"]
        return result

    def events(self, session: str) -> list[dict[str, Any]]:
        return self._events[session]

    def wait_for(self, session: str, method: str, since: int) -> None:
        while not any(event["method"] == method for event in self._events[session][since:]):
            self._receive(method)

    def _receive(self, awaited: str, seconds: float = 60) -> None:
        if not select.select([self._read], [], [], seconds)[0]:
            raise RuntimeError(f"Chromium was silent for {seconds} s while {awaited} was awaited")
        part = os.read(self._read, 1 << 16)
        if not part:
            raise RuntimeError(f"Chromium ended (code {self._process.poll()}) while {awaited} was awaited")
        *whole, self._received = (self._received + part).split(b"\0")
        for message in map(json.loads, whole):
            if "id" in message:
                self._replies[message["id"]] = message
            else:
                self._events[message.get("sessionId")].append(message)


class Page:
    """One page in the browser."""

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self._browser, self._session, self._context = browser, session, context

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """A call of the DevTools protocol, for what this class has no name for."""
        return self._browser.call(method, self._session, **parameters)

    def close(self) -> None:
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)

    def go(self, url: str) -> None:
        """Load an address, and wait until all of it is there."""
        since = len(self._browser.events(self._session))
        reply = self.call("Page.navigate", url=url)
        if "errorText" in reply:
            raise RuntimeError(f"{url}: {reply['errorText']}")
        if "loaderId" in reply:  # not a step to another #fragment of the same page
            self._browser.wait_for(self._session, "Page.loadEventFired", since)

    def run(self, script: str) -> Any:
        """The value of an expression, as JSON gives it; a promise is awaited; an exception is raised here."""
        reply = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reply:
            details = reply["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return reply["result"].get("value")

    def wait(self, condition: str, seconds: float = 10) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > end:
                raise RuntimeError(f"not true within {seconds} s: {condition}")
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """A key as a keyboard sends it: a letter, or the name of a key."""
        code = KEYS.get(key, ord(key[0].upper()))
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def click(self, selector: str) -> None:
        """Scroll the first element that matches into view, and click its middle."""
        self.drag(selector)

    def drag(self, selector: str, right: float = 0, down: float = 0) -> None:
        """Press the mouse in the middle of an element, move it by so many pixels, and let it go."""
        box = self.run(
            f"(e => {{ e.scrollIntoView({{block: 'center', behavior: 'instant'}}); return e.getBoundingClientRect() }})"
            f"(document.querySelector({json.dumps(selector)})).toJSON()"
        )
        x, y = box["left"] + box["width"] / 2, box["top"] + box["height"] / 2
        mouse: dict[str, object] = {"button": "left", "buttons": 1, "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, **mouse)
        if right or down:
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + right, y=y + down, **mouse)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=x + right, y=y + down, **mouse)

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        scale = 2 if phone else 1
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def media(self, *, dark: bool = False, still: bool = False, printed: bool = False) -> None:
        """What the page's media queries see."""
        features = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "reduce" if still else "no-preference",
        }
        listed = [{"name": name, "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", media="print" if printed else "screen", features=listed)

    def screenshot(self, path: Path | str, *, whole: bool = True) -> None:
        """A PNG file of the whole page, or of what the window shows."""
        clip: dict[str, object] = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}
        reply = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **clip)
        Path(path).write_bytes(base64.b64decode(reply["data"]))

    def serious(self) -> list[str]:
        """What axe-core finds serious or critical: rule, element and summary of each."""
        if not self.run("'axe' in window"):
            self.run(_axe() + "\n;0")
        found = self.run("axe.run({resultTypes: ['violations']}).then(r => r.violations)")
        return [
            f"{each['id']} at {node['target']}: {node['failureSummary']}"
            for each in found
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]

    @property
    def messages(self) -> list[str]:
        """Warnings and errors of the console, uncaught exceptions, and what the browser itself complains about."""
        return [text for event in self._browser.events(self._session) if (text := _complaint(event)) is not None]

    @property
    def requests(self) -> list[str]:
        """What was requested besides the pages that were opened here and data in them."""
        sent = [e["params"] for e in self._browser.events(self._session) if e["method"] == "Network.requestWillBeSent"]
        urls = [(each["request"]["url"], each["requestId"] == each["loaderId"]) for each in sent]
        return [url for url, is_page in urls if not is_page and not url.startswith("data:")]


def _complaint(event: dict[str, Any]) -> str | None:
    about = event["params"]
    if event["method"] == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
        return " ".join(str(each.get("value", each.get("description", each["type"]))) for each in about["args"])
    if event["method"] == "Runtime.exceptionThrown":
        details = about["exceptionDetails"]
        return str(details.get("exception", {}).get("description", details["text"]))
    if event["method"] == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
        return str(about["entry"]["text"])
    return None


def _axe() -> str:
    """axe-core, from the wheel that `make test` installs for this one file of it."""
    try:
        files = metadata.files("axe-playwright-python") or []
    except metadata.PackageNotFoundError:
        pytest.skip("no axe-core here: pip install --no-deps axe-playwright-python")
    (script,) = [file for file in files if file.name == "axe.min.js"]
    return Path(str(script.locate())).read_text(encoding="utf-8")
