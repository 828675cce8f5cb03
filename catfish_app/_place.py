"""Where pages for browsers are served: PORT or HOST:PORT, and who may reach it."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any


def parse_place(text: str) -> tuple[str, int]:
    """Read PORT or HOST:PORT; raises ValueError. Without a host it is this machine only."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r}: wanted is PORT or HOST:PORT, such as 8080 or 127.0.0.1:8080")
    return host.strip("[]") or "127.0.0.1", int(port)


def check_place(host: str, port: int, *, insecure: bool) -> tuple[int, Any]:
    """Return family and address of a place; beyond this machine only when told so.

    Raises ValueError: these pages ask nobody who he is.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    if not insecure and not is_loopback(address):
        raise ValueError(
            f"{host} can be reached from other machines, and whoever reaches it sees the tree: use "
            "127.0.0.1 and a proxy that asks who it is, or --insecure"
        )
    return family, address


def is_loopback(address: Any) -> bool:
    """Tell whether only this machine reaches a socket's address."""
    return ipaddress.ip_address(address[0]).is_loopback
