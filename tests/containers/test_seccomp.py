"""System calls that a seccomp filter refuses: what works all the same, and what is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from l5 import native
from tests.containers import _boxes

pytestmark = pytest.mark.skipif(not native.available, reason=native.reason)


@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
@pytest.mark.parametrize("refused", ["client", "server"])
@pytest.mark.parametrize("url", ["l5+unix://{}/s", "l5://127.0.0.1:0"])
def test_without_memfd_the_connection_stays_on_its_socket(
    tmp_path: Path, refused: str, error: str, url: str
) -> None:
    spec = {"deny": {"memfd_create": error}}
    words = {"EPERM": "Operation not permitted", "ENOSYS": "Function not implemented"}
    with _boxes.server(spec if refused == "server" else {}, url.format(tmp_path)) as server:
        at = server.says()["at"]
        with _boxes.client(spec if refused == "client" else {}, at) as client:
            found = client.says()
        seen = server.finish()["seen"][0]
    assert found["transport"] == seen["transport"] == ("unix" if "unix" in url else "tcp")
    assert found["answer"] == "HELLO"
    reason = f"memfd_create failed: {words[error]}"
    assert reason in found["declined"]["shm"]
    assert reason in found["report"]
    if refused == "server":
        assert reason in seen["declined"]["shm"]


def test_shared_memory_that_is_demanded_and_refused(tmp_path: Path) -> None:
    with _boxes.server({}, f"l5+shm://{tmp_path}/s") as server:
        at = server.says()["at"]
        with _boxes.client({"deny": {"memfd_create": "EPERM"}}, at) as client:
            assert "memfd_create failed: Operation not permitted" in client.says()["error"]
        server.finish()


@pytest.mark.bare  # the sanitizers' own start does not do without all of these
@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
def test_what_is_used_only_where_it_can_be(tmp_path: Path, error: str) -> None:
    """Affinity, rseq, pidfd, eventfd: without them everything works, on shared memory."""
    calls = ("sched_getaffinity", "sched_yield", "rseq", "pidfd_open", "eventfd2", "madvise")
    spec = {"deny": dict.fromkeys(calls, error)}
    with _boxes.server(spec, f"l5+unix://{tmp_path}/s") as server:
        at = server.says()["at"]
        with _boxes.client(spec, at) as client:
            found = client.says()
        seen = server.finish()["seen"][0]
    assert found["transport"] == seen["transport"] == "shm", found
    assert found["answer"] == "HELLO"


def test_memory_that_cannot_be_filled(tmp_path: Path) -> None:
    """Every page is there before the first message, or the rings are not used."""
    with _boxes.server({}, f"l5+unix://{tmp_path}/s") as server:
        at = server.says()["at"]
        with _boxes.client({"deny": {"fallocate": "ENOSYS"}}, at) as client:
            found = client.says()
        seen = server.finish()["seen"][0]
    assert found["transport"] == seen["transport"] == "unix"
    assert found["declined"]["shm"] == "the rings cannot be made: Function not implemented"
    assert "at the client: the rings cannot be made" in seen["declined"]["shm"]
