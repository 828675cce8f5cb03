"""Every schedule of a writer of the R-tree and a reader, on x86's memory and on C11's.

The C is that which is shipped, with nodes of three entries.  Inserts, splits, merges, moves and
deletes run against a search in the memory itself (a thread of the server, or a process that maps
it) and against a walk by reads; no search approves of less, or more, than the tree's guarantee.
Each order and each check is needed: without any one of them a schedule fails.
"""

import re
from pathlib import Path

import pytest

from tests.native._handlers import NATIVE
from tests.native._ring_mutations import Mutation
from tests.native._schedules import compiled, outcome, replaced
from tests.native._tree_mutations import MUTATIONS, SMALLER

pytestmark = pytest.mark.checkout

MODEL = Path(__file__).parent / "model"
TREE = NATIVE.parent.parent / "catfish_app" / "native"
WORLD = ["explore", "tso", "views"]
SHIPPED = [
    *("rt_arena", "rt_bulk", "rt_delete", "rt_foreign", "rt_insert", "rt_kernel_portable"),
    *("rt_nearest", "rt_search", "rt_split", "rt_walk", "rt_walk_life"),
]
MODELS = ["tso", "views"]
KINDS = ["own", "foreign", "walk"]
WHAT = re.findall(r'^    EACH\("([^"]+)", ', (MODEL / "tree_sides.c").read_text(), re.MULTILINE)
FLAGS = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{MODEL}"]
# At most so many forced switches and stale loads (on x86: moments at which stores land).
BOUNDS = {"tso": ("0", "3"), "views": ("2", "1")}
BOUNDS_OF_WALKS = {"tso": ("0", "2"), "views": ("1", "1")}
BOUNDS_OF_LOADS = {"tso": ("0", "3"), "views": ("1", "4")}  # `moves` and the origin are both stale
SHOWN = [
    pytest.param(mutation, model, id=f"{mutation.name}-{model}")
    for mutation in MUTATIONS
    for model in MODELS
    if getattr(mutation, model)
]
ORDERED = re.compile(r"rt_release_fence\(\);|__atomic_\w+_n\([^;]*__ATOMIC_(?:ACQUIRE|RELEASE)\);")


def bounds_of(scenario: str) -> dict[str, tuple[str, str]]:
    if scenario.startswith("walk"):
        return BOUNDS_OF_WALKS
    return BOUNDS_OF_LOADS if scenario.endswith(": load") else BOUNDS


class Programs:
    """Compiles what does not know the tree once, and of the tree what a mutation changes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mutants: dict[str, Path] = {}
        self.texts = {path.name: path.read_text() for path in TREE.glob("*.[ch]")}
        for name, old, new in SMALLER:
            self.texts[name] = replaced(name, self.texts[name], old, new)
        for name in WORLD:
            compiled(*FLAGS, "-c", MODEL / f"{name}.c", "-o", folder / f"{name}.o")
        self.plain = folder / "shipped"
        self.shipped = self._build(self.plain, {}, [*SHIPPED, "tree_sides"])

    def _build(self, home: Path, changed: dict[str, str], names: list[str]) -> Path:
        home.mkdir()
        for name, text in {**self.texts, **changed}.items():
            (home / name).write_text(text)
        include = [f"-I{home}", f"-I{NATIVE}", "-include", str(MODEL / "model_tree.h")]
        for name in names:
            source = MODEL / "tree_sides.c" if name == "tree_sides" else home / f"{name}.c"
            compiled(*FLAGS, *include, "-c", source, "-o", home / f"{name}.o")
        objects = [
            (home if name in names else self.plain) / f"{name}.o"
            for name in [*SHIPPED, "tree_sides"]
        ]
        program = home / "tree_model"
        world = [self.folder / f"{name}.o" for name in WORLD]
        compiled(*objects, *world, "-o", program, "-lm", "-pthread")
        return program

    def without(self, mutation: Mutation) -> Path:
        """Build the model of a tree that lacks something."""
        if mutation.name not in self.mutants:
            source = mutation.source
            text = replaced(source, self.texts[source], mutation.old, mutation.new)
            users = {"rt_node.h": [*SHIPPED, "tree_sides"], "rt_traverse.h": ["rt_kernel_portable"]}
            names = users.get(source, [source.removesuffix(".c")])
            home = self.folder / f"mutant{len(self.mutants)}"
            self.mutants[mutation.name] = self._build(home, {source: text}, names)
        return self.mutants[mutation.name]

    def run(self, program: Path, model: str, scenario: str) -> tuple[int, str]:
        """Return the status (1: a schedule fails) and what was printed."""
        return outcome(program, model, scenario, *bounds_of(scenario)[model])


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("tree"))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("kind", KINDS)
def test_no_search_approves_of_less_or_more_than_it_may(
    programs: Programs, kind: str, what: str, model: str
) -> None:
    status, said = programs.run(programs.shipped, model, f"{kind}: {what}")
    print(said, end="")
    assert status == 0
    schedules = re.search(r"(\d+) schedules", said)
    assert schedules and int(schedules[1]) > 100, "the model has nothing to choose from"
    verdicts = re.search(r"(\d+) approved, (\d+) refused", said)
    assert verdicts and all(int(count) for count in verdicts.groups()), "a verdict is never given"


@pytest.mark.parametrize(("mutation", "model"), SHOWN)
def test_a_schedule_fails_without_it(programs: Programs, mutation: Mutation, model: str) -> None:
    status, said = programs.run(programs.without(mutation), model, getattr(mutation, model))
    print("\n".join([mutation.name, said]))
    assert status == 1, f"superfluous, or the model does not see why it is needed: {said}"
    assert "approved: " in said


def test_every_order_of_the_sequence_word_is_taken_away_once() -> None:
    text = (TREE / "rt_node.h").read_text()
    begin, end = text.index("/* The sequence word of the header. */"), text.index("rt_node_begin(")
    orders = ORDERED.findall(text[begin:end])
    assert len(orders) == 3
    taken = "\n".join(mutation.old for mutation in MUTATIONS)
    for order in orders:
        assert order in taken, f"nobody tries without {order}"
