"""The command line of the harness."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "l5-softroce"


@dataclass(frozen=True)
class Options:
    """One run: what to run, on which machines, how long."""

    command: list[str]
    nodes: int
    peer: str | None
    folder: str
    env: list[str]
    out: Path | None
    timeout: float
    boot_timeout: float
    grace: float
    memory_mib: int
    cpus: int
    mtu: int
    accelerator: str
    kernel_deb: Path | None
    prepare: bool
    refresh: bool
    cache: Path
    times: bool
    verbose: bool


def parse(arguments: Sequence[str]) -> Options:
    """Read the command line; end the program if it makes no sense."""
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    command: list[str] = given["command"]
    if command[:1] == ["--"]:
        given["command"] = command = command[1:]
    if not command and not given["prepare"]:
        parser.error("no COMMAND given: python -m scripts.softroce [OPTIONS] -- COMMAND")
    if given["peer"] and given["nodes"] != 2:
        parser.error("--peer goes with --nodes 2")
    if given["out"] is not None:
        given["out"] = given["out"].absolute()
        if "," in str(given["out"]):
            parser.error("--out: QEMU takes no path with a comma")
    if not os.path.isdir(given["folder"]):
        parser.error(f"no such folder: {given['folder']}")
    given["cpus"] = given["cpus"] or (2 if given["nodes"] == 1 else 1)
    return Options(**given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.softroce",
        usage="python -m scripts.softroce [OPTIONS] -- COMMAND [ARGUMENT ...]",
        description="Run COMMAND in one or two emulated machines with an RDMA device (Soft-RoCE).",
        epilog="Status: the command's; 124 if the time was up, 125 if the harness failed.",
    )
    add = parser.add_argument
    add("--nodes", type=int, choices=(1, 2), default=1, help="machines, joined by a wire (1)")
    add(
        "--peer",
        metavar="COMMAND",
        help="with two machines: this shell command runs on the second, COMMAND on the first only, "
        "and the run ends when COMMAND does; without it COMMAND runs on both",
    )
    add("--cwd", dest="folder", default=os.getcwd(), help="where COMMAND begins (here)")
    add(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="hand a variable on, or set one; nothing else of the environment gets in",
    )
    add(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="what the command writes into $SOFTROCE_OUT lands here (two machines: in 0 and 1)",
    )
    add("--timeout", type=float, default=600, metavar="S", help="for COMMAND, once booted (600)")
    add("--boot-timeout", type=float, default=120, metavar="S", help="for the machines (120)")
    add(
        "--grace",
        type=float,
        default=30,
        metavar="S",
        help="with two machines: how long one goes on after the other failed (30)",
    )
    _add_machine(parser)
    _add_kernel(parser)
    add("--times", action="store_true", help="say how long each part took")
    add("-v", "--verbose", action="store_true", help="show QEMU's command lines")
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _add_machine(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--memory", dest="memory_mib", type=int, default=1536, metavar="MIB", help="each (1536)")
    add("--cpus", type=int, metavar="N", help="each (2 with one machine, 1 with two)")
    add(
        "--mtu",
        type=int,
        default=4300,
        help="of eth0 (4300, with which RDMA's path MTU is 4096; 1500 gives 1024)",
    )
    add(
        "--accelerator",
        choices=("tcg", "kvm"),
        default="tcg",
        help="kvm where it works; tcg, emulation, works everywhere (tcg)",
    )


def _add_kernel(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--kernel-deb", type=Path, metavar="FILE", help="this package, not the one apt knows")
    add("--prepare", action="store_true", help="only make the kernel and its modules ready")
    add("--refresh", action="store_true", help="make them anew")
    add(
        "--cache",
        type=Path,
        default=Path(os.environ.get("L5_SOFTROCE_CACHE") or CACHE),
        metavar="FOLDER",
        help=f"where they are kept, or $L5_SOFTROCE_CACHE ({CACHE})",
    )
