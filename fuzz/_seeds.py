"""Seeds: what a sound peer would send, written as each target reads it.

From them the fuzzer begins; what it made of them is the corpus. `python -m fuzz merge` runs this.
"""

import struct
from collections.abc import Callable

import numpy as np

from catfish_app import _wire
from l5 import _hello
from l5._frames import Flag, Kind, pack_error, pack_header

MORE, DEADLINE, FOR_RESPONSE = int(Flag.MORE), int(Flag.DEADLINE), int(Flag.FOR_RESPONSE)


def seeds(target: str) -> list[bytes]:
    """Return the seeds of a target."""
    return _MAKERS[target]()


# ---- in C --------------------------------------------------------------------------------------


def _ring_receive() -> list[bytes]:
    def frame(kind: int, flags: int, size: int) -> bytes:  # where it is looked for
        return (
            bytes([1, 0, kind, flags]) + size.to_bytes(2, "little") + b"\7" + bytes(min(size, 40))
        )

    receive, lease, release = b"\2\0", b"\3\0", b"\4"
    every = [(1, 1, 100), (2, 0, 64), (2, 2, 4), (2, 3, 900), (3, 1, 1024), (4, 0, 33)]
    every += [(5, 0, 0), (6, 4, 8), (7, 0, 12), (8, 1, 0), (8, 0, 0), (9, 0, 0)]
    frames = [frame(*each) for each in every]
    laps = b"".join(frame(1, 0, 1000) + receive for _ in range(9))
    changed = frame(1, 0, 40) + b"\2\1" + struct.pack("<HB", 4096 + 8, 15) + bytes(16)
    return [
        *(bytes([role]) + b"".join(each + receive for each in frames) for role in (0, 1)),
        *(b"\1" + each + receive + each + lease + release for each in frames),
        b"\1" + laps,
        b"\0" + frames[0] + lease + frames[1] + lease + receive + b"\5" + release + b"\6\7",
        b"\1" + b"\10\2" + laps + b"\6" + frames[0] + b"\6" + receive + b"\5",
        b"\1" + changed,
    ]


def _stream() -> list[bytes]:
    limit = struct.pack("<H", 4096)
    request, answer = (
        pack_header(5, kind, 0, 7) + b"hello" for kind in (Kind.REQUEST, Kind.RESPONSE)
    )
    beat = pack_header(12, Kind.HEARTBEAT, 0, 0) + bytes(12)
    long = pack_header(4096, Kind.REQUEST, 0, 1 << 60) + bytes(4096)
    others = [pack_header(0, kind, 0, 1) for kind in range(11)]
    flagged = [pack_header(5, Kind.REQUEST, flags, 7) + b"hello" for flags in (MORE, DEADLINE)]
    return [
        limit + request + answer + beat + request[:-1],
        limit + request[:9],
        struct.pack("<H", 4) + request,
        limit + beat[:-1] + beat,
        limit + long[:900],
        *(limit + request + other for other in (*others, *flagged)),
        limit + request[:6] + b"\1" + request[7:],
    ]


def _ring_send() -> list[bytes]:
    def send(size: int, kind: int = 1, flags: int = 0) -> bytes:
        return bytes([1, kind - 1, flags, 4]) + size.to_bytes(2, "little") + b"\5"

    read_all, arm = b"\7\xff", b"\5\3"
    reserve = b"\2" + struct.pack("<HB", 500, 7)
    commit = b"\3" + struct.pack("<H", 300)
    full = send(1000) * 5
    return [
        b"\0" + b"".join(send(size) + read_all for size in (0, 1, 40, 41, 500, 1020, 1021)),
        b"\1" + full + arm + read_all + full,
        b"\1" + reserve + send(3) + commit + reserve + b"\4" + read_all + reserve + commit,
        b"\0" + full + b"\10" + struct.pack("<Q", 1 << 60) + full,
        b"\0" + full + b"\11\x84\0" + full + b"\11\x70\1" + full,
        b"\0" + send(0, 8) + b"\12\xff" + send(4) + reserve + commit,
        b"\0" + b"\0" + struct.pack("<HB", 256, 7) + b"\3" + bytes(7) + send(9) + b"\6",
    ]


