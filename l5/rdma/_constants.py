"""The integers of the verbs: the kernel's ABI, which never changes.

We keep our own table because the bindings moved and renamed theirs from release to release.
"""

from __future__ import annotations

from typing import Final

# Access of a memory region (``ibv_access_flags``). IBV_ACCESS_RELAXED_ORDERING (1 << 20) is left
# out on purpose: it breaks every scheme that polls memory.
LOCAL_WRITE: Final = 1
REMOTE_WRITE: Final = 2
REMOTE_READ: Final = 4
REMOTE_ATOMIC: Final = 8

# Operations (``ibv_wr_opcode``).
OP_WRITE: Final = 0
OP_WRITE_WITH_IMM: Final = 1
OP_SEND: Final = 2
OP_SEND_WITH_IMM: Final = 3
OP_READ: Final = 4
OP_COMPARE_AND_SWAP: Final = 5
OP_FETCH_AND_ADD: Final = 6

# Flags of a posted request (``ibv_send_flags``).
FENCE: Final = 1
SIGNALED: Final = 2
SOLICITED: Final = 4
INLINE: Final = 8

# What a completion was for (``ibv_wc_opcode``). Undefined where the status is not SUCCESS.
WC_SEND: Final = 0
WC_WRITE: Final = 1
WC_READ: Final = 2
WC_COMPARE_AND_SWAP: Final = 3
WC_FETCH_AND_ADD: Final = 4
WC_RECEIVE: Final = 128
WC_RECEIVE_WITH_IMM: Final = 129  # the receive that a WRITE_WITH_IMM consumed

# Flags of a completion (``ibv_wc_flags``).
WC_HAS_IMM: Final = 2

# Statuses of a completion (``ibv_wc_status``).
SUCCESS: Final = 0
LOCAL_LENGTH_ERROR: Final = 1
LOCAL_QP_OPERATION_ERROR: Final = 2
LOCAL_PROTECTION_ERROR: Final = 4
FLUSHED: Final = 5
REMOTE_INVALID_REQUEST: Final = 9
REMOTE_ACCESS_ERROR: Final = 10
REMOTE_OPERATION_ERROR: Final = 11
RETRIES_EXCEEDED: Final = 12
RNR_RETRIES_EXCEEDED: Final = 13

STATUS_TEXTS: Final[dict[int, str]] = {
    SUCCESS: "success",
    LOCAL_LENGTH_ERROR: "the receive's buffer is shorter than the message",
    LOCAL_QP_OPERATION_ERROR: "the queue pair cannot do this operation",
    LOCAL_PROTECTION_ERROR: "the local memory is not registered for this",
    FLUSHED: "flushed: the queue pair is in error, for the reason that an earlier completion gave",
    REMOTE_INVALID_REQUEST: "the peer's queue pair does not allow this request",
    REMOTE_ACCESS_ERROR: "the peer's memory is out of bounds, not registered or not granted",
    REMOTE_OPERATION_ERROR: "the peer's queue pair failed while it did this",
    RETRIES_EXCEEDED: "the peer did not acknowledge: it is gone, or the network is down",
    RNR_RETRIES_EXCEEDED: "the peer posted no receive in time",
}

# States of a queue pair (``ibv_qp_state``).
QP_RESET: Final = 0
QP_INIT: Final = 1
QP_READY_TO_RECEIVE: Final = 2
QP_READY_TO_SEND: Final = 3
QP_ERROR: Final = 6

# State and link layer of a port.
PORT_DOWN: Final = 1
PORT_ACTIVE: Final = 4
LINK_INFINIBAND: Final = 1
LINK_ETHERNET: Final = 2

# Types of a GID (as in sysfs and ``ibv_gid_type``).
GID_INFINIBAND: Final = 0
GID_ROCE_V1: Final = 1
GID_ROCE_V2: Final = 2

# Path MTUs are numbered: 1 is 256 bytes, 5 is 4096.
MTU_BYTES: Final[dict[int, int]] = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}

# What atomics are atomic with (``ibv_atomic_cap``).
ATOMIC_NONE: Final = 0
ATOMIC_DEVICE: Final = 1  # with other RDMA atomics of the same device; not with the CPU
ATOMIC_GLOBAL: Final = 2
