"""TLS over a non-blocking socket: OpenSSL works on memory, the socket carries the records.

       plaintext                ciphertext
send ------------> SSLObject ---- outgoing ----> socket
receive <--------- SSLObject <--- incoming ----- socket
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Final, cast

from .._errors import RemoteProtocolError

if TYPE_CHECKING:
    from ..abc import Buffer

__all__ = ["TLSSocket"]

_READ_BYTES: Final = 64 * 1024
_NO_SIGNAL: Final[int] = getattr(socket, "MSG_NOSIGNAL", 0)


class TLSSocket:
    """One end of a TLS connection, with the non-blocking methods of a socket.

    `BlockingIOError` means what it means on a socket.  What `send` accepted but the socket did
    not is kept, encrypted, until `flush`.  Records that do not decrypt raise
    `RemoteProtocolError`; the end of the stream counts as such with or without a close notice,
    because the frames above say themselves what is complete.
    """

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, *, server_name: str | None
    ) -> None:
        self.socket = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
        )
        self._unsent = b""
        self._head = b""
        self.plain: bool = False
        """The peer does not speak TLS but l5 itself, and can be told so."""
        self._starved = True

    @property
    def wants_write(self) -> bool:
        """Tell whether ciphertext waits for the socket."""
        return bool(self._unsent) or self._outgoing.pending > 0

    @property
    def buffered(self) -> bool:
        """Tell whether a read may give something without asking the socket."""
        return self._object.pending() > 0 or (self._incoming.pending > 0 and not self._starved)

    def handshake(self) -> bool:
        """Go on with the handshake; False: wait for the socket (to write if `wants_write`)."""
        while True:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                if not self.flush():
                    return False
                try:
                    self._take_in()
                except BlockingIOError:
                    return False
            except ssl.SSLError:
                if self._head.startswith(b"L5"):
                    self.plain = True
                    raise RemoteProtocolError(
                        "the peer speaks l5 without TLS: one end is l5:// and the other l5s://"
                    ) from None
                self._flush_alert()
                raise
            else:
                return self.flush()

    def send(self, data: Buffer, flags: int = 0) -> int:
        """Encrypt all of `data` and send what the socket takes; refuse while a rest waits."""
        if not self.flush():
            raise BlockingIOError
        try:
            count = self._object.write(data)
        except ssl.SSLWantReadError:
            raise RemoteProtocolError("the peer wants to negotiate TLS again") from None
        self.flush()
        return count

    def flush(self) -> bool:
        """Send ciphertext; return True when none is left."""
        while True:
            if not self._unsent:
                self._unsent = self._outgoing.read()
                if not self._unsent:
                    return True
            try:
                sent = self.socket.send(self._unsent, _NO_SIGNAL)
            except BlockingIOError:
                return False
            self._unsent = self._unsent[sent:]

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """Decrypt into `buffer`; 0 is the end of the stream."""
        size = len(buffer)
        while True:
            try:
                # The buffer may be a memoryview, and what comes back is then a count.
                count = cast("int", self._object.read(size, cast("bytearray", buffer)))
            except ssl.SSLWantReadError:
                self._starved = True
                self._take_in()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0
            except ssl.SSLError as error:
                self._flush_alert()
                raise RemoteProtocolError(f"the peer sent bad TLS records: {error}") from error
            else:
                if self.wants_write:  # an answer to a key update
                    self.flush()
                return count

    def recv(self, max_bytes: int) -> bytes:
        """Return decrypted bytes; none is the end of the stream."""
        buffer = bytearray(max_bytes)
        return bytes(buffer[: self.recv_into(buffer)])

    def say_goodbye(self) -> None:
        """Send a close notice if the socket takes it now; never fails."""
        try:
            self._object.unwrap()
        except (OSError, ValueError):
            pass  # it waits for the peer's notice, which nobody will read
        self._flush_alert()

    def _take_in(self) -> None:
        data = self.socket.recv(_READ_BYTES)
        self._starved = False
        if data:
            self._head = (self._head + data)[:2]
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _flush_alert(self) -> None:
        try:
            self.flush()
        except OSError:
            pass
