"""What the models of schedules share: to compile, to take something away, to run."""

import subprocess
from pathlib import Path

from tests.native._handlers import compiler


def compiled(*arguments: str | Path) -> None:
    """Run the compiler, which has nothing to say."""
    done = subprocess.run([compiler(), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def replaced(name: str, text: str, old: str, new: str) -> str:
    """Return the text of the file `name` with something else in one place."""
    assert text.count(old) == 1, f"{name} has changed; what is this now?\n{old}"
    return text.replace(old, new)


def outcome(program: Path, *arguments: str) -> tuple[int, str]:
    """Return the status of a model (1: a schedule fails) and what was printed."""
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode, done.stdout
