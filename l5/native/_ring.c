/* The Ring: one connection over shared memory, as Python calls it.  See _fast.h. */
#include "_fast.h"

/* ---- guards ------------------------------------------------------------------------------- */

PyObject *l5_ring_raise(Ring *self, int rc)
{
    if (rc == -EPROTO)
        return PyErr_Format(l5_RemoteProtocolError, "the peer broke the shared-memory protocol: %s",
                            self->channel.fault ? self->channel.fault : "unknown fault");
    if (rc == -EPIPE) {
        PyErr_SetNone(l5_BrokenResourceError);
        return NULL;
    }
    errno = -rc;
    return PyErr_SetFromErrno(PyExc_OSError);
}

/* Asking for the bytes, and giving them back, may run Python code (PEP 688), which may close the
 * ring: so after the first it is looked at again, and after the second nothing is assumed. */
int l5_ring_get_payload(Ring *self, PyObject *object, Py_buffer *view)
{
    if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) < 0)
        return -1;
    if (self->open)
        return 0;
    PyBuffer_Release(view);
    PyErr_SetNone(l5_ClosedResourceError);
    return -1;
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
    if (!l5_ring_ready(self))
        return NULL;
    kind = PyLong_AsLong(args[0]);
    flags = PyLong_AsLong(args[1]);
    id = PyLong_AsUnsignedLongLong(args[2]);
    if (PyErr_Occurred() || l5_ring_get_payload(self, args[3], &view) < 0)
        return NULL;
    rc = l5_ring_send_frame(self, (int)kind, (int)flags, id, &view);
    PyBuffer_Release(&view);
    if (rc == -EAGAIN || rc == -EBUSY)
        Py_RETURN_FALSE;
    if (rc)
        return l5_ring_raise(self, rc);
    Py_RETURN_TRUE;
}

static PyObject *ring_try_receive(Ring *self, PyObject *Py_UNUSED(ignored))
{
    struct l5_frame frame;
    PyObject *payload;
    int rc;

    if (!l5_ring_ready(self))
        return NULL;
    rc = l5_ring_peek(self, &frame);
    if (rc < 0)
        return NULL;
    if (!rc)
        Py_RETURN_NONE;
    payload = l5_ring_take(self, &frame);
    if (!payload)
        return NULL;
    return Py_BuildValue("(iiKN)", (int)frame.kind, (int)frame.flags, (unsigned long long)frame.id, payload);
}

static PyObject *ring_poll(Ring *self, PyObject *Py_UNUSED(ignored))
{
    if (!l5_ring_ready(self))
        return NULL;
    return PyBool_FromLong(l5_channel_ready(&self->channel));
}

static PyObject *ring_arm(Ring *self, PyObject *space)
{
    int truth = PyObject_IsTrue(space);
    int rc;

    if (truth < 0 || !l5_ring_ready(self))
        return NULL;
    rc = l5_channel_arm(&self->channel, L5_ARM_DATA | (truth ? L5_ARM_SPACE : 0));
    if (rc == -EPROTO)
        return l5_ring_raise(self, rc);
    if (rc)
        l5_poller_stir(self); /* it has something: scan it, should it rest */
    return PyBool_FromLong(rc == 0);
}

static PyObject *ring_disarm(Ring *self, PyObject *Py_UNUSED(ignored))
{
    if (!l5_ring_ready(self))
        return NULL;
    l5_channel_disarm(&self->channel);
    l5_poller_stir(self);
    Py_RETURN_NONE;
}

static PyObject *ring_data_taken(Ring *self, PyObject *size)
{
    unsigned long long value = PyLong_AsUnsignedLongLong(size);

    if (PyErr_Occurred() || !l5_ring_ready(self))
        return NULL;
    l5_ring_data_taken(self, value);
    Py_RETURN_NONE;
}

void l5_ring_unmap(Ring *self)
{
    if (!self->open && !self->exports && self->channel.control)
        l5_channel_unmap(&self->channel);
}

static PyObject *ring_close(Ring *self, PyObject *Py_UNUSED(ignored))
{
    if (self->open && self->poller && self->poller->spinning) {
        PyErr_SetString(l5_BusyResourceError, "closing: its event loop is polling it");
        return NULL;
    }
    self->open = 0;
    if (self->poller)
        l5_poller_drop(self->poller, self);
    Py_CLEAR(self->server);
    Py_CLEAR(self->last);
    l5_ring_unmap(self);
    Py_RETURN_NONE;
}

/* In a forked child the mapping does not exist (MADV_DONTFORK), and its addresses may soon be
 * somebody else's: they are not unmapped.  Under live slots goes memory that means nothing. */
