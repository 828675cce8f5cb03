"""The choice of an upgrade: a table of facts and reasons, and what holds for any facts."""

import json
import pickle
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from l5._hello import Offer
from l5._selector import SOCKETS, Choice, UpgradeReport, choose, rank

USABLE: dict[str, str | None] = {"shm": None, "rdma": None, "tcp": None, "unix": None}


def choice_of(
    *offers: str,
    usable: Mapping[str, str | None] = USABLE,
    preference: Sequence[str] | None = None,
    demanded: str | None = None,
    same_host: bool = True,
    tls: bool = False,
) -> Choice:
    return choose(
        [Offer(transport=name) for name in offers], usable, preference, demanded, same_host, tls
    )


def test_the_clients_order_decides_when_the_server_has_none() -> None:
    assert choice_of("shm", "rdma") == Choice("shm", {"rdma": "shm is preferred"})
    assert choice_of("rdma", "shm") == Choice("rdma", {"shm": "rdma is preferred"})


def test_the_servers_order_wins() -> None:
    assert choice_of("shm", "rdma", preference=["rdma", "shm"]).transport == "rdma"


def test_nothing_offered() -> None:
    why = "the client did not offer it"
    assert choice_of() == Choice(None, {"shm": why, "rdma": why})


def test_the_servers_own_reason_is_told_for_what_was_not_offered_either() -> None:
    usable = {"shm": None, "rdma": "no device"}
    assert choice_of("shm", usable=usable) == Choice("shm", {"rdma": "no device"})


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"usable": {"shm": "no memfd_create"}}, "at the server: no memfd_create"),
        ({"usable": {}}, "the server does not have it"),
        ({"preference": ["rdma", "tcp"]}, "the server allows only rdma, tcp"),
        ({"preference": []}, "the server allows only "),
        ({"demanded": "tcp"}, "tcp is demanded"),
        ({"demanded": "rdma"}, "rdma is demanded"),
        ({"same_host": False}, "different hosts or in different network namespaces"),
        ({"preference": ["tcp", "shm"]}, "the socket is preferred"),
    ],
)
def test_reasons_against_shared_memory(how: dict[str, object], reason: str) -> None:
    choice = choice_of("shm", **how)  # type: ignore[arg-type]
    assert choice.transport is None
    assert reason in choice.declined["shm"]


def test_the_next_best_is_taken() -> None:
    choice = choice_of("shm", "rdma", same_host=False)
    assert choice.transport == "rdma"
    assert "different hosts" in choice.declined["shm"]


def test_tls_allows_shared_memory_of_one_host_only() -> None:
    assert choice_of("rdma", "shm", tls=True).transport == "shm"
    assert "TLS" in choice_of("rdma", tls=True).declined["rdma"]
    assert choice_of("shm", tls=True, same_host=False).transport is None


def test_a_demand_is_met_although_it_is_ranked_last() -> None:
    choice = choice_of("shm", "rdma", demanded="rdma")
    assert choice == Choice("rdma", {"shm": "rdma is demanded"})


def test_a_socket_in_the_preference_ends_the_search() -> None:
    assert choice_of("shm", "rdma", preference=["shm", "tcp", "rdma"]).transport == "shm"
    assert choice_of("shm", "rdma", preference=["tcp", "shm"]).transport is None
    choice = choice_of("shm", "rdma", preference=["shm", "tcp", "rdma"], same_host=False)
    assert choice.transport is None
    assert choice.declined["rdma"] == "the socket is preferred"


def test_offers_that_are_repeated_or_name_sockets_change_nothing() -> None:
    assert choice_of("shm", "shm", "rdma", "shm") == choice_of("shm", "rdma")
    assert choice_of("tcp", "shm").transport is None, "a client that offers a socket first stays"
    assert "tcp" not in choice_of("tcp", "shm").declined


def test_a_preference_may_name_a_transport_twice() -> None:
    choice = choice_of("rdma", usable={"rdma": None}, preference=["rdma", "rdma"])
    assert choice.transport == "rdma" and not choice.declined


def test_long_reasons_are_cut() -> None:
    assert len(choice_of("shm", usable={"shm": "x" * 5000}).declined["shm"]) == 200


NAMES = ["shm", "rdma", "custom", "tcp", "unix", "inproc"]
names = st.lists(st.sampled_from(NAMES), max_size=6)


@given(
    names,
    st.dictionaries(st.sampled_from(NAMES), st.none() | st.text(max_size=5)),
    st.none() | names,
    st.none() | st.sampled_from(NAMES),
    st.booleans(),
    st.booleans(),
)
def test_any_facts(
    offers: list[str],
    usable: dict[str, str | None],
    preference: list[str] | None,
    demanded: str | None,
    same_host: bool,
    tls: bool,
) -> None:
    choice = choice_of(
        *offers,
        usable=usable,
        preference=preference,
        demanded=demanded,
        same_host=same_host,
        tls=tls,
    )
    chosen = choice.transport
    everyone = (set(offers) | set(usable)) - SOCKETS
    assert set(choice.declined) == everyone - {chosen}
    assert all(choice.declined.values()) or "" in usable.values()
    if chosen is None:
        return
    assert chosen in offers and usable[chosen] is None
    assert demanded in (None, chosen)
    assert preference is None or chosen in preference
    assert same_host or chosen != "shm"
    assert not tls or chosen == "shm"


@pytest.mark.parametrize(
    ("preference", "ranked"),
    [
        (None, ["shm", "rdma", "aaa", "zzz"]),
        (["zzz", "shm"], ["zzz", "shm"]),
        (["shm", "tcp", "zzz"], ["shm"]),
        (["tcp"], []),
        (["unknown"], []),
    ],
)
def test_rank(preference: list[str] | None, ranked: list[str]) -> None:
    assert rank(["zzz", "tcp", "rdma", "aaa", "shm", "unix"], preference) == ranked


def test_a_report_reads_as_one_line() -> None:
    report = UpgradeReport("rdma", "tcp", {"shm": "another host"})
    assert str(report) == "rdma, upgraded from tcp; no shm: another host"
    assert str(UpgradeReport("tcp", "tcp", {"shm": "x", "rdma": "y"})) == (
        "tcp, not upgraded; no shm: x; no rdma: y"
    )
    assert str(UpgradeReport("inproc", "inproc")) == "inproc, not upgraded"


def test_a_report_leaves_out_what_nobody_misses_and_what_to_do() -> None:
    reasons = {"shm": "other hosts", "rdma": "no device; install a card"}
    assert str(UpgradeReport("shm", "unix", {"rdma": "no device"})) == "shm, upgraded from unix"
    assert str(UpgradeReport("rdma", "tcp", {"shm": "other hosts"})) == (
        "rdma, upgraded from tcp; no shm: other hosts"
    )
    assert str(UpgradeReport("tcp", "tcp", reasons)) == (
        "tcp, not upgraded; no shm: other hosts; no rdma: no device"
    )


def test_a_report_is_a_value_and_json() -> None:
    report = UpgradeReport("shm", "unix", {"rdma": "no device"})
    assert hash(report) == hash(pickle.loads(pickle.dumps(report)))
    assert report.upgraded and not UpgradeReport("tcp", "tcp").upgraded
    assert json.loads(json.dumps(report.as_dict())) == {
        "transport": "shm",
        "bootstrap": "unix",
        "upgraded": True,
        "reasons": {"rdma": "no device"},
        "mode": "",
    }
