/* Many messages in one call into C.  See _fast.h. */
#include "_fast.h"

enum { SOME = 8, RELAX_EACH = 8, WAITS = 8, BATCH_NS = 150000, LOOK_EACH = 16, WAITED_MAX_NS = 2000000 };

/* Requests that are sent together, by their place in the caller's tuple: [start, sent) are on their way
 * or answered, `done` of them answered. */
struct batch {
    PyObject *payloads, *answers;
    Py_ssize_t start, sent, done, window;
    Py_ssize_t most;   /* are sent before anybody asks for the time (again) */
    uint64_t first_id; /* of the payload at `start` */
    uint64_t begun_ns;
    int goes_on;       /* the event loop is due; nothing else stands in the way */
};

static Py_ssize_t under_way(const struct batch *batch)
{
    return batch->sent - batch->start - batch->done;
}

/* Tell whether the event loop must run: this call has sent as many as one does, and quick ones may be followed
 * by more, but not for long.  The peer works on those that are under way meanwhile. */
static int is_due(struct batch *batch)
{
    if (batch->goes_on || batch->sent < batch->most)
        return batch->goes_on;
    batch->most = batch->sent + LOOK_EACH;
    batch->goes_on = l5_now_ns() - batch->begun_ns >= BATCH_NS;
    return batch->goes_on;
}

/* Send what the window and the ring take; -1 with an exception. */
static int send_some(Ring *self, struct batch *batch)
{
    while (batch->sent < PyTuple_GET_SIZE(batch->payloads) &&
           under_way(batch) < batch->window && !is_due(batch)) {
        Py_buffer view;
        int rc;

        if (l5_ring_get_payload(self, PyTuple_GET_ITEM(batch->payloads, batch->sent), &view) < 0)
            return -1;
        /* asking for the bytes may have run Python code, which may have sent something itself */
        rc = self->next_id == batch->first_id + (uint64_t)(batch->sent - batch->start) && self->poller && !self->queued
                 ? l5_ring_send_frame(self, L5_REQUEST, 0, self->next_id, &view)
                 : -EAGAIN;
        self->next_id += !rc;
        self->requests += !rc;
        batch->sent += !rc;
        PyBuffer_Release(&view);
        if (rc == -EAGAIN || rc == -EMSGSIZE || rc == -EBUSY)
            return 0;
        if (rc) {
            l5_ring_raise(self, rc);
            return -1;
        }
    }
    return 0;
}

/* Take the answers that are there; how many, or -1 with an exception.  Any other frame stays. */
static Py_ssize_t take_some(Ring *self, struct batch *batch)
{
    struct l5_frame frame;
    Py_ssize_t taken = 0;
    int rc;

    while ((rc = l5_ring_peek(self, &frame)) == 1) {
        uint64_t place = frame.id - batch->first_id;
        PyObject *answer;

        if (frame.kind != L5_RESPONSE || frame.flags || self->partials ||
            place >= (uint64_t)(batch->sent - batch->start) ||
            PyList_GET_ITEM(batch->answers, batch->start + (Py_ssize_t)place) != Py_None)
            break;
        answer = l5_ring_take(self, &frame);
        if (!answer)
            return -1;
        PyList_SetItem(batch->answers, batch->start + (Py_ssize_t)place, answer);
        taken++;
        batch->done++;
    }
    return rc < 0 ? -1 : taken;
}

/* Leave the lines alone in which the next answers are being written: each look at one takes it from the
 * peer, who has to fetch it back for the next message.  While enough is under way nobody waits for us. */
static void let_some_come(const struct batch *batch, Py_ssize_t taken)
{
    if (taken < SOME && under_way(batch) > 2 * SOME)
        for (int i = 0; i < SOME * RELAX_EACH; i++)
            l5_relax();
}

/* Wait for an answer; longer than for a single request, for the way by the event loop costs each of the
 * requests that are under way as much as a wake-up.  But the event loop has its turn when they take long. */
static int wait_for_some(Ring *self, const struct batch *batch)
{
    if (l5_now_ns() - batch->begun_ns > WAITED_MAX_NS)
        return 0;
    for (int i = 0; self->spin_ns && i < WAITS; i++)
        if (l5_poller_wait(self->poller, self->spin_ns))
            return l5_channel_ready(&self->channel);
    return 0;
}

/* Send and take until all is answered, the event loop is due, or something else is to do first. */
static int exchange(Ring *self, struct batch *batch)
{
    for (;;) {
        Py_ssize_t taken;

        if (send_some(self, batch) < 0)
            return -1;
        if (!under_way(batch) || !self->open || !self->poller || is_due(batch))
            return 0;
        taken = take_some(self, batch);
        if (!taken && wait_for_some(self, batch))
            taken = take_some(self, batch);
        if (taken <= 0)
            return (int)taken;
        if (taken < SOME && l5_now_ns() - batch->begun_ns > WAITED_MAX_NS) {
            batch->goes_on = 1; /* who has little time finds an answer each time it looks */
            return 0;
        }
        let_some_come(batch, taken);
    }
}

