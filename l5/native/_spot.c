/* The Spot as Python calls it, and a poller's spots.  See _spot.h. */
#include "_spot.h"

#include "mailbox.h"

enum { SPOTS_MAX = 65536, TAKEN_MAX = 256, LOOKS_UNTIMED = 64, LOOKS_PER_CLOCK = 32 };

/* ---- looking: no Python in here, the GIL may be released ------------------------------------- */

/* RING: where the next message stands, or will. */
static uint8_t *next_message(const Spot *spot)
{
    return spot->base + (spot->read & (spot->bytes - 1));
}

static int has_news(const Spot *spot)
{
    switch (spot->kind) {
    case SPOT_FLAGS:
        if (spot->bytes == 1)
            return l5_flag_acquire((const l5_flag_byte *)(const void *)spot->base) != 0;
        return l5_flags_any(spot->base, (uint32_t)spot->bytes);
    case SPOT_RING:
        /* Whole, not begun: a message that never ends must not keep its reader from sleeping. */
        return l5_message_ready(next_message(spot), (uint32_t)spot->limit) != 0;
    default:
        return spot->call(spot->argument) > 0;
    }
}

int l5_spots_news(const Poller *self)
{
    for (uint32_t i = 0; i < self->spot_count; i++)
        if (has_news(self->spots[i]))
            return 1;
    return 0;
}

static int look_times(Poller *self, int times)
{
    for (int i = 0; i < times; i++) {
        if (l5_spots_news(self) || l5_channels_news(self->channels, self->count))
            return 1;
        l5_relax();
    }
    return 0;
}

/* What `l5_spin` does, for rings and spots together. */
int l5_spots_spin(Poller *self, uint64_t budget_ns, uint64_t *spent_ns)
{
    uint64_t start, spent;
    int found;

    if (look_times(self, LOOKS_UNTIMED))
        return 1;
    start = l5_now_ns();
    do {
        found = look_times(self, LOOKS_PER_CLOCK);
        spent = l5_now_ns() - start;
    } while (!found && spent < budget_ns);
    *spent_ns += spent;
    return found;
}

/* The first spot with news, from behind the last one that was given; a new reference, or NULL. */
PyObject *l5_spots_next(Poller *self)
{
    for (uint32_t i = 0; i < self->spot_count; i++) {
        uint32_t at = (self->spot_cursor + i) % self->spot_count;

        if (has_news(self->spots[at])) {
            self->spot_cursor = at + 1;
            return Py_NewRef((PyObject *)self->spots[at]);
        }
    }
    return NULL;
}

int l5_spots_append(Poller *self, PyObject *list)
{
    for (uint32_t i = 0; i < self->spot_count; i++)
        if (has_news(self->spots[i]) && PyList_Append(list, self->spots[i]->session) < 0)
            return -1;
    return 0;
}

/* ---- membership --------------------------------------------------------------------------------- */

static int spots_grow(Poller *self)
{
    uint32_t room = self->spot_room ? self->spot_room * 2 : 4;
    void *spots;

    if (self->spot_count < self->spot_room)
        return 1;
    if (room > SPOTS_MAX) {
        PyErr_SetString(PyExc_MemoryError, "too many spots in one event loop");
        return 0;
    }
    spots = PyMem_Realloc(self->spots, room * sizeof(*self->spots));
    if (!spots) {
        PyErr_NoMemory();
        return 0;
    }
    self->spots = spots;
    self->spot_room = room;
    return 1;
}

PyObject *l5_poller_add_spot(Poller *self, PyObject *const *args, Py_ssize_t count)
{
    Spot *spot;

    if (count != 2 || !Py_IS_TYPE(args[0], &l5_SpotType))
        return PyErr_Format(PyExc_TypeError, "add_spot(spot, session)");
    spot = (Spot *)args[0];
    if (!l5_poller_ok(self) || !spots_grow(self))
        return NULL;
    if (spot->poller)
        return PyErr_Format(PyExc_ValueError, "this spot has a poller already");
    spot->poller = (Poller *)Py_NewRef((PyObject *)self);
    spot->session = Py_NewRef(args[1]);
    spot->at = self->spot_count;
    self->spots[self->spot_count++] = (Spot *)Py_NewRef((PyObject *)spot);
    Py_RETURN_NONE;
}

