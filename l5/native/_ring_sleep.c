/* A thread without an event loop sleeps for what comes next in its ring: one call for all of it.
 *
 *     with the connection's lock      arm; where something is there already, look at that instead
 *     without it, without the GIL     sleep on the descriptor that watches all of the connection's
 *     with the lock                   silence the bell, and take what was waited for if it comes first
 *
 * Whatever else there is is left where it is, and the caller goes the generic way, which finds it: frames in
 * the ring, and descriptors, for those that are asked are not emptied.  Only the bell is: then the
 * caller must take the ring as unarmed.  He does so in any case.
 *
 * No wake-up is lost.  Arming refuses where a frame is there, and who writes one afterwards rings
 * (DOORBELL in channel.h).  Another thread that takes the frame, or silences the bell, while we sleep has
 * the lock, finds who waits, and wakes the driver by the hub's own bell, on which we sleep as well.
 *
 * Python's handlers of signals run in two places: while the lock is let go, and as it is taken again. */
#include "_fast.h"

#include <sys/epoll.h>

enum { EVENTS_MAX = 4 }; /* the bell, the hub's own, the peer's death: one call tells of all */
enum woken { INTERRUPTED = -1, ELSE = 0, LOOK = 1 }; /* ELSE: not by the bell; LOOK: there may be a frame */

/* Wait for news of the descriptors that `watcher` watches: LOOK, the bell is among them.  A signal ends it. */
static enum woken wait_for_bell(int watcher, int bell, int timeout_ms)
{
    struct epoll_event events[EVENTS_MAX];
    int found, interrupted;

    Py_BEGIN_ALLOW_THREADS
    found = epoll_wait(watcher, events, EVENTS_MAX, timeout_ms);
    interrupted = found < 0 && errno == EINTR;
    Py_END_ALLOW_THREADS
    if (interrupted && PyErr_CheckSignals() < 0)
        return INTERRUPTED;
    for (int i = 0; i < found; i++)
        if (events[i].data.fd == bell && events[i].events == EPOLLIN)
            return LOOK;
    return ELSE;
}

static PyObject *acquire_word, *release_word; /* strong, made once */

static PyObject *call(PyObject *lock, PyObject **word, const char *name)
{
    if (!*word && !(*word = PyUnicode_InternFromString(name)))
        return NULL;
    return PyObject_CallMethodNoArgs(lock, *word);
}

/* Take the lock again, whatever signal's handlers raise meanwhile: the last of their errors is kept. */
static void lock_again(PyObject *lock)
{
    PyObject *type, *value, *traceback, *done;

    PyErr_Fetch(&type, &value, &traceback);
    while (!(done = call(lock, &acquire_word, "acquire"))) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
        PyErr_Fetch(&type, &value, &traceback);
    }
    Py_DECREF(done);
    PyErr_Restore(type, value, traceback);
}

/* Sleep, armed: LOOK when the bell has rung and is silent again, and the ring may be looked at. */
static enum woken rest(Ring *self, PyObject *lock, int watcher, int timeout_ms)
{
    int bell = self->channel.bell;
    uint64_t begun = l5_now_ns();
    PyObject *done = call(lock, &release_word, "release");
    enum woken woken;

    if (!done)
        return INTERRUPTED; /* it was not held: an error of the caller */
    Py_DECREF(done);
    woken = wait_for_bell(watcher, bell, timeout_ms);
    lock_again(lock);
    if (PyErr_Occurred())
        woken = INTERRUPTED;
    if (!self->open || !self->poller)
        return woken == LOOK ? ELSE : woken; /* another thread has closed it, and woken us */
    self->slept_ns = l5_now_ns() - begun;
    l5_poller_note_slept(self->poller, self->slept_ns);
    l5_poller_breathe(self->poller);
    if (woken == LOOK && (self->shared == LOCKED_INSIDE || l5_ring_take_bell(self) != 1))
        return ELSE; /* a tap wants to see each frame; or the socket has ended */
    return woken;
}

/* Arm, and sleep unless there is something: LOOK, there may be a frame for us.  Not if others have received
 * some meanwhile, who have the lock in turns with us: what they found comes first, and may be what we want. */
static enum woken arm_and_rest(Ring *self, PyObject *const *args)
{
    int watcher = (int)PyLong_AsLong(args[1]);
    int timeout_ms = (int)PyLong_AsLong(args[2]);
    uint64_t received = self->frames_received;
    enum woken woken;

    if (PyErr_Occurred() || !l5_ring_ready(self))
        return INTERRUPTED;
    self->slept_ns = 0;
    if (!self->poller || self->shared == LOCKED_INSIDE || self->partials || self->credit_owed)
        return ELSE;
    if (l5_channel_arm(&self->channel, L5_ARM_DATA)) {
        l5_poller_stir(self);
        return LOOK;
    }
    woken = rest(self, args[0], watcher, timeout_ms);
    return woken == LOOK && (self->frames_received != received || self->partials) ? ELSE : woken;
}

/* Look for a whole frame of a kind; a fault is found again by whoever receives next, and what is not for us. */
static int comes_next(Ring *self, struct l5_frame *frame, int kind)
{
    return l5_channel_peek(&self->channel, frame) == 1 && frame->kind == kind && !frame->flags;
}

const char l5_await_answer_doc[] =
    "await_answer(lock, watcher_fd, timeout_ms, id) -> bytes | None\n\n"
    "(With the lock) sleep, without it, until the answer to this id is what comes next, and take it; None:\n"
    "something else woke us, or the time (-1: for ever) is over, or something else comes first.";

PyObject *l5_ring_await_answer(Ring *self, PyObject *const *args, Py_ssize_t count)
{
    struct l5_frame frame;
    unsigned long long wanted;
    enum woken woken;
    PyObject *answer;

    if (count != 4)
        return PyErr_Format(PyExc_TypeError, "await_answer(lock, watcher_fd, timeout_ms, id)");
    wanted = PyLong_AsUnsignedLongLong(args[3]);
    woken = arm_and_rest(self, args);
    if (woken == INTERRUPTED)
        return NULL;
    if (woken == ELSE || !comes_next(self, &frame, L5_RESPONSE) || frame.id != wanted)
        Py_RETURN_NONE;
    answer = l5_ring_take(self, &frame);
    if (answer) {
        self->taken = wanted;
        self->in_flight--;
    }
    return answer;
}

const char l5_await_data_doc[] =
    "await_data(lock, watcher_fd, timeout_ms) -> bytes | tuple[bytes] | None\n\n"
    "(With the lock) sleep, without it, until a whole data message is what comes next, and take it as\n"
    "receive does; None: as with await_answer.";

PyObject *l5_ring_await_data(Ring *self, PyObject *const *args, Py_ssize_t count)
{
    struct l5_frame frame;
    enum woken woken;

    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "await_data(lock, watcher_fd, timeout_ms)");
    Py_CLEAR(self->last);
    woken = arm_and_rest(self, args);
    if (woken == INTERRUPTED)
        return NULL;
    if (woken == ELSE || !comes_next(self, &frame, L5_DATA))
        Py_RETURN_NONE;
    return l5_ring_take_data(self, &frame);
}