/* Read the arguments: what to send, and how far the call before came, of which `missing` are under way. */
static int parse(PyObject *const *args, Py_ssize_t count, struct batch *batch)
{
    Py_ssize_t missing;

    if (count != 7 || !PyTuple_CheckExact(args[0]) || !PyList_CheckExact(args[1]) ||
        PyTuple_GET_SIZE(args[0]) != PyList_GET_SIZE(args[1])) {
        PyErr_SetString(PyExc_TypeError, "request_many(payloads, answers, start, window, sent, first_id, missing)");
        return -1;
    }
    batch->payloads = args[0];
    batch->answers = args[1];
    batch->start = PyLong_AsSsize_t(args[2]);
    batch->window = PyLong_AsSsize_t(args[3]);
    batch->sent = PyLong_AsSsize_t(args[4]);
    batch->first_id = PyLong_AsUnsignedLongLong(args[5]);
    missing = PyLong_AsSsize_t(args[6]);
    if (PyErr_Occurred())
        return -1;
    if (batch->start < 0 || batch->window < 1 || batch->sent < batch->start ||
        batch->sent > PyTuple_GET_SIZE(batch->payloads) || missing < 0 || missing > batch->sent - batch->start) {
        PyErr_SetString(PyExc_ValueError, "start and sent are places, window is at least one, and missing were sent");
        return -1;
    }
    batch->done = batch->sent - batch->start - missing;
    return 0;
}

PyObject *l5_ring_request_many(Ring *self, PyObject *const *args, Py_ssize_t count)
{
    struct batch batch = {0};
    Py_ssize_t done;
    uint64_t others, free_places;
    PyObject *thrown = NULL;
    int rc;

    if (parse(args, count, &batch) < 0 || !l5_ring_ready(self))
        return NULL;
    if (batch.sent == batch.start)
        batch.first_id = self->next_id;
    batch.begun_ns = l5_now_ns();
    batch.most = batch.sent + BATCH_MAX;
    others = self->in_flight - (uint64_t)under_way(&batch);
    free_places = others < self->in_flight_max ? self->in_flight_max - others : 0;
    if ((uint64_t)batch.window > free_places)
        batch.window = (Py_ssize_t)free_places;
    /* LOCKED_INSIDE or not: only the engine calls this, between two of its steps */
    if (self->poller && !self->queued) {
        done = batch.done;
        self->in_flight = others;
        l5_poller_stir(self);
        rc = exchange(self, &batch);
        self->in_flight += (uint64_t)under_way(&batch);
        if (self->poller)
            self->poller->streak += (uint32_t)(batch.done - done);
        if (rc < 0 && batch.sent == batch.start)
            return NULL;
        /* Those that were sent are the caller's to wait for.  What is wrong with a payload or the ring the next
         * call finds again; an interrupt that came while a payload gave its bytes comes only once. */
        if (rc < 0 && !PyErr_ExceptionMatches(PyExc_Exception))
            thrown = l5_caught();
        PyErr_Clear();
        batch.goes_on &= rc >= 0 && under_way(&batch);
    }
    return Py_BuildValue("(nKnNN)", batch.sent, (unsigned long long)batch.first_id, under_way(&batch),
                         PyBool_FromLong(batch.goes_on), thrown ? thrown : Py_NewRef(Py_None));
}

/* Size of the longest of these; None when some are no bytes, and Python has to look at each. */
PyObject *l5_ring_longest(Ring *Py_UNUSED(self), PyObject *payloads)
{
    Py_ssize_t longest = 0;

    if (!PyTuple_CheckExact(payloads))
        return PyErr_Format(PyExc_TypeError, "longest(payloads)");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(payloads); i++) {
        PyObject *payload = PyTuple_GET_ITEM(payloads, i);

        if (!PyBytes_CheckExact(payload))
            Py_RETURN_NONE;
        if (PyBytes_GET_SIZE(payload) > longest)
            longest = PyBytes_GET_SIZE(payload);
    }
    return PyLong_FromSsize_t(longest);
}

PyObject *l5_ring_receive_many(Ring *self, PyObject *limit)
{
    Py_ssize_t most = PyLong_AsSsize_t(limit);
    struct l5_frame frame;
    PyObject *list;

    if (PyErr_Occurred() || !l5_ring_ready(self))
        return NULL;
    list = PyList_New(0);
    while (list && self->poller && self->shared != LOCKED_INSIDE && PyList_GET_SIZE(list) < most) {
        int rc = l5_ring_peek(self, &frame);
        PyObject *bytes;

        if (rc < 0 && !PyList_GET_SIZE(list))
            Py_CLEAR(list);
        else if (rc < 0)
            PyErr_Clear(); /* after what came before it: the next call finds it again */
        if (rc != 1 || frame.kind != L5_DATA || frame.flags || self->partials)
            break;
        bytes = l5_ring_take(self, &frame);
        if (!bytes && PyList_GET_SIZE(list)) {
            PyErr_Clear(); /* no memory for this one: it stays where it is */
            break;
        }
        if (!bytes || PyList_Append(list, bytes) < 0)
            Py_CLEAR(list);
        Py_XDECREF(bytes);
        if (!bytes)
            break;
        l5_ring_data_arrived(self, frame.size);
        l5_ring_data_taken(self, frame.size);
    }
    if (list && self->poller)
        self->poller->streak += (uint32_t)PyList_GET_SIZE(list);
    return list;
}
