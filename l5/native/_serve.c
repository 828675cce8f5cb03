/* One request in `Poller.serve`: the handler is called, its answer sent.  See _fast.h and _lane.h. */
#include "_lane.h"

/* Send the answer to a request; 1 sent, 0 not (the generic path must), -1 error. */
static int answer_on_ring(Ring *ring, uint64_t id, PyObject *reply)
{
    Py_buffer view;
    int rc;

    if (!l5_ring_ready(ring) || l5_ring_get_payload(ring, reply, &view) < 0)
        return -1;
    rc = ring->queued ? -EAGAIN : l5_ring_send_frame(ring, L5_RESPONSE, 0, id, &view);
    PyBuffer_Release(&view);
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
PyObject *l5_handle(PyObject *source, uint64_t id, PyObject *payload, PyObject *handler)
{
    PyObject *result = PyObject_CallOneArg(handler, payload);
    PyObject *reply = result;
    int sent;

    if (result && !PyBytes_CheckExact(result) && PyCoro_CheckExact(result)) {
        switch (PyIter_Send(result, Py_None, &reply)) {
        case PYGEN_NEXT:
            return l5_hand_up("suspended", source, id, result, reply);
        case PYGEN_RETURN:
            Py_DECREF(result);
            break;
        case PYGEN_ERROR:
            Py_DECREF(result);
            reply = NULL;
        }
    }
    if (!reply) /* also what is no answer, such as KeyboardInterrupt: Python knows */
        return l5_hand_up("raised", source, id, caught(), NULL);
    if (!PyBytes_CheckExact(reply) && (reply == Py_None || !PyObject_CheckBuffer(reply)))
        return l5_hand_up("returned", source, id, reply, NULL);
    sent = answer(source, id, reply);
    if (sent < 0)
        return Py_DECREF(reply), l5_hand_up("unanswered", source, id, caught(), NULL);
    if (!sent)
        return l5_hand_up("returned", source, id, reply, NULL);
    Py_DECREF(reply);
    return NULL;
}
