"""The usual sleep of a client: one request is out, nothing else is to be done, its answer is next.

`Hub.park` and what it calls look after everything that may wait in an event loop.  A client that
does not spin, or has spun in vain, mostly needs nothing of that: its ring is the only one that is
not armed, nobody else drives, and what rings its bell is the answer.  Then a sleep costs three
calls into C (send and look; arm; take) and one trip of the event loop.  Over a plain socket it is
the same without arming.  Whatever is not as usual, before or after, is left to `park`, which finds
everything as it would be without a doze: no driver, and the ring among the unarmed.

Processor time is what counts here: where many processes share few processors, each wakes up to
cold caches, and every line of Python that it runs costs two to three times as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._frames import Kind
from ._unwoken import PARKS_MAX

if TYPE_CHECKING:
    from ._waiter import TaskRequest

SHORTCUTS_MAX = 16
"""Wake-ups in a row at which only the sleeper's own ring or socket is looked at."""

PARKS_MASK = PARKS_MAX - 1


class Dozing:
    """A hub's part; see the module's docstring."""

    _shortcuts: int = 0

    async def doze(self: Any, session: Any, request: TaskRequest) -> None:
        """Sleep for the answer to a request that was just sent, if that is all there is to do.

        May return without the answer: then `park`.  Cancelled, the request is abandoned.
        """
        unarmed, short = self._unarmed, session.short
        if (
            self._driver is not None
            or self.polled
            or self.napping
            or self.owing
            or self.beats is not None
            or session.state != "OPEN"
            or session._control
            or (unarmed and (len(unarmed) > 1 or session not in unarmed))
            or not self._parks + 1 & PARKS_MASK
            or not short.rest()
        ):
            return
        self._parks += 1
        self._driver = request
        request.asleep_in = self
        unarmed.discard(session)
        try:
            await self._descriptor.readable()
        except BaseException:
            self._woken(session, request)
            if session.requests.abandon(request):
                session.post(Kind.CANCEL, 0, request.id)
            raise
        self._woken(session, request)
        self.streak = 0
        self._shortcuts += 1
        if request.reply is None or self._shortcuts > SHORTCUTS_MAX:
            self._shortcuts = 0
            self.poll_events()

    def _woken(self: Any, session: Any, request: TaskRequest) -> None:
        """Take the answer if it is what has come, and leave all as it would be without a doze."""
        self._driver = request.asleep_in = None
        if session.ring is not None:
            self._unarmed.add(session)  # its bell has been taken, or will be
        if request.done:  # another task has looked, and found it: what comes now is not for us
            self._breathed()
        else:
            try:
                reply = session.short.rested(request.id)
            except Exception as error:  # what was read is lost
                session.fail(error)
            else:
                if type(reply) is bytes:
                    session.requests.complete(request.id, reply)
                    if session.patient:
                        session.wake_patient()
        if self._parked:
            self._hand_over()
        if not self._endpoints:
            self._close_if_unused()
