"""Which host is this, and can it share memory?

Two processes are on one host when they see the same boot id *and* the same network namespace: then
an abstract Unix socket of one can be reached by the other. Addresses and host names say nothing
(containers, NAT). The identity itself never leaves the process: a peer gets a keyed hash of a
fresh nonce, which only a process with the same identity can check or make.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

from l5._hello import HostProof
from l5._limits import explain

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NETWORK_NAMESPACE = Path("/proc/self/ns/net")
UID_MAP = Path("/proc/self/uid_map")
OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")
_ALL_UIDS = (1 << 32) - 1
_OVERFLOW_UID_DEFAULT = 65534
NONCE_BYTES = 16
_DOMAIN = b"l5 host identity 1\0"


def identity() -> bytes | None:
    """Return a key that processes on one host and network namespace have in common.

    None where the system does not say; such a process is on no other's host. Nothing is cached:
    a process may change its namespace, and a child of fork may too.
    """
    try:
        boot_id = BOOT_ID.read_bytes().strip()
        namespace = NETWORK_NAMESPACE.stat()
    except OSError:
        return None
    if not boot_id:
        return None
    facts = b"%b\0%d\0%d" % (boot_id, namespace.st_dev, namespace.st_ino)
    return hashlib.sha256(_DOMAIN + facts).digest()


def prove(nonce: bytes | None = None) -> HostProof:
    """Make a proof of the present host, by default with a fresh nonce."""
    fresh = os.urandom(NONCE_BYTES) if nonce is None else nonce
    key = identity()
    # Without an identity the tag is noise: well formed, and nobody's match.
    tag = os.urandom(32) if key is None else hmac.digest(key, fresh, "sha256")
    return HostProof(nonce=fresh, tag=tag)


def same_host(proof: HostProof) -> bool:
    """Tell whether a proof was made on this host; takes the same time for every wrong one."""
    key = identity()
    if key is None:
        return False
    return hmac.compare_digest(hmac.digest(key, proof.nonce, "sha256"), proof.tag)


def is_somebody(uid: int) -> bool:
    """Tell whether a uid, as the kernel shows it here, stands for one user.

    In a user namespace everybody who is not mapped there is shown as the overflow uid (65534).
    Where every uid is mapped that number is a user like any other: many containers run as `nobody`.
    """
    if uid != _overflow_uid():
        return True
    try:
        mapped = sum(int(line.split()[2]) for line in UID_MAP.read_text().splitlines())
    except (OSError, ValueError, IndexError):
        return False
    return mapped >= _ALL_UIDS


def _overflow_uid() -> int:
    try:
        return int(OVERFLOW_UID.read_text())
    except (OSError, ValueError):
        return _OVERFLOW_UID_DEFAULT


def memfd_available() -> tuple[bool, str]:
    """Tell whether sealed anonymous memory can be made here; if not, why not."""
    if not hasattr(os, "memfd_create"):
        return False, "this system has no memfd_create (Linux 3.17 and later have it)"
    import fcntl  # does not exist where memfd_create does not

    try:
        fd = os.memfd_create("l5-probe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        return False, f"memfd_create failed: {explain(error)}"
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except OSError as error:
        return False, f"a memfd cannot be sealed here: {error.strerror}"
    finally:
        os.close(fd)
    return True, ""
