"""Serve an R-tree: C worker threads where they can be had, else Python in the event loop."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import attrs

import l5
from catfish_app import _wire
from catfish_app._direct import REGION_NAME
from catfish_app._handler import TreeHandler
from catfish_app._kernels import ffi, lib
from catfish_app._rtree import RTree

logger = logging.getLogger("catfish")

Mode = Literal["poll", "event", "adaptive"]
REPORT_S = 0.2
"""How often the statistics learn how busy the server is."""


class NativeTree:
    """The C handler of a tree, and the service that runs it."""

    def __init__(
        self, tree: RTree, *, workers: int = 1, mode: Mode = "adaptive", spin_us: int = 50
    ) -> None:
        made = ffi.new("struct rt_service **")
        error = lib.rt_service_create(made, ffi.cast("struct rtree *", tree.address), workers)
        if error == -errno.ENOTSUP:
            raise l5.TransportUnavailable("native services", "numbers here are big-endian")
        if error:
            raise OSError(-error, os.strerror(-error))
        self._state = ffi.gc(made[0], lib.rt_service_destroy)
        self.workers = workers
        self.service = l5.NativeService(
            int(ffi.cast("uintptr_t", ffi.addressof(lib, "rt_service_handle"))),
            int(ffi.cast("uintptr_t", self._state)),
            workers=workers,
            mode=mode,
            spin_us=spin_us,
            keep_alive=(self._state, tree),
            name="rtree",
        )

    def counts(self) -> dict[str, int]:
        """Return how many requests there were, by the operation's name."""
        counts = ffi.new("uint64_t[]", len(_wire.COUNTED))
        lib.rt_service_counts(self._state, counts)
        return dict(zip(_wire.COUNTED, counts, strict=True))

    def report(self, connections: int, busy_share: float) -> None:
        """Set what the answers to STATS tell of the server."""
        lib.rt_service_report(self._state, connections, round(busy_share * 1e6))


@attrs.define(eq=False)
class TreeServer:
    """A tree that is being served; made by `serve_tree`."""

    tree: RTree
    server: l5.Server
    native: NativeTree | None
    handler: TreeHandler | None
    not_shared: str = ""
    """Why clients cannot search the tree by themselves; empty if they may."""
    busy_share: float = 0.0
    """Useful time over wall time of the last tenths of a second, mean over the workers."""

    @property
    def urls(self) -> tuple[str, ...]:
        """Where clients reach the tree."""
        return self.server.urls

    @property
    def requests(self) -> int:
        """Requests answered since the server was started."""
        answered = self.server.statistics().requests
        if self.native is not None:
            answered += self.native.service.statistics().requests
        return answered

    def counts(self) -> dict[str, int]:
        """Return how many requests there were, by the operation's name; any thread."""
        if self.native is not None:
            return self.native.counts()
        return {} if self.handler is None else self.handler.counts()

    async def keep_reporting(self) -> None:
        """Tell the handler how busy it is, until cancelled."""
        before, useful = time.perf_counter_ns(), self._useful_ns()
        while True:
            await anyio.sleep(REPORT_S)
            now, useful_now = time.perf_counter_ns(), self._useful_ns()
            self._report((useful_now - useful) / (now - before))
            before, useful = now, useful_now

    def _useful_ns(self) -> int:
        return 0 if self.handler is None else self.handler.useful_ns

    def _report(self, python_share: float) -> None:
        connections = self.server.statistics().connections
        if self.native is not None:
            self.busy_share = self.native.service.statistics().busy_share
            self.native.report(connections, self.busy_share)
        elif self.handler is not None:
            self.busy_share = min(1.0, python_share)
            self.handler.busy_share = self.busy_share
            self.handler.connections = connections


@asynccontextmanager
async def serve_tree(
    tree: RTree,
    *urls: str,
    workers: int = 1,
    mode: Mode = "adaptive",
    spin_us: int = 50,
    python: bool = False,
    share: bool = True,
    **options: Any,
) -> AsyncGenerator[TreeServer]:
    """Serve a tree at `urls`; use as ``async with serve_tree(tree, url) as server``.

    `workers` threads answer in C without the GIL; `mode` is what they do when there is nothing to
    do: ``"poll"`` spins, ``"event"`` sleeps, ``"adaptive"`` spins for `spin_us` and then sleeps.
    With ``python=True``, or where native services cannot be had, Python answers in the event loop.
    Other options, and the errors, are those of `l5.serve`. Leaving the block lets running requests
    finish. The tree may be used meanwhile by this process too.

    Clients may search the tree by themselves, in memory that it is moved to (`RTree.share`) and
    that they can read only. Where that cannot be had the server alone searches, and `not_shared`
    says why. With ``share=False`` it does so in any case.
    """
    native = None if python else _native_tree(tree, workers, mode, spin_us)
    handler = TreeHandler(tree) if native is None else None
    answering = handler or (native and native.service)
    assert answering is not None
    prepared = l5.serve(answering, *urls, **options)
    not_shared = _offer(tree, prepared, share)  # before the first client can ask for it
    async with prepared as server:
        served = TreeServer(tree, server, native, handler, not_shared)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(served.keep_reporting)
            try:
                yield served
            finally:
                tasks.cancel_scope.cancel()


def _offer(tree: RTree, server: l5.Server, share: bool) -> str:
    """Let clients read the tree; return why they cannot."""
    if not share:
        return "the server keeps its tree to itself (share=False)"
    try:
        tree.share()
    except OSError as error:
        logger.info("clients cannot search the tree by themselves: %s", error)
        return str(error)
    assert tree.region is not None
    server.export(REGION_NAME, tree.region)
    return ""


def _native_tree(tree: RTree, workers: int, mode: Mode, spin_us: int) -> NativeTree | None:
    try:
        return NativeTree(tree, workers=workers, mode=mode, spin_us=spin_us)
    except l5.TransportUnavailable as error:
        logger.info("Python answers in the event loop: %s", error)
        return None
