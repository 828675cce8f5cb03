"""Verbs over pyverbs 39 to 64, as distributions ship it with rdma-core; for ``L5_VERBS=pyverbs``.

The only module that imports pyverbs, which takes some care:

- Importing it puts a handler on the root logger and sets its level: both are undone.
- ``PD.pd``, ``Context.context`` and ``CQ.cq`` crash before 61: nothing here touches them.
- Constants are our own table. What comes back is an int or an enum, according to the version.
- ``CompChannel`` has no ``fd`` before 57: the descriptor that appeared as it was made is taken.
- Requests are made once and kept, with what they point to, and freed once (_pyverbs_made.py).
- It keeps no reference to registered memory: our region does.
- Nothing is left to the garbage collector, which closes in an order that fails.

Every call holds the GIL, registering memory too (about 6 ms for a megabyte that was not touched).
"""

from __future__ import annotations

import errno
import importlib
import ipaddress
import logging
import os
import threading
import types
from typing import Any, Final

from . import verbs
from ._pyverbs_made import Api, calling, code_of
from ._pyverbs_parts import PyverbsCompletionQueue, PyverbsDomain
from ._values import DeviceLimits, Gid, PortState

MODULES: Final = ("addr", "cq", "device", "mr", "pd", "pyverbs_error", "qp", "wr")
GIDS_MAX: Final = 1024
WINDOWS_TYPE_2: Final = 1 << 23 | 1 << 24
EVENT_FILE: Final = "infinibandevent"

IMPORT_ADVICE: Final = (
    "install the distribution's package (Debian, Ubuntu: python3-pyverbs) for the distribution's"
    " Python, or unset L5_VERBS: the default backend works with any Python"
)

_finding = threading.Lock()


def backend() -> PyverbsBackend:
    """Return the backend.

    :raises VerbsUnavailable: pyverbs is not there, or was built for another rdma-core.
    """
    try:
        return PyverbsBackend(_load())
    except ImportError as error:
        raise verbs.VerbsUnavailable(
            "backend", f"pyverbs cannot be imported ({error})", IMPORT_ADVICE
        ) from error


def _load() -> Api:
    """Import pyverbs, and leave logging as it was."""
    before, level = [*logging.root.handlers], logging.root.level
    try:
        names = {name: importlib.import_module(f"pyverbs.{name}") for name in MODULES}
    finally:
        for handler in [*logging.root.handlers]:
            if handler not in before:
                logging.root.removeHandler(handler)
        logging.root.setLevel(level)
    modules: Any = types.SimpleNamespace(**names)
    return Api(
        AHAttr=modules.addr.AHAttr,
        CQ=modules.cq.CQ,
        CompChannel=modules.cq.CompChannel,
        Context=modules.device.Context,
        GID=modules.addr.GID,
        GlobalRoute=modules.addr.GlobalRoute,
        MR=modules.mr.MR,
        PD=modules.pd.PD,
        QP=modules.qp.QP,
        QPAttr=modules.qp.QPAttr,
        QPCap=modules.qp.QPCap,
        QPInitAttr=modules.qp.QPInitAttr,
        RecvWR=modules.wr.RecvWR,
        SGE=modules.wr.SGE,
        SendWR=modules.wr.SendWR,
        error=modules.pyverbs_error.PyverbsError,
        get_device_list=modules.device.get_device_list,
    )


class PyverbsBackend(verbs.Backend):
    """The devices that pyverbs knows."""

    name = "pyverbs"

    def __init__(self, api: Api) -> None:
        self.api = api

    def devices(self) -> tuple[str, ...]:
        """List the devices' names."""
        try:
            return tuple(device.name.decode() for device in self.api.get_device_list())
        except self.api.error as error:
            # No kernel support, which it says without an errno, is no device.
            if code_of(error) in (errno.ENOSYS, errno.EIO):
                return ()
            raise verbs.verbs_error("list the devices", code_of(error)) from error

    def open(self, name: str) -> PyverbsDevice:
        """Open a device."""
        have = self.devices()
        if name not in have:
            advice = f"there is {', '.join(have) or 'none'}"
            raise verbs.VerbsUnavailable("device", f"there is no device {name!r}", advice)
        with calling(self.api, "open the device"):
            return PyverbsDevice(self.api, name, self.api.Context(name=name))