void l5_poller_drop_spot(Poller *self, Spot *spot)
{
    if (spot->poller != self)
        return;
    self->spots[spot->at] = self->spots[--self->spot_count];
    self->spots[spot->at]->at = spot->at;
    spot->poller = NULL;
    Py_CLEAR(spot->session);
    Py_DECREF((PyObject *)spot);
    Py_DECREF((PyObject *)self);
}

PyObject *l5_poller_remove_spot(Poller *self, PyObject *spot)
{
    if (!Py_IS_TYPE(spot, &l5_SpotType))
        return PyErr_Format(PyExc_TypeError, "remove_spot(spot)");
    if (!l5_poller_ok(self))
        return NULL;
    l5_poller_drop_spot(self, (Spot *)spot);
    Py_RETURN_NONE;
}

/* ---- the type ------------------------------------------------------------------------------------ */

static int spot_geometry_ok(const Spot *self)
{
    switch (self->kind) {
    case SPOT_FLAGS:
        if (self->base && self->bytes == 1)
            return 1;
        return self->base && !((uintptr_t)self->base % L5_FLAGS_BLOCK) && self->bytes <= UINT32_MAX &&
               self->bytes && !(self->bytes % L5_FLAGS_BLOCK);
    case SPOT_RING:
        return self->base && !((uintptr_t)self->base % L5_MESSAGE_ALIGN) &&
               self->bytes >= 4 * L5_MESSAGE_ALIGN && !(self->bytes & (self->bytes - 1)) && self->limit &&
               l5_message_padded(self->limit) <= self->bytes;
    case SPOT_CALL:
        return self->call != NULL;
    default:
        return 0;
    }
}

static int spot_init(Spot *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"kind", "address", "bytes", "limit", NULL};
    unsigned long long address, bytes = 0, limit = 0;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iK|KK", names, &self->kind, &address, &bytes, &limit))
        return -1;
    self->bytes = bytes;
    self->limit = limit;
    if (self->kind == SPOT_CALL) {
        self->call = (l5_spot_call)(uintptr_t)address;
        self->argument = (void *)(uintptr_t)bytes;
    } else {
        self->base = (uint8_t *)(uintptr_t)address;
    }
    if (spot_geometry_ok(self))
        return 0;
    self->kind = -1;
    PyErr_SetString(PyExc_ValueError, "this is no place to look at: kind, alignment or size is wrong");
    return -1;
}

static int spot_is(const Spot *self, enum spot_kind kind)
{
    if (self->kind == (int)kind && !(self->poller && self->poller->spinning))
        return 1;
    PyErr_SetString(l5_BusyResourceError, "using (a spot of another kind, or one that is spun for)");
    return 0;
}

static PyObject *spot_poll(Spot *self, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(self->kind >= 0 && has_news(self));
}

static PyObject *spot_scan(Spot *self, PyObject *most)
{
    uint32_t found[TAKEN_MAX];
    uint32_t count;
    unsigned long limit = PyLong_AsUnsignedLong(most);
    PyObject *list;

    if (PyErr_Occurred() || !spot_is(self, SPOT_FLAGS))
        return NULL;
    if (self->bytes == 1)
        return PyErr_Format(PyExc_ValueError, "a single flag is taken by take_flag(0)");
    count = l5_flags_scan(self->base, (uint32_t)self->bytes, (uint32_t)self->read, found,
                          limit < TAKEN_MAX ? (uint32_t)limit : TAKEN_MAX);
    if (count)
        self->read = (found[count - 1] + 1) % self->bytes;
    list = PyList_New(count);
    for (uint32_t i = 0; list && i < count; i++) {
        PyObject *place = PyLong_FromUnsignedLong(found[i]);

        if (!place)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, place);
    }
    return list;
}

/* Tell whether one flag was set, and take it. */
static PyObject *spot_take_flag(Spot *self, PyObject *place)
{
    unsigned long at = PyLong_AsUnsignedLong(place);

    if (PyErr_Occurred() || !spot_is(self, SPOT_FLAGS))
        return NULL;
    if (at >= self->bytes)
        return PyErr_Format(PyExc_IndexError, "there are %llu flags", (unsigned long long)self->bytes);
    return PyBool_FromLong(l5_flag_take((l5_flag_byte *)(void *)(self->base + at)));
}

