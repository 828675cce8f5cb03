"""A minute of soak, and the proof that a soak finds what it is there to find."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import pytest

from l5 import native

from ._referee import Enough, Referee, Result, Settings
from ._sabotage import FAULTS

SECONDS = float(os.environ.get("L5_SOAK_SECONDS", "60"))
FOUND = {
    "lose": "was sent, and the last that came is",
    "twice": "came twice or out of order",
    "corrupt": "is corrupt",
    "forget": "who waits for whom",
    "leak": "leaks after",
    "break": "broke with both ends alive",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.checkout,
    pytest.mark.timeout(SECONDS + 900),
    pytest.mark.skipif(not native.available, reason=native.reason),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]


def soak(settings: Settings) -> Result:
    with tempfile.TemporaryDirectory(prefix="l5-soak-") as folder:
        return Referee(settings, Path(folder), lambda _: None).run()


def test_every_message_arrives_or_its_connection_is_reported_broken() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"again with: {sys.executable} -m tests.soak --seed {seed} --seconds {SECONDS}")
    expected = {f"{what}, {how}" for what in ("messages", "requests") for how in _TRANSPORTS}
    result = soak(Settings(SECONDS, seed, enough=Enough(1000, 20, frozenset(expected))))
    summary = result.summary
    assert not result.wrong, json.dumps(summary, indent=2).replace("\\n", "\n")
    # It was a soak: everything that should happen did.
    assert summary["messages"] > 1000 and summary["cancelled"] > 20, summary
    assert {"SIGKILL", "SIGSTOP", "SIGTERM"} <= set(summary["actions"]), summary
    ways = {name.split(":")[0] for name in summary["ends"]} - {"not connected"}
    assert ways == expected, summary


_TRANSPORTS = ("shm", "tcp", "unix")


def test_a_soak_finds_what_is_wrong() -> None:
    """Each fault is put in on purpose, in a small soak of its own; all of them at once."""

    def try_one(fault: str) -> Result:
        seed = sorted(FAULTS).index(fault)
        # Until it is found; what is found at the end only has been done many times until then.
        enough = Enough(messages=200 if fault == "break" else sys.maxsize)
        settings = Settings(8, seed, processes=5, sabotage=fault, disturb=False, enough=enough)
        return soak(attrs.evolve(settings, hang_s=4.0) if fault == "forget" else settings)

    with ThreadPoolExecutor(len(FAULTS)) as pool:
        results = dict(zip(FAULTS, pool.map(try_one, FAULTS), strict=True))
    assert set(FOUND) == set(FAULTS)
    for fault, result in results.items():
        assert any(FOUND[fault] in text for text in result.wrong), (fault, result.wrong)
