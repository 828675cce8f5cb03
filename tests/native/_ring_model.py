"""Builds `model/`: the shipped C, as it is or without one thing, under a scheduler."""

import re
import shutil
from pathlib import Path

from tests.native._handlers import NATIVE
from tests.native._ring_mutations import Mutation
from tests.native._schedules import compiled, outcome, replaced

__all__ = ["MODELS", "SCENARIOS", "SERVICE", "UNDER_TEST", "Models"]

HERE = Path(__file__).parent / "model"
UNDER_TEST = [NATIVE / name for name in ("channel.c", "segment.c", "wait.c", "region.c")]
SERVICE = sorted(NATIVE.glob("service*.c"))
HEADERS = {"_copy.h": "channel.c", "status.h": "ring_sides.c"}
"""Headers from which something is taken away, and which file is compiled with what is left."""
COMMON = ["explore", "memory", "tso", "views"]
MODELS = ["tso", "views"]
SCENARIOS = re.findall(
    r'^    \{"([a-z: ]+)", \d+,',
    "".join((HERE / f"{name}_sides.c").read_text() for name in ("ring", "service")),
    re.MULTILINE,
)
# Where a test build dies (see tests/attacks/test_steps.py); nothing in any other.
_STEP = re.compile(r"^ *L5_STEP\(.*\n", re.MULTILINE)
FLAGS = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}", f"-I{HERE}"]
RING_MODEL = ["-include", str(HERE / "model.h")]
SERVICE_MODEL = ["-include", str(HERE / "model_service.h")]


class Models:
    """Compiles what does not change once, and each changed file anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mutants: dict[str, Path] = {}
        common = {name: self._compile(HERE / f"{name}.c") for name in COMMON}
        self.ring = common | {
            source.name: self._compile(source, *RING_MODEL)
            for source in (*UNDER_TEST, HERE / "ring_sides.c")
        }
        self.service = common | {
            source.name: self._compile(source, *SERVICE_MODEL)
            for source in (*UNDER_TEST, *SERVICE, HERE / "service_sides.c")
        }
        self.ring_program = self._link("ring_model", self.ring)
        self.service_program = self._link("service_model", self.service)

    def _compile(self, source: Path, *flags: str) -> Path:
        target = self.folder / f"{len(list(self.folder.iterdir()))}_{source.stem}.o"
        compiled(*FLAGS, *flags, "-c", source, "-o", target)
        return target

    def _link(self, name: str, objects: dict[str, Path]) -> Path:
        compiled(*objects.values(), "-o", self.folder / name)
        return self.folder / name

    def program(self, scenario: str) -> Path:
        """Return the program that knows this scenario, with nothing taken away."""
        return self.service_program if scenario.startswith("served") else self.ring_program

    def without(self, mutation: Mutation) -> Path:
        """Build the model of a ring that lacks something."""
        if mutation.name in self.mutants:
            return self.mutants[mutation.name]
        folder = HERE if mutation.source == "ring_sides.c" else NATIVE
        text = _STEP.sub("", (folder / mutation.source).read_text())
        text = replaced(mutation.source, text, mutation.old, mutation.new)
        objects, flags, source = self.ring, RING_MODEL, mutation.source
        if source.startswith("service"):
            objects, flags = self.service, SERVICE_MODEL
        if source in HEADERS:
            changed, source = self._beside(source, text), HEADERS[source]
            flags = [f"-I{changed.parent}", *flags]
        else:
            changed = self.folder / "mutated.c"
            changed.write_text(text)
        objects = objects | {source: self._compile(changed, *flags)}
        mutant = self._link(f"without_{len(self.mutants)}", objects)
        return self.mutants.setdefault(mutation.name, mutant)

    def _beside(self, header: str, text: str) -> Path:
        """Put the file that uses a header into a folder with this one: it is found there first."""
        folder = self.folder / f"headers_{len(self.mutants)}"
        folder.mkdir()
        (folder / header).write_text(text)
        user = HEADERS[header]
        here = HERE if (HERE / user).exists() else NATIVE
        return Path(shutil.copy(here / user, folder))

    def run(self, program: Path, model: str, scenario: str, *bounds: int) -> tuple[int, str]:
        """Return the status (1: a schedule fails) and what was printed."""
        return outcome(program, model, scenario, *map(str, bounds))
