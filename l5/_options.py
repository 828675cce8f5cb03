"""Options of connections and listeners, from a URL's query and from keyword arguments.

Each field below is one option. Its name in a query is the field's own, or the shorter one in
``_ALIASES`` (``ring`` for ``ring_bytes``); keywords may use either. A value may be given as text or
as what the text means: ``"1MiB"`` or ``1048576``. Keywords win over the query; None is "not given".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self, cast

import attrs

from l5._errors import AddressError

if TYPE_CHECKING:
    import ssl

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_UNITS = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "k": KIB, "m": MIB, "g": GIB}
_ALIASES = {
    "ring": "ring_bytes",
    "max_message": "max_message_bytes",
    "segment": "segment_bytes",
    "data_window": "data_window_bytes",
    "credit": "credit_bytes",
    "reassembly": "reassembly_bytes",
    "total_reassembly": "total_reassembly_bytes",
    "total_shared": "total_shared_bytes",
    "max_ring": "max_ring_bytes",
    "rdma_row": "rdma_row_bytes",
}
# What would end in logs and shell histories, or would let a URL open a server to strangers.
_KEYWORD_ONLY = frozenset({"token", "ssl_context", "allow", "allow_uids", "insecure"})
_TRANSPORT_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}")
_TEXT_SHOWN = 80
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_FLAGS: dict[str, bool] = {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}
RDMA_MODES = ("flags", "flags+imm", "imm")
TOKEN_BYTES_MAX = 1024
PLUGIN_PREFIX = "x-"
"""Query options that begin so belong to the transport: kept in the address, not looked at here."""


def _refuse(name: str, value: object, allowed: str) -> AddressError:
    shown = repr(value)
    if len(shown) > _TEXT_SHOWN:
        shown = shown[:_TEXT_SHOWN] + "..."
    return AddressError(f"option {name!r}: {shown} is not allowed; expected {allowed}")


def size_text(size_bytes: int) -> str:
    """Write a size with the largest unit that it is a whole multiple of."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes and size_bytes % unit == 0:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} bytes"


def _digits(text: str) -> int | None:
    # int() also takes "1_0", "+1", " 1" and other scripts' digits: none of them in a URL, please.
    return int(text) if 0 < len(text) <= 20 and text.isascii() and text.isdigit() else None


def _read_size(name: str, low: int, high: int, value: object) -> int:
    size: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str):
        number = value.rstrip("bBgGiIkKmM")
        unit = _UNITS.get(value[len(number) :].lower())
        count = _digits(number)
        size = None if unit is None or count is None else count * unit
    if size is None or not low <= size <= high:
        expected = f"a size from {size_text(low)} to {size_text(high)}, such as '1MiB'"
        raise _refuse(name, value, expected)
    return size


def _read_count(name: str, low: int, high: int, value: object) -> int:
    count = _digits(value) if isinstance(value, str) else value
    if isinstance(count, bool) or not isinstance(count, int) or not low <= count <= high:
        raise _refuse(name, value, f"a whole number from {low} to {high}")
    return count


def _read_seconds(name: str, low: float, high: float, value: object) -> float:
    seconds = math.nan
    if isinstance(value, str):
        number = value.removesuffix("s").removesuffix("m")
        unit = {"": 1.0, "s": 1.0, "ms": 0.001}.get(value[len(number) :])
        whole, _, fraction = number.partition(".")
        if unit and _digits(whole) is not None and _digits(fraction or "0") is not None:
            seconds = float(number) * unit
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    if not low <= seconds <= high:  # also false for NaN
        raise _refuse(name, value, f"seconds from {low:g} to {high:g}, such as 2.5 or '250ms'")
    return seconds


def _read_flag(name: str, value: object) -> bool:
    flag = _FLAGS.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(flag, bool):
        raise _refuse(name, value, "true or false")
    return flag


