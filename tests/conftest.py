"""What every test gets: three event loops, a check for leaks, and no silent skips in CI.

- Tests marked `anyio` run on asyncio (debug mode), uvloop and trio.
- Tests marked `asyncio` (pytest-asyncio, strict) are for integrations that only asyncio has; they
  live under tests/asyncio_only, so that nothing else quietly loses two of its three loops.
- Every test must leave the descriptors, memfd mappings and child processes as it found them.
- With L5_CI=1 a skip whose reason is not in `tests/_skips.py` fails the run.
"""

import asyncio.constants
import os
import signal
import traceback
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import _leaks, _skips
from tests._patience import be_patient

ASYNCIO_ONLY = Path(__file__).parent / "asyncio_only"
FAILED = pytest.StashKey[bool]()

# In debug mode asyncio notes where each future, task and callback was made: all of pytest's stack,
# line by line, which is more than half of what a test costs.  One line tells as much; the checks
# (other threads, what was never awaited, what took long) are as they were.
asyncio.constants.DEBUG_STACK_DEPTH = 1
traceback.extract_stack.__defaults__ = (None, 1)  # C calls it without arguments


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("asyncio", {"debug": True}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
        pytest.param(("trio", {}), id="trio"),
    ],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Each event loop in turn, as anyio's pytest plugin takes it."""
    return request.param


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a passing test that leaves something open behind."""
    if request.node.get_closest_marker("leaks") or not _leaks.SUPPORTED:
        yield
        return
    before = _leaks.snapshot()
    yield
    if request.node.stash.get(FAILED, False):
        return
    for record in caplog.get_records("call"):
        if record.exc_info and record.exc_info[2]:
            # What was logged is kept for the test, and with it all that its frames refer to.
            traceback.clear_frames(record.exc_info[2])
    left = _leaks.left_behind(before)
    if left:
        pytest.fail("this test left behind:\n  " + "\n  ".join(left), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("asyncio") and ASYNCIO_ONLY not in item.path.parents:
            raise pytest.UsageError(
                f"{item.nodeid} is marked asyncio: mark it anyio, so that it runs on all loops, or "
                "move it to tests/asyncio_only if it tests something that only asyncio has"
            )


def pytest_itemcollected(item: pytest.Item) -> None:
    # These compile C first, some of it under sanitizers: on a busy machine that takes its time.
    compiles = item.get_closest_marker("sanitizer") or item.get_closest_marker("checkout")
    if compiles and not item.get_closest_marker("timeout"):
        item.add_marker(pytest.mark.timeout(600))


def pytest_configure(config: pytest.Config) -> None:
    _leaks.settle()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background jobs so; programs that tests interrupt would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    be_patient()
    if "SOFTROCE" not in os.environ:  # in an emulated machine importing takes its time
        _settle_hypothesis(_skips.strict())
    if _skips.strict():
        config.pluginmanager.register(_skips.NoSilentSkips(), "no-silent-skips")


def _settle_hypothesis(strict: bool) -> None:
    """Choose what properties are tried with.

    How fast the machine is, is not what the tests are about. CI judges the change, always by the
    same examples; everywhere else new ones are tried.
    """
    import hypothesis

    hypothesis.settings.register_profile(
        "l5",
        derandomize=strict,
        print_blob=True,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("l5")