/* Size of the message that stands at the read position; 0 if none is there or, unless `whole` says that
 * it is known to be, it is not complete. */
static int64_t ready_bytes(const Spot *self, const uint8_t *at, int whole)
{
    uint32_t size;

    if (!whole)
        return l5_message_ready(at, (uint32_t)self->limit);
    size = l5_size_acquire((const l5_size *)(const void *)at);
    return size && size <= self->limit ? (int64_t)size : -EPROTO;
}

static PyObject *spot_take(Spot *self, PyObject *whole)
{
    int known = PyObject_IsTrue(whole);
    uint8_t *at;
    int64_t size;
    uint64_t padded;
    PyObject *bytes;

    if (known < 0 || !spot_is(self, SPOT_RING))
        return NULL;
    at = next_message(self);
    size = ready_bytes(self, at, known);
    if (size < 0)
        return PyErr_Format(l5_RemoteProtocolError, "the peer wrote a message of an impossible size");
    if (!size)
        Py_RETURN_NONE;
    bytes = PyBytes_FromStringAndSize((const char *)at + 4, (Py_ssize_t)size);
    if (!bytes)
        return NULL;
    padded = l5_message_padded((uint64_t)size);
    l5_message_consume(at, padded);
    self->read += padded;
    return bytes;
}

/* Tell the peer's device how far this is: CONSUMED. */
static PyObject *spot_publish(Spot *self, PyObject *address)
{
    unsigned long long at = PyLong_AsUnsignedLongLong(address);

    if (PyErr_Occurred() || !spot_is(self, SPOT_RING))
        return NULL;
    l5_store_release((l5_word *)(uintptr_t)at, self->read);
    Py_RETURN_NONE;
}

static int spot_traverse(Spot *self, visitproc visit, void *arg)
{
    Py_VISIT(self->session);
    Py_VISIT((PyObject *)self->poller);
    return 0;
}

static int spot_clear(Spot *self)
{
    if (self->poller)
        l5_poller_drop_spot(self->poller, self);
    return 0;
}

static void spot_dealloc(Spot *self)
{
    PyObject_GC_UnTrack(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *spot_session(Spot *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(self->session ? self->session : Py_None);
}

/* Whoever leads a server's requests asks for it: see `Workers`. */
static PyObject *spot_server(Spot *self, void *Py_UNUSED(closure))
{
    return self->session ? PyObject_GetAttrString(self->session, "server") : Py_NewRef(Py_None);
}

static PyGetSetDef spot_getset[] = {
    {"server", (getter)spot_server, NULL, "who takes the requests of the session", NULL},
    {"session", (getter)spot_session, NULL, "whose this is, while it is added", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef spot_members[] = {
    {"read", T_ULONGLONG, offsetof(Spot, read), READONLY, "position of the next message, or of the next scan"},
    {"bytes", T_ULONGLONG, offsetof(Spot, bytes), READONLY, "of the flags, or of the ring"},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef spot_methods[] = {
    {"poll", (PyCFunction)spot_poll, METH_NOARGS, "poll() -> whether there is something"},
    {"scan", (PyCFunction)spot_scan, METH_O, "scan(most) -> places of flags, which are taken"},
    {"take_flag", (PyCFunction)spot_take_flag, METH_O, "take_flag(place) -> whether it was set"},
    {"publish", (PyCFunction)spot_publish, METH_O, "publish(address): store `read` there"},
    {"take", (PyCFunction)spot_take, METH_O, "take(whole) -> payload of the next message, or None"},
    {NULL, NULL, 0, NULL},
};

PyTypeObject l5_SpotType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.Spot",
    .tp_doc = "Spot(kind, address, bytes, limit): memory that a device writes, or a function to ask",
    .tp_basicsize = sizeof(Spot),
    .tp_dealloc = (destructor)spot_dealloc,
    .tp_traverse = (traverseproc)spot_traverse,
    .tp_clear = (inquiry)spot_clear,
    .tp_free = PyObject_GC_Del,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_methods = spot_methods,
    .tp_members = spot_members,
    .tp_getset = spot_getset,
    .tp_init = (initproc)spot_init,
    .tp_new = PyType_GenericNew,
};
