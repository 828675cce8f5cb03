"""What a request over a plain socket costs in system calls: one read and one write at each end."""

from __future__ import annotations

import json

import pytest

from l5 import native
from tests.connection._preloaded import compiled, told_by

pytestmark = [
    pytest.mark.bare,
    pytest.mark.skipif(not native.available, reason=native.reason),
    pytest.mark.checkout,
]
# What the loop waits with: asyncio looks twice (for the event, and before the woken task runs),
# trio arms and waits once; a server asks the hub's own descriptor besides, a client now and then.
WAITS = {
    "asyncio": {"client": 2.2, "server": 3.2, "epoll_ctl": 0.1},
    "trio": {"client": 1.2, "server": 2.2, "epoll_ctl": 1.1},
}


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled("socket_calls", tmp_path_factory.mktemp("calls"))


@pytest.mark.parametrize("loop", list(WAITS))
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_system_calls_of_a_request(counter: str, kind: str, loop: str) -> None:
    printed = told_by(counter, "-m", "tests.connection._calls", kind, loop)
    sides = {told["side"]: told for told in map(json.loads, printed.splitlines())}
    for side, told in sides.items():
        assert 1 <= told["send"] + told["sendmsg"] < 1.05, (side, told)
        assert 1 <= told["recv"] < 1.1, (side, told)
        assert 1 <= told["epoll_wait"] < WAITS[loop][side], (side, told)
        assert told["epoll_ctl"] < WAITS[loop]["epoll_ctl"], (side, told)
        assert told["read"] + told["write"] < 0.05, (side, told)
    assert set(sides) == {"client", "server"}


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_heartbeat_costs_no_system_call(counter: str, kind: str) -> None:
    printed = told_by(counter, "-m", "tests.connection._calls", kind, "trio", "1")
    for told in map(json.loads, printed.splitlines()):
        assert told["heard"] > 0.9, told  # with nearly every answer
        assert told["send"] + told["sendmsg"] < 1.1, told
        assert told["recv"] < 1.1, told
