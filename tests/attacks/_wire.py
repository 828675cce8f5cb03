"""A peer that speaks the wire by itself: sockets, struct and mmap, and nothing of l5's.

`Hostile` is one end of a connection over shared memory, after a handshake in which nothing was
checked; it writes what it likes where it likes.  Layout and numbers stand in
`l5/native/channel.h` and `l5/_hello.py`; they are repeated here on purpose.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

PAGE = mmap.PAGESIZE
RING = 1 << 16
SEGMENT = RING // 4
MAGIC = 0x31474E49524C35
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
CLIENT_HELLO, SERVER_HELLO, REJECT, UPGRADE, UPGRADED, ATTACH = range(1, 7)
DATA, REQUEST, RESPONSE, ERROR, CANCEL, CREDIT, HEARTBEAT, CLOSE, ABORT = range(1, 10)
MORE, DEADLINE, FOR_RESPONSE = 1, 2, 4
C2S_READ, S2C_READ, CLIENT_ARMED, SERVER_ARMED = 64, 128, 192, 256
WORD = struct.Struct("<Q")
HEADER = struct.Struct("<IBBHQ")
PATIENCE_S = 20.0
LIMITS = {
    "max_message_bytes": 1 << 26,
    "segment_bytes": SEGMENT,
    "data_window_bytes": 1 << 22,
    "credit_bytes": 1 << 20,
    "in_flight_max": 256,
}


# ---- the handshake -------------------------------------------------------------------------------


def hello_bytes(number: int, message: dict[str, Any]) -> bytes:
    payload = msgspec.msgpack.encode(message)
    return struct.pack("<2sBBI", b"L5", 1, number, len(payload)) + payload


def read_exactly(sock: socket.socket, size: int, fds: list[int]) -> bytes:
    data = b""
    while len(data) < size:
        more, new, _, _ = socket.recv_fds(sock, size - len(data), 8)
        fds += new
        if not more:
            raise EOFError("the victim closed")
        data += more
    return data


def read_hello(sock: socket.socket) -> tuple[int, dict[str, Any], list[int]]:
    fds: list[int] = []
    head = read_exactly(sock, 8, fds)
    size = int.from_bytes(head[4:8], "little")
    return head[3], msgspec.msgpack.decode(read_exactly(sock, size, fds)), fds


def client_hello(ring_bytes: int = RING, **changes: Any) -> dict[str, Any]:
    offer = {"transport": "shm", "params": {"ring_bytes": ring_bytes, "page_bytes": PAGE}}
    return {
        "versions": [1],
        "limits": LIMITS,
        "offers": [offer],
        "host": {"nonce": bytes(16), "tag": bytes(32)},
        "pid": os.getpid(),
        "uid": os.getuid(),
    } | changes


def server_hello(**changes: Any) -> dict[str, Any]:
    return {"version": 1, "limits": LIMITS, "choice": "shm", "pid": os.getpid()} | changes


def file_bytes(ring_bytes: int = RING) -> int:
    return PAGE + 2 * ring_bytes


def make_memory(ring_bytes: int = RING, *, seals: int = SEALS, magic: int = MAGIC) -> int:
    """Make what an honest client makes, but for what is asked."""
    fd = os.memfd_create("hostile", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.posix_fallocate(fd, 0, file_bytes(ring_bytes))
    os.pwrite(fd, struct.pack("<QQQ", magic, PAGE, ring_bytes), 0)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def begin_client(path: str, **changes: Any) -> tuple[socket.socket, dict[str, Any]]:
    """Connect and say hello; return the socket and what the server answered."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(PATIENCE_S)
    sock.connect(path)
    sock.sendall(hello_bytes(CLIENT_HELLO, client_hello(**changes)))
    return sock, read_hello(sock)[1]


def offer_memory(
    sock: socket.socket, fds: Sequence[int], params: dict[str, Any] | None = None
) -> tuple[int, dict[str, Any]]:
    """Send Upgrade with descriptors; return the number and the message that came back."""
    chosen = {"ring_bytes": RING} if params is None else params
    upgrade = hello_bytes(UPGRADE, {"transport": "shm", "params": chosen})
    if fds:
        socket.send_fds(sock, [upgrade], fds)
    else:
        sock.sendall(upgrade)
    return read_hello(sock)[:2]


# ---- a connection over shared memory -------------------------------------------------------------


