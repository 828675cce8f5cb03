"""iceoryx2's request and response, both ends polling, which is how it is fastest.

Bytes are copied to and from its memory by address; its own accessors take half as long again.  The
server polls without a pause while requests come, and 50 times a second after 10 ms without one, so
that it leaves the processors to the others between its turns.
"""

import ctypes
import importlib
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from benchmarks.messaging_peers.loops import PAYLOAD

BLOCKING = True

iceoryx2: Any = importlib.import_module("iceoryx2")  # optional, so the type checker may lack it

IDLE_SECONDS = 0.01
PAUSE_SECONDS = 0.02
CLIENTS_MAX = 64


class Message(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint8 * len(PAYLOAD))]


def builder(address: str) -> Any:
    iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
    node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
    return node.service_builder(iceoryx2.ServiceName.new(f"l5-benchmark{address}"))


def service(address: str) -> Any:
    made = builder(address).request_response(Message, Message)
    return made.max_clients(CLIENTS_MAX).max_nodes(CLIENTS_MAX + 1).open_or_create()


def event(address: str) -> Any:
    return builder(address).event().open_or_create()


@contextmanager
def server(address: str, options: dict[str, Any]) -> Generator[tuple[str, Callable[[], None]]]:
    port = service(address).server_builder().create()
    receive, clock = port.receive, time.monotonic

    def run() -> None:
        last = clock()
        while True:
            request = receive()
            if request is None:
                if clock() - last > IDLE_SECONDS:
                    time.sleep(PAUSE_SECONDS)
                continue
            reply = request.loan_uninit()
            ctypes.memmove(reply.payload_ptr, request.payload_ptr, len(PAYLOAD))
            reply.assume_init().send()
            last = clock()

    yield address, run


@contextmanager
def client(address: str, options: dict[str, Any]) -> Generator[Callable[[bytes], bytes]]:
    port = service(address).client_builder().create()
    loan, memmove, string_at = port.loan_uninit, ctypes.memmove, ctypes.string_at

    def request(payload: bytes) -> bytes:
        message = loan()
        memmove(message.payload_ptr, payload, len(payload))
        pending = message.assume_init().send()
        receive = pending.receive
        while (reply := receive()) is None:
            pass
        return string_at(reply.payload_ptr, len(payload))

    yield request