static PyObject *ring_forget(Ring *self, PyObject *Py_UNUSED(ignored))
{
    self->open = 0;
    if (self->poller)
        l5_poller_drop(self->poller, self);
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
    if (!l5_ring_ready(self))
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
    self->file = l5_file_number(fd);
    self->channel.bell = bell;
    self->channel.tx_limit = (uint32_t)send_limit;
    self->channel.rx_limit = (uint32_t)receive_limit;
    self->thread = PyThread_get_thread_ident();
    self->next_id = 1;
    self->in_flight_max = self->handling_max = 1;
    self->open = 1;
    return 0;
}

static int ring_traverse(Ring *self, visitproc visit, void *arg)
{
    Py_VISIT(self->server);
    Py_VISIT(self->session);
    Py_VISIT(self->last);
    Py_VISIT(self->poller);
    return 0;
}

/* Let go of the others; the mapping stays until the last slot is gone, or this is deallocated.  The
 * poller does not spin now: who spins refers to it from outside. */
static int ring_clear(Ring *self)
{
    if (self->poller)
        l5_poller_drop(self->poller, self);
    Py_CLEAR(self->server);
    Py_CLEAR(self->session);
    Py_CLEAR(self->last);
    return 0;
}

static void ring_dealloc(Ring *self)
{
    PyObject_GC_UnTrack(self);
    self->open = 0;
    Py_CLEAR(self->server);
    Py_CLEAR(self->session);
    Py_CLEAR(self->last);
    Py_CLEAR(self->poller);
    PyMem_Free(self->latencies);
    l5_ring_unmap(self);
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

static PyGetSetDef ring_getset[] = {
    {"server", (getter)ring_get_server, (setter)ring_set_server, "who takes requests from this ring", NULL},
    {"server_here", (getter)l5_ring_get_server_here, NULL, "who serves the other end, if that is in this poller", NULL},
    {"address", (getter)ring_address, NULL, "address of the struct l5_channel, for native services", NULL},
    {"gone", (getter)ring_gone, NULL, "the doorbell found nobody", NULL},
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
    {"requests", T_ULONGLONG, offsetof(Ring, requests), 0, "requests sent"},
    {"begun_ns", T_ULONGLONG, offsetof(Ring, begun_ns), READONLY, "(watched) when the last request began"},
    {"answered", T_ULONGLONG, offsetof(Ring, answered), READONLY, "requests answered on the hot path"},
    {"calls", T_ULONGLONG, offsetof(Ring, calls), READONLY, "calls into C"},
    {"taken", T_ULONGLONG, offsetof(Ring, taken), READONLY, "id of the answer that await_answer took last"},
    {"slept_ns", T_ULONGLONG, offsetof(Ring, slept_ns), READONLY, "how long the last await_... slept"},
    {"bells_rung", T_ULONGLONG, offsetof(Ring, channel.bells_rung), READONLY, "how often the peer had to be woken"},
    {"session", T_OBJECT, offsetof(Ring, session), READONLY, "whose frames these are"},
    {"last", T_OBJECT, offsetof(Ring, last), READONLY, "(shared) what receive took last, receive_into the size; or None"},
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(request_doc,
"request(payload) -> bytes | tuple[bytes] | int | None\n\n"
"Send a request and spin for its answer: the answer; in a tuple when the event loop is due; the\n"
"request's id when it was sent but not answered yet; None when nothing was sent.");

PyDoc_STRVAR(send_doc,
"send(payload) -> bool | None\n\n"
"Send a data message: True; None when sent and the event loop is due; False when it was not sent\n"
"(no room, over the window, longer than a segment).");

PyDoc_STRVAR(receive_doc,
"receive(spin) -> bytes | tuple[bytes] | None\n\n"
"Take the next frame if it is a whole data message, spinning for it if asked; in a tuple when the\n"
"event loop is due.");

PyDoc_STRVAR(receive_into_doc,
"receive_into(buffer, spin) -> int | tuple[int] | None\n\n"
"As receive, into a writable buffer, if the message fits: its size.");

PyDoc_STRVAR(request_many_doc,
"request_many(payloads, answers, start, window, sent, first_id, missing) -> (sent, first_id, missing, goes_on, thrown)\n\n"
"Send payloads[start:sent] (ids from first_id on); put answers that came into the list: where None is left before\n"
"`sent`, in `missing` places, a request is in flight.  goes_on: the event loop is due, and the next call is given what\n"
"this said, unless others took answers; first sent is start, first_id and missing 0.  thrown: to be raised, or None.");

static PyMethodDef ring_methods[] = {
    {"request", (PyCFunction)l5_ring_request, METH_O, request_doc},
    {"send", (PyCFunction)l5_ring_send, METH_O, send_doc},
    {"receive", (PyCFunction)(void (*)(void))l5_ring_receive, METH_FASTCALL, receive_doc},
    {"receive_into", (PyCFunction)(void (*)(void))l5_ring_receive_into, METH_FASTCALL, receive_into_doc},
    {"try_send", (PyCFunction)(void (*)(void))ring_try_send, METH_FASTCALL, "try_send(kind, flags, id, payload)"},
    {"try_receive", (PyCFunction)ring_try_receive, METH_NOARGS, "(kind, flags, id, payload) or None"},
    {"poll", (PyCFunction)ring_poll, METH_NOARGS, "Tell whether a message waits."},
    {"arm", (PyCFunction)ring_arm, METH_O, "arm(space): False when there is something to do already"},
    {"hush", (PyCFunction)l5_ring_hush, METH_NOARGS, "True: the bell had rung, and is silent again; None: not; False: ended"},
    {"collect", (PyCFunction)l5_ring_collect, METH_O, "(After sleeping) silence the bell, take the answer to this id if it is next"},
    {"rest", (PyCFunction)l5_ring_rest, METH_NOARGS, "Arm, if nothing but an answer is waited for; tell whether to sleep now"},
    {"rested", (PyCFunction)l5_ring_rested, METH_O, "(After `rest` and sleeping) count it, and collect the answer to this id"},
    {"answers", (PyCFunction)l5_ring_answers, METH_O, "answers(limit) -> [(id, bytes)]: the whole answers that come first"},
    {"await_answer", (PyCFunction)(void (*)(void))l5_ring_await_answer, METH_FASTCALL, l5_await_answer_doc},
    {"await_data", (PyCFunction)(void (*)(void))l5_ring_await_data, METH_FASTCALL, l5_await_data_doc},
    {"disarm", (PyCFunction)ring_disarm, METH_NOARGS, ""},
    {"data_taken", (PyCFunction)ring_data_taken, METH_O, "The application took a message of this size."},
    {"request_many", (PyCFunction)(void (*)(void))l5_ring_request_many, METH_FASTCALL, request_many_doc},
    {"longest", (PyCFunction)l5_ring_longest, METH_O, "longest(payloads) -> size; None: some are no bytes"},
    {"receive_many", (PyCFunction)l5_ring_receive_many, METH_O, "receive_many(limit) -> whole data messages that are there"},
    {"reserve", (PyCFunction)l5_ring_reserve, METH_O, "reserve(size) -> Slot, or None when there is no room"},
    {"lease", (PyCFunction)l5_ring_lease, METH_NOARGS, "Slot over the next data message, or None"},
    {"attach_bell", (PyCFunction)(void (*)(void))ring_attach_bell, METH_FASTCALL,
     "attach_bell(bell, send_limit, receive_limit)"},
    {"heartbeat", (PyCFunction)l5_ring_heartbeat, METH_O, "heartbeat(interval_s) -> what the server says, as attributes"},
    {"tell", (PyCFunction)(void (*)(void))l5_ring_tell, METH_FASTCALL, "tell(sequence, busy_millionths)"},
    {"watch", (PyCFunction)l5_ring_watch, METH_O, "watch(on): note latencies from now on, or no more"},
    {"latencies", (PyCFunction)l5_ring_latencies, METH_NOARGS, "u64 per bucket of _latency.h; empty: not watched"},
    {"fill", (PyCFunction)l5_ring_fill, METH_NOARGS, "(ring size, what the peer has not read, what we have not)"},
    {"close", (PyCFunction)ring_close, METH_NOARGS, "Unmap, or as soon as the last slot is gone."},
    {"forget", (PyCFunction)ring_forget, METH_NOARGS, "(In a forked child) close what is the parent's."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject l5_RingType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.Ring",
    .tp_doc = "Ring(fd, ring_bytes, server, bell, send_limit, receive_limit, seal)",
    .tp_basicsize = sizeof(Ring),
    .tp_dealloc = (destructor)ring_dealloc,
    .tp_traverse = (traverseproc)ring_traverse,
    .tp_clear = (inquiry)ring_clear,
    .tp_free = PyObject_GC_Del,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_methods = ring_methods,
    .tp_members = ring_members,
    .tp_getset = ring_getset,
    .tp_init = (initproc)ring_init,
    .tp_new = PyType_GenericNew,
};
