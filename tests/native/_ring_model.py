"""Builds `model/`: the ring's C, as it is or without one thing, under a scheduler."""

import re
import subprocess
from pathlib import Path

from tests.native._handlers import NATIVE, compiler
from tests.native._ring_mutations import Mutation

__all__ = ["MODELS", "SCENARIOS", "UNDER_TEST", "Models"]

HERE = Path(__file__).parent / "model"
UNDER_TEST = [NATIVE / name for name in ("channel.c", "segment.c", "wait.c")]
MODELS = ["tso", "views"]
SCENARIOS = re.findall(
    r'^    \{"([a-z ]+)", \d+,', (HERE / "ring_sides.c").read_text(), re.MULTILINE
)
FLAGS = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}", f"-I{HERE}"]
IN_MODEL = ["-include", str(HERE / "model.h")]


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Models:
    """Compiles what does not change once, and each changed file anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects: dict[str, Path] = {}
        self.mutants: dict[str, Path] = {}
        for name in ("explore", "memory", "tso", "views"):
            self.objects[name] = self._compile(HERE / f"{name}.c")
        for source in (HERE / "ring_sides.c", *UNDER_TEST):
            self.objects[source.stem] = self._compile(source, *IN_MODEL)
        self.program = self._link("ring_model", self.objects)

    def _compile(self, source: Path, *flags: str) -> Path:
        target = self.folder / f"{source.stem}.o"
        done = _run(compiler(), *FLAGS, *flags, "-c", source, "-o", target)
        assert done.returncode == 0, done.stderr
        return target

    def _link(self, name: str, objects: dict[str, Path]) -> Path:
        done = _run(compiler(), *objects.values(), "-o", self.folder / name)
        assert done.returncode == 0, done.stderr
        return self.folder / name

    def without(self, mutation: Mutation) -> Path:
        """Build the model of a ring that lacks something."""
        if mutation.name in self.mutants:
            return self.mutants[mutation.name]
        source = HERE / "ring_sides.c" if mutation.waiting else NATIVE / "channel.c"
        text = source.read_text()
        assert text.count(mutation.old) == 1, (
            f"the C has changed; what is this now?\n{mutation.old}"
        )
        changed = self.folder / "mutated.c"
        changed.write_text(text.replace(mutation.old, mutation.new))
        objects = {**self.objects, source.stem: self._compile(changed, *IN_MODEL)}
        mutant = self._link(f"without_{len(self.mutants)}", objects)
        return self.mutants.setdefault(mutation.name, mutant)

    def run(self, program: Path, model: str, scenario: str, *bounds: int) -> tuple[int, str]:
        """Return the status (1: a schedule fails) and what was printed."""
        done = _run(program, model, scenario, *map(str, bounds))
        assert done.returncode in (0, 1), done.stdout + done.stderr
        return done.returncode, done.stdout
