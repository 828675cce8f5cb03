"""Which transports there are: those that installed packages declare, ours among them.

A package declares a transport by an entry point in the group ``l5.transports`` whose name is the
transport's and whose object is a class without constructor arguments. It is imported when it is
first asked for. One that cannot be used is kept with its reason, so that ``l5 info`` can say it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Final, cast

from l5._errors import TransportUnavailable
from l5.abc import Transport

GROUP = "l5.transports"
# What this package declares itself, for a checkout that was installed before it did.
OWN: Final = {"rdma": "l5.transports.rdma:RDMATransport"}
_log = logging.getLogger("l5.registry")


def _installed() -> Iterable[EntryPoint]:
    found = list(entry_points(group=GROUP))
    declared = {entry.value for entry in found}
    missing = {name: value for name, value in OWN.items() if value not in declared}
    return found + [EntryPoint(name, value, GROUP) for name, value in missing.items()]


class Registry:
    """Transports by name: found once, loaded when asked for, safe to use from any thread."""

    def __init__(self, find: Callable[[], Iterable[EntryPoint]] = _installed) -> None:
        self._find = find
        # Reentrant: importing a plugin may import one that asks the registry.
        self._lock = threading.RLock()
        self._declared: dict[str, list[EntryPoint]] | None = None
        self._loaded: dict[str, Transport | TransportUnavailable] = {}
        self._overlay: dict[str, Transport] = {}

    def get(self, name: str) -> Transport:
        """Return the transport of this name, the same object each time.

        Raises TransportUnavailable when there is none, when its plugin does not load, or when two
        packages declare it.
        """
        with self._lock:
            if name in self._overlay:
                return self._overlay[name]
            if name not in self._loaded:
                self._loaded[name] = self._load(name)
            found = self._loaded[name]
        if isinstance(found, TransportUnavailable):
            raise TransportUnavailable(found.transport, found.reason) from found.__cause__
        return found

    def names(self) -> list[str]:
        """List the declared transports, usable or not."""
        with self._lock:
            return sorted({*self._entries(), *self._overlay})

    def schemes(self) -> frozenset[str]:
        """List the schemes that a URL may have."""
        names = self.names()
        plain = {"l5", "l5s"} if "tcp" in names else set[str]()
        return frozenset(plain | {f"l5+{name}" for name in names})

    @contextmanager
    def register_for_tests(self, name: str, cls: Callable[[], Transport]) -> Generator[Transport]:
        """Have a transport under a name, instead of any other, for the length of a block."""
        transport = cls()
        with self._lock:
            before = self._overlay.get(name)
            self._overlay[name] = transport
        try:
            yield transport
        finally:
            with self._lock:
                del self._overlay[name]
                if before is not None:
                    self._overlay[name] = before

    def _entries(self) -> dict[str, list[EntryPoint]]:
        if self._declared is None:
            declared: dict[str, list[EntryPoint]] = {}
            for entry in self._find():
                declared.setdefault(entry.name, []).append(entry)
            self._declared = declared
        return self._declared

    def _load(self, name: str) -> Transport | TransportUnavailable:
        entries = self._entries().get(name, [])
        if not entries:
            known = ", ".join(self.names())
            hint = f"known are {known}" if known else "none is: is the package l5net installed?"
            return TransportUnavailable(name, f"no installed package declares it; {hint}")
        if len(entries) > 1:
            sources = " and ".join(sorted(_source(entry) for entry in entries))
            reason = f"declared by {sources}; uninstall all but one"
            _log.warning("transport %s: %s", name, reason)
            return TransportUnavailable(name, reason)
        return self._load_entry(name, entries[0])

    @staticmethod
    def _load_entry(name: str, entry: EntryPoint) -> Transport | TransportUnavailable:
        try:
            transport = cast("Callable[[], Transport]", entry.load())()
            own_name = transport.name
        except Exception as error:  # a plugin may raise anything; only itself must suffer
            reason = f"{_source(entry)} does not load: {type(error).__name__}: {error}"
            _log.warning("transport %s: %s", name, reason)
            unavailable = TransportUnavailable(name, reason)
            unavailable.__cause__ = error
            return unavailable
        if own_name != name:
            reason = f"{_source(entry)} calls itself {own_name!r}; the two names must be the same"
            _log.warning("transport %s: %s", name, reason)
            return TransportUnavailable(name, reason)
        return transport


def _source(entry: EntryPoint) -> str:
    package = "an unknown package" if entry.dist is None else entry.dist.name
    return f"{package} ({entry.value})"


registry = Registry()
get = registry.get
names = registry.names
schemes = registry.schemes
register_for_tests = registry.register_for_tests
