"""What every verbs resource has: an order of closing, and a guard against use after fork."""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from ._errors import ResourceBusy, ResourceClosed


class Resource(ABC):
    """Something to close, after all that was made from it and before what it was made of.

    The order is checked here, for all backends: a device's own answer to the wrong order is
    anything from EBUSY to a call that never returns. Nothing is left to the garbage collector.
    """

    what = "resource"

    def __init__(self, *parents: Resource) -> None:
        for parent in parents:
            parent.check_open()
        self._parents = parents
        self._children: weakref.WeakSet[Resource] = weakref.WeakSet()
        self._closed = False
        self._pid = os.getpid()
        for parent in parents:
            parent._children.add(self)

    @property
    def closed(self) -> bool:
        """Tell whether `close` was called."""
        return self._closed

    def check_open(self) -> None:
        """Raise unless it can be used here.

        :raises ResourceClosed: it was closed, or belongs to the process that forked this one.
        """
        if self._closed:
            raise ResourceClosed(f"use the {self.what}", 0, "it is closed")
        if self._pid != os.getpid():
            raise ResourceClosed(
                f"use the {self.what}",
                0,
                "it belongs to the process that forked this one",
                "open the device again in the child",
            )

    def close(self) -> None:
        """Close it. Closing again, or in a forked child, does nothing.

        :raises ResourceBusy: what was made from it is still open; this stays open, too.
        """
        if self._closed:
            return
        if self._pid != os.getpid():
            self._closed = True  # the parent owns it
            return
        still_open = sorted(child.what for child in self._children if not child._closed)
        if still_open:
            raise ResourceBusy(
                f"close the {self.what}",
                0,
                f"still open: {', '.join(still_open)}",
                "close that first",
            )
        self._release()
        self._closed = True
        for parent in self._parents:
            parent._children.discard(self)

    @abstractmethod
    def _release(self) -> None:
        """Give it back to the device; nothing that was made from it is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
