/* How a Poller waits while another thread of its process computes in Python.  See _fast.h.
 *
 * The rules of the GIL, with a switch interval I (5 ms): a thread that wants it sleeps for I, then whoever has it
 * lets it go at his next byte code and has it back I later.  Who lets go of it for an instant has it back before
 * the sleeper is up, if that sleeps deeply, and the sleeper's I begins anew; but a computing thread that
 * has just handed it over is awake, and takes it again at once.  So, when somebody computes (`dear_until_ns`):
 *
 *   - We have it for about half of the time; more cannot be had fairly.  Nothing that waits for a peer
 *     which is awake, or wakes up, lets go of it.
 *   - The event loop, whose select lets go of it, turns once for each time that we have it: not as soon as
 *     we have it back, and then not before we lost it again; but at least every PATIENCE_MAX_NS.
 *   - The peer's process may have a computing thread as well.  If the ends have their GILs in turn, each request
 *     takes 2 I.  So who waits in vain gives the GIL away at once (a turn), and who has just been away waits for
 *     longer than that takes: then there is always a time when both have theirs, and from then on they go in step:
 *
 *         client  ########|..........|########|..........|####    # has the GIL   | missed the other, gives a turn
 *         server  ##########|..........|########|..........|##    . the other thread computes
 *
 *     A turn that brought nothing is not repeated at once, but after twice as many waits each time.
 *   - A peer on our CPU needs one.  That of the computing thread is free while we have the GIL, so we go there
 *     (`move`, _poller_wait.c).
 *
 * That we were away is told by the clock, which is read for each wait then: who computes by himself
 * between two messages seems to have been away, and waits for longer. */
#define _GNU_SOURCE
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "_fast.h"
#include "_spot.h"

/* Take notice of how long it took to let go of the GIL and to have it back. */
void l5_poller_lost(Poller *self, uint64_t ns)
{
    uint64_t now;

    if (ns < LOST_MIN_NS)
        return;
    now = l5_now_ns();
    self->lost_ns = ns < LOST_MAX_NS ? ns : LOST_MAX_NS;
    self->dear_until_ns = now + LOST_MEMORY_NS;
    l5_poller_be_patient(self, now, LOOP_BACK_NS);
}

PyObject *l5_poller_note_lost(Poller *self, PyObject *ns)
{
    unsigned long long value = PyLong_AsUnsignedLongLong(ns);

    if (PyErr_Occurred())
        return NULL;
    l5_poller_lost(self, value);
    Py_RETURN_NONE;
}

/* How often this thread has waited for anything in the kernel; 0 if that is not known. */
static uint64_t kernel_waits(void)
{
#ifdef RUSAGE_THREAD
    struct rusage used;

    return getrusage(RUSAGE_THREAD, &used) ? 0 : (uint64_t)used.ru_nvcsw;
#else
    return 0;
#endif
}

/* (The event loop has slept) find out if that was as long as it was only because the GIL had to be waited
 * for as well: in a row of sleeps that take as long as that takes, there were two waits in each. */
void l5_poller_note_slept(Poller *self, uint64_t value)
{
    uint64_t waits;

    if (value < LOST_MIN_NS || value > SLEPT_MAX_NS) {
        self->long_sleeps = 0;
    } else if (!self->long_sleeps++) {
        self->kernel_waits = kernel_waits();
    } else if (self->long_sleeps > SLEEPS_JUDGED) {
        waits = kernel_waits() - self->kernel_waits;
        self->long_sleeps = 0;
        if (waits >= 2 * SLEEPS_JUDGED)
            l5_poller_lost(self, value < LOST_MAX_NS / 2 ? value : LOST_MAX_NS / 2);
    }
}

PyObject *l5_poller_slept(Poller *self, PyObject *ns)
{
    unsigned long long value = PyLong_AsUnsignedLongLong(ns);

    if (PyErr_Occurred())
        return NULL;
    l5_poller_note_slept(self, value);
    Py_RETURN_NONE;
}

/* Tell whether another thread computes, as far as we know. */
int l5_poller_gil_dear(Poller *self)
{
    if (self->dear_until_ns && l5_now_ns() >= self->dear_until_ns)
        self->dear_until_ns = 0;
    return self->dear_until_ns != 0;
}