def _segment() -> list[bytes]:
    good = b"\6\0\0\1\0"  # l5_segment_create, untouched
    whole = b"\10\3" + b"\0" + b"\2" + b"\6\2"  # truncated, filled, sealed
    holes = b"\10\3" + b"\0" + b"\6\2" + b"\4\0\1"
    punches = b"\5" + b"\4\2\0" + b"\1\0\0" + b"\10\2" + b"\12\2" + b"\6\5"
    mapped = b"\6\1\11" + b"\1\12\0" + b"\0" + b"\2\12\2\12\4" + b"\2\12\0\4\0"
    return [
        *(bytes([kind]) + bytes(8) for kind in range(8)),
        good + b"\0" + punches + punches,
        whole + b"\0\1\0" + punches,
        holes + b"\0\1\0",
        mapped,
        b"\10\4" + b"\0\2\6\6" + b"\0\1\0\0",
        b"\10\4" + b"\0\2\6\2\6\3" + b"\0\1\0\0",
    ]


def _service() -> list[bytes]:
    def frame(what: int, flags: int, id: int, size: int, data: bytes = b"") -> bytes:
        return bytes([0, what, flags, id]) + size.to_bytes(2, "little") + data[: min(size, 16)]

    request, cancel, abort, credit, close = 0, 5, 7, 8, 10
    serve, read, publish = b"\3", b"\4", b"\6"
    handlers = [bytes([n, 200, 40, 8, 16]) + bytes(11) for n in range(8)]
    one = [frame(request, 0, n, 64, data) for n, data in enumerate(handlers)]
    long = b"".join(frame(request, MORE, 1, 400, handlers[0].ljust(16)) + serve for _ in range(6))
    more = b"\1\xfc"  # sound, and with room for everything
    return [
        *(how + b"".join(one) + serve + read * 9 for how in (b"\1\0", b"\1\xff", b"\2\x5c")),
        *(more + each + serve + read * 4 + publish + serve for each in one),
        more + long + frame(request, 0, 1, 9, bytes(9)) + serve + read * 8,
        more + long + frame(abort, 0, 1, 0) + serve + frame(close, 1, 0, 0) + serve,
        more + long + frame(cancel, 0, 1, 0) + frame(request, 0, 1, 0) + serve + read,
        more + one[4] + serve + frame(credit, FOR_RESPONSE, 4, 8, b"\0\4") + serve + read * 8,
        more + one[4] + serve + frame(cancel, 0, 4, 0) + serve + read * 3,
        more + frame(request, DEADLINE, 2, 40, b"\0" * 4 + handlers[0][:12]) + serve + read,
        more + frame(request, DEADLINE | 8, 2, 40, b"\1\0\0\0" + handlers[0][:12]) + serve + read,
        more + one[0] + frame(close, 0, 0, 0) + serve + read,
        more + one[0] + frame(close, 1, 0, 0) + serve + read + frame(request, 0, 3, 0) + serve,
        *(more + frame(n, 0, 1, 12, bytes(12)) + serve for n in (11, 12, 13, 14, 15, 31)),
        b"\0\0" + one[0] + b"\5" + struct.pack("<HB", 4096, 24) + bytes(25) + serve + read,
    ]


def _row(x: int, y: int, width: int, height: int) -> bytes:
    """A rectangle as `catfish` reads it: the low byte of each double counts."""
    return b"".join(bytes([value]) + bytes(7) for value in (x, y, width, height))


