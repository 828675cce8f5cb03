"""A hostile server: ``python -m tests.attacks._hostile_server PATH CASE...``.

It says when it listens, takes one client for each case, and says how that went in a line of JSON.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from contextlib import suppress
from typing import Any

from tests.attacks import _bells, _lies, _memories
from tests.attacks._wire import (
    RING,
    SERVER_HELLO,
    Hostile,
    as_server,
    hello_bytes,
    read_hello,
    server_hello,
)


def tell(listener: socket.socket, lie: _lies.Lie) -> dict[str, Any]:
    peer = as_server(listener)
    try:
        lie(peer)
        return {"hung_up": peer.hung_up()}
    finally:
        peer.close()


def noise(listener: socket.socket, seconds: str) -> dict[str, Any]:
    """Be noisy for so long to whoever comes, and then hang up for good."""
    return {"peers": _lies.be_noisy(lambda: as_server(listener), float(seconds))}


def spoil(listener: socket.socket) -> dict[str, Any]:
    """Try all on the client's memory before it is told that it was taken."""
    found: dict[str, str] = {}
    peer = as_server(listener, lambda fd: found.update(_memories.tamper(fd)))
    hung_up = peer.hung_up()
    peer.close()
    return {"found": found, "hung_up": hung_up}


def leave_open(listener: socket.socket) -> dict[str, Any]:
    """Neither verify nor seal; once the client speaks, try all on its memory."""
    peer = as_server(listener)
    kind, _, id, payload = peer.take()
    found = _memories.tamper(peer.fd) | {
        "remove": _memories.attempt(lambda: _memories.remove(peer))
    }
    peer.frame(kind + 1, payload, id=id)
    hung_up = peer.hung_up()
    peer.close()
    return {"found": found, "hung_up": hung_up}


def descriptors(listener: socket.socket) -> dict[str, Any]:
    """Say hello with a pipe's end in hand; who keeps it keeps the pipe open."""
    sock, _ = listener.accept()
    read_hello(sock)
    reading, writing = os.pipe()
    with suppress(PermissionError):
        socket.send_fds(sock, [hello_bytes(SERVER_HELLO, server_hello())[:1]], [writing] * 9)
    os.close(writing)
    sock.close()
    assert os.read(reading, 1) == b""
    os.close(reading)
    return {}


def ring_bells(listener: socket.socket, name: str) -> dict[str, Any]:
    """Answer requests, and do that to the doorbell between them."""
    peer = as_server(listener)
    answer(peer)
    found = TO_CLIENTS[name](peer)
    answer(peer)
    hung_up = peer.hung_up()
    peer.close()
    return {"found": found, "hung_up": hung_up}


def answer(peer: Hostile) -> None:
    kind, _, id, payload = peer.take()
    peer.frame(kind + 1, payload, id=id)


def answer_oddly(listener: socket.socket, name: str) -> dict[str, Any]:
    """Answer two requests, each as that attack does, and a third as anybody would."""
    peer = as_server(listener)
    for _ in range(2):
        _, _, id, _ = peer.take()
        _lies.HARMLESS_ANSWERS[name][0](peer, id)
    answer(peer)
    hung_up = peer.hung_up()
    peer.close()
    return {"hung_up": hung_up}


def hang_up(listener: socket.socket) -> dict[str, Any]:
    """Shut the socket down for reading after a request, and leave the request unanswered."""
    peer = as_server(listener)
    peer.take()
    peer.sock.shutdown(socket.SHUT_RDWR)
    peer.hung_up()
    peer.close()
    return {}


def flip_answers(listener: socket.socket) -> dict[str, Any]:
    """Answer, and go on writing over the answer until the client has hung up."""
    peer = as_server(listener)
    kind, _, id, _ = peer.take()
    at = peer.out + 64
    peer.frame(kind + 1, bytes(RING // 8), id=id)
    turn = 0
    while not peer.hung_up(0.0):
        for _ in range(100):
            turn += 1
            for line in range(at, peer.out + RING // 8, 64):
                peer.memory[line : line + 64] = bytes((turn & 0xFF,)) * 64
        time.sleep(0)
    peer.close()
    return {}


TO_CLIENTS: dict[str, Any] = {
    "flood": _bells.flood,
    "out of band": _bells.out_of_band,
    "descriptors": lambda peer: _bells.send_descriptors(peer, [0] * 250),
    "lingering": lambda peer: _bells.lingering(peer, ask=False),
}


def run(listener: socket.socket, case: str) -> dict[str, Any]:
    kind, _, rest = case.partition(":")
    if kind == "lie":
        lies = _lies.LIES | _lies.POSITIONS | _lies.TO_CLIENTS
        return tell(listener, lies[rest][0])
    if kind == "noise":
        return noise(listener, rest)
    if kind == "bell":
        return ring_bells(listener, rest)
    if kind == "oddly":
        return answer_oddly(listener, rest)
    return CASES[case](listener)


CASES: dict[str, Any] = {
    "spoil": spoil,
    "leave open": leave_open,
    "descriptors": descriptors,
    "hang up": hang_up,
    "flip": flip_answers,
}


def main(path: str, cases: list[str]) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        print(json.dumps({"listening": path}), flush=True)
        for case in cases:
            print(json.dumps({"case": case} | run(listener, case)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
