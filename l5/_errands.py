"""What a hub is asked to do from elsewhere: by other threads, or by the end of an object."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from ._loop import current_task


class Errands:
    """A hub's part that may be used from any thread, at any moment."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._errands: deque[Callable[[], object]] = deque()

    def interrupt(self) -> None:
        """Wake the sleeping driver; `OSError` when the hub is being closed."""
        raise NotImplementedError

    def later(self, errand: Callable[[], object]) -> None:
        """Have `errand` done by the hub when it looks at its descriptors the next time, soon."""
        self._errands.append(errand)
        try:
            self.interrupt()
        except OSError:
            pass  # it has just been closed: then nobody sleeps

    def run_errands(self) -> None:
        """(In the hub's loop) do what was asked for."""
        while self._errands:
            self._errands.popleft()()

    def in_use(self) -> bool:
        """Tell whether the loop waits in here now, for messages or for news."""
        raise NotImplementedError

    def in_use_elsewhere(self) -> bool:
        """Tell whether it does so in another thread than this one, which must leave it alone."""
        return self._thread != threading.get_ident() and self.in_use()

    def caller(self) -> object:
        """Return what stands for the running task (or, without a loop, thread)."""
        return current_task()
