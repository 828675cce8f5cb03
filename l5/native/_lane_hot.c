/* The hot calls of a Lane: reading, and writing, one frame.  See _lane.h. */
#include "_lane.h"

#include <sys/socket.h>

enum next { NOTHING = 0, REQUEST = 1, PYTHON = 2 }; /* of l5_lane_next; -1: an exception */

/* Give the channel what was read and is no usual frame, or why nothing could be read. */
static int feed(Lane *self, const void *data, size_t bytes, int error)
{
    PyObject *done;

    self->held = bytes != 0;
    done = PyObject_CallMethod(self->session, "feed", "y#i", data, (Py_ssize_t)bytes, error);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Give the channel what the socket did not take of a frame. */
static int keep(Lane *self, const struct l5_stream_out *out, size_t whole, size_t sent)
{
    PyObject *rest = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(whole - sent));
    PyObject *done = NULL;

    if (rest) {
        l5_stream_rest(out, sent, (uint8_t *)PyBytes_AS_STRING(rest));
        done = PyObject_CallMethod(self->session, "keep_rest", "O", rest);
    }
    Py_XDECREF(rest);
    Py_XDECREF(done);
    if (!done)
        shutdown(self->fd, SHUT_RDWR); /* half a frame is out: nothing may come behind it */
    return done ? 0 : -1;
}

/* Send a frame; 1 accepted, 0 not (the generic path must, and finds out why), -1 an exception. */
int l5_lane_give(Lane *self, int kind, uint64_t id, PyObject *payload)
{
    size_t bytes = (size_t)PyBytes_GET_SIZE(payload), whole;
    struct l5_stream_out out = {self->carried, self->carried_bytes, kind, id, PyBytes_AS_STRING(payload),
                                (uint32_t)bytes};
    ssize_t sent;

    if (self->fd < 0 || !self->session || self->unsent || self->queued || self->aside ||
        bytes > self->send_limit || bytes > L5_STREAM_GIVE)
        return 0;
    sent = l5_stream_send(self->fd, &out);
    if (sent <= 0)
        return 0;
    whole = out.front_bytes + L5_HEADER_BYTES + bytes;
    self->frames_sent += 1 + (out.front_bytes != 0);
    self->carried_bytes = 0;
    if ((size_t)sent < whole && keep(self, &out, whole, (size_t)sent) < 0)
        return -1;
    return 1;
}

PyObject *l5_lane_request(Lane *self, PyObject *payload)
{
    uint64_t id = self->next_id;
    int rc;

    self->calls++;
    if (self->thread != PyThread_get_thread_ident())
        return PyErr_SetString(l5_BusyResourceError,
                               "using (in its event loop's thread, to which a connection belongs)"), NULL;
    if (!self->poller || self->in_flight >= self->in_flight_max || !PyBytes_CheckExact(payload))
        Py_RETURN_NONE;
    rc = l5_lane_give(self, L5_REQUEST, id, payload);
    if (rc < 0)
        return NULL;
    if (!rc)
        Py_RETURN_NONE;
    self->next_id++;
    self->requests++;
    self->in_flight++;
    return PyLong_FromUnsignedLongLong(id);
}

/* Pass over the heartbeats in front, of which the last one counts; -1: an exception. */
static int beats(Lane *self, const uint8_t *data, ssize_t bytes, size_t *used)
{
    struct l5_frame frame;
    PyObject *done;

    while (bytes > 0 && l5_stream_peek(data + *used, (size_t)bytes - *used, self->receive_limit, &frame) &&
           frame.kind == L5_HEARTBEAT) {
        done = PyObject_CallMethod(self->session, "hear", "y#", frame.payload, (Py_ssize_t)frame.size);
        if (!done)
            return -1;
        Py_DECREF(done);
        *used += L5_HEADER_BYTES + frame.size;
        self->frames_received++;
    }
    return 0;
}

/* Read once and take the answer to request `id` if that is what comes first. */
PyObject *l5_lane_collect(Lane *self, PyObject *wanted)
{
    uint8_t room[L5_STREAM_TAKE];
    unsigned long long id = PyLong_AsUnsignedLongLong(wanted);
    struct l5_frame frame;
    PyObject *reply;
    size_t used = 0;
    ssize_t got;

    if (PyErr_Occurred())
        return NULL;
    self->calls++;
    if (!self->poller || self->fd < 0 || self->held || self->aside || self->server)
        Py_RETURN_NONE;
    got = l5_stream_receive(self->fd, room, self->take);
    if (got == -EAGAIN)
        Py_RETURN_NONE;
    if (beats(self, room, got, &used) < 0)
        return NULL;
    if (used && (size_t)got == used)
        Py_RETURN_NONE;
    if (got <= 0 || self->partials ||
        !l5_stream_peek(room + used, (size_t)got - used, self->receive_limit, &frame) ||
        frame.kind != L5_RESPONSE || frame.id != id) {
        if (feed(self, room + used, got > 0 ? (size_t)got - used : 0, got < 0 ? (int)-got : 0) < 0)
            return NULL;
        Py_RETURN_FALSE;
    }
    used += L5_HEADER_BYTES + frame.size;
    reply = PyBytes_FromStringAndSize((const char *)frame.payload, frame.size);
    if (reply && used < (size_t)got && feed(self, room + used, (size_t)got - used, 0) < 0)
        Py_CLEAR(reply);
    if (reply) {
        self->frames_received++;
        self->in_flight--;
    }
    return reply;
}

