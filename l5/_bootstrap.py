"""The handshake on an open link: hellos, who may connect, and the upgrade; both ends.

    client                                        server
    ClientHello (version, limits, offers,   -->
                 host proof, token)
                                            <--   ServerHello (limits, choice, reasons)
                                                  or Reject
    -- if an upgrade was chosen ------------------------------------------------------------
    [over TCP: connect to the rendezvous, an abstract Unix address; Attach (one-time ticket)]
    Upgrade (parameters; descriptors)       -->
                                            <--   Upgraded (parameters; ok, or why not)
    [where the transport verifies its way: a round trip over it, both ends]
    Upgraded (ok, or why not)               -->

Nothing of a user's travels before this is over.  Before the upgrade the server knows who the
client is (credentials of the socket, token, TLS).  A hello that is malformed, too long, too slow or
of another version ends this connection alone.
"""

from __future__ import annotations

import logging
import os
from typing import Any, cast

import anyio
import attrs
import msgspec

from . import _hello, _host, _registry, _selector
from ._address import Address
from ._descriptors import discard
from ._errors import L5Error, RemoteProtocolError, TransportUnavailable
from ._frames import DEADLINE
from ._hello import (
    Attach,
    ClientHello,
    Hello,
    HelloReader,
    Limits,
    Offer,
    ServerHello,
    Upgrade,
    Upgraded,
)
from ._options import Options
from ._pidfd import peer_pidfd
from ._selector import UpgradeReport
from .abc import (
    BootstrapTransport,
    Channel,
    Link,
    MemoryChannel,
    PeerInfo,
    UpgradeAttempt,
    UpgradeTransport,
)

logger = logging.getLogger("l5.client")

FEATURES = 0
NOT_UPGRADED = "none"
"""The transport named by a client that could not do what was chosen."""


@attrs.frozen
class Established:
    """A connection after the handshake: a channel, and what both ends agreed on."""

    channel: Channel
    peer: PeerInfo
    sends: Limits
    takes: Limits
    report: UpgradeReport
    watched: tuple[int, ...] = ()
    identity: bytes = b""
    """What the server calls itself and this connection; empty if it has no memory links."""
    memory: bool = False
    """(Server) it is the memory link of the connection of that identity."""
    shared_bytes: int = 0
    """(Server) what it took of the server's quota of shared memory; the acceptor gives it back."""

    def close(self) -> None:
        """Give everything back: nobody wants this connection."""
        self.channel.close()
        for fd in self.watched:
            os.close(fd)


def receive_limit(takes: Limits) -> int:
    """Say how long a frame of the peer may be: a segment, or the longest message if shorter."""
    return min(takes.segment_bytes, takes.max_message_bytes + DEADLINE.size)


def fit_segments(sends: Limits, channel: Channel) -> Limits:
    """Cut what may be sent in one frame to what the channel carries (a quarter of a ring)."""
    if channel.frame_limit is None or channel.frame_limit >= sends.segment_bytes:
        return sends
    return msgspec.structs.replace(sends, segment_bytes=channel.frame_limit)


