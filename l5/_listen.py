"""`listen`: an anyio listener whose connections have been through the handshake."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import anyio.lowlevel

from ._acceptor import Acceptor, open_session
from ._connection import Connection
from ._flow import Budget
from ._wait import current_hub

if TYPE_CHECKING:
    from ._bootstrap import Established
    from ._options import ListenOptions
    from ._region import Region


async def listen(*urls: str, **options: Any) -> Listener:
    """Listen on `urls` and return a `Listener`; options as for `serve`.

    Raises `AddressError` for a bad URL or option and `OSError` when a URL is taken.
    """
    acceptor = Acceptor(urls, options)
    await acceptor.open()
    return Listener(acceptor)


class Listener(anyio.abc.Listener[Connection]):
    """Accept connections: ``await listener.serve(handler)``, or one by one in `serve`'s stead."""

    def __init__(self, acceptor: Acceptor) -> None:
        self._acceptor = acceptor
        self._budget = Budget(acceptor.options.total_reassembly_bytes)

    @property
    def urls(self) -> tuple[str, ...]:
        """Where clients reach this listener (with the real ports)."""
        return self._acceptor.urls

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        """No typed attributes: everything is a property."""
        return {}

    async def serve(
        self,
        handler: Callable[[Connection], Coroutine[Any, Any, Any]],
        task_group: anyio.abc.TaskGroup | None = None,
    ) -> None:
        """Run `handler` for every connection, in `task_group` or in one of our own, until closed.

        The handler closes its connection, as with any listener of anyio.
        """

        async def on_established(made: Established, options: ListenOptions) -> None:
            budget = Budget(options.reassembly_bytes, self._budget)
            session = open_session(self._acceptor.dropped, current_hub(), made, options, budget)
            if session is None:
                self._acceptor.left(made)
                return
            session.on_close.append(lambda: self._acceptor.left(made))
            connection = Connection(session)
            if task_group is None:
                await handler(connection)
            else:
                task_group.start_soon(handler, connection)

        await self._acceptor.run(on_established)

    def export(self, name: str, region: Region) -> None:
        """Let clients open `region` by `name`, as `l5.Server.export` does, until `aclose`."""
        self._acceptor.exports.add(name, region)

    def revoke(self, name: str) -> None:
        """Take back what `export` gave: see `l5.Server.revoke`."""
        self._acceptor.exports.remove(name)

    async def aclose(self) -> None:
        """Stop listening, and revoke what is exported; connections go on."""
        self._acceptor.close()
        self._acceptor.exports.close()
        await anyio.lowlevel.checkpoint()

    async def __aenter__(self) -> Listener:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
