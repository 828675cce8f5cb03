"""The conformance suite: subclass it in one line, and pytest does the rest."""

from __future__ import annotations

import pytest

from ._cancelling import CancellationTests
from ._ends import EndTests
from ._in_place import InPlaceTests
from ._into import IntoTests
from ._messages import MessageTests
from ._requesting import RequestTests
from ._serving import ServerTests


@pytest.mark.anyio
class TransportSuite(
    MessageTests,
    EndTests,
    RequestTests,
    ServerTests,
    InPlaceTests,
    IntoTests,
    CancellationTests,
):
    """What every transport has to do, on every event loop.

    A transport's author writes, in a test module::

        class TestMine(TransportSuite):
            transport = "mine"

            def url(self, directory):
                return f"l5+mine://{directory}/socket"

    `transport` is the name that connections report; `url` gives an address to listen on (in an
    empty directory of this test's own).  Options for both ends, and sizes, are class variables, see
    `Harness`.  Which event loops there are is decided by the fixture ``anyio_backend``.
    """
