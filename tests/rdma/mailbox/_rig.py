"""Both ends of a mailbox in one thread, without an event loop, on a fabric of the test's choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import attrs

from l5._frames import Kind
from l5.abc import Frame
from l5.rdma import verbs
from l5.rdma._client import RECEIVES, MailboxClient
from l5.rdma._client import RECEIVES as CLIENT_RECEIVES
from l5.rdma._discover import Place, locate
from l5.rdma._end import End
from l5.rdma._mailbox import NewRow
from l5.rdma._room import Mailroom
from l5.rdma._server import RECEIVES as SERVER_RECEIVES
from l5.rdma._server import MailboxServer, row_bytes_for
from l5.rdma._simulated import Fabric, Plan, SimulatedBackend

LIMIT = 64 << 10


@attrs.define(eq=False)
class Pair:
    client: MailboxClient
    server: MailboxServer
    client_end: End
    server_end: End

    def ask(self, payload: bytes, id: int = 1) -> bool:
        return self.client.try_send(Kind.REQUEST, 0, id, payload)

    def answer(self, payload: bytes, id: int = 1) -> bool:
        return self.server.try_send(Kind.RESPONSE, 0, id, payload)

    def round_trip(self, payload: bytes, id: int = 1) -> Frame | None:
        """On a fabric where all happens at once."""
        assert self.ask(payload, id)
        asked = self.server.try_receive()
        assert asked is not None
        assert self.answer(asked.payload, asked.id)
        return self.client.try_receive()

    def close(self) -> None:
        self.client.close()
        self.server.close()


@attrs.define(eq=False)
class Rig:
    fabric: Fabric
    place: Place
    room: Mailroom = attrs.field(factory=Mailroom)
    pairs: list[Pair] = attrs.field(factory=list[Pair])

    def pair(
        self,
        mode: str = "flags+imm",
        *,
        row_bytes: int = 4096,
        ring_bytes: int = 64 << 10,
        segment_bytes: int = 8192,
    ) -> Pair:
        device, gid = self.place.device, self.place.gid
        client_end = End(device, gid, receives=CLIENT_RECEIVES)
        server_end = End(device, gid, receives=SERVER_RECEIVES)
        row_max = row_bytes_for(segment_bytes)
        client = MailboxClient(client_end, ring_bytes)
        server = MailboxServer(server_end, self.room, row_bytes, row_max)
        ring, words = client.ring_region, client.words_region
        server.connect(
            mode,
            client_end.own_address,
            NewRow(ring.address, ring.rkey, ring_bytes),
            (words.address, words.rkey),
            RECEIVES,
        )
        client.limit_rows(row_max)
        row, flag = server.row_region, server.flag_region
        client.connect(
            mode,
            server_end.own_address,
            NewRow(row.address, row.rkey, row_bytes),
            (flag.address, flag.rkey),
        )
        for channel in (client, server):
            channel._receive_limit = LIMIT
            channel._send_limit = channel.frame_limit or LIMIT
        made = Pair(client, server, client_end, server_end)
        self.pairs.append(made)
        return made


def rig_on(fabric: Fabric | None = None) -> AbstractContextManager[Rig]:
    fabric = fabric or Fabric(Plan())
    fabric.add_device("sim0", "127.0.0.1")
    return rig_over(SimulatedBackend(fabric), "sim0", "127.0.0.1", fabric)


@contextmanager
def rig_over(
    backend: verbs.Backend, name: str, address: str, fabric: Fabric | None = None
) -> Iterator[Rig]:
    """Any device; one that is no simulated one has no fabric to play with."""
    device = backend.open(name)
    rig = Rig(fabric or Fabric(Plan()), locate([device], address))
    try:
        yield rig
    finally:
        for pair in rig.pairs:
            pair.close()
        device.close()
