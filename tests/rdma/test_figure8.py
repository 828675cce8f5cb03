"""The benchmark of Figure 8 runs, in one process and with its other end served, and counts."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading

import pytest

from benchmarks import _rdma_isolation
from benchmarks import rdma as figure
from benchmarks._rdma_ends import WAYS, End, Lost
from l5.rdma import verbs

BACKENDS = ["simulated", *(["cverbs", "pyverbs"] if os.environ.get("SOFTROCE") else [])]
TRIPS = 64
POSTS = {"polling": 2, "two writes": 4, "chained": 4, "immediate": 2, "send + receive": 2}


@pytest.fixture(params=BACKENDS, autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("L5_VERBS", request.param)
    return request.param


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("size", [2, 64, 60_000])
def test_counts(way: str, size: int) -> None:
    with figure.opened(None) as device:
        side = figure.Local(device, way, size, TRIPS, figure.first_address(device))
        sample = side.measure()
    assert sample["posts"] == POSTS[way]
    queued = 2 if way in ("immediate", "send + receive") else 0
    signalled = POSTS[way] / 32
    assert queued <= sample["completions"] <= queued + 2 * signalled
    if "packets" in sample and size <= 64:
        assert sample["packets"] == 2 * POSTS[way]  # each write is acknowledged


def test_a_message_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks._rdma_ends.PATIENCE_SECONDS", 0.05)
    with figure.opened(None) as device:
        gid = verbs.choose_gid(device.gids(), figure.first_address(device))
        here, there = (End(device, gid, "polling", 64) for _ in range(2))
        here.connect(there.about())
        there.connect(here.about())
        with pytest.raises(Lost, match="did not arrive"):
            there.wait(0)
        here.close()
        there.close()


def test_what_isolation_costs(backend: str) -> None:
    with figure.opened(None) as device:
        rows = list(_rdma_isolation.rows(device, 1, quick=True))
    told = {(row["case"], row["metric"].partition(" ")[0]): row for row in rows}
    region = told["isolation/a region of 4 KiB, 4 clients", "registrations"]
    assert (region["ours"]["median"], region["peer_value"]["median"]) == (1, 4)
    mailboxes = told["isolation/mailboxes, 4 clients", "registrations"]
    assert (mailboxes["ours"]["median"], mailboxes["peer_value"]["median"]) == (4, 16)
    if backend != "simulated":
        pinned = told["isolation/a region of 4 KiB, 4 clients", "pinned"]
        assert pinned["peer_value"]["median"] == 4 * pinned["ours"]["median"] >= 16


def test_between_two_ends() -> None:
    """Two threads that spin: each has the GIL for as short as can be, or a trip takes 10 ms."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        between_two_ends()
    finally:
        sys.setswitchinterval(interval_s)


def between_two_ends() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        figure.opened(None) as device,
        figure.opened(None) as other,
    ):
        address = figure.first_address(device)
        serving = threading.Thread(target=figure.serve, args=(other, listener, address, 7))
        serving.start()
        port = listener.getsockname()[1]
        chosen = argparse.Namespace(
            connect=f"127.0.0.1:{port}", size=64, quick=True, rounds=1, address=address
        )
        rows = list(figure.run(device, chosen))
        serving.join()
    assert {row["peer"] for row in rows} == {"two writes", "immediate", "send + receive", "chained"}
    posts = [row for row in rows if row["metric"].startswith("posts") and row["peer"] == "chained"]
    assert posts[0]["peer_value"]["median"] == 2  # of one end
