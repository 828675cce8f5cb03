/* How a Poller waits: the steps between finding nothing and going to sleep.  See _fast.h.
 *
 *   spin    the peer is on another CPU: an answer comes in less time than a system call takes
 *   yield   it is on ours: it runs when we do not
 *   move    it is on ours, and others use it as well: it is better off without us
 *   nothing a peer is a task of this very loop, which runs as soon as we return
 *   sleep   (not here) a wake-up costs the sleeper tens of microseconds, the caches of its event
 *           loop, and the waker a system call
 *
 * One client and its server are two processes, and two CPUs are enough.  With more clients, some
 * share the server's CPU; served as they come, they get one answer in a time slice, and those of the
 * other CPU thousands.  Three things make all equal, and nobody sleeps while messages flow:
 *
 *   - The server tells how many use it: l5_channels_tell.  A client that hears of others, and finds the
 *     server on its own CPU, leaves that CPU (l5_leave_cpu).  So the server has one for itself.
 *   - Where that is not allowed (pinned, a cpuset) the server gives those beside it a turn, a
 *     sched_yield, each time that those elsewhere have had TURN_SHARE answers each.
 *   - A client of a crowd yields to the others after CROWD_TURN_NS, at a trip of its event loop.
 *
 * A yield that takes long has let a stranger run: since Linux 6.18 who yields forfeits a whole slice.
 * Then there is none for a while, for a sleeper is woken sooner than that.
 *
 * The peer's words are hints: a server that lies of its crowd, or of its CPU, has its client yield, and
 * leave a CPU once in MOVE_NS; a client that lies of its CPU has its server yield, within the same rule.
 */
#include "_fast.h"

int l5_poller_look(Poller *self, uint64_t budget, uint64_t *spent)
{
    if (self->spot_count)
        return l5_spots_spin(self, budget, spent);
    return l5_spin(self->channels, self->count, budget, spent);
}

static int spin(Poller *self, uint64_t budget)
{
    uint64_t first = budget < GIL_HOLD_NS ? budget : GIL_HOLD_NS;
    uint64_t spent = 0;
    int found;

    if (l5_poller_gil_dear(self)) {
        found = l5_poller_spin_dear(self, budget, &spent);
    } else {
        found = l5_poller_look(self, first, &spent);
        if (!found && budget > first)
            found = l5_poller_look_without_gil(self, budget - first, &spent);
    }
    self->spins++;
    self->spun_ns += spent;
    self->spun_total_ns += spent;
    return found;
}

/* Judge a yield: the others of a crowd have a turn of CROWD_TURN_NS at most, a stranger a slice. */
static void judge(Poller *self, uint64_t begun, uint64_t taken)
{
    uint32_t others = self->crowd > self->serving ? self->crowd : self->serving;

    self->crowded = taken > CROWD_NS;
    if (taken <= YIELD_LONG_NS + YIELD_EACH_NS * (uint64_t)(others > 1 ? others - 1 : 0)) {
        self->yield_pause = 0;
        return;
    }
    self->crowded = 0;
    self->yield_pause = self->yield_pause ? self->yield_pause * 2 : YIELD_PAUSE;
    if (self->yield_pause > YIELD_PAUSE_MAX)
        self->yield_pause = YIELD_PAUSE_MAX;
    self->yield_after_ns = begun + taken + self->yield_pause * taken;
}

static int yield(Poller *self, int times)
{
    uint64_t taken, begun = l5_now_ns();
    PyThreadState *state;
    int found;

    if (begun < self->yield_after_ns)
        return 0;
    state = l5_poller_gil_dear(self) ? NULL : PyEval_SaveThread();
    found = l5_yield(self->channels, self->count, times) || l5_spots_news(self);
    taken = l5_now_ns() - begun;
    if (state) {
        PyEval_RestoreThread(state);
        l5_poller_lost(self, l5_now_ns() - begun - taken);
    }
    self->yields++;
    self->yielded_ns += taken;
    self->yielded_total_ns += taken;
    self->turn_since_ns = begun + taken;
    judge(self, begun, taken);
    return found;
}

