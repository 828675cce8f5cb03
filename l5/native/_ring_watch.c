/* What a ring tells those who look into a running process. */
#include "_fast.h"

/* watch(True) begins to note latencies, watch(False) ends it. */
PyObject *l5_ring_watch(Ring *self, PyObject *on)
{
    int truth = PyObject_IsTrue(on);

    if (truth < 0)
        return NULL;
    if (truth && !self->latencies) {
        self->latencies = PyMem_Calloc(L5_LATENCY_BUCKETS, sizeof(*self->latencies));
        if (!self->latencies)
            return PyErr_NoMemory();
        self->begun_ns = l5_now_ns();
    } else if (!truth) {
        PyMem_Free(self->latencies);
        self->latencies = NULL;
    }
    Py_RETURN_NONE;
}

PyObject *l5_ring_latencies(Ring *self, PyObject *Py_UNUSED(ignored))
{
    if (!self->latencies)
        return PyBytes_FromStringAndSize(NULL, 0);
    return PyBytes_FromStringAndSize((const char *)self->latencies,
                                     L5_LATENCY_BUCKETS * sizeof(*self->latencies));
}

/* fill() -> (ring size, what the peer has not read as far as it told, what we have not read).
 * The peer may have written anything: steps and sums are bounded by the ring. */
PyObject *l5_ring_fill(Ring *self, PyObject *Py_UNUSED(ignored))
{
    struct l5_channel *channel = &self->channel;
    uint64_t size = channel->ring_bytes, sent = 0, waiting = 0, word;

    if (self->open) {
        sent = channel->tx_write - l5_load_relaxed(channel->tx_read);
        for (int i = 0; i < FILL_STEPS_MAX && waiting < size; i++) {
            word = l5_load_relaxed(l5_size_word(channel->rx_base, channel->rx_read + waiting, size));
            if (word < L5_HEADER_BYTES || word > size)
                break;
            waiting += l5_padded(word - L5_HEADER_BYTES);
        }
    }
    return Py_BuildValue("(KKK)", (unsigned long long)size, (unsigned long long)(sent < size ? sent : size),
                         (unsigned long long)(waiting < size ? waiting : size));
}
