"""The stage: where the processes of these tests come from."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks._actors import Stage
from tests.attacks._actors import stage as start


@pytest.fixture(scope="package")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Processes that have l5 and the attackers imported."""
    folder: Path = tmp_path_factory.mktemp("stage")
    with start(folder, "tests.attacks._hostile", "tests.attacks._hellos", "trio") as made:
        yield made


@pytest.fixture(params=["unix", "tcp", "shm"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A server's address on each transport."""
    return {
        "unix": f"l5+unix://{tmp_path}/s?transports=unix",
        "tcp": "l5+tcp://127.0.0.1:0",
        "shm": f"l5+shm://{tmp_path}/s",
    }[request.param]
