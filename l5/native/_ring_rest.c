/* The usual sleep of a client over its ring (a lane: _lane_hot.c), in two calls: before it and after it.  See l5/_doze.py.
 *
 *   rest()      nothing but an answer can come next, and none is there: armed, sleep now
 *   rested(id)  the loop has run: what Hub does after each sleep, then the answer, if it is next
 */
#include "_fast.h"

/* Also a ring of which both ends are here is for Python: the server in this loop runs first. */
PyObject *l5_ring_rest(Ring *self, PyObject *Py_UNUSED(ignored))
{
    int rc;

    if (!l5_ring_ready(self))
        return NULL;
    if (!self->poller || self->credit_owed || self->queued || self->partials || self->strict ||
        self->other_end || self->shared == LOCKED_INSIDE)
        Py_RETURN_FALSE;
    rc = l5_channel_arm(&self->channel, L5_ARM_DATA); /* pairs with: DOORBELL in wake_if_armed */
    if (rc == -EPROTO)
        return l5_ring_raise(self, rc);
    if (rc) {
        l5_poller_stir(self);
        Py_RETURN_FALSE;
    }
    self->poller->rest_ns = l5_now_ns();
    Py_RETURN_TRUE;
}

/* (The event loop has slept over one ring, or lane, and runs again) */
void l5_poller_rested(Poller *self)
{
    uint64_t slept = l5_now_ns() - self->rest_ns;

    self->rests++;
    self->rested_ns += slept;
    l5_poller_note_slept(self, slept);
    l5_poller_breathe(self);
}

PyObject *l5_ring_rested(Ring *self, PyObject *id)
{
    PyObject *reply;

    if (!self->open || !self->poller || self->poller->spinning) /* closed meanwhile */
        Py_RETURN_NONE;
    l5_poller_rested(self->poller);
    reply = l5_ring_collect(self, id);
    if (reply && reply != Py_None)
        self->in_flight--;
    return reply;
}
