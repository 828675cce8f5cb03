"""The errors of l5, by who is at fault and what the caller can do.

    L5Error
     +-- AddressError            (ValueError)       the URL or an option is wrong: yours
     +-- TransportUnavailable                       this machine or build cannot do it
     +-- ConnectError            (ConnectionFailed) nothing could be reached: see .attempts
     +-- ProtocolError
     |    +-- LocalProtocolError                    we were asked to break the protocol: yours
     |    |    +-- MessageTooLarge
     |    +-- RemoteProtocolError                   the peer broke the protocol
     +-- BufferTooShort          (ValueError)       a message does not fit where it should go: yours
     +-- RequestFailed                              the peer's handler raised
     +-- DeadlineExceeded        (TimeoutError)     the request's own deadline passed
     +-- RemoteAccessError                          a read or write of remote memory was refused
     +-- TornRead                                   a page kept changing while it was read

Closed, broken, busy, end-of-stream and would-block are anyio's errors and are used as they are.
All of these can be pickled and copied: their state is in ``args`` and ``__dict__``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs
from anyio import BrokenResourceError, ConnectionFailed

GONE = "the peer closed the socket without a word"


def _rebuild(cls: type[L5Error], args: tuple[Any, ...], state: dict[str, Any]) -> L5Error:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class L5Error(Exception):
    """Base of every error that l5 defines."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by calling the constructor again: constructors here take facts, args holds the text.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class AddressError(L5Error, ValueError):
    """A URL or an option is wrong; the message says what is allowed."""


class TransportUnavailable(L5Error):
    """A transport that was asked for cannot be used here, for ``reason``."""

    def __init__(self, transport: str, reason: str) -> None:
        super().__init__(f"transport {transport!r} is not available: {reason}")
        self.transport = transport
        self.reason = reason


@attrs.frozen
class Attempt:
    """One try to connect: what was tried, and why it failed."""

    target: str
    reason: str

    def __str__(self) -> str:
        return f"{self.target}: {self.reason}"


class ConnectError(L5Error, ConnectionFailed):
    """No connection could be made; ``attempts`` lists each try in order."""

    def __init__(self, target: str, attempts: Iterable[Attempt] = ()) -> None:
        tries = tuple(attempts)
        texts = [attempt.reason if attempt.target == target else str(attempt) for attempt in tries]
        details = "; ".join(texts) or "nothing was tried"
        super().__init__(f"cannot connect to {target}: {details}")
        self.target = target
        self.attempts: tuple[Attempt, ...] = tries


class ProtocolError(L5Error):
    """The wire protocol was, or would have been, violated."""


class LocalProtocolError(ProtocolError):
    """This side was asked to do what the protocol forbids; nothing was sent."""


class MessageTooLarge(LocalProtocolError):
    """A message is larger than both ends agreed to; nothing was sent."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"a message of {size_bytes} bytes is over the agreed limit of {limit_bytes} bytes;"
            " both ends can raise it with the option max_message"
        )
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class BufferTooShort(L5Error, ValueError):
    """A message does not fit into the buffer of `receive_into`; it waits to be received."""

    def __init__(self, size_bytes: int, buffer_bytes: int) -> None:
        super().__init__(
            f"the next message has {size_bytes} bytes and the buffer {buffer_bytes}: take it with a"
            " longer buffer, or with receive()"
        )
        self.size_bytes = size_bytes
        self.buffer_bytes = buffer_bytes


class RemoteProtocolError(ProtocolError):
    """The peer violated the protocol; the connection cannot be used any more.

    ``code`` is what a rejection sent to that peer would carry (see ``l5._hello.Reject``).
    """

    def __init__(self, message: str, *, code: str = "malformed") -> None:
        super().__init__(message)
        self.code = code


class RequestFailed(L5Error):
    """The peer's handler raised; the connection is sound."""

    def __init__(self, remote_type: str, remote_message: str) -> None:
        text = f"{remote_type}: {remote_message}" if remote_message else remote_type
        super().__init__(f"the peer's handler raised {text}")
        self.remote_type = remote_type
        self.remote_message = remote_message


class DeadlineExceeded(L5Error, TimeoutError):
    """A request was not answered before its deadline; the connection is sound."""

    def __init__(self, message: str = "the request's deadline passed before it was answered"):
        super().__init__(message)


class RemoteAccessError(L5Error):
    """An access to a peer's memory is out of bounds or not granted; nothing was changed."""


class TornRead(L5Error):
    """A page kept changing while it was read; reading again later may succeed."""

    def __init__(self, offset: int, attempts_count: int) -> None:
        super().__init__(
            f"the page at offset {offset} changed during each of {attempts_count} reads"
        )
        self.offset = offset
        self.attempts_count = attempts_count


def as_broken(error: Exception) -> Exception:
    """Return what a connection that broke by `error` says: the system's errors become anyio's."""
    if isinstance(error, OSError):
        return BrokenResourceError(f"the connection broke: {error}")
    return error
