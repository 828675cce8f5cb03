"""Listening: links are accepted, shaken hands with (a bounded number at once) and handed on."""

from __future__ import annotations

import logging
import secrets
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from . import _address, _hello, _registry
from ._address import Address
from ._bootstrap import Established, HelloLink, close_all, upgrade_transports
from ._errors import AddressError, L5Error, RemoteProtocolError
from ._exports import Exports
from ._flow import Budget, Quota
from ._hello import Attach
from ._limits import Complaint, explain
from ._lobby import Guest, Lobby
from ._memory_wire import memory_options
from ._options import ListenOptions
from ._owner_link import OwnerLink
from ._session import Session
from ._tickets import Rejected, Tickets
from ._wait import current_hub
from ._welcome import ServerHandshake
from .abc import BootstrapTransport, Link, LinkListener

if TYPE_CHECKING:
    from ._handler import RequestServer
    from ._wait import Hub

logger = logging.getLogger("l5.server")

OnEstablished = Callable[[Established, ListenOptions], Awaitable[None]]

_QUIET = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)


@attrs.frozen
class Endpoint:
    """One URL that is listened on."""

    address: Address
    options: ListenOptions
    listener: LinkListener


class Acceptor:
    """The listeners of one server."""

    def __init__(self, urls: Sequence[str], options: dict[str, Any]) -> None:
        if not urls:
            raise AddressError("nothing to listen on: give at least one URL")
        schemes = _registry.schemes()
        self._wanted = [
            (address, ListenOptions.from_mapping(address.options, options))
            for address in (_address.parse(url, schemes, allow_port_zero=True) for url in urls)
        ]
        for address, chosen in self._wanted:
            _check_exposure(address, chosen)
        self.endpoints: list[Endpoint] = []
        self.tickets: Tickets = Tickets()
        self.connections: int = 0
        self.rejected: int = 0
        self._joining = 0
        """Those whose hello was taken, and whose handshake is not over."""
        self.shared: Quota = Quota(self.options.total_shared_bytes)
        """Memory of rings, of all connections."""
        self.exports: Exports = Exports()
        self.dropped: Complaint = Complaint(logger)
        self._rendezvous: LinkListener | None = None

    @property
    def options(self) -> ListenOptions:
        """The options of the first URL, for what concerns the server as a whole."""
        return self._wanted[0][1]

    @property
    def urls(self) -> tuple[str, ...]:
        """Where clients reach this server (with real ports)."""
        return tuple(endpoint.listener.url for endpoint in self.endpoints)

    async def open(self) -> None:
        """Listen on every URL, or on none and raise."""
        try:
            for address, options in self._wanted:
                transport = _registry.get(address.bootstrap)
                if not isinstance(transport, BootstrapTransport):
                    raise AddressError(
                        f"{address.bootstrap!r} is an upgrade: nothing listens on it"
                    )
                listener = await transport.listen(address, options)
                self.endpoints.append(Endpoint(address, options, listener))
            await self._open_rendezvous()
        except BaseException:
            self.close()
            raise

    async def _open_rendezvous(self) -> None:
        """Open the abstract address at which TCP clients of this host fetch shared memory."""
        if not any(_may_meet(endpoint) for endpoint in self.endpoints):
            return
        if not sys.platform.startswith("linux"):
            return
        name = f"@l5-{secrets.token_hex(16)}"
        address = Address(scheme="l5+unix", path=name)
        try:
            transport: Any = _registry.get("unix")
            self._rendezvous = await transport.listen(address, self.options)
            self.tickets.address = name
        except (OSError, L5Error) as error:
            logger.info("no rendezvous address, TCP clients stay on their sockets: %s", error)

    def close(self) -> None:
        """Stop listening; connections go on."""
        for endpoint in self.endpoints:
            endpoint.listener.close()
        if self._rendezvous is not None:
            self._rendezvous.close()

    async def run(self, on_established: OnEstablished) -> None:
        """Accept until closed; `on_established` runs in a task of its own for each connection.

        It sees to it that `left` is called once the connection has ended.
        """
        async with anyio.create_task_group() as group:

            async def admit(listener: LinkListener, options: ListenOptions, serve: Any) -> None:
                lobby = Lobby(options.hellos_max, options.hello_timeout)
                while (link := await _next_link(listener, lobby)) is not None:
                    group.start_soon(serve, link, lobby)

            for endpoint in self.endpoints:
                welcome = partial(self._welcome, endpoint, on_established)
                group.start_soon(admit, endpoint.listener, endpoint.options, welcome)
            if self._rendezvous is not None:
                group.start_soon(admit, self._rendezvous, self.options, self._attach)

    async def _welcome(
        self, endpoint: Endpoint, on_established: OnEstablished, link: Link, lobby: Lobby
    ) -> None:
        with lobby.holding() as guest:
            try:
                made = await self._shake_hands(link, endpoint, guest)
            finally:
                self._joining -= guest.counted
        if made is None:
            return
        if made.memory:
            await self._serve_memory(made, endpoint.options)
            return
        self.connections += 1
        logger.info("connected: %s over %s", made.peer.address or made.peer.pid, made.report)
        await on_established(made, endpoint.options)

    def left(self, made: Established) -> None:
        """Stop counting a connection: it has ended, or came to nothing."""
        self.connections -= 1
        self.shared.give_back(made.shared_bytes)
        self.exports.forget(made.identity)

    async def _serve_memory(self, made: Established, options: ListenOptions) -> None:
        """Serve a memory link in this task until it ends."""
        owner = OwnerLink(self.exports, options)
        budget = Budget(options.reassembly_bytes)
        try:
            session = open_session(
                self.dropped, current_hub(), made, memory_options(options), budget, owner
            )
            if session is not None:
                session.role = "memory"
                await self.exports.serve(made.identity, session, owner)
        except Exception:
            logger.exception("the memory link of %s ended by an error of our own", made.peer)
        finally:
            self.shared.give_back(made.shared_bytes)

    async def _shake_hands(
        self, link: Link, endpoint: Endpoint, guest: Guest
    ) -> Established | None:
        """Return the connection, or None for one that came to nothing: it ends alone."""
        options = endpoint.options

        def heard(memory: bool) -> bool:
            guest.heard()
            if memory:  # one a connection, so they are counted already
                return True
            guest.counted = self.connections + self._joining < options.connections_max
            self._joining += guest.counted
            return guest.counted

        handshake = ServerHandshake(
            link, endpoint.address, options, self.tickets, self.shared, self.exports
        )
        try:
            with guest.scope:
                return await handshake.run(heard)
            if guest.evicted:
                self.rejected += 1
                logger.info("%s was silent while others waited, and is turned away", link.peer)
                await handshake.refuse("busy", "others wait for their turn: say hello at once")
            else:
                logger.info("%s did not finish its hello in time", link.peer)
                await handshake.refuse("timeout", f"no hello within {options.hello_timeout:g} s")
        except (Rejected, RemoteProtocolError) as error:
            self.rejected += 1
            logger.info("%s turned away: %s", link.peer, error)
        except _QUIET as error:
            logger.debug("%s left during the handshake: %r", link.peer, error)
        except Exception:
            logger.exception("the handshake with %s failed by an error of our own", link.peer)
        except BaseException:
            link.abort()
            raise
        link.abort()
        return None

    async def _attach(self, link: Link, lobby: Lobby) -> None:
        with lobby.holding() as guest:
            await self._redeem(link, guest)

    async def _redeem(self, link: Link, guest: Guest) -> None:
        try:
            with guest.scope:
                hello_link = HelloLink(link)
                message, fds = await hello_link.receive()
                close_all(fds)
                attach = _hello.expect(message, Attach)
                if self.tickets.redeem(attach.ticket, hello_link):
                    return  # the connection that waits for it owns it now
                logger.info("%s came with a ticket that is not valid (any more)", link.peer)
            link.abort()
        except (L5Error, *_QUIET) as error:
            logger.debug("%s at the rendezvous: %r", link.peer, error)
            link.abort()
        except BaseException:
            link.abort()
            raise


