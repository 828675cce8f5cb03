/* The rings of a Poller: which it has, and which of them it scans.  See _fast.h. */
#include "_fast.h"

#include <sys/stat.h>

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

/* ---- both ends in one loop --------------------------------------------------------------------- */

/* The number of a descriptor's file, of which no other has the same while it is open; 0: unknown. */
uint64_t l5_file_number(int fd)
{
    struct stat status;

    return fstat(fd, &status) ? 0 : (uint64_t)status.st_ino;
}

/* Find the other end of a ring that was just added.  Who is at the other end of its socket is this very
 * process, or else somebody may have shown us the memory of another connection of ours. */
static void join_ends(Poller *self, Ring *ring)
{
    if (!ring->file || !l5_peer_beside(ring->channel.bell))
        return;
    self->beside = 1;
    for (uint32_t i = 0; i < self->total; i++) {
        Ring *other = self->rings[i];

        if (other->file == ring->file && other->channel.role != ring->channel.role && !other->other_end) {
            ring->other_end = other;
            other->other_end = ring;
            self->inner++;
            return;
        }
    }
}

static void part_ends(Poller *self, Ring *ring)
{
    if (!ring->other_end)
        return;
    ring->other_end->other_end = NULL;
    ring->other_end = NULL;
    self->inner--;
}

PyObject *l5_ring_get_server_here(Ring *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->other_end && self->other_end->server ? self->other_end->server : Py_None);
}

/* Tell whether a wait would keep from running what it waits for: a connection is in use of which both
 * ends are here, or there are no others. */
int l5_poller_serves_itself(const Poller *self)
{
    uint32_t others = 0;

    if (!self->inner)
        return 0;
    for (uint32_t i = 0; i < self->count; i++) {
        if (!self->rings[i]->other_end)
            others++;
        else if (!l5_channel_armed(self->channels[i]))
            return 1;
    }
    return !others && !self->spot_count;
}

/* ---- members ----------------------------------------------------------------------------------- */

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
    join_ends(self, ring);
    place(self, self->total++, ring);
    l5_poller_stir(ring);
    Py_RETURN_NONE;
}

void l5_poller_drop(Poller *self, Ring *ring)
{
    if (ring->poller != self)
        return;
    part_ends(self, ring);
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
