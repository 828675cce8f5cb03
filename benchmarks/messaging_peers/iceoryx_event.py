"""iceoryx2's request and response, each end asleep on an event until the other notifies it.

One client: each end has one event service, and whoever listens there is woken.
"""

import ctypes
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from benchmarks.messaging_peers.iceoryx import event, service
from benchmarks.messaging_peers.loops import PAYLOAD

BLOCKING = True


@contextmanager
def server(address: str, options: dict[str, Any]) -> Generator[tuple[str, Callable[[], None]]]:
    port = service(address).server_builder().create()
    listener = event(f"{address}/requests").listener_builder().create()
    notifier = event(f"{address}/replies").notifier_builder().create()
    receive, wait, notify = port.receive, listener.blocking_wait, notifier.notify

    def run() -> None:
        while True:
            wait()
            while (request := receive()) is not None:
                reply = request.loan_uninit()
                ctypes.memmove(reply.payload_ptr, request.payload_ptr, len(PAYLOAD))
                reply.assume_init().send()
                notify()

    yield address, run


@contextmanager
def client(address: str, options: dict[str, Any]) -> Generator[Callable[[bytes], bytes]]:
    port = service(address).client_builder().create()
    listener = event(f"{address}/replies").listener_builder().create()
    notifier = event(f"{address}/requests").notifier_builder().create()
    loan, wait, notify = port.loan_uninit, listener.blocking_wait, notifier.notify
    memmove, string_at = ctypes.memmove, ctypes.string_at

    def request(payload: bytes) -> bytes:
        message = loan()
        memmove(message.payload_ptr, payload, len(payload))
        pending = message.assume_init().send()
        notify()
        while (reply := pending.receive()) is None:
            wait()
        return string_at(reply.payload_ptr, len(payload))

    yield request
