"""What a request over shared memory costs in system calls where both ends sleep, without a loop."""

from __future__ import annotations

import json

import pytest

from l5 import native
from tests.connection._preloaded import told_by
from tests.connection.test_socket_costs import counter

__all__ = ["counter"]

pytestmark = [
    pytest.mark.bare,
    pytest.mark.skipif(not native.available, reason=native.reason),
    pytest.mark.checkout,
]


def test_a_sleeper_makes_three_system_calls_a_request(counter: str) -> None:
    """The bell is rung, slept for and silenced; what the sleep ended with is not asked again."""
    told = json.loads(told_by(counter, "-m", "tests.connection._blocking_calls"))
    # The server's handler takes its time: each request and each answer finds the other end asleep.
    assert 0.9 < told["send"] < 1.05, told
    assert 0.9 < told["recv"] < 1.1, told
    assert 0.9 < told["epoll_wait"] < 1.1, told
    assert told["epoll_ctl"] + told["read"] + told["write"] + told["sendmsg"] < 0.05, told
