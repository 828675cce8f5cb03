/* The hot calls of a Ring: one call into C for a whole request.  See _fast.h. */
#include "_fast.h"

#include <sys/socket.h>

/* ---- frames -------------------------------------------------------------------------------- */

int l5_ring_peek(Ring *self, struct l5_frame *frame)
{
    int rc = l5_channel_peek(&self->channel, frame);

    if (rc < 0)
        l5_ring_raise(self, rc);
    return rc;
}

/* Copy the payload that peek found and give the message's space back. */
PyObject *l5_ring_take(Ring *self, const struct l5_frame *frame)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, frame->size);

    if (!bytes)
        return NULL;
    l5_channel_take(&self->channel, frame, PyBytes_AS_STRING(bytes), 0);
    self->frames_received++;
    self->bytes_received += frame->size;
    return bytes;
}

int l5_ring_send_bytes(Ring *self, int kind, int flags, uint64_t id, const void *bytes, Py_ssize_t size)
{
    int rc;

    if (size > (Py_ssize_t)self->channel.tx_limit)
        return -EMSGSIZE;
    rc = l5_channel_send(&self->channel, kind, flags, id, NULL, 0, bytes, (uint32_t)size);
    if (!rc) {
        l5_poller_stir(self); /* an answer may come */
        self->frames_sent++;
        self->bytes_sent += (uint64_t)size;
    }
    return rc;
}

int l5_ring_send_frame(Ring *self, int kind, int flags, uint64_t id, const Py_buffer *view)
{
    return l5_ring_send_bytes(self, kind, flags, id, view->buf, view->len);
}

/* Account for a data message that the application took; tell the peer now and then. */
void l5_ring_data_taken(Ring *self, uint64_t size)
{
    self->data_taken += l5_data_cost(size, self->data_window);
    if (self->data_taken - self->data_told >= self->data_window / 2) {
        uint64_t allowed = self->data_taken + self->data_window;

        if (!l5_channel_send(&self->channel, L5_CREDIT, 0, 0, NULL, 0, &allowed, 8))
            self->data_told = self->data_taken;
        else
            self->credit_owed = 1;
    }
}

void l5_ring_data_arrived(Ring *self, uint64_t size)
{
    self->data_arrived += l5_data_cost(size, self->data_window);
}
/* ---- Ring: hot methods --------------------------------------------------------------------- */

/* (bytes,) means: and now let the event loop run.  NULL stays NULL: an exception is set. */
static PyObject *with_due(Ring *self, PyObject *bytes)
{
    PyObject *pair;

    if (!bytes)
        return NULL;
    self->poller->streak++;
    if (!self->strict && !l5_poller_due(self->poller))
        return bytes;
    pair = PyTuple_Pack(1, bytes);
    Py_DECREF(bytes);
    return pair;
}

PyObject *l5_ring_request(Ring *self, PyObject *payload)
{
    struct l5_frame frame;
    Py_buffer view;
    uint64_t id;
    int rc;

    if (!l5_ring_ready(self))
        return NULL;
    if (!self->poller || self->in_flight >= self->in_flight_max || self->queued ||
        self->shared == LOCKED_INSIDE)
        Py_RETURN_NONE;
    if (l5_ring_get_payload(self, payload, &view) < 0)
        return NULL;
    l5_ring_begin_latency(self);
    id = self->next_id;
    rc = l5_ring_send_frame(self, L5_REQUEST, 0, id, &view);
    self->next_id += !rc;
    self->requests += !rc;
    PyBuffer_Release(&view);
    if (rc == -EAGAIN || rc == -EMSGSIZE || rc == -EBUSY)
        Py_RETURN_NONE;
    if (rc)
        return l5_ring_raise(self, rc);
    if (self->poller && (self->spin_ns || l5_channel_ready(&self->channel)))
        if (l5_poller_wait(self->poller, self->spin_ns)) {
            rc = l5_ring_peek(self, &frame);
            if (rc < 0)
                return NULL;
            if (rc && frame.kind == L5_RESPONSE && frame.id == id && !frame.flags) {
                l5_ring_end_latency(self);
                return with_due(self, l5_ring_take(self, &frame));
            }
        }
    self->in_flight++;
    return PyLong_FromUnsignedLongLong(id);
}

PyObject *l5_ring_send(Ring *self, PyObject *payload)
{
    Py_buffer view;
    uint64_t cost;
    int rc;

    if (!l5_ring_ready(self))
        return NULL;
    if (l5_ring_get_payload(self, payload, &view) < 0)
        return NULL;
    cost = l5_data_cost((uint64_t)view.len, self->peer_window);
    if (!self->poller || self->data_sent + cost > self->data_allowed || self->queued ||
        self->shared == LOCKED_INSIDE)
        rc = -EAGAIN;
    else
        rc = l5_ring_send_frame(self, L5_DATA, 0, self->next_id, &view);
    self->next_id += !rc;
    self->data_sent += rc ? 0 : cost;
    PyBuffer_Release(&view);
    if (rc == -EAGAIN || rc == -EMSGSIZE || rc == -EBUSY)
        Py_RETURN_FALSE;
    if (rc)
        return l5_ring_raise(self, rc);
    if (self->poller)
        self->poller->streak++;
    if (self->strict || !self->poller || l5_poller_due(self->poller))
        Py_RETURN_NONE;
    Py_RETURN_TRUE;
}

/* Look for a whole data message, and spin for it if asked: 1 there is, 0 not for C, -1 error. */
static int next_data(Ring *self, struct l5_frame *frame, int may_spin)
{
    int rc;

    Py_CLEAR(self->last);
    if (!self->poller || self->shared == LOCKED_INSIDE)
        return 0;
    rc = l5_ring_peek(self, frame);
    if (!rc && may_spin && self->spin_ns) {
        l5_channel_publish(&self->channel); /* the peer may wait for space */
        l5_poller_stir(self);
        if (l5_poller_wait(self->poller, self->spin_ns))
            rc = l5_ring_peek(self, frame);
    }
    return rc > 0 ? frame->kind == L5_DATA && !frame->flags && !self->partials : rc;
}

