"""Lies in a ring, each told by a `Hostile`; what the victim says of them stands beside them.

Every lie is told on a connection of its own, right after the handshake.  Those in `LIES` are lies
to anybody; `TO_SERVERS` and `TO_CLIENTS` depend on who listens.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable

from tests.attacks._wire import (
    ABORT,
    CANCEL,
    CREDIT,
    DATA,
    DEADLINE,
    HEARTBEAT,
    MORE,
    PAGE,
    REQUEST,
    RESPONSE,
    RING,
    SEGMENT,
    Hostile,
)

Lie = Callable[[Hostile], None]
SIZE = "a message size outside what was agreed"
POSITION = "the peer's read position is not one that it can have reached"


def word(value: int, size: int = 0) -> Lie:
    """A frame whose size word is not what its header says, or is nothing at all."""
    return lambda peer: peer.frame(REQUEST, word=value, size=size)


def header(kind: int, flags: int = 0, payload: bytes = b"", id: int = 7) -> Lie:
    return lambda peer: peer.frame(kind, payload, flags=flags, id=id)


LIES: dict[str, tuple[Lie, str]] = {
    "word 1": (word(1), SIZE),
    "word 15": (word(15), SIZE),
    "word of a segment and one": (word(SEGMENT + 17, SEGMENT + 1), SIZE),
    "word of a ring": (word(RING), SIZE),
    "word of 4 GiB and a header": (word((1 << 32) + 16), SIZE),
    "word of 2^63": (word(1 << 63), SIZE),
    "word of all ones": (word((1 << 64) - 1), SIZE),
    "word longer than its frame": (word(17), "size word and its header disagree"),
    "word shorter than its frame": (word(16, 1), "size word and its header disagree"),
    "kind 0": (header(0), "unknown kind"),
    "kind 10": (header(10), "unknown kind"),
    "kind 255": (header(255), "unknown kind"),
    "flags of another kind": (header(CANCEL, MORE), "flags that mean nothing"),
    "flags unknown": (header(REQUEST, 0x80), "flags that mean nothing"),
    "credit of 7 bytes": (header(CREDIT, 0, bytes(7)), "control frame of the wrong size"),
    "heartbeat of 13 bytes": (header(HEARTBEAT, 0, bytes(13)), "control frame of the wrong size"),
    "deadline cut off": (header(REQUEST, DEADLINE, b"abc"), "too short for its deadline"),
}


def endless_more(peer: Hostile) -> None:
    """Pieces of one message without end, each as long as may be."""
    while peer.wait_room(SEGMENT + 64):
        peer.frame(REQUEST if peer.role == "client" else DATA, bytes(SEGMENT), flags=MORE, id=9)


def many_halves(peer: Hostile) -> None:
    """First pieces of ever more messages."""
    while peer.wait_room(128):
        peer.frame(REQUEST if peer.role == "client" else DATA, b"half", flags=MORE)


def unread(peer: Hostile) -> None:
    """Requests that are refused, by one who never reads."""
    while peer.wait_room(100 * 64):
        peer.burst(REQUEST, b"", 100, id=5)


def position(value: Callable[[Hostile], int]) -> Lie:
    """Have the victim write until it looks at the position that we have read up to."""

    def lie(peer: Hostile) -> None:
        if peer.role == "server":  # the client writes by itself
            for _ in range(24):
                peer.take()
            peer.poke(peer.theirs, value(peer))
            peer.ring_bell()  # it may sleep until there is room
            return
        for _ in range(24):  # the victim has looked, or it had no room for so many
            peer.frame(REQUEST, b"e".ljust(SEGMENT // 2))
            peer.take()
        peer.poke(peer.theirs, value(peer))
        for _ in range(RING // SEGMENT * 2 + 1):
            if not peer.wait_room(SEGMENT // 2 + 64):
                return
            peer.frame(REQUEST, b"e".ljust(SEGMENT // 2))

    return lie


POSITIONS: dict[str, tuple[Lie, str]] = {
    "read moved back": (position(lambda peer: peer.read - 2 * RING), POSITION),
    "read far ahead": (position(lambda peer: peer.read + 2 * RING), POSITION),
    "read not aligned": (position(lambda peer: peer.read + 1), POSITION),
    "read of all ones": (position(lambda peer: -1), POSITION),
    "read at random": (position(lambda peer: random.getrandbits(63) | 1 << 62), POSITION),
}

TO_SERVERS: dict[str, tuple[Lie, str]] = {
    "answer to nothing": (header(RESPONSE), "which has no answer open|that only servers send"),
    "ABORT of nothing": (header(ABORT), "which is not half sent|is not half sent"),
    "endless MORE": (endless_more, "agreed|were granted|longer than was agreed"),
    "many halves": (many_halves, "in flight"),
}

TO_CLIENTS: dict[str, tuple[Lie, str]] = {
    "answer to nothing": (header(RESPONSE), "which has no answer open"),
    "ABORT of nothing": (header(ABORT), "which is not half sent"),
    "endless MORE": (endless_more, "agreed|were granted"),
    "many halves": (many_halves, "long messages at once"),
    "answers not taken": (unread, "does not take the answers"),
    "credit for all": (header(CREDIT, 0, b"\xff" * 8, id=0), "credit that cannot be true"),
}


# ---- while the victim reads ----------------------------------------------------------------------


def noise(peer: Hostile, seconds: float) -> None:
    """Random bytes over the control words and both rings; most are harmless, none may hurt."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for at in range(64, 384, 8):
            peer.memory[at : at + 8] = os.urandom(8)
        peer.memory[peer.out : peer.out + 8] = os.urandom(8)  # where the first message is awaited
        for _ in range(64):
            at = PAGE + random.randrange(2 * RING // 8) * 8
            small = random.choice((0, 16, 17, 24, random.randrange(SEGMENT)))
            peer.memory[at : at + 8] = random.choice((os.urandom(8), small.to_bytes(8, "little")))
        peer.ring_bell()


def be_noisy(meet: Callable[[], Hostile], seconds: float) -> int:
    """Make noise for so long, to the next victim when one hangs up, to two at least; how many."""
    peers, left = 0, seconds
    while left > 0 or peers < 2:
        peer = meet()
        peers += 1
        try:
            while (left > 0 or peers < 2) and not peer.hung_up(0.0):
                noise(peer, 0.02)
                left -= 0.02
        finally:
            peer.close()
    return peers


def flip(peer: Hostile, rounds: int) -> None:
    """Send requests whose payload a thread changes all the while the victim has them.

    The victim reads each twice with a pause between, and answers whether that was the same.
    """
    stop = threading.Event()

    def change() -> None:
        beside = bytes(range(64)), bytes(64)
        turn = 0
        while not stop.is_set():
            turn += 1
            for at in range(peer.out, peer.out + RING, 64):
                if at % 2048 >= 64:  # but not the lines that begin a message
                    peer.memory[at : at + 64] = beside[turn & 1]

    assert PAGE % 2048 == 0
    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(rounds):
            peer.frame(REQUEST, b"v" + bytes(2048 - 65))
            answer = peer.take()
            if answer[3] != b"same":
                raise AssertionError(f"the victim's copy changed under it: {answer}")
    finally:
        stop.set()
        thread.join()
        peer.memory[peer.out : peer.out + RING] = bytes(RING)  # all was read: as an honest peer's


def unwritten(peer: Hostile) -> int:
    """A size word for a payload that was never written: what stands there is zeros."""
    peer.frame(REQUEST, b"e", size=1000)
    peer.written += 1024 - 64
    answer = peer.take()[3]
    assert answer == b"e" + bytes(999), answer
    return len(answer)


def pour(peer: Hostile, kind: int, payload: bytes, *, flags: int = 0, id: int = 5) -> None:
    """Write twenty thousand frames of a kind, as fast as they are taken."""
    for _ in range(25):
        assert peer.wait_room(800 * 64)
        peer.burst(kind, payload, 800, flags=flags, id=id)


def empty_pieces(peer: Hostile) -> int:
    """Pieces without a byte in them, which cost no credit: may they cost memory?"""
    peer.frame(REQUEST, b"e", flags=MORE, id=5)
    pour(peer, REQUEST, b"", flags=MORE)
    peer.frame(REQUEST, b"end", id=5)
    assert peer.take()[3] == b"eend"
    peer.next_id = 6
    return 1


def tiny_pieces(peer: Hostile) -> int:
    """A long message in pieces of two bytes, of which each would be an object of its own."""
    peer.frame(REQUEST, b"e", flags=MORE, id=5)
    pour(peer, REQUEST, b"xy", flags=MORE)
    peer.frame(CANCEL, id=5)
    peer.frame(ABORT, id=5)
    peer.next_id = 6
    return 1


def control_flood(peer: Hostile) -> int:
    """Frames that mean nothing here, as fast as they are taken."""
    pour(peer, CANCEL, b"")
    return 1


HARMLESS: dict[str, Callable[[Hostile], int]] = {
    "unwritten": unwritten,
    "flip": lambda peer: flip(peer, 100) or 1,
    "empty pieces": empty_pieces,
    "tiny pieces": tiny_pieces,
    "control flood": control_flood,
}


def unwritten_answer(peer: Hostile, id: int) -> None:
    """As `unwritten`, to a client."""
    peer.frame(RESPONSE, b"e", size=1000, id=id)
    peer.written += 1024 - 64


def answer_in_pieces(piece: bytes) -> Callable[[Hostile, int], None]:
    """As `empty_pieces` and `tiny_pieces`, to a client."""

    def answer(peer: Hostile, id: int) -> None:
        peer.frame(RESPONSE, b"e", flags=MORE, id=id)
        pour(peer, RESPONSE, piece, flags=MORE, id=id)
        assert peer.wait_room(64)
        peer.frame(RESPONSE, b"end", id=id)

    return answer


def answer_after_a_flood(peer: Hostile, id: int) -> None:
    """As `control_flood`, to a client: heartbeats, and each says that the server is busy."""
    pour(peer, HEARTBEAT, bytes(8) + b"\xff" * 4, id=0)
    assert peer.wait_room(64)
    peer.frame(RESPONSE, b"e", id=id)


HARMLESS_ANSWERS: dict[str, tuple[Callable[[Hostile, int], None], bytes]] = {
    "unwritten": (unwritten_answer, b"e".ljust(1000, b"\0")),
    "empty pieces": (answer_in_pieces(b""), b"eend"),
    "tiny pieces": (answer_in_pieces(b"xy"), b"e" + b"xy" * 20_000 + b"end"),
    "control flood": (answer_after_a_flood, b"e"),
}
