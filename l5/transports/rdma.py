"""RDMA: the upgrade of TCP between hosts.  The protocol is `l5.rdma._mailbox`; here it is set up.

    client                                                    server
    device, queue pair, ring; Upgrade (its address, keys) -->  queue pair, row, flag; connected
                                                          <--  Upgraded (the same, and the mode)
    connected; an empty row                               ==>  taken
                                                          <==  a message that says so
    Upgraded (ok)                                         -->  both switch

The socket stays open beside it: its end is the end of the connection.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import anyio

from .. import native
from .._descriptors import discard
from .._errors import RemoteProtocolError, TransportUnavailable
from .._options import size_text
from ..abc import Channel, Link, Probe, UpgradeAttempt, UpgradeMessage, UpgradeTransport
from ..rdma import available, verbs
from ..rdma._channel import FLAGS_IMM, MODES, MailboxChannel
from ..rdma._client import RECEIVES as CLIENT_RECEIVES
from ..rdma._client import MailboxClient
from ..rdma._devices import Lease, lease
from ..rdma._end import ARENA_BYTES, End
from ..rdma._mailbox import NewRow
from ..rdma._regions import MemoryClient, MemoryServer
from ..rdma._room import mailroom
from ..rdma._server import RECEIVES as SERVER_RECEIVES
from ..rdma._server import MailboxServer, row_bytes_for

Params = Mapping[str, int | str | bytes | bool]

VERSION = 2
VERIFY_S = 2.0
_LOOK_S = 0.0005
_ADDRESS = struct.Struct("<II16sHBBB")
_U64, _U32 = (1 << 64) - 1, (1 << 32) - 1
_RING_MAX = 256 << 20
_ROW_MAX = 128 << 20


class RDMATransport(UpgradeTransport):
    """`rdma`: mailboxes over reliable connections."""

    name: ClassVar[str] = "rdma"
    needs_fds: ClassVar[bool] = False

    def __init__(self, *, memory: bool = False) -> None:
        self._memory = memory
        """What is made are memory links (`l5.rdma._regions`)."""

    def for_memory(self) -> UpgradeTransport:
        """See `UpgradeTransport.for_memory`."""
        return RDMATransport(memory=True)

    def probe(self) -> Probe:
        """See `Transport.probe`."""
        if not native.available:
            return Probe(False, native.reason)
        found = available()
        return Probe(found.usable, found.reason, {"backend": found.backend})

    def offer(self, link: Link, options: Any) -> Params:
        """See `UpgradeTransport.offer`."""
        if not native.available:
            raise TransportUnavailable(self.name, native.reason)
        self._lease(link).close()  # says what is missing, as `probe` would
        return {
            "version": VERSION,
            "mode": options.rdma_mode or "",
            "ring_bytes": options.ring_bytes,
        }

    def _lease(self, link: Link) -> Lease:
        host = link.local_host
        if host is None:
            raise TransportUnavailable(
                self.name, "the connection begins on a socket that has no IP address"
            )
        try:
            return lease(host)
        except verbs.VerbsError as error:
            raise TransportUnavailable(self.name, str(error)) from error

    def judge(self, link: Link, params: Params, options: Any) -> str | None:
        """See `UpgradeTransport.judge`."""
        if params.get("version") != VERSION:
            return f"its mailboxes have version {params.get('version')!r}, ours {VERSION}"
        if params.get("mode") not in ("", *MODES):
            return f"there is no mode {params.get('mode')!r}"
        try:
            _check_ring(params, options)
            self._lease(link).close()
        except TransportUnavailable as error:
            return error.reason
        return None

    def memory_bytes(self, params: Params) -> int:
        """See `UpgradeTransport.memory_bytes`: staging for the client's ring, and its row."""
        ring_bytes = params.get("ring_bytes")
        return ARENA_BYTES + 2 * ring_bytes if isinstance(ring_bytes, int) else 0

    def initiate(self, link: Link, params: Params, options: Any) -> UpgradeAttempt:
        """See `UpgradeTransport.initiate`."""
        return _ClientAttempt(self._lease(link), options, self._memory)

    def join(self, link: Link, params: Params, fds: Sequence[int], options: Any) -> UpgradeAttempt:
        """See `UpgradeTransport.join`."""
        discard(fds)
        ring_bytes = _check_ring(params, options)
        made = MemoryServer if self._memory else MailboxServer
        return _ServerAttempt(self._lease(link), link, params, ring_bytes, options, made)


