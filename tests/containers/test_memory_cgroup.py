"""Who pays for the memory, by measurement, and what happens where there is too little of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from l5 import native
from tests.containers import _boxes
from tests.containers._groups import Group, group

pytestmark = pytest.mark.skipif(not native.available, reason=native.reason)

MIB = 1 << 20
RING_BYTES = 8 * MIB


@pytest.fixture
def groups() -> Iterator[tuple[Group, Group, Group]]:
    """A cgroup with two within it: one for a server, one for a client."""
    with group() as parent, parent.child("server") as server, parent.child("client") as client:
        yield parent, server, client


def test_the_client_pays(tmp_path: Path, groups: tuple[Group, Group, Group]) -> None:
    _, payer_not, payer = groups
    with _boxes.server({"cgroup": str(payer_not.path)}, f"l5+unix://{tmp_path}/s") as server:
        url = server.says()["at"]
        before = payer.shared_bytes(), payer_not.shared_bytes()
        with _boxes.client({"cgroup": str(payer.path)}, url, ring=RING_BYTES, stay=True) as client:
            assert client.says()["transport"] == "shm"
            # Both ends have written to every page of their rings by the time of the answer.
            after = payer.shared_bytes(), payer_not.shared_bytes()
            client.process.kill()
            client.process.wait()
        server.finish()
    assert 2 * RING_BYTES <= after[0] - before[0] <= 2 * RING_BYTES + MIB
    assert after[1] - before[1] < MIB
    assert payer.shared_bytes() < MIB, "what was shared is gone with the two that shared it"


@pytest.mark.bare  # a sanitizer's own memory is more than what is left here
@pytest.mark.parametrize("limited", ["its own", "the one above"])
def test_too_little_is_left(
    tmp_path: Path, groups: tuple[Group, Group, Group], limited: str
) -> None:
    """Nothing is allocated that would not fit: over the limit stands the OOM killer."""
    parent, _, own = groups
    (own if limited == "its own" else parent).limit(48 * MIB)
    with _boxes.server({}, f"l5+unix://{tmp_path}/s", max_ring=32 * MIB) as server:
        url = server.says()["at"]
        spec = {"cgroup": str(own.path)}
        with _boxes.client(spec, url, ring=32 * MIB) as client:
            found = client.says()
            assert client.process.wait() == 0
        assert found["transport"] == "unix"
        assert found["answer"] == "HELLO"
        reason = found["declined"]["shm"]
        assert "the memory cgroup of this process has" in reason
        assert f"the rings need {64 * MIB + 4096 + MIB}" in reason
        assert "smaller rings (ring=...)" in reason
        with _boxes.client(spec, url, ring=65536) as client:
            assert client.says()["transport"] == "shm"
        seen = server.finish()["seen"]
    assert "at the client: the memory cgroup" in seen[0]["declined"]["shm"]


@pytest.mark.bare
def test_a_client_out_of_memory_takes_nobody_with_it(
    tmp_path: Path, groups: tuple[Group, Group, Group]
) -> None:
    """The kernel kills it for going over its limit, connected; its memory stays the server's."""
    _, _, own = groups
    own.limit(96 * MIB)
    with _boxes.server({}, f"l5+unix://{tmp_path}/s", tell_ends=True) as server:
        url = server.says()["at"]
        with _boxes.client(
            {"cgroup": str(own.path)}, url, ring=RING_BYTES, devour=200 * MIB
        ) as client:
            assert client.says()["transport"] == "shm"
            assert client.process.wait() == -signal.SIGKILL
        assert server.says()["ended"] == "BrokenResourceError"
        with _boxes.client({}, url) as other:
            assert other.says()["answer"] == "HELLO"
            assert other.process.wait() == 0
        assert server.says()["ended"] == "EndOfStream"
        assert len(server.finish()["seen"]) == 2


def test_a_limit_that_is_lowered_below_what_the_rings_hold(
    tmp_path: Path, groups: tuple[Group, Group, Group]
) -> None:
    """What is there stays there; the server reads and writes it as before."""
    _, _, own = groups
    with _boxes.server({}, f"l5+unix://{tmp_path}/s", tell_ends=True) as server:
        url = server.says()["at"]
        with _boxes.client({"cgroup": str(own.path)}, url, ring=RING_BYTES, stay=True) as client:
            assert client.says()["transport"] == "shm"
            try:
                own.limit(2 * MIB)
            except OSError:
                pass  # v1 refuses what it cannot reach, v2 kills somebody in the group
            if client.process.poll() is None:
                os.kill(client.process.pid, signal.SIGKILL)
        assert server.says()["ended"] == "BrokenResourceError"
        with _boxes.client({}, url) as other:
            assert other.says()["answer"] == "HELLO"
        server.says()
        server.finish()