def _catfish() -> list[bytes]:
    def ask(op: int, body: bytes, count: int = 0, argument: int = 0) -> bytes:
        return bytes([op, argument, count]) + body

    def rows(count: int, step: int = 3) -> list[bytes]:
        return [_row(n * step % 200, n * 7 % 90, n % 9, n % 5) for n in range(count)]

    def ids(count: int) -> bytes:
        return b"".join(struct.pack("<Q", n) for n in range(count))

    inserts = b"".join(ask(5, row + ids(n + 1)[-8:]) for n, row in enumerate(rows(12)))
    everything = _row(0, 0, 15, 15)
    searches = ask(1, everything) + ask(2, everything) + ask(3, everything, argument=5)
    searches += ask(4, b"".join(rows(6)), 6) + ask(9, b"") + ask(10, b"") + ask(11, b"")
    deletes = b"".join(ask(7, row + ids(n + 1)[-8:]) for n, row in enumerate(rows(12)))
    update = ask(8, rows(3)[1] + _row(50, 50, 1, 1) + struct.pack("<Q", 1))
    many = ask(6, b"".join(rows(40)) + ids(40), 40)
    part = bytes(16) + b"".join(rows(40)) + ids(40)
    load = ask(12, b"\x28" + bytes(7)) + ask(13, part, 40) + ask(14, bytes(8))
    plain = _wire.HEAD.pack(_wire.Op.COUNT, 1, 0, 0) + struct.pack("<4d", 0, 0, 300, 300)
    raw = bytes([128, 0]) + len(plain).to_bytes(2, "little") + plain
    return [
        b"\0" + inserts + searches + update + deletes + searches,
        b"\1" + many + searches + update + ask(11, b"", argument=1) + searches,
        b"\0" + load + searches + load + ask(15, bytes(8)),
        b"\0" + many + many + many + searches,
        b"\0" + ask(12, b"\x50" + bytes(7)) + ask(13, part, 40) + ask(15, bytes(8)) + ask(14, b""),
        b"\0" + many + raw + raw[:20],
    ]


# ---- in Python ---------------------------------------------------------------------------------


def _frames() -> list[bytes]:
    sizes = {Kind.CREDIT: 8, Kind.HEARTBEAT: 12, Kind.REQUEST: 40, Kind.DATA: 4096}
    heads = [pack_header(sizes.get(kind, 0), kind, flags, 7) for kind in Kind for flags in range(5)]
    errors = [pack_error("ValueError", "no"), pack_error("", ""), pack_error("E" * 80, "nö" * 200)]
    return [*heads, *(heads[0] + error for error in errors)]


def _flow() -> list[bytes]:
    def segment(end: int, key: int, size: int, more: bool) -> bytes:
        what = end | (key & 1) << 1
        what = next(n for n in range(what, 256, 4) if n % 7 in ((2, 3, 4, 5) if more else (0, 1)))
        return bytes([what, key, size])

    long = b"".join(segment(0, 1, 25, True) for _ in range(8)) + segment(0, 1, 10, False)
    some = b"".join(segment(n & 1, n % 4, 20, True) for n in range(12))
    return [long, some + long, some + b"\6\1" + b"\x0d\2" + some, segment(1, 1, 60, True) * 9]


