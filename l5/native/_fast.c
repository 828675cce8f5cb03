/* Where CPython meets the core: the hot calls as METH_FASTCALL methods.
 *
 * This is the only file that knows Python, and therefore longer than others.  It is compiled into
 * the module that cffi builds; `l5_install_fast`, called once through cffi, puts a module
 * `l5._fast` with three types into sys.modules:
 *
 *   Ring    one channel over shared memory, with the counters that flow control needs
 *   Poller  all rings of one event loop: scanning, spinning, fairness
 *   Slot    a buffer exporter over a message in place (lease) or to be (reserve)
 *
 * Why not plain cffi calls: a cffi call with a buffer costs about 200 ns and always releases the
 * GIL; with a computing thread in the process, getting it back costs up to the switch interval
 * (5 ms).  Here the GIL is kept for sends, polls and the first GIL_HOLD_NS of a spin, and released
 * for longer waits.
 *
 * Calls into C per message: a client's request is one (write, wake if armed, spin, copy out).  On
 * the server `Poller.serve` scans, calls the handler, answers and scans on: one call into C for as
 * many requests as the event loop may wait for.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <structmember.h>
#include <unistd.h>

#include "channel.h"

enum {
    GIL_HOLD_NS = 20000,
    STREAK_MAX = 64,         /* messages before the event loop must run */
    TURN_MAX_NS = 500000,    /* handling requests before the event loop must run */
    SLOW_HANDLER_NS = 10000, /* from here on the clock is read for every request */
    CLOCK_EVERY_MAX = 16,    /* else for one in so many: reading it costs as much as a cache line */
    SPUN_MAX_NS = 100000,    /* spinning before the event loop must run */
    FRAME_COST = 64,         /* what a data message costs of its window beside its payload */
    RINGS_MAX = 65536,
};

/* Who may use a ring: the thread that made it; or any thread that holds the connection's lock, and
 * then the hot methods stand back while its holder is in the middle of something (a signal handler
 * may come in there, in the same thread). */
enum sharing { ONE_THREAD = 0, LOCKED = 1, LOCKED_INSIDE = 2 };

static PyObject *RemoteProtocolError, *ClosedResourceError, *BrokenResourceError, *BusyResourceError;

typedef struct Poller Poller;

typedef struct {
    PyObject_HEAD
    struct l5_channel channel;
    Poller *poller;       /* strong, while added */
    PyObject *session;    /* strong, while added: whose frames these are */
    PyObject *server;     /* strong: who takes requests from this ring, or NULL */
    unsigned long thread; /* ident of the owner: one thread uses a connection */
    int shared;           /* see enum sharing */
    int open;
    int strict;
    Py_ssize_t exports;   /* live slots: the mapping must stay */
    uint64_t next_id;
    uint64_t in_flight, in_flight_max;     /* our requests without an answer */
    uint64_t handling, handling_max;       /* the peer's requests without an answer */
    uint64_t data_sent, data_allowed;      /* flow control of DATA, cumulative cost */
    uint64_t data_arrived, data_taken, data_told, data_window;
    uint64_t peer_window;  /* the peer's data window */
    uint64_t spin_ns;      /* budget of this connection's own waits */
    unsigned int queued;   /* tasks that wait for room: the hot path does not push in before them */
    unsigned int partials; /* half-received messages: a frame without MORE may be the end of one */
    int credit_owed;       /* a CREDIT found no room: the generic path sends it */
    uint64_t frames_sent, frames_received, bytes_sent, bytes_received, calls;
    uint64_t answered;     /* requests answered by Poller.serve */
} Ring;

struct Poller {
    PyObject_HEAD
    struct l5_channel **channels;
    Ring **rings;
    uint32_t count, room, cursor;
    int spinning;          /* the GIL may be released: no one else may come in */
    uint32_t streak;
    uint64_t spun_ns;      /* since the loop last ran */
    uint64_t spun_total_ns;
    uint64_t turn_ns;      /* when the clock was first read in this turn of the loop; 0: not yet */
    uint64_t clock_ns;     /* when it was last read */
    uint32_t clock_every, clock_in;
    int overdue;
    uint64_t budget_ns;
    int yield_only;        /* one CPU, or a quota: spinning would take the peer's time */
    int shared;            /* see enum sharing */
    unsigned long thread;
};

typedef struct {
    PyObject_HEAD
    Ring *ring;
    void *data;
    Py_ssize_t size;
    int writable;          /* a reservation; else a lease */
    int done;              /* sent, discarded or given back */
    int doomed;            /* left with live exports: give back when they die */
    Py_ssize_t exports;
} Slot;

static PyTypeObject RingType, PollerType, SlotType;

/* ---- guards ------------------------------------------------------------------------------- */

static int ring_ready(Ring *self)
{
    if (!self->open) {
        PyErr_SetNone(ClosedResourceError);
        return 0;
    }
    if ((!self->shared && self->thread != PyThread_get_thread_ident()) ||
        (self->poller && self->poller->spinning)) {
        PyErr_SetString(BusyResourceError,
                        "using (in its event loop's thread, to which a connection belongs)");
        return 0;
    }
    self->calls++;
    return 1;
}

static PyObject *raise_code(Ring *self, int rc)
{
    if (rc == -EPROTO)
        return PyErr_Format(RemoteProtocolError, "the peer broke the shared-memory protocol: %s",
                            self->channel.fault ? self->channel.fault : "unknown fault");
    if (rc == -EPIPE) {
        PyErr_SetNone(BrokenResourceError);
        return NULL;
    }
    errno = -rc;
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* Asking for the bytes, and giving them back, may run Python code (PEP 688), which may close the
 * ring: so after the first it is looked at again, and after the second nothing is assumed. */
static int get_payload(Ring *self, PyObject *object, Py_buffer *view)
{
    if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) < 0)
        return -1;
    if (self->open)
        return 0;
    PyBuffer_Release(view);
    PyErr_SetNone(ClosedResourceError);
    return -1;
}

