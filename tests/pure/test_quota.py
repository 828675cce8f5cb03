"""How much of its quota a process uses, from clocks and counters that are made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from l5 import _cpu
from l5._quota import CurrentQuota, Quota, QuotaShare

MS = 1_000_000


@attrs.define(eq=False)
class Machine:
    """Its clocks, and a group with a tenth of a processor."""

    stat: Path
    now_ns: int = 5000 * MS
    used_ns: int = 900 * MS
    quota: float | None = 0.1
    periods: int = 50
    held: int = 40

    def look(self) -> Quota | None:
        return None if self.quota is None else Quota(self.quota, self.stat)

    def share(self) -> QuotaShare:
        return QuotaShare(self.look, lambda: self.used_ns, lambda: self.now_ns)

    def work(self, wall_ms: float, used_ms: float, held: int = 0, periods: int = 10) -> None:
        self.now_ns += int(wall_ms * MS)
        self.used_ns += int(used_ms * MS)
        self.periods += periods
        self.held += held
        self.stat.write_text(f"nr_periods {self.periods}\nnr_throttled {self.held}\nother\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "cpu.stat")


def test_who_uses_up_a_quota_is_full_however_small_it_is(machine: Machine) -> None:
    quota = machine.share()
    machine.work(99, 10)
    assert quota.share() == 0.0  # not known yet: use comes in bursts
    machine.work(1, 0)
    assert quota.share() == pytest.approx(1.0)
    machine.work(50, 0)
    assert quota.share() == pytest.approx(1.0)
    machine.work(50, 4)
    assert quota.share() == pytest.approx(0.4)
    machine.work(1000, 0)
    assert quota.share() == 0.0


def test_who_is_held_back_half_of_the_time_is_full_though_some_was_lost(machine: Machine) -> None:
    quota = machine.share()
    machine.work(100, 6, held=10)
    assert quota.share() == pytest.approx(0.6)  # how often before, nobody knows
    machine.work(100, 6, held=5)
    assert quota.share() == 1.0
    machine.work(100, 6, held=4)
    assert quota.share() == pytest.approx(0.6)


def test_without_counters_use_is_what_there_is(machine: Machine) -> None:
    quota = machine.share()
    for text in (None, "nonsense\n", "nr_periods many\n"):
        machine.work(100, 5)
        machine.stat.unlink() if text is None else machine.stat.write_text(text)
        assert quota.share() == pytest.approx(0.5)


def test_a_quota_that_comes_and_goes_is_noticed_within_a_second(machine: Machine) -> None:
    machine.quota = None
    quota = machine.share()
    machine.work(500, 500)
    assert quota.share() == 0.0
    machine.quota = 0.1
    machine.work(1000, 20)
    assert quota.share() == pytest.approx(0.2)  # what was used without a quota does not count
    machine.quota = None
    machine.work(999, 20)
    assert 0.2 < quota.share() < 0.21
    machine.work(1, 0)
    assert quota.share() == 0.0


def test_it_is_looked_for_once_a_second() -> None:
    looked: list[int] = []

    def look() -> None:
        looked.append(now)

    now = 7
    current = CurrentQuota(look, lambda: now)
    for now in (7, 8, 999 * MS, 1000 * MS + 7, 1500 * MS):  # noqa: B007
        assert current.get() is None
    assert looked == [7, 1000 * MS + 7]


def _version_1(group: Path, quota: str) -> None:
    (group / "cpu.cfs_quota_us").write_text(quota)
    (group / "cpu.cfs_period_us").write_text("10000")


def _version_2(group: Path, quota: str) -> None:
    (group / "cpu.max").write_text(f"{quota.replace('-1', 'max')} 10000")


@pytest.mark.parametrize(
    ("line", "base", "write"),
    [("3:cpu,cpuacct:/a/b", "cpu", _version_1), ("0::/a/b", "", _version_2)],
)
def test_the_smallest_up_the_tree_holds_and_counts(
    line: str, base: str, write: Callable[[Path, str], None], tmp_path: Path
) -> None:
    (tmp_path / "cgroup").write_text(line + "\n")
    top = tmp_path / base / "a"
    (top / "b").mkdir(parents=True)
    write(top / "b", "-1")
    assert _cpu.smallest_quota(tmp_path / "cgroup", tmp_path) is None
    write(top, "1000")
    write(top / "b", "5000")
    assert _cpu.smallest_quota(tmp_path / "cgroup", tmp_path) == (0.1, top)
    assert _cpu.cpu_quota(tmp_path / "cgroup", tmp_path) == 0.1