def _hello_messages() -> list[bytes]:
    limits = _hello.Limits(
        max_message_bytes=1 << 20,
        segment_bytes=4096,
        data_window_bytes=1 << 16,
        credit_bytes=1 << 15,
        in_flight_max=7,
    )
    offer = _hello.Offer(transport="shm", params={"a": 1, "b": "x", "c": b"\0", "d": True})
    proof = _hello.HostProof(nonce=b"n" * 16, tag=b"t" * 32)
    messages: list[_hello.Hello] = [
        _hello.ClientHello(
            versions=[1], limits=limits, offers=[offer], host=proof, pid=3, uid=1000, token=b"s"
        ),
        _hello.ServerHello(
            version=1,
            limits=limits,
            choice="shm",
            params={"ring": 1 << 20},
            declined={"rdma": "no device"},
            pid=4,
            rendezvous="@l5-" + "0123456789abcdef" * 2,
            ticket=b"k" * 32,
        ),
        _hello.reject("busy", "1024 connections are open"),
        _hello.Upgrade(transport="shm", params={"size": 2 << 20}),
        _hello.Upgraded(ok=False, reason="the memfd is not sealed"),
        _hello.Attach(ticket=b"k" * 32),
    ]
    written = [_hello.encode(message) for message in messages]
    foreign = [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02", b"SSH-2.0", b"L5\x02\x01", b"L5\1\x09"]
    cut = [b"\x0c" + each for each in (*written, *foreign)]
    return [*cut, b"\x30" + b"".join(written), b"\0" + written[0][:50]]


def _url() -> list[bytes]:
    urls = """l5://127.0.0.1:7471 l5s://example.org l5+tcp://[::1]:80 l5+tcp://[fe80::1%25eth0]:1
    l5+unix:///run/db.sock l5+unix://@name l5+shm://@a%20b l5+shm://localhost:0 l5+inproc://x%2Fy
    l5://h:1?ring=1MiB&segment=4KiB l5://h?connect_timeout=250ms&strict=yes&transports=shm,tcp
    l5+unix:///a?x-key=v%25&spin_us=0&in_flight_max=7 l5+other://host:9/p/q?x-a=b l5+rdma://h
    l5://u:p@h l5://h?token=x l5://h#f l5://ho%zz l5+other:///p l5+unix:///%ff%fe L5://HOST:7471
    l5://h?max_message=1GiB&reassembly=2GiB&credit=4MiB&data_window=8m&heartbeat_ms=0
    l5://0.0.0.0:1?connections_max=9&grace=0&hellos_max=3&total_reassembly=1TiB&backlog=5"""
    texts = [*urls.split(), "l5://müller.example", "l5+inproc://ü"]
    return [b"\0" + text.encode() for text in texts]


def _session() -> list[bytes]:
    def frame(kind: Kind, flags: int, id: int, payload: bytes = b"") -> bytes:
        return bytes([0, kind - 1, flags, id, len(payload)]) + payload

    ready, ask, take, answer, flush = b"\3", b"\4\0", b"\5", b"\6", b"\7"
    piece = bytes(200)
    asked = frame(Kind.REQUEST, 0, 1, b"q") + frame(Kind.REQUEST, DEADLINE, 2, bytes(9)) + ready
    long = b"".join(frame(Kind.REQUEST, MORE, 3, piece) + ready + flush for _ in range(9))
    data = b"".join(frame(Kind.DATA, n & 1, 1, piece) + ready for n in range(8)) + take * 4
    return [
        b"\1" + asked + answer * 2 + long + frame(Kind.REQUEST, 0, 3) + ready + answer,
        b"\1" + long + frame(Kind.ABORT, 0, 3) + ready + frame(Kind.CANCEL, 0, 3) + ready,
        b"\0" + data + frame(Kind.CREDIT, 0, 0, struct.pack("<Q", 1500)) + ready + flush,
        b"\0" + ask * 3 + frame(Kind.RESPONSE, MORE, 1, piece) + frame(Kind.RESPONSE, 0, 1) + ready,
        b"\0" + ask + b"\4\1" + frame(Kind.RESPONSE, MORE, 2, piece) + ready + b"\4\3" + ready,
        b"\0" + ask + frame(Kind.ERROR, 0, 1, pack_error("KeyError", "x")) + ready,
        b"\0" + ask + frame(Kind.CLOSE, MORE, 0) + frame(Kind.HEARTBEAT, 0, 0, bytes(12)) + ready,
        b"\1" + asked + frame(Kind.CLOSE, 0, 0) + ready,
        b"\1" + frame(Kind.DATA, 0, 1) + ready,
    ]


def _wire_replies() -> list[bytes]:
    offsets = np.array([0, 2, 2, 5], "<u8").tobytes() + bytes(40)
    stats = bytes(_wire.STATS.size)
    return [b"\3" + offsets, b"\0" + bytes(8), b"\2" + bytes(32), b"\1" + stats, b"\5" + bytes(64)]


def _handlers() -> list[bytes]:
    def ask(op: int, body: bytes, count: int = 0, argument: int = 0) -> bytes:
        return bytes([0, op, argument, count]) + body

    rows = b"".join(bytes([n * 9 % 250, n * 5 % 250, n % 8, n % 7]) for n in range(19))
    ids = b"".join(struct.pack("<Q", n) for n in range(19))
    inserts = b"".join(ask(5, rows[4 * n : 4 * n + 4] + ids[8 * n : 8 * n + 8]) for n in range(9))
    everything = bytes([0, 0, 7, 7])
    searches = b"".join(ask(op, everything, argument=3) for op in (1, 2, 3, 9, 10, 11))
    searches += ask(4, rows, 19)
    part = b"\0" + rows + ids
    load = ask(12, b"\x13" + bytes(7)) + ask(13, part, 19) + ask(14, bytes(8))
    return [
        inserts + searches + ask(7, rows[:4] + ids[:8]) + ask(8, rows[4:12] + ids[8:16]) + searches,
        ask(6, rows + ids, 19) * 3 + searches,
        load + searches + load + ask(15, bytes(8)),
        bytes([128, 0, 8, 0]) + _wire.HEAD.pack(9, 1, 0, 0) + bytes([128, 0, 3, 0, 1, 1, 0]),
    ]


def _foreign() -> list[bytes]:
    def query(size: int, x: int = 40, y: int = 60) -> bytes:
        return bytes([size, x, y])

    def spoil(how: int, node: int, operands: bytes, lines_agree: int = 0) -> bytes:
        return bytes([0, how, node]) + operands + bytes([lines_agree])

    def walks(begins: int, *queries: bytes) -> bytes:
        return bytes([2, begins]) + b"".join(bytes([n % 3]) + q for n, q in enumerate(queries))

    everything = query(254, 0, 0)
    asked = b"".join(b"\1" + query(size) for size in (0, 9, 60)) + b"\1" + everything
    raw = b"\1\xff" + struct.pack("<4d", -1e300, 0.5, 1e300, float("inf"))
    read = walks(7, everything + b"\1", query(30) + b"\2", query(9) + b"\3")
    kinds = (
        b"\x2e\1",
        bytes(4),
        b"\3\xfe",
        b"\5\2",
        b"\0\3",
        b"\0\1",
        b"\4",
        b"\x10\0\xff",
        b"\x40",
    )
    spoiled = [
        spoil(how, node, operands + bytes(8 if how > 6 else 0)) + asked + walks(1, everything)
        for how, operands in enumerate(kinds)
        for node in (0, 254)
    ]
    torn = bytes([2, 0, 0]) + everything + b"\1" + bytes([3, 1, 230, 5, 2, 1, 200, 1] * 20)
    return [asked + raw, read + bytes(80), read + bytes(range(190, 232)) * 4, torn, *spoiled]


def _image() -> list[bytes]:
    def use(count: int) -> bytes:
        return b"".join(struct.pack("<HB", n * 61 % 1400, n * 40 % 256) for n in range(count))

    one = [bytes([1, node, how]) + bytes(9) + use(6) for how in range(8) for node in (0, 7)]
    return [b"\0" + use(40), b"\xff\5", b"\xff\0", b"\3" + bytes(range(60)), *one]


_MAKERS: dict[str, Callable[[], list[bytes]]] = {
    "ring_receive": _ring_receive,
    "ring_send": _ring_send,
    "segment": _segment,
    "stream": _stream,
    "service": _service,
    "catfish": _catfish,
    "foreign": _foreign,
    "image": _image,
    "frames": _frames,
    "flow": _flow,
    "hello": _hello_messages,
    "url": _url,
    "session": _session,
    "wire": _wire_replies,
    "handlers": _handlers,
}
