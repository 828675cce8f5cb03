"""One hello of each type, and how to write what no peer of ours would."""

import struct
from typing import Any

import msgspec

from l5._hello import (
    Attach,
    ClientHello,
    Hello,
    HelloReader,
    HostProof,
    Limits,
    Offer,
    Reject,
    ServerHello,
    Upgrade,
    Upgraded,
)

LIMITS = Limits(
    max_message_bytes=1 << 20,
    segment_bytes=4096,
    data_window_bytes=1 << 16,
    credit_bytes=1 << 15,
    in_flight_max=7,
)
PROOF = HostProof(nonce=b"n" * 16, tag=b"t" * 32)
RENDEZVOUS = "@l5-" + "0123456789abcdef" * 2
CLIENT = ClientHello(
    versions=[1],
    limits=LIMITS,
    offers=[Offer(transport="shm", params={"a": 1, "b": "x", "c": b"\0", "d": True})],
    host=PROOF,
    pid=3,
    uid=1000,
    token=b"secret",
)
SERVER = ServerHello(
    version=1,
    limits=LIMITS,
    choice="shm",
    params={"ring": 1 << 20},
    declined={"rdma": "no device"},
    pid=4,
    rendezvous=RENDEZVOUS,
    ticket=b"k" * 32,
)
SAMPLES: list[Hello] = [
    CLIENT,
    SERVER,
    Reject(code="busy", message="1024 connections are open"),
    Upgrade(transport="shm", params={"size": 2 << 20}),
    Upgraded(ok=False, reason="the memfd is not sealed"),
    Attach(ticket=b"k" * 32),
]
SAMPLE_IDS = [type(message).__name__ for message in SAMPLES]
NUMBERS = {name: number for number, name in enumerate(SAMPLE_IDS, 1)}


def framed(kind: int, payload: bytes, *, version: int = 1, magic: bytes = b"L5") -> bytes:
    return struct.pack("<2sBBI", magic, version, kind, len(payload)) + payload


def raw(kind: int, value: object) -> bytes:
    return framed(kind, msgspec.msgpack.encode(value))


def read(data: bytes) -> Hello | None:
    reader = HelloReader()
    reader.feed(data)
    return reader.next()


def fields(message: Hello) -> dict[str, Any]:
    return msgspec.to_builtins(message, builtin_types=(bytes,))
