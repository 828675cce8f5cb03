"""A server or a client in a process of its own: ``python -m benchmarks.messaging_peers JSON``.

A line of JSON comes out when it is ready.  A server then runs, and a client answers commands, until
standard input ends.
"""

import importlib
import json
import os
import sys
import threading
from contextlib import AsyncExitStack
from typing import Any

import anyio

from benchmarks.messaging_peers import loops, surroundings


def main() -> None:
    spec = json.loads(sys.argv[1])
    if spec["group"] is not None:
        surroundings.enter(spec["group"])
    if spec["cpu"] is not None:
        os.sched_setaffinity(0, {spec["cpu"]})
    if spec["restless"] and os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    module = importlib.import_module(f"benchmarks.messaging_peers.{spec['module']}")
    if getattr(module, "BLOCKING", False):
        (serve_blocking if spec["role"] == "server" else measure_blocking)(module, spec)
        return
    backend, use_uvloop = spec["backend"], spec["backend"] == "uvloop"
    anyio.run(
        serve if spec["role"] == "server" else measure,
        module,
        spec,
        backend="asyncio" if use_uvloop else backend,
        backend_options={"use_uvloop": True} if use_uvloop else {},
    )


def tell(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def leave_with_parent() -> None:
    """End this process when standard input does; a server has no other use for it."""

    def wait() -> None:
        # Not by sys.stdin, whose lock would be in the way should the main thread end first.
        while os.read(0, 4096):
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


async def serve(module: Any, spec: dict[str, Any]) -> None:
    leave_with_parent()
    async with module.server(spec["address"], spec["options"]) as address:
        tell(address=address)
        await anyio.sleep_forever()


def serve_blocking(module: Any, spec: dict[str, Any]) -> None:
    leave_with_parent()
    with module.server(spec["address"], spec["options"]) as (address, run):
        tell(address=address)
        run()


async def measure(module: Any, spec: dict[str, Any]) -> None:
    async with AsyncExitStack() as stack:
        if spec["within"]:
            server = module.server(spec["address"], spec["options"])
            spec["address"] = await stack.enter_async_context(server)
        call = await stack.enter_async_context(surroundings.surrounded(module.client, spec))
        tell(ready=True)
        # The commands are read without the event loop: nothing else is to happen in between.
        for line in sys.stdin:
            command = json.loads(line)
            if surroundings.computing:
                surroundings.computing.begin()
            result = await loops.ASYNC[command.pop("do")](call, **command)
            if surroundings.computing:
                result["computing"] = surroundings.computing.share()
            tell(**result)


def measure_blocking(module: Any, spec: dict[str, Any]) -> None:
    with module.client(spec["address"], spec["options"]) as call:
        tell(ready=True)
        for line in sys.stdin:
            command = json.loads(line)
            tell(**loops.BLOCKING[command.pop("do")](call, **command))


if __name__ == "__main__":
    main()
