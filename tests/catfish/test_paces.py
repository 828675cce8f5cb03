"""How a batch is divided between a server and its client."""

from __future__ import annotations

from itertools import pairwise

import pytest

from catfish_app._paces import (
    ASKED_ROWS,
    PART_S,
    TRIED_AFTER_MAX_S,
    TRIED_AFTER_S,
    TURN_S,
    Pace,
    Paces,
)


def known(ours_s: float, theirs_s: float) -> Paces:
    return Paces(Pace(ours_s, 1.0), Pace(theirs_s, 1.0))


def test_both_end_together_by_what_rows_take() -> None:
    paces = known(1e-6, 1e-6)
    assert paces.here(1000, 1000) == int(TURN_S / 1e-6)
    assert paces.here(100, 500) == 100
    assert paces.here(500, 100) == 300  # of 600
    assert paces.there(1800, 0) == 900
    assert paces.there(1000, 800) == 0  # it has all but a bit of its share
    assert paces.there(8000, 0) == 2000  # a half of it, and more to come
    assert paces.there(2600, 0) == int(PART_S / 1e-6)  # enough to be worth it
    assert paces.there(100_000, 0) == ASKED_ROWS


def test_nobody_is_asked_for_nothing() -> None:
    for paces in (Paces(), known(1e-6, 1e-6), known(1.0, 1e-6), known(1e-6, 1.0)):
        assert paces.here(0, 10) == paces.there(0, 10) == 0


def test_who_would_do_less_than_a_fifth_does_nothing() -> None:
    slow_client, slow_server = known(5e-6, 1e-6), known(1e-6, 5e-6)
    assert slow_client.here(2000, 0) == 0 and slow_client.there(900, 0) == 900
    assert slow_server.there(2000, 0) == 0 and slow_server.here(200, 0) == 166
    assert slow_server.here(2000, 0) == int(TURN_S / 1e-6)


def test_a_client_that_is_not_known_begins_with_a_row() -> None:
    paces, parts = Paces(), list[int]()
    while paces.trial is not None:
        parts.append(paces.here(5000, 0))
        paces.note_ours(40e-6 + parts[-1] * 0.1e-6, parts[-1])
    assert parts == [1, 8, 64, 512, 4096]
    assert paces.ours.row_s == pytest.approx(0.11e-6, rel=0.05)  # and none of the first


def test_one_row_that_takes_long_tells_enough() -> None:
    paces = Paces()
    paces.note_ours(5e-3, paces.here(5000, 0))
    assert paces.trial is None and paces.ours.row_s == 5e-3


def test_what_was_waited_for_in_vain_counts() -> None:
    pace = Pace()
    pace.note(1e-3, 1000)
    pace.note(9e-3, 0)
    assert pace.row_s > 9e-6


def test_all_of_a_batch_is_one_side_s_where_sharing_does_not_pay() -> None:
    paces = known(1e-6, 100e-6)
    paces.tried_at = 5.0
    assert paces.alone(4000, 5.0) is paces.ours
    paces = known(1e-6, 0.5e-6)
    paces.tried_at = 5.0
    assert paces.alone(100, 5.0) is paces.theirs  # to share takes longer than all of it
    assert paces.alone(40_000, 5.0) is None


def test_the_other_side_is_tried_and_more_rarely_each_time() -> None:
    paces, now, tried = known(1e-6, 100e-6), 1.0, list[float]()
    while len(tried) < 10:
        now += 1e-3
        if paces.alone(4000, now) is None:
            tried.append(now)
            assert paces.trial is paces.theirs
            assert paces.there(4000, 0) == 2000 and paces.there(2000, 2000) == 0
    gaps = [later - before for before, later in pairwise(tried)]
    assert gaps[0] == pytest.approx(2.0 * TRIED_AFTER_S, abs=2e-3)
    assert all(later > before - 1e-3 for before, later in pairwise(gaps))
    assert gaps[-1] == pytest.approx(TRIED_AFTER_MAX_S, abs=2e-3)


def test_what_is_tried_here_is_what_the_server_does_anyway() -> None:
    paces = known(100e-6, 1e-6)
    assert paces.alone(4000, 1.0) is None and paces.trial is paces.ours
    assert (paces.there(4000, 0), paces.here(0, 4000)) == (4000, 0)
    assert paces.turn_rows() == 1
