/* One request in `Poller.serve`: the handler is called, its answer sent.  See _fast.h and _lane.h. */
#include "_lane.h"

/* Send the answer to a request; 1 sent, 0 not (the generic path must), -1 error.  It is the poller's
 * thread that calls: of what l5_ring_ready looks at, a handler can only have closed the ring. */
static int answer_on_ring(Ring *ring, uint64_t id, PyObject *reply)
{
    int rc;

    if (!ring->open) {
        PyErr_SetNone(l5_ClosedResourceError);
        return -1;
    }
    ring->calls++;
    if (ring->queued)
        return 0;
    if (PyBytes_CheckExact(reply)) {
        rc = l5_ring_send_bytes(ring, L5_RESPONSE, 0, id, PyBytes_AS_STRING(reply), PyBytes_GET_SIZE(reply));
    } else {
        Py_buffer view;

        if (l5_ring_get_payload(ring, reply, &view) < 0)
            return -1;
        rc = ring->queued ? -EAGAIN : l5_ring_send_frame(ring, L5_RESPONSE, 0, id, &view);
        PyBuffer_Release(&view);
    }
    if (rc == -EAGAIN || rc == -EMSGSIZE || rc == -EBUSY)
        return 0;
    if (rc) {
        l5_ring_raise(ring, rc);
        return -1;
    }
    if (ring->handling)
        ring->handling--;
    ring->answered++;
    return 1;
}

/* The same for what came over a socket; other buffers than bytes go the generic way. */
static int answer_on_lane(Lane *lane, uint64_t id, PyObject *reply)
{
    int rc = PyBytes_CheckExact(reply) ? l5_lane_give(lane, L5_RESPONSE, id, reply) : 0;

    if (rc > 0) {
        if (lane->handling)
            lane->handling--;
        lane->answered++;
    }
    return rc;
}

static int answer(PyObject *source, uint64_t id, PyObject *reply)
{
    if (Py_IS_TYPE(source, &l5_RingType))
        return answer_on_ring((Ring *)source, id, reply);
    return answer_on_lane((Lane *)source, id, reply);
}

/* What `serve` gives Python when it cannot go on alone; steals `first` and `second`. */
PyObject *l5_hand_up(const char *what, PyObject *source, uint64_t id, PyObject *first, PyObject *second)
{
    return Py_BuildValue("(sOKNN)", what, source, (unsigned long long)id, first,
                         second ? second : Py_NewRef(Py_None));
}

/* Take the exception that is set as an object. */
PyObject *l5_caught(void)
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

/* A call without what PyObject_CallOneArg does besides: half of its instructions are checks. */
static PyObject *call(PyObject *handler, PyObject *payload)
{
    PyObject *arguments[2] = {NULL, payload};
    vectorcallfunc function = PyVectorcall_Function(handler);

    if (!function)
        return PyObject_CallOneArg(handler, payload);
    return function(handler, arguments + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
}

/* Run the handler as far as it goes without suspending, and answer: 1 answered; 0 not, Python has to go
 * on with *up (NULL: an exception is set).  The first step of a coroutine is taken here; one that suspends
 * is handed up with what it yielded, and Python goes on with it in the same task. */
int l5_handle(PyObject *source, uint64_t id, PyObject *payload, PyObject *handler, PyObject **up)
{
    PyObject *result = call(handler, payload);
    PyObject *reply = result;
    int sent;

    if (result && PyCoro_CheckExact(result)) {
        switch (Py_TYPE(result)->tp_as_async->am_send(result, Py_None, &reply)) {
        case PYGEN_NEXT:
            *up = l5_hand_up("suspended", source, id, result, reply);
            return 0;
        case PYGEN_RETURN:
            Py_DECREF(result);
            break;
        case PYGEN_ERROR:
            Py_DECREF(result);
            reply = NULL;
        }
    }
    if (!reply) { /* also what is no answer, such as KeyboardInterrupt: Python knows */
        *up = l5_hand_up("raised", source, id, l5_caught(), NULL);
        return 0;
    }
    sent = PyBytes_CheckExact(reply) || (reply != Py_None && PyObject_CheckBuffer(reply)) ? answer(source, id, reply) : 0;
    if (sent > 0) {
        Py_DECREF(reply);
        return 1;
    }
    if (sent < 0) {
        Py_DECREF(reply);
        *up = l5_hand_up("unanswered", source, id, l5_caught(), NULL);
    } else {
        *up = l5_hand_up("returned", source, id, reply, NULL);
    }
    return 0;
}