/* ---- spinning ------------------------------------------------------------------------------ */

static int due(Poller *self)
{
    return self->streak >= STREAK_MAX || self->spun_ns >= SPUN_MAX_NS || self->overdue;
}

/* Note that a request has been handled; handlers that take long make the loop due by time. */
static void note_handled(Poller *self)
{
    uint64_t now;

    if (self->clock_in > 1) {
        self->clock_in--;
        return;
    }
    now = l5_now_ns();
    if (!self->turn_ns)
        self->turn_ns = now;
    if (now - self->clock_ns > (uint64_t)SLOW_HANDLER_NS * (self->clock_every ? self->clock_every : 1))
        self->clock_every = 1;
    else if (self->clock_every < CLOCK_EVERY_MAX)
        self->clock_every = self->clock_every ? self->clock_every * 2 : 1;
    self->clock_in = self->clock_every;
    self->clock_ns = now;
    self->overdue = now - self->turn_ns > TURN_MAX_NS;
}

/* Poll all rings of the loop for at most `budget`; 1 when one has something. */
static int spin(Poller *self, uint64_t budget)
{
    uint64_t spent = 0;
    int found;

    if (l5_channels_ready(self->channels, self->count))
        return 1;
    self->spinning = 1;
    if (self->yield_only || l5_channels_share_cpu(self->channels, self->count)) {
        uint64_t start = l5_now_ns();

        Py_BEGIN_ALLOW_THREADS
        found = l5_yield_twice(self->channels, self->count);
        Py_END_ALLOW_THREADS
        spent = l5_now_ns() - start;
    } else {
        uint64_t first = budget < GIL_HOLD_NS ? budget : GIL_HOLD_NS;

        found = l5_spin(self->channels, self->count, first, &spent);
        if (!found && budget > first) {
            Py_BEGIN_ALLOW_THREADS
            found = l5_spin(self->channels, self->count, budget - first, &spent);
            Py_END_ALLOW_THREADS
        }
    }
    self->spinning = 0;
    self->spun_ns += spent;
    self->spun_total_ns += spent;
    return found;
}

/* ---- frames -------------------------------------------------------------------------------- */

static int peek(Ring *self, struct l5_frame *frame)
{
    int rc = l5_channel_peek(&self->channel, frame);

    if (rc < 0)
        raise_code(self, rc);
    return rc;
}

/* Copy the payload that peek found and give the message's space back. */
static PyObject *take(Ring *self, const struct l5_frame *frame)
{
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)frame->payload, frame->size);

    if (!bytes)
        return NULL;
    l5_channel_consume(&self->channel);
    self->frames_received++;
    self->bytes_received += frame->size;
    return bytes;
}

static int send_frame(Ring *self, int kind, int flags, uint64_t id, const Py_buffer *view)
{
    int rc;

    if (view->len > (Py_ssize_t)self->channel.tx_limit)
        return -EMSGSIZE;
    rc = l5_channel_send(&self->channel, kind, flags, id, NULL, 0, view->buf, (uint32_t)view->len);
    if (!rc) {
        self->frames_sent++;
        self->bytes_sent += (uint64_t)view->len;
    }
    return rc;
}

/* What a data message costs of the window.  Half a window at most, so that a message larger than
 * the window can be sent at all: the receiver may owe credit for up to half a window. */
static uint64_t data_cost(uint64_t size, uint64_t window)
{
    uint64_t cost = size + FRAME_COST;

    return cost < window / 2 ? cost : window / 2;
}

/* Account for a data message that the application took; tell the peer now and then. */
static void data_taken(Ring *self, uint64_t size)
{
    self->data_taken += data_cost(size, self->data_window);
    if (self->data_taken - self->data_told >= self->data_window / 2) {
        uint64_t allowed = self->data_taken + self->data_window;

        if (!l5_channel_send(&self->channel, L5_CREDIT, 0, 0, NULL, 0, &allowed, 8))
            self->data_told = self->data_taken;
        else
            self->credit_owed = 1;
    }
}

static void data_arrived(Ring *self, uint64_t size)
{
    self->data_arrived += data_cost(size, self->data_window);
}

/* ---- Ring: hot methods --------------------------------------------------------------------- */

/* (bytes,) means: and now let the event loop run. */
static PyObject *with_due(Ring *self, PyObject *bytes)
{
    PyObject *pair;

    if (!bytes)
        return NULL;
    self->poller->streak++;
    if (!self->strict && !due(self->poller))
        return bytes;
    pair = PyTuple_Pack(1, bytes);
    Py_DECREF(bytes);
    return pair;
}

PyDoc_STRVAR(request_doc,
"request(payload) -> bytes | tuple[bytes] | int | None\n\n"
"Send a request and spin for its answer: the answer; in a tuple when the event loop is due; the\n"
"request's id when it was sent but not answered yet; None when nothing was sent.");

static PyObject *ring_request(Ring *self, PyObject *payload)
{
    struct l5_frame frame;
    Py_buffer view;
    uint64_t id;
    int rc;

    if (!ring_ready(self))
        return NULL;
    if (!self->poller || self->in_flight >= self->in_flight_max || self->queued ||
        self->shared == LOCKED_INSIDE)
        Py_RETURN_NONE;
    if (get_payload(self, payload, &view) < 0)
        return NULL;
    id = self->next_id;
    rc = send_frame(self, L5_REQUEST, 0, id, &view);
    self->next_id += !rc;
    PyBuffer_Release(&view);
    if (rc == -EAGAIN || rc == -EMSGSIZE || rc == -EBUSY)
        Py_RETURN_NONE;
    if (rc)
        return raise_code(self, rc);
    if (self->poller && (self->spin_ns || l5_channel_ready(&self->channel)))
        if (spin(self->poller, self->spin_ns)) {
            rc = peek(self, &frame);
            if (rc < 0)
                return NULL;
            if (rc && frame.kind == L5_RESPONSE && frame.id == id && !frame.flags)
                return with_due(self, take(self, &frame));
        }
    self->in_flight++;
    return PyLong_FromUnsignedLongLong(id);
}

