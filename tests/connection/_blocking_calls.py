"""Count what two sleepers ask of the system: ``python -m tests.connection._blocking_calls``.

The client has a library preloaded that counts; the server is another process without it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from time import sleep

import l5.blocking
from tests._patience import be_patient
from tests.connection._calls import NAMES, counts

REQUESTS = 200


def slow(request: bytes) -> bytes:
    sleep(0.001)
    return request


def serve(url: str) -> None:
    with l5.blocking.serve(slow, url, spin_us=0) as server:
        print(server.urls[0], flush=True)
        server.serve_forever()


def ask(url: str) -> dict[str, float]:
    with l5.blocking.connect(url, spin_us=0) as connection:
        assert connection.transport == "shm", connection.upgrade_report
        for _ in range(20):
            connection.request(b"warm")
            sleep(0.001)  # so that the server sleeps as well
        before = counts()
        for _ in range(REQUESTS):
            connection.request(b"x" * 64)
            sleep(0.001)
        after = counts()
    return {
        name: (now - then) / REQUESTS for name, now, then in zip(NAMES, after, before, strict=True)
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "tests.connection._blocking_calls",
            f"l5+unix://{folder}/s",
        ]
        alone = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=alone) as server:
            assert server.stdout is not None
            try:
                print(json.dumps(ask(server.stdout.readline().strip())))
            finally:
                server.kill()


if __name__ == "__main__":
    be_patient()
    serve(sys.argv[1]) if len(sys.argv) > 1 else main()
