/* The Lane as Python sees it.  See _lane.h. */
#include "_lane.h"

static int lane_init(Lane *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fd", "send_limit", "receive_limit", NULL};
    unsigned int send_limit, receive_limit;
    int fd;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iII", names, &fd, &send_limit, &receive_limit))
        return -1;
    if (self->thread) {
        PyErr_SetString(PyExc_RuntimeError, "a lane is made once");
        return -1;
    }
    if (fd < 0) {
        PyErr_SetString(PyExc_ValueError, "a lane needs an open descriptor");
        return -1;
    }
    self->fd = fd;
    self->send_limit = send_limit;
    self->receive_limit = receive_limit;
    self->take = (size_t)receive_limit + L5_HEADER_BYTES;
    if (self->take > L5_STREAM_TAKE)
        self->take = L5_STREAM_TAKE;
    self->thread = PyThread_get_thread_ident();
    self->next_id = 1;
    self->in_flight_max = self->handling_max = 1;
    return 0;
}

static PyObject *lane_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Lane *self = (Lane *)PyType_GenericNew(type, args, kwargs);

    if (self)
        self->fd = -1;
    return (PyObject *)self;
}

/* Let go of the descriptor, which is its channel's; what was read and not handled is forgotten. */
static PyObject *lane_close(Lane *self, PyObject *Py_UNUSED(ignored))
{
    if (self->poller)
        l5_poller_drop_lane(self->poller, self);
    self->fd = -1;
    Py_CLEAR(self->server);
    Py_CLEAR(self->rest);
    Py_RETURN_NONE;
}

/* For the channel, which reads now: what was read before, and comes before all that it reads. */
static PyObject *lane_take_rest(Lane *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *rest = self->rest, *taken;

    if (!rest)
        Py_RETURN_NONE;
    self->rest = NULL;
    taken = PyBytes_FromStringAndSize(PyBytes_AS_STRING(rest) + self->rest_at,
                                      PyBytes_GET_SIZE(rest) - (Py_ssize_t)self->rest_at);
    Py_DECREF(rest);
    return taken;
}

/* Put a frame in front of the next one; True when the one before has gone. */
static PyObject *lane_carry(Lane *self, PyObject *frame)
{
    uint32_t waits = self->carried_bytes;
    char *data;
    Py_ssize_t bytes;

    if (PyBytes_AsStringAndSize(frame, &data, &bytes) < 0)
        return NULL;
    if (bytes > L5_CARRIED_BYTES)
        return PyErr_Format(PyExc_ValueError, "a frame of %zd bytes is to be carried: at most %d", bytes,
                            L5_CARRIED_BYTES);
    memcpy(self->carried, data, (size_t)bytes);
    self->carried_bytes = (uint32_t)bytes;
    return PyBool_FromLong(!waits);
}

/* For the channel, which sends now: what is to go in front. */
static PyObject *lane_take_carried(Lane *self, PyObject *Py_UNUSED(ignored))
{
    uint32_t bytes = self->carried_bytes;

    self->carried_bytes = 0;
    return PyBytes_FromStringAndSize((const char *)self->carried, (Py_ssize_t)bytes);
}

static PyObject *lane_data_taken(Lane *self, PyObject *size)
{
    unsigned long long value = PyLong_AsUnsignedLongLong(size);

    if (PyErr_Occurred())
        return NULL;
    self->data_taken += l5_data_cost(value, self->data_window);
    if (self->data_taken - self->data_told >= self->data_window / 2)
        self->credit_owed = 1;
    Py_RETURN_NONE;
}

static int lane_traverse(Lane *self, visitproc visit, void *arg)
{
    Py_VISIT(self->poller);
    Py_VISIT(self->session);
    Py_VISIT(self->server);
    return 0;
}

static int lane_clear(Lane *self)
{
    if (self->poller)
        l5_poller_drop_lane(self->poller, self);
    Py_CLEAR(self->session);
    Py_CLEAR(self->server);
    return 0;
}

static void lane_dealloc(Lane *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->session);
    Py_CLEAR(self->server);
    Py_CLEAR(self->rest);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *lane_get_server(Lane *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->server ? self->server : Py_None);
}

static int lane_set_server(Lane *self, PyObject *value, void *Py_UNUSED(closure))
{
    PyObject *next = !value || value == Py_None ? NULL : value;

    Py_XINCREF(next);
    Py_XSETREF(self->server, next);
    return 0;
}

static PyObject *lane_has_rest(Lane *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(self->rest != NULL);
}

