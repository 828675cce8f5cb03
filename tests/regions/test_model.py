"""A region is a bytearray: Hypothesis tries to tell them apart, over every way to reach one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import l5
from l5 import native
from l5._plain_memory import PlainMemory
from l5.abc import RemoteRegion

SIZE = 4100  # more than a page, and not a whole number of words
WORD_MAX = (1 << 64) - 1

offsets = st.one_of(
    st.integers(-2, SIZE + 2), st.sampled_from([0, 8, 4088, 4092, 4096, SIZE, 1 << 63, 1 << 64])
)
lengths = st.one_of(st.integers(-1, 80), st.sampled_from([SIZE, SIZE + 1, 4096, 1 << 62]))
words = st.one_of(st.integers(0, 3), st.sampled_from([WORD_MAX, 1 << 63]))
operations = st.lists(
    st.one_of(
        st.tuples(st.just("read"), offsets, lengths),
        st.tuples(st.just("read_many"), st.lists(st.tuples(offsets, lengths), max_size=5)),
        st.tuples(st.just("write"), offsets, st.binary(max_size=80)),
        st.tuples(st.just("compare_and_swap"), offsets, words, words),
        st.tuples(st.just("fetch_and_add"), offsets, words),
    ),
    max_size=20,
)


class Model:
    """What a region is."""

    def __init__(self) -> None:
        self.data = bytearray(SIZE)

    def _check(self, offset: int, length: int, unit: int = 1) -> None:
        if offset < 0 or length < 0 or offset + length > SIZE or offset % unit:
            raise l5.RemoteAccessError

    def read(self, offset: int, length: int) -> bytes:
        self._check(offset, length)
        return bytes(self.data[offset : offset + length])

    def read_many(self, spans: list[tuple[int, int]]) -> list[bytes]:
        return [self.read(*span) for span in spans]

    def write(self, offset: int, data: bytes) -> None:
        self._check(offset, len(data))
        self.data[offset : offset + len(data)] = data

    def _word(self, offset: int, become: Callable[[int], int]) -> int:
        self._check(offset, 8, 8)
        old = int.from_bytes(self.data[offset : offset + 8], "little")
        self.data[offset : offset + 8] = (become(old) & WORD_MAX).to_bytes(8, "little")
        return old

    def compare_and_swap(self, offset: int, expected: int, desired: int) -> int:
        return self._word(offset, lambda old: desired if old == expected else old)

    def fetch_and_add(self, offset: int, value: int) -> int:
        return self._word(offset, lambda old: old + value)


def outcome_of(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except l5.RemoteAccessError:
        return "refused"


async def outcome(operation: Any) -> Any:
    try:
        return await operation
    except l5.RemoteAccessError:
        return "refused"


async def compare(remote: RemoteRegion, owned: l5.Region, steps: list[Any]) -> None:
    """Do the steps at a client, and say where it differs from a bytearray."""
    owned.write(0, bytes(SIZE))
    model = Model()
    for name, *arguments in steps:
        expected = outcome_of(getattr(model, name), *arguments)
        assert await outcome(getattr(remote, name)(*arguments)) == expected, (name, arguments)
    assert owned.read(0, SIZE) == model.data


@pytest.mark.parametrize("kind", ["shm", "unix", "inproc"])
def test_a_region_is_a_bytearray(tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    if kind == "shm" and not native.available:
        pytest.skip(native.reason)
    path = tmp_path_factory.mktemp("s")
    url = "l5+inproc://model" if kind == "inproc" else f"l5+unix://{path}/s?transports={kind}"

    async def main() -> None:
        with l5.Region.create(SIZE, write=True, atomic=True) as owned:
            async with (
                l5.serve(lambda request: request, url) as server,
                await l5.connect(url) as client,
                anyio.from_thread.BlockingPortal() as portal,
            ):
                server.export("model", owned)
                remote = await client.open_region("model")

                @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
                @given(operations)
                def compared(steps: list[Any]) -> None:
                    portal.call(compare, remote, owned, steps)

                await anyio.to_thread.run_sync(compared)

    anyio.run(main)


@pytest.mark.parametrize("kind", ["native", "plain"])
@settings(max_examples=200, deadline=None)
@given(steps=operations)
def test_an_owner_has_the_same(kind: str, steps: list[Any]) -> None:
    model = Model()
    if kind == "plain":
        memory = PlainMemory(SIZE)
        region = l5.Region(-1, memory, SIZE, True, True)
    else:
        region = l5.Region.create(SIZE)
    with region:
        for name, *arguments in steps:
            if name != "read_many":
                expected = outcome_of(getattr(model, name), *arguments)
                assert outcome_of(getattr(region, name), *arguments) == expected, (name, arguments)
        with region.view as view:
            assert bytes(view) == model.data
