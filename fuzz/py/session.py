"""A session against a peer that sends any frames: it answers, or breaks with the error for that.

The channel is a list: what a transport would have let through (sound headers, sizes within what was
agreed) comes out of `try_receive`, in any order. Memory that the session holds for the peer has to
stay within what it granted.
"""

from types import SimpleNamespace
from typing import Any

import anyio

from l5._errors import RemoteProtocolError
from l5._flow import Budget
from l5._frames import Kind, check_header, pack_header, parse_header
from l5._hello import Limits
from l5._options import Options
from l5._session import Session
from l5._transmit import start_request

from ._steps import Steps

LIMITS = Limits(
    max_message_bytes=3000,
    segment_bytes=512,
    data_window_bytes=1500,
    credit_bytes=700,
    in_flight_max=3,
)
BUDGET = 4000
Frame = tuple[int, int, int, bytes]


class _Channel:
    """What a session needs of a channel; it takes no more than a few frames that nobody reads."""

    transport = "fuzz"
    frame_limit = 512
    wants_write = False

    def __init__(self) -> None:
        self.arriving: list[Frame] = []
        self.sent: list[Frame] = []
        self.room = 8
        self.closed = False

    def fileno(self) -> int:
        return -1

    def try_receive(self) -> Frame | None:
        assert not self.closed, "received on a closed channel"
        return self.arriving.pop(0) if self.arriving else None

    def try_send(self, kind: int, flags: int, id: int, payload: bytes) -> bool:
        assert not self.closed, "sent on a closed channel"
        check_header(len(payload), kind, flags, 16384)  # what we send has to be sound as well
        if len(self.sent) >= self.room and kind != Kind.CLOSE:
            return False
        self.sent.append((kind, flags, id, bytes(payload)))
        return True

    def flush(self) -> bool:
        return True

    def arm(self, *, space: bool) -> bool:
        del space
        return not self.arriving

    def close(self) -> None:
        self.closed = True


class _Hub:
    """What a session needs of its hub."""

    streak = 0
    turn_frames = 64

    def attach(self, session: Session) -> None: ...

    def detach(self, session: Session) -> None: ...

    def touch(self, session: Session) -> None: ...


class _Server:
    """Handlers that answer later, or never."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, bytes, int | None]] = []
        self.cancelled: list[int] = []
        self.ended = False

    def on_request(self, session: Session, id: int, message: bytes, deadline: int | None) -> None:
        del session
        assert len(message) <= LIMITS.max_message_bytes
        self.asked.append((id, message, deadline))

    def on_cancel(self, session: Session, id: int) -> None:
        del session
        self.cancelled.append(id)

    def on_end(self, session: Session) -> None:
        assert session.state != "OPEN"
        self.ended = True


class _World:
    def __init__(self, server: bool) -> None:
        self.channel = _Channel()
        self.server = _Server() if server else None
        self.budget = Budget(BUDGET)
        made: Any = SimpleNamespace(
            channel=self.channel, sends=LIMITS, takes=LIMITS, watched=(), report=None,
            peer=SimpleNamespace(address="a peer that may send anything"),
        )  # fmt: skip
        hub: Any = _Hub()
        handlers: Any = self.server
        self.session = Session(hub, made, Options.from_mapping({}), self.budget, handlers)

    def peer_sends(self, steps: Steps) -> None:
        kind, flags, id = 1 + steps.number() % 9, steps.number(), steps.number() % 6
        payload = steps.take(steps.number())
        payload += bytes(2 * steps.number() if flags & 64 else 0)
        if kind == Kind.CREDIT:
            payload = payload[:8].ljust(8, b"\0")
        elif kind == Kind.HEARTBEAT:
            payload = bytes(12)
        elif kind in (Kind.CANCEL, Kind.CLOSE, Kind.ABORT):
            payload = b""
        try:  # what a transport would not let through does not come this far
            header = parse_header(pack_header(len(payload), kind, flags & 7, id), 0, 512)
        except RemoteProtocolError:
            return
        self.channel.arriving.append((int(header.kind), int(header.flags), id, payload))

    def we_ask(self, steps: Steps) -> None:
        how = steps.number()
        if self.session.state != "OPEN" or self.server is not None:
            return
        id = start_request(self.session, b"question")
        if id is not None:
            waiter: Any = SimpleNamespace(wake=lambda: None)
            request = self.session.requests.open(id, waiter, streaming=bool(how & 1))
            request.allowed_bytes = LIMITS.credit_bytes
            if how & 2:
                self.session.requests.abandon(request)

    def we_take(self) -> None:
        if self.session.inbox:
            self.session.window.data_taken(len(self.session.inbox.popleft()))

    def we_answer(self) -> None:
        if self.server is not None and self.server.asked and self.session.state == "OPEN":
            self.session.reply_error(self.server.asked.pop(0)[0], "LookupError", "nothing there")

    def check(self) -> None:
        session = self.session
        error = session.error
        if session.state == "OPEN":
            assert error is None and not self.channel.closed
        else:
            said = isinstance(error, anyio.BrokenResourceError) and "and says: " in str(error)
            assert said or isinstance(error, RemoteProtocolError | anyio.EndOfStream), repr(error)
            assert str(error) or isinstance(error, anyio.EndOfStream)
            assert not len(session.reassembly) and self.channel.closed
            assert self.server is None or self.server.ended
        assert self.budget.used_bytes <= BUDGET + LIMITS.max_message_bytes
        assert sum(map(len, session.inbox)) <= LIMITS.data_window_bytes + LIMITS.max_message_bytes
        assert len(session.partial_requests) <= LIMITS.in_flight_max
        assert 0 <= session.window.in_flight <= LIMITS.in_flight_max
        if self.server is not None:
            assert len(self.server.asked) <= LIMITS.in_flight_max


def one_input(data: bytes) -> None:
    steps = Steps(data)
    world = _World(server=bool(steps.number() & 1))
    while steps:
        match steps.number() % 8:
            case 0 | 1 | 2:
                world.peer_sends(steps)
            case 3:
                world.session.on_ready()
            case 4:
                world.we_ask(steps)
            case 5:
                world.we_take()
            case 6:
                world.we_answer()
            case _:
                world.channel.sent.clear()
                world.session.flush_control()
        world.check()
    world.session.on_ready()
    world.check()
    world.session.close()
    assert world.channel.closed and world.budget.used_bytes == 0
