"""The handshake's messages: whole, in pieces, with an end; and written back."""

from l5._errors import LocalProtocolError, RemoteProtocolError
from l5._hello import (
    MAX_HELLO_BYTES,
    Attach,
    ClientHello,
    Hello,
    HelloReader,
    ServerHello,
    agree,
    check_rendezvous,
    encode,
    expect,
    negotiate_version,
)

Outcome = tuple[list[Hello], str | None, bytes]


def _read(pieces: list[bytes]) -> Outcome:
    """Return the messages, the error that came then, and what was left."""
    reader, messages = HelloReader(), list[Hello]()
    try:
        for piece in pieces:
            reader.feed(piece)
            while (message := reader.next()) is not None:
                messages.append(message)
            assert reader.needed_bytes() > 0
            assert len(reader.trailing) < MAX_HELLO_BYTES + 8
    except RemoteProtocolError as error:
        _stays(reader, error)
        return messages, str(error), b""
    return messages, None, reader.trailing


def _stays(reader: HelloReader, error: RemoteProtocolError) -> None:
    reader.feed(b"L5")
    for again in (reader.next, reader.needed_bytes, reader.feed_eof):
        try:
            again()
        except RemoteProtocolError as same:
            assert str(same) == str(error) and str(error).isprintable()
        else:
            raise AssertionError("an error was forgotten")


def _exactly(data: bytes) -> None:
    """As the bootstrap reads: never a byte more than is needed."""
    reader, at = HelloReader(), 0
    try:
        while True:
            needed = reader.needed_bytes()
            if needed == 0:
                break
            if at + needed > len(data):
                reader.feed(data[at:])
                reader.feed_eof()
                return
            reader.feed(data[at : at + needed])
            at += needed
        assert reader.next() is not None
        assert reader.trailing == b""
    except RemoteProtocolError as error:
        assert str(error)


def _use(message: Hello) -> None:
    """What both ends do with a message, which is still a stranger's."""
    try:
        again = encode(message)
    except LocalProtocolError as error:  # it was readable, so it has to be writable
        raise AssertionError(f"{message!r}: {error}") from error
    assert _read([again]) == ([message], None, b"")
    for kind in (ClientHello, ServerHello, Attach):
        try:
            expect(message, kind)
        except RemoteProtocolError as error:
            assert str(error).isprintable()
    try:
        if isinstance(message, ClientHello | ServerHello):
            agree(message.limits, message.limits)
        if isinstance(message, ClientHello):
            negotiate_version(message.versions)
        elif isinstance(message, ServerHello):
            check_rendezvous(message.rendezvous or "")
    except RemoteProtocolError as error:
        assert str(error).isprintable()


def one_input(data: bytes) -> None:
    cut, data = data[:1], data[1:]
    at = (cut or b"\0")[0]
    whole = _read([data])
    pieces = _read([data[:at], data[at:]])
    # Of another protocol less may be there to tell which: the text may differ, not the outcome.
    assert (pieces[0], pieces[1] is None, pieces[2]) == (whole[0], whole[1] is None, whole[2])
    _exactly(data)
    for message in whole[0]:
        _use(message)
