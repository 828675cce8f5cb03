/* The Beat: what the server of a ring said last about how busy it is, as attributes that cost a load.
 *
 * The server overwrites one cache line of the control page (status.h) and rings nobody.
 * Here it is read when somebody asks, so a policy that asks before each request pays a cache hit,
 * and a miss when there is something new.  The three words are no unit: one may be newer than the
 * sequence number, never older.  The peer may write anything: a share is cut to 1. */
#include "_fast.h"

#include "status.h"

typedef struct {
    PyObject_HEAD
    Ring *ring;          /* strong */
    double interval_s;   /* as agreed; 0: none are sent */
    struct l5_status last; /* as last read: it outlives the mapping */
} Beat;

static void beat_read(Beat *self)
{
    const struct l5_control *control = self->ring ? self->ring->channel.control : NULL;

    if (!control || !self->ring->open)
        return;
    l5_status_read(control, &self->last);
}

static PyObject *beat_sequence(Beat *self, void *Py_UNUSED(closure))
{
    beat_read(self);
    return PyLong_FromUnsignedLongLong(self->last.sequence);
}

static PyObject *beat_busy_share(Beat *self, void *Py_UNUSED(closure))
{
    beat_read(self);
    return PyFloat_FromDouble(self->last.busy_millionths < 1000000 ? (double)self->last.busy_millionths / 1e6 : 1.0);
}

static PyObject *beat_heard_at(Beat *self, void *Py_UNUSED(closure))
{
    beat_read(self);
    return PyFloat_FromDouble((double)self->last.written_ns / 1e9);
}

static int beat_traverse(Beat *self, visitproc visit, void *arg)
{
    Py_VISIT(self->ring);
    return 0;
}

static int beat_clear(Beat *self)
{
    Py_CLEAR(self->ring);
    return 0;
}

static void beat_dealloc(Beat *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->ring);
    PyObject_GC_Del(self);
}

static PyGetSetDef beat_getset[] = {
    {"sequence", (getter)beat_sequence, NULL, "counts heartbeats; 0: none yet", NULL},
    {"busy_share", (getter)beat_busy_share, NULL, "useful time over wall time, 0 to 1", NULL},
    {"heard_at", (getter)beat_heard_at, NULL, "monotonic clock, in seconds; 0: never", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef beat_members[] = {
    {"interval_s", T_DOUBLE, offsetof(Beat, interval_s), READONLY, "as agreed; 0: none are sent"},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject l5_BeatType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.Beat",
    .tp_basicsize = sizeof(Beat),
    .tp_dealloc = (destructor)beat_dealloc,
    .tp_traverse = (traverseproc)beat_traverse,
    .tp_clear = (inquiry)beat_clear,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_members = beat_members,
    .tp_getset = beat_getset,
};

/* heartbeat(interval_s) -> Beat */
PyObject *l5_ring_heartbeat(Ring *self, PyObject *interval)
{
    double interval_s = PyFloat_AsDouble(interval);
    Beat *beat;

    if (interval_s == -1.0 && PyErr_Occurred())
        return NULL;
    beat = PyObject_GC_New(Beat, &l5_BeatType);
    if (!beat)
        return NULL;
    beat->ring = (Ring *)Py_NewRef((PyObject *)self);
    beat->interval_s = interval_s;
    beat->last.sequence = beat->last.busy_millionths = beat->last.written_ns = 0;
    PyObject_GC_Track((PyObject *)beat);
    return (PyObject *)beat;
}

/* (Server) tell(sequence, busy_millionths): what clients find from now on. */
PyObject *l5_ring_tell(Ring *self, PyObject *const *args, Py_ssize_t count)
{
    unsigned long long sequence, busy;

    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "tell(sequence, busy_millionths)");
    sequence = PyLong_AsUnsignedLongLong(args[0]);
    busy = PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred() || !l5_ring_ready(self))
        return NULL;
    l5_status_write(self->channel.control, sequence, busy, l5_now_ns());
    Py_RETURN_NONE;
}
