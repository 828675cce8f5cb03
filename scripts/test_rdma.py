"""Run the RDMA tests in emulated machines: one boot of one machine, one boot of two, side by side.

    python scripts/test_rdma.py [--if-installed] [--only one|two] [PYTEST ARGUMENT ...]

On one machine the contract of the verbs and the transport run over both bindings (our own, and
pyverbs as the distribution has it); on two, what needs two: counts, loss, reordering, a cable that
is pulled, a peer that dies. The results go to build/rdma as JUnit files and are looked at here: a
run in which a test was skipped, or a binding was left out, has failed.

With --if-installed nothing is done, and said why, on hosts that lack what it needs.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "build" / "rdma"
PACKAGES = "qemu-system-x86 busybox-static kmod iproute2 rdma-core ibverbs-providers"
SYSTEM_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
PROGRAMS = ("qemu-system-x86_64", "busybox", "modprobe", "ip", "rdma", "dpkg-deb")
ONE = ("tests/rdma/contract", "tests/rdma/device")
TWO = ("tests/rdma/two_machines",)
BINDINGS = ("cverbs", "pyverbs")
TESTS_S = 540
"""How long the tests may take, once the machines are up; on two quiet processors half of it."""


def missing():
    """Say what this host lacks; empty if it lacks nothing."""
    lacking = [name for name in PROGRAMS if shutil.which(name, path=SYSTEM_PATH) is None]
    return f"{', '.join(lacking)} missing (Debian: apt-get install {PACKAGES})" if lacking else ""


def pyverbs_folder():
    """Return the folder of the distribution's pyverbs, or why it cannot be used here."""
    python = "/usr/bin/python3"
    ask = (
        "import sys, importlib.util as u; s = u.find_spec('pyverbs'); "
        "print(*sys.version_info[:2], s.submodule_search_locations[0] if s else '')"
    )
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
    major, minor, folder = [*done.stdout.rstrip("\n").split(" ", 2), "", "", ""][:3]
    if not folder:
        return None, "pyverbs is missing (Debian: apt-get install python3-pyverbs)"
    if (major, minor) != tuple(map(str, sys.version_info[:2])):
        ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return None, f"the distribution's pyverbs is for Python {major}.{minor}, this is {ours}"
    return Path(folder), ""


def link_to_pyverbs():
    """Make a folder for PYTHONPATH that holds the distribution's pyverbs and nothing else."""
    folder, why = pyverbs_folder()
    if folder is None:
        sys.exit(f"test_rdma: {why}")
    packages = RESULTS / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    link = packages / "pyverbs"
    link.unlink(missing_ok=True)
    link.symlink_to(folder)
    return packages


def compile_here(tests):
    """Compile what the machines import: they are slow, and cannot keep what they compile."""
    python = [sys.executable, "-m"]
    environment = {**os.environ}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for command in (
        [*python, "compileall", "-q", "l5", "catfish_app", "tests/rdma", "tests/pages"],
        [*python, "pytest", "-q", "--collect-only", *tests],  # pytest compiles tests its own way
    ):
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    RESULTS.mkdir(parents=True, exist_ok=True)
    build = (
        "import sys, pathlib; from tests.pages.torture import build_library as build; "
        "build(pathlib.Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", build, str(RESULTS)], cwd=ROOT, check=True)


def command_for(name, machines, folders, packages, arguments):
    """Return what runs pytest in the machines."""
    out = RESULTS / name
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "scripts.softroce", "--times", "--out", str(out)]
    command += ["--nodes", str(machines), "--timeout", str(TESTS_S)]
    command += ["--env", f"PYTHONPATH={packages}", "--env", "L5_RDMA_TESTS=1"]
    command += ["--env", "PYTHONDONTWRITEBYTECODE=1"]
    command += ["--env", f"L5_PAGE_LIBRARY={RESULTS / 'page_library.so'}"]
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
    tests += ["--durations=8", "--junitxml=/run/softroce/out/junit.xml", *folders, *arguments]
    if machines == 2:
        command += ["--peer", f"exec {sys.executable} -m tests.rdma.two_machines.peer"]
    return [*command, "--", *tests]


def run_all(commands):
    """Run them side by side, each with a log of its own; return each one's status."""
    began = time.monotonic()
    logs = {name: RESULTS / f"{name}.log" for name in commands}
    with contextlib.ExitStack() as stack:
        running = {
            name: subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=stack.enter_context(open(logs[name], "wb")),
                stderr=subprocess.STDOUT,
            )
            for name, command in commands.items()
        }
        stack.callback(end_all, running.values())
        statuses = {}
        for name, process in running.items():
            statuses[name] = process.wait()
            print(logs[name].read_text(errors="replace"), end="")
            took_s = time.monotonic() - began
            print(f"test_rdma: {name}: status {statuses[name]}, after {took_s:.0f} s", flush=True)
    return statuses


def end_all(processes):
    """(Interrupted) let the machines be ended by those that started them."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
            process.wait()


def tests_of(path):
    """Return (name, whether it was skipped) for each test of a JUnit file."""
    if not path.exists():
        sys.exit(f"test_rdma: {path} was not written: the tests did not run to their end")
    cases = ET.parse(path).iter("testcase")
    return [
        (f"{case.get('classname')}::{case.get('name')}", case.find("skipped") is not None)
        for case in cases
    ]


def judge(path, bindings):
    """End unless every test ran, over each binding as often as over the others."""
    tests = tests_of(path)
    skipped = [name for name, was_skipped in tests if was_skipped]
    counts = {binding: sum(binding in name for name, _ in tests) for binding in bindings}
    if not tests or skipped:
        sys.exit(f"test_rdma: {len(tests)} tests, of which were skipped: {skipped}")
    if bindings and (0 in counts.values() or len(set(counts.values())) != 1):
        sys.exit(f"test_rdma: tests over each binding: {counts}; they must be as many")
    print(f"test_rdma: {len(tests)} tests ran, none was skipped; {counts or ''}", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Run the RDMA tests in emulated machines.")
    parser.add_argument("--if-installed", action="store_true", help="do nothing where it cannot be")
    parser.add_argument("--only", choices=("one", "two"), help="with one machine, or with two")
    options, arguments = parser.parse_known_args()
    lacking = missing() or pyverbs_folder()[1]
    if lacking:
        print(f"test_rdma: the RDMA tests did not run: {lacking}", flush=True)
        return 0 if options.if_installed else 1
    compile_here([*ONE, *TWO])
    packages = link_to_pyverbs()
    select = [] if arguments else ["-k", " or ".join(BINDINGS)]
    commands = {
        "one": command_for("one", 1, ONE, packages, [*select, *arguments]),
        "two": command_for("two", 2, TWO, packages, arguments),
    }
    if options.only:
        commands = {options.only: commands[options.only]}
    statuses = run_all(commands)
    if any(statuses.values()):
        return 1
    if not arguments:
        for name, junit, bindings in (("one", "junit.xml", BINDINGS), ("two", "0/junit.xml", ())):
            if name in commands:
                judge(RESULTS / name / junit, bindings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
