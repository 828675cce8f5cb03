"""Our requests and what became of them: one state machine, no I/O and no clock.

    open --(answer)--------------------------> answered
    open --(cancelled or late)--> abandoned --(answer)--> dropped, counted

A request keeps its place among `in_flight` until the peer has answered it, abandoned or not: so an
answer always belongs to a request that we know, and the peer's memory stays bounded by the number
of requests that it allowed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ._errors import DeadlineExceeded, RemoteProtocolError, RequestFailed

if TYPE_CHECKING:
    from ._latency import Watch
    from ._many import Flight
    from ._wait import Waiter

DEADLINE_TYPE = "DeadlineExceeded"
NO_PIECES: deque[bytes] = deque(maxlen=0)
"""Of all requests that are not streamed."""


class Request:
    """One request of ours."""

    # Defaults of the class, not set for each request: most requests never change them.
    done: bool = False
    abandoned: bool = False
    reply: bytes | None = None
    error: Exception | None = None
    consumed_bytes: int = 0
    """(Streaming) bytes that the application has taken."""
    arrived_bytes: int = 0
    allowed_bytes: int = 0
    begun_ns: int = 0
    """When it was sent, if somebody watches."""

    def __init__(self, id: int, waiter: Waiter, streaming: bool = False) -> None:
        self.id: int = id
        self.waiter: Waiter = waiter
        self.streaming: bool = streaming
        self.pieces: deque[bytes] = deque() if streaming else NO_PIECES

    def result(self) -> bytes:
        """Return the answer of a request that is done, or raise what came instead."""
        if self.error is not None:
            raise self.error.with_traceback(None)  # many may share it
        assert self.reply is not None
        return self.reply


class RequestTable:
    """The requests without an answer, by id."""

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}
        self.flights: list[Flight] = []
        """Some may have requests without an answer, too."""
        self.late_answers: int = 0
        self.watch: Watch | None = None

    def __len__(self) -> int:
        return len(self._requests)

    def open(
        self, id: int, waiter: Waiter, *, streaming: bool = False, sent: bool = False
    ) -> Request:
        """Note a request that has just been sent, or is about to be."""
        return self.note(Request(id, waiter, streaming), sent=sent)

    def note(self, request: Request, *, sent: bool = False) -> Request:
        """Do what `open` does, with a request that is there already."""
        if self.watch is not None:
            request.begun_ns = self.watch.begun_ns if sent else self.watch.begin()
        self._requests[request.id] = request
        return request

    def forget(self, request: Request) -> None:
        """Take back a request that was never sent whole: no answer is owed."""
        self._requests.pop(request.id, None)

    def get(self, id: int) -> Request:
        """Return the request that a frame names; `RemoteProtocolError` if there is none."""
        request = self._requests.get(id)
        if request is None and self.flights:
            self._scatter()
            request = self._requests.get(id)
        if request is None:
            raise RemoteProtocolError(f"the peer answered request {id}, which has no answer open")
        return request

    def abandon(self, request: Request) -> bool:
        """Lose interest; return True if the peer should be told."""
        if request.done or request.abandoned or request.id not in self._requests:
            return False
        request.abandoned = True
        request.pieces.clear()
        return True

    def answer(self, id: int, reply: bytes) -> None:
        """Note the whole answer (or, streaming, its last piece)."""
        request = self._close(id)
        if request is None:
            return
        if request.streaming:
            request.pieces.append(reply)
        else:
            request.reply = reply
        request.waiter.wake()

    def complete(self, id: int, reply: bytes) -> None:
        """Note the whole answer of a request that is waited for, without a word to who waits."""
        request = self._requests.pop(id)
        request.done, request.reply = True, reply
        if self.watch is not None and request.begun_ns:
            self.watch.end(request.begun_ns)

    def settle(self, id: int, reply: bytes) -> bool:
        """Note the whole answer of a usual request; False: streamed, abandoned, or not ours."""
        request = self._requests.get(id)
        if request is None or request.streaming or request.abandoned:
            return False
        self.complete(id, reply)
        request.waiter.wake()
        return True

    def fail(self, id: int, remote_type: str, remote_message: str) -> None:
        """Note that the peer answered with an error."""
        request = self._close(id)
        if request is None:
            return
        if remote_type == DEADLINE_TYPE:
            request.error = DeadlineExceeded()
        else:
            request.error = RequestFailed(remote_type, remote_message)
        request.waiter.wake()

    def _close(self, id: int) -> Request | None:
        request = self.get(id)
        del self._requests[id]
        request.done = True
        if self.watch is not None and request.begun_ns:
            self.watch.end(request.begun_ns)
        if request.abandoned:
            self.late_answers += 1
            return None
        return request

    def _scatter(self) -> None:
        for flight in self.flights:
            flight.scatter()
        self.flights.clear()

    def fail_all(self, error: Exception) -> None:
        """End every request with `error`: the connection is gone."""
        self._scatter()
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.done = True
            if request.error is None and request.reply is None:
                request.error = error
            request.waiter.wake()
