"""Run a target under libFuzzer (C) or atheris (Python), and read what it says about the run."""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs

from fuzz import _build
from fuzz._build import BUILD, ROOT
from fuzz._targets import Target

CORPUS = ROOT / "fuzz" / "corpus"
REGRESSIONS = ROOT / "fuzz" / "regressions"
CRASHES = BUILD / "crashes"
FOUND = BUILD / "corpus"
"""What longer runs found, beside the corpus of the repository."""

_STARTED = re.compile(r"#(\d+)\s+INITED\s+cov: (\d+) ft: (\d+)")
_LINE = re.compile(r"#(\d+)\s+\S+\s+cov: (\d+) ft: (\d+)")
_UNITS = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
_ADDED = re.compile(r"stat::new_units_added:\s*(\d+)")
_WRITTEN = re.compile(r"Test unit written to (\S+)")


@attrs.frozen
class Report:
    """What a run did."""

    target: str
    executed: int
    """Inputs that were run."""
    covered_first: int
    """Edges that the corpus alone reached;"""
    covered: int
    """that were reached in the end;"""
    features: int
    """and the same with how often each."""
    added: int
    """Inputs that reached something new."""
    crash: Path | None
    output: str

    @property
    def line(self) -> str:
        """Tell it in one line."""
        gained = self.covered - self.covered_first
        text = f"{self.target:13} {self.executed:9} inputs, {self.covered:5} edges"
        return f"{text} (+{gained}), {self.features} features, {self.added} new inputs"


class Failed(Exception):
    """A run found a defect, or did not happen."""


def why_not(target: Target) -> str | None:
    """Say why this target cannot be fuzzed here, or None."""
    if target.in_c:
        return _build.why_not()
    if importlib.util.find_spec("atheris") is None:
        return "no atheris: pip install '.[fuzz]' (CPython before 3.14)"
    return None


def command(target: Target, program: Path | None = None) -> list[str]:
    """Return the command that libFuzzer's options are added to."""
    if target.in_c:
        return [str(program or _build.build(target))]
    return [sys.executable, str(ROOT / "fuzz" / "_atheris.py")]


def _environment(target: Target, root: Path = ROOT) -> dict[str, str]:
    # A leak is looked for at the end of each run; a symbolizer, if there is one, names the lines.
    options = "detect_leaks=1:allocator_may_return_null=1"
    ours = {"PYTHONPATH": str(root), "ASAN_OPTIONS": options, "FUZZ_TARGET": target.name}
    return {**os.environ, **ours}


def _folders(target: Target) -> list[str]:
    found = FOUND / target.name
    found.mkdir(parents=True, exist_ok=True)
    CRASHES.mkdir(parents=True, exist_ok=True)
    kept = [CORPUS / target.name, REGRESSIONS / target.name]
    return [str(found), *(str(path) for path in kept if path.is_dir())]


def fuzz(
    target: Target,
    seconds: float,
    *,
    program: Path | None = None,
    options: Sequence[str] = (),
    folders: Sequence[str] | None = None,
    cwd: Path = ROOT,
) -> Report:
    """Run a target for so many seconds of new inputs, after its corpus."""
    arguments = [
        *((f"-seed={seed}",) if (seed := os.environ.get("FUZZ_SEED")) else ()),
        *(f"-max_total_time={max(1, round(seconds))}", f"-max_len={target.input_bytes_max}"),
        # By the clock: a process that others do not let run for half a minute does not hang.
        *("-print_final_stats=1", "-timeout=100", "-report_slow_units=100", "-rss_limit_mb=2048"),
        f"-artifact_prefix={CRASHES}/{target.name}-",
        *options,
        *(_folders(target) if folders is None else folders),
    ]
    CRASHES.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [*command(target, program), *arguments],
        cwd=cwd,
        env=_environment(target, cwd),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return _report(target, done.stdout.decode("utf-8", "replace"), done.returncode)


def _report(target: Target, output: str, status: int) -> Report:
    last = [match.groups() for match in _LINE.finditer(output)]
    first = _STARTED.search(output)
    units, added, crash = (p.search(output) for p in (_UNITS, _ADDED, _WRITTEN))
    if status == 0 and not (units and last and first):
        raise Failed(f"{target.name}: did not run:\n{output[-3000:]}")
    if status != 0 and crash is None:
        raise Failed(f"{target.name}: ended with {status}:\n{output[-6000:]}")
    return Report(
        target=target.name,
        executed=int(units[1]) if units else 0,
        covered_first=int(first[2]) if first else 0,
        covered=int(last[-1][1]) if last else 0,
        features=int(last[-1][2]) if last else 0,
        added=int(added[1]) if added else 0,
        crash=Path(crash[1]) if crash else None,
        output=output,
    )


def checked(report: Report) -> Report:
    """Return a report of a run that happened and found nothing; else raise `Failed`."""
    if report.crash is not None:
        raise Failed(
            f"{report.target}: {report.crash} is an input that breaks it; look with\n"
            f"  python -m fuzz replay {report.target} {report.crash}\n{report.output[-6000:]}"
        )
    if report.executed < 100 or report.covered < 20:
        raise Failed(f"{report.target}: hardly ran ({report.line})\n{report.output[-3000:]}")
    return report


def inputs(target: Target) -> list[Path]:
    """List the inputs in the repository: corpus and regressions."""
    folders = (CORPUS / target.name, REGRESSIONS / target.name)
    return sorted(path for folder in folders if folder.is_dir() for path in folder.iterdir())


def replay(target: Target, files: Sequence[Path], program: Path | None = None) -> str:
    """Run these inputs and nothing else; returns what was printed, raises `Failed`."""
    if not target.in_c:
        one_input = importlib.import_module(f"fuzz.py.{target.name}").one_input
        for file in files:
            one_input(file.read_bytes())
        return ""
    done = subprocess.run(
        [*command(target, program), *map(str, files)],
        cwd=ROOT,
        env=_environment(target),
        capture_output=True,
        check=False,
    )
    said = done.stderr.decode("utf-8", "replace")
    if done.returncode or said.count("Executed ") != len(files):
        raise Failed(f"{target.name}: replay failed ({done.returncode}):\n{said[-6000:]}")
    return said


def merge(target: Target, seeds: Path) -> tuple[int, int]:
    """Make the corpus the seeds, and the fewest inputs that reach what it and longer runs reached.

    Returns how many files and bytes it has now.
    """
    home = CORPUS / target.name
    with tempfile.TemporaryDirectory() as folder:
        sources = [seeds, home, FOUND / target.name]
        existing = [str(path) for path in sources if path.is_dir()]
        # By edges alone, not by how often each was reached: that would keep ten times as many.
        options = ["-merge=1", "-use_counters=0", f"-max_len={target.input_bytes_max}"]
        options += [f"-artifact_prefix={CRASHES}/{target.name}-"]
        CRASHES.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [*command(target), *options, folder, *existing],
            cwd=ROOT,
            env=_environment(target),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        kept = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    if done.returncode == 0 and kept:
        kept |= {path.name: path.read_bytes() for path in seeds.iterdir()}
    else:
        raise Failed(f"{target.name}: merge failed:\n{done.stdout.decode()[-3000:]}")
    home.mkdir(parents=True, exist_ok=True)
    for path in home.iterdir():
        path.unlink()
    for name, content in kept.items():
        (home / name).write_bytes(content)
    return len(kept), sum(map(len, kept.values()))