PyDoc_STRVAR(send_doc,
"send(payload) -> bool | None\n\n"
"Send a data message: True; None when sent and the event loop is due; False when it was not sent\n"
"(no room, over the window, longer than a segment).");

static PyObject *ring_send(Ring *self, PyObject *payload)
{
    Py_buffer view;
    uint64_t cost;
    int rc;

    if (!ring_ready(self))
        return NULL;
    if (get_payload(self, payload, &view) < 0)
        return NULL;
    cost = data_cost((uint64_t)view.len, self->peer_window);
    if (!self->poller || self->data_sent + cost > self->data_allowed || self->queued ||
        self->shared == LOCKED_INSIDE)
        rc = -EAGAIN;
    else
        rc = send_frame(self, L5_DATA, 0, self->next_id, &view);
    self->next_id += !rc;
    self->data_sent += rc ? 0 : cost;
    PyBuffer_Release(&view);
    if (rc == -EAGAIN || rc == -EMSGSIZE || rc == -EBUSY)
        Py_RETURN_FALSE;
    if (rc)
        return raise_code(self, rc);
    if (self->poller)
        self->poller->streak++;
    if (self->strict || !self->poller || due(self->poller))
        Py_RETURN_NONE;
    Py_RETURN_TRUE;
}

PyDoc_STRVAR(receive_doc,
"receive(spin) -> bytes | tuple[bytes] | None\n\n"
"Take the next frame if it is a whole data message, spinning for it if asked; in a tuple when the\n"
"event loop is due.");

static PyObject *ring_receive(Ring *self, PyObject *const *args, Py_ssize_t count)
{
    struct l5_frame frame;
    PyObject *bytes;
    int rc;

    if (!ring_ready(self))
        return NULL;
    if (!self->poller || self->shared == LOCKED_INSIDE)
        Py_RETURN_NONE;
    rc = peek(self, &frame);
    if (!rc && count == 1 && args[0] == Py_True && self->spin_ns) {
        l5_channel_publish(&self->channel); /* the peer may wait for space */
        if (spin(self->poller, self->spin_ns))
            rc = peek(self, &frame);
    }
    if (rc < 0)
        return NULL;
    if (!rc || frame.kind != L5_DATA || frame.flags || self->partials)
        Py_RETURN_NONE;
    bytes = take(self, &frame);
    if (bytes) {
        data_arrived(self, frame.size);
        data_taken(self, frame.size);
    }
    return with_due(self, bytes);
}

/* ---- Ring: what the generic path needs ----------------------------------------------------- */

static PyObject *ring_try_send(Ring *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer view;
    unsigned long long id;
    long kind, flags;
    int rc;

    if (count != 4)
        return PyErr_Format(PyExc_TypeError, "try_send(kind, flags, id, payload)");
    if (!ring_ready(self))
        return NULL;
    kind = PyLong_AsLong(args[0]);
    flags = PyLong_AsLong(args[1]);
    id = PyLong_AsUnsignedLongLong(args[2]);
    if (PyErr_Occurred() || get_payload(self, args[3], &view) < 0)
        return NULL;
    rc = send_frame(self, (int)kind, (int)flags, id, &view);
    PyBuffer_Release(&view);
    if (rc == -EAGAIN || rc == -EBUSY)
        Py_RETURN_FALSE;
    if (rc)
        return raise_code(self, rc);
    Py_RETURN_TRUE;
}

static PyObject *ring_try_receive(Ring *self, PyObject *Py_UNUSED(ignored))
{
    struct l5_frame frame;
    PyObject *payload, *tuple;
    int rc;

    if (!ring_ready(self))
        return NULL;
    rc = peek(self, &frame);
    if (rc < 0)
        return NULL;
    if (!rc)
        Py_RETURN_NONE;
    payload = take(self, &frame);
    if (!payload)
        return NULL;
    tuple = Py_BuildValue("(iiKN)", (int)frame.kind, (int)frame.flags, (unsigned long long)frame.id, payload);
    return tuple;
}

static PyObject *ring_poll(Ring *self, PyObject *Py_UNUSED(ignored))
{
    if (!ring_ready(self))
        return NULL;
    return PyBool_FromLong(l5_channel_ready(&self->channel));
}

static PyObject *ring_arm(Ring *self, PyObject *space)
{
    int truth = PyObject_IsTrue(space);
    int rc;

    if (truth < 0 || !ring_ready(self))
        return NULL;
    rc = l5_channel_arm(&self->channel, L5_ARM_DATA | (truth ? L5_ARM_SPACE : 0));
    if (rc == -EPROTO)
        return raise_code(self, rc);
    return PyBool_FromLong(rc == 0);
}

static PyObject *ring_disarm(Ring *self, PyObject *Py_UNUSED(ignored))
{
    if (!ring_ready(self))
        return NULL;
    l5_channel_disarm(&self->channel);
    Py_RETURN_NONE;
}

static PyObject *ring_data_taken(Ring *self, PyObject *size)
{
    unsigned long long value = PyLong_AsUnsignedLongLong(size);

    if (PyErr_Occurred() || !ring_ready(self))
        return NULL;
    data_taken(self, value);
    Py_RETURN_NONE;
}

static void ring_unmap(Ring *self)
{
    if (!self->open && !self->exports && self->channel.control)
        l5_channel_unmap(&self->channel);
}

static void poller_drop(Poller *self, Ring *ring);