/* Take a whole data message that peek found; in a tuple when the event loop is due. */
PyObject *l5_ring_take_data(Ring *self, const struct l5_frame *frame)
{
    PyObject *bytes = l5_ring_take(self, frame);

    if (bytes) {
        l5_ring_data_arrived(self, frame->size);
        l5_ring_data_taken(self, frame->size);
        if (self->shared) /* a signal's handler may raise before the caller has it */
            self->last = Py_NewRef(bytes);
    }
    return with_due(self, bytes);
}

PyObject *l5_ring_receive(Ring *self, PyObject *const *args, Py_ssize_t count)
{
    struct l5_frame frame;
    int rc;

    if (!l5_ring_ready(self))
        return NULL;
    rc = next_data(self, &frame, count == 1 && args[0] == Py_True);
    if (rc < 0)
        return NULL;
    if (!rc)
        Py_RETURN_NONE;
    return l5_ring_take_data(self, &frame);
}

/* Tell whether nothing of this target can be in the caches: for some MiB now, each message went right
 * behind the one before. */
static int is_cold(Ring *self, const char *target, uint64_t size)
{
    self->target_run = target == self->target_end ? self->target_run + size : 0;
    self->target_end = target + size;
    return self->target_run > COLD_BYTES;
}

PyObject *l5_ring_receive_into(Ring *self, PyObject *const *args, Py_ssize_t count)
{
    struct l5_frame frame;
    Py_buffer view;
    PyObject *size = NULL;
    int rc = -1;

    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "receive_into(buffer, spin)");
    if (!l5_ring_ready(self) || PyObject_GetBuffer(args[0], &view, PyBUF_WRITABLE) < 0)
        return NULL;
    if (self->open) /* still: see l5_ring_get_payload */
        rc = next_data(self, &frame, args[1] == Py_True);
    else
        PyErr_SetNone(l5_ClosedResourceError);
    if (rc > 0 && (Py_ssize_t)frame.size > view.len)
        rc = 0; /* Python says so */
    if (rc > 0 && (size = PyLong_FromUnsignedLong(frame.size))) {
        l5_channel_take(&self->channel, &frame, view.buf, is_cold(self, view.buf, frame.size));
        self->frames_received++;
        self->bytes_received += frame.size;
        l5_ring_data_arrived(self, frame.size);
        l5_ring_data_taken(self, frame.size);
        if (self->shared)
            self->last = Py_NewRef(size);
        size = with_due(self, size);
    }
    PyBuffer_Release(&view);
    if (!rc)
        Py_RETURN_NONE;
    return size;
}

/* 1: the bell had rung, is silent again, and the ring is disarmed; 0: it had not; -1: the socket has
 * ended, which its next reader finds again. */
int l5_ring_take_bell(Ring *self)
{
    char bytes[256];
    ssize_t size = recv(self->channel.bell, bytes, sizeof(bytes), MSG_DONTWAIT);

    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (size <= 0)
        return -1;
    l5_channel_disarm(&self->channel);
    l5_poller_stir(self);
    return 1;
}

/* Take the bytes of the doorbell and disarm: True when it has rung, None when not, False when the
 * socket has ended. */
PyObject *l5_ring_hush(Ring *self, PyObject *Py_UNUSED(ignored))
{
    if (!l5_ring_ready(self))
        return NULL;
    switch (l5_ring_take_bell(self)) {
    case 1:
        Py_RETURN_TRUE;
    case 0:
        Py_RETURN_NONE;
    default:
        Py_RETURN_FALSE;
    }
}

/* Add the next frame to the list if it is a whole answer in one piece; 1 it was, 0 not, -1 an exception. */
static int append_answer(Ring *self, PyObject *list)
{
    struct l5_frame frame;
    PyObject *answer;
    int rc = l5_channel_peek(&self->channel, &frame); /* a fault is found again, as above */

    if (rc != 1 || frame.kind != L5_RESPONSE || frame.flags)
        return 0;
    answer = Py_BuildValue("(KN)", (unsigned long long)frame.id, l5_ring_take(self, &frame));
    rc = answer ? PyList_Append(list, answer) : -1;
    Py_XDECREF(answer);
    return rc < 0 ? -1 : 1;
}

PyObject *l5_ring_answers(Ring *self, PyObject *limit)
{
    long left = PyLong_AsLong(limit);
    PyObject *list;
    int rc = 1;

    if (PyErr_Occurred() || !l5_ring_ready(self))
        return NULL;
    list = PyList_New(0);
    while (list && rc > 0 && left-- > 0 && !self->partials)
        rc = append_answer(self, list);
    if (rc < 0)
        Py_CLEAR(list);
    return list;
}

PyObject *l5_ring_collect(Ring *self, PyObject *id)
{
    struct l5_frame frame;
    unsigned long long wanted = PyLong_AsUnsignedLongLong(id);
    int rc;

    if (PyErr_Occurred() || !l5_ring_ready(self))
        return NULL;
    if (!self->poller || self->shared == LOCKED_INSIDE || self->partials || l5_ring_take_bell(self) != 1)
        Py_RETURN_NONE;
    rc = l5_channel_peek(&self->channel, &frame); /* a fault is found again by whoever receives next */
    if (rc != 1 || frame.kind != L5_RESPONSE || frame.id != wanted || frame.flags)
        Py_RETURN_NONE;
    return l5_ring_take(self, &frame);
}
