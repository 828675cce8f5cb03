"""One end dies by SIGKILL at each numbered step of set-up, sending, receiving and closing.

The steps stand in the code, as comments in Python and as a macro in C, each with who gets there and
on which transports: ``# step 5 (client, shm): the memory is sent``.  A test build makes them points
of death (`_stepped.py`); normal builds do not know of them.  Here every step is reached by exactly
those who are named, and the other end reports a broken connection, or got what it wanted before.
The loops share the steps among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

import l5
from tests.attacks._actors import ROOT, Stage
from tests.attacks._actors import stage as start
from tests.attacks._dying import LONG

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.checkout,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not l5.native.available, reason=l5.native.reason),
]

MARK = re.compile(r"(?:# step |L5_STEP\()(\d+)(?:\); /\*)? \((\w+), (\w+)\): (.+)")
ON = {"unix": {"socket"}, "shm": {"shm"}, "rendezvous": {"shm", "rendezvous"}}
LOOPS = ["asyncio", "uvloop", "trio"]


@attrs.frozen
class Step:
    number: int
    role: str
    transports: str
    text: str

    def reached(self, role: str, kind: str) -> bool:
        return self.role in (role, "both") and self.transports in ON[kind] | {"any"}


def steps() -> list[Step]:
    paths = [*(ROOT / "l5").rglob("*.py"), *(ROOT / "l5" / "native").glob("*.[ch]")]
    found = [
        Step(int(number), role, transports, text)
        for path in paths
        if path.name != "_native.c"
        for number, role, transports, text in MARK.findall(path.read_text(encoding="utf-8"))
    ]
    return sorted(found, key=lambda step: step.number)


STEPS = steps()


@pytest.fixture(scope="module")
def dying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder: Path = tmp_path_factory.mktemp("dying")
    with start(folder, "tests.attacks._dying", main="tests.attacks._stepped") as made:
        yield made


@pytest.fixture(params=list(ON))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def url(kind: str, tmp_path: Path) -> str:
    return {
        "unix": f"l5+unix://{tmp_path}/s?transports=unix",
        "shm": f"l5+shm://{tmp_path}/s",
        "rendezvous": "l5://127.0.0.1:0",
    }[kind]


@pytest.fixture
def share(anyio_backend: tuple[str, dict[str, Any]]) -> list[Step]:
    """The steps that are this loop's."""
    name = "uvloop" if anyio_backend[1].get("use_uvloop") else anyio_backend[0]
    return STEPS[LOOPS.index(name) :: len(LOOPS)]


def test_the_steps_are_numbered_once() -> None:
    numbers = [step.number for step in STEPS]
    assert len(numbers) > 25
    assert len(set(numbers)) == len(numbers)
    assert {step.role for step in STEPS} == {"client", "server", "both"}
    assert {step.transports for step in STEPS} == {"any", "shm", "socket", "rendezvous"}


async def test_a_client_dies_at_each_step(
    dying: Stage, kind: str, url: str, share: list[Step]
) -> None:
    async with l5.serve(bytes, url, hello_timeout=60.0) as server:
        async with await l5.connect(server.urls[0], ring="64KiB") as bystander:
            for step in share:
                async with dying.actor("_dying:client", server.urls[0], step.number) as client:
                    survived = "survived" in await client.ends()
                assert survived is not step.reached("client", kind), step
                while server.statistics().connections > 1:  # its end is noticed
                    await anyio.sleep(0.001)
                assert await bystander.request(b"sound") == b"sound", step


async def converse(url: str) -> None:
    """Use a server that may die at any moment."""
    async with await l5.connect(url, ring="64KiB") as connection:
        for size in (10, LONG, 10):
            await connection.send(bytes(size))
            assert await connection.receive() == bytes(size)
        await connection.send(b"end")
        with pytest.raises(anyio.EndOfStream):
            await connection.receive()


async def test_a_server_dies_at_each_step(
    dying: Stage, kind: str, url: str, share: list[Step]
) -> None:
    for step in share:
        async with dying.actor("_dying:server", url, step.number) as server:
            try:
                await converse(await server.says("at"))
                ended = "well"
            except (anyio.BrokenResourceError, l5.ConnectError, l5.RemoteProtocolError) as error:
                ended = str(error)
            survived = "survived" in await server.ends()
        assert survived is not step.reached("server", kind), (step, ended)
        if survived:
            assert ended == "well", step
        elif ended != "well":
            assert ended, step  # it says what happened
