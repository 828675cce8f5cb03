"""The bootstrap handshake, without I/O: bytes in, messages out.

    client                                server
    ClientHello  ---------------------->
                 <----------------------  ServerHello | Reject
    Upgrade      ---------------------->                          (when a transport was chosen;
                 <----------------------  Upgraded                 its descriptors go beside it)
    Upgraded     ---------------------->                          (when its way was verified)

A client that was told a rendezvous address opens a second socket there and begins with Attach.

Each message is ``b"L5" | version u8 | type u8 | size_bytes u32 LE`` and then that many bytes of
MessagePack. Unknown fields are ignored, so a later version may add some; every known field is
bounded by its type below. What a peer sent can raise RemoteProtocolError and nothing else.

``HelloReader.needed_bytes`` lets the caller read not one byte more than a message has: what
follows the handshake on the socket belongs to another protocol, and descriptors arrive with the
byte that they were sent with.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from l5._errors import LocalProtocolError, RemoteProtocolError
from l5._foreign import MAGIC, foreign, may_be_foreign

if TYPE_CHECKING:
    from l5._options import Options

MAX_HELLO_BYTES: Final = 8192
SEGMENT_BYTES_MIN: Final = 256
VERSIONS: Final = (1,)
"""Protocol versions that this side speaks, best first."""

ENVELOPE_VERSION: Final = 1
_PREFIX = struct.Struct("<2sBBI")
PREFIX_BYTES: Final = _PREFIX.size

REJECT_CODES: Final = frozenset(
    {"version", "malformed", "unauthorised", "busy", "timeout", "closing", "elsewhere"}
)
_RENDEZVOUS = r"\A@l5-[0-9a-f]{32}\Z"
_RENDEZVOUS_PATTERN = re.compile(_RENDEZVOUS)
_PARAMETER_BYTES_MAX = 4096
Name = Annotated[str, Meta(min_length=1, max_length=64)]
Text = Annotated[str, Meta(max_length=1024)]
Parameters = Annotated[dict[Name, Any], Meta(max_length=16)]
Size = Annotated[int, Meta(ge=1, le=1 << 48)]
_Version = Annotated[int, Meta(ge=0, le=0xFFFF)]
_Features = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Pid = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
_Identity = Annotated[bytes, Meta(min_length=32, max_length=32)]
_Ticket = Annotated[bytes, Meta(min_length=16, max_length=64)]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one side takes from the other."""

    max_message_bytes: Size
    segment_bytes: Annotated[int, Meta(ge=SEGMENT_BYTES_MIN, le=1 << 30)]
    data_window_bytes: Size
    credit_bytes: Size
    in_flight_max: Annotated[int, Meta(ge=1, le=1 << 20)]
    heartbeat_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    """A client: how often it wants to know how busy the server is; a server: how often at most."""


class HostProof(msgspec.Struct, frozen=True, kw_only=True):
    """Shows which host its sender is on to those on the same one, and nothing to others."""

    nonce: Annotated[bytes, Meta(min_length=16, max_length=16)]
    tag: Annotated[bytes, Meta(min_length=32, max_length=32)]


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A transport that the client could upgrade to."""

    transport: Name
    params: Parameters = {}


class ClientHello(msgspec.Struct, frozen=True, kw_only=True):
    """The first message on a connection."""

    versions: Annotated[list[_Version], Meta(min_length=1, max_length=16)]
    features: _Features = 0
    limits: Limits
    offers: Annotated[list[Offer], Meta(max_length=16)]
    host: HostProof
    pid: _Pid
    uid: Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
    token: Annotated[bytes, Meta(max_length=1024)] | None = None
    memory: _Identity | None = None
    """A memory link is wanted, for the connection that was told this identity."""


class ServerHello(msgspec.Struct, frozen=True, kw_only=True):
    """The server's answer: what holds from now on, and which upgrade it chose."""

    version: _Version
    features: _Features = 0
    limits: Limits
    choice: Name | None = None
    params: Parameters = {}
    declined: Annotated[dict[Name, Text], Meta(max_length=32)] = {}
    pid: _Pid
    rendezvous: Annotated[str, Meta(pattern=_RENDEZVOUS)] | None = None
    ticket: _Ticket | None = None
    identity: _Identity | None = None
    """Of this server (16 bytes) and of this connection (16 bytes); None: no memory links."""


class Reject(msgspec.Struct, frozen=True, kw_only=True):
    """The server's refusal; it closes the connection after it."""

    code: Name
    message: Text = ""


class Upgrade(msgspec.Struct, frozen=True, kw_only=True):
    """The client's side of the chosen transport is ready; descriptors come beside this."""

    transport: Name
    params: Parameters = {}


class Upgraded(msgspec.Struct, frozen=True, kw_only=True):
    """The server's side is ready, or it is not, and the connection stays on the socket.

    Of transports that verify the way, the client then says the same of what it found.
    """

    ok: bool
    reason: Text = ""
    params: Parameters = {}


