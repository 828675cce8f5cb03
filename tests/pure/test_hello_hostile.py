"""The bootstrap hello from a hostile peer: a typed, precise error and nothing else."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l5._errors import LocalProtocolError, RemoteProtocolError
from l5._hello import (
    MAX_HELLO_BYTES,
    PREFIX_BYTES,
    Attach,
    ClientHello,
    Hello,
    HelloReader,
    Reject,
    ServerHello,
    Upgrade,
    Upgraded,
    encode,
)
from tests.pure._hellos import (
    CLIENT,
    LIMITS,
    NUMBERS,
    RENDEZVOUS,
    SAMPLES,
    SERVER,
    fields,
    framed,
    raw,
    read,
)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"GET / HTTP/1.1\r\n", "speak l5 but HTTP"),
        (b"HTTP/1.1 400 Bad Request", "speak l5 but HTTP"),
        (b"POST / HTTP/1.1\r\n", "speak l5 but HTTP"),
        (b"PRI * HTTP/2.0\r\n", "speak l5 but HTTP/2"),
        (b"SSH-2.0-OpenSSH", "speak l5 but SSH"),
        (b"\x16\x03\x01\x02\0\x01\0\x01\xfc", "speak l5 but TLS .*l5s://"),
        (b"\x15\x03\x01\0\x02\x02\x28", "speak l5 but TLS .*l5s://"),
        (b"\0\0\0\0\0\0\0\0", r"does not speak l5: it begins with b'\\x00\\x00\\x00\\x00'"),
        (b"L4", "does not speak l5"),
        (b"l5", "does not speak l5"),
        (b"L5\x01\x00", "no hello message of type 0"),
        (b"L5\x01\x07", "no hello message of type 7"),
        (b"L5\x01\x01\x01\x20\0\0", "8193 bytes announced, more than the 8192"),
        (b"L5\x01\x02\xff\xff\xff\xff", "ServerHello of 4294967295 bytes announced"),
        (framed(1, b""), "ClientHello is malformed"),
        (framed(1, b"\xc1"), "ClientHello is malformed"),
        (framed(6, encode(SAMPLES[5])[8:] + b"\0"), "Attach is malformed"),
        (raw(6, []), "Attach is malformed"),
        (raw(6, {}), "missing required field `ticket`"),
    ],
)
def test_refused_with_a_precise_text(data: bytes, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text) as caught:
        read(data)
    assert caught.value.code == "malformed"


def test_another_version_is_refused_as_such_as_soon_as_it_is_seen() -> None:
    with pytest.raises(RemoteProtocolError, match="version 2; this side reads 1") as caught:
        read(b"L5\x02")
    assert caught.value.code == "version"


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"\x15\x03\x01\0\x02\x02\x28", b"zz"])
def test_foreign_protocols_byte_by_byte(data: bytes) -> None:
    def verdict(chunks: list[bytes]) -> str:
        reader = HelloReader()
        try:
            for chunk in chunks:
                reader.feed(chunk)
                reader.next()
            reader.feed_eof()
        except RemoteProtocolError as error:
            return str(error)
        return ""

    assert verdict([bytes([byte]) for byte in data])[:40] == verdict([data])[:40] != ""


def test_an_error_stays() -> None:
    reader = HelloReader()
    reader.feed(b"nonsense")
    with pytest.raises(RemoteProtocolError) as first:
        reader.next()
    reader.feed(encode(CLIENT))
    for call in (reader.next, reader.needed_bytes, reader.feed_eof):
        with pytest.raises(RemoteProtocolError) as again:
            call()
        assert again.value is first.value
    assert reader.trailing == b""


def test_an_error_in_the_payload_stays() -> None:
    reader = HelloReader()
    reader.feed(raw(6, {}) + encode(CLIENT))
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="ticket"):
            reader.next()


def test_end_of_file_between_messages_is_no_error() -> None:
    reader = HelloReader()
    reader.feed_eof()
    reader.feed(encode(CLIENT))
    reader.next()
    reader.feed_eof()


@pytest.mark.parametrize("cut", range(1, 30))
def test_end_of_file_within_a_message(cut: int) -> None:
    reader = HelloReader()
    reader.feed(encode(CLIENT)[:cut])
    with pytest.raises(RemoteProtocolError, match=f"closed {cut} bytes into its hello"):
        reader.feed_eof()


def test_end_of_file_tells_a_foreign_protocol_apart() -> None:
    reader = HelloReader()
    reader.feed(b"GE")
    assert reader.next() is None
    with pytest.raises(RemoteProtocolError, match="does not speak l5"):
        reader.feed_eof()


def test_unknown_fields_are_ignored() -> None:
    for number, message in enumerate(SAMPLES, 1):
        later = {**fields(message), "new_field": {"deep": [1, None, 2.5]}}
        assert read(raw(number, later)) == message


OUT_OF_RANGE: list[tuple[type[Hello], str, Any]] = [
    (ClientHello, "versions", []),
    (ClientHello, "versions", [1] * 17),
    (ClientHello, "versions", [-1]),
    (ClientHello, "versions", [1 << 16]),
    (ClientHello, "versions", 1),
    (ClientHello, "features", -1),
    (ClientHello, "features", 1 << 63),
    (ClientHello, "features", "1"),
    (ClientHello, "pid", -1),
    (ClientHello, "pid", 1 << 31),
    (ClientHello, "pid", 1.5),
    (ClientHello, "pid", True),
    (ClientHello, "uid", -1),
    (ClientHello, "uid", 1 << 32),
    (ClientHello, "token", b"x" * 1025),
    (ClientHello, "token", "text"),
    (ClientHello, "host", {"nonce": b"n" * 15, "tag": b"t" * 32}),
    (ClientHello, "host", {"nonce": b"n" * 16, "tag": b"t" * 33}),
    (ClientHello, "offers", [{"transport": "shm"}] * 17),
    (ClientHello, "offers", [{"transport": ""}]),
    (ClientHello, "offers", [{"transport": "x" * 65}]),
    (ClientHello, "offers", [{"transport": "shm", "params": {"a": None}}]),
    (ClientHello, "offers", [{"transport": "shm", "params": {"a": [1]}}]),
    (ClientHello, "offers", [{"transport": "shm", "params": {"a": 1.5}}]),
    (ClientHello, "offers", [{"transport": "shm", "params": {"a": "x" * 4097}}]),
    (ClientHello, "offers", [{"transport": "shm", "params": {"x" * 65: 1}}]),
    (ClientHello, "offers", [{"transport": "shm", "params": {str(i): 1 for i in range(17)}}]),
    (ServerHello, "version", -1),
    (ServerHello, "choice", ""),
    (ServerHello, "choice", "x" * 65),
    (ServerHello, "params", {"a": {"b": 1}}),
    (ServerHello, "params", {"a": b"x" * 4097}),
    (ServerHello, "declined", {str(i): "" for i in range(33)}),
    (ServerHello, "declined", {"rdma": "x" * 1025}),
    (ServerHello, "declined", {"rdma": 1}),
    (ServerHello, "rendezvous", "/run/other.sock"),
    (ServerHello, "rendezvous", RENDEZVOUS + "\n"),
    (ServerHello, "ticket", b"short"),
    (ServerHello, "ticket", b"x" * 65),
    (Reject, "code", ""),
    (Reject, "message", "x" * 1025),
    (Upgrade, "transport", ""),
    (Upgrade, "params", {"a": None}),
    (Upgraded, "ok", 1),
    (Upgraded, "reason", None),
    (Attach, "ticket", b"x" * 15),
    (Attach, "ticket", "x" * 32),
]


@pytest.mark.parametrize(("cls", "field", "value"), OUT_OF_RANGE)
def test_out_of_range(cls: type[Hello], field: str, value: Any) -> None:
    sample = SAMPLES[NUMBERS[cls.__name__] - 1]
    changed = {**fields(sample), field: value}
    assert field in fields(sample)
    with pytest.raises(RemoteProtocolError, match=cls.__name__):
        read(raw(NUMBERS[cls.__name__], changed))


@pytest.mark.parametrize("field", list(fields(CLIENT)["limits"]))
@pytest.mark.parametrize("value", [0, -1, 1 << 62, (1 << 64) - 1, None, "1"])
def test_limits_out_of_range(field: str, value: Any) -> None:
    if (field, value) == ("heartbeat_ms", 0):
        value = 60_001  # 0 is allowed there: no heartbeats
    hello = fields(CLIENT)
    hello["limits"][field] = value
    with pytest.raises(RemoteProtocolError, match=field):
        read(raw(1, hello))


BOUNDS: list[tuple[type[Hello], str, int, int]] = [
    (ClientHello, "limits.max_message_bytes", 1, 1 << 48),
    (ClientHello, "limits.segment_bytes", 256, 1 << 30),
    (ClientHello, "limits.data_window_bytes", 1, 1 << 48),
    (ClientHello, "limits.credit_bytes", 1, 1 << 48),
    (ClientHello, "limits.in_flight_max", 1, 1 << 20),
    (ClientHello, "features", 0, (1 << 63) - 1),
    (ClientHello, "pid", 0, (1 << 31) - 1),
    (ClientHello, "uid", 0, (1 << 32) - 1),
    (ServerHello, "version", 0, (1 << 16) - 1),
    (ServerHello, "features", 0, (1 << 63) - 1),
    (ServerHello, "pid", 0, (1 << 31) - 1),
]


@pytest.mark.parametrize(("cls", "field", "low", "high"), BOUNDS)
def test_each_range_ends_where_it_says(cls: type[Hello], field: str, low: int, high: int) -> None:
    number = NUMBERS[cls.__name__]
    hello = fields(SAMPLES[number - 1])
    place, _, name = field.rpartition(".")
    part = hello[place] if place else hello
    for value in (low, high):
        part[name] = value
        assert read(raw(number, hello)) is not None
    for value in (low - 1, high + 1):
        part[name] = value
        with pytest.raises(RemoteProtocolError, match=name):
            read(raw(number, hello))


def test_what_is_left_out_has_a_default() -> None:
    client, server = fields(CLIENT), fields(SERVER)
    for name in ("features", "token"):
        del client[name]
    for name in ("features", "choice", "params", "declined", "rendezvous", "ticket"):
        del server[name]
    got = read(raw(1, client))
    assert isinstance(got, ClientHello) and (got.features, got.token) == (0, None)
    got = read(raw(2, server))
    assert isinstance(got, ServerHello)
    assert (got.features, got.choice, got.params, got.declined) == (0, None, {}, {})
    assert (got.rendezvous, got.ticket) == (None, None)


@pytest.mark.parametrize("field", list(fields(CLIENT)["limits"]))
def test_integers_beyond_64_bits_cannot_even_be_written(field: str) -> None:
    hello = msgspec.structs.replace(
        CLIENT, limits=msgspec.structs.replace(LIMITS, **{field: 1 << 64})
    )
    with pytest.raises(LocalProtocolError, match="cannot send ClientHello"):
        encode(hello)


def test_the_largest_hello_is_taken_and_one_byte_more_is_not() -> None:
    params = {name: b"x" * 2700 for name in "abc"}
    spare = MAX_HELLO_BYTES + PREFIX_BYTES - len(encode(Upgrade(transport="x", params=params)))
    params["c"] += b"x" * spare
    data = encode(Upgrade(transport="x", params=params))
    assert len(data) == PREFIX_BYTES + MAX_HELLO_BYTES
    assert read(data) == Upgrade(transport="x", params=params)
    params["c"] += b"x"
    with pytest.raises(LocalProtocolError, match="8193 bytes, more than the 8192"):
        encode(Upgrade(transport="x", params=params))


@pytest.mark.parametrize(
    "message",
    [
        Attach(ticket=b"short"),
        Reject(code="x" * 65),
        Upgrade(transport="shm", params={"a": 1.5}),
        Upgrade(transport="shm", params={"a": object()}),
        ServerHello(version=1, limits=LIMITS, pid=1, rendezvous="@other"),
    ],
)
def test_what_a_peer_would_refuse_is_not_sent(message: Hello) -> None:
    with pytest.raises(LocalProtocolError, match=f"cannot send {type(message).__name__}"):
        encode(message)


# Fuzz: RemoteProtocolError and nothing else may come out.


def swallow(chunks: list[bytes]) -> None:
    reader = HelloReader()
    try:
        for chunk in chunks:
            reader.feed(chunk)
            assert reader.needed_bytes() <= MAX_HELLO_BYTES
            while reader.next() is not None:
                assert reader.needed_bytes() <= MAX_HELLO_BYTES
        reader.feed_eof()
    except RemoteProtocolError as error:
        assert str(error).isprintable() and len(str(error)) < 600


@given(st.lists(st.binary(max_size=80), max_size=5))
def test_fuzz_arbitrary_bytes(chunks: list[bytes]) -> None:
    swallow(chunks)


@given(st.integers(0, 7), st.binary(max_size=200))
def test_fuzz_payloads(kind: int, payload: bytes) -> None:
    swallow([framed(kind, payload)])


msgpack_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 63), (1 << 64) - 1),
        st.floats(),
        st.text(max_size=8),
        st.binary(max_size=40),
        st.datetimes(),
        st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=16)),
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=8) | st.integers(0, 9) | st.tuples(st.integers(0, 9)),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from(SAMPLES), st.data())
def test_fuzz_fields(message: Hello, data: st.DataObject) -> None:
    value = fields(message)
    for field in data.draw(st.lists(st.sampled_from(sorted(value)), max_size=2)):
        value[field] = data.draw(msgpack_values)
    swallow([raw(NUMBERS[type(message).__name__], value)])


@given(st.sampled_from(SAMPLES), st.data())
def test_fuzz_flipped_bytes(message: Hello, data: st.DataObject) -> None:
    wire = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    swallow([bytes(wire)])


@pytest.mark.parametrize("opener", [b"\x91", b"\x81\xa1a", b"\xdd\0\xff\xff\xff", b"\x81\x91"])
@pytest.mark.parametrize("field", [b"\xa5other", b"\xa6params"])
def test_deep_nesting_and_huge_counts(opener: bytes, field: bytes) -> None:
    body = b"\x82" + field + opener * ((MAX_HELLO_BYTES - 60) // len(opener))
    with pytest.raises(RemoteProtocolError, match=r"Upgrade is (nested too deeply|malformed)"):
        read(framed(4, body))
