"""Hellos of attackers, each in a process of its own: in masses, slow, half, stolen, by others."""

from __future__ import annotations

import mmap
import os
import select
import socket
import time
from collections import Counter

import anyio

import l5
from l5 import _host
from tests.attacks import _wire
from tests.attacks._stage import Control
from tests.attacks._wire import SERVER_HELLO, hello_bytes, server_hello

NOBODY = 65534


def reach(place: str) -> socket.socket:
    """Connect to a port of this host, an abstract name (``@name``) or a path."""
    if place.isdigit():
        return socket.create_connection(("127.0.0.1", int(place)))
    sock = socket.socket(socket.AF_UNIX)
    sock.connect("\0" + place[1:] if place.startswith("@") else place)
    return sock


def storm(control: Control, place: str, count: int) -> None:
    """Say whole hellos on many sockets before one answer is read; say what the answers were."""
    hello = hello_bytes(_wire.CLIENT_HELLO, _wire.client_hello(offers=[]))
    sockets: list[socket.socket] = []
    for _ in range(count):
        sockets.append(reach(place))
        sockets[-1].sendall(hello)
    control.say("sent")
    found: Counter[str] = Counter()
    for sock in sockets:
        sock.settimeout(60.0)
        number, message, _ = _wire.read_hello(sock)
        found["served" if number == SERVER_HELLO else str(message["code"])] += 1
    control.say(f"found {' '.join(f'{name}={n}' for name, n in sorted(found.items()))}")
    control.hear()


def keep_silent(control: Control, place: str, count: int, spoken: int) -> None:
    """Open sockets, say so many bytes of a hello; say what each that is turned away is told."""
    sockets = [reach(place) for _ in range(count)]
    for sock in sockets:
        sock.sendall(hello_bytes(_wire.CLIENT_HELLO, _wire.client_hello())[:spoken])
    control.say("silent")
    while True:
        for sock in select.select(sockets, [], [])[0]:
            sockets.remove(sock)
            try:
                message = _wire.read_hello(sock)[1]
                control.say(f"told {message['code']} {message['message']}")
            except (EOFError, ConnectionError):
                control.say("closed")


def listen(control: Control, how: str) -> None:
    """Be a server that takes its time with its hello, or never comes to the end of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        control.say(f"at {listener.getsockname()[1]}")
        sock, _ = listener.accept()
        _wire.read_hello(sock)
        answer = hello_bytes(SERVER_HELLO, server_hello(choice=None))
        if how == "half":
            sock.sendall(answer[: len(answer) // 2])
        for at in range(len(answer) if how == "slow" else 0):
            try:
                sock.sendall(answer[at : at + 1])
            except ConnectionError:
                return  # the client has had enough
            time.sleep(0.02)
        while sock.recv(1000):
            pass


def stop_in_the_upgrade(control: Control, path: str) -> None:
    """Be a server that takes the memory of its client and says no more."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        control.say("at")
        sock, _ = listener.accept()
        _wire.read_hello(sock)
        sock.sendall(hello_bytes(SERVER_HELLO, server_hello()))
        try:
            _, _, fds = _wire.read_hello(sock)
        except (EOFError, ConnectionError):
            return  # the client gave up before it sent the memory
        control.say(f"holds {len(fds)}")
        while sock.recv(1000):
            pass
        control.say("left alone")


def meet(control: Control, port: str) -> None:
    """Get a ticket, use it, say what it was; then ask as an honest client, when told."""
    sock = reach(port)
    proof = _host.prove()
    host = {"nonce": proof.nonce, "tag": proof.tag}
    sock.sendall(hello_bytes(_wire.CLIENT_HELLO, _wire.client_hello(host=host)))
    answer = _wire.read_hello(sock)[1]
    meeting = reach(answer["rendezvous"])
    meeting.sendall(hello_bytes(_wire.ATTACH, {"ticket": answer["ticket"]}))
    fd = _wire.make_memory()
    memory = mmap.mmap(fd, _wire.file_bytes())
    number, upgraded = _wire.offer_memory(meeting, [fd])
    assert number == _wire.UPGRADED and upgraded["ok"], upgraded
    peer = _wire.Hostile(meeting, fd, memory, "client")
    assert peer.echo(b"e mine")
    control.say(f"ticket {answer['rendezvous']} {answer['ticket'].hex()}")
    while control.hear():
        control.say(f"served {peer.echo(b'e still mine')}")


def replay(control: Control, rendezvous: str, ticket: str) -> None:
    """Come with a ticket that was seen elsewhere; say what the server makes of it."""
    sock = reach(rendezvous)
    sock.settimeout(_wire.PATIENCE_S)
    sock.sendall(hello_bytes(_wire.ATTACH, {"ticket": bytes.fromhex(ticket)}))
    control.say("closed" if not sock.recv(1) else "spoken to")


def be_nobody(control: Control, urls: list[str]) -> None:
    """Connect as another user; say of each what it became, or why it was not made."""

    async def main() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        for url in urls:
            try:
                async with await l5.connect(url) as connection:
                    assert await connection.request(b"x") == b"X"
                    control.say(f"served over {connection.transport}")
            except l5.ConnectError as error:
                control.say(f"refused {error}")

    anyio.run(main)
