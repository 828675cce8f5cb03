/* The rings of a Poller: which it has, and which of them it scans.  See _fast.h. */
#include "_fast.h"

int l5_poller_ok(Poller *self)
{
    if (self->spinning || (!self->shared && self->thread != PyThread_get_thread_ident())) {
        PyErr_SetString(l5_BusyResourceError, "polling (in its event loop's thread, to which a poller belongs)");
        return 0;
    }
    return 1;
}

static int poller_grow(Poller *self)
{
    uint32_t room = self->room ? self->room * 2 : 8;
    void *channels, *rings;

    if (self->total < self->room)
        return 1;
    if (room > RINGS_MAX) {
        PyErr_SetString(PyExc_MemoryError, "too many rings in one event loop");
        return 0;
    }
    channels = PyMem_Realloc(self->channels, room * sizeof(*self->channels));
    if (channels)
        self->channels = channels;
    rings = PyMem_Realloc(self->rings, room * sizeof(*self->rings));
    if (rings)
        self->rings = rings;
    if (!channels || !rings) {
        PyErr_NoMemory();
        return 0;
    }
    self->room = room;
    return 1;
}

static void place(Poller *self, uint32_t at, Ring *ring)
{
    self->rings[at] = ring;
    self->channels[at] = &ring->channel;
    ring->at = at;
}

static void swap(Poller *self, uint32_t a, uint32_t b)
{
    Ring *ring = self->rings[a];

    place(self, a, self->rings[b]);
    place(self, b, ring);
}

/* Scan a ring again: it is being used, or its bell rang. */
void l5_poller_stir(Ring *ring)
{
    Poller *self = ring->poller;

    if (self && ring->at >= self->count)
        swap(self, ring->at, self->count++);
}

PyObject *l5_poller_add(Poller *self, PyObject *const *args, Py_ssize_t count)
{
    Ring *ring;

    if (count != 2 || !Py_IS_TYPE(args[0], &l5_RingType))
        return PyErr_Format(PyExc_TypeError, "add(ring, session)");
    ring = (Ring *)args[0];
    if (!l5_poller_ok(self) || !l5_ring_ready(ring) || !poller_grow(self))
        return NULL;
    if (ring->poller)
        return PyErr_Format(PyExc_ValueError, "this ring has a poller already");
    Py_INCREF(ring);
    Py_INCREF(self);
    ring->poller = self;
    ring->session = Py_NewRef(args[1]);
    self->beside |= l5_peer_beside(ring->channel.bell);
    place(self, self->total++, ring);
    l5_poller_stir(ring);
    Py_RETURN_NONE;
}

void l5_poller_drop(Poller *self, Ring *ring)
{
    if (ring->poller != self)
        return;
    if (ring->at < self->count)
        swap(self, ring->at, --self->count);
    swap(self, ring->at, --self->total);
    ring->poller = NULL;
    Py_CLEAR(ring->session);
    Py_DECREF(ring);
    Py_DECREF(self);
}

PyObject *l5_poller_remove(Poller *self, PyObject *ring)
{
    if (!Py_IS_TYPE(ring, &l5_RingType))
        return PyErr_Format(PyExc_TypeError, "remove(ring)");
    if (!l5_poller_ok(self))
        return NULL;
    l5_poller_drop(self, (Ring *)ring);
    Py_RETURN_NONE;
}

/* Take the rings out of the scan from which nothing came since the last time: a scan of a thousand
 * rings costs more than all else of a request.  They are armed, so whoever writes there rings, and
 * the bell, or a use of the ring, stirs it.  A word that is set is left as it is (it may ask for
 * space, too); arming for data only is enough for now, for who goes to sleep arms again. */
void l5_poller_rest(Poller *self)
{
    for (uint32_t i = self->count; i-- > 0;) {
        Ring *ring = self->rings[i];
        int silent = ring->frames_seen == ring->frames_received;

        ring->frames_seen = ring->frames_received;
        if (silent && (l5_channel_armed(&ring->channel) || !l5_channel_arm(&ring->channel, L5_ARM_DATA)))
            swap(self, i, --self->count);
    }
}
