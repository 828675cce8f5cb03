"""Every schedule of a page's writer and of each kind of reader, on x86's memory and on C11's.

No reader approves of what was never there; and each order and each check of `l5_page.h` is needed:
without any one of them a schedule fails, and so it does when a copy is judged by the check of a
better kind of copy.  `docs/pages.md` has the table.
"""

import re
from pathlib import Path

import pytest

from tests.native._handlers import NATIVE
from tests.native._page_mutations import HEADER, MUTATIONS, NOT_ENOUGH
from tests.native._ring_mutations import Mutation
from tests.native._schedules import compiled, outcome, replaced

pytestmark = pytest.mark.checkout

MODEL = Path(__file__).parent / "model"
PARTS = ["explore", "tso", "views", "page_sides"]
MODELS = ["tso", "views"]
FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{MODEL}"]
SCENARIOS = re.findall(
    r'^    \{"([^"]+)", [A-Z]', (MODEL / "page_sides.c").read_text(), re.MULTILINE
)
ENOUGH = [name for name in SCENARIOS if name not in NOT_ENOUGH]
SHOWN = [
    pytest.param(mutation, model, id=f"{mutation.name}-{model}")
    for mutation in MUTATIONS
    for model in MODELS
    if getattr(mutation, model)
]
ORDERED = re.compile(
    r"l5_page_fence\(__ATOMIC_\w+\);"
    r"|__atomic_\w+_n\((?:[^();]|\((?:[^()]|\([^()]*\))*\))*__ATOMIC_(?:ACQUIRE|RELEASE)\)"
)


class Programs:
    """Compiles what does not know the header once, and the rest for each header."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mutants: dict[str, Path] = {}
        for name in PARTS[:-1]:
            compiled(*FLAGS, "-c", MODEL / f"{name}.c", "-o", folder / f"{name}.o")
        self.shipped = self._link("page_model", NATIVE)

    def _link(self, name: str, header_folder: Path) -> Path:
        objects = [self.folder / f"{part}.o" for part in PARTS[:-1]]
        program = self.folder / name
        # The folder of the header comes first: the file is the only one of its name there.
        include = f"-I{header_folder}"
        compiled(*FLAGS, include, MODEL / "page_sides.c", *objects, "-o", program)
        return program

    def without(self, mutation: Mutation) -> Path:
        """Build the model of pages that lack something."""
        if mutation.name not in self.mutants:
            text = (NATIVE / HEADER).read_text()
            text = replaced(HEADER, text, mutation.old, mutation.new)
            folder = self.folder / f"mutant{len(self.mutants)}"
            folder.mkdir()
            (folder / HEADER).write_text(text)
            program = self._link(f"without_{len(self.mutants)}", folder)
            self.mutants[mutation.name] = program
        return self.mutants[mutation.name]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("pages"))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("scenario", ENOUGH)
def test_no_reader_approves_of_what_was_never_there(
    programs: Programs, model: str, scenario: str
) -> None:
    status, said = outcome(programs.shipped, model, scenario)
    print(said, end="")
    assert status == 0
    schedules = re.search(r"(\d+) schedules", said)
    assert schedules and int(schedules[1]) > 100, "the model has nothing to choose from"
    verdicts = re.search(r"(\d+) refused, (\d+) (\d+) (\d+) approved", said)
    assert verdicts is not None
    if scenario != "heir":
        assert all(int(count) for count in verdicts.groups()), "some verdict is never given"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("scenario", NOT_ENOUGH)
def test_the_check_of_a_better_kind_of_copy_does_not_do(
    programs: Programs, model: str, scenario: str
) -> None:
    status, said = outcome(programs.shipped, model, scenario)
    print(said)
    assert status == 1
    assert "approved as version" in said


@pytest.mark.parametrize(("mutation", "model"), SHOWN)
def test_a_schedule_fails_without_it(programs: Programs, mutation: Mutation, model: str) -> None:
    status, said = outcome(programs.without(mutation), model, getattr(mutation, model))
    print("\n".join([mutation.name, said]))
    assert status == 1, f"superfluous, or the model does not see why it is needed: {said}"


def test_every_order_is_taken_away_once() -> None:
    taken = "\n".join(mutation.old for mutation in MUTATIONS)
    orders = ORDERED.findall((NATIVE / HEADER).read_text())
    assert len(orders) >= 6
    for order in orders:
        assert order in taken, f"nobody tries without {order}"
