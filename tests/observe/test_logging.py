"""What is logged: at INFO what a system's keeper wants to know, at DEBUG the handshakes."""

import logging
import subprocess
import sys

import anyio
import pytest

import l5

pytestmark = pytest.mark.anyio


async def test_a_connection_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="l5")
    async with l5.serve(bytes.upper, "l5://127.0.0.1:0") as server:
        async with await l5.connect(server.urls[0]) as conn:
            await conn.request(b"x")
        async with await l5.connect(server.urls[0], transports="tcp") as conn:
            await conn.request(b"x")
    said = [(r.name, r.levelname, r.getMessage()) for r in caplog.records]
    url = server.urls[0]
    assert ("l5.server", "INFO", f"listening on {url}") in said
    assert ("l5.client", "INFO", f"connected to {url} over shm, upgraded from tcp") in said
    assert any(
        name == "l5.client" and "over tcp" in text and "not among the transports" in text
        for name, _, text in said
    )
    assert ("l5.server", "INFO", f"stopped: {url}") in said
    assert sum(name == "l5.server" and "connected: " in text for name, _, text in said) == 2
    assert not [text for _, level, text in said if level in ("WARNING", "ERROR")]


async def test_why_a_connection_broke(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="l5")
    async with l5.serve(bytes.upper, "l5+tcp://127.0.0.1:0") as server:
        async with await l5.connect(server.urls[0]) as conn:
            await conn.request(b"x")
            conn._session.channel._socket.shutdown(2)  # type: ignore[attr-defined]
            with anyio.fail_after(60):
                with pytest.raises(anyio.BrokenResourceError):
                    while True:
                        await conn.request(b"y")
    assert any(r.levelno == logging.INFO and " broke: " in r.getMessage() for r in caplog.records)


async def test_the_handshake_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="l5")
    async with l5.serve(bytes.upper, "l5://127.0.0.1:0") as server:
        async with await l5.connect(server.urls[0], token="very secret"):
            pass
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.DEBUG]
    assert any("offers shm" in text for text in said)
    assert any("chose shm" in text for text in said)
    assert not any("secret" in r.getMessage() for r in caplog.records)


def test_importing_l5_leaves_logging_alone() -> None:
    code = (
        "import logging; before = (logging.root.level, list(logging.root.handlers));"
        "import l5; assert before == (logging.root.level, logging.root.handlers);"
        "log = logging.getLogger('l5');"
        "assert [type(h) for h in log.handlers] == [logging.NullHandler];"
        "assert log.level == 0 and log.propagate; log.warning('unheard')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and done.stderr == "", done.stderr
