"""Every schedule of a peer's device and of who reads its mailboxes, on x86's memory and on C11's.

No message is taken before it is whole, no row before it is there; and each check and each zero of
`mailbox.c` is needed: without any one of them a schedule fails.  `docs/testing.md` has the rest.
"""

import re
from pathlib import Path

import pytest

from tests.native._handlers import NATIVE
from tests.native._ring_mutations import Mutation
from tests.native._schedules import compiled, outcome, replaced

pytestmark = pytest.mark.checkout

MODEL = Path(__file__).parent / "model"
SOURCE = NATIVE / "mailbox.c"
PARTS = ["explore", "tso", "views", "mailbox_sides"]
MODELS = ["tso", "views"]
FLAGS = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}", f"-I{MODEL}"]
WITH_MODEL = ["-include", MODEL / "model_mailbox.h"]
SCENARIOS = re.findall(
    r'^    \{"([^"]+)", \{', (MODEL / "mailbox_sides.c").read_text(), re.MULTILINE
)


def _without(
    name: str, part: str, old: str, new: str, *, tso: str | None = None, views: str | None = None
) -> Mutation:
    return Mutation(name, part, old, new, tso, views, SOURCE.name)


MUTATIONS = [
    _without(
        "nobody looks at the OK byte",
        "OK",
        """    if (l5_flag_acquire((const l5_flag_byte *)(const void *)(at + 4 + size)) != L5_OK)
        return 0;
""",
        "",
        tso="message",
        views="message",
    ),
    _without(
        "the OK byte is loaded without acquire",
        "OK",
        "l5_flag_acquire((const l5_flag_byte *)(const void *)(at + 4 + size))",
        "l5_flag_relaxed((const l5_flag_byte *)(const void *)(at + 4 + size))",
        views="message",
    ),
    _without(
        "the size is not looked at again",
        "OK",
        "return l5_size_acquire(word) == size ? (int64_t)size : 0;",
        "return (int64_t)size;",
        tso="message",
        views="message",
    ),
    _without(
        "a message is not zeroed but for its size",
        "CONSUMED",
        "    memset(at + 4, 0, padded - 4);\n",
        "    (void)padded;\n",
        tso="laps, shorter",
        views="laps, shorter",
    ),
    _without(
        "the OK byte of a message is not zeroed",
        "CONSUMED",
        "    memset(at + 4, 0, padded - 4);\n",
        "    memset(at + 4, 0, 8);\n    (void)padded;\n",
        tso="laps, longer",
        views="laps, longer",
    ),
    _without(
        "the size of a message is not zeroed",
        "CONSUMED",
        "    l5_size_release((l5_size *)(void *)at, 0);\n",
        "",
        tso="message",
        views="message",
    ),
    _without(
        "a flag is taken without acquire",
        "FLAG",
        "if (l5_flag_take((l5_flag_byte *)(void *)(flags + i)))",
        "if (l5_flag_take_relaxed((l5_flag_byte *)(void *)(flags + i)))",
        views="row and flag",
    ),
    _without(
        "a flag that is found is not cleared",
        "FLAG",
        "if (l5_flag_take((l5_flag_byte *)(void *)(flags + i)))",
        "if (l5_flag_acquire((l5_flag_byte *)(void *)(flags + i)))",
        tso="row and flag",
        views="row and flag",
    ),
]
STRICTER = [
    "l5_size_acquire(word)",
    "l5_size_release((l5_size *)(void *)at, 0)",
]
"""What no schedule needs, for the OK byte and the post order what comes behind them: they are kept,
as the other side is a device, of which C11 says nothing, and they cost nothing on x86."""
ORDERED = re.compile(r"l5_(?:size|flag)_(?:acquire|release|take)(\((?:[^()]|\([^()]*\))*\))")
SHOWN = [
    pytest.param(mutation, model, id=f"{mutation.name}-{model}")
    for mutation in MUTATIONS
    for model in MODELS
    if getattr(mutation, model)
]


class Programs:
    """Compiles what does not change once, and `mailbox.c` for each mutation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mutants: dict[str, Path] = {}
        for name in PARTS:
            compiled(*FLAGS, "-c", MODEL / f"{name}.c", "-o", folder / f"{name}.o")
        self.shipped = self._link("mailbox_model", SOURCE)

    def _link(self, name: str, source: Path) -> Path:
        program, under_test = self.folder / name, self.folder / f"{name}.o"
        compiled(*FLAGS, *WITH_MODEL, "-c", source, "-o", under_test)
        objects = [self.folder / f"{part}.o" for part in PARTS]
        compiled(*FLAGS, *objects, under_test, "-o", program)
        return program

    def without(self, mutation: Mutation) -> Path:
        """Build the model of a mailbox that lacks something."""
        if mutation.name not in self.mutants:
            text = replaced(SOURCE.name, SOURCE.read_text(), mutation.old, mutation.new)
            name = f"without_{len(self.mutants)}"
            changed = self.folder / f"{name}.c"
            changed.write_text(text)
            self.mutants[mutation.name] = self._link(name, changed)
        return self.mutants[mutation.name]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("mailbox"))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_schedule_fails(programs: Programs, model: str, scenario: str) -> None:
    status, said = outcome(programs.shipped, model, scenario)
    print(said, end="")
    assert status == 0
    schedules = re.search(r"(\d+) schedules", said)
    assert schedules and int(schedules[1]) > 30, "the model has nothing to choose from"


@pytest.mark.parametrize(("mutation", "model"), SHOWN)
def test_a_schedule_fails_without_it(programs: Programs, mutation: Mutation, model: str) -> None:
    status, said = outcome(programs.without(mutation), model, getattr(mutation, model))
    print("\n".join([mutation.name, said]))
    assert status == 1, f"superfluous, or the model does not see why it is needed: {said}"


def test_every_ordered_access_is_taken_away_once() -> None:
    taken = "\n".join([*STRICTER, *(mutation.old for mutation in MUTATIONS)])
    accesses = [found.group() for found in ORDERED.finditer(SOURCE.read_text())]
    assert len(accesses) == 5
    for access in accesses:
        assert access in taken, f"nobody tries without {access}"
