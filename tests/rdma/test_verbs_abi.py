"""Our declarations of the library of verbs say what its own header says: every size and number."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from l5.rdma import _constants
from tests._imports import ROOT

ABI = ROOT / "l5" / "native" / "verbs_abi.h"
HEADER = Path("/usr/include/infiniband/verbs.h")
STRUCT = re.compile(r"^struct l5v_(\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"\(?\*?\b(\w+)(?:\[\d+\]|\)\([^;]*\))?;")
# What we declare in one piece because we do not use it, or what only begins as ours does.
OURS = re.compile(r"^(old_\w+|memory_windows|counts|window_or_tso|remote_srqn|wr|rdma|atomic)$")
UNIONS = ("wr.rdma.remote_addr", "wr.rdma.rkey", "wr.atomic.compare_add", "wr.atomic.rkey")
BEGINNINGS = {"context", "cq", "qp", "pd", "mr", "comp_channel", "context_ops"}
NUMBERS = {
    "LOCAL_WRITE": "IBV_ACCESS_LOCAL_WRITE",
    "REMOTE_WRITE": "IBV_ACCESS_REMOTE_WRITE",
    "REMOTE_READ": "IBV_ACCESS_REMOTE_READ",
    "REMOTE_ATOMIC": "IBV_ACCESS_REMOTE_ATOMIC",
    "OP_WRITE": "IBV_WR_RDMA_WRITE",
    "OP_WRITE_WITH_IMM": "IBV_WR_RDMA_WRITE_WITH_IMM",
    "OP_SEND": "IBV_WR_SEND",
    "OP_SEND_WITH_IMM": "IBV_WR_SEND_WITH_IMM",
    "OP_READ": "IBV_WR_RDMA_READ",
    "OP_COMPARE_AND_SWAP": "IBV_WR_ATOMIC_CMP_AND_SWP",
    "OP_FETCH_AND_ADD": "IBV_WR_ATOMIC_FETCH_AND_ADD",
    "FENCE": "IBV_SEND_FENCE",
    "SIGNALED": "IBV_SEND_SIGNALED",
    "SOLICITED": "IBV_SEND_SOLICITED",
    "INLINE": "IBV_SEND_INLINE",
    "WC_SEND": "IBV_WC_SEND",
    "WC_WRITE": "IBV_WC_RDMA_WRITE",
    "WC_READ": "IBV_WC_RDMA_READ",
    "WC_RECEIVE": "IBV_WC_RECV",
    "WC_RECEIVE_WITH_IMM": "IBV_WC_RECV_RDMA_WITH_IMM",
    "WC_HAS_IMM": "IBV_WC_WITH_IMM",
    "FLUSHED": "IBV_WC_WR_FLUSH_ERR",
    "LOCAL_PROTECTION_ERROR": "IBV_WC_LOC_PROT_ERR",
    "REMOTE_INVALID_REQUEST": "IBV_WC_REM_INV_REQ_ERR",
    "REMOTE_ACCESS_ERROR": "IBV_WC_REM_ACCESS_ERR",
    "REMOTE_OPERATION_ERROR": "IBV_WC_REM_OP_ERR",
    "RETRIES_EXCEEDED": "IBV_WC_RETRY_EXC_ERR",
    "RNR_RETRIES_EXCEEDED": "IBV_WC_RNR_RETRY_EXC_ERR",
    "PORT_ACTIVE": "IBV_PORT_ACTIVE",
    "LINK_INFINIBAND": "IBV_LINK_LAYER_INFINIBAND",
    "LINK_ETHERNET": "IBV_LINK_LAYER_ETHERNET",
    "ATOMIC_DEVICE": "IBV_ATOMIC_HCA",
    "ATOMIC_GLOBAL": "IBV_ATOMIC_GLOB",
}


def claims(text: str) -> list[str]:
    """Return what has to be true, as C conditions."""
    found: list[str] = []
    for name, body in STRUCT.findall(text):
        plain = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
        for field in FIELD.findall(plain):
            nested = any(path.split(".")[-1] == field for path in UNIONS) or field == "swap"
            if not OURS.match(field) and not (name == "send_wr" and nested):
                pair = (
                    f"offsetof(struct l5v_{name}, {field})",
                    f"offsetof(struct ibv_{name}, {field})",
                )
                found.append(" == ".join(pair))
        if name not in BEGINNINGS:
            found.append(f"sizeof(struct l5v_{name}) == sizeof(struct ibv_{name})")
    for path in UNIONS:
        found.append(
            f"offsetof(struct l5v_send_wr, {path}) == offsetof(struct ibv_send_wr, {path})"
        )
    found += [
        f"{name} == IBV{name[3:]}" for name in re.findall(r"^    (L5V_\w+) =", text, re.MULTILINE)
    ]
    found += [f"{getattr(_constants, ours)} == {theirs}" for ours, theirs in NUMBERS.items()]
    return found


def check(conditions: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None
    lines = [f'#include "{ABI}"', "#include <infiniband/verbs.h>"]
    lines += [f'_Static_assert({each}, "{each}");' for each in conditions]
    source = folder / "abi.c"
    source.write_text("\n".join([*lines, ""]))
    command = [compiler, "-std=gnu11", "-fsyntax-only", str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


needs_header = pytest.mark.skipif(
    not HEADER.exists(), reason="libibverbs-dev is not installed, whose header this compares with"
)


@needs_header
def test_every_field_and_number(tmp_path: Path) -> None:
    conditions = claims(ABI.read_text())
    assert len(conditions) > 180
    done = check(conditions, tmp_path)
    assert done.returncode == 0, done.stderr[:4000]


@needs_header
def test_a_field_that_moved_is_found(tmp_path: Path) -> None:
    moved = "offsetof(struct l5v_wc, byte_len) == offsetof(struct ibv_wc, vendor_err)"
    done = check([moved], tmp_path)
    assert done.returncode != 0 and "static assertion failed" in done.stderr