# ---- parameters --------------------------------------------------------------------------------


def _check_ring(params: Params, options: Any) -> int:
    ring_bytes = _whole(params, "ring_bytes", 65536, _RING_MAX)
    if ring_bytes & (ring_bytes - 1):
        raise _unfit(f"a ring of {ring_bytes} bytes is not a power of two")
    most = getattr(options, "max_ring_bytes", _RING_MAX)
    if ring_bytes > most:
        raise _unfit(
            f"a ring of {size_text(ring_bytes)} is larger than this server serves (max_ring, "
            f"{size_text(most)}): ask for a smaller one (ring=...)"
        )
    return ring_bytes


def _unfit(reason: str) -> TransportUnavailable:
    return TransportUnavailable("rdma", reason)


def _whole(params: Params, name: str, low: int, high: int) -> int:
    value = params.get(name)
    if type(value) is not int or not low <= value <= high:
        raise _unfit(f"the peer's {name} is {value!r}; expected {low} to {high}")
    return value


def _place(params: Params, name: str, size: int) -> int:
    """Return the address of `size` bytes of the peer: what is added to it stays in range."""
    return _whole(params, name, 0, _U64 + 1 - size)


def _pack_address(address: verbs.QueuePairAddress) -> bytes:
    return _ADDRESS.pack(
        address.number,
        address.psn,
        address.gid,
        address.lid,
        address.active_mtu,
        address.rd_atomic,
        address.init_rd_atomic,
    )


def _parse_address(params: Params, link: Link, port: verbs.PortState) -> verbs.QueuePairAddress:
    """Return where the peer's queue pair is: on Ethernet, where its socket is and nowhere else.

    Else a peer could have this host send packets to whomever it names.
    """
    data = params.get("address")
    if not isinstance(data, bytes) or len(data) != _ADDRESS.size:
        raise _unfit("the peer does not say where its queue pair is")
    try:
        address = verbs.QueuePairAddress(*_ADDRESS.unpack(data))
    except ValueError as error:
        raise _unfit(f"the peer's queue pair cannot be: {error.args[0]}") from None
    if port.link_layer == verbs.LINK_INFINIBAND and not 0 < address.lid <= verbs.LID_MAX:
        raise _unfit(f"the peer's port has the LID {address.lid}, which is none of one port")
    host = link.peer.address.rpartition(":")[0].strip("[]")
    if port.link_layer == verbs.LINK_ETHERNET and address.gid != verbs.gid_of(host):
        there = verbs.Gid(0, address.gid).address
        raise _unfit(f"the peer's queue pair is at {there}, its socket at {host}: is there a NAT?")
    return address


def _later_mode(*wishes: object) -> str:
    """Return the mode that holds: the one that trusts least, or wants most."""
    named = [MODES.index(wish) for wish in wishes if wish in MODES]
    return MODES[max(named)] if named else FLAGS_IMM


# ---- the two ends ------------------------------------------------------------------------------


class _Attempt(UpgradeAttempt):
    verifies: ClassVar[bool] = True
    channel: MailboxChannel
    atomics = False
    """The peer may do atomics, where memory is registered for them."""

    def _make(self, held: Lease, receives: int, build: Callable[[End], UpgradeMessage]) -> None:
        """Make an end and what `build` makes on it, or give everything back."""
        end: End | None = None
        try:
            end = End(held.device, held.place.gid, receives=receives, atomics=self.atomics)
            self.message = build(end)
            end.keep(held.close)
        except BaseException as error:
            if end is not None:
                end.close()
            held.close()
            if isinstance(error, verbs.VerbsError | OSError):
                raise _unfit(str(error)) from error
            raise

    def complete(self, link: Link, *, send_limit: int, receive_limit: int) -> Channel:
        try:
            sock = socket.socket(fileno=link.detach())
        except BaseException:
            self.channel.close()
            raise
        self.channel.take_socket(sock, send_limit, receive_limit)
        return self.channel

    def abandon(self) -> None:
        self.channel.close()