/* The two calls of a usual sleep, as those of a ring: see _ring_rest.c.  A socket needs no arming. */
PyObject *l5_lane_rest(Lane *self, PyObject *Py_UNUSED(ignored))
{
    self->calls++;
    if (!self->poller || self->fd < 0 || self->held || self->unsent || self->aside || self->queued ||
        self->partials || self->server || self->credit_owed || self->thread != PyThread_get_thread_ident())
        Py_RETURN_FALSE;
    self->poller->rest_ns = l5_now_ns();
    Py_RETURN_TRUE;
}

PyObject *l5_lane_rested(Lane *self, PyObject *id)
{
    if (!self->poller || self->poller->spinning) /* closed meanwhile */
        Py_RETURN_NONE;
    l5_poller_rested(self->poller);
    return l5_lane_collect(self, id);
}

/* Note how much of what was read has been taken; `data` is of the rest, or of a buffer that ends. */
static int taken(Lane *self, const uint8_t *data, size_t used, size_t bytes)
{
    if (self->rest) {
        self->rest_at += used;
        if (used == bytes)
            Py_CLEAR(self->rest);
        return 0;
    }
    if (used == bytes)
        return 0;
    self->rest = PyBytes_FromStringAndSize((const char *)data + used, (Py_ssize_t)(bytes - used));
    self->rest_at = 0;
    return self->rest ? 0 : -1;
}

/* Read behind what is left of the last read, if that is the beginning of a usual frame: `room` has it
 * all then.  0 when nothing came; an error goes to the channel, for a socket tells it only once. */
static ssize_t read_on(Lane *self, uint8_t *room, const uint8_t *left, size_t bytes)
{
    ssize_t got;

    if (!l5_stream_partial(left, bytes, self->receive_limit))
        return 0;
    memcpy(room, left, bytes);
    got = l5_stream_receive(self->fd, room + bytes, self->take - bytes);
    if (got == 0 || got == -EAGAIN)
        return 0; /* the channel finds the end again */
    if (got < 0)
        return got;
    self->more = (size_t)got == self->take - bytes;
    return (ssize_t)bytes + got;
}

/* Take the next request, reading if nothing is left of the last read. */
int l5_lane_next(Lane *self, uint64_t *id, PyObject **payload)
{
    uint8_t room[L5_STREAM_TAKE];
    const uint8_t *data = room;
    PyObject *rest = self->rest;
    struct l5_frame frame;
    ssize_t bytes, longer = 0;
    int rc;

    if (rest) {
        data = (const uint8_t *)PyBytes_AS_STRING(rest) + self->rest_at;
        bytes = PyBytes_GET_SIZE(rest) - (Py_ssize_t)self->rest_at;
        longer = read_on(self, room, data, (size_t)bytes);
        if (longer > 0) {
            self->rest = NULL;
            Py_CLEAR(rest);
            data = room;
            bytes = longer;
        }
    } else {
        bytes = l5_stream_receive(self->fd, room, self->take);
        self->more = bytes == (ssize_t)self->take;
        if (bytes == -EAGAIN)
            return NOTHING;
    }
    if (bytes > 0 && longer >= 0 && l5_stream_peek(data, (size_t)bytes, self->receive_limit, &frame) &&
        frame.kind == L5_REQUEST && !self->partials && self->handling < self->handling_max) {
        *id = frame.id;
        *payload = PyBytes_FromStringAndSize((const char *)frame.payload, frame.size);
        if (!*payload)
            return -1;
        if (taken(self, data, L5_HEADER_BYTES + frame.size, (size_t)bytes) < 0)
            return Py_DECREF(*payload), -1;
        self->frames_received++;
        return REQUEST;
    }
    self->rest = NULL;
    if (longer >= 0)
        longer = bytes;
    rc = feed(self, data, bytes > 0 ? (size_t)bytes : 0, longer < 0 ? (int)-longer : 0);
    Py_XDECREF(rest);
    return rc < 0 ? -1 : PYTHON;
}
