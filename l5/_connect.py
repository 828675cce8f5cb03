"""`connect`: parse, reach, shake hands, upgrade; every failed attempt is listed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import anyio

from . import _address, _limits, _registry
from ._bootstrap import ClientHandshake, Established
from ._connection import Connection
from ._errors import (
    AddressError,
    Attempt,
    ConnectError,
    RemoteAccessError,
    RemoteProtocolError,
    TransportUnavailable,
)
from ._flow import Budget
from ._memory_wire import memory_options
from ._options import Options
from ._session import Session
from ._wait import current_hub
from .abc import BootstrapTransport, Link

logger = logging.getLogger("l5.client")

ELSEWHERE_TRIES: Final = 64  # of eight siblings at one address, all miss once in 5000 times
ELSEWHERE_PAUSE_S: Final = 0.01


async def connect(url: str, **options: Any) -> Connection:
    """Connect to `url` and upgrade to the best transport that both ends have.

    ``l5://host:port`` and ``l5+unix:///path`` upgrade themselves; ``l5+shm://``, ``l5+tcp://`` and
    so on demand one transport.  Options stand in the URL's query or are keywords (see
    `l5.Options`).  Raises `AddressError` for a bad URL or option; `ConnectError`, which lists each
    attempt, when nothing could be reached, was refused, or a demanded transport cannot be had.
    Cancellation leaves nothing behind.
    """
    made, chosen = await establish(url, options)
    try:
        session = Session(current_hub(), made, chosen, Budget(chosen.reassembly_bytes))
    except OSError as error:
        raise no_room(url, error) from error
    connection = Connection(session)
    connection._dial = partial(_connect_memory, url, chosen, made.identity)
    return connection


async def _connect_memory(url: str, options: Options, identity: bytes) -> Connection:
    made, chosen = await establish_memory(url, options, identity)
    try:
        session = Session(current_hub(), made, chosen, Budget(chosen.reassembly_bytes))
    except OSError as error:
        raise no_room(url, error) from error
    session.role = "memory"
    return Connection(session)


async def establish_memory(
    url: str, options: Options, identity: bytes
) -> tuple[Established, Options]:
    """Do as `establish`, for the memory link of a connection: to the server of that identity."""
    if not identity:
        raise RemoteAccessError("the server is too old to know of remote memory")
    address = _address.parse(url, _registry.schemes())
    chosen = memory_options(options)
    return await _reach(address, chosen, identity), chosen


def no_room(url: str, error: OSError) -> ConnectError:
    """Return what to raise when a limit of this process leaves no room for the session."""
    shown = _address.parse(url, _registry.schemes()).redacted
    return ConnectError(shown, [Attempt(shown, _limits.explain(error))])


async def establish(url: str, options: Mapping[str, object]) -> tuple[Established, Options]:
    """Do all of `connect` but the session; what is returned belongs to no event loop."""
    address = _address.parse(url, _registry.schemes())
    chosen = Options.from_mapping(address.options, options)
    return await _reach(address, chosen), chosen


async def _reach(
    address: _address.Address, chosen: Options, memory: bytes | None = None
) -> Established:
    """Reach the server and shake hands; `memory`: for the memory link of that identity."""
    attempts: list[Attempt] = []
    with anyio.move_on_after(chosen.connect_timeout):
        try:
            made = await _establish_there(address, chosen, memory)
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
            attempts.append(Attempt(address.redacted, _explain(error)))
        except (TransportUnavailable, RemoteProtocolError) as error:
            attempts.append(Attempt(address.redacted, str(error)))
            raise ConnectError(address.redacted, attempts) from error
        else:
            logger.info("connected to %s over %s", address.redacted, made.report)
            return made
    if not attempts:
        reason = f"no connection within {chosen.connect_timeout:g} s"
        attempts.append(Attempt(address.redacted, reason))
    logger.info("not connected to %s: %s", address.redacted, attempts[0].reason)
    raise ConnectError(address.redacted, attempts)


def _explain(error: Exception) -> str:
    if isinstance(error, OSError):
        return _limits.explain(error)
    return str(error) or type(error).__name__


async def _establish_there(
    address: _address.Address, options: Options, memory: bytes | None
) -> Established:
    """Try again when a sibling of the server answers, which shares its address."""
    for tries_left in range(ELSEWHERE_TRIES, 0, -1):
        try:
            return await _establish(address, options, memory)
        except RemoteProtocolError as error:
            if error.code != "elsewhere" or tries_left == 1:
                raise
        await anyio.sleep(ELSEWHERE_PAUSE_S)
    raise AssertionError("unreachable")


async def _establish(
    address: _address.Address, options: Options, memory: bytes | None
) -> Established:
    transport = _registry.get(address.bootstrap)
    if not isinstance(transport, BootstrapTransport):
        raise AddressError(f"{address.bootstrap!r} is an upgrade: connections cannot begin on it")
    link = await transport.connect(address, options)
    try:
        return await _shake_hands(link, address, options, memory)
    except BaseException:
        link.abort()
        raise


async def _shake_hands(
    link: Link, address: _address.Address, options: Options, memory: bytes | None
) -> Established:
    with anyio.move_on_after(options.hello_timeout):
        return await ClientHandshake(link, address, options, memory).run()
    raise TransportUnavailable(
        address.bootstrap, f"the server did not finish its hello within {options.hello_timeout:g} s"
    )
