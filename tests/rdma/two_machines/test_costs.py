"""What a request costs between two machines, by what the device counted: counts, no times."""

import json
import os
import statistics
from collections.abc import Callable

import pytest

import l5
from tests.rdma.two_machines import peer
from tests.rdma.two_machines.conftest import packets

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]
PATIENT = {"hello_timeout": 60.0, "connect_timeout": 90.0}
ROUNDS, EACH = 15, 16
REQUESTS = ROUNDS * EACH

Ask = Callable[[str], str]


def of_server(ask: Ask) -> dict[str, int]:
    """What the server's end did of the one connection that there is."""
    (counters,) = json.loads(ask("counters"))
    return counters


@pytest.mark.parametrize(("mode", "posts"), [("flags", 2), ("flags+imm", 2), ("imm", 1)])
async def test_what_a_small_round_trip_costs(ask: Ask, mode: str, posts: int) -> None:
    """Each write is a packet and its acknowledgement is one: nothing else is sent.

    Where the host is busy a packet may be sent once more: so most rounds have to be exact, not all.
    """
    url = f"l5://{os.environ['SOFTROCE_PEER']}:{peer.ECHO}"
    async with await l5.connect(url, rdma_mode=mode, **PATIENT) as conn:
        assert conn.transport == "rdma", str(conn.upgrade_report)
        assert conn.upgrade_report.mode == mode
        for _ in range(64):
            await conn.request(b"warm")
        client = conn._session.channel.counters
        server = of_server(ask)
        begun = client.posts, client.completions
        rounds: list[int] = []
        for number in range(ROUNDS):
            before = sum(packets())
            for request in (b"%d, %d" % (number, each) for each in range(EACH)):
                assert await conn.request(request) == request[::-1]
            rounds.append(sum(packets()) - before)
        sent, completed = client.posts - begun[0], client.completions - begun[1]
        answered = {name: count - server[name] for name, count in of_server(ask).items()}
    trip = statistics.median(rounds) / EACH
    print(f"{mode}: {trip} packets a round trip, {sent / REQUESTS} posts a request, ", end="")
    print(f"{answered['posts'] / REQUESTS} a response, {completed} completions; {rounds}")
    assert sent == posts * REQUESTS
    assert answered["posts"] == REQUESTS and answered["notices"] == 0
    # Signalled once in half of the queue, which has 64 places.
    assert completed <= posts * REQUESTS // 32 + 1
    assert answered["completions"] <= REQUESTS // 32 + 1
    assert trip == min(rounds) / EACH == 2 * (posts + 1), rounds
