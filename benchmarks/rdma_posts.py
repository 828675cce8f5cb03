"""What a request's posts cost the host, for each binding: Python and binding alone, no device.

    python -m benchmarks rdma-posts [--json FILE] [--quick] [--rounds N] [--binding cverbs|pyverbs]

libibverbs is replaced by null_verbs.c, whose posts count and do nothing else. It is compiled here
(a C compiler is needed), and each binding is measured in a process of its own: our own opens it as
libibverbs.so.1, pyverbs is linked to the real library and gets it by LD_PRELOAD. One JSON object a
line; times are the best of the rounds, in nanoseconds.
"""

import argparse
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from l5 import rdma
from l5.rdma import verbs

HERE = Path(__file__).parent
GOALS_NS = {"cverbs": 150, "pyverbs": 300}
TURNS = 4096
DEPTH = 64
SIZE_BYTES = 64


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks rdma-posts", description=__doc__)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the lines there as well")
    parser.add_argument("--quick", action="store_true", help="two rounds: shows that it runs")
    parser.add_argument("--rounds", type=int, default=40, help="of which the best counts (40)")
    parser.add_argument("--binding", choices=list(GOALS_NS), help="only this one")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.measure:
        measure(chosen.binding, chosen.rounds)
        return 0
    rounds, lines = 2 if chosen.quick else chosen.rounds, list[str]()
    with tempfile.TemporaryDirectory(prefix="null-verbs-") as folder:
        library = compile_null(Path(folder))
        for binding in [chosen.binding] if chosen.binding else GOALS_NS:
            lines += run(binding, rounds, library)
    if chosen.json is not None:
        chosen.json.write_text("".join(line + "\n" for line in lines))
    return 0


def compile_null(folder: Path) -> Path:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("rdma-posts: a C compiler is missing (Debian: apt-get install gcc libc6-dev)")
    library = folder / "libibverbs.so.1"
    headers = HERE.parent / "l5" / "native"
    options = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", f"-I{headers}"]
    subprocess.run([compiler, *options, HERE / "null_verbs.c", "-o", library], check=True)
    # The same again under a name that is not taken for the library itself.
    shutil.copy(library, folder / "null_verbs.so")
    return library


def run(binding: str, rounds: int, library: Path) -> list[str]:
    """Measure one binding in a process of its own; hand its lines on."""
    environment = {**os.environ, "L5_VERBS": binding}
    if binding == "pyverbs":
        environment["LD_PRELOAD"] = str(library.with_name("null_verbs.so"))
    else:
        environment["LD_LIBRARY_PATH"] = str(library.parent)
    command = [sys.executable, "-m", "benchmarks", "rdma-posts", "--measure"]
    command += ["--binding", binding, "--rounds", str(rounds)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, end="", flush=True)
    return done.stdout.splitlines()


def measure(binding: str, rounds: int) -> None:
    try:
        backend = rdma.backend()
        if "null0" not in backend.devices():
            sys.exit("rdma-posts: another libibverbs than null_verbs.c was loaded")
    except verbs.VerbsUnavailable as error:
        print(json.dumps({"case": "rdma-posts", "binding": binding, "left_out": str(error)}))
        return
    with backend.open("null0") as device, Ends(device) as ends:
        ends.check()
        for what, work in ends.works().items():
            line = {
                "case": "rdma-posts",
                "binding": binding,
                "what": what,
                "ns": round(best(work, rounds, ends.drain), 1),
            }
            if what == "request":
                line["goal_ns"] = GOALS_NS[binding]
            print(json.dumps(line), flush=True)


def best(work: Callable[[int], None], rounds: int, before: Callable[[], None]) -> float:
    """Return the nanoseconds of one turn in the quickest round, the loop itself taken off."""
    quickest = float("inf")
    for _ in range(rounds):
        before()
        quickest = min(quickest, timed(work))
    return quickest - min(timed(nothing) for _ in range(rounds))


def timed(work: Callable[[int], None]) -> float:
    began = time.perf_counter_ns()
    work(TURNS)
    return (time.perf_counter_ns() - began) / TURNS


def nothing(turns: int) -> None:
    for _ in range(turns):
        pass


class Ends:
    """Two queue pairs, connected, and what is posted to the first."""

    def __init__(self, device: verbs.Device) -> None:
        self.device = device
        self.memory = mmap.mmap(-1, 1 << 16)
        self.view = memoryview(self.memory)

    def __enter__(self) -> "Ends":
        gid = self.device.gids()[0]
        self.domain = self.device.protection_domain()
        access = verbs.LOCAL_WRITE | verbs.REMOTE_WRITE
        address = verbs.address_of(self.view)
        self.region = self.domain.register(address, len(self.view), access, owner=self.view)
        self.queue = self.device.completion_queue(4 * DEPTH)
        options = verbs.QueuePairOptions(send_depth=DEPTH)
        self.pairs = [self.domain.queue_pair(self.queue, self.queue, options) for _ in range(2)]
        addresses = [pair.own_address(gid) for pair in self.pairs]
        self.pairs[0].connect(addresses[1], verbs.agree(*addresses), gid=gid)
        row, flag = (
            self.pairs[0].prepare(
                verbs.OP_WRITE,
                self.region,
                address=address + at,
                remote_address=address + 4096 + at,
                rkey=self.region.rkey,
            )
            for at in (0, 1024)
        )
        self.row, self.both = row, self.pairs[0].prepare_pair(row, flag)
        self.chained = self.pairs[0].prepare_pair(row, flag, chained=True)
        return self

    def __exit__(self, *_: object) -> None:
        for resource in (*self.pairs, self.queue, self.region, self.domain):
            resource.close()
        self.view.release()
        self.memory.close()

    def check(self) -> None:
        """See that the posts do what they say, before they are timed."""
        self.view[:4], self.view[1024] = b"row!", 7
        self.both.post(4, verbs.INLINE, verbs.INLINE | verbs.SIGNALED)
        (done,) = self.queue.poll()
        assert done.ok and bytes(self.view[4096:4100]) == b"row!" and self.view[4096 + 1024] == 7

    def drain(self) -> None:
        """Take what completed meanwhile, so that nobody is charged for another's completions."""
        while self.queue.poll():
            pass

    def works(self) -> dict[str, Callable[[int], None]]:
        poll, inline = self.queue.poll, verbs.INLINE

        def request_by(post: Callable[..., None], polled: bool) -> Callable[[int], None]:
            slots = verbs.SendSlots(DEPTH)
            take = slots.take

            def work(turns: int) -> None:
                for turn in range(turns):
                    post(SIZE_BYTES, inline, take(2, inline))
                    if turn & 15 == 15:
                        slots.done(len(poll()) if polled else 1)

            return work

        def answer(turns: int) -> None:
            slots, post = verbs.SendSlots(DEPTH), self.row.post
            take = slots.take
            for turn in range(turns):
                post(SIZE_BYTES, take(1, inline))
                if turn & 31 == 31:
                    slots.done()

        def posts_alone(turns: int) -> None:
            post = self.both.post
            for _ in range(turns):
                post(SIZE_BYTES, inline, inline)

        def idle_poll(turns: int) -> None:
            for _ in range(turns):
                poll()

        return {
            "request": request_by(self.both.post, False),
            "request, chained": request_by(self.chained.post, False),
            "request, completions polled": request_by(self.both.post, True),
            "request, slots not counted": posts_alone,
            "answer": answer,
            "poll that finds nothing": idle_poll,
        }
