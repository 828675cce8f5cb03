"""A hostile client: ``python -m tests.attacks._hostile_client PATH CASE...``.

Each case has a connection of its own and says how it went in a line of JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.attacks import _bells, _lies, _memories
from tests.attacks._wire import CANCEL, as_client


def tell(path: str, lie: _lies.Lie) -> dict[str, Any]:
    """Tell a lie and wait for the victim to hang up."""
    peer = as_client(path)
    try:
        lie(peer)
        return {"hung_up": peer.hung_up()}
    finally:
        peer.close()


def survive(path: str, attack: Any) -> dict[str, Any]:
    """Do what must not break anything; then ask as an honest client."""
    peer = as_client(path)
    try:
        found = attack(peer)
        return {"sound": peer.echo(b"e sound"), "found": found}
    finally:
        peer.close()


def again(path: str, name: str, times: str) -> dict[str, Any]:
    """Tell a lie many times over."""
    lies = _lies.LIES | _lies.POSITIONS | _lies.TO_SERVERS
    return {"hung_up": all(tell(path, lies[name][0])["hung_up"] for _ in range(int(times)))}


def noise(path: str, seconds: str) -> dict[str, Any]:
    """Be noisy for so long, on new connections when the victim hangs up."""
    return {"peers": _lies.be_noisy(lambda: as_client(path), float(seconds))}


def run(path: str, case: str) -> dict[str, Any]:
    kind, _, rest = case.partition(":")
    if kind == "lie":
        lies = _lies.LIES | _lies.POSITIONS | _lies.TO_SERVERS
        return tell(path, lies[rest][0])
    if kind == "again":
        return again(path, *rest.split(":"))
    if kind == "noise":
        return noise(path, rest)
    if kind == "ring":
        return survive(path, _lies.HARMLESS[rest])
    if kind == "memory":
        return _memories.offer(path, rest)
    if kind == "end":
        return {"ended": (_bells.ENDS | _bells.GLUED)[rest](path)}
    if kind == "bell":
        return survive(path, _bells.BELLS[rest])
    raise ValueError(case)


def ring_without_end(path: str) -> None:
    """Ring until killed."""
    peer = as_client(path)
    print(json.dumps({"listening": path}), flush=True)
    while True:
        _bells.flood(peer)


def control_without_end(path: str) -> None:
    """Fill the ring with frames that mean nothing, faster than they are read, until killed."""
    peer = as_client(path)
    print(json.dumps({"listening": path}), flush=True)
    while True:
        if peer.room() >= 512 * 64:
            peer.burst(CANCEL, b"", 500, id=5)


def main(path: str, cases: list[str]) -> None:
    if cases == ["endless control"]:
        control_without_end(path)
    if cases == ["endless bells"]:
        ring_without_end(path)
    for case in cases:
        print(json.dumps({"case": case} | run(path, case)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
