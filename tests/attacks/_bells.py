"""What a hostile peer does to the doorbell: bytes on the socket that the connection began on."""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections.abc import Callable

from tests.attacks._wire import (
    REJECT,
    RING,
    UPGRADE,
    UPGRADED,
    Hostile,
    as_client,
    begin_client,
    file_bytes,
    hello_bytes,
    make_memory,
    read_hello,
)


def flood(peer: Hostile) -> int:
    """Ring as often as the socket takes it, in the largest pieces, for some buffers' worth."""
    rung = 0
    for _ in range(30):
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
    for _ in range(600):
        peer.poke(192, 3)  # client.armed
        peer.frame(2, b"e")
        while not peer.memory[peer.into + peer.read % 65536]:
            pass
        _skip(peer)
    return 600


def _skip(peer: Hostile) -> None:
    at = peer.into + peer.read % 65536
    peer.memory[at : at + 64] = bytes(64)
    peer.read += 64
    peer.poke(peer.theirs, peer.read)


BELLS: dict[str, Callable[[Hostile], object]] = {
    "flood": flood,
    "out of band": out_of_band,
    "descriptors": descriptors,
    "lingering": lingering,
    "never rung": never_rung,
    "unheard": unheard,
}


# ---- ends ----------------------------------------------------------------------------------------


def shut_down(how: int) -> Callable[[str], object]:
    """Shut the socket down in one direction, and have the victim ring."""

    def end(path: str) -> bool:
        peer = as_client(path)
        peer.sock.shutdown(how)
        peer.poke(192, 3)  # client.armed: ring for anything
        peer.frame(2, b"e", ring=False)
        peer.ring_bell()
        ended = how == socket.SHUT_RD or peer.hung_up()
        peer.close()
        return ended

    return end


def close(path: str) -> bool:
    as_client(path).close()
    return True


def close_but_write_on(path: str) -> bool:
    """Close the socket, and go on filling the ring."""
    peer = as_client(path)
    memory = peer.memory
    peer.sock.close()
    for _ in range(20_000):
        peer.frame(7, bytes(12), ring=False)
        peer.written %= RING
    memory.close()
    os.close(peer.fd)
    return True


def glued(path: str, behind: bool) -> str:
    """Send bytes that are no message of the handshake, before or behind the upgrade."""
    sock, _ = begin_client(path)
    fd = make_memory()
    memory = mmap.mmap(fd, file_bytes())
    upgrade = hello_bytes(UPGRADE, {"transport": "shm", "params": {"ring_bytes": RING}})
    data = upgrade + bytes(100) if behind else bytes(100) + upgrade
    socket.send_fds(sock, [data], [fd])
    number, answer, _ = read_hello(sock)
    peer = Hostile(sock, fd, memory, "client")
    try:
        if number == REJECT:
            return answer["message"]
        assert number == UPGRADED and answer["ok"]
        return "sound" if peer.echo(b"e") else "odd"
    finally:
        peer.close()


ENDS: dict[str, Callable[[str], object]] = {
    "close": close,
    "close but write on": close_but_write_on,
    "send no more": shut_down(socket.SHUT_WR),
    "receive no more": shut_down(socket.SHUT_RD),
}
GLUED: dict[str, Callable[[str], object]] = {
    "bells behind the upgrade": lambda path: glued(path, True),
    "bells before the upgrade": lambda path: glued(path, False),
}
