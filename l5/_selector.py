"""Which transport a new connection upgrades to: a pure function over the facts, with reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from l5._hello import Offer

SOCKETS = frozenset({"tcp", "unix", "inproc"})
"""Transports that a connection begins on: chosen by staying there."""

SAME_HOST_ONLY = frozenset({"shm"})
UNDER_TLS = frozenset({"shm"})
"""What may take over from TLS: what cannot leave the host that both ends have proved to be on."""

DEFAULT_ORDER = ("shm", "rdma")
_REASON_CHARS_MAX = 200


@attrs.frozen
class Choice:
    """What the server chose; ``transport`` None stays on the socket."""

    transport: str | None
    declined: Mapping[str, str] = attrs.field(hash=False)
    """Why not, for every other transport that either end has."""


def choose(
    offers: Sequence[Offer],
    usable: Mapping[str, str | None],
    preference: Sequence[str] | None,
    demanded: str | None,
    same_host: bool,
    tls: bool,
) -> Choice:
    """Choose among the client's offers (its best first), as the server.

    ``usable`` maps each transport that the server has to None, or to the reason why it cannot be
    used. ``preference`` are the transports that the server allows, best first; None follows the
    client's order. The name of a socket in it means to stay there rather than to take what follows.
    """
    offered = list(dict.fromkeys(offer.transport for offer in offers))
    declined: dict[str, str] = {}
    chosen: str | None = None
    settled = False
    for name in _ranked(offered, preference):
        if name in SOCKETS:
            settled = True
            continue
        reason = _obstacle(name, usable, preference, demanded, same_host, tls)
        if reason is None and settled:
            reason = f"{chosen or 'the socket'} is preferred"
        if reason is None:
            chosen, settled = name, True
        else:
            declined[name] = reason[:_REASON_CHARS_MAX]
    for name, reason in usable.items():
        if name not in SOCKETS and name not in offered:
            declined[name] = (reason or "the client did not offer it")[:_REASON_CHARS_MAX]
    return Choice(chosen, declined)


def _ranked(offered: Sequence[str], preference: Sequence[str] | None) -> list[str]:
    if preference is None:
        return list(offered)
    named = dict.fromkeys(preference)
    wanted = [name for name in named if name in offered or name in SOCKETS]
    return wanted + [name for name in offered if name not in wanted]


def _obstacle(
    name: str,
    usable: Mapping[str, str | None],
    preference: Sequence[str] | None,
    demanded: str | None,
    same_host: bool,
    tls: bool,
) -> str | None:
    if demanded is not None and name != demanded:
        return f"{demanded} is demanded"
    if preference is not None and name not in preference:
        return f"the server allows only {', '.join(preference)}"
    if name not in usable:
        return "the server does not have it"
    if usable[name] is not None:
        return f"at the server: {usable[name]}"
    if tls and name not in UNDER_TLS:
        return "a TLS connection upgrades to memory of its own host only"
    if name in SAME_HOST_ONLY and not same_host:
        return "the two ends are on different hosts or in different network namespaces"
    return None


def rank(names: Sequence[str], preference: Sequence[str] | None) -> list[str]:
    """Put a client's upgrades in the order in which it offers them; drop what it does not want.

    The name of a socket in ``preference`` means that nothing after it is wanted.
    """
    upgrades = [name for name in names if name not in SOCKETS]
    if preference is None:
        first = [name for name in DEFAULT_ORDER if name in upgrades]
        return first + sorted(name for name in upgrades if name not in first)
    wanted: list[str] = []
    for name in preference:
        if name in SOCKETS:
            break
        if name in upgrades:
            wanted.append(name)
    return wanted


@attrs.frozen
class UpgradeReport:
    """Which transport a connection uses, and why each other is not used."""

    transport: str
    bootstrap: str
    reasons: Mapping[str, str] = attrs.field(factory=dict[str, str], hash=False)
    mode: str = ""
    """How RDMA tells of a message: ``flags``, ``flags+imm`` or ``imm``, as both ends agreed."""

    @property
    def upgraded(self) -> bool:
        """Tell whether the connection left the socket on which it began."""
        return self.transport != self.bootstrap

    def as_dict(self) -> dict[str, object]:
        """Give the report as what JSON can hold."""
        return {
            "transport": self.transport,
            "bootstrap": self.bootstrap,
            "upgraded": self.upgraded,
            "reasons": dict(self.reasons),
            "mode": self.mode,
        }

    def __str__(self) -> str:
        by_mode = f" ({self.mode})" if self.mode else ""
        head = f"{self.transport}{by_mode}, upgraded from {self.bootstrap}"
        if not self.upgraded:
            head = f"{self.transport}, not upgraded"
        less = _less_than(self.transport)
        told: dict[str, list[str]] = {}
        for name, why in self.reasons.items():
            if name not in less:  # what to do about it stands behind a semicolon, and in `l5 info`
                told.setdefault(why.split("; ")[0], []).append(name)
        return "; ".join(
            [head, *(f"no {' or '.join(names)}: {why}" for why, names in told.items())]
        )


def _less_than(transport: str) -> tuple[str, ...]:
    """Return the transports that nobody misses who has this one."""
    if transport not in DEFAULT_ORDER:
        return ()
    return DEFAULT_ORDER[DEFAULT_ORDER.index(transport) + 1 :]
