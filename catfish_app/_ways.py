"""Who searches, the server or its client, as a policy says; and how the searches went.

What `OffloadingClient` and that of `catfish_app.blocking` have in common: no I/O, no waiting.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, get_args

import attrs

import l5
from catfish_app._requests import Mode

_SERVER = l5.Path.SERVER
NOTHING = float("inf")
"""The latency of a request that came to nothing."""
HEARTBEAT_S = 0.010
_ASKED = frozenset(("tcp", "tls", "unix", "inproc"))
"""Transports over which the server's event loop reads its memory for the client."""


@attrs.frozen
class SearchReport:
    """How one search went."""

    path: l5.Path
    """Who answered it."""
    latency_s: float
    retries: int
    """Attempts of this client that writers disturbed."""
    disturbed: bool
    """This client gave up, and the server was asked."""


@attrs.frozen
class OffloadStatistics:
    """How the searches of one client went."""

    server: int
    """Searches that the server answered."""
    client: int
    """Searches that this client answered."""
    disturbed: int
    """Searches that this client gave up, which the server then answered."""
    retries: int
    """Attempts that writers disturbed."""
    one_sided: bool | None
    """Whether reads go to the server's memory without the server; None: nothing was read."""
    reason: str
    """Why the client does not search, or not any more; empty if it may."""


def check_mode(mode: str) -> None:
    """Raise `ValueError` for what is no mode."""
    if mode not in get_args(Mode):
        raise ValueError(f"mode is {mode!r}; it can be adaptive, server or client")


def not_worth_it(transport: str) -> str:
    return f"over {transport} the server's memory is read by the server, which may as well search"


class Ways:
    """What a client that can search by itself knows of both ways; it has a `_tree` there."""

    mode: Mode
    _tree: Any = None
    """The tree in the server's memory, with `retries` and its `region`, once it is open."""

    def _begin(
        self, transport: str, heartbeat: l5.Heartbeat, mode: Mode, policy: l5.OffloadPolicy | None
    ) -> None:
        check_mode(mode)
        self.mode = mode
        self._heartbeat = heartbeat
        self._heard = 0
        self._policy = policy or self._usual(mode)
        self._ask_policy, self._observe = self._policy.choose, self._policy.observe
        self._saves_server = mode == "adaptive" and policy is None  # reading for us is work as well
        self._reason = ""
        if self._saves_server and transport in _ASKED:
            self._reason = not_worth_it(transport)
        self._server_count = self._client_count = self._disturbed = 0
        self._last: tuple[l5.Path, float, int, bool] | float | None = None

    def _usual(self, mode: str) -> l5.OffloadPolicy:
        """Return the policy of a mode."""
        if mode == "server":
            return l5.AlwaysServer()
        if mode == "client":
            return l5.AlwaysClient()
        return l5.AdaptivePolicy(interval_s=self._heartbeat.interval_s or HEARTBEAT_S)

    # ---- what happened ---------------------------------------------------------------------------

    @property
    def policy(self) -> l5.OffloadPolicy:
        """What decides who searches."""
        return self._policy

    @property
    def last_search(self) -> SearchReport | None:
        """How the search went that ended last; None before the first."""
        last = self._last
        if last is None or isinstance(last, tuple):
            return None if last is None else SearchReport(*last)
        return SearchReport(_SERVER, last, 0, False)

    def statistics(self) -> OffloadStatistics:
        """Return how the searches went so far."""
        tree = self._tree
        return OffloadStatistics(
            server=self._server_count,
            client=self._client_count,
            disturbed=self._disturbed,
            retries=0 if tree is None else tree.retries,
            one_sided=None if tree is None else tree.region.one_sided,
            reason=self._reason,
        )

    # ---- each search -----------------------------------------------------------------------------

    def _choose(self, now: float) -> l5.Path:
        if self._reason:
            return _SERVER
        sequence = self._heartbeat.sequence
        if sequence != self._heard:
            self._hear(sequence, now)
        return self._ask_policy(now)

    def _hear(self, sequence: int, now: float) -> None:
        self._heard = sequence
        self._policy.heartbeat(self._heartbeat.busy_share, sequence, now)

    def _note_served(self, began: float, given_up: int | None, searches: int) -> float:
        """Count answers of the server's; the time.

        The client has `given_up` after so many attempts of its own, if writers are why.
        """
        now = perf_counter()
        self._server_count += searches
        took_s = now - began
        self._last = took_s if given_up is None else (_SERVER, took_s, given_up, True)
        return now

    def _lose(self, error: l5.RemoteAccessError) -> None:
        """The memory is gone: revoked, or with its server."""
        self._tree = None
        if self.mode == "client":
            raise error
        self._reason = str(error)
