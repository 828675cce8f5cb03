"""What a hostile peer does to the doorbell: bytes on the socket that the connection began on."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable

from tests.attacks._wire import Hostile


def flood(peer: Hostile) -> int:
    """Ring as often as the socket takes it, in the largest pieces, for twenty buffers' worth."""
    rung = 0
    for _ in range(200):
        try:
            rung += peer.sock.send(bytes(1 << 16), socket.MSG_DONTWAIT)
        except BlockingIOError:
            peer.hung_up(0.001)
    return rung


def out_of_band(peer: Hostile) -> int:
    """Urgent bytes, which a plain read does not give."""
    for _ in range(100):
        peer.sock.send(b"!", socket.MSG_OOB | socket.MSG_DONTWAIT)
    return 100


def send_descriptors(peer: Hostile, fds: list[int]) -> str:
    """Send descriptors with a bell; the kernel refuses, or the victim has to close them."""
    try:
        socket.send_fds(peer.sock, [b"\0"], fds)
    except PermissionError:
        return "refused"
    return "sent"


def descriptors(peer: Hostile) -> str:
    reading, writing = os.pipe()
    found = send_descriptors(peer, [writing] * 250)
    os.close(writing)
    assert peer.echo(b"e taken")
    # Nobody has the writing end any more, or this waits for ever.
    assert os.read(reading, 1) == b""
    os.close(reading)
    return found


def lingering(peer: Hostile, ask: bool = True) -> str:
    """A socket whose last close waits an hour for a reader that does not read."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        reader, _ = listener.accept()
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    sender.setblocking(False)
    try:
        while True:
            sender.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    found = send_descriptors(peer, [sender.fileno()])
    if found == "refused":  # then it would be this process that waits
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
    sender.close()
    assert not ask or peer.echo(b"e not waiting")
    reader.close()
    return found


def never_rung(peer: Hostile) -> int:
    """Requests of which a sleeper is not told; the bell for the last one is for all."""
    count = 20
    for i in range(count):
        peer.frame(2, b"e%d" % i, ring=False)
        peer.hung_up(0.002)
    peer.ring_bell()
    for i in range(count):
        assert peer.take()[3] == b"e%d" % i
    return count


def unheard(peer: Hostile) -> int:
    """Ask to be rung for everything and never listen: the victim's socket fills up."""
    for _ in range(2000):
        peer.poke(192, 3)  # client.armed
        peer.frame(2, b"e")
        while not peer.memory[peer.into + peer.read % 65536]:
            pass
        _skip(peer)
    return 2000


def _skip(peer: Hostile) -> None:
    at = peer.into + peer.read % 65536
    peer.memory[at : at + 64] = bytes(64)
    peer.read += 64
    peer.poke(peer.theirs, peer.read)


def receive_no_more(peer: Hostile) -> int:
    """Shut the direction down in which the victim rings; it may ring, and find nobody."""
    peer.sock.shutdown(socket.SHUT_RD)
    return 1


BELLS: dict[str, Callable[[Hostile], object]] = {
    "flood": flood,
    "out of band": out_of_band,
    "descriptors": descriptors,
    "lingering": lingering,
    "never rung": never_rung,
    "unheard": unheard,
}
