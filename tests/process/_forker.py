"""Connect, fork, and say what each of the two processes finds: ``_forker.py BACKEND URL``."""

import json
import os
import sys
from collections.abc import Coroutine
from typing import Any

import anyio

import l5
from tests._patience import be_patient


def step(operation: Coroutine[Any, Any, object]) -> list[str]:
    """Run an operation up to where it would wait; name the error that it raised."""
    try:
        operation.send(None)
    except Exception as error:
        return [type(error).__name__, str(error)]
    finally:
        operation.close()
    return ["no error", ""]


def descriptors(word: str) -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += word in os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            pass
    return found


def mapped() -> bool:
    with open("/proc/self/maps") as maps:
        return "/memfd:l5" in maps.read()


async def main(url: str) -> None:
    async with await l5.connect(url) as connection:
        assert await connection.request(b"before") == b"before"
        before = {"sockets": descriptors("socket:"), "mapped": mapped()}
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            operations = {
                "request": connection.request(b"x"),
                "slow request": connection.request(b"x", deadline=1.0),
                "send": connection.send(b"x"),
                "receive": connection.receive(),
            }
            found = {name: step(operation) for name, operation in operations.items()}
            facts = {"sockets": descriptors("socket:"), "mapped": mapped(), "found": found}
            os.write(writing, json.dumps(facts).encode())
            os._exit(0)
        os.close(writing)
        with open(reading) as pipe:
            facts = json.load(pipe)
        os.waitpid(child, 0)
        after = [await connection.request(b"after %d" % n) == b"after %d" % n for n in range(100)]
        print(json.dumps({"before": before, "child": facts, "sound": all(after)}))


if __name__ == "__main__":
    be_patient()
    anyio.run(main, sys.argv[2], backend=sys.argv[1])
