"""The simulated fabric: what happens between queue pairs, in small steps that a plan chooses.

    send queue ──issue──> packets, cut into pieces ──land──> the other end's memory
        │                                            └─────> a receive's completion, after them
        ├──issue──> reads and atomics ──fetch──> own memory, piece by piece
        └──acknowledge──> completion, in order

Each arrow is a step. What is permitted and surprising is done: a write's source is read when its
packet leaves, not when it is posted; a sender's completion may come before the bytes are in the
other end's memory; a later write or send overtakes an earlier read or atomic unless it is fenced;
the lines of a read are fetched in any order; an atomic's load and store are two steps, with the
processor in between but no other atomic of that device.
"""

from __future__ import annotations

import random
import threading
import time

from . import _constants as c
from ._simulated_carrier import Carrier
from ._simulated_parts import (
    NEEDS_RECEIVE,
    READS_AND_ATOMICS,
    Endpoint,
    Memory,
    Port,
    Work,
)
from ._simulated_plans import Plan
from ._values import Gid, gid_of

Step = tuple[str, Endpoint, int]

ATTEMPT_S = 4.096e-6  # times 2**timeout
RNR_S = 0.64e-3
BURST = 8


class Fabric(Carrier):
    """A network of simulated devices, in this process."""

    def __init__(self, plan: Plan | None = None) -> None:
        super().__init__(plan or Plan())
        self.lock = threading.RLock()
        self.ports: dict[str, Port] = {}
        self.endpoints: dict[int, Endpoint] = {}
        self.posts = 0  # calls to the device: a chain is one
        self._changed = threading.Condition(self.lock)
        self._busy: dict[Endpoint, None] = {}
        self._random = random.Random(1)
        self._users = 0
        self._driver: threading.Thread | None = None
        self._failure: BaseException | None = None

    # -- what is on it

    def add_device(self, name: str, *addresses: str, active_mtu: int = 5) -> Port:
        """Plug in a device that has these IP addresses; return its port, to play with."""
        gids = tuple(Gid(index, gid_of(address)) for index, address in enumerate(addresses))
        port = self.ports[name] = Port(name, gids, active_mtu)
        return port

    def set_link(self, name: str, up: bool) -> None:
        """Plug or unplug a device's cable."""
        with self.lock:
            self.ports[name].state = c.PORT_ACTIVE if up else c.PORT_DOWN
            self.kick()

    def kill(self, number: int) -> None:
        """Put a queue pair into error, as a device does when it finds something wrong."""
        with self.lock:
            self.endpoints[number].fail()
            self.kick()

    def expire(self) -> None:
        """Let all retries that are going on be the last ones, now."""
        with self.lock:
            self._expire(float("inf"))

    def new_key(self) -> int:
        """Return a key for a memory region."""
        return self._random.getrandbits(31) | 1

    def new_number(self) -> int:
        """Return a queue pair's number, or first packet's number."""
        while (number := self._random.getrandbits(24)) in self.endpoints or number < 16:
            pass
        return number

    # -- running

    def step(self) -> bool:
        """Do one step that is possible; tell whether there was one."""
        with self.lock:
            steps = self._steps()
            if steps:
                self._do(steps[self.plan.choose(len(steps))])
            return bool(steps)

    def settle(self) -> None:
        """Do all steps that are possible."""
        while self.step():
            pass

    def kick(self, endpoint: Endpoint | None = None) -> None:
        """Note that something changed; the lock is held."""
        if self._failure is not None:
            raise RuntimeError("the simulated fabric broke") from self._failure
        if endpoint is not None and endpoint.busy:
            self._busy[endpoint] = None
        if self.plan.manual or not self._busy:
            return
        if self.plan.immediate:
            self.settle()
        else:
            for _ in range(self.plan.touches()):
                self.step()
        if self._busy:
            if self._driver is None:
                self._driver = threading.Thread(target=self._drive, name="fabric", daemon=True)
                self._driver.start()
            self._changed.notify()

    def use(self) -> None:
        """Count one that opened a device."""
        with self.lock:
            self._users += 1

    def unuse(self) -> None:
        """Count one that closed a device; with the last one, the driver ends."""
        with self.lock:
            self._users -= 1
            if self._users:
                return
            self._busy.clear()
            driver, self._driver = self._driver, None
            self._changed.notify()
        if driver is not None:
            driver.join()

    def _drive(self) -> None:
        try:
            while True:
                with self.lock:
                    if self._driver is not threading.current_thread():
                        return
                    self._expire(time.monotonic())
                    moved = any([self.step() for _ in range(BURST)])
                    if not moved:
                        self._changed.wait(self._patience())
                self.plan.pause()
        except BaseException as error:
            self._failure = error
            raise

    def _patience(self) -> float | None:
        deadlines = [one.deadline for one in self._busy if one.deadline is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    # -- what is possible

    def _steps(self) -> list[Step]:
        steps: list[Step] = []
        for endpoint in list(self._busy):
            if not endpoint.busy:
                del self._busy[endpoint]
                endpoint.deadline = None
                continue
            found = self._own_steps(endpoint)
            steps += found
            steps += [("land", endpoint, index) for index in self._landable(endpoint)]
        return steps

    def _own_steps(self, endpoint: Endpoint) -> list[Step]:
        if not endpoint.queue:
            endpoint.deadline = None
            return []
        target = self._target(endpoint)
        if target is None:
            self._stall(endpoint, rnr=False)
            return []
        steps: list[Step] = []
        starved = False
        if endpoint.waiting:
            work = endpoint.waiting[0]
            if work.opcode in NEEDS_RECEIVE and work.receive is None and not target.receives:
                starved = True
            elif self._may_issue(endpoint, work):
                steps.append(("issue", endpoint, 0))
        if endpoint.reads:
            steps += self._fetches(endpoint, target)
        if endpoint.queue[0].executed:
            steps.append(("acknowledge", endpoint, 0))
        if starved and not steps and not endpoint.landing:
            self._stall(endpoint, rnr=True)
        else:
            endpoint.deadline = None
        return steps

    def _may_issue(self, endpoint: Endpoint, work: Work) -> bool:
        agreed = endpoint.agreed
        assert agreed is not None
        if endpoint.reads and (work.flags & c.FENCE or work.refused):
            return False
        return work.opcode not in READS_AND_ATOMICS or len(endpoint.reads) < agreed.rd_atomic

    def _fetches(self, endpoint: Endpoint, target: Endpoint) -> list[Step]:
        work = endpoint.reads[0]
        if any(piece.ordinal < work.ordinal for piece in endpoint.landing):
            return []
        if work.opcode != c.OP_READ:
            holder = target.port.atomic_by
            free = holder is None or holder is work or holder.done
            return [("fetch", endpoint, 0)] if free else []
        count = 1 if self.plan.immediate else len(work.pieces)
        return [("fetch", endpoint, index) for index in range(count)]

    def _landable(self, endpoint: Endpoint) -> list[int]:
        if self.plan.ordered or not endpoint.landing:
            return [0] if endpoint.landing else []
        first = endpoint.landing[0]
        if first.notice is not None:
            return [0]
        return [index for index, one in enumerate(endpoint.landing) if one.notice is None]

    def _target(self, endpoint: Endpoint) -> Endpoint | None:
        """Find the other end, if packets get there and it takes them."""
        remote = endpoint.remote
        if remote is None or endpoint.port.state != c.PORT_ACTIVE:
            return None
        target = self.endpoints.get(remote.number)
        if (
            target is None
            or target.port.state != c.PORT_ACTIVE
            or target.state not in (c.QP_READY_TO_RECEIVE, c.QP_READY_TO_SEND)
            or target.gid != remote.gid
            or target.psn != remote.psn
            or target.remote is None
            or (target.remote.number, target.remote.gid) != (endpoint.number, endpoint.gid)
        ):
            return None
        return target

    def _stall(self, endpoint: Endpoint, *, rnr: bool) -> None:
        agreed = endpoint.agreed
        if endpoint.deadline is not None or agreed is None:
            return
        if rnr and agreed.rnr_retries == 7:
            return
        attempt_s = RNR_S if rnr else ATTEMPT_S * 2**agreed.timeout
        count = agreed.rnr_retries if rnr else agreed.retries + 1
        endpoint.deadline = time.monotonic() + attempt_s * count

    def _expire(self, now: float) -> None:
        self._steps()  # sets and clears deadlines
        for endpoint in list(self._busy):
            if endpoint.deadline is not None and endpoint.deadline <= now:
                rnr = self._target(endpoint) is not None
                status = c.RNR_RETRIES_EXCEEDED if rnr else c.RETRIES_EXCEEDED
                failed = endpoint.waiting[0] if rnr else endpoint.queue[0]
                endpoint.fail(failed, status)

    # -- the steps

    def _do(self, step: Step) -> None:
        action, endpoint, index = step
        if action == "land":
            self.land(endpoint.landing.pop(index))
        elif action == "acknowledge":
            endpoint.finish(endpoint.queue[0], c.SUCCESS)
        else:
            target = self._target(endpoint)
            assert target is not None
            if action == "issue":
                self.issue(endpoint, target)
            else:
                self.fetch(endpoint, target, index)
        # What asks for no completion needs no step of its own to be done with.
        while endpoint.queue and endpoint.queue[0].executed:
            if endpoint.queue[0].flags & c.SIGNALED:
                break
            endpoint.finish(endpoint.queue[0], c.SUCCESS)

    def land_all(self) -> None:
        """Let everything that is on its way land: before memory or a queue pair goes away."""
        for endpoint in list(self._busy):
            while endpoint.landing:
                self.land(endpoint.landing.pop(0))

    def forget(self, memory: Memory, port: Port) -> None:
        """Deregister memory; what was acknowledged has landed when this returns."""
        self.land_all()
        memory.open = False
        del port.regions[memory.key]
        port.locked_bytes -= memory.length
