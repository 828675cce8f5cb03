"""All figures of the paper, one after the other: ``python -m benchmarks catfish-figures``.

Writes rows (figN.jsonl, softroce.jsonl) and pictures beside them to a folder; standard error tells
what is under way.  Takes about 20 minutes, and a few with ``--quick``, which only shows that all of
it runs.  Figures 11 and 13 are the latencies of the runs of 10 and 12.  ``--publish`` runs nothing:
it takes pictures that are there into the documentation and prints tables of the rows in Markdown.
"""

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import attrs

from benchmarks.catfish import tables

ROOT = Path(__file__).parents[2]
OUT = Path("build/figures")
IMAGES = ROOT / "docs" / "images"


@attrs.frozen
class Step:
    """A run of a command, and who else draws what it found."""

    name: str
    minutes: float | None = None
    """At most about so many; None: it takes as long as it takes, and knows no ``--full``."""
    drawn_by: tuple[str, ...] = ()


STEPS = (
    Step("softroce"),
    Step("fig2", 1.5),
    Step("fig7", 1.5),
    Step("fig8", 0.5),
    Step("fig9", 1.0),
    Step("fig10", 3.0, ("fig11",)),
    Step("fig12", 3.0, ("fig13",)),
    Step("fig14", 3.0),
)
PICTURES = [name for step in STEPS for name in (step.name, *step.drawn_by)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks catfish-figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [step.name for step in STEPS]
    parser.add_argument("--out", metavar="DIR", type=Path, default=OUT, help=f"the folder ({OUT})")
    parser.add_argument("--quick", action="store_true", help="small and short")
    parser.add_argument("--only", metavar="NAME", nargs="+", choices=names, default=names)
    parser.add_argument("--without", metavar="NAME", nargs="+", choices=names, default=[])
    parser.add_argument("--publish", action="store_true", help="pictures to docs/images, tables")
    chosen = parser.parse_args(arguments)
    if chosen.publish:
        return publish(chosen.out, IMAGES)
    wanted = [
        step for step in STEPS if step.name in chosen.only and step.name not in chosen.without
    ]
    chosen.out.mkdir(parents=True, exist_ok=True)
    failed = [step.name for step in wanted if not run(step, chosen.out, chosen.quick)]
    if failed:
        say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def run(step: Step, out: Path, quick: bool) -> bool:
    """Run a step and draw what it found; tell whether all of that went well."""
    began = time.monotonic()
    rows = out.absolute() / f"{step.name}.jsonl"
    say(f"{step.name} ...")
    done = command(
        step.name, *words(step, quick), "--json", str(rows), "--png", png(out, step.name)
    )
    for name in step.drawn_by if done else ():
        done = command(name, "--from", str(rows), "--png", png(out, name)) and done
    taken_s = time.monotonic() - began
    found = len(rows.read_text().splitlines()) if rows.exists() else 0
    outcome = f"{found} rows" if done else "FAILED"
    say(f"{step.name}: {outcome}, {taken_s:.0f} s")
    return done


def words(step: Step, quick: bool) -> list[str]:
    if quick:
        return ["--quick"]
    return [] if step.minutes is None else ["--full", "--minutes", str(step.minutes)]


def command(name: str, *words: str) -> bool:
    """Run a figure in a process of its own; its rows are in its file, and not printed here."""
    line = [sys.executable, "-m", "benchmarks", f"catfish-{name}", *words]
    return subprocess.run(line, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode == 0


def png(out: Path, name: str) -> str:
    return str(out.absolute() / f"{name}.png")


def publish(out: Path, images: Path) -> int:
    """Copy the pictures that are there, and print tables of all rows that are."""
    pictures = [name for name in PICTURES if (out / f"{name}.png").exists()]
    if not pictures:
        say(f"{out} holds no pictures: run without --publish first")
        return 1
    for name in pictures:
        shutil.copyfile(out / f"{name}.png", images / f"catfish-{name}.png")
    say(f"to {images}: {', '.join(pictures)}")
    rows = [out / f"{step.name}.jsonl" for step in STEPS]
    return tables.main([str(path) for path in rows if path.exists()])


def say(text: str) -> None:
    print(f"catfish-figures: {text}", file=sys.stderr, flush=True)
