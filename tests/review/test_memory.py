"""What is let go of, at once and not when the collector of cycles happens to run."""

import gc
import tempfile
import traceback
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import l5
from l5._flow import Budget, Reassembly

MIB = 1 << 20


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


def make_reassembly() -> Reassembly:
    return Reassembly(
        message_limit=64 * MIB,
        credit_bytes=64 * MIB,
        partials_max=16,
        budget=Budget(1024 * MIB),
        grant=lambda key, allowed: None,
    )


@pytest.mark.usefixtures("without_collector")
def test_segments_go_with_their_message() -> None:
    reassembly = make_reassembly()
    for i in range(20):
        reassembly.add((False, i), bytes(MIB), True)
        message = reassembly.add((False, i), bytes(MIB), False)
        assert message is not None and len(message) == 2 * MIB
        del message
    assert tracemalloc.get_traced_memory()[0] < 3 * MIB


@pytest.mark.usefixtures("without_collector")
def test_segments_go_with_an_aborted_message() -> None:
    reassembly = make_reassembly()
    for i in range(20):
        reassembly.add((False, i), bytes(MIB), True)
        assert reassembly.drop((False, i))
    assert tracemalloc.get_traced_memory()[0] < 3 * MIB


@pytest.mark.anyio
async def test_an_error_that_is_raised_again_does_not_grow() -> None:
    with tempfile.TemporaryDirectory() as path:
        url = f"l5+unix://{Path(path) / 's'}"

        async def echo(payload: bytes) -> bytes:
            return payload

        async with l5.serve(echo, url), await l5.connect(url) as connection:
            connection._session.fail(l5.RemoteProtocolError("a lie"))
            lengths: set[int] = set()
            for _ in range(5):
                with pytest.raises(l5.RemoteProtocolError) as caught:
                    await connection.send_eof()
                lengths.add(len(traceback.extract_tb(caught.value.__traceback__)))
            assert len(lengths) == 1
            await anyio.lowlevel.checkpoint()
