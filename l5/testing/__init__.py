"""Tests for those who build on `l5`: does a transport do all that it has to?

    from l5.testing import TransportSuite

    class TestMine(TransportSuite):
        transport = "mine"

        def url(self, directory):
            return f"l5+mine://{directory}/socket"

`docs/writing-a-transport.md` shows a whole transport that is tested so.  `l5.testing.plugin` is a
plugin for pytest: event loops, and transports that must not be skipped.
"""

import pytest

# Before they are imported: failed assertions in them are explained as in test modules.
_PARTS = (
    *("_cancelling", "_ends", "_in_place", "_interrupt", "_messages", "_requesting", "_serving"),
    *("_regions", "_region_ends"),
)
pytest.register_assert_rewrite(*(f"l5.testing.{part}" for part in _PARTS))

from ._faulty import Faults, FaultyServer, faulty_server  # noqa: E402
from ._harness import Desk, Harness, Pair, leased, pattern  # noqa: E402
from ._interrupt import Interrupted, at_every_await, interrupted  # noqa: E402
from ._region_ends import RegionSuite  # noqa: E402
from ._suite import TransportSuite  # noqa: E402

__all__ = [
    "Desk",
    "Faults",
    "FaultyServer",
    "Harness",
    "Interrupted",
    "Pair",
    "RegionSuite",
    "TransportSuite",
    "at_every_await",
    "faulty_server",
    "interrupted",
    "leased",
    "pattern",
]