static PyObject *ring_close(Ring *self, PyObject *Py_UNUSED(ignored))
{
    if (self->open && self->poller && self->poller->spinning) {
        PyErr_SetString(BusyResourceError, "closing: its event loop is polling it");
        return NULL;
    }
    self->open = 0;
    if (self->poller)
        poller_drop(self->poller, self);
    Py_CLEAR(self->server);
    ring_unmap(self);
    Py_RETURN_NONE;
}

/* In a forked child the mapping does not exist (MADV_DONTFORK), and its addresses may soon be
 * somebody else's: they are not unmapped.  Under live slots goes memory that means nothing. */
static PyObject *ring_forget(Ring *self, PyObject *Py_UNUSED(ignored))
{
    self->open = 0;
    if (self->poller)
        poller_drop(self->poller, self);
    Py_CLEAR(self->server);
    if (self->channel.control && (!self->exports || l5_channel_blank(&self->channel) < 0))
        self->channel.control = NULL;
    Py_RETURN_NONE;
}

/* Set what the hellos agreed on: the socket that is the doorbell, and the limits of a frame. */
static PyObject *ring_attach_bell(Ring *self, PyObject *const *args, Py_ssize_t count)
{
    long bell;
    unsigned long send_limit, receive_limit;

    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "attach_bell(bell, send_limit, receive_limit)");
    if (!ring_ready(self))
        return NULL;
    bell = PyLong_AsLong(args[0]);
    send_limit = PyLong_AsUnsignedLong(args[1]);
    receive_limit = PyLong_AsUnsignedLong(args[2]);
    if (PyErr_Occurred())
        return NULL;
    if (!send_limit || !receive_limit || send_limit > self->channel.ring_bytes / 4 ||
        receive_limit > self->channel.ring_bytes / 4)
        return PyErr_Format(PyExc_ValueError, "a segment must fit four times into the ring");
    self->channel.bell = (int)bell;
    self->channel.tx_limit = (uint32_t)send_limit;
    self->channel.rx_limit = (uint32_t)receive_limit;
    Py_RETURN_NONE;
}

static PyObject *ring_status(Ring *self, PyObject *Py_UNUSED(ignored))
{
    if (!ring_ready(self))
        return NULL;
    return Py_BuildValue("(KK)",
                         (unsigned long long)l5_load_acquire(&self->channel.control->status.sequence),
                         (unsigned long long)l5_load_relaxed(&self->channel.control->status.busy_millionths));
}

/* ---- Slot ----------------------------------------------------------------------------------- */

static Slot *slot_new(Ring *ring, void *data, Py_ssize_t size, int writable)
{
    Slot *slot = PyObject_New(Slot, &SlotType);

    if (!slot)
        return NULL;
    Py_INCREF(ring);
    slot->ring = ring;
    slot->data = data;
    slot->size = size;
    slot->writable = writable;
    slot->done = slot->doomed = 0;
    slot->exports = 0;
    ring->exports++;
    return slot;
}

/* Give the message's space back (lease) or forget it (reservation). */
static void slot_finish(Slot *self)
{
    if (self->done)
        return;
    self->done = 1;
    if (self->ring->open) {
        if (self->writable)
            l5_channel_discard(&self->ring->channel);
        else
            l5_channel_release(&self->ring->channel);
    }
}

static void slot_dealloc(Slot *self)
{
    slot_finish(self);
    self->ring->exports--;
    ring_unmap(self->ring);
    Py_DECREF(self->ring);
    PyObject_Free(self);
}

static int slot_getbuffer(Slot *self, Py_buffer *view, int flags)
{
    if (self->done) {
        PyErr_SetString(PyExc_BufferError, "this message has been sent or given back");
        return -1;
    }
    if (PyBuffer_FillInfo(view, (PyObject *)self, self->data, self->size, !self->writable, flags) < 0)
        return -1;
    self->exports++;
    return 0;
}

static void slot_releasebuffer(Slot *self, Py_buffer *Py_UNUSED(view))
{
    self->exports--;
    if (!self->exports && self->doomed)
        slot_finish(self);
}

static PyObject *slot_close(Slot *self, PyObject *Py_UNUSED(ignored))
{
    if (self->exports && !self->done) {
        self->doomed = 1;
        PyErr_Format(PyExc_BufferError,
                     "%zd view(s) of this message still exist: release them (memoryview.release, or a with "
                     "block) before leaving; its space in the ring stays taken until they die",
                     self->exports);
        return NULL;
    }
    slot_finish(self);
    Py_RETURN_NONE;
}

static PyObject *slot_commit(Slot *self, PyObject *const *args, Py_ssize_t count)
{
    unsigned long kind, size;
    unsigned long long id;
    int rc;

    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "commit(kind, id, size)");
    kind = PyLong_AsUnsignedLong(args[0]);
    id = PyLong_AsUnsignedLongLong(args[1]);
    size = PyLong_AsUnsignedLong(args[2]);
    if (PyErr_Occurred() || !ring_ready(self->ring))
        return NULL;
    if (self->exports)
        return PyErr_Format(PyExc_BufferError,
                            "release the %zd view(s) of this message before sending it: a later write through "
                            "one would hit memory that the peer already owns",
                            self->exports);
    if (self->done || !self->writable || size > (unsigned long)self->size)
        return PyErr_Format(PyExc_ValueError, "nothing to send: already sent, or larger than reserved");
    rc = l5_channel_commit(&self->ring->channel, (int)kind, 0, id, (uint32_t)size);
    if (rc)
        return raise_code(self->ring, rc);
    self->done = 1;
    self->ring->frames_sent++;
    self->ring->bytes_sent += size;
    if (kind == L5_DATA)
        self->ring->data_sent += data_cost(size, self->ring->peer_window);
    Py_RETURN_NONE;
}