def _read_transports(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(_items(value.split(",") if isinstance(value, str) else value))
    good = all(isinstance(name, str) and _TRANSPORT_NAME.fullmatch(name) for name in names)
    if not good or not 1 <= len(names) <= 16 or len(set(names)) < len(names):
        expected = "names of transports in order of preference, each once, such as 'shm,tcp'"
        raise _refuse("transports", value, expected)
    return names


def _read_token(value: object) -> bytes | None:
    token = value.encode("utf-8", "replace") if isinstance(value, str) else value
    if token is None or (isinstance(token, bytes) and 1 <= len(token) <= TOKEN_BYTES_MAX):
        return token
    # The value is a secret: it is not shown.
    raise AddressError(f"option 'token': expected text or bytes, 1 to {TOKEN_BYTES_MAX} of them")


def _read_uids(value: object) -> frozenset[int] | None:
    if value is None:
        return None
    uids = _items(value)
    if not uids or not all(type(uid) is int and 0 <= uid < 1 << 32 for uid in uids):
        raise _refuse("allow_uids", value, "user ids, such as {1000, 1001}")
    return frozenset(uids)


def _items(value: object) -> list[Any]:
    return list(cast(Iterable[Any], value)) if isinstance(value, Iterable) else []


# Converters of the fields below: what a user may write, and what the field holds then.
def _size(name: str, low: int, high: int) -> Callable[[int | str], int]:
    return partial(_read_size, name, low, high)


def _count(name: str, low: int, high: int) -> Callable[[int | str], int]:
    return partial(_read_count, name, low, high)


def _seconds(name: str, low: float = 0.001) -> Callable[[float | str], float]:
    return partial(_read_seconds, name, low, 86400.0)


def _flag(name: str) -> Callable[[bool | str], bool]:
    return partial(_read_flag, name)


def _to_transports(value: str | Iterable[str] | None) -> tuple[str, ...] | None:
    return _read_transports(value)


def _to_rdma_mode(value: str | None) -> str | None:
    if value in (None, *RDMA_MODES):
        return value
    raise _refuse("rdma_mode", value, f"one of {', '.join(RDMA_MODES)}")


def _to_token(value: bytes | str | None) -> bytes | None:
    return _read_token(value)


def _to_uids(value: Iterable[int] | None) -> frozenset[int] | None:
    return _read_uids(value)


@attrs.frozen(kw_only=True)
class Options:
    """What a connection may do and how much it may hold; every field has a default."""

    transports: tuple[str, ...] | None = attrs.field(default=None, converter=_to_transports)
    """Transports that may be used, best first; None leaves the choice to l5."""

    ring_bytes: int = attrs.field(default=MIB, converter=_size("ring", 64 * KIB, 256 * MIB))
    """Size of each of the two rings of a shared-memory connection; a power of two."""

    max_message_bytes: int = attrs.field(default=64 * MIB, converter=_size("max_message", KIB, GIB))
    """Largest message that this side takes; the smaller of both ends' values holds."""

    segment_bytes: int = attrs.field(converter=_size("segment", 4 * KIB, 64 * MIB))
    """Longer messages travel in pieces of this size; at most a quarter of the ring."""

    data_window_bytes: int = attrs.field(converter=_size("data_window", 4 * KIB, 4 * GIB))
    """How much plain data the peer may send before this side has taken some of it."""

    credit_bytes: int = attrs.field(converter=_size("credit", 4 * KIB, GIB))
    """How much of a segmented message the peer may send before it is granted more."""

    in_flight_max: int = attrs.field(default=256, converter=_count("in_flight_max", 1, 65536))
    """Requests of the peer that may be unanswered at once."""

    reassembly_bytes: int = attrs.field(converter=_size("reassembly", 64 * KIB, 64 * GIB))
    """Memory that half-received messages of one connection may hold."""

    spin_us: int = attrs.field(default=50, converter=_count("spin_us", 0, 10_000))
    """How long to look for an answer before sleeping; 0 never spins."""

    strict: bool = attrs.field(default=False, converter=_flag("strict"))
    """Make every call a checkpoint, at the price of a loop iteration each."""

    hello_timeout: float = attrs.field(default=5.0, converter=_seconds("hello_timeout"))
    """Seconds within which the peer has to finish its hello."""

    connect_timeout: float = attrs.field(default=10.0, converter=_seconds("connect_timeout"))
    """Seconds for all of connect(): reaching the peer, its hello and the upgrade."""

    close_timeout: float = attrs.field(default=1.0, converter=_seconds("close_timeout", 0.0))
    """Seconds that closing waits for a peer to take what was sent; the rest is lost."""

    rdma_mode: str | None = attrs.field(default=None, converter=_to_rdma_mode)
    """How RDMA announces a message: ``flags``, ``flags+imm`` (the default) or ``imm``."""

    rdma_row_bytes: int = attrs.field(default=4 * KIB, converter=_size("rdma_row", KIB, MIB))
    """Size of a client's row at the server; it grows with the first longer message."""

    heartbeat_ms: int = attrs.field(default=10, converter=_count("heartbeat_ms", 0, 60_000))
    """How often this end wants to hear, or tells at most, how busy the server is; 0: never."""

    token: bytes | None = attrs.field(default=None, converter=_to_token, repr=False)
    """The secret that both ends share; a keyword only, never in a URL."""

    ssl_context: ssl.SSLContext | None = attrs.field(default=None, repr=False)
    """TLS settings for ``l5s://``; a keyword only. None: the system's for a client."""

    @segment_bytes.default  # pyright: ignore
    def _segment_default(self) -> int:
        return min(128 * KIB, self.ring_bytes // 4)

    @data_window_bytes.default  # pyright: ignore
    def _data_window_default(self) -> int:
        return max(4 * MIB, self.segment_bytes)

    @credit_bytes.default  # pyright: ignore
    def _credit_default(self) -> int:
        return max(MIB, self.segment_bytes)

    @reassembly_bytes.default  # pyright: ignore
    def _reassembly_default(self) -> int:
        return max(128 * MIB, self.max_message_bytes)

    @property
    def initial_credit_bytes(self) -> int:
        """What the peer may send of a long message unasked: that of all its requests fits."""
        share = self.reassembly_bytes // self.in_flight_max
        return max(self.segment_bytes, min(self.credit_bytes, share))

    def __attrs_post_init__(self) -> None:
        if self.ring_bytes & (self.ring_bytes - 1):
            raise _refuse("ring", self.ring_bytes, "a power of two")
        self._at_most("segment", self.segment_bytes, "a quarter of ring", self.ring_bytes // 4)
        self._at_least("credit", self.credit_bytes, "segment", self.segment_bytes)
        self._at_least("data_window", self.data_window_bytes, "segment", self.segment_bytes)
        self._at_least("reassembly", self.reassembly_bytes, "max_message", self.max_message_bytes)

    @staticmethod
    def _at_least(name: str, value: int, other: str, bound: int) -> None:
        if value < bound:
            raise _refuse(name, value, f"at least {other}, which is {size_text(bound)}")

    @staticmethod
    def _at_most(name: str, value: int, other: str, bound: int) -> None:
        if value > bound:
            raise _refuse(name, value, f"at most {other}, which is {size_text(bound)}")

    @classmethod
    def from_mapping(
        cls, query: Mapping[str, str], overrides: Mapping[str, object] | None = None
    ) -> Self:
        """Build options from a URL's query and from keywords, which win.

        Raises AddressError with the option, its value and what is allowed.
        """
        known = {field.name for field in attrs.fields(cls)}
        check_query(query, known)
        values = _collect(query, known) | _collect(overrides or {}, known)
        return cls(**values)


def _collect(source: Mapping[str, object], known: Collection[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in source.items():
        if value is None or name.startswith(PLUGIN_PREFIX):
            continue
        field = _ALIASES.get(name, name)
        if field not in known:
            raise AddressError(f"unknown option {_shown(name)}; known are {names_text(known)}")
        if field in values:
            raise AddressError(f"option {name!r} is given twice, as {name!r} and as {field!r}")
        values[field] = value
    return values


def check_query(names: Iterable[str], known: Collection[str] | None = None) -> None:
    """Refuse names of options that a URL's query must not have.

    Without ``known`` an option of either kind, connecting or listening, is taken.
    """
    if known is None:
        known = {field.name for field in attrs.fields(ListenOptions)}
    for name in names:
        if name in _KEYWORD_ONLY:
            raise AddressError(
                f"option {name!r} does not belong in a URL, which ends up in logs and"
                f" configuration files; pass it as the keyword {name}="
            )
        if _ALIASES.get(name, name) not in known and not name.startswith(PLUGIN_PREFIX):
            allowed = names_text(set(known) - _KEYWORD_ONLY)
            raise AddressError(f"unknown option {_shown(name)}; known are {allowed}")


def _shown(name: str) -> str:
    return repr(name if len(name) <= _TEXT_SHOWN else name[:_TEXT_SHOWN] + "...")


def names_text(fields: Collection[str]) -> str:
    """List option names as they are written in a URL, sorted."""
    short = {field: alias for alias, field in _ALIASES.items()}
    return ", ".join(sorted(short.get(field, field) for field in fields))


@attrs.frozen(kw_only=True)
class ListenOptions(Options):
    """What a listener may do, and who may connect; includes the options of its connections."""

    allow_uids: frozenset[int] | None = attrs.field(default=None, converter=_to_uids)
    """User ids that may connect to a Unix socket; None is the server's own only."""

    allow: Callable[[Any], bool] | None = attrs.field(default=None)
    """Asked with the peer's PeerInfo after every other check; False turns the peer away."""

    insecure: bool = attrs.field(default=False, converter=_flag("insecure"))
    """Listen on more than loopback without a token or TLS; a keyword only."""

    connections_max: int = attrs.field(
        default=1024, converter=_count("connections_max", 1, 1_000_000)
    )
    """Connections at once; a further one is told that the server is busy."""

    grace: float = attrs.field(default=5.0, converter=_seconds("grace", 0.0))
    """Seconds that running requests may take once the server is asked to stop."""

    regions_max: int = attrs.field(default=64, converter=_count("regions_max", 1, 65536))
    """Regions that one connection may have open at once."""

    hellos_max: int = attrs.field(default=64, converter=_count("hellos_max", 1, 65536))
    """Handshakes at once, so that slow strangers cannot hold every connection."""

    total_reassembly_bytes: int = attrs.field(
        converter=_size("total_reassembly", 64 * KIB, 1024 * GIB)
    )
    """Memory that half-received messages of all connections may hold."""

    stall_timeout: float = attrs.field(default=10.0, converter=_seconds("stall_timeout", 0.01))
    """Seconds after which the oldest half-received message must have grown while others wait."""

    total_shared_bytes: int = attrs.field(
        default=4 * GIB, converter=_size("total_shared", 64 * KIB, 1024 * GIB)
    )
    """Memory that the rings of all connections may have; beyond it they stay on their sockets."""

    max_ring_bytes: int = attrs.field(converter=_size("max_ring", 64 * KIB, 256 * MIB))
    """Largest ring that a client may choose; with a larger one it stays on its socket."""

    backlog: int = attrs.field(default=128, converter=_count("backlog", 1, 65535))
    """Connections that the operating system keeps waiting until they are accepted."""

    @max_ring_bytes.default  # pyright: ignore
    def _max_ring_default(self) -> int:
        return max(16 * MIB, self.ring_bytes)

    @total_reassembly_bytes.default  # pyright: ignore
    def _total_default(self) -> int:
        return max(GIB, self.reassembly_bytes)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._at_least(
            "total_reassembly", self.total_reassembly_bytes, "reassembly", self.reassembly_bytes
        )
        if self.allow is not None and not callable(self.allow):
            raise _refuse("allow", self.allow, "a function of the peer's PeerInfo")
