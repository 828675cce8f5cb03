"""What a peer is told as its connection ends: CLOSE, or an ERROR with the id 0 that says why."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ._frames import Kind, pack_error
from ._hello import SEGMENT_BYTES_MIN

if TYPE_CHECKING:
    from .abc import Channel

logger = logging.getLogger("l5.session")


def say(channel: Channel, kind: int, payload: bytes = b"") -> None:
    """Send the last frame if there is room; never fails."""
    # step 51 (both, any): nothing is said of the end
    try:
        channel.try_send(kind, 0, 0, payload)
        channel.flush()
        # step 52 (both, any): the last frame is sent
    except Exception as error:
        logger.debug("the last word was not sent: %r", error)


def tell_fault(
    channel: Channel, text: str, code: str = "malformed", room_bytes: int = SEGMENT_BYTES_MIN
) -> None:
    """Tell a peer which rule it broke; no request has the id 0, so this concerns them all."""
    say(channel, Kind.ERROR, pack_error(code, text, room_bytes))
