"""Values of the verbs and what two ends agree on: pure, no device is touched.

A queue pair is reached by its `QueuePairAddress`, which the ends exchange over their bootstrap
connection. `agree` makes of both addresses what both ends use: the smaller MTU, and as many
outstanding reads as the side that answers them can take.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from typing import Final, NamedTuple

import attrs

from . import _constants as c
from ._errors import VerbsUnavailable

RD_ATOMIC_MAX: Final = 16  # what common hardware takes; more is only queued
TIMEOUT: Final = 14  # 4.096 us * 2**14 = 67 ms until a packet is sent again
RETRIES: Final = 6  # 7 is "for ever" on Soft-RoCE: a dead peer would never be noticed
RNR_RETRIES: Final = 6  # 7 is "for ever" by the standard
RNR_TIMER: Final = 12  # 0.64 ms
HOP_LIMIT: Final = 64
PSN_MAX: Final = (1 << 24) - 1
QPN_MIN: Final = 2  # 0 and 1 are those of a port's own management
QPN_MULTICAST: Final = (1 << 24) - 1
LID_MAX: Final = 0xBFFF  # above are multicasts; 0 is none


@attrs.frozen
class DeviceLimits:
    """What a device can do at most."""

    queue_depth: int
    completion_depth: int
    sges: int
    rd_atomic: int  # reads and atomics that it answers at once (max_qp_rd_atom)
    init_rd_atomic: int  # ... and that it has outstanding at once (max_qp_init_rd_atom)
    region_bytes: int
    atomics: int  # ATOMIC_NONE, ATOMIC_DEVICE or ATOMIC_GLOBAL
    ports: int = 1
    memory_windows_type2: bool = False


@attrs.frozen
class PortState:
    """A port as it is now."""

    number: int
    state: int
    active_mtu: int  # numbered as path MTUs are: 1..5
    link_layer: int
    lid: int = 0  # InfiniBand's address; 0 on Ethernet

    @property
    def active(self) -> bool:
        """Tell whether packets can leave it."""
        return self.state == c.PORT_ACTIVE


@attrs.frozen
class Gid:
    """One entry of a port's table of GIDs."""

    index: int
    raw: bytes = attrs.field(validator=attrs.validators.instance_of(bytes))
    kind: int = c.GID_ROCE_V2

    @property
    def address(self) -> str:
        """Say it as an IP address; IPv4 if it is a mapped one."""
        address = ipaddress.IPv6Address(self.raw)
        return str(address.ipv4_mapped or address)


class Completion(NamedTuple):
    """One polled completion. (A tuple: it is made per completion, and attrs would cost twice.)"""

    wr_id: int
    status: int
    opcode: int  # WC_*; means nothing where the status is not SUCCESS
    byte_length: int  # of what was received or read
    immediate: int | None  # in the host's byte order
    qp_number: int

    @property
    def ok(self) -> bool:
        """Tell whether it succeeded."""
        return self.status == c.SUCCESS

    @property
    def text(self) -> str:
        """Say the status in words."""
        return c.STATUS_TEXTS.get(self.status, f"status {self.status}")


def _is_unicast(_owner: object, field: attrs.Attribute[bytes], gid: bytes) -> None:
    if len(gid) != 16 or not any(gid) or gid[0] == 0xFF:
        raise ValueError(f"'{field.name}' is no address of one port: {gid.hex()}")


@attrs.frozen
class QueuePairAddress:
    """All that the other end must know to connect to a queue pair."""

    number: int = attrs.field(validator=attrs.validators.in_(range(QPN_MIN, QPN_MULTICAST)))
    psn: int = attrs.field(validator=attrs.validators.in_(range(1 << 24)))
    gid: bytes = attrs.field(validator=_is_unicast)
    lid: int = attrs.field(validator=attrs.validators.in_(range(1 << 16)))
    active_mtu: int = attrs.field(validator=attrs.validators.in_(c.MTU_BYTES))
    rd_atomic: int = attrs.field(validator=attrs.validators.in_(range(256)))
    init_rd_atomic: int = attrs.field(validator=attrs.validators.in_(range(256)))