class HelloLink:
    """Messages of the handshake over a link."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._reader = HelloReader()

    async def send(self, message: Hello, fds: tuple[int, ...] = ()) -> None:
        """Send one message, with descriptors."""
        await self.link.send(_hello.encode(message), fds)

    async def receive(self) -> tuple[Hello, list[int]]:
        """Receive one message and its descriptors; not a byte of what follows is read."""
        fds: list[int] = []
        try:
            while True:
                message = self._reader.next()
                if message is not None:
                    return message, fds
                data, new = await self.link.receive(self._reader.needed_bytes())
                fds += new
                if len(fds) > 8:
                    raise RemoteProtocolError(f"the peer sent {len(fds)} descriptors")
                self._reader.feed(data)
        except anyio.EndOfStream:
            close_all(fds)
            self._reader.feed_eof()
            raise RemoteProtocolError("the peer closed before the handshake was over") from None
        except BaseException:
            close_all(fds)
            raise


def close_all(fds: list[int]) -> None:
    """Close descriptors that nobody wants."""
    discard(fds)
    fds.clear()


def upgrade_transports(
    wanted: tuple[str, ...] | None, demanded: str | None, *, memory: bool = False
) -> dict[str, Any]:
    """Return the upgrades that are wanted: name to transport, or to the reason why not.

    With `memory` those of memory links, in the place of the others.
    """
    found: dict[str, Any] = {}
    for name in _registry.names():
        try:
            transport = _registry.get(name)
        except L5Error as error:
            found[name] = str(error)
            continue
        if isinstance(transport, UpgradeTransport):
            instead = transport.for_memory() if memory else transport
            found[name] = instead or "its regions are reached by asking their owner"
    order = _selector.rank(list(found), wanted)
    result: dict[str, Any] = {}
    for name in found:
        if demanded is not None and demanded != name:
            result[name] = f"{demanded} is demanded"
        elif name not in order:
            result[name] = "not among the transports that were asked for"
    return {name: found[name] for name in order if name not in result} | result


# ---- client ------------------------------------------------------------------------------------


class ClientHandshake:
    """The client's side; `run` returns the connection or raises, having closed everything."""

    def __init__(
        self, link: Link, address: Address, options: Options, memory: bytes | None = None
    ) -> None:
        self._memory = memory
        """The identity of the connection whose memory link this becomes; None for any other."""
        self._hello_link = HelloLink(link)
        self._link = link
        self._address = address
        self._options = options
        self._takes = _hello.limits_of(options)
        self._reasons: dict[str, str] = {}
        self._transports: dict[str, UpgradeTransport] = {}
        link.let_fds_in(False)

    async def run(self) -> Established:
        """Shake hands and upgrade."""
        # step 1 (client, any): connected, and silent
        await self._hello_link.send(self._client_hello())
        # step 2 (client, any): the hello is sent
        message, fds = await self._hello_link.receive()
        # step 3 (client, any): the server's hello is here
        close_all(fds)
        answer = _hello.expect(message, ServerHello)
        _hello.negotiate_version([answer.version])
        logger.debug("the server, process %d, chose %s", answer.pid, answer.choice or "no upgrade")
        sends = _hello.agree(self._takes, answer.limits)
        # Our own reasons win: a server can only say that something was not offered.
        told = {_hello.printable(k): _hello.printable(why) for k, why in answer.declined.items()}
        self._reasons = told | self._reasons
        channel = None
        if answer.choice is not None:
            channel = await self._upgrade(answer, sends)
        return self._established(channel, sends, answer)

    def _client_hello(self) -> ClientHello:
        offers: list[Offer] = []
        demanded = self._address.demanded
        wanted, memory = self._options.transports, self._memory is not None
        for name, transport in upgrade_transports(wanted, demanded, memory=memory).items():
            if isinstance(transport, str):
                self._reasons[name] = transport
                continue
            try:
                params = dict(transport.offer(self._link, self._options))
            except TransportUnavailable as error:
                self._reasons[name] = error.reason
                continue
            self._transports[name] = transport
            offers.append(Offer(transport=name, params=params))
        return ClientHello(
            versions=list(_hello.VERSIONS),
            features=FEATURES,
            limits=self._takes,
            offers=offers,
            host=_host.prove(),
            pid=os.getpid(),
            uid=os.getuid(),
            token=self._options.token,
            memory=self._memory,
        )

    async def _upgrade(self, answer: ServerHello, sends: Limits) -> Channel | None:
        name = answer.choice
        assert name is not None
        transport = self._transports.get(name)
        if transport is None:
            raise RemoteProtocolError(f"the server chose {name!r}, which was not offered")
        try:
            if answer.rendezvous is None:
                return await self._upgrade_on(self._hello_link, transport, answer, sends)
            return await self._upgrade_elsewhere(transport, answer, sends)
        except TransportUnavailable as error:
            self._reasons[name] = error.reason
        await self._decline(self._hello_link, self._reasons[name])
        return None

    async def _decline(self, hello_link: HelloLink, reason: str) -> None:
        """Tell the server that the connection stays on the socket, and wait until it knows."""
        params = {"reason": reason[:1000]}
        await hello_link.send(Upgrade(transport=NOT_UPGRADED, params=params))
        message, fds = await hello_link.receive()
        close_all(fds)
        _hello.expect(message, Upgraded)

    async def _upgrade_on(
        self, hello_link: HelloLink, transport: UpgradeTransport, answer: ServerHello, sends: Limits
    ) -> Channel | None:
        attempt = transport.initiate(hello_link.link, answer.params, self._options)
        try:
            upgrade = Upgrade(transport=transport.name, params=dict(attempt.message.params))
            # step 4 (client, shm): the memory is made, and not sent
            await hello_link.send(upgrade, tuple(attempt.message.fds))
            # step 5 (client, shm): the memory is sent
            message, fds = await hello_link.receive()
            # step 6 (client, shm): the server has it, and this end has not switched
            close_all(fds)
            why_not = await self._verify(attempt, hello_link, _hello.expect(message, Upgraded))
        except BaseException:
            attempt.abandon()
            raise
        if why_not is not None:
            attempt.abandon()
            self._reasons[transport.name] = why_not
            if hello_link is not self._hello_link:
                hello_link.link.abort()
            return None
        return attempt.complete(
            hello_link.link,
            send_limit=sends.segment_bytes,
            receive_limit=receive_limit(self._takes),
        )

    @staticmethod
    async def _verify(
        attempt: UpgradeAttempt, hello_link: HelloLink, upgraded: Upgraded
    ) -> str | None:
        """Return why the upgrade cannot be used, or None; tell the server, if it does not know."""
        if not upgraded.ok:
            return f"at the server: {_hello.printable(upgraded.reason)}"
        if not attempt.verifies:
            return None
        try:
            await attempt.verify(hello_link.link, upgraded.params)
        except TransportUnavailable as error:
            await hello_link.send(Upgraded(ok=False, reason=error.reason[:1000]))
            return error.reason
        await hello_link.send(Upgraded(ok=True))
        return None

    async def _upgrade_elsewhere(
        self, transport: UpgradeTransport, answer: ServerHello, sends: Limits
    ) -> Channel | None:
        """Over TCP on one host: meet the server at an abstract Unix address."""
        assert answer.rendezvous is not None
        if answer.ticket is None:
            raise RemoteProtocolError("the server named a rendezvous but gave no ticket")
        path = _hello.check_rendezvous(answer.rendezvous)
        address = Address(scheme="l5+unix", path=path)
        try:
            unix = cast(BootstrapTransport, _registry.get("unix"))
            link = await unix.connect(address, self._options)
        except (OSError, L5Error) as error:
            raise TransportUnavailable(
                transport.name, f"the rendezvous address cannot be reached: {error}"
            ) from None
        link.let_fds_in(False)
        try:
            uid = link.peer.uid
            if uid not in (os.geteuid(), 0) or not _host.is_somebody(uid):
                raise TransportUnavailable(
                    transport.name, f"uid {uid} listens at the rendezvous, not this user"
                )
            hello_link = HelloLink(link)
            # step 7 (client, rendezvous): met, and silent
            await hello_link.send(Attach(ticket=answer.ticket))
            # step 8 (client, rendezvous): the ticket is sent
            try:
                channel = await self._upgrade_on(hello_link, transport, answer, sends)
            except TransportUnavailable as error:
                # The server waits here by now, so here it has to be told.
                self._reasons[transport.name] = error.reason
                await self._decline(hello_link, error.reason)
                link.abort()
                return None
        except BaseException:
            link.abort()
            raise
        if channel is not None:
            self._link.abort()  # its work is done: the rendezvous socket is the sign of life
        return channel

    def _established(
        self, channel: Channel | None, sends: Limits, answer: ServerHello
    ) -> Established:
        link, demanded = self._link, self._address.demanded
        bootstrap = link.transport
        used = channel.transport if channel is not None else bootstrap
        # A region without the way that was demanded is emulated: the same results, and it says so.
        if demanded is not None and demanded != used and self._memory is None:
            if channel is not None:
                channel.close()
            reason = self._reasons.get(demanded, "the server did not choose it")
            raise TransportUnavailable(demanded, reason)
        self._reasons.pop(used, None)
        if channel is None:
            channel = link.into_channel(
                send_limit=sends.segment_bytes, receive_limit=receive_limit(self._takes)
            )
        watched = channel.lifelines()
        if channel.one_copy or isinstance(channel, MemoryChannel):
            watched += peer_pidfd(channel.fileno(), answer.pid, connected=False)
        report = UpgradeReport(used, bootstrap, dict(self._reasons), channel.mode)
        sends = fit_segments(sends, channel)
        identity = answer.identity or b""
        return Established(
            channel, link.peer, sends, self._takes, report, watched, identity=identity
        )