static PyMethodDef slot_methods[] = {
    {"close", (PyCFunction)slot_close, METH_NOARGS, "Give the space back; BufferError with live views."},
    {"commit", (PyCFunction)(void (*)(void))slot_commit, METH_FASTCALL, "commit(kind, id, size): send in place."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef slot_members[] = {
    {"size", T_PYSSIZET, offsetof(Slot, size), READONLY, "bytes"},
    {"done", T_BOOL, offsetof(Slot, done), READONLY, "sent or given back"},
    {NULL, 0, 0, 0, NULL},
};

static PyBufferProcs slot_buffer = {(getbufferproc)slot_getbuffer, (releasebufferproc)slot_releasebuffer};

static PyTypeObject SlotType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.Slot",
    .tp_doc = "A message in place: exports its memory through the buffer protocol.",
    .tp_basicsize = sizeof(Slot),
    .tp_dealloc = (destructor)slot_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = slot_methods,
    .tp_members = slot_members,
    .tp_as_buffer = &slot_buffer,
};

static PyObject *ring_reserve(Ring *self, PyObject *size)
{
    unsigned long bytes = PyLong_AsUnsignedLong(size);
    void *data;
    Slot *slot;
    int rc;

    if (PyErr_Occurred() || !ring_ready(self))
        return NULL;
    if (bytes > self->channel.tx_limit)
        Py_RETURN_NONE;
    rc = l5_channel_reserve(&self->channel, (uint32_t)bytes, &data);
    if (rc == -EAGAIN || rc == -EMSGSIZE || rc == -EBUSY)
        Py_RETURN_NONE;
    if (rc)
        return raise_code(self, rc);
    slot = slot_new(self, data, (Py_ssize_t)bytes, 1);
    if (!slot)
        l5_channel_discard(&self->channel);
    return (PyObject *)slot;
}

/* Lease the next frame if it is a whole data message. */
static PyObject *ring_lease(Ring *self, PyObject *Py_UNUSED(ignored))
{
    struct l5_frame frame;
    Slot *slot;
    int rc;

    if (!ring_ready(self))
        return NULL;
    rc = peek(self, &frame);
    if (rc < 0)
        return NULL;
    if (!rc || frame.kind != L5_DATA || frame.flags || self->partials ||
        self->channel.rx_hold != UINT64_MAX)
        Py_RETURN_NONE;
    slot = slot_new(self, (void *)(uintptr_t)frame.payload, frame.size, 0);
    if (!slot)
        return NULL;
    l5_channel_hold(&self->channel);
    self->frames_received++;
    self->bytes_received += frame.size;
    data_arrived(self, frame.size);
    data_taken(self, frame.size);
    return (PyObject *)slot;
}

/* ---- Ring: type ------------------------------------------------------------------------------ */

static int ring_init(Ring *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fd", "ring_bytes", "server", "bell", "send_limit", "receive_limit", "seal", NULL};
    unsigned long long ring_bytes, send_limit, receive_limit;
    int fd, server, bell, seal, rc;
    const char *why = NULL;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iKpiKKp", names, &fd, &ring_bytes, &server, &bell,
                                     &send_limit, &receive_limit, &seal))
        return -1;
    if (self->open || self->channel.control) {
        PyErr_SetString(PyExc_RuntimeError, "a ring is made once");
        return -1;
    }
    if (!send_limit || !receive_limit || send_limit > ring_bytes / 4 || receive_limit > ring_bytes / 4) {
        PyErr_SetString(PyExc_ValueError, "a segment must fit four times into the ring");
        return -1;
    }
    rc = seal ? l5_segment_verify(fd, ring_bytes, &why) : 0;
    if (!rc)
        rc = l5_channel_map(&self->channel, fd, ring_bytes, server ? L5_SERVER : L5_CLIENT);
    if (!rc && seal) {
        rc = l5_segment_lock(fd, ring_bytes, &why);
        if (rc)
            l5_channel_unmap(&self->channel);
    }
    if (rc) {
        if (why)
            PyErr_SetString(PyExc_PermissionError, why);
        else {
            errno = -rc;
            PyErr_SetFromErrno(PyExc_OSError);
        }
        return -1;
    }
    self->channel.bell = bell;
    self->channel.tx_limit = (uint32_t)send_limit;
    self->channel.rx_limit = (uint32_t)receive_limit;
    self->thread = PyThread_get_thread_ident();
    self->next_id = 1;
    self->in_flight_max = self->handling_max = 1;
    self->open = 1;
    return 0;
}

