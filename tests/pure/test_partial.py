"""Half-received messages: put together in memory that stays, of which there is little."""

from __future__ import annotations

import pytest

from l5 import _partial
from l5._flow import AHEAD, Budget, Reassembly
from l5._partial import SPARE_BYTES, Partial

CREDIT = 4096


@pytest.fixture(autouse=True)
def spares(monkeypatch: pytest.MonkeyPatch) -> list[memoryview | None]:
    found: list[memoryview | None] = [None, None]
    monkeypatch.setattr(_partial, "_spares", found)
    return found


def message(size: int) -> bytes:
    return bytes(range(251)) * (size // 251 + 1)


def fill(partial: Partial, data: bytes, step: int) -> None:
    for start in range(0, len(data), step):
        partial.append(data[start : start + step])


def begun(number: int) -> Partial:
    partial = Partial((False, number), lambda: None)
    partial.borrow()
    return partial


@pytest.mark.parametrize("step", [100, 5000, 65536, SPARE_BYTES - 4])
@pytest.mark.parametrize("size", [1, 9999, SPARE_BYTES, SPARE_BYTES + 1, 3 * SPARE_BYTES])
def test_a_message_is_whole(size: int, step: int) -> None:
    for _ in range(2):  # again, where another one was
        partial = begun(1)
        data = message(size)
        fill(partial, data, step)
        assert partial.message() == data
        partial.clear()


def test_what_a_spare_holds_is_no_object_of_its_own() -> None:
    partial = begun(1)
    fill(partial, message(SPARE_BYTES - 251), 65536)
    assert not partial.segments
    partial.append(bytes(CREDIT))
    assert len(partial.segments) == 1, "behind the end of the spare"
    partial.append(bytes(1))
    assert len(partial.segments) == 2, "and nothing goes before what is behind it"


def test_who_finds_no_spare_does_without(spares: list[memoryview | None]) -> None:
    partials = [begun(number) for number in range(4)]
    assert not spares
    assert [partial.spare is None for partial in partials] == [False, False, True, True]
    for number, partial in enumerate(partials):
        fill(partial, bytes([number]) * 50_000, 8192)
    for number, partial in enumerate(partials):
        assert partial.message() == bytes([number]) * 50_000
        partial.clear()
        partial.clear()
    assert len(spares) == 2, "each is given back once"


@pytest.mark.parametrize("end", ["whole", "aborted", "ended"])
def test_spares_come_back(spares: list[memoryview | None], end: str) -> None:
    reassembly = Reassembly(
        message_limit=1 << 20,
        credit_bytes=CREDIT,
        partials_max=4,
        budget=Budget(1 << 20),
        grant=lambda key, allowed: None,
    )
    assert reassembly.add((False, 1), b"a" * 100, True) is None
    assert len(spares) == 1
    if end == "whole":
        assert reassembly.add((False, 1), b"b", False) == b"a" * 100 + b"b"
    elif end == "aborted":
        assert reassembly.drop((False, 1))
    else:
        reassembly.clear()
    assert len(spares) == 2


@pytest.mark.parametrize(
    "limits,granted",
    [((1 << 20, 1 << 20), AHEAD), ((1 << 20, 4 * CREDIT), 1), ((4 * CREDIT, 1 << 20), 1)],
)
def test_grants_are_large_while_half_of_all_budgets_is_free(
    limits: tuple[int, int], granted: int
) -> None:
    grants: list[int] = []
    own, server = limits
    reassembly = Reassembly(
        message_limit=1 << 20,
        credit_bytes=CREDIT,
        partials_max=4,
        budget=Budget(own, Budget(server)),
        grant=lambda key, allowed: grants.append(allowed),
    )
    reassembly.add((False, 1), bytes(CREDIT // 4), True)
    assert grants == []
    reassembly.add((False, 1), bytes(CREDIT // 4), True)
    assert grants == [CREDIT // 2 + granted * CREDIT]