static PyGetSetDef lane_getset[] = {
    {"server", (getter)lane_get_server, (setter)lane_set_server, "who takes requests from here", NULL},
    {"has_rest", (getter)lane_has_rest, NULL, "something was read that has not been handled", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef lane_members[] = {
    {"held", T_INT, offsetof(Lane, held), 0, "the channel holds bytes that it has read"},
    {"unsent", T_INT, offsetof(Lane, unsent), 0, "the channel holds bytes that are to be sent"},
    {"aside", T_INT, offsetof(Lane, aside), 0, "how many want every frame to pass the channel"},
    {"receive_limit", T_UINT, offsetof(Lane, receive_limit), 0, "longest message that is taken here"},
    {"next_id", T_ULONGLONG, offsetof(Lane, next_id), 0, "id of the next message"},
    {"in_flight", T_ULONGLONG, offsetof(Lane, in_flight), 0, "our requests without an answer"},
    {"in_flight_max", T_ULONGLONG, offsetof(Lane, in_flight_max), 0, "what the peer allows"},
    {"handling", T_ULONGLONG, offsetof(Lane, handling), 0, "the peer's requests without an answer"},
    {"handling_max", T_ULONGLONG, offsetof(Lane, handling_max), 0, "what we allow"},
    {"data_sent", T_ULONGLONG, offsetof(Lane, data_sent), 0, "cost of the data sent"},
    {"data_allowed", T_ULONGLONG, offsetof(Lane, data_allowed), 0, "cost that the peer allows"},
    {"data_arrived", T_ULONGLONG, offsetof(Lane, data_arrived), 0, "cost of the data that arrived"},
    {"data_told", T_ULONGLONG, offsetof(Lane, data_told), 0, "what the peer knows of data_taken"},
    {"data_taken_total", T_ULONGLONG, offsetof(Lane, data_taken), READONLY, "cost of the data taken"},
    {"data_window", T_ULONGLONG, offsetof(Lane, data_window), 0, "cost of data that may wait here"},
    {"peer_window", T_ULONGLONG, offsetof(Lane, peer_window), 0, "the peer's data window"},
    {"queued", T_UINT, offsetof(Lane, queued), 0, "tasks that wait for room"},
    {"partials", T_UINT, offsetof(Lane, partials), 0, "half-received messages"},
    {"credit_owed", T_INT, offsetof(Lane, credit_owed), 0, "a CREDIT is to be sent"},
    {"frames_sent", T_ULONGLONG, offsetof(Lane, frames_sent), READONLY, "from here, not by the channel"},
    {"frames_received", T_ULONGLONG, offsetof(Lane, frames_received), READONLY, "here, not by the channel"},
    {"requests", T_ULONGLONG, offsetof(Lane, requests), 0, "requests sent"},
    {"answered", T_ULONGLONG, offsetof(Lane, answered), READONLY, "requests answered from here"},
    {"calls", T_ULONGLONG, offsetof(Lane, calls), READONLY, "calls into C of a client's requests"},
    {"session", T_OBJECT, offsetof(Lane, session), READONLY, "whose frames these are"},
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(request_doc,
"request(payload) -> int | None\n\n"
"Send a request: its id; None when nothing was sent and the generic path must.");

PyDoc_STRVAR(collect_doc,
"collect(id) -> bytes | bool | None\n\n"
"Read once: the answer to this request; None when there was nothing; False when something else came,\n"
"which the channel has got (`session.feed`).");

PyDoc_STRVAR(carry_doc,
"carry(frame) -> bool\n\n"
"Have a short frame go in front of the next one, in place of one that waits; tell whether none did.");

static PyMethodDef lane_methods[] = {
    {"request", (PyCFunction)l5_lane_request, METH_O, request_doc},
    {"collect", (PyCFunction)l5_lane_collect, METH_O, collect_doc},
    {"rest", (PyCFunction)l5_lane_rest, METH_NOARGS, "Tell whether nothing but an answer is waited for: sleep now"},
    {"rested", (PyCFunction)l5_lane_rested, METH_O, "(After `rest` and sleeping) count it, and collect the answer to this id"},
    {"take_rest", (PyCFunction)lane_take_rest, METH_NOARGS, "What was read and not handled, or None."},
    {"carry", (PyCFunction)lane_carry, METH_O, carry_doc},
    {"take_carried", (PyCFunction)lane_take_carried, METH_NOARGS, "The frame of `carry`, or b''; it is the caller's."},
    {"data_taken", (PyCFunction)lane_data_taken, METH_O, "The application took a message of this size."},
    {"close", (PyCFunction)lane_close, METH_NOARGS, "Let go of the descriptor, and leave the poller."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject l5_LaneType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.Lane",
    .tp_doc = "Lane(fd, send_limit, receive_limit)",
    .tp_basicsize = sizeof(Lane),
    .tp_dealloc = (destructor)lane_dealloc,
    .tp_traverse = (traverseproc)lane_traverse,
    .tp_clear = (inquiry)lane_clear,
    .tp_free = PyObject_GC_Del,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_methods = lane_methods,
    .tp_members = lane_members,
    .tp_getset = lane_getset,
    .tp_init = (initproc)lane_init,
    .tp_new = lane_new,
};
