"""Build `l5._native`: the C core, with plain cffi for what is rare and `_fast.h` for what is hot.

Run as a script it builds in place; `setup.py` uses `ffibuilder`.
"""

from __future__ import annotations

import os
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SOURCES = (
    *("_fast.c", "_ring.c", "_ring_hot.c", "_ring_many.c", "_ring_rest.c", "_ring_sleep.c"),
    *("_ring_watch.c", "_slot.c"),
    *("_poller.c", "_poller_wait.c", "_poller_gil.c", "_serve.c", "_members.c"),
    *("_memory.c", "_beat.c", "_spot.c", "_policy.c", "_policy_calls.c", "_adaptive.c"),
    *("mailbox.c", "_lane.c", "_lane_hot.c", "_lanes.c", "stream.c"),
    *("channel.c", "wait.c", "segment.c", "region.c"),
    "page.c",
    *("service.c", "service_frames.c", "service_reply.c", "service_settle.c"),
    *("service_wait.c", "service_worker.c"),
    *("verbs.c", "verbs_queue.c", "verbs_library.c"),
    *("_verbs.c", "_verbs_send.c", "_verbs_batch.c", "_verbs_poll.c", "_verbs_slots.c"),
    "_verbs_foreign.c",
)
HEADERS = ("l5.h", "l5_service.h", "l5_mailbox.h", "verbs.h")


def _present(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if (HERE / name).exists()]


def _relative(path: Path) -> str:
    return os.path.relpath(path, ROOT)


def make_ffibuilder() -> FFI:
    """Return the builder; the public C headers are the cdef, so they cannot drift apart."""
    builder = FFI()
    headers = _present(HEADERS)
    for header in headers:
        builder.cdef((HERE / header).read_text())
    # -ffp-contract=off: policies round as their models in Python do.
    extra = ["-std=gnu11", "-O3", "-ffp-contract=off", "-fvisibility=hidden"]
    includes = "".join(f'#include "{header}"\n' for header in headers)
    builder.set_source(
        "l5._native",
        f"#include <stdint.h>\n#include <stddef.h>\n{includes}",
        sources=[_relative(HERE / name) for name in _present(SOURCES)],
        depends=[_relative(path) for path in sorted(HERE.glob("*.h"))],
        include_dirs=[_relative(HERE)],
        extra_compile_args=extra,
        extra_link_args=["-pthread"],
        libraries=["m"],
        # The hot path needs the full C API, hence a wheel per version of Python.
        define_macros=[("_CFFI_NO_LIMITED_API", None)],
        py_limited_api=False,
    )
    return builder


ffibuilder: FFI = make_ffibuilder()


if __name__ == "__main__":
    os.chdir(ROOT)
    ffibuilder.compile(verbose=True, tmpdir=str(ROOT))
