"""What a server gives to clients that come twice, and what it says to those that it turns away."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import anyio
import attrs

from ._errors import L5Error

if TYPE_CHECKING:
    from ._bootstrap import HelloLink


class Tickets:
    """One-time tickets: links that arrive at the rendezvous find the connection they belong to."""

    def __init__(self) -> None:
        self.address: str | None = None
        self._open: dict[bytes, TicketHolder] = {}

    def issue(self) -> TicketHolder:
        """Make a ticket; it is void when the holder is closed."""
        holder = TicketHolder(secrets.token_bytes(32), anyio.Event())
        self._open[holder.ticket] = holder
        return holder

    def redeem(self, ticket: bytes, hello_link: HelloLink) -> bool:
        """Give a link to the connection that holds this ticket; False if nobody does."""
        holder = self._open.pop(ticket, None)
        if holder is None:
            return False
        holder.hello_link = hello_link
        holder.arrived.set()
        return True

    def void(self, holder: TicketHolder) -> None:
        """Take a ticket back."""
        self._open.pop(holder.ticket, None)


@attrs.define(eq=False)
class TicketHolder:
    """A connection that waits for its client at the rendezvous."""

    ticket: bytes
    arrived: anyio.Event
    hello_link: HelloLink | None = None


class Rejected(L5Error):
    """A client was turned away; carries what it was told."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
