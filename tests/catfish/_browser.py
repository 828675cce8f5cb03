"""A headless Chromium for tests, spoken to through two pipes (Chrome DevTools Protocol).

No driver and no other package: messages are JSON with a zero byte at the end.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
    "--disable-extensions",
    "--hide-scrollbars",
    "--no-proxy-server",
    "--remote-debugging-pipe",
)
PATIENCE_S = 60.0


def chromium() -> str | None:
    """Where the browser is, if there is one."""
    names = (os.environ.get("L5_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if name and (found := shutil.which(name))), None)


class BrowserError(AssertionError):
    """The page or the browser said that something is wrong."""


class Browser:
    """One page. Whatever the page complains about is in `complaints`."""

    def __init__(
        self, process: subprocess.Popen[bytes], to_browser: int, from_browser: int
    ) -> None:
        self.process = process
        self.complaints: list[str] = []
        self.urls: list[str] = []
        self._to, self._from = to_browser, from_browser
        self._buffer = b""
        self._number = 0
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], PATIENCE_S)
            piece = os.read(self._from, 1 << 20) if ready else b""
            if not piece:
                raise BrowserError(f"the browser is silent (exit {self.process.poll()})")
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        content = json.loads(message)
        self._note(content.get("method"), content.get("params", {}))
        return content

    def _note(self, event: str | None, params: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            text = details.get("exception", {}).get("description", details.get("text"))
            self.complaints.append(str(text))
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif event == "Network.requestWillBeSent":
            self.urls.append(params["request"]["url"])

    # ---- a page ----------------------------------------------------------------------------------

    def open(self, url: str, *, width: int = 1360, height: int = 850, dark: bool = True) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)

    def run(self, expression: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        done = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in done:
            raise BrowserError(str(done["exceptionDetails"]))
        return done["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true; its value."""
        end = time.monotonic() + PATIENCE_S
        while not (value := self.run(expression)):
            if time.monotonic() > end or self.complaints:
                raise BrowserError(f"never so: {expression}; complaints: {self.complaints}")
            time.sleep(0.02)
        return value

    def text(self, selector: str) -> str:
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def click(self, selector: str) -> None:
        x, y = self.run(
            f"(() => {{ const r = document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        self.drag((x, y), (x, y))

    def drag(
        self, start: tuple[float, float], end: tuple[float, float], shift: bool = False
    ) -> None:
        more = {"button": "left", "clickCount": 1, "modifiers": 8 if shift else 0}
        steps = [("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)]
        for kind, (x, y) in steps:
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def wheel(self, x: float, y: float, delta: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=delta)

    def key(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser with a profile of its own; nothing of it is left afterwards."""
    program = chromium()
    assert program is not None, "no Chromium is installed"
    read_commands, write_commands = _pipe()
    read_answers, write_answers = _pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = _start(program, profile, read_commands, write_answers)
        os.close(read_commands)
        os.close(write_answers)
        try:
            yield Browser(process, write_commands, read_answers)
        finally:
            os.close(write_commands)  # the browser ends when its pipe does
            os.close(read_answers)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are none of the numbers that the browser wants."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]


def _start(program: str, profile: str, commands: int, answers: int) -> subprocess.Popen[bytes]:
    """Chromium reads from descriptor 3 and writes to 4; a shell puts ours there."""
    script = f'exec "$0" "$@" 3<&{commands} 4>&{answers}'
    own = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.Popen(
        ["/bin/bash", "-c", script, program, *FLAGS, f"--user-data-dir={profile}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(commands, answers),
        start_new_session=True,
        env=own | {"HOME": profile, "DBUS_SESSION_BUS_ADDRESS": "disabled:"},
    )