class Attach(msgspec.Struct, frozen=True, kw_only=True):
    """The first message at a rendezvous address: which connection this belongs to."""

    ticket: _Ticket


Hello = ClientHello | ServerHello | Reject | Upgrade | Upgraded | Attach
_TYPES: tuple[type[Hello], ...] = (ClientHello, ServerHello, Reject, Upgrade, Upgraded, Attach)
_NUMBERS = {kind: number for number, kind in enumerate(_TYPES, 1)}
_DECODERS = {n: msgspec.msgpack.Decoder(kind) for n, kind in enumerate(_TYPES, 1)}
_ENCODER = msgspec.msgpack.Encoder()
HelloType = TypeVar("HelloType", bound=Hello)


def encode(message: Hello) -> bytes:
    """Write a message as a peer will read it.

    Raises LocalProtocolError when a peer would have to refuse it.
    """
    kind = _NUMBERS[type(message)]
    try:
        payload = _ENCODER.encode(message)
        _decode(kind, payload)
    except (RemoteProtocolError, TypeError, ValueError, OverflowError) as error:
        raise LocalProtocolError(f"cannot send {type(message).__name__}: {error}") from None
    return _PREFIX.pack(MAGIC, ENVELOPE_VERSION, kind, len(payload)) + payload


def _decode(kind: int, payload: bytes | bytearray) -> Hello:
    name = _TYPES[kind - 1].__name__
    if len(payload) > MAX_HELLO_BYTES:
        raise RemoteProtocolError(
            f"{name} has {len(payload)} bytes, more than the {MAX_HELLO_BYTES} allowed"
        )
    try:
        message = _DECODERS[kind].decode(payload)
    except RecursionError:
        raise RemoteProtocolError(f"{name} is nested too deeply") from None
    except (ValueError, TypeError, OverflowError) as error:  # msgspec's are ValueErrors
        raise RemoteProtocolError(f"{name} is malformed: {printable(str(error))}") from None
    if isinstance(message, ServerHello | Upgrade | Upgraded):
        _check_parameters(name, message.params)
    elif isinstance(message, ClientHello):
        for offer in message.offers:
            _check_parameters(name, offer.params)
    return message


def _check_parameters(where: str, params: dict[str, Any]) -> None:
    for name, value in params.items():
        if not isinstance(value, int | str | bytes):
            kind = type(value).__name__
        elif isinstance(value, int) or len(value) <= _PARAMETER_BYTES_MAX:
            continue
        else:
            kind = f"{len(value)} long"
        raise RemoteProtocolError(
            f"{where}: parameter {printable(name)!r} is {kind}; expected a number, a truth value,"
            f" or text or bytes of at most {_PARAMETER_BYTES_MAX}"
        )


class HelloReader:
    """Cuts what a peer sends into messages.

    After an error every further call raises it again. The buffer never holds more than one
    message and what was fed together with its end.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._error: RemoteProtocolError | None = None

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes; never raises."""
        if self._error is None:
            self._buffer += data

    def needed_bytes(self) -> int:
        """Say how many bytes the present message still lacks; 0 when ``next`` will give it.

        At first that is the prefix, then the rest: read exactly that many, feed, ask again.
        Raises RemoteProtocolError as soon as the bytes cannot be a hello.
        """
        prefix = self._prefix()
        if prefix is None:
            return PREFIX_BYTES - len(self._buffer)
        return max(0, PREFIX_BYTES + prefix[1] - len(self._buffer))

    def next(self) -> Hello | None:
        """Take the next message, or None while it is incomplete.

        Raises RemoteProtocolError for anything that is not a message of this protocol.
        """
        prefix = self._prefix()
        if prefix is None or len(self._buffer) < PREFIX_BYTES + prefix[1]:
            return None
        kind, size = prefix
        payload = bytes(self._buffer[PREFIX_BYTES : PREFIX_BYTES + size])
        try:
            message = _decode(kind, payload)
        except RemoteProtocolError as error:
            raise self._fail(error) from None
        del self._buffer[: PREFIX_BYTES + size]
        return message

    @property
    def trailing(self) -> bytes:
        """Show what came after the last message taken."""
        return bytes(self._buffer)

    def feed_eof(self) -> None:
        """Tell that the peer closed; raises RemoteProtocolError unless between two messages."""
        if self._error is None and self._buffer:
            self._prefix()
            hint = foreign(bytes(self._buffer[:PREFIX_BYTES]))
            text = hint or f"the peer closed {len(self._buffer)} bytes into its hello"
            self._error = RemoteProtocolError(text)
        if self._error is not None:
            raise self._fail(self._error)

    def _fail(self, error: RemoteProtocolError) -> RemoteProtocolError:
        self._error = error
        self._buffer.clear()
        return error.with_traceback(None)

    def _prefix(self) -> tuple[int, int] | None:
        """Check the prefix as far as it is there; give (type, size) once it is whole."""
        if self._error is not None:
            raise self._fail(self._error)
        head = bytes(self._buffer[:PREFIX_BYTES])
        problem = foreign(head)
        if problem and len(head) < PREFIX_BYTES and may_be_foreign(head):
            return None  # wait for enough of it to say what it is
        if problem:
            raise self._fail(RemoteProtocolError(problem))
        version = version_of(head)
        if version is not None and version != ENVELOPE_VERSION:
            raise self._fail(
                RemoteProtocolError(
                    f"the peer's hello has version {version}; this side reads {ENVELOPE_VERSION}",
                    code="version",
                )
            )
        if len(head) > 3 and not 1 <= head[3] <= len(_TYPES):
            raise self._fail(RemoteProtocolError(f"there is no hello message of type {head[3]}"))
        if len(head) < PREFIX_BYTES:
            return None
        kind = head[3]
        size = int.from_bytes(head[4:8], "little")
        if size > MAX_HELLO_BYTES:
            raise self._fail(
                RemoteProtocolError(
                    f"{_TYPES[kind - 1].__name__} of {size} bytes announced, more than the"
                    f" {MAX_HELLO_BYTES} allowed"
                )
            )
        return kind, size


