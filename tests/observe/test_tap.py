"""Frames recorded as pcapng: by tshark with our dissector, and by our own reader."""

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import l5
from l5 import _pcapng, _tap
from l5._cli._dump import DISSECTOR

pytestmark = pytest.mark.anyio


async def answer(request: bytes) -> bytes:
    if request == b"boom":
        raise l5.HandlerError("Refused", "not today")
    return request


def blocks(data: bytes) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while data:
        kind, length = struct.unpack_from("<II", data)
        assert length % 4 == 0 and data[length - 4 : length] == data[4:8]
        found.append((kind, data[8 : length - 4]))
        data = data[length:]
    return found


def dissect(path: Path, *fields: str) -> list[dict[str, str]]:
    """Return the fields of each packet, as tshark finds them."""
    if not shutil.which("tshark"):
        pytest.skip("tshark is not installed")
    command = ["tshark", "-X", f"lua_script:{DISSECTOR}", "-r", str(path), "-T", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert "Lua" not in done.stderr, done.stderr
    packets: list[dict[str, Any]] = json.loads(done.stdout)
    layers = [packet["_source"]["layers"]["l5"] for packet in packets]
    return [{name: layer.get(name, "") for name in fields} for layer in layers]


@pytest.mark.parametrize("scheme", ["l5+tcp", "l5"])
async def test_tshark_dissects_what_was_recorded(scheme: str, tmp_path: Path) -> None:
    path = tmp_path / "frames.pcapng"
    async with l5.serve(answer, f"{scheme}://127.0.0.1:0", heartbeat_ms=0) as server:
        async with await l5.connect(server.urls[0]) as conn:
            await conn.request(b"before")
            with l5.tap(path, snap_bytes=32) as tap:
                assert await conn.request(b"x" * 100) == b"x" * 100
                assert await conn.request(b"in time", deadline=5.0) == b"in time"
                with pytest.raises(l5.RequestFailed):
                    await conn.request(b"boom")
                async with await l5.connect(server.urls[0]) as second:
                    await second.request(b"a connection that came later")
            assert await conn.request(b"after") == b"after"
            transport = conn.transport
            number = str(conn._session.number)
    assert tap.dropped == 0
    names = ("l5.connection", "l5.direction", "l5.transport", "l5.kind", "l5.id", "l5.size")
    more = ("l5.payload", "l5.deadline_us", "l5.error.type", "l5.error.message", "l5.request_in")
    packets = dissect(path, *names, *more, "l5.latency_us")
    assert len(packets) == tap.frames
    ours = [p for p in packets if p["l5.connection"] == number]
    assert {p["l5.transport"] for p in packets} == {transport}
    assert [(p["l5.direction"], p["l5.kind"], p["l5.size"]) for p in ours] == [
        ("1", "2", "100"),
        ("0", "3", "100"),
        ("1", "2", "11"),
        ("0", "3", "7"),
        ("1", "2", "4"),
        ("0", "4", str(2 + len("Refusednot today"))),
    ]
    assert ours[0]["l5.payload"] == ":".join(["78"] * 32)
    assert 4_000_000 < int(ours[2]["l5.deadline_us"]) <= 5_000_000
    assert (ours[5]["l5.error.type"], ours[5]["l5.error.message"]) == ("Refused", "not today")
    for request, reply in zip(ours[::2], ours[1::2], strict=True):
        assert request["l5.id"] == reply["l5.id"]
        assert reply["l5.request_in"] == str(packets.index(request) + 1)
        assert float(reply["l5.latency_us"]) > 0
    assert len({p["l5.connection"] for p in packets}) == 4  # both ends of two


async def test_the_hot_path_is_back_after_a_tap(tmp_path: Path) -> None:
    async with l5.serve(answer, f"l5+shm://{tmp_path}/s") as server:
        async with await l5.connect(server.urls[0]) as conn:
            [theirs] = server._sessions
            assert theirs.ring is not None
            with l5.tap(tmp_path / "f") as tap:
                assert theirs.ring.shared and theirs.ring.server is tap
                await conn.request(b"recorded")
                assert tap.frames == 4
                async with conn.reserve(3) as slot:
                    assert not slot.in_place
                    slot.view[:] = b"abc"
                    assert await slot.request() == b"abc"
                assert tap.frames == 8
            tap.close()
            for _ in range(3):
                await conn.request(b"not recorded")
            assert tap.frames == 8
            for session in (theirs, conn._session):
                assert session.ring is not None and session.ring.shared == 0
                assert session.ring.server is session.server
            assert type(conn._session.channel) is not _tap.TappedChannel


async def test_messages_are_recorded_and_what_cannot_be_written_is_counted(tmp_path: Path) -> None:
    async def echo(conn: l5.Connection) -> None:
        async for message in conn:
            await conn.send(message)

    class Full:
        def __init__(self) -> None:
            self.data = b""

        def write(self, data: bytes) -> int:
            if self.data:
                raise OSError(28, "No space left on device")
            self.data = data
            return len(data)

    file: Any = Full()
    async with l5.serve(echo, f"l5+shm://{tmp_path}/s", per="connection") as server:
        async with await l5.connect(server.urls[0]) as conn:
            with l5.tap(file) as tap:
                await conn.send(b"one")
                assert await conn.receive() == b"one"
                await conn.send(b"two")
                async with conn.lease() as lease:
                    assert not lease.in_place and bytes(lease.view) == b"two"
            assert tap.frames + tap.dropped == 8 and tap.failed


def test_a_file_of_ours_is_sound() -> None:
    frame = (2, 1, 77, bytes(range(100)))
    data = _pcapng.beginning(10) + _pcapng.packet(1 << 40, True, 9, 3, "shm", frame, 10)
    data += _pcapng.ending(1, 5, 2)
    kinds = [kind for kind, _ in blocks(data)]
    assert kinds == [0x0A0D0D0A, 1, 6, 5]
    packet = blocks(data)[2][1]
    _, high, low, captured, whole = struct.unpack_from("<IIIII", packet)
    assert (high << 32 | low) == 1 << 40
    assert (captured, whole) == (12 + 3 + 16 + 10, 12 + 3 + 16 + 100)
    assert packet[20:32] == struct.pack("<BBBBII", 1, 1, 0, 3, 9, 3)
    assert packet[32:35] == b"shm" and packet[35:51] == struct.pack("<IBBHQ", 100, 2, 1, 0, 77)


PROGRAM = """
import anyio, l5, sys
async def main():
    async with l5.serve(bytes.upper, "l5://127.0.0.1:0") as server:
        async with await l5.connect(server.urls[0]) as conn:
            with anyio.move_on_after(100):
                while True:
                    await conn.request(b"again")
                    await anyio.sleep(0.01)
anyio.run(main)
"""


def test_dump_records_a_command(tmp_path: Path) -> None:
    path, kinds = tmp_path / "out.pcapng", list[int]()
    for seconds in ("0.5", "5", "50"):  # on a busy machine the first may see hardly any request
        command = [sys.executable, "-m", "l5", "dump", "-o", str(path), "--seconds", seconds, "--"]
        done = subprocess.run(
            [*command, sys.executable, "-c", PROGRAM],
            capture_output=True,
            text=True,
            timeout=240,
            cwd=Path(__file__).parent.parent.parent,
            env=os.environ,
        )
        assert done.returncode == 0, done.stderr
        kinds = [kind for kind, _ in blocks(path.read_bytes())]
        assert kinds[:2] == [0x0A0D0D0A, 1] and kinds[-1] == 5
        if kinds.count(6) > 8:
            break
    assert kinds.count(6) > 8


def test_an_older_recording_stays_where_there_is_nothing_to_record(tmp_path: Path) -> None:
    path = tmp_path / "out.pcapng"
    path.write_bytes(b"older")
    for nobody, said in (
        (str(2**22 + 1), "there is no process"),
        (f"l5+unix://{tmp_path}/none", "there is no such socket"),
    ):
        command = [sys.executable, "-m", "l5", "dump", "-o", str(path), nobody]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=240,
            cwd=Path(__file__).parent.parent.parent,
        )
        assert done.returncode == 1 and said in done.stderr
    assert path.read_bytes() == b"older"


LEAVER = """
import os, sys, l5, l5.blocking
l5.tap(sys.argv[1])
with l5.blocking.serve(bytes.upper, sys.argv[2]) as server:
    with l5.blocking.connect(server.urls[0]) as conn:
        conn.request(b"the last")
if os.fork() == 0:
    sys.exit()  # a child has nothing to write
os.wait()
"""


def test_a_tap_that_nobody_closes_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "out.pcapng"
    command = [sys.executable, "-c", LEAVER, str(path), f"l5+unix://{tmp_path}/s"]
    subprocess.run(command, check=True, cwd=Path(__file__).parent.parent.parent)
    data = path.read_bytes()
    kinds = [kind for kind, _ in blocks(data)]
    assert kinds[:2] == [0x0A0D0D0A, 1] and kinds[-1] == 5 and kinds.count(5) == 1
    assert kinds.count(6) >= 4 and data.count(b"the last") == 2


def test_the_dissector_is_where_it_is_said_to_be() -> None:
    command = [sys.executable, "-m", "l5", "dump", "--dissector"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert Path(done.stdout.strip()) == DISSECTOR and DISSECTOR.is_file()
