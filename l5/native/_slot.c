/* The Slot: a message in place, to be read (lease) or to be written (reserve).  See _fast.h. */
#include "_fast.h"

static Slot *slot_new(Ring *ring, void *data, Py_ssize_t size, int writable)
{
    Slot *slot = PyObject_GC_New(Slot, &l5_SlotType);

    if (!slot)
        return NULL;
    Py_INCREF(ring);
    slot->ring = ring;
    slot->data = data;
    slot->size = size;
    slot->writable = writable;
    slot->done = slot->doomed = 0;
    slot->exports = 0;
    slot->freed = NULL;
    ring->exports++;
    PyObject_GC_Track(slot);
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

/* Say that a doomed one has been given back; this may be in the middle of somebody else's exception. */
static void tell_freed(Slot *self)
{
    PyObject *freed = self->freed, *result;
#if PY_VERSION_HEX >= 0x030c0000
    PyObject *raised = PyErr_GetRaisedException();
#else
    PyObject *type, *value, *traceback;

    PyErr_Fetch(&type, &value, &traceback);
#endif
    self->freed = NULL;
    result = freed ? PyObject_CallNoArgs(freed) : Py_NewRef(Py_None);
    if (!result)
        PyErr_WriteUnraisable(freed);
    Py_XDECREF(result);
    Py_XDECREF(freed);
#if PY_VERSION_HEX >= 0x030c0000
    PyErr_SetRaisedException(raised);
#else
    PyErr_Restore(type, value, traceback);
#endif
}

static int slot_traverse(Slot *self, visitproc visit, void *arg)
{
    Py_VISIT(self->ring);
    Py_VISIT(self->freed);
    return 0;
}

/* The ring stays, for views may outlive this call: no cycle goes through it that it does not break
 * itself, for it refers to no slot but by way of what `ring_clear` lets go. */
static int slot_clear(Slot *self)
{
    Py_CLEAR(self->freed);
    return 0;
}

static void slot_dealloc(Slot *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->freed);
    slot_finish(self);
    self->ring->exports--;
    l5_ring_unmap(self->ring);
    Py_DECREF(self->ring);
    PyObject_GC_Del(self);
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
    if (!self->exports && self->doomed && !self->done) {
        slot_finish(self);
        tell_freed(self);
    }
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
    if (PyErr_Occurred() || !l5_ring_ready(self->ring))
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
        return l5_ring_raise(self->ring, rc);
    self->done = 1;
    l5_poller_stir(self->ring); /* an answer may come */
    self->ring->frames_sent++;
    self->ring->bytes_sent += size;
    if (kind == L5_DATA)
        self->ring->data_sent += l5_data_cost(size, self->ring->peer_window);
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
    {"views", T_PYSSIZET, offsetof(Slot, exports), READONLY, "views that exist now"},
    {"freed", T_OBJECT, offsetof(Slot, freed), 0, "called, in any thread, when views that were left have died"},
    {NULL, 0, 0, 0, NULL},
};

static PyBufferProcs slot_buffer = {(getbufferproc)slot_getbuffer, (releasebufferproc)slot_releasebuffer};

PyTypeObject l5_SlotType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.Slot",
    .tp_doc = "A message in place: exports its memory through the buffer protocol.",
    .tp_basicsize = sizeof(Slot),
    .tp_dealloc = (destructor)slot_dealloc,
    .tp_traverse = (traverseproc)slot_traverse,
    .tp_clear = (inquiry)slot_clear,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_methods = slot_methods,
    .tp_members = slot_members,
    .tp_as_buffer = &slot_buffer,
};

/* ---- making one, from a ring ------------------------------------------------------------------- */

PyObject *l5_ring_reserve(Ring *self, PyObject *size)
{
    unsigned long bytes = PyLong_AsUnsignedLong(size);
    void *data;
    Slot *slot;
    int rc;

    if (PyErr_Occurred() || !l5_ring_ready(self))
        return NULL;
    if (bytes > self->channel.tx_limit)
        Py_RETURN_NONE;
    rc = l5_channel_reserve(&self->channel, (uint32_t)bytes, &data);
    if (rc == -EAGAIN || rc == -EMSGSIZE || rc == -EBUSY)
        Py_RETURN_NONE;
    if (rc)
        return l5_ring_raise(self, rc);
    slot = slot_new(self, data, (Py_ssize_t)bytes, 1);
    if (!slot)
        l5_channel_discard(&self->channel);
    return (PyObject *)slot;
}

/* Lease the next frame if it is a whole data message. */
PyObject *l5_ring_lease(Ring *self, PyObject *Py_UNUSED(ignored))
{
    struct l5_frame frame;
    Slot *slot;
    int rc;

    if (!l5_ring_ready(self))
        return NULL;
    rc = l5_ring_peek(self, &frame);
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
    l5_ring_data_arrived(self, frame.size);
    l5_ring_data_taken(self, frame.size);
    return (PyObject *)slot;
}
