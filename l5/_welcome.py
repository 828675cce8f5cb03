"""The server's side of the handshake; the whole of it is drawn in `l5._bootstrap`."""

from __future__ import annotations

import hmac
import logging
import os
from collections.abc import Callable
from typing import Any

import anyio

from . import _hello, _host, _selector
from ._address import Address
from ._bootstrap import (
    FEATURES,
    Established,
    HelloLink,
    close_all,
    fit_segments,
    receive_limit,
    upgrade_transports,
)
from ._errors import L5Error, RemoteProtocolError, TransportUnavailable
from ._exports import Exports
from ._flow import Quota
from ._hello import ClientHello, Hello, Limits, ServerHello, Upgrade, Upgraded
from ._memory_wire import memory_options
from ._options import ListenOptions, size_text
from ._pidfd import peer_pidfd
from ._selector import UpgradeReport
from ._tickets import Rejected, TicketHolder, Tickets
from .abc import Channel, Link, MemoryChannel, PeerInfo, UpgradeAttempt, UpgradeTransport

logger = logging.getLogger("l5.server")


class ServerHandshake:
    """The server's side; `run` returns the connection or raises, the caller aborts the link."""

    def __init__(
        self,
        link: Link,
        address: Address,
        options: ListenOptions,
        tickets: Tickets | None,
        shared: Quota,
        exports: Exports,
    ) -> None:
        self._exports = exports
        self._identity = b""
        self._memory = False
        """It becomes a memory link, of the connection of that identity."""
        self._shared = shared
        self._shared_bytes = 0
        self._hello_link = HelloLink(link)
        self._link = link
        self._address = address
        self._options = options
        self._tickets = tickets
        self._takes = _hello.limits_of(options)
        self._declined: dict[str, str] = {}
        link.let_fds_in(False)

    async def run(self, heard: Callable[[bool], bool]) -> Established:
        """Shake hands and upgrade; `Rejected` and `RemoteProtocolError` have been told the peer.

        `heard` is called when the peer's hello is here, with whether it wants a memory link, and
        says whether there is room for it: not earlier, for closing a socket with unread bytes
        would take the reason from the peer.
        """
        try:
            return await self._run(heard)
        except BaseException as error:
            self._shared.give_back(self._shared_bytes)
            if self._identity and not self._memory:
                self._exports.forget(self._identity)
            if isinstance(error, RemoteProtocolError):
                await self.refuse(error.code, str(error))
            elif isinstance(error, Rejected):
                await self.refuse(error.code, error.message)
            raise

    async def refuse(self, code: str, message: str) -> None:
        """Tell the peer why it is turned away, if it still listens; never waits long."""
        with anyio.move_on_after(0.5, shield=True):
            try:
                await self._hello_link.send(_hello.reject(code, message))
            except (OSError, L5Error, anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass

    async def _run(self, heard: Callable[[bool], bool]) -> Established:
        message, fds = await self._hello_link.receive()
        close_all(fds)
        room = heard(isinstance(message, ClientHello) and message.memory is not None)
        # step 11 (server, any): the client's hello is here
        hello = _hello.expect(message, ClientHello)
        version = _hello.negotiate_version(hello.versions)
        self._authorise(hello)
        if not room:
            raise Rejected("busy", f"{self._options.connections_max} connections are open")
        self._identify(hello)
        sends = _hello.agree(self._takes, hello.limits)
        offers = ", ".join(offer.transport for offer in hello.offers) or "no upgrade"
        logger.debug("%s, process %d, offers %s", self._link.peer, hello.pid, offers)
        choice, transport, params = self._choose(hello)
        logger.debug("chose %s for process %d; %s", choice or "none", hello.pid, self._declined)
        holder = self._holder(transport)
        self._link.let_fds_in(transport is not None and transport.needs_fds and holder is None)
        try:
            await self._hello_link.send(
                ServerHello(
                    version=version,
                    features=FEATURES,
                    limits=self._takes,
                    choice=choice,
                    params=params,
                    declined=self._declined,
                    pid=os.getpid(),
                    rendezvous=self._tickets.address if holder and self._tickets else None,
                    ticket=holder.ticket if holder else None,
                    identity=self._identity,
                )
            )
            # step 12 (server, any): the hello is answered
            channel = None
            if transport is not None:
                channel = await self._upgrade(transport, holder, sends)
        except BaseException:
            if holder is not None and holder.hello_link is not None:
                holder.hello_link.link.abort()
            raise
        finally:
            if holder is not None and self._tickets is not None:
                self._tickets.void(holder)
        return self._established(channel, sends, hello)

    def _identify(self, hello: ClientHello) -> None:
        """Give a connection its identity, or see to it that a memory link belongs to one."""
        if hello.memory is None:
            self._identity = self._exports.identify()
            return
        objection = self._exports.objection(hello.memory)
        if objection is not None:
            raise Rejected(*objection)
        self._memory, self._identity = True, hello.memory
        self._options = memory_options(self._options)
        self._takes = _hello.limits_of(self._options)

    def _authorise(self, hello: ClientHello) -> None:
        options, peer = self._options, self._link.peer
        token_ok = (
            options.token is not None
            and hello.token is not None
            and hmac.compare_digest(options.token, hello.token)
        )
        if not token_ok and not self._known(peer):
            raise Rejected("unauthorised", self._why_unknown(peer, hello))
        if options.allow is not None and not options.allow(peer):
            raise Rejected("unauthorised", "this server does not take this peer")

    def _known(self, peer: PeerInfo) -> bool:
        options = self._options
        if peer.uid is not None:
            allowed = options.allow_uids or frozenset({os.geteuid()})
            return peer.uid in allowed and _host.is_somebody(peer.uid)
        # TCP: a token if there is one; else TLS, loopback, or an explicit "insecure".
        return options.token is None

    def _why_unknown(self, peer: PeerInfo, hello: ClientHello) -> str:
        if peer.uid is None or hello.token is not None:
            return "a token is needed, and none or another one was given"
        if not _host.is_somebody(peer.uid):
            return (
                f"uid {peer.uid} may not connect here: it stands for every user of another user "
                "namespace, and only a token tells them apart (token= at both ends)"
            )
        return f"uid {peer.uid} may not connect here (allow_uids, or a token, can change that)"

    def _choose(
        self, hello: ClientHello
    ) -> tuple[str | None, UpgradeTransport | None, dict[str, Any]]:
        transports = upgrade_transports(
            self._options.transports, self._address.demanded, memory=self._memory
        )
        params = {offer.transport: offer.params for offer in hello.offers}
        usable: dict[str, str | None] = {}
        for name, transport in transports.items():
            if isinstance(transport, str):
                usable[name] = transport
                continue
            probe = transport.probe()
            usable[name] = None if probe.usable else probe.reason
            if probe.usable and name in params:
                usable[name] = transport.judge(self._link, params[name], self._options)
                if not self._shared.fits(transport.memory_bytes(params[name])):
                    usable[name] = usable[name] or self._no_memory()
            if usable[name] is None and self._must_meet(transport):
                usable[name] = self._no_rendezvous()
        choice = _selector.choose(
            hello.offers,
            usable,
            self._options.transports,
            None,
            # A Unix socket proves it: both ends see one file, whatever their network namespaces.
            self._link.passes_fds or _host.same_host(hello.host),
            self._link.peer.tls,
        )
        self._declined = dict(choice.declined)
        if choice.transport is None:
            return None, None, {}
        return choice.transport, transports[choice.transport], {}

    def _no_memory(self) -> str:
        used, limit = size_text(self._shared.used), size_text(self._shared.limit)
        return f"the connections of this server share {used}, and its total_shared is {limit}"

    def _no_rendezvous(self) -> str | None:
        if self._tickets is None or self._tickets.address is None:
            return "the server could not open a rendezvous address"
        return None

    def _must_meet(self, transport: UpgradeTransport | None) -> bool:
        """Tell whether the client has to come to a rendezvous, to pass its descriptors."""
        return transport is not None and transport.needs_fds and not self._link.passes_fds

    def _holder(self, transport: UpgradeTransport | None) -> TicketHolder | None:
        if self._tickets is None or not self._must_meet(transport):
            return None
        return self._tickets.issue()

    async def _upgrade(
        self, transport: UpgradeTransport, holder: TicketHolder | None, sends: Limits
    ) -> Channel | None:
        if holder is None:
            message, fds = await self._hello_link.receive()
            self._link.let_fds_in(False)
            return await self._join(self._hello_link, transport, message, fds, sends)
        declined = await self._meet(holder)
        if declined is not None or holder.hello_link is None:
            if self._tickets is not None:
                self._tickets.void(holder)  # who comes from now on is too late, and hears it
            if holder.hello_link is not None:
                holder.hello_link.link.abort()
            await self._hello_link.send(Upgraded(ok=False, reason="as you wish"))
            return None
        elsewhere = holder.hello_link
        message, fds = await elsewhere.receive()
        elsewhere.link.let_fds_in(False)
        channel = await self._join(elsewhere, transport, message, fds, sends)
        if channel is None:
            elsewhere.link.abort()
        else:
            self._link.abort()
        return channel

    async def _meet(self, holder: TicketHolder) -> Upgrade | None:
        """Wait until the client arrives at the rendezvous, or says that it cannot."""
        declined: Upgrade | None = None

        async def listen() -> None:
            nonlocal declined
            message, fds = await self._hello_link.receive()
            close_all(fds)
            declined = _hello.expect(message, Upgrade)
            group.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(listen)
                await holder.arrived.wait()
                group.cancel_scope.cancel()
        except* RemoteProtocolError as errors:
            raise errors.exceptions[0] from None
        return declined

    async def _join(
        self,
        hello_link: HelloLink,
        transport: UpgradeTransport,
        message: Hello,
        fds: list[int],
        sends: Limits,
    ) -> Channel | None:
        try:
            upgrade = _hello.expect(message, Upgrade)
        except RemoteProtocolError:
            close_all(fds)
            raise
        if upgrade.transport != transport.name:
            close_all(fds)
            reason = str(upgrade.params.get("reason", "the client stays on the socket"))
            self._declined[transport.name] = f"at the client: {_hello.printable(reason)}"
            await hello_link.send(Upgraded(ok=False, reason="as you wish"))
            return None
        try:
            attempt = self._take(transport, hello_link.link, upgrade, fds)
        except TransportUnavailable as error:
            self._declined[transport.name] = error.reason
            await hello_link.send(Upgraded(ok=False, reason=error.reason[:1000]))
            return None
        try:
            # step 13 (server, shm): the memory is mapped, and the client does not know
            await hello_link.send(Upgraded(ok=True, params=dict(attempt.message.params)))
            # step 14 (server, shm): it knows, and this end has not switched
            why_not = await self._verify(attempt, hello_link) if attempt.verifies else None
        except BaseException:
            attempt.abandon()
            raise
        if why_not is not None:
            attempt.abandon()
            self._shared.give_back(self._shared_bytes)
            self._shared_bytes = 0
            self._declined[transport.name] = f"at the client: {why_not}"
            return None
        return attempt.complete(
            hello_link.link,
            send_limit=sends.segment_bytes,
            receive_limit=receive_limit(self._takes),
        )

    @staticmethod
    async def _verify(attempt: UpgradeAttempt, hello_link: HelloLink) -> str | None:
        """Take part in showing that the way works; return why the client found that it does not."""
        came: list[Hello] = []
        failures: list[Exception] = []

        async def take_part() -> None:
            try:
                await attempt.verify(hello_link.link, {})
            except TransportUnavailable as error:
                logger.debug("this end cannot verify the way: %s", error)  # the client finds that

        async with anyio.create_task_group() as group:
            group.start_soon(take_part)
            try:
                message, fds = await hello_link.receive()
                close_all(fds)
                came.append(message)
            except Exception as error:  # not as a group: callers tell them apart by type
                failures.append(error)
            group.cancel_scope.cancel()
        if failures:
            raise failures[0]
        verdict = _hello.expect(came[0], Upgraded)
        return None if verdict.ok else _hello.printable(verdict.reason)

    def _take(
        self, transport: UpgradeTransport, link: Link, upgrade: Upgrade, fds: list[int]
    ) -> UpgradeAttempt:
        """Join the client's memory if the server's quota has room for it."""
        wanted = transport.memory_bytes(upgrade.params)
        if not self._shared.take(wanted):  # others may have been faster since the choice
            close_all(fds)
            raise TransportUnavailable(transport.name, self._no_memory())
        try:
            attempt = transport.join(link, upgrade.params, fds, self._options)
        except BaseException:
            self._shared.give_back(wanted)
            raise
        self._shared_bytes = wanted
        return attempt

    def _established(
        self, channel: Channel | None, sends: Limits, hello: ClientHello
    ) -> Established:
        link = self._link
        used = channel.transport if channel is not None else link.transport
        self._declined.pop(used, None)
        if channel is None:
            channel = link.into_channel(
                send_limit=sends.segment_bytes, receive_limit=receive_limit(self._takes)
            )
        watched = channel.lifelines()
        if channel.one_copy or isinstance(channel, MemoryChannel):
            watched += peer_pidfd(channel.fileno(), hello.pid, connected=True)
        report = UpgradeReport(used, link.transport, dict(self._declined), channel.mode)
        sends = fit_segments(sends, channel)
        return Established(
            channel,
            link.peer,
            sends,
            self._takes,
            report,
            watched,
            identity=self._identity,
            memory=self._memory,
            shared_bytes=self._shared_bytes,
        )
