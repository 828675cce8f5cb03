"""What pyverbs leaves to its callers: which calls are safe, and who frees what, once.

- An SGE and a SendWR that are dropped leak, and one that is closed twice is freed twice. A pair of
  them is one `Made`, closed once: when its request is dropped, or its queue pair is closed.
- ``SendWR(sg=[sge])`` copies the SGE. To be able to change it, the copy is given up and the request
  is pointed at ours (``sg_list``), to which it keeps no reference: `Made` does.
- A post after closing would follow a null pointer: `Live` holds the bound method, and after closing
  or in a forked child one that refuses.

pyverbs' classes come in an `Api`, so that _pyverbs.py stays the only module that imports it.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import attrs

from . import verbs


@attrs.frozen
class Api:
    """The classes of pyverbs that we use, by their own names."""

    AHAttr: Any
    CQ: Any
    CompChannel: Any
    Context: Any
    GID: Any
    GlobalRoute: Any
    MR: Any
    PD: Any
    QP: Any
    QPAttr: Any
    QPCap: Any
    QPInitAttr: Any
    RecvWR: Any
    SGE: Any
    SendWR: Any
    error: type[Exception]
    get_device_list: Callable[[], Any]

    @property
    def frees_by_hand(self) -> bool:
        """Tell whether ``close`` alone frees a request: up to 64 the destructor is misspelt."""
        return hasattr(self.SGE, "__dealloc")


def code_of(error: Exception) -> int:
    """Return the errno of pyverbs' error, EIO if it knows none."""
    code = getattr(error, "error_code", 0)
    return code if isinstance(code, int) and code > 0 else errno.EIO


@contextmanager
def calling(api: Api, call: str, **more: int) -> Generator[None]:
    """Turn what pyverbs raises into our errors."""
    try:
        yield
    except api.error as error:
        raise verbs.verbs_error(call, code_of(error), **more) from error


class Live:
    """A bound method of pyverbs that may still be called; afterwards, one that refuses."""

    __slots__ = ("__weakref__", "_name", "call")

    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        self._name = name
        self.call = call
        _all_live.add(self)

    def end(self, reason: str = "it is closed") -> None:
        """Refuse from now on."""

        def refuse(*_: object) -> NoReturn:
            raise verbs.ResourceClosed(self._name, 0, reason)

        self.call = refuse


_all_live: weakref.WeakSet[Live] = weakref.WeakSet()


def _end_after_fork() -> None:
    for live in list(_all_live):
        live.end("it belongs to the process that forked this one; open the device again here")


os.register_at_fork(after_in_child=_end_after_fork)


class Made:
    """A request of pyverbs and what it points to, freed once."""

    __slots__ = ("_frees", "sge", "wr")

    def __init__(self, wr: Any, sge: Any, frees: Sequence[Any]) -> None:
        self.wr, self.sge = wr, sge
        self._frees = tuple(frees)

    def close(self) -> None:
        """Free it, unless that was done."""
        frees, self._frees = self._frees, ()
        for one in frees:
            one.close()


_forever: list[Made] = []
"""Where a newer pyverbs frees by itself it would free our SGE twice: its requests stay."""


class Maker:
    """Makes a queue pair's requests, and frees them with it."""

    def __init__(self, api: Api, pair: Any, depth: int, inline_bytes: int) -> None:
        self._api = api
        self.error = api.error
        self.depth, self.inline_bytes = depth, inline_bytes
        self.live = Live("post", pair.post_send)
        self.live_receive = Live("post a receive", pair.post_recv)
        self._made: set[Made] = set()

    def send(self, opcode: int, lkey: int) -> Made:
        """Make one for sending, pointed at an SGE that can be changed."""
        sge = self._api.SGE(0, 0, lkey)
        wr = self._api.SendWR(opcode=opcode, num_sge=1, sg=[sge], send_flags=0)
        if self._api.frees_by_hand:
            wr.close()  # the copy of the SGE that it made
        wr.sg_list = sge
        made = Made(wr, sge, (sge,) if self._api.frees_by_hand else ())
        (self._made.add if self._api.frees_by_hand else _forever.append)(made)
        return made

    def receive(self, address: int, length: int, lkey: int, wr_id: int) -> Made:
        """Make one for receiving; it keeps its own copy of the SGE."""
        sge = self._api.SGE(address, length, lkey)
        wr = self._api.RecvWR(wr_id=wr_id, num_sge=1, sg=[sge])
        if self._api.frees_by_hand:
            sge.close()
        # A length of 0 is 2 GiB to some devices.
        wr.num_sge = 1 if length else 0
        made = Made(wr, None, (wr,) if self._api.frees_by_hand else ())
        self._made.add(made)
        return made

    def keep(self, request: object, made: Sequence[Made]) -> None:
        """Free these when the request is dropped, if they were not freed before."""
        weakref.finalize(request, self.drop, made).atexit = False

    def drop(self, made: Sequence[Made]) -> None:
        """Free these."""
        for one in made:
            self._made.discard(one)
            one.close()

    def close(self) -> None:
        """Refuse to post, and free all."""
        self.live.end()
        self.live_receive.end()
        self.drop(list(self._made))

    def failed(self, error: Exception, call: str = "post") -> Exception:
        """Return our error for what a post raised."""
        return verbs.verbs_error(call, code_of(error), depth=self.depth)
