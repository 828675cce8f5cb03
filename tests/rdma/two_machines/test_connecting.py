"""RDMA between two machines: a connection that begins as TCP becomes RDMA."""

import os
from collections.abc import Callable

import pytest

import l5
from tests.rdma.two_machines import peer

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]
PATIENT = {"hello_timeout": 60.0, "connect_timeout": 90.0}


async def test_a_connection_upgrades_and_answers(ask: Callable[[str], str]) -> None:
    url = f"l5://{os.environ['SOFTROCE_PEER']}:{peer.ECHO}"
    async with await l5.connect(url, **PATIENT) as conn:
        assert conn.transport == "rdma", str(conn.upgrade_report)
        assert await conn.request(b"hello") == b"olleh"
        assert await conn.request(b"") == b""