/* The event loop may wait for so long; but who always seems to have been away (a handler, or a caller, that
 * computes for longer than LOST_MIN_NS each time) cannot keep it waiting for ever. */
void l5_poller_be_patient(Poller *self, uint64_t now, uint64_t for_ns)
{
    uint64_t last;

    if (!self->patient_until_ns)
        self->patient_since_ns = now;
    last = self->patient_since_ns + PATIENCE_MAX_NS;
    if (self->patient_until_ns < now + for_ns)
        self->patient_until_ns = now + for_ns < last ? now + for_ns : last;
}

/* (While another thread computes) note that we have the GIL; with a look at the clock, if we had been away. */
void l5_poller_note_here(Poller *self, uint64_t now)
{
    if (now - self->here_ns > LOST_MIN_NS) {
        self->back_ns = now;
        l5_poller_be_patient(self, now, LOOP_BACK_NS);
    }
    self->here_ns = now;
}

/* Tell whether the event loop, which is due, has waited for long enough; else it may wait for as many
 * messages once more. */
int l5_poller_patience_over(Poller *self)
{
    uint64_t now = l5_now_ns();

    if (self->dear_until_ns)
        l5_poller_note_here(self, now);
    if (now >= self->patient_until_ns) {
        self->patient_until_ns = 0;
        return 1;
    }
    self->streak = 0;
    self->spun_ns = 0;
    self->yielded_ns = 0;
    return 0;
}

/* Tell whether the process at the other end of a socket is this one. */
int l5_peer_beside(int fd)
{
#ifdef SO_PEERCRED
    struct ucred peer;
    socklen_t size = sizeof(peer);

    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.pid == getpid();
#else
    (void)fd;
    return 0;
#endif
}

/* Having been away, wait with the GIL for longer than the peer may be away, unless that was in vain lately: the
 * peer may be slow.  One that is a thread of this process is not waited for, for it may wait for the GIL. */
static int wait_long(Poller *self, uint64_t budget, uint64_t *spent)
{
    int found;

    if (self->keeps_in || self->beside) {
        self->keeps_in -= self->keeps_in > 0;
        return l5_poller_look(self, budget, spent);
    }
    found = l5_poller_look(self, self->lost_ns + LOST_MIN_NS, spent);
    if (!found)
        self->keeps_in = KEEPS_PAUSE;
    return found;
}

/* Look without the GIL; if another thread took it, the peer comes soon, or was here and waits for us. */
int l5_poller_look_without_gil(Poller *self, uint64_t budget, uint64_t *spent)
{
    uint64_t begun, lost_ns;
    int found;

    Py_BEGIN_ALLOW_THREADS
    found = l5_poller_look(self, budget, spent);
    if (!found && budget >= GIL_TURN_NS)
        sched_yield(); /* the other thread may be on our CPU */
    begun = l5_now_ns();
    Py_END_ALLOW_THREADS
    self->turns++;
    lost_ns = l5_now_ns() - begun;
    l5_poller_lost(self, lost_ns);
    return found || (lost_ns >= LOST_MIN_NS && wait_long(self, 0, spent));
}

/* Spin while another thread computes. */
int l5_poller_spin_dear(Poller *self, uint64_t budget, uint64_t *spent)
{
    uint64_t now = l5_now_ns();
    int found;

    l5_poller_note_here(self, now);
    if (budget <= MIXED_SPIN_NS) /* some peers are on our own CPU: they want that, not the GIL */
        return l5_poller_look(self, budget, spent);
    if (budget < GIL_DEAR_NS)
        budget = GIL_DEAR_NS;
    found = now - self->back_ns < GIL_BACK_NS ? wait_long(self, budget, spent) : l5_poller_look(self, budget, spent);
    if (found)
        return 1;
    if (self->turns_in) {
        self->turns_in--;
        return 0;
    }
    found = l5_poller_look_without_gil(self, GIL_TURN_NS, spent);
    self->turns_every = found ? 0 : self->turns_every ? self->turns_every * 2 : 1;
    if (self->turns_every > TURNS_EVERY_MAX)
        self->turns_every = TURNS_EVERY_MAX;
    self->turns_in = self->turns_every;
    return found;
}
