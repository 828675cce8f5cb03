"""The bootstrap hello: round trips, every split of the bytes, and what both ends agree on."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from l5._errors import RemoteProtocolError
from l5._hello import (
    PREFIX_BYTES,
    REJECT_CODES,
    VERSIONS,
    Attach,
    ClientHello,
    Hello,
    HelloReader,
    Limits,
    Reject,
    ServerHello,
    Upgraded,
    agree,
    check_rendezvous,
    encode,
    expect,
    limits_of,
    negotiate_version,
    printable,
    reject,
    version_of,
)
from l5._options import MIB, Options
from tests.pure._hellos import (
    CLIENT,
    LIMITS,
    NUMBERS,
    RENDEZVOUS,
    SAMPLE_IDS,
    SAMPLES,
    SERVER,
    fields,
    raw,
    read,
)


@pytest.mark.parametrize("message", SAMPLES, ids=SAMPLE_IDS)
def test_round_trip(message: Hello) -> None:
    assert read(encode(message)) == message


@pytest.mark.parametrize("message", SAMPLES, ids=SAMPLE_IDS)
def test_prefix(message: Hello) -> None:
    data = encode(message)
    magic, version, kind, size = struct.unpack_from("<2sBBI", data)
    assert (magic, version, kind) == (b"L5", 1, NUMBERS[type(message).__name__])
    assert size == len(data) - PREFIX_BYTES
    assert version_of(data) == 1


def test_the_wire_of_version_1_stays() -> None:
    """These bytes are what other versions of l5 send: changing them breaks them."""
    upgraded = b"L5\x01\x05\x15\0\0\0\x83\xa2ok\xc3\xa6reason\xa0\xa6params\x80"
    assert encode(Upgraded(ok=True)) == upgraded
    assert encode(Attach(ticket=b"k" * 16)) == (
        b"L5\x01\x06\x1a\0\0\0\x81\xa6ticket\xc4\x10" + b"k" * 16
    )


@pytest.mark.parametrize("message", SAMPLES, ids=SAMPLE_IDS)
def test_every_split(message: Hello) -> None:
    data = encode(message) + b"rest"
    for cut in range(len(data) + 1):
        reader = HelloReader()
        reader.feed(data[:cut])
        early = reader.next()
        assert (early is None) == (cut < len(data) - 4)
        reader.feed(memoryview(data)[cut:])
        assert (early or reader.next()) == message
        assert reader.trailing == b"rest"


@pytest.mark.parametrize("message", SAMPLES, ids=SAMPLE_IDS)
def test_byte_by_byte(message: Hello) -> None:
    reader = HelloReader()
    for byte in encode(message):
        assert reader.next() is None
        assert reader.needed_bytes() > 0
        reader.feed(bytes([byte]))
    assert reader.needed_bytes() == 0
    assert reader.next() == message


def test_needed_bytes_never_asks_for_more_than_the_message_has() -> None:
    stream = b"".join(map(encode, SAMPLES)) + b"frames of the next protocol"
    reader = HelloReader()
    for expected in SAMPLES:
        reads = 0
        while needed := reader.needed_bytes():
            assert reader.next() is None
            reader.feed(stream[:needed])
            stream = stream[needed:]
            reads += 1
        assert reads == 2
        assert reader.next() == expected
        assert reader.trailing == b""
    assert stream == b"frames of the next protocol"


@given(st.lists(st.sampled_from(SAMPLES), max_size=4), st.data())
def test_any_cut_of_any_stream(messages: list[Hello], data: st.DataObject) -> None:
    stream = b"".join(map(encode, messages))
    reader, got = HelloReader(), list[Hello]()
    while stream:
        count = data.draw(st.integers(1, len(stream)))
        reader.feed(stream[:count])
        stream = stream[count:]
        while (message := reader.next()) is not None:
            got.append(message)
    assert got == messages
    reader.feed_eof()


# Agreements.


def test_agree_takes_the_smaller_message_and_the_rest_from_the_receiver() -> None:
    small = {"max_message_bytes": 300, "segment_bytes": 299, "credit_bytes": 299}
    ours = msgspec.structs.replace(LIMITS, **small)
    assert agree(LIMITS, ours) == ours
    assert agree(ours, LIMITS) == msgspec.structs.replace(
        LIMITS, max_message_bytes=300, segment_bytes=min(300, LIMITS.segment_bytes)
    )


@pytest.mark.parametrize(
    ("one", "two", "agreed"), [(10, 10, 10), (10, 40, 40), (0, 10, 0), (10, 0, 0), (0, 0, 0)]
)
def test_both_ends_agree_on_the_longer_interval_of_heartbeats(
    one: int, two: int, agreed: int
) -> None:
    ends = [msgspec.structs.replace(LIMITS, heartbeat_ms=each) for each in (one, two)]
    assert [agree(*ends).heartbeat_ms, agree(*reversed(ends)).heartbeat_ms] == [agreed, agreed]


def test_who_knows_nothing_of_heartbeats_gets_none() -> None:
    old = {
        key: value for key, value in msgspec.to_builtins(LIMITS).items() if key != "heartbeat_ms"
    }
    assert msgspec.convert(old, Limits).heartbeat_ms == 0


def test_agree_names_a_credit_that_is_less_than_a_segment() -> None:
    theirs = msgspec.structs.replace(LIMITS, segment_bytes=4096, credit_bytes=4095)
    with pytest.raises(RemoteProtocolError, match=r"credit_bytes of 4095.*4096 bytes"):
        agree(LIMITS, theirs)
    short = msgspec.structs.replace(theirs, max_message_bytes=4095)
    assert agree(LIMITS, short).segment_bytes == 4095


sizes = st.integers(256, 1 << 30)
limits = st.builds(
    Limits,
    max_message_bytes=sizes,
    segment_bytes=sizes,
    data_window_bytes=sizes,
    credit_bytes=st.just(1 << 30),
    in_flight_max=st.integers(1, 99),
)


@given(limits, limits)
def test_both_ends_agree_on_the_largest_message(one: Limits, two: Limits) -> None:
    assert agree(one, two).max_message_bytes == agree(two, one).max_message_bytes
    agreed = agree(one, two)
    assert agreed.segment_bytes == min(two.segment_bytes, agreed.max_message_bytes)


def test_limits_of_options_are_legal_on_the_wire() -> None:
    for options in (
        Options(),
        Options(ring_bytes="64KiB", segment_bytes="4KiB", max_message_bytes="1KiB"),
        Options(ring_bytes="256MiB", segment_bytes="64MiB", max_message_bytes="1GiB"),
        Options(data_window_bytes="4GiB", credit_bytes="1GiB", in_flight_max=65536),
    ):
        hello = msgspec.structs.replace(CLIENT, limits=limits_of(options))
        assert read(encode(hello)) == hello
    assert limits_of(Options(max_message_bytes=MIB)).max_message_bytes == MIB


@given(st.lists(st.integers(0, 9)))
def test_negotiated_version_is_spoken_by_both_or_refused(versions: list[int]) -> None:
    if set(versions) & set(VERSIONS):
        assert negotiate_version(versions) in set(versions) & set(VERSIONS)
        return
    with pytest.raises(RemoteProtocolError, match="this side speaks 1") as caught:
        negotiate_version(versions)
    assert caught.value.code == "version"


def test_version_of_needs_three_bytes() -> None:
    assert version_of(b"L5") is None
    assert version_of(b"L5\x09") == 9
    assert version_of(b"XX\x09") is None


def test_expect() -> None:
    assert expect(SERVER, ServerHello) is SERVER
    assert expect(SERVER, ClientHello, ServerHello) is SERVER
    with pytest.raises(RemoteProtocolError, match="expected ClientHello or Attach, got Upgraded"):
        expect(Upgraded(ok=True), ClientHello, Attach)
    refusal = Reject(code="busy", message="full\x1b[2J")
    assert expect(refusal, Reject) is refusal
    with pytest.raises(RemoteProtocolError, match=r"refused \(busy\): full\?\[2J") as caught:
        expect(refusal, ServerHello)
    assert caught.value.code == "busy"


@pytest.mark.parametrize(
    "name",
    [
        "",
        RENDEZVOUS[1:],
        RENDEZVOUS[:-1],
        RENDEZVOUS + "0",
        RENDEZVOUS + "\n",
        "\n" + RENDEZVOUS,
        RENDEZVOUS.upper(),
        "@l5-" + "g" * 32,
        "@l5-" + "\u0660" * 32,
        "@x5-" + "0" * 32,
        "/l5-" + "0" * 32,
    ],
)
def test_rendezvous_has_one_form(name: str) -> None:
    assert check_rendezvous(RENDEZVOUS) == RENDEZVOUS
    with pytest.raises(RemoteProtocolError, match="32 hexadecimal digits"):
        check_rendezvous(name)
    with pytest.raises(RemoteProtocolError, match="ServerHello is malformed"):
        read(raw(2, {**fields(SERVER), "rendezvous": name}))


@given(st.sampled_from(sorted(REJECT_CODES)), st.text())
def test_a_rejection_can_always_be_sent(code: str, message: str) -> None:
    assert read(encode(reject(code, message * 50))) == reject(code, message * 50)


@given(st.text(), st.integers(0, 50))
def test_printable(text: str, limit: int) -> None:
    shown = printable(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit + 3
    assert not text.isprintable() or len(text) > limit or shown == text
