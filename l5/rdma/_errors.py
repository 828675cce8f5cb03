"""What can go wrong with verbs, in words, with what to do about it.

L5Error
 +-- VerbsError                a call failed: .call, .errno, .advice
      +-- VerbsUnavailable     no RDMA on this machine, or not for this process: .missing
      +-- MemoryLockLimit      the process may not lock that much memory
      +-- SendQueueFull        more posts than the queue holds: poll first
      +-- ResourceBusy         something that was made from it is still open
      +-- ResourceClosed       it was closed, or belongs to the process that forked us
"""

from __future__ import annotations

import errno
import os

from .._errors import L5Error

MEMLOCK_ADVICE = (
    "raise the limit on locked memory: `ulimit -l unlimited` in the shell that starts it,"
    " `LimitMEMLOCK=infinity` in a systemd unit, `--ulimit memlock=-1` for docker and podman,"
    " or memlock lines in /etc/security/limits.conf; root (CAP_IPC_LOCK) is not limited"
)
GID_ADVICE = (
    "the table of GIDs follows the addresses of the network interface: choose the GID again, by the"
    " address that the bootstrap connection uses"
)
REGISTER_ADVICE = (
    "the memory must be mapped, writable (older kernels refuse read-only mappings even for reading)"
    " and belong to this process"
)

# (call, errno) -> advice. A call that is not here gives the system's words alone.
_ADVICE: dict[tuple[str, int], str] = {
    ("register memory", errno.ENOMEM): MEMLOCK_ADVICE,
    ("register memory", errno.EFAULT): REGISTER_ADVICE,
    ("register memory", errno.EACCES): REGISTER_ADVICE,
    ("create a queue pair", errno.ENOMEM): MEMLOCK_ADVICE,
    ("create a queue pair", errno.EINVAL): "ask for less depth or inline data; see device.limits",
    ("create a completion queue", errno.ENOMEM): MEMLOCK_ADVICE,
    ("create a completion queue", errno.EINVAL): "ask for less depth; see device.limits",
    ("connect a queue pair", errno.ENODATA): GID_ADVICE,
    ("connect a queue pair", errno.EINVAL): (
        "both GIDs must be of one kind (IPv4 or IPv6), the MTU no larger than both ports' active"
        " one, and the depth of reads within the device's limit"
    ),
    ("post", errno.EINVAL): (
        "the request has more inline data than the queue pair took, or an atomic's address is not a"
        " multiple of 8"
    ),
    (
        "post",
        errno.EACCES,
    ): "the queue pair belongs to another process; it cannot be used after fork",
    ("open the device", errno.EACCES): (
        "this process may not use /dev/infiniband/uverbs*; give the user access (udev rules of"
        " rdma-core), or hand the devices to the container"
    ),
    ("open the device", errno.EPERM): (
        "this process may not use /dev/infiniband/uverbs*; give the user access (udev rules of"
        " rdma-core), or hand the devices to the container"
    ),
}


class VerbsError(L5Error):
    """A verbs call failed; ``advice`` says what to do, if anything is known to help."""

    def __init__(self, call: str, code: int = 0, detail: str = "", advice: str = "") -> None:
        words = detail or (os.strerror(code) if code else "")
        text = f"cannot {call}" + (f": {words}" if words else "")
        super().__init__(f"{text}; {advice}" if advice else text)
        self.call = call
        self.errno = code
        self.advice = advice


class VerbsUnavailable(VerbsError):
    """RDMA cannot be used here; ``missing`` names what is missing.

    ``missing`` is one of ``library``, ``backend``, ``device``, ``port``, ``gid``, ``memlock``.
    """

    def __init__(self, missing: str, detail: str, advice: str = "") -> None:
        super().__init__("use RDMA", 0, detail, advice)
        self.missing = missing
        self.detail = detail


class MemoryLockLimit(VerbsError):
    """The process may not lock as much memory as was to be registered."""


class SendQueueFull(VerbsError):
    """The send queue holds as many requests as it can; poll its completion queue first."""

    def __init__(self, depth: int) -> None:
        super().__init__(
            "post",
            errno.ENOMEM,
            f"the send queue's {depth} slots are taken",
            "poll the completion queue: a slot is free again when a later completion was polled",
        )


class ResourceBusy(VerbsError):
    """Something that was made from this is still open; close that first."""


class ResourceClosed(VerbsError):
    """This was closed, or was opened by the process that this one was forked from."""


def verbs_error(call: str, code: int, *, size_bytes: int = 0, depth: int = 0) -> VerbsError:
    """Return the error for a failed `call` of that `errno`: the one place that knows advice.

    `call` is what follows "cannot": "register memory", "create a queue pair", "post", ...
    """
    advice = _ADVICE.get((call, code), "")
    if call == "register memory" and code == errno.ENOMEM:
        detail = f"{os.strerror(code)} (for {size_bytes} bytes)" if size_bytes else ""
        return MemoryLockLimit(call, code, detail, advice)
    if call == "post" and code == errno.ENOMEM:
        return SendQueueFull(depth)
    if code == errno.EBUSY:
        return ResourceBusy(call, code, "", "close first what was made from it")
    return VerbsError(call, code, "", advice)
