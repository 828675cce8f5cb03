"""Memory to send from and to receive into, and copying it without any of the systems."""

import mmap
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

BLOCKING = True

CHUNK_BYTES = 128 * 1024
DONE = b"D"


def filled(size_bytes: int) -> memoryview:
    """Return memory whose pages are all there."""
    memory = memoryview(mmap.mmap(-1, size_bytes))
    block = bytes(range(256)) * (CHUNK_BYTES // 256)
    for start in range(0, size_bytes, CHUNK_BYTES):
        memory[start : start + CHUNK_BYTES] = block[: size_bytes - start]
    return memory


def views(memory: memoryview) -> list[memoryview]:
    """Cut memory into chunks."""
    return [memory[start : start + CHUNK_BYTES] for start in range(0, len(memory), CHUNK_BYTES)]


@contextmanager
def client(address: str, options: dict[str, Any]) -> Generator[Callable[[], int]]:
    source, target = filled(options["source_bytes"]), filled(options["target_bytes"])

    def transfer() -> int:
        target[:] = source
        return len(source)

    yield transfer