def version_of(data: bytes | bytearray) -> int | None:
    """Read the version of a message's envelope; None while there is too little of it."""
    return data[2] if len(data) > 2 and data[:2] == MAGIC else None


def negotiate_version(versions: Iterable[int]) -> int:
    """Choose the best protocol version that both ends speak.

    Raises RemoteProtocolError, which lists both ends' versions.
    """
    theirs = sorted(set(versions))
    for version in VERSIONS:
        if version in theirs:
            return version
    both = f"the peer speaks {_listed(theirs)}; this side speaks {_listed(VERSIONS)}"
    raise RemoteProtocolError(f"no protocol version in common: {both}", code="version")


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def expect(message: Hello, *kinds: type[HelloType]) -> HelloType:
    """Return a message that has one of these types; raises RemoteProtocolError for others.

    A Reject that was not expected raises with its own text and code.
    """
    if isinstance(message, kinds):
        return message
    if isinstance(message, Reject):
        raise RemoteProtocolError(
            f"the peer refused ({printable(message.code)}): {printable(message.message)}",
            code=message.code,
        )
    wanted = " or ".join(kind.__name__ for kind in kinds)
    raise RemoteProtocolError(f"expected {wanted}, got {type(message).__name__}")


def check_rendezvous(name: str) -> str:
    """Return a rendezvous address that has the only form a server may send us to.

    Raises RemoteProtocolError: a hostile server must not choose which local socket we open.
    """
    if not _RENDEZVOUS_PATTERN.match(name):
        raise RemoteProtocolError(
            f"rendezvous address {printable(name)!r} is not @l5- and 32 hexadecimal digits"
        )
    return name


def agree(local: Limits, remote: Limits) -> Limits:
    """Say what this side may send: what the remote takes, and no message over either's limit.

    A segment is no longer than a message, so what is too long never passes for a segment.  Raises
    RemoteProtocolError if the remote's credit is below a segment: nothing long could be sent.
    """
    largest = min(local.max_message_bytes, remote.max_message_bytes)
    segment = min(remote.segment_bytes, max(largest, SEGMENT_BYTES_MIN))
    if remote.credit_bytes < segment:
        raise RemoteProtocolError(
            f"the peer's hello gives a credit_bytes of {remote.credit_bytes}, less than one segment"
            f" of its segment_bytes ({segment} bytes): it must give at least as much"
        )
    both = local.heartbeat_ms, remote.heartbeat_ms
    return msgspec.structs.replace(
        remote,
        max_message_bytes=largest,
        segment_bytes=segment,
        heartbeat_ms=max(both) if all(both) else 0,
    )


def limits_of(options: Options) -> Limits:
    """Say what this side takes, from its options."""
    return Limits(
        max_message_bytes=options.max_message_bytes,
        segment_bytes=options.segment_bytes,
        data_window_bytes=options.data_window_bytes,
        credit_bytes=options.initial_credit_bytes,
        in_flight_max=options.in_flight_max,
        heartbeat_ms=options.heartbeat_ms,
    )


def reject(code: str, message: str) -> Reject:
    """Make a refusal, its text cut to what the wire takes."""
    return Reject(code=code, message=printable(message, 1000))


def printable(text: str, limit: int = 300) -> str:
    """Make a peer's text fit for a log or a terminal: no control characters, not endless."""
    shown = "".join(c if c.isprintable() else "?" for c in text[:limit])
    return shown + "..." if len(text) > limit else shown
