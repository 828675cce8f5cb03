"""A process rewrites pages at full speed; readers verify each page's checksum (`torture.py`)."""

from pathlib import Path

import pytest

import l5
from tests.pages.torture import build_library, torture

pytestmark = pytest.mark.checkout


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("torture"))


@pytest.fixture
def anyio_backend() -> str:
    """One loop: what is tested here does not know which."""
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize("setup", ["shm", "tcp", "words"])
async def test_no_wrong_page_is_taken(library: Path, setup: str) -> None:
    outcome = await torture(setup, library, 3.0 if setup != "words" else 1.0)
    print(outcome)
    assert outcome.statistics.reads > 0
    assert outcome.wrong == 0


@pytest.mark.anyio
@pytest.mark.parametrize("copies", [l5.PageCopies.LINES, l5.PageCopies.ASCENDING])
async def test_a_check_that_is_too_weak_is_found_out(library: Path, copies: l5.PageCopies) -> None:
    """Words come in any order: without the looks before and after, wrong pages are taken."""
    outcome = await torture("words", library, 0.0, copies=copies, catch=True)
    print(outcome)
    assert outcome.wrong > 0