@attrs.frozen
class QueuePairOptions:
    """How a queue pair is made. What it got may be more: see ``QueuePair.inline_bytes``."""

    send_depth: int = 128
    receive_depth: int = 128
    inline_bytes: int = 220
    remote_access: int = c.REMOTE_WRITE | c.REMOTE_READ | c.REMOTE_ATOMIC


@attrs.frozen
class ConnectOptions:
    """What both ends agreed on, and how long a peer may be silent."""

    mtu: int = attrs.field(validator=attrs.validators.in_(c.MTU_BYTES))
    rd_atomic: int = attrs.field(default=1, validator=attrs.validators.in_(range(256)))
    dest_rd_atomic: int = attrs.field(default=1, validator=attrs.validators.in_(range(256)))
    timeout: int = attrs.field(default=TIMEOUT, validator=attrs.validators.in_(range(1, 32)))
    retries: int = attrs.field(default=RETRIES, validator=attrs.validators.in_(range(7)))
    # 7, for ever, is allowed here alone: the bootstrap connection tells of a dead peer.
    rnr_retries: int = attrs.field(default=RNR_RETRIES, validator=attrs.validators.in_(range(8)))
    rnr_timer: int = attrs.field(default=RNR_TIMER, validator=attrs.validators.in_(range(32)))
    hop_limit: int = attrs.field(default=HOP_LIMIT, validator=attrs.validators.in_(range(1, 256)))


def agree(
    mine: QueuePairAddress, theirs: QueuePairAddress, *, timeout: int = TIMEOUT
) -> ConnectOptions:
    """Return what `mine` uses towards `theirs`: the other end computes the matching answer."""
    return ConnectOptions(
        mtu=min(mine.active_mtu, theirs.active_mtu),
        rd_atomic=min(mine.init_rd_atomic, theirs.rd_atomic, RD_ATOMIC_MAX),
        dest_rd_atomic=min(mine.rd_atomic, theirs.init_rd_atomic, RD_ATOMIC_MAX),
        timeout=timeout,
    )


def gid_of(address: str) -> bytes:
    """Return the RoCE v2 GID that an interface with that IP address has."""
    host = address.partition("%")[0]
    ip = ipaddress.ip_address(host)
    if isinstance(ip, ipaddress.IPv4Address):
        return b"\x00" * 10 + b"\xff\xff" + ip.packed
    return ip.packed


def choose_gid(gids: Iterable[Gid], address: str, *, link_layer: int = c.LINK_ETHERNET) -> Gid:
    """Choose the GID whose packets take the way of the bootstrap connection.

    `address` is the local address of that connection. On Ethernet it is the RoCE v2 GID that equals
    the address: an index would shift as addresses come and go. InfiniBand's GIDs carry no IP
    address, and the first one is the port's own.

    :raises VerbsUnavailable: no GID fits; ``missing`` is "gid".
    """
    table = tuple(gids)
    if link_layer == c.LINK_INFINIBAND:
        for gid in table:
            if gid.kind == c.GID_INFINIBAND and any(gid.raw):
                return gid
        raise VerbsUnavailable(
            "gid", "the InfiniBand port has no GID", "is a subnet manager running?"
        )
    wanted = gid_of(address)
    for gid in table:
        if gid.kind == c.GID_ROCE_V2 and gid.raw == wanted:
            return gid
    have = ", ".join(gid.address for gid in table if gid.kind == c.GID_ROCE_V2) or "none"
    raise VerbsUnavailable(
        "gid",
        f"no RoCE v2 GID for {address}; the device has {have}",
        "connect to an address of the interface that the RDMA device belongs to"
        " (`rdma link` names it), not to 127.0.0.1",
    )


def to_network(immediate: int) -> int:
    """Return an immediate as the raw field holds it: big-endian whatever the host is."""
    return socket.htonl(immediate)


def to_host(raw: int) -> int:
    """Return what `to_network` was given."""
    return socket.ntohl(raw)
