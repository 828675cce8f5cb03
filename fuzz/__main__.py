"""Fuzz: `python -m fuzz`, each target for its share of the time.

python -m fuzz [--seconds 600] [TARGET ...]     fuzz; crashes go to build/fuzz/crashes
python -m fuzz replay TARGET FILE ...           run these inputs and nothing else
python -m fuzz corpus [TARGET ...]              run the corpus of the repository
python -m fuzz merge [TARGET ...]               minimize it, with what longer runs have found
"""

import argparse
import sys
import tempfile
from pathlib import Path

from fuzz import _run, _seeds
from fuzz._targets import TARGETS, Target


def chosen(names: list[str]) -> list[Target]:
    """Return the targets of these names, or all."""
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        known = "\n".join(f"  {target.name:13} {target.what}" for target in TARGETS.values())
        sys.exit(f"fuzz: there is no target {unknown[0]!r}; there are\n{known}")
    return [TARGETS[name] for name in names or TARGETS]


def fuzz(targets: list[Target], seconds: float) -> None:
    """Fuzz each target for its share; all of them are run before a failure is told."""
    failures: list[str] = []
    for target in targets:
        try:
            report = _run.fuzz(target, seconds / len(targets))
            print(report.line, flush=True)
            _run.checked(report)
        except _run.Failed as error:
            failures.append(str(error))
    if failures:
        sys.exit("\n".join(failures))


def merge(targets: list[Target]) -> None:
    """Make the corpus of each target anew: its seeds, and the fewest inputs that reach all else."""
    for target in targets:
        with tempfile.TemporaryDirectory() as folder:
            for number, seed in enumerate(_seeds.seeds(target.name)):
                Path(folder, f"seed-{number:02}").write_bytes(seed)
            files, size = _run.merge(target, Path(folder))
        print(f"{target.name:13} {files:4} inputs, {size:6} bytes", flush=True)


def main() -> None:
    """Read the command line and do it."""
    words = sys.argv[1:]
    action = words.pop(0) if words and words[0] in ("replay", "corpus", "merge") else "fuzz"
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=float, default=600.0, help="for all targets together")
    arguments = parser.parse_args(words)
    names: list[str] = arguments.names
    if action == "replay":
        [target] = chosen(names[:1])
        print(_run.replay(target, [Path(name).resolve() for name in names[1:]]))
        return
    targets = chosen(names)
    for target in targets:
        reason = _run.why_not(target)
        if reason and (target.in_c or action != "corpus"):
            sys.exit(f"fuzz: {reason}")
    if action == "merge":
        merge(targets)
    elif action == "corpus":
        for target in targets:
            _run.replay(target, _run.inputs(target))
            print(f"{target.name:13} {len(_run.inputs(target)):4} inputs ran", flush=True)
    else:
        fuzz(targets, arguments.seconds)


if __name__ == "__main__":
    main()
