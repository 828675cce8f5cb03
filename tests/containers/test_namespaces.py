"""Server and client in different namespaces share only the socket file, and upgrade."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from l5 import native
from tests.containers import _box, _boxes

pytestmark = [
    pytest.mark.skipif(not native.available, reason=native.reason),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

SHOWN = {"mount": "mnt"}


def talk(
    kinds: tuple[str, ...], share: Path, **options: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Let two boxes of these kinds talk; return what the client found and what the server saw."""
    spec = {"namespaces": kinds, "share": str(share)}
    url = "l5+unix:///mnt/s" if "mount" in kinds else f"l5+unix://{share}/s"
    with _boxes.server(spec, url, **options) as server:
        server.says()
        with _boxes.client(spec, url, **options) as client:
            found = client.says()
            assert client.process.wait() == 0
        seen = server.finish()["seen"]
    return found, seen[0] if seen else {}


@pytest.mark.parametrize("kind", sorted(set(_box.KINDS) - {"user"}))
def test_a_namespace_of_its_own(tmp_path: Path, kind: str) -> None:
    _boxes.require(kind)
    found, seen = talk((kind,), tmp_path)
    assert found["transport"] == seen["transport"] == "shm", found
    assert found["answer"] == "HELLO"
    shown = SHOWN.get(kind, kind)
    for name, number in found["namespaces"].items():
        assert (seen["namespaces"][name] != number) == (name == shown)


def test_all_at_once(tmp_path: Path) -> None:
    """As two containers are, but for the user namespace: nothing in common but the socket file."""
    kinds = tuple(sorted(set(_box.KINDS) - {"user"}))
    _boxes.require(*kinds)
    found, seen = talk(kinds, tmp_path)
    assert found["transport"] == seen["transport"] == "shm", found
    assert found["answer"] == "HELLO"
    different = [n for n in found["namespaces"] if found["namespaces"][n] != seen["namespaces"][n]]
    assert sorted(different) == ["cgroup", "ipc", "mnt", "net", "pid", "uts"]
    # Each is the first of its namespace, and the other's number means nothing to it.
    assert found["self"][1] == seen["self"][1] == 1
    assert found["peer"][1] is seen["peer"][1] is None


@pytest.mark.parametrize("kinds", [("user",), tuple(sorted(_box.KINDS))])
def test_another_user_namespace_needs_a_token(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    """The peer's uid is shown as the overflow uid, which is nobody: it proves nothing."""
    _boxes.require(*kinds)
    found, seen = talk(kinds, tmp_path)
    assert not seen
    assert "uid 65534 may not connect here" in found["error"]
    assert "only a token tells them apart" in found["error"]
    found, seen = talk(kinds, tmp_path, token="a secret")
    assert found["transport"] == seen["transport"] == "shm", found
    assert found["answer"] == "HELLO"
    assert found["peer"][0] == seen["peer"][0] == 65534
    assert found["namespaces"]["user"] != seen["namespaces"]["user"]


def test_a_wrong_token_is_refused_in_another_user_namespace(tmp_path: Path) -> None:
    _boxes.require("user")
    url = f"l5+unix://{tmp_path}/s"
    spec = {"namespaces": ["user"]}
    with _boxes.server(spec, url, token="a secret") as server:
        server.says()
        with _boxes.client(spec, url, token="a guess") as client:
            assert "a token is needed" in client.says()["error"]
        assert server.finish()["seen"] == []


INNER = {"namespaces": ["pid"], "init": True}


@pytest.mark.parametrize(
    ("server_box", "client_box"),
    [({}, INNER), (INNER, INNER), (INNER, {})],
    ids=["client within", "both apart", "server within"],
)
def test_a_killed_client_whose_heir_lives_on_is_noticed(
    tmp_path: Path, server_box: dict[str, Any], client_box: dict[str, Any]
) -> None:
    """Its process is watched, whatever its number is here, or if it has none."""
    _boxes.require("pid")
    url = f"l5+unix://{tmp_path}/s"
    with _boxes.server(server_box, url, tell_ends=True) as server:
        server.says()
        with _boxes.client(client_box, url, heir=True) as client:
            assert client.says()["transport"] == "shm"
            heir = client.says()["heir"]
            assert server.says()["ended"] == "BrokenResourceError"
            if not client_box:
                os.kill(heir, signal.SIGKILL)
        server.finish()


def test_a_killed_server_in_an_inner_namespace_whose_heir_lives_on_is_noticed(
    tmp_path: Path,
) -> None:
    _boxes.require("pid")
    url = f"l5+unix://{tmp_path}/s"
    with _boxes.server(INNER, url, heir=True) as server:
        server.says()
        with _boxes.client({}, url, stay=True) as client:
            assert client.says()["transport"] == "shm"
            server.says()
            assert client.says()["ended"] == "BrokenResourceError"


def test_a_server_of_another_pid_namespace_is_killed(tmp_path: Path) -> None:
    """No number names it here; its socket ends all the same."""
    _boxes.require("pid")
    url = f"l5+unix://{tmp_path}/s"
    spec = {"namespaces": ["pid"]}
    with _boxes.server(spec, url) as server:
        server.says()
        with _boxes.client(spec, url, stay=True) as client:
            assert client.says()["transport"] == "shm"
            server.process.kill()
            assert client.says()["ended"] == "BrokenResourceError"


def test_tcp_between_network_namespaces_has_no_rendezvous() -> None:
    """What is one host to a Unix socket is two to TCP, which cannot reach across anyway."""
    _boxes.require("net")
    with _boxes.server({}, "l5+tcp://127.0.0.1:0") as server:
        at = server.says()["at"]
        with _boxes.client({"namespaces": ["net"]}, at) as client:
            assert "unreachable" in client.says()["error"]
        server.finish()
