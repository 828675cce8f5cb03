"""What a peer speaks that does not speak l5, by its first bytes."""

from __future__ import annotations

from typing import Final

MAGIC: Final = b"L5"
"""How each message of the handshake begins."""

_TLS = "TLS (one end may be l5s:// and the other l5://)"
_FOREIGN = {
    b"GET ": "HTTP",
    b"HEAD": "HTTP",
    b"POST": "HTTP",
    b"PUT ": "HTTP",
    b"OPTI": "HTTP",
    b"HTTP": "HTTP",
    b"PRI ": "HTTP/2",
    b"SSH-": "SSH",
    b"\x16\x03": _TLS,
    b"\x15\x03": _TLS,
}


def may_be_foreign(head: bytes) -> bool:
    """Tell whether more bytes could show which protocol this is."""
    return any(signature.startswith(head) for signature in _FOREIGN)


def foreign(head: bytes) -> str | None:
    """Say what a peer speaks whose first bytes are not a hello's; None if they may be."""
    if head[:2] == MAGIC[: len(head)]:
        return None
    for signature, protocol in _FOREIGN.items():
        if head.startswith(signature):
            return f"the peer does not speak l5 but {protocol}"
    return f"the peer does not speak l5: it begins with {head[:4]!r}"