class Hostile:
    """One end of two rings; `role` is which end this is."""

    def __init__(self, sock: socket.socket, fd: int, memory: mmap.mmap, role: str) -> None:
        self.sock = sock
        self.memory = memory
        self.fd = fd
        self.role = role
        self.out = PAGE if role == "client" else PAGE + RING
        self.into = PAGE + RING if role == "client" else PAGE
        self.theirs = S2C_READ if role == "client" else C2S_READ  # the position that we write
        self.armed = SERVER_ARMED if role == "client" else CLIENT_ARMED  # the victim's
        self.written = 0
        self.read = 0
        self.next_id = 1

    def close(self) -> None:
        self.memory.close()
        os.close(self.fd)
        self.sock.close()

    def poke(self, at: int, value: int) -> None:
        """Write a word of the control page."""
        self.memory[at : at + 8] = WORD.pack(value % (1 << 64))

    def ring_bell(self, data: bytes = b"\0") -> None:
        try:
            self.sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            pass

    def put(self, data: bytes, position: int) -> None:
        at = position % RING
        first = min(len(data), RING - at)
        self.memory[self.out + at : self.out + at + first] = data[:first]
        self.memory[self.out : self.out + len(data) - first] = data[first:]

    def frame(
        self,
        kind: int,
        payload: bytes = b"",
        *,
        flags: int = 0,
        id: int | None = None,
        word: int | None = None,
        size: int | None = None,
        ring: bool = True,
    ) -> None:
        """Write a frame, its size word last; whether there is room is the caller's business."""
        if id is None:
            id = self.next_id
            self.next_id += 1
        size = len(payload) if size is None else size
        word = size + 16 if word is None else word
        header = HEADER.pack(size % (1 << 32), kind, flags, 0, id % (1 << 64))
        self.put(header + payload, self.written + 8)
        self.put(WORD.pack(word % (1 << 64)), self.written)
        self.written += (24 + len(payload) + 63) // 64 * 64
        if ring:
            self.ring_bell()

    def burst(self, kind: int, payload: bytes, count: int, *, flags: int = 0, id: int = 0) -> None:
        """Write many frames of one line each at once, the first one's size word last."""
        line = (
            WORD.pack(len(payload) + 16) + HEADER.pack(len(payload), kind, flags, 0, id) + payload
        )
        line = line.ljust(64, b"\0")
        assert len(line) == 64
        self.put(line * (count - 1), self.written + 64)
        self.put(line[8:], self.written + 8)
        self.put(line[:8], self.written)
        self.written += count * 64
        self.ring_bell()

    def room(self) -> int:
        """How many bytes may be written: the victim zeroes what it has read."""
        read = WORD.unpack_from(self.memory, C2S_READ if self.role == "client" else S2C_READ)[0]
        return RING - (self.written - read)

    def wait_room(self, size: int) -> bool:
        """Wait until the victim has made room; False when it hung up instead."""
        while self.room() < size + 64:
            self.ring_bell()
            if self.hung_up(0.001):
                return False
        return True

    def take(self) -> tuple[int, int, int, bytes]:
        """Read the next frame of the victim as an honest peer would: kind, flags, id, payload."""
        ends = time.monotonic() + PATIENCE_S
        at = self.into + self.read % RING
        while not (word := WORD.unpack_from(self.memory, at)[0]):
            if self.hung_up(0.001):
                raise EOFError("the victim closed")
            if time.monotonic() > ends:
                raise TimeoutError("the victim does not answer")
        twice = self.memory[self.into : self.into + RING] * 2
        offset = self.read % RING
        size, kind, flags, _, id = HEADER.unpack_from(twice, offset + 8)
        payload = twice[offset + 24 : offset + 24 + size]
        padded = (word + 8 + 63) // 64 * 64
        for i in range(0, padded, 64):
            line = self.into + (offset + i) % RING
            self.memory[line : line + 64] = bytes(64)
        self.read += padded
        self.poke(self.theirs, self.read)
        self.ring_bell()
        return kind, flags, id, payload

    def echo(self, text: bytes) -> bool:
        """Ask as an honest client; is the answer right?"""
        self.frame(REQUEST, text)
        return self.take()[3] == text

    def hung_up(self, patience_s: float = PATIENCE_S) -> bool:
        """Wait for the victim to close its socket; bells that it rings are thrown away."""
        ends = time.monotonic() + patience_s
        while True:
            left = max(0.0, ends - time.monotonic())
            if not select.select([self.sock], [], [], left)[0]:
                return False
            try:
                if not self.sock.recv(65536, socket.MSG_DONTWAIT):
                    return True
            except BlockingIOError:
                continue
            except OSError:
                return True


def as_client(path: str, **changes: Any) -> Hostile:
    """Connect to a server and upgrade, with sound memory."""
    sock, hello = begin_client(path, **changes)
    assert hello.get("choice") == "shm", hello
    fd = make_memory()
    memory = mmap.mmap(fd, file_bytes())  # later mappings are refused
    number, answer = offer_memory(sock, [fd])
    assert number == UPGRADED and answer["ok"], answer
    return Hostile(sock, fd, memory, "client")


def as_server(
    listener: socket.socket,
    before_upgraded: Callable[[int], None] | None = None,
    **changes: Any,
) -> Hostile:
    """Accept a client and upgrade; nothing of its memory is checked or sealed."""
    sock, _ = listener.accept()
    sock.settimeout(PATIENCE_S)
    read_hello(sock)
    sock.sendall(hello_bytes(SERVER_HELLO, server_hello(**changes)))
    number, upgrade, fds = read_hello(sock)
    assert number == UPGRADE and upgrade["transport"] == "shm" and len(fds) == 1, upgrade
    hostile = Hostile(sock, fds[0], mmap.mmap(fds[0], file_bytes()), "server")
    if before_upgraded is not None:
        before_upgraded(fds[0])
    sock.sendall(hello_bytes(UPGRADED, {"ok": True}))
    return hostile