/* Who serves as well may be its own server.  When another thread of ours computes, its CPU is free as long
 * as we have the GIL; a client leaves at once, a server that has not heard yet of its client's move later.
 * A peer in our process has no use for the CPU that we leave: it runs when we return, or has the GIL. */
static int wants_move(Poller *self)
{
    if (self->beside)
        return 0;
    if (l5_poller_gil_dear(self))
        return ++self->near_waits > (self->serving ? NEAR_WAITS : 0);
    return self->crowd > 1 && !self->serving;
}

/* Leave the CPU to the peer that runs there. */
static int move(Poller *self)
{
    uint64_t now;

    if (!self->movable || !wants_move(self))
        return 0;
    now = l5_now_ns();
    if (now < self->move_after_ns)
        return 0;
    self->move_after_ns = now + MOVE_NS;
    if (!l5_leave_cpu(l5_cpu(), self->movable))
        return 0;
    self->moves++;
    self->near_waits = 0;
    return 1;
}

/* Wait for peers that are all elsewhere.  In a crowd it is mostly not a stranger who runs when we yield,
 * and the answer is there when we have the CPU again. */
static int wait_far(Poller *self, uint64_t budget)
{
    if (spin(self, budget))
        return 1;
    return self->crowd > 1 && yield(self, 2);
}

/* Some are here: they have the CPU soon.  If none of them wanted it, the others are waited for on. */
static int wait_mixed(Poller *self, uint64_t budget)
{
    uint64_t first = budget < NEAR_SPIN_NS ? budget : NEAR_SPIN_NS;

    if (spin(self, first) || yield(self, 2))
        return 1;
    budget = budget < MIXED_SPIN_NS ? budget : MIXED_SPIN_NS;
    return !self->crowded && budget > first && spin(self, budget - first);
}

/* Wait for news of the rings, by spinning for at most `budget` or by yielding; 1 when there are. */
int l5_poller_wait(Poller *self, uint64_t budget)
{
    uint32_t near, far;
    int found;

    if (l5_channels_news(self->channels, self->count) || l5_spots_news(self))
        return 1;
    if ((!self->count && !self->spot_count) || l5_poller_serves_itself(self))
        return 0;
    near = l5_channels_near(self->channels, self->count, &far);
    far += self->spot_count; /* their peers are on other machines */
    self->spinning = 1;
    if (self->yield_only)
        found = yield(self, 2);
    else if (!near)
        found = wait_far(self, budget);
    else if (far)
        found = wait_mixed(self, budget);
    else
        found = move(self) ? wait_far(self, budget) : yield(self, 2);
    self->spinning = 0;
    return found;
}

/* (Serving) let those on our CPU take their answers and ask again.  While others keep us busy we would
 * never wait.  Those elsewhere have had some answers each before: so all get about as many, and the
 * switches of the CPU are paid for by several.  A sleeper that was just rung for has its turn anyway. */
void l5_poller_give_turn(Poller *self)
{
    uint32_t far;

    if (!self->owes_turn || self->since_turn < self->turn_every)
        return;
    self->owes_turn = 0;
    self->since_turn = 0;
    l5_channels_near(self->channels, self->count, &far);
    self->turn_every = TURN_SHARE * far;
    if (!far) /* then whoever is on our CPU has it as soon as we wait */
        return;
    self->spinning = 1;
    yield(self, 1);
    self->spinning = 0;
}

/* (The event loop has run) hear and tell how many we are, and let the others of a crowd run. */
void l5_poller_look_around(Poller *self)
{
    self->serving = l5_channels_tell(self->channels, self->count);
    self->crowd = l5_channels_told(self->channels, self->count);
    if (self->crowd < 2 || !self->budget_ns || l5_now_ns() - self->turn_since_ns < CROWD_TURN_NS)
        return;
    self->spinning = 1;
    yield(self, 1);
    self->turn_since_ns = l5_now_ns(); /* also when it was not the time to yield */
    self->spinning = 0;
}