static void ring_dealloc(Ring *self)
{
    self->open = 0;
    Py_CLEAR(self->server);
    Py_CLEAR(self->session);
    Py_CLEAR(self->poller);
    ring_unmap(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *ring_get_server(Ring *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->server ? self->server : Py_None);
}

static int ring_set_server(Ring *self, PyObject *value, void *Py_UNUSED(closure))
{
    PyObject *next = value == Py_None ? NULL : value;

    Py_XINCREF(next);
    Py_XSETREF(self->server, next);
    return 0;
}

static PyObject *ring_address(Ring *self, void *Py_UNUSED(closure))
{
    return PyLong_FromVoidPtr(&self->channel);
}

static PyObject *ring_gone(Ring *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(self->channel.gone);
}

static PyObject *ring_bells(Ring *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(self->channel.bells_rung);
}

static PyGetSetDef ring_getset[] = {
    {"server", (getter)ring_get_server, (setter)ring_set_server, "who takes requests from this ring", NULL},
    {"address", (getter)ring_address, NULL, "address of the struct l5_channel, for native services", NULL},
    {"gone", (getter)ring_gone, NULL, "the doorbell found nobody", NULL},
    {"bells_rung", (getter)ring_bells, NULL, "how often the peer had to be woken", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef ring_members[] = {
    {"strict", T_INT, offsetof(Ring, strict), 0, "let the event loop run at every call"},
    {"shared", T_INT, offsetof(Ring, shared), 0, "0: one thread's; 1: under a lock; 2: the hot methods stand back"},
    {"next_id", T_ULONGLONG, offsetof(Ring, next_id), 0, "id of the next message"},
    {"in_flight", T_ULONGLONG, offsetof(Ring, in_flight), 0, "our requests without an answer"},
    {"in_flight_max", T_ULONGLONG, offsetof(Ring, in_flight_max), 0, "what the peer allows"},
    {"handling", T_ULONGLONG, offsetof(Ring, handling), 0, "the peer's requests without an answer"},
    {"handling_max", T_ULONGLONG, offsetof(Ring, handling_max), 0, "what we allow"},
    {"data_sent", T_ULONGLONG, offsetof(Ring, data_sent), 0, "cost of the data sent"},
    {"data_allowed", T_ULONGLONG, offsetof(Ring, data_allowed), 0, "cost that the peer allows"},
    {"data_arrived", T_ULONGLONG, offsetof(Ring, data_arrived), 0, "cost of the data that arrived"},
    {"data_told", T_ULONGLONG, offsetof(Ring, data_told), 0, "what the peer knows of data_taken"},
    {"data_taken_total", T_ULONGLONG, offsetof(Ring, data_taken), READONLY, "cost of the data taken"},
    {"peer_window", T_ULONGLONG, offsetof(Ring, peer_window), 0, "the peer's data window"},
    {"spin_ns", T_ULONGLONG, offsetof(Ring, spin_ns), 0, "spin budget of this connection's waits"},
    {"queued", T_UINT, offsetof(Ring, queued), 0, "tasks that wait for room"},
    {"partials", T_UINT, offsetof(Ring, partials), 0, "half-received messages"},
    {"credit_owed", T_INT, offsetof(Ring, credit_owed), 0, "a CREDIT found no room"},
    {"data_window", T_ULONGLONG, offsetof(Ring, data_window), 0, "cost of data that may wait here"},
    {"frames_sent", T_ULONGLONG, offsetof(Ring, frames_sent), READONLY, ""},
    {"frames_received", T_ULONGLONG, offsetof(Ring, frames_received), READONLY, ""},
    {"bytes_sent", T_ULONGLONG, offsetof(Ring, bytes_sent), READONLY, ""},
    {"bytes_received", T_ULONGLONG, offsetof(Ring, bytes_received), READONLY, ""},
    {"answered", T_ULONGLONG, offsetof(Ring, answered), READONLY, "requests answered on the hot path"},
    {"calls", T_ULONGLONG, offsetof(Ring, calls), READONLY, "calls into C"},
    {"session", T_OBJECT, offsetof(Ring, session), READONLY, "whose frames these are"},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef ring_methods[] = {
    {"request", (PyCFunction)ring_request, METH_O, request_doc},
    {"send", (PyCFunction)ring_send, METH_O, send_doc},
    {"receive", (PyCFunction)(void (*)(void))ring_receive, METH_FASTCALL, receive_doc},
    {"try_send", (PyCFunction)(void (*)(void))ring_try_send, METH_FASTCALL, "try_send(kind, flags, id, payload)"},
    {"try_receive", (PyCFunction)ring_try_receive, METH_NOARGS, "(kind, flags, id, payload) or None"},
    {"poll", (PyCFunction)ring_poll, METH_NOARGS, "Tell whether a message waits."},
    {"arm", (PyCFunction)ring_arm, METH_O, "arm(space): False when there is something to do already"},
    {"disarm", (PyCFunction)ring_disarm, METH_NOARGS, ""},
    {"data_taken", (PyCFunction)ring_data_taken, METH_O, "The application took a message of this size."},
    {"reserve", (PyCFunction)ring_reserve, METH_O, "reserve(size) -> Slot, or None when there is no room"},
    {"lease", (PyCFunction)ring_lease, METH_NOARGS, "Slot over the next data message, or None"},
    {"attach_bell", (PyCFunction)(void (*)(void))ring_attach_bell, METH_FASTCALL,
     "attach_bell(bell, send_limit, receive_limit)"},
    {"status", (PyCFunction)ring_status, METH_NOARGS, "(sequence, busy share in millionths) of the server"},
    {"close", (PyCFunction)ring_close, METH_NOARGS, "Unmap, or as soon as the last slot is gone."},
    {"forget", (PyCFunction)ring_forget, METH_NOARGS, "(In a forked child) close what is the parent's."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject RingType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.Ring",
    .tp_doc = "Ring(fd, ring_bytes, server, bell, send_limit, receive_limit, seal)",
    .tp_basicsize = sizeof(Ring),
    .tp_dealloc = (destructor)ring_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = ring_methods,
    .tp_members = ring_members,
    .tp_getset = ring_getset,
    .tp_init = (initproc)ring_init,
    .tp_new = PyType_GenericNew,
};

/* ---- Poller ---------------------------------------------------------------------------------- */

static int poller_ok(Poller *self)
{
    if (self->spinning || (!self->shared && self->thread != PyThread_get_thread_ident())) {
        PyErr_SetString(BusyResourceError, "polling (in its event loop's thread, to which a poller belongs)");
        return 0;
    }
    return 1;
}

static int poller_grow(Poller *self)
{
    uint32_t room = self->room ? self->room * 2 : 8;
    void *channels, *rings;

    if (self->count < self->room)
        return 1;
    if (room > RINGS_MAX) {
        PyErr_SetString(PyExc_MemoryError, "too many rings in one event loop");
        return 0;
    }
    channels = PyMem_Realloc(self->channels, room * sizeof(*self->channels));
    if (channels)
        self->channels = channels;
    rings = PyMem_Realloc(self->rings, room * sizeof(*self->rings));
    if (rings)
        self->rings = rings;
    if (!channels || !rings) {
        PyErr_NoMemory();
        return 0;
    }
    self->room = room;
    return 1;
}

static PyObject *poller_add(Poller *self, PyObject *const *args, Py_ssize_t count)
{
    Ring *ring;

    if (count != 2 || !Py_IS_TYPE(args[0], &RingType))
        return PyErr_Format(PyExc_TypeError, "add(ring, session)");
    ring = (Ring *)args[0];
    if (!poller_ok(self) || !ring_ready(ring) || !poller_grow(self))
        return NULL;
    if (ring->poller)
        return PyErr_Format(PyExc_ValueError, "this ring has a poller already");
    Py_INCREF(ring);
    Py_INCREF(self);
    ring->poller = self;
    ring->session = Py_NewRef(args[1]);
    self->channels[self->count] = &ring->channel;
    self->rings[self->count++] = ring;
    Py_RETURN_NONE;
}

static void poller_drop(Poller *self, Ring *ring)
{
    for (uint32_t i = 0; i < self->count; i++) {
        if (self->rings[i] != ring)
            continue;
        self->count--;
        self->rings[i] = self->rings[self->count];
        self->channels[i] = self->channels[self->count];
        ring->poller = NULL;
        Py_CLEAR(ring->session);
        Py_DECREF(ring);
        Py_DECREF(self);
        return;
    }
}

static PyObject *poller_remove(Poller *self, PyObject *ring)
{
    if (!Py_IS_TYPE(ring, &RingType))
        return PyErr_Format(PyExc_TypeError, "remove(ring)");
    if (!poller_ok(self))
        return NULL;
    poller_drop(self, (Ring *)ring);
    Py_RETURN_NONE;
}

/* Send the answer to a request; 1 sent, 0 not (the generic path must), -1 error. */
static int answer(Ring *ring, uint64_t id, PyObject *reply)
{
    Py_buffer view;
    int rc;

    if (!ring_ready(ring) || get_payload(ring, reply, &view) < 0)
        return -1;
    rc = ring->queued ? -EAGAIN : send_frame(ring, L5_RESPONSE, 0, id, &view);
    PyBuffer_Release(&view);
    if (rc == -EAGAIN || rc == -EMSGSIZE || rc == -EBUSY)
        return 0;
    if (rc) {
        raise_code(ring, rc);
        return -1;
    }
    if (ring->handling)
        ring->handling--;
    ring->answered++;
    return 1;
}

/* What `serve` gives Python when it cannot go on alone; steals `first` and `second`. */
static PyObject *hand_up(const char *what, Ring *ring, uint64_t id, PyObject *first, PyObject *second)
{
    return Py_BuildValue("(sOKNN)", what, ring, (unsigned long long)id, first,
                         second ? second : Py_NewRef(Py_None));
}

/* Take the exception that is set as an object. */
static PyObject *caught(void)
{
#if PY_VERSION_HEX >= 0x030c0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *traceback;

    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback)
        PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
#endif
}

/* Run the handler as far as it goes without suspending, and answer.  NULL without an exception:
 * answered.  The first step of a coroutine is taken here; one that suspends is handed up with what
 * it yielded, and Python goes on with it in the same task. */
static PyObject *handle(Ring *ring, uint64_t id, PyObject *payload, PyObject *handler)
{
    PyObject *result = PyObject_CallOneArg(handler, payload);
    PyObject *reply = result;
    int sent;

    if (result && !PyBytes_CheckExact(result) && PyCoro_CheckExact(result)) {
        switch (PyIter_Send(result, Py_None, &reply)) {
        case PYGEN_NEXT:
            return hand_up("suspended", ring, id, result, reply);
        case PYGEN_RETURN:
            Py_DECREF(result);
            break;
        case PYGEN_ERROR:
            Py_DECREF(result);
            reply = NULL;
        }
    }
    if (!reply) /* also what is no answer, such as KeyboardInterrupt: Python knows */
        return hand_up("raised", ring, id, caught(), NULL);
    if (!PyBytes_CheckExact(reply) && (reply == Py_None || !PyObject_CheckBuffer(reply)))
        return hand_up("returned", ring, id, reply, NULL);
    sent = answer(ring, id, reply);
    if (sent < 0)
        return Py_DECREF(reply), hand_up("unanswered", ring, id, caught(), NULL);
    if (!sent)
        return hand_up("returned", ring, id, reply, NULL);
    Py_DECREF(reply);
    return NULL;
}

/* Look at every ring once, the next one first, and handle at most one request of each: fair.
 * NULL without an exception: nothing (more) was found; *progress tells whether anything was. */
static PyObject *scan(Poller *self, PyObject *server, PyObject *handler, int *progress)
{
    struct l5_frame frame;
    uint32_t count = self->count;

    for (uint32_t i = 0; i < count && i < self->count; i++) {
        uint32_t at = self->cursor + 1 < self->count ? self->cursor + 1 : 0;
        Ring *ring = self->rings[at];
        PyObject *payload, *up;
        int rc;

        self->cursor = at;
        if (!l5_channel_ready(&ring->channel))
            continue;
        *progress = 1;
        rc = l5_channel_peek(&ring->channel, &frame);
        if (rc != 1 || ring->server != server || frame.kind != L5_REQUEST || frame.flags ||
            ring->partials || ring->handling >= ring->handling_max)
            return Py_NewRef((PyObject *)ring); /* the generic path sorts it out */
        payload = take(ring, &frame);
        if (!payload)
            return NULL;
        ring->handling++;
        self->streak++;
        if (handler == Py_None)
            return hand_up("request", ring, frame.id, payload, NULL);
        Py_INCREF(ring); /* the handler may close it */
        up = handle(ring, frame.id, payload, handler);
        note_handled(self);
        Py_DECREF(ring);
        Py_DECREF(payload);
        if (up || PyErr_Occurred())
            return up;
    }
    return NULL;
}

PyDoc_STRVAR(serve_doc,
"serve(server, handler) -> tuple | Ring | bool | None\n\n"
"Handle the requests of `server`'s rings, spinning for them, until something is not for C:\n"
"a tuple (what, ring, id, first, second), where what is 'request' (no handler: payload),\n"
"'suspended' (coroutine, yielded), 'raised' or 'unanswered' (exception), 'returned' (a reply that\n"
"was not sent); a ring that has a frame for the generic path; True: the event loop is due; None:\n"
"nothing came.");

static PyObject *poller_serve(Poller *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "serve(server, handler)");
    if (!poller_ok(self))
        return NULL;
    for (;;) {
        int progress = 0;
        PyObject *up;

        if (due(self))
            Py_RETURN_TRUE;
        up = scan(self, args[0], args[1], &progress);
        if (up || PyErr_Occurred())
            return up;
        if (!progress && (!self->count || !self->budget_ns || !spin(self, self->budget_ns)))
            Py_RETURN_NONE;
    }
}

/* The rings that have something, at most `limit`; spins first when asked and none has. */
static PyObject *poller_ready(Poller *self, PyObject *may_spin)
{
    PyObject *list;

    if (!poller_ok(self))
        return NULL;
    list = PyList_New(0);
    if (!list)
        return NULL;
    if (may_spin == Py_True && self->count && self->budget_ns && !due(self))
        spin(self, self->budget_ns);
    for (uint32_t i = 0; i < self->count; i++)
        if (l5_channel_ready(self->channels[i]) && PyList_Append(list, self->rings[i]->session) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    return list;
}

static PyObject *poller_breathe(Poller *self, PyObject *Py_UNUSED(ignored))
{
    self->streak = 0;
    self->spun_ns = 0;
    self->turn_ns = 0;
    self->overdue = 0;
    Py_RETURN_NONE;
}

static PyObject *poller_due(Poller *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(due(self));
}

static int poller_init(Poller *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"spin_us", NULL};
    unsigned int spin_us;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "I", names, &spin_us))
        return -1;
    self->budget_ns = (uint64_t)spin_us * 1000u;
    self->thread = PyThread_get_thread_ident();
    return 0;
}

static void poller_dealloc(Poller *self)
{
    PyMem_Free(self->channels);
    PyMem_Free(self->rings);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyGetSetDef poller_getset[] = {
    {"due", (getter)poller_due, NULL, "the event loop must run before the next message", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef poller_members[] = {
    {"count", T_UINT, offsetof(Poller, count), READONLY, "rings"},
    {"budget_ns", T_ULONGLONG, offsetof(Poller, budget_ns), 0, "spin budget"},
    {"yield_only", T_INT, offsetof(Poller, yield_only), 0, "never spin, only yield"},
    {"shared", T_INT, offsetof(Poller, shared), 0, "any thread may use it that holds the connection's lock"},
    {"spun_total_ns", T_ULONGLONG, offsetof(Poller, spun_total_ns), READONLY, "time spent spinning"},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef poller_methods[] = {
    {"add", (PyCFunction)(void (*)(void))poller_add, METH_FASTCALL, "add(ring, session)"},
    {"remove", (PyCFunction)poller_remove, METH_O, "remove(ring)"},
    {"serve", (PyCFunction)(void (*)(void))poller_serve, METH_FASTCALL, serve_doc},
    {"ready", (PyCFunction)poller_ready, METH_O, "ready(spin) -> sessions whose rings have something"},
    {"breathe", (PyCFunction)poller_breathe, METH_NOARGS, "The event loop has run."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject PollerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.Poller",
    .tp_doc = "Poller(spin_us): the rings of one event loop",
    .tp_basicsize = sizeof(Poller),
    .tp_dealloc = (destructor)poller_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = poller_methods,
    .tp_members = poller_members,
    .tp_getset = poller_getset,
    .tp_init = (initproc)poller_init,
    .tp_new = PyType_GenericNew,
};

/* ---- module ---------------------------------------------------------------------------------- */

static PyObject *fast_set_errors(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *remote, *closed, *broken, *busy;

    if (!PyArg_ParseTuple(args, "OOOO", &remote, &closed, &broken, &busy))
        return NULL;
    Py_XSETREF(RemoteProtocolError, Py_NewRef(remote));
    Py_XSETREF(ClosedResourceError, Py_NewRef(closed));
    Py_XSETREF(BrokenResourceError, Py_NewRef(broken));
    Py_XSETREF(BusyResourceError, Py_NewRef(busy));
    Py_RETURN_NONE;
}

static PyMethodDef fast_methods[] = {
    {"set_errors", fast_set_errors, METH_VARARGS, "set_errors(remote_protocol, closed, broken, busy)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef fast_module = {
    PyModuleDef_HEAD_INIT, .m_name = "l5._fast", .m_doc = "The hot calls of l5.", .m_size = -1,
    .m_methods = fast_methods};

static int install(void)
{
    PyObject *module;

    if (PyType_Ready(&RingType) < 0 || PyType_Ready(&PollerType) < 0 || PyType_Ready(&SlotType) < 0)
        return -1;
    module = PyModule_Create(&fast_module);
    if (!module)
        return -1;
    if (PyModule_AddObjectRef(module, "Ring", (PyObject *)&RingType) < 0 ||
        PyModule_AddObjectRef(module, "Poller", (PyObject *)&PollerType) < 0 ||
        PyModule_AddObjectRef(module, "Slot", (PyObject *)&SlotType) < 0 ||
        PyDict_SetItemString(PyImport_GetModuleDict(), "l5._fast", module) < 0) {
        Py_DECREF(module);
        return -1;
    }
    Py_DECREF(module);
    return 0;
}

int l5_install_fast(void);

int l5_install_fast(void)
{
    PyGILState_STATE state = PyGILState_Ensure();
    int rc = install();

    if (rc < 0)
        PyErr_WriteUnraisable(NULL);
    PyGILState_Release(state);
    return rc;
}