async def _next_link(listener: LinkListener, lobby: Lobby) -> Link | None:
    """Accept one that has a place then; None when the listener is closed."""
    try:
        link = await listener.accept()
    except anyio.ClosedResourceError:
        return None
    try:
        await lobby.take_place()
    except BaseException:
        link.abort()
        raise
    return link


def open_session(
    dropped: Complaint,
    hub: Hub,
    made: Established,
    options: ListenOptions,
    budget: Budget,
    workers: RequestServer | None = None,
) -> Session | None:
    """Make a session of what was shaken hands on; None, told and closed, if there is no room."""
    try:
        session = Session(hub, made, options, budget, workers)
    except OSError as error:
        dropped.say("a connection from %s is dropped: %s", made.peer, explain(error))
        return None
    session.role = "server"  # also one that takes no requests
    return session


def _may_meet(endpoint: Endpoint) -> bool:
    """Tell whether clients of this URL could be sent to a rendezvous: TCP, upgrades wanted."""
    if endpoint.address.bootstrap != "tcp":
        return False
    transports = upgrade_transports(endpoint.options.transports, endpoint.address.demanded)
    return any(not isinstance(each, str) and each.needs_fds for each in transports.values())


def _check_exposure(address: Address, options: ListenOptions) -> None:
    """Refuse to let the whole network in by accident."""
    if address.bootstrap != "tcp" or address.tls or options.token or options.insecure:
        return
    host = (address.host or "").lower()
    if host in ("localhost", "::1") or host.startswith("127."):
        return
    raise AddressError(
        f"{address.redacted} would let anybody in: give a token= or use l5s:// (TLS), "
        "or say insecure=True; without either only loopback addresses are served"
    )
