"""How a batch is divided: by what a row has been found to take, on either side.

No I/O and no clock.  What is tried here begins with one row and has eight times as many each time
until a part takes long enough: what a part takes whatever its size would count as the row's.
"""

from __future__ import annotations

import attrs

TURN_S = 0.5e-3
"""So long is searched here, about, before the server's answers are looked for."""
PART_S = 1e-3
"""The server is asked for its whole share in one where it needs no longer for it."""
LEAST_S = 150e-6
"""So long the server works on a part, at least: to ask takes about as long."""
SHARING_S = 400e-6
"""What it costs to share a batch: tasks, a request, and to look for its answer."""
WORTH_IT = 0.8
"""A batch is shared where that takes no more than so much of what the better side takes alone: who
would do less than a fifth of it costs the other one nearly as much."""
UNKNOWN = 3
"""A server that is not known yet gets this fraction of what is left."""
UNKNOWN_ROWS = 256
ASKED_ROWS = 4096
SURE_S = 0.1e-3
"""A part that takes so long tells what rows take; what it takes anyway is less."""
LONG_S = 0.4e-3
"""One row that takes so long tells enough; less may be a process that was not running."""
GROWS = 8
FORGOTTEN = 1.0 / 16.0
TRIED_AFTER_S, TRIED_AFTER_MAX_S = 0.01, 0.64
"""A side that is not worth it is tried again after so long, and after twice as long each time."""


@attrs.define(eq=False)
class Pace:
    """Rows and seconds of the last parts of one side; the older they are the less they count.

    Sums, and no average of what each took for a row: a server that has used up a quota answers a
    few parts late, and nearly all its time is in those.
    """

    seconds: float = 0.0
    rows: float = 0.0

    def note(self, seconds: float, rows: int) -> None:
        """Take note of a part; no rows: so long was waited for one in vain.

        What a part takes whatever its size tells little of one that is larger than all before.
        """
        keep = 0.0 if rows > self.rows else 1.0 - FORGOTTEN
        self.seconds = self.seconds * keep + seconds
        self.rows = self.rows * keep + rows

    @property
    def row_s(self) -> float:
        """What a row takes; 0: not known."""
        return self.seconds / self.rows if self.rows else 0.0


@attrs.define(eq=False)
class Paces:
    """How fast both sides are."""

    ours: Pace = attrs.field(factory=Pace)
    theirs: Pace = attrs.field(factory=Pace)
    at_once: int = 1
    """Rows that are best searched here together."""
    trial: Pace | None = None
    """The one that is to have some rows of the batch, worth it or not."""
    tried_at: float = 0.0
    tried_after_s: float = TRIED_AFTER_S
    _next: int = 1
    """(While ours is tried) rows of its next part."""

    def __attrs_post_init__(self) -> None:
        if not self.ours.rows:
            self.trial = self.ours

    def note_ours(self, seconds: float, rows: int) -> None:
        """Take note of what was searched here."""
        self.ours.note(seconds, rows)
        if self.trial is self.ours:
            self._next = rows * GROWS
            if seconds >= (SURE_S if rows >= GROWS else LONG_S):
                self.trial = None

    def turn_rows(self) -> int:
        """Return how many rows are searched here before there is a look at the server's answers."""
        if self.trial is self.ours:
            return min(self._next, ASKED_ROWS)
        ours_s = self.ours.row_s
        return max(1, self.at_once, min(int(TURN_S / ours_s), ASKED_ROWS)) if ours_s else 1

    def theirs_of(self, count: int) -> float:
        """Return how many of so many rows are the server's; both are known."""
        ours_s, theirs_s = self.ours.row_s, self.theirs.row_s
        return count * ours_s / (theirs_s + ours_s)

    def here(self, left: int, under_way: int) -> int:
        """Return how many of the rows that are left are to be searched here next.

        The server has some `under_way`.
        """
        if not self.ours.row_s or not self.theirs.row_s:
            return min(left, self.turn_rows())
        if self.trial is self.ours:
            return 0  # it is tried with what the server has: that costs nobody any time
        both = left + under_way
        ours = both - self.theirs_of(both)
        return 0 if self._little(ours, both) else min(int(ours), left, self.turn_rows())

    def there(self, left: int, under_way: int) -> int:
        """Return for how many of them the server is to be asked next; 0: for none any more."""
        ours_s, theirs_s = self.ours.row_s, self.theirs.row_s
        if not left:
            return 0
        if not ours_s or not theirs_s:
            return max(1, min(left // UNKNOWN, UNKNOWN_ROWS))
        both = left + under_way
        theirs = self.theirs_of(both)
        if self._little(both - theirs, both) or self.trial is self.ours:
            theirs = both
        count = theirs - under_way
        if self.trial is self.theirs:
            # Many: what a request takes anyway is not the rows', and what is late is taken over.
            count, self.trial = max(UNKNOWN_ROWS, left // 2), None
        elif self._little(theirs, both) or (count * theirs_s < LEAST_S and theirs < both):
            return 0
        elif count * theirs_s > PART_S and self.trial is not self.ours:
            count = max(count / 2.0, PART_S / theirs_s)
        return min(left, max(1, int(count)), ASKED_ROWS)

    @staticmethod
    def _little(rows: float, of: int) -> bool:
        """Tell whether a share is not worth it, or no row."""
        return rows < 1.0 or rows < of * (0.99 - WORTH_IT)

    def alone(self, count: int, now: float) -> Pace | None:
        """Return whose all of a batch is better; None: it is worth sharing, or to find that out."""
        ours_s, theirs_s = self.ours.row_s, self.theirs.row_s
        if not ours_s or not theirs_s or self.trial:
            return None
        best_s = count * min(ours_s, theirs_s)
        if count * ours_s * theirs_s / (ours_s + theirs_s) + SHARING_S < best_s * WORTH_IT:
            self.tried_after_s = TRIED_AFTER_S
            return None
        better, other = self.ours, self.theirs
        if theirs_s < ours_s:
            better, other = other, better
        if now - self.tried_at > self.tried_after_s:
            self.tried_at, self.trial, self._next = now, other, 1
            self.tried_after_s = min(2.0 * self.tried_after_s, TRIED_AFTER_MAX_S)
            return None
        return better
