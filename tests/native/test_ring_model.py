"""Every schedule of the C of rings and services, on x86's memory and on C11's.

None loses a wake-up or a message; and each ordering and each second look is needed: without any
one of them, a schedule fails.
`docs/testing.md` says how it works, `docs/shared-memory.md` has the table.
"""

import re

import pytest

from tests.native._handlers import NATIVE
from tests.native._ring_model import MODELS, SCENARIOS, SERVICE, UNDER_TEST, Models
from tests.native._ring_mutations import MUTATIONS, Mutation

pytestmark = pytest.mark.checkout

_BALANCED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
ORDERED = re.compile(rf"l5_(?:load_acquire|load_seq|store_release|store_seq){_BALANCED}")
SHOWN = [
    pytest.param(mutation, model, id=f"{mutation.name}-{model}")
    for mutation in MUTATIONS
    for model in MODELS
    if getattr(mutation, model)
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_schedule_fails(models: Models, model: str, scenario: str) -> None:
    status, said = models.run(models.program(scenario), model, scenario)
    print(said, end="")
    assert status == 0
    schedules = re.search(r"(\d+) schedules", said)
    assert schedules and int(schedules[1]) > 100, "the model has nothing to choose from"


@pytest.mark.parametrize(("mutation", "model"), SHOWN)
def test_a_schedule_fails_without_it(models: Models, mutation: Mutation, model: str) -> None:
    status, said = models.run(models.without(mutation), model, getattr(mutation, model))
    assert status == 1, f"superfluous, or the model does not see why it is needed: {said}"
    header, *trace = said.splitlines()
    print("\n".join([mutation.name, said]))
    assert "fails:" in header and len(trace) > 2
    places = [line.split()[-1] for line in trace[:-1]]
    assert all(re.fullmatch(r"[a-z0-9_]+:\d+", place) for place in places), "no trace to read"


@pytest.mark.parametrize("model", MODELS)
def test_leaving_out_what_cannot_differ_changes_no_verdict(models: Models, model: str) -> None:
    """Without a bound, orders that cannot differ are tried once; with one out of reach, all are."""
    status, said = models.run(models.program("message"), model, "message", 1000)
    assert status == 0, said
    for mutation in MUTATIONS:
        if getattr(mutation, model) == "message" or mutation.pair == "MESSAGE":
            program = models.without(mutation)
            reduced, _ = models.run(program, model, "message")
            everything, said = models.run(program, model, "message", 1000)
            assert reduced == everything, f"{mutation.name}: {said}"


def test_every_ordered_access_is_taken_away_once() -> None:
    taken = "\n".join(mutation.old for mutation in MUTATIONS)
    seen = 0
    headers = [NATIVE / name for name in ("channel.h", "_copy.h", "status.h", "service.h")]
    for source in [*UNDER_TEST, *SERVICE, *headers]:
        for access in ORDERED.findall(source.read_text()):
            assert access in taken, f"{source.name}: nobody tries without {access}"
            seen += 1
    assert seen >= 11
