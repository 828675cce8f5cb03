"""Plain messages in both directions: what a client and a connection's handler do alike."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import anyio
import anyio.lowlevel
import attrs

import l5

from ._process import Process
from ._text import DATA, LAST, Head, Incoming, Outgoing, Wrong

ENDS = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)


@attrs.define(eq=False)
class Talk:
    """One end of one connection that carries plain messages."""

    process: Process
    connection: l5.Connection
    peer: str
    rng: random.Random
    outgoing: Outgoing
    incoming: Incoming
    count: int
    """How many messages to send."""
    why: str = "cancelled"
    heard: str = "open"
    """How receiving ended: eof, last, broken, or not at all."""

    @property
    def label(self) -> str:
        """Name the connection on the board."""
        return f"{self.peer} {self.connection.transport} stream {self.outgoing.stream:#x}"

    @property
    def _is_server(self) -> bool:
        return self.process.plan.slot < len(self.process.plan.servers)

    async def run(self) -> None:
        """Send and receive everything; how it ended stands in `why` and in the log."""
        began = time.monotonic()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._send_all)
                await self._receive_all()
            self.why = "done"
        except* ENDS as errors:
            self.why = "broken"
            for error in flat(errors):
                if isinstance(error, anyio.EndOfStream):
                    self.process.wrong(f"{self.label}: EndOfStream from a send")
        except* Wrong as errors:
            self.why = "wrong"
            for error in flat(errors):
                self.process.wrong(f"{self.label}: {error}")
        finally:
            self.process.log(
                what="talk",
                stream=self.outgoing.stream,
                server=self._is_server,
                peer=self.peer,
                began=began,
                why=self.why,
                heard=self.heard,
                got=self.incoming.got,
                sure=self.outgoing.sure,
                tried=self.outgoing.tried,
                transport=self.connection.transport,
            )

    # ---- sending ---------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        rng = self.rng
        for _ in range(self.count):
            if self.process.leaving:
                break
            head = self.outgoing.next(rng)
            limit = rng.choice((0.0, 0.0005, 0.003, 0.02)) if rng.random() < 0.15 else None
            with anyio.move_on_after(limit) as scope:
                await self._send(head)
                self.outgoing.sent(head)
            if scope.cancelled_caught:
                self.process.board.count(cancelled=1)
            if rng.random() < 0.05:
                await anyio.sleep(rng.random() * 0.05)
        if rng.random() < 0.5:
            self.process.log(
                what="send_eof",
                stream=self.outgoing.stream,
                server=self._is_server,
                sure=self.outgoing.sure,
                tried=self.outgoing.tried,
            )
            with self.process.board.waiting(f"send_eof to {self.label}"):
                await self.connection.send_eof()
        else:
            head = attrs.evolve(self.outgoing.next(rng, LAST), offset=0, size=0)
            await self._send(head)
            self.outgoing.sent(head)

    async def _send(self, head: Head) -> None:
        board, text = self.process.board, self.process.text
        with board.waiting(f"send {head.number} ({head.size} B) to {self.label}"):
            way = self.rng.randrange(4)
            if way == 0:
                await self.connection.send((head.pack(), text.body(head)))
            elif way == 1:
                await self._send_in_place(head, text.message(head))
            else:
                await self.connection.send(text.message(head))
        board.count(messages=1, bytes=head.size)

    async def _send_in_place(self, head: Head, message: bytes) -> None:
        spare = self.rng.choice((0, 7))
        async with self.connection.reserve(len(message) + spare) as slot:
            with slot.view as view:
                view[: len(message)] = message
            if self.rng.random() < 0.1:
                await anyio.lowlevel.checkpoint()
            await slot.send(len(message))

    # ---- receiving -------------------------------------------------------------------------------

    async def _receive_all(self) -> None:
        rng, board = self.rng, self.process.board
        while self.heard == "open":
            limit = rng.choice((0.0, 0.001, 0.01)) if rng.random() < 0.1 else None
            try:
                with anyio.move_on_after(limit) as scope:
                    with board.waiting(f"receive {self.incoming.got + 1} from {self.label}"):
                        await self._receive()
            except anyio.EndOfStream:
                self.heard = "eof"
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                self.heard = "broken"
                raise
            if scope.cancelled_caught:
                board.count(cancelled=1)
            if rng.random() < 0.03:
                await anyio.sleep(rng.random() * 0.1)  # the sender meets a full ring

    async def _receive(self) -> None:
        if self.rng.random() < 0.3:
            async with self.connection.lease() as lease:
                with lease.view as view:
                    head = self._take(view)
        else:
            head = self._take(await self.connection.receive())
        self.process.board.count(messages=1, bytes=head.size)

    def _take(self, message: bytes | memoryview) -> Head:
        head = self.process.text.check(message, DATA)
        self.incoming.take(head)
        if head.flags & LAST:
            self.heard = "last"
        return head


def flat(group: BaseExceptionGroup) -> list[BaseException]:
    """Return the errors of a group of groups."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(flat(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found


def fork(process: Process, connection: l5.Connection, rng: random.Random) -> None:
    """Fork a child that finds the connection closed, and may outlive its parent."""
    rest = rng.random() * 2
    if os.fork():
        return
    try:
        signal.alarm(10)
        error = first_error(connection.send(b"from a child"))
        # Broken: the peer had gone before the fork.
        if not isinstance(error, anyio.ClosedResourceError | anyio.BrokenResourceError):
            process.wrong(f"after fork, send in the child gave {error!r}")
        time.sleep(rest)
    finally:
        os._exit(0)


def first_error(operation: Any) -> BaseException | None:
    """Run an operation up to where it would wait; return what it raised."""
    try:
        operation.send(None)
    except StopIteration:
        return None
    except Exception as error:
        return error
    finally:
        operation.close()
    return None
