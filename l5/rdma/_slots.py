"""Counting the slots of a send queue: one place, above all backends.

A device frees the slot of a request only when the completion of that request, or of a *later* one,
was polled. Soft-RoCE frees them earlier and so hides the mistake. So we count, and ask for a
completion (SIGNALED) at least once per half of the queue. Then there is always one to wait for:

    posted     ----+----+----S----+----+----+----S----+---->        S: signalled
    completed  ..............^ all up to here are free, its completion was polled
    tail                                         ^---- unsignalled, at most half of the queue

A batch takes at most half of the queue too, so a full queue has a signalled request in it: polling
makes room, always.

Where the C core is, `SendSlots` makes its twin in C (l5/native/_verbs_slots.c), because counting in
Python costs more than the post that is counted; a test holds the two against each other.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from typing import Any, Self

import attrs

from .. import native
from ._constants import SIGNALED
from ._errors import ResourceClosed, SendQueueFull, verbs_error
from ._values import Completion


def _error_for(call: str, code: int, depth: int) -> Exception:
    return verbs_error(call, code, depth=depth)


def _refusal_for(call: str, why: str) -> Exception:
    return ResourceClosed(call, 0, why)


def _twin() -> Any:
    if not native.available:
        return None
    from .._fast import SendSlots, set_verbs

    set_verbs(Completion, _error_for, _refusal_for)
    return SendSlots


_in_c: Any = _twin()


@attrs.define(eq=False)
class SendSlots:
    """Who may post how much to one send queue of `depth` slots.

    `posted` and `completed` count requests since the beginning: what was posted up to a value of
    `posted` is done, and its memory free again, when `completed` reached that value.
    """

    depth: int = attrs.field(validator=attrs.validators.ge(2))
    posted: int = attrs.field(default=0, init=False)
    completed: int = attrs.field(default=0, init=False)
    signalled: int = attrs.field(default=0, init=False)  # completions asked for
    _tail: int = attrs.field(default=0, init=False)  # unsignalled requests at the end
    _marks: deque[int] = attrs.field(factory=deque[int], init=False)
    _closed: str = attrs.field(default="", init=False)
    _most: int = attrs.field(init=False)
    _half: int = attrs.field(init=False)

    def __new__(cls, depth: int) -> Self:
        """Make the twin in C, if there is one."""
        return object.__new__(cls) if _in_c is None else _in_c(depth)

    def __attrs_post_init__(self) -> None:
        self._most = self.depth
        self._half = self.depth // 2
        _all_slots.add(self)

    @property
    def batch_max(self) -> int:
        """Say how many requests may be taken at once."""
        return self.depth // 2

    @property
    def outstanding(self) -> int:
        """Say how many requests are not known to be done."""
        return self.posted - self.completed

    @property
    def free(self) -> int:
        """Say how many requests may be posted now."""
        return max(0, self._most - (self.posted - self.completed))

    @property
    def closed(self) -> str:
        """Say why nothing more may be posted; empty if it may."""
        return self._closed

    def take(self, count: int = 1, flags: int = 0) -> int:
        """Take `count` slots and return the flags for the *last* of these requests.

        The flags are `flags`, with SIGNALED added where it is due. The requests before the last
        must be posted unsignalled, and all of them must be posted, in one go.

        :raises SendQueueFull: there are not that many; poll, tell `done`, and take again.
        :raises ResourceClosed: the queue pair is dead, or this process is a fork.
        :raises ValueError: more than `batch_max` at once.
        """
        if not 0 < count <= self._half:
            raise ValueError(f"take 1 to {self._half} slots at once, not {count}")
        posted = self.posted + count
        if posted - self.completed > self._most:
            raise self._refusal()
        if flags & SIGNALED or self._tail + count >= self._half:
            self.posted = posted
            self._tail = 0
            self.signalled += 1
            self._marks.append(posted)
            return flags | SIGNALED
        self.posted = posted
        self._tail += count
        return flags

    def done(self, count: int = 1) -> None:
        """Note that `count` successful completions of this send queue were polled."""
        for _ in range(count):
            self.completed = self._marks.popleft()

    def close(self, reason: str) -> None:
        """Refuse further posts: the queue pair is in error, or closed."""
        self._closed = self._closed or reason
        self._most = -1

    def _refusal(self) -> Exception:
        if self._closed:
            return ResourceClosed("post", 0, self._closed)
        return SendQueueFull(self.depth)


_all_slots: weakref.WeakSet[SendSlots] = weakref.WeakSet()


def _close_after_fork() -> None:
    # A child's posts would fail at best, and reach the parent's device at worst. Refusing them here
    # costs the parent nothing.
    for slots in list(_all_slots):
        slots.close("it belongs to the process that forked this one; open the device again here")


os.register_at_fork(after_in_child=_close_after_fork)
