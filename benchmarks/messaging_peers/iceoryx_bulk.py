"""iceoryx2, one way: a publisher that waits for room, and a subscriber that polls.

The subscriber makes `bytes` of each sample, as the receivers of the others have; the publisher
copies the chunk into the sample.
"""

import ctypes
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from benchmarks.messaging_peers.iceoryx import IDLE_SECONDS, PAUSE_SECONDS, builder, event, iceoryx2
from benchmarks.messaging_peers.memory import CHUNK_BYTES, filled

BLOCKING = True
SAMPLES = 8


class Chunk(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint8 * CHUNK_BYTES)]


def service(address: str) -> Any:
    made = builder(address).publish_subscribe(Chunk).enable_safe_overflow(False)
    return made.subscriber_max_buffer_size(SAMPLES).open_or_create()


@contextmanager
def server(address: str, options: dict[str, Any]) -> Generator[tuple[str, Callable[[], None]]]:
    receive = service(address).subscriber_builder().create().receive
    done = event(f"{address}/done").notifier_builder().create()
    chunks = options["transfer_bytes"] // CHUNK_BYTES
    clock = time.monotonic

    def run() -> None:
        left, last = chunks, clock()
        while True:
            sample = receive()
            if sample is None:
                if clock() - last > IDLE_SECONDS:
                    time.sleep(PAUSE_SECONDS)
                continue
            ctypes.string_at(sample.payload_ptr, CHUNK_BYTES)
            sample.delete()
            left, last = left - 1, clock()
            if not left:
                left = chunks
                done.notify()

    yield address, run


@contextmanager
def client(address: str, options: dict[str, Any]) -> Generator[Callable[[], int]]:
    waiting = iceoryx2.BackpressureStrategy.RetryUntilDelivered
    port = service(address).publisher_builder().backpressure_strategy(waiting).create()
    listener = event(f"{address}/done").listener_builder().create()
    chunk = bytes(filled(CHUNK_BYTES))
    chunks = options["transfer_bytes"] // CHUNK_BYTES

    def transfer() -> int:
        for _ in range(chunks):
            sample = port.loan_uninit()
            ctypes.memmove(sample.payload_ptr, chunk, CHUNK_BYTES)
            sample.assume_init().send()
        listener.blocking_wait()
        return chunks * CHUNK_BYTES

    yield transfer
