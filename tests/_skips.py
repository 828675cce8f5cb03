"""In CI a skipped test fails the run, unless a machine may lack what it needs."""

import os
import re

import pytest

# Each entry: what the skip's reason must match, and why a CI machine may lack it.
ALLOWED = (
    (r"PostgreSQL is not installed", "a peer of the benchmarks, not a part of the project"),
    (r"this kernel has no SO_PEERPIDFD", "Linux before 6.5"),
    (r"this kernel has no rseq", "Linux before 4.18, or glibc before 2.35"),
    (r"may not create (network|user|pid|mount) namespaces", "containers without CAP_SYS_ADMIN"),
    (r"no RDMA device", "needs a network card, or the kernel module rdma_rxe"),
    (r"cgroup .* not (mounted|writable)", "containers with a read-only /sys/fs/cgroup"),
    (r"needs (two|2|more) (cores|CPUs)", "machines with one CPU"),
    (r"this processor has no AVX", "the portable path is tested everywhere"),
    (r"gives shared memory no huge pages", "Linux before 6.1, or told not to"),
)


def strict() -> bool:
    """Tell whether this run is CI's."""
    return os.environ.get("L5_CI", "0") not in ("", "0")


def allowed(reason: str) -> bool:
    """Tell whether a machine may lack what this skip's reason names."""
    return any(re.search(pattern, reason) for pattern, _ in ALLOWED)


class NoSilentSkips:
    """A pytest plugin that fails the run when a test was skipped without a reason that counts."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._look_at(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not hasattr(report, "wasxfail"):
            self._look_at(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.refused:
            return
        terminalreporter.section("skips that CI does not allow", red=True)
        terminalreporter.line("Install what the test needs, or add its reason to tests/_skips.py.")
        for line in self.refused:
            terminalreporter.line(f"  {line}")

    def _look_at(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if not report.skipped:
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not allowed(reason):
            self.refused.append(f"{report.nodeid}: {reason}")
