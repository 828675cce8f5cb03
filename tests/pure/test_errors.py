"""Errors carry facts, read well, belong to the right families, and survive pickling."""

import copy
import pickle

import anyio
import pytest

from l5 import _errors
from l5._errors import (
    AddressError,
    Attempt,
    BufferTooShort,
    ConnectError,
    DeadlineExceeded,
    L5Error,
    LocalProtocolError,
    MessageTooLarge,
    ProtocolError,
    RemoteAccessError,
    RemoteProtocolError,
    RequestFailed,
    TornRead,
    TransportUnavailable,
)

SAMPLES = [
    AddressError("bad URL 'x': no scheme"),
    TransportUnavailable("shm", "no memfd_create"),
    ConnectError("l5://h:1", [Attempt("tcp h:1", "refused"), Attempt("tcp [::1]:1", "timed out")]),
    ConnectError("l5://h:1"),
    ProtocolError("either"),
    LocalProtocolError("mine"),
    MessageTooLarge(1025, 1024),
    BufferTooShort(2048, 1024),
    RemoteProtocolError("theirs", code="version"),
    RequestFailed("KeyError", "'x'"),
    RequestFailed("KeyError", ""),
    DeadlineExceeded(),
    DeadlineExceeded("late by 3 us"),
    RemoteAccessError("offset 9 is past the end, 8"),
    TornRead(4096, 64),
]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_error_keeps_its_type_text_and_facts(error: L5Error, protocol: int) -> None:
    noted = copy.copy(error)
    noted.add_note("while testing")
    again = pickle.loads(pickle.dumps(noted, protocol))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.args == error.args
    assert again.__dict__ == {**error.__dict__, "__notes__": ["while testing"]}


def test_a_copy_does_not_share_notes_with_its_original() -> None:
    error = AddressError("x")
    copy.copy(error).add_note("only here")
    assert not hasattr(error, "__notes__")


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_every_error_is_ours_and_says_something(error: L5Error) -> None:
    assert isinstance(error, L5Error)
    assert len(str(error)) > 3
    assert "(" not in str(error)[:1], "a tuple of arguments is no sentence"


def test_every_class_of_the_module_has_a_sample() -> None:
    classes = {c for c in vars(_errors).values() if isinstance(c, type) and issubclass(c, L5Error)}
    assert classes == {type(error) for error in SAMPLES} | {L5Error}


@pytest.mark.parametrize(
    ("cls", "families"),
    [
        (AddressError, [L5Error, ValueError]),
        (ConnectError, [L5Error, anyio.ConnectionFailed, OSError]),
        (DeadlineExceeded, [L5Error, TimeoutError, OSError]),
        (MessageTooLarge, [LocalProtocolError, ProtocolError]),
        (RemoteProtocolError, [ProtocolError]),
        (LocalProtocolError, [ProtocolError]),
    ],
)
def test_families(cls: type[L5Error], families: list[type[Exception]]) -> None:
    assert all(issubclass(cls, family) for family in families)


def test_local_and_remote_protocol_errors_are_apart() -> None:
    assert not issubclass(RemoteProtocolError, LocalProtocolError)
    assert not issubclass(LocalProtocolError, RemoteProtocolError)


def test_connect_error_lists_each_attempt_in_order() -> None:
    error = ConnectError("l5://h:1", iter([Attempt("a", "refused"), Attempt("b", "timed out")]))
    assert str(error) == "cannot connect to l5://h:1: a: refused; b: timed out"
    assert error.attempts == (Attempt("a", "refused"), Attempt("b", "timed out"))
    assert error.errno is None


def test_facts_are_attributes() -> None:
    unavailable = TransportUnavailable("rdma", "no device")
    assert (unavailable.transport, unavailable.reason) == ("rdma", "no device")
    assert "rdma" in str(unavailable) and "no device" in str(unavailable)
    large = MessageTooLarge(5, 4)
    assert (large.size_bytes, large.limit_bytes) == (5, 4)
    failed = RequestFailed("KeyError", "'x'")
    assert (failed.remote_type, failed.remote_message) == ("KeyError", "'x'")
    assert "KeyError: 'x'" in str(failed)
    assert str(RequestFailed("KeyError", "")).endswith("KeyError")
    torn = TornRead(64, 3)
    assert (torn.offset, torn.attempts_count) == (64, 3)
    assert RemoteProtocolError("x").code == "malformed"