class PyverbsDevice(verbs.Device):
    """An open device."""

    def __init__(self, api: Api, name: str, context: Any) -> None:
        super().__init__()
        self.api = api
        self.name = name
        self.context = context
        with calling(self.api, "query the device"):
            found = context.query_device()
        self._limits = DeviceLimits(
            queue_depth=found.max_qp_wr,
            completion_depth=found.max_cqe,
            sges=found.max_sge,
            rd_atomic=min(found.max_qp_rd_atom, 255),
            init_rd_atomic=min(found.max_qp_init_rd_atom, 255),
            region_bytes=found.max_mr_size,
            atomics=int(found.atomic_caps),
            ports=found.phys_port_cnt,
            memory_windows_type2=bool(found.device_cap_flags & WINDOWS_TYPE_2),
        )

    @property
    def limits(self) -> DeviceLimits:
        """Say what the device can do."""
        return self._limits

    def port(self, number: int = 1) -> PortState:
        """Ask for the state of a port."""
        self.check_open()
        if not 1 <= number <= self._limits.ports:
            raise verbs.verbs_error("query the port", errno.EINVAL)
        with calling(self.api, "query the port"):
            found = self.context.query_port(number)
        return PortState(
            number, int(found.state), int(found.active_mtu), found.link_layer, found.lid
        )

    def gids(self, port: int = 1) -> tuple[Gid, ...]:
        """List the GIDs of a port."""
        self.check_open()
        with calling(self.api, "query the GIDs"):
            entries = self.context.query_gid_table(GIDS_MAX)
        return tuple(
            Gid(
                entry.gid_index,
                ipaddress.IPv6Address(entry.gid_str()).packed,
                int(entry.gid_type),
            )
            for entry in entries
            if entry.port_num == port
        )

    def protection_domain(self) -> PyverbsDomain:
        """Make a protection domain."""
        self.check_open()
        with calling(self.api, "create a protection domain"):
            return PyverbsDomain(self, self.api, self.api.PD(self.context))

    def completion_queue(self, depth: int, *, events: bool = False) -> PyverbsCompletionQueue:
        """Make a completion queue."""
        self.check_open()
        if not 1 <= depth <= self._limits.completion_depth:
            raise verbs.verbs_error("create a completion queue", errno.EINVAL)
        channel, descriptor = self._channel() if events else (None, -1)
        try:
            with calling(self.api, "create a completion queue"):
                queue: Any = self.api.CQ(self.context, depth, None, channel, 0)
        except BaseException:
            if channel is not None:
                channel.close()
            raise
        return PyverbsCompletionQueue(self, self.api, queue, channel, descriptor)

    def _channel(self) -> tuple[Any, int]:
        with _finding:
            before = _event_descriptors()
            with calling(self.api, "create a completion channel"):
                channel: Any = self.api.CompChannel(self.context)
            descriptor = getattr(channel, "fd", None)
            new = {descriptor} if descriptor is not None else _event_descriptors() - before
        if len(new) != 1:
            channel.close()
            raise verbs.VerbsError(
                "find the completion channel's descriptor",
                0,
                "/proc does not show it",
                "mount /proc, use pyverbs 57 or newer, or unset L5_VERBS",
            )
        (descriptor,) = new
        os.set_blocking(descriptor, False)  # a blocking one would hold the GIL for ever
        return channel, descriptor

    def _release(self) -> None:
        with calling(self.api, "close the device"):
            self.context.close()


def _event_descriptors() -> set[int]:
    """List our descriptors of completion channels."""
    found: set[int] = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if EVENT_FILE in os.readlink(f"/proc/self/fd/{name}"):
                found.add(int(name))
        except OSError:
            continue
    return found