class _ClientAttempt(_Attempt):
    def __init__(self, held: Lease, options: Any, memory: bool) -> None:
        made = MemoryClient if memory else MailboxClient
        self._patience_s = min(VERIFY_S, options.hello_timeout / 2)
        self._port = held.place.port
        self._mode: str | None = options.rdma_mode

        def build(end: End) -> UpgradeMessage:
            self.channel = channel = made(end, options.ring_bytes)
            ring, words = channel.ring_region, channel.words_region
            params: Params = {
                "address": _pack_address(end.own_address),
                "mode": options.rdma_mode or "",
                "ring_address": ring.address,
                "ring_key": ring.rkey,
                "ring_bytes": options.ring_bytes,
                "words_address": words.address,
                "words_key": words.rkey,
                "receives": CLIENT_RECEIVES,
                "row_bytes": options.rdma_row_bytes,
            }
            return UpgradeMessage(params, ())

        self._make(held, CLIENT_RECEIVES, build)

    async def verify(self, link: Link, answer: Params) -> None:
        channel = self.channel
        assert isinstance(channel, MailboxClient)
        mode = answer.get("mode")
        if mode not in MODES or mode != _later_mode(mode, self._mode):
            wish = f" where {self._mode!r} was asked for" if self._mode else ""
            raise _unfit(f"the server chose the mode {mode!r}{wish}")
        row = NewRow(
            _place(answer, "row_address", _ROW_MAX),
            _whole(answer, "row_key", 0, _U32),
            _whole(answer, "row_bytes", 256, _ROW_MAX),
        )
        flag = _whole(answer, "flag_address", 0, _U64), _whole(answer, "flag_key", 0, _U32)
        channel.limit_rows(_whole(answer, "row_bytes_max", row.bytes, _ROW_MAX))
        try:
            remote = _parse_address(answer, link, self._port)
            channel.connect(str(mode), remote, row, flag)
            channel.send_empty()
        except verbs.VerbsError as error:
            raise _unfit(str(error)) from error
        await self._wait_answer(channel)

    async def _wait_answer(self, channel: MailboxClient) -> None:
        try:
            with anyio.move_on_after(self._patience_s):
                while not channel.answered and not channel.trouble:  # noqa: ASYNC110
                    await anyio.sleep(_LOOK_S)
        except RemoteProtocolError as error:
            raise _unfit(str(error)) from error
        if channel.trouble:
            raise _unfit(f"the first round trip failed: {channel.trouble}")
        if not channel.answered:
            raise _unfit(
                f"no answer came over RDMA within {self._patience_s:g} s, although the socket "
                "works: is the way open between the two devices (RoCE: UDP port 4791)?"
            )


class _ServerAttempt(_Attempt):
    def __init__(
        self,
        held: Lease,
        link: Link,
        params: Params,
        ring_bytes: int,
        options: Any,
        made: type[MailboxServer],
    ) -> None:
        self.atomics = made is MemoryServer
        row_max = row_bytes_for(options.segment_bytes)

        def build(end: End) -> UpgradeMessage:
            remote = _parse_address(params, link, held.place.port)
            mode = _later_mode(params.get("mode"), options.rdma_mode)
            row_bytes = min(_whole(params, "row_bytes", 256, _ROW_MAX), row_max)
            ring = NewRow(
                _place(params, "ring_address", 2 * ring_bytes),
                _whole(params, "ring_key", 0, _U32),
                ring_bytes,
            )
            words = _place(params, "words_address", 16), _whole(params, "words_key", 0, _U32)
            receives = _whole(params, "receives", 8, 4096)
            self.channel = channel = made(end, mailroom(), row_bytes, row_max)
            channel.connect(mode, remote, ring, words, receives)
            row, flag = channel.row_region, channel.flag_region
            answer: Params = {
                "address": _pack_address(end.own_address),
                "mode": mode,
                "row_address": row.address,
                "row_key": row.rkey,
                "row_bytes": row_bytes,
                "row_bytes_max": row_max,
                "flag_address": flag.address,
                "flag_key": flag.rkey,
            }
            return UpgradeMessage(answer, ())

        self._make(held, SERVER_RECEIVES, build)

    async def verify(self, link: Link, answer: Params) -> None:
        channel = self.channel
        assert isinstance(channel, MailboxServer)
        try:
            while not (channel.asked and channel.settle()):
                if channel.trouble:
                    break
                await anyio.sleep(_LOOK_S)
        except (verbs.VerbsError, RemoteProtocolError) as error:
            raise _unfit(str(error)) from error
        if channel.trouble:
            raise _unfit(f"the first round trip failed: {channel.trouble}")
