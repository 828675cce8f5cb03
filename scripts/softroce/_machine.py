"""One emulated machine: its files, QEMU, its streams and its control lines."""

import contextlib
import ctypes
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

from ._cpio import Archive
from ._errors import HarnessError, say
from ._options import Options

HERE = Path(__file__).parent
QEMU = "qemu-system-x86_64"
SUBNET = "10.73.0"
"""Of the wire between the machines, which exists nowhere else."""

STREAMS = ("control", "out", "err")
KERNEL_LINE = (
    "console=ttyS0 quiet panic=-1 oops=panic mitigations=off nokaslr tsc=reliable "
    "random.trust_cpu=on no_timer_check net.ifnames=0"
)
ESCAPES = re.compile(rb"\x1b\[[0-9;=?]*[A-Za-z]|\x1bc|\r")
TROUBLE = re.compile(
    r"BUG:|WARNING: CPU|Oops|Kernel panic|Call Trace|Out of memory|soft lockup|softroce-init"
)
FAILED_IN_HARNESS = 125
PR_SET_PDEATHSIG = 1

_one_writer = threading.Lock()


class Machine:
    """Start it, wait for `up` and then for `done`; `status` is the command's, if it ended."""

    def __init__(
        self, index: int, options: Options, scratch: Path, wire: socket.socket | None
    ) -> None:
        self.index = index
        self.up = threading.Event()
        self.done = threading.Event()
        self.status: int | None = None
        self.failure: str | None = None
        self.clock_up_s = self.clock_exit_s = 0.0
        self.booted_s = 0.0
        self._options = options
        self._initrd = scratch / f"initrd{index}"
        self._console = scratch / f"console{index}"
        self._log = scratch / f"qemu{index}"
        self._wire = wire
        self._process: subprocess.Popen[bytes] | None = None
        self._copiers: list[threading.Thread] = []
        self._out: Path | None = None
        if options.out is not None:
            self._out = options.out / str(index) if options.nodes == 2 else options.out
            self._out.mkdir(parents=True, exist_ok=True)

    def start(self, kernel: Path, initrd: Path) -> None:
        """Start QEMU, and the threads that carry its streams."""
        self._initrd.write_bytes(_padded(initrd.read_bytes()) + self._job())
        ours: dict[str, socket.socket] = {}
        theirs: dict[str, socket.socket] = {}
        for name in STREAMS:
            ours[name], theirs[name] = socket.socketpair()
        command = self._command(kernel, {name: end.fileno() for name, end in theirs.items()})
        if self._options.verbose:
            say(shlex.join(command))
        given = [*theirs.values(), *([self._wire] if self._wire else [])]
        began = time.monotonic()
        try:
            with open(self._log, "wb") as log:
                self._process = subprocess.Popen(
                    command,
                    pass_fds=[end.fileno() for end in given],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=_die_with_parent,
                )
        except FileNotFoundError:
            raise HarnessError(
                f"{QEMU} is not installed (Debian: apt-get install qemu-system-x86)"
            ) from None
        finally:
            for end in given:
                end.close()
        for name, target in (("out", sys.stdout.buffer), ("err", sys.stderr.buffer)):
            copier = threading.Thread(target=self._copy, args=(ours[name], target), daemon=True)
            copier.start()
            self._copiers.append(copier)
        follow = threading.Thread(target=self._follow, args=(ours["control"], began), daemon=True)
        follow.start()

    def end(self) -> None:
        """End QEMU, if it still runs."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()

    def last_words(self, lines: int = 12) -> str:
        """Return the end of what QEMU and the kernel wrote."""
        text = b"".join(path.read_bytes() for path in (self._log, self._console) if path.exists())
        clean = ESCAPES.sub(b"", text).decode(errors="replace").splitlines()
        kept = [line for line in clean if line.strip()][-lines:]
        return "\n".join(f"    {line}" for line in kept) or "    (nothing was written there)"

    def trouble(self) -> list[str]:
        """Return the lines of the kernel's log that tell of a fault of its own."""
        if not self._console.exists():
            return []
        lines = self._console.read_text(errors="replace").splitlines()
        return [line.strip() for line in lines if TROUBLE.search(line)]

    def _command(self, kernel: Path, streams: dict[str, int]) -> list[str]:
        options = self._options
        emulated = options.accelerator == "tcg"
        command = [
            *(QEMU, "-name", f"softroce{self.index}", "-nodefaults", "-no-user-config"),
            *("-display", "none", "-no-reboot", "-M", "pc,usb=off,vmport=off"),
            *("-m", str(options.memory_mib), "-smp", str(options.cpus)),
            *("-accel", "tcg,thread=multi" if emulated else options.accelerator),
            *("-cpu", "max" if emulated else "host"),
            *("-kernel", str(kernel), "-initrd", str(self._initrd), "-append", KERNEL_LINE),
            *("-chardev", f"file,id=console,path={self._console}", "-serial", "chardev:console"),
            *("-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"),
            *("-device", "virtio-9p-pci,fsdev=root,mount_tag=root"),
            *("-device", "virtio-serial-pci"),
        ]
        if self._out is not None:
            command += ["-fsdev", f"local,id=out,path={self._out},security_model=none"]
            command += ["-device", "virtio-9p-pci,fsdev=out,mount_tag=out"]
        if self._wire is not None:
            command += ["-netdev", f"socket,id=net0,fd={self._wire.fileno()}"]
            address = f"mac=52:54:00:73:00:0{self.index + 1}"
            card = f"virtio-net-pci,netdev=net0,{address},host_mtu={options.mtu},romfile="
            command += ["-device", card]
        for name, descriptor in streams.items():
            command += ["-chardev", f"socket,id={name},fd={descriptor}"]
            command += ["-device", f"virtserialport,chardev={name},name={name}"]
        return command

    def _job(self) -> bytes:
        """Return the archive with what this machine does, which follows the common one."""
        options = self._options
        command = options.command
        if options.peer is not None and self.index == 1:
            command = ["/bin/sh", "-c", options.peer]
        lines = [f"export {name}={shlex.quote(text)}" for name, text in self._environment().items()]
        lines.append(f"cd {shlex.quote(options.folder)} || exit {FAILED_IN_HARNESS}")
        lines.append(f"exec {shlex.join(command)}")
        config = f"NODE={self.index}\nNODES={options.nodes}\nMTU={options.mtu}\nSUBNET={SUBNET}\n"
        archive = Archive()
        archive.add_folder("run/job")
        archive.add_file("run/job/agent", (HERE / "agent.sh").read_bytes())
        archive.add_file("run/job/job", ("\n".join(lines) + "\n").encode())
        archive.add_file("run/job/config", config.encode())
        if self._out is not None:
            archive.add_file("run/job/with-out", b"")
        return archive.finish()

    def _environment(self) -> dict[str, str]:
        options = self._options
        peer = 1 - self.index if options.nodes == 2 else self.index
        environment = {
            "SOFTROCE": "1",
            "SOFTROCE_NODE": str(self.index),
            "SOFTROCE_NODES": str(options.nodes),
            "SOFTROCE_ADDR": f"{SUBNET}.{self.index + 1}",
            "SOFTROCE_PEER": f"{SUBNET}.{peer + 1}",
            "SOFTROCE_DEVICE": "rxe0",
            "LANG": os.environ.get("LANG", "C.UTF-8"),
            "PYTHONUNBUFFERED": "1",
        }
        if self._out is not None:
            environment["SOFTROCE_OUT"] = "/run/softroce/out"
        for item in options.env:
            name, given, text = item.partition("=")
            if given:
                environment[name] = text
            elif name in os.environ:
                environment[name] = os.environ[name]
        return environment

    def _copy(self, source: socket.socket, target: BinaryIO) -> None:
        """Hand on what comes; with two machines whole lines, after the machine's number."""
        prefix = b"[%d] " % self.index if self._options.nodes == 2 else b""
        rest = b""
        with source, contextlib.suppress(OSError):
            while data := source.recv(65536):
                if prefix:
                    *lines, rest = (rest + data).split(b"\n")
                    data = b"".join(prefix + line + b"\n" for line in lines)
                _write(target, data)
        if rest:
            _write(target, prefix + rest + b"\n")

    def _follow(self, source: socket.socket, began: float) -> None:
        """Take the agent's lines until it has no more to say, then wait for QEMU's end."""
        with source, source.makefile("r", errors="replace") as lines, contextlib.suppress(OSError):
            for line in lines:
                word, _, rest = line.strip().partition(" ")
                if word == "UP":
                    self.booted_s, self.clock_up_s = time.monotonic() - began, float(rest)
                    self.up.set()
                elif word == "EXIT":
                    status, clock = rest.split()
                    self.status, self.clock_exit_s = int(status), float(clock)
                elif word == "FAIL":
                    self.failure = rest
                if word in ("EXIT", "FAIL"):
                    break
        assert self._process is not None
        self._process.wait()  # it powers off by itself; then its streams have ended too
        for copier in self._copiers:
            copier.join(5)
        self.done.set()


def _write(target: BinaryIO, data: bytes) -> None:
    with _one_writer, contextlib.suppress(BrokenPipeError):
        target.write(data)
        target.flush()


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _die_with_parent() -> None:
    """Have the kernel end QEMU if this program is killed (in the child, before QEMU starts)."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
