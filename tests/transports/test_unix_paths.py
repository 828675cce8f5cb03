"""What a Unix listener does to its path: stale ones are replaced, nothing else is touched."""

import errno
import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import anyio
import pytest

from l5._options import ListenOptions, Options
from l5.abc import LinkListener
from l5.transports import unix
from l5.transports.unix import UnixTransport
from tests.transports._support import address

pytestmark = pytest.mark.anyio


async def listen(path: Path | str, **options: object) -> LinkListener:
    where = address(f"l5+unix://{path}")
    return await UnixTransport().listen(where, ListenOptions(**options))


async def reachable(path: Path) -> bool:
    try:
        link = await UnixTransport().connect(address(f"l5+unix://{path}"), Options())
    except OSError:
        return False
    link.abort()
    return True


def make_stale(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
async def test_the_socket_is_for_the_owner_alone(tmp_path: Path) -> None:
    listener = await listen(tmp_path / "s")
    assert stat.S_IMODE(os.stat(tmp_path / "s").st_mode) == 0o600
    listener.close()
    listener = await listen(tmp_path / "s", allow_uids={os.getuid(), 12345})
    assert stat.S_IMODE(os.stat(tmp_path / "s").st_mode) == 0o666
    listener.close()
    for more in ({"allow": lambda peer: True}, {"token": "a secret"}):
        listener = await listen(tmp_path / "s", **more)
        assert stat.S_IMODE(os.stat(tmp_path / "s").st_mode) == 0o666
        listener.close()


@pytest.mark.usefixtures("open_umask")
async def test_the_mode_holds_before_anybody_can_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []

    def spy(path: str, mode: int) -> None:
        modes.append(stat.S_IMODE(os.stat(path).st_mode))
        chmod(path, mode)

    chmod = os.chmod
    monkeypatch.setattr(os, "chmod", spy)
    (await listen(tmp_path / "s")).close()
    assert modes == [0o600]


async def test_nothing_else_is_left_in_the_directory(tmp_path: Path) -> None:
    listener = await listen(tmp_path / "s")
    assert os.listdir(tmp_path) == ["s"]
    listener.close()
    assert os.listdir(tmp_path) == []


async def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    make_stale(tmp_path / "s")
    assert not await reachable(tmp_path / "s")
    listener = await listen(tmp_path / "s")
    assert await reachable(tmp_path / "s")
    assert os.listdir(tmp_path) == ["s"]
    listener.close()


async def test_the_socket_of_a_killed_server_is_replaced(tmp_path: Path) -> None:
    program = (
        "import anyio, sys\n"
        "from l5._address import parse\n"
        "from l5._options import ListenOptions\n"
        "from l5.transports.unix import UnixTransport\n"
        "async def main():\n"
        "    where = parse(sys.argv[1], ['l5+unix'])\n"
        "    listener = await UnixTransport().listen(where, ListenOptions())\n"
        "    print('ready', flush=True)\n"
        "    await anyio.sleep(60)\n"
        "anyio.run(main)\n"
    )
    path = tmp_path / "s"
    command = [sys.executable, "-c", program, f"l5+unix://{path}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        with pytest.raises(OSError, match="a server listens there already"):
            await listen(path)
        server.send_signal(signal.SIGKILL)
        server.wait()
    assert path.exists()
    listener = await listen(path)
    assert await reachable(path)
    listener.close()


async def test_a_live_socket_is_not_replaced(tmp_path: Path) -> None:
    first = await listen(tmp_path / "s")
    with pytest.raises(OSError, match=r"s: a server listens there already; stop it") as caught:
        await listen(tmp_path / "s")
    assert caught.value.errno == errno.EADDRINUSE
    assert os.listdir(tmp_path) == ["s"]
    assert await reachable(tmp_path / "s")
    first.close()


async def test_a_live_socket_with_a_full_queue_is_not_replaced(tmp_path: Path) -> None:
    first = await listen(tmp_path / "s", backlog=1)
    clients = []
    while True:
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        clients.append(client)
        try:
            client.connect(str(tmp_path / "s"))
        except BlockingIOError:
            break
    with pytest.raises(OSError, match="a server listens there already"):
        await listen(tmp_path / "s")
    first.close()
    for client in clients:
        client.close()


async def test_a_socket_of_another_kind_is_not_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(tmp_path / "s"))
        with pytest.raises(OSError, match="cannot be tested") as caught:
            await listen(tmp_path / "s")
        assert caught.value.errno == errno.EADDRINUSE
        assert (tmp_path / "s").is_socket()


@pytest.mark.parametrize("make", ["file", "directory", "link to a stale socket", "broken link"])
async def test_what_is_no_socket_is_never_touched(make: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    if make == "file":
        path.write_text("precious")
    elif make == "directory":
        path.mkdir()
    elif make == "broken link":
        path.symlink_to(tmp_path / "nowhere")
    else:
        make_stale(tmp_path / "stale")
        path.symlink_to(tmp_path / "stale")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(OSError, match="a file that is no socket is in the way"):
        await listen(path)
    assert sorted(os.listdir(tmp_path)) == before


async def test_close_leaves_a_path_that_is_no_longer_ours(tmp_path: Path) -> None:
    first = await listen(tmp_path / "s")
    os.unlink(tmp_path / "s")
    second = await listen(tmp_path / "s")
    first.close()
    assert await reachable(tmp_path / "s")
    second.close()
    assert os.listdir(tmp_path) == []


async def test_a_forked_child_does_not_remove_the_path(tmp_path: Path) -> None:
    listener = await listen(tmp_path / "s")
    claim = listener._clean_up.__self__
    owner = claim._owner_pid
    claim._owner_pid = owner + 1  # what a child sees: the claim of another process
    claim.release()
    assert await reachable(tmp_path / "s")
    claim._owner_pid = owner
    listener.close()


async def test_a_lock_that_is_held_is_waited_for(tmp_path: Path) -> None:
    make_stale(tmp_path / "s")
    directory = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    started: list[LinkListener] = []

    async def start() -> None:
        started.append(await listen(tmp_path / "s"))

    async with anyio.create_task_group() as group:
        group.start_soon(start)
        await anyio.sleep(0.05)
        assert not started
        os.close(directory)
    assert await reachable(tmp_path / "s")
    started[0].close()


async def test_a_lock_that_is_never_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix, "_LOCK_TRIES", 5)
    make_stale(tmp_path / "s")
    directory = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    with pytest.raises(OSError, match="another program holds the lock of the directory"):
        await listen(tmp_path / "s")
    os.close(directory)
    assert os.listdir(tmp_path) == ["s"]


async def test_a_directory_that_cannot_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_lock(fd: int, operation: int) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", no_lock)
    make_stale(tmp_path / "s")
    with pytest.raises(OSError, match=r"cannot be locked .* remove the file") as caught:
        await listen(tmp_path / "s")
    assert caught.value.errno == errno.EADDRINUSE
    assert os.listdir(tmp_path) == ["s"]


async def test_a_file_system_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(source: str, target: str) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    make_stale(tmp_path / "s")
    listener = await listen(tmp_path / "s")
    assert await reachable(tmp_path / "s")
    with pytest.raises(OSError, match="a server listens there already"):
        await listen(tmp_path / "s")
    assert os.listdir(tmp_path) == ["s"]
    listener.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_servers_at_once_one_wins(stale: bool, tmp_path: Path) -> None:
    for turn in range(20):
        path = tmp_path / f"s{turn}"
        if stale:
            make_stale(path)
        outcomes: list[object] = []
        start = threading.Barrier(8)

        async def main(
            path: Path = path, outcomes: list[object] = outcomes, start: threading.Barrier = start
        ) -> None:
            start.wait()
            try:
                outcomes.append(await listen(path))
            except OSError as error:
                outcomes.append(error.errno)

        threads = [threading.Thread(target=anyio.run, args=(main,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winners = [one for one in outcomes if isinstance(one, LinkListener)]
        assert len(winners) == 1
        assert outcomes.count(errno.EADDRINUSE) == 7
        assert os.listdir(tmp_path) == [path.name]
        assert anyio.run(reachable, path)
        winners[0].close()
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["s", "a" * 50])
async def test_the_longest_path_works(name: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as top:
        folder = Path(top, "d" * (107 - len(top) - 2 - len(name)))
        folder.mkdir()
        path = folder / name
        assert len(os.fsencode(path)) == 107
        listener = await listen(path)
        assert await reachable(path)
        assert os.listdir(folder) == [name]
        listener.close()
        assert os.listdir(folder) == []


async def test_a_path_that_is_too_long() -> None:
    path = "/tmp/" + "x" * 103
    with pytest.raises(OSError, match=r"has 108 bytes; the kernel takes 107 at most") as caught:
        unix._sockaddr(path)
    assert caught.value.errno == errno.ENAMETOOLONG


async def test_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="does not exist; make it first"):
        await listen(tmp_path / "nowhere" / "s")
    where = address(f"l5+unix://{tmp_path}/s")
    with pytest.raises(OSError, match="no such socket; is the server running"):
        await UnixTransport().connect(where, Options())
    make_stale(tmp_path / "s")
    with pytest.raises(OSError, match="nobody listens there; is the server running"):
        await UnixTransport().connect(where, Options())
    with pytest.raises(OSError, match="nobody listens there"):
        await UnixTransport().connect(address("l5+unix://@l5-test-nobody"), Options())
