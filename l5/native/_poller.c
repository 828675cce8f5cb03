/* The Poller: the rings of one event loop, polled, spun for and served together.  See _fast.h. */
#include "_lane.h"
#include "_spot.h"

/* Note that a request has been handled; handlers that take long make the loop due by time. */
void l5_note_handled(Poller *self)
{
    uint64_t now;

    if (self->clock_in > 1) {
        self->clock_in--;
        return;
    }
    now = l5_now_ns();
    if (!self->turn_ns)
        self->turn_ns = now;
    if (now - self->clock_ns > (uint64_t)SLOW_HANDLER_NS * (self->clock_every ? self->clock_every : 1))
        self->clock_every = 1;
    else if (self->clock_every < CLOCK_EVERY_MAX)
        self->clock_every = self->clock_every ? self->clock_every * 2 : 1;
    self->clock_in = self->clock_every;
    self->clock_ns = now;
    if (self->dear_until_ns)
        l5_poller_note_here(self, now);
    self->overdue |= now - self->turn_ns > TURN_MAX_NS && now >= self->patient_until_ns; /* it may have been set by who wants to be heard */
}

/* Tell whether the event loop must run before the next request.  If it is due by the number of requests
 * alone, and they were quick, as many again come first: a trip costs as much as a dozen of those. */
static int turn_is_over(Poller *self)
{
    if (!l5_poller_due(self))
        return 0;
    if (self->overdue || !self->turn_ns || self->spun_ns >= SPUN_MAX_NS || self->yielded_ns >= YIELDED_MAX_NS ||
        l5_now_ns() - self->turn_ns >= TURN_MIN_NS)
        return 1;
    self->streak = 0;
    return 0;
}

/* ---- serving ---------------------------------------------------------------------------------- */

/* Tell whether there is the room that this ring's sender missed; it is told once. */
static int take_room(Ring *ring)
{
    if (!l5_channel_has_room(&ring->channel))
        return 0;
    ring->channel.tx_wanted = 0;
    return 1;
}

enum found { HANDED_UP = -1, NOTHING = 0, SOME = 1 };

/* Call the handler for one request; count for whom it was. */
static int handle(Poller *self, Ring *ring, uint64_t id, PyObject *payload, PyObject *handler, PyObject **up)
{
    const struct l5_channel *channel = &ring->channel;
    uint64_t bells = channel->bells_rung;
    int answered;

    l5_ring_begin_latency(ring);
    answered = l5_handle((PyObject *)ring, id, payload, handler, up);
    if (answered)
        l5_ring_end_latency(ring);
    if (channel->cpu < 0 || channel->peer_cpu != channel->cpu)
        self->since_turn++;
    else if (channel->bells_rung == bells)
        self->owes_turn = 1;
    l5_note_handled(self);
    return answered ? SOME : HANDED_UP;
}

/* Look at every ring once, the next one first, and handle at most one request of each: fair.
 * HANDED_UP: *up is for Python; or an exception is set, and it is NULL. */
static enum found scan(Poller *self, PyObject *server, PyObject *handler, PyObject **up)
{
    enum found found = NOTHING;
    struct l5_frame frame;
    uint32_t count = self->count;

    for (uint32_t i = 0; i < count && i < self->count && found != HANDED_UP; i++) {
        uint32_t at = self->cursor + 1 < self->count ? self->cursor + 1 : 0;
        Ring *ring = self->rings[at];
        PyObject *payload;
        int rc;

        self->cursor = at;
        if (!l5_channel_ready(&ring->channel)) {
            ring->sends_on = 0;
            if (!take_room(ring))
                continue;
            *up = Py_NewRef((PyObject *)ring);
            return HANDED_UP;
        }
        rc = l5_channel_peek(&ring->channel, &frame);
        if (rc != 1 || ring->server != server || frame.kind != L5_REQUEST || frame.flags ||
            ring->partials || ring->handling >= ring->handling_max) {
            *up = Py_NewRef((PyObject *)ring); /* the generic path sorts it out */
            return HANDED_UP;
        }
        payload = l5_ring_take(ring, &frame);
        if (!payload)
            return HANDED_UP;
        if (ring->sends_on)
            l5_channel_prefetch(&ring->channel, frame.size);
        ring->sends_on = 1;
        ring->handling++;
        self->streak++;
        Py_INCREF(ring); /* the handler may close it, and so may what the garbage collector ends */
        if (handler == Py_None) {
            *up = l5_hand_up("request", (PyObject *)ring, frame.id, payload, NULL);
            found = HANDED_UP;
        } else {
            found = handle(self, ring, frame.id, payload, handler, up);
            Py_DECREF(payload);
        }
        Py_DECREF(ring);
    }
    return found;
}

/* Rings, then lanes; lanes first after a ring was handed up, for another may be there each time. */
static enum found serve_all(Poller *self, PyObject *server, PyObject *handler, PyObject **up)
{
    enum found found = SOME; /* of the lanes or not: the rings have not been looked at */
    int progress = 0;

    if (!self->lanes_wait)
        found = scan(self, server, handler, up);
    self->lanes_wait = *up && self->hot_count;
    if (found == HANDED_UP || !self->hot_count)
        return found;
    *up = l5_lanes_turn(self, server, handler, &progress);
    if (*up || PyErr_Occurred())
        return HANDED_UP;
    return progress ? SOME : found;
}

PyDoc_STRVAR(serve_doc,
"serve(server, handler, wait=True) -> tuple | Ring | bool | None\n\n"
"Handle the requests of `server`'s rings, spinning for them, until something is not for C:\n"
"a tuple (what, ring, id, first, second), where what is 'request' (no handler: payload),\n"
"'suspended' (coroutine, yielded), 'raised' or 'unanswered' (exception), 'returned' (a reply that\n"
"was not sent); a ring that has a frame for the generic path, or a spot that has news; True: the\n"
"event loop is due; None: nothing came.");

static PyObject *poller_serve(Poller *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 && count != 3)
        return PyErr_Format(PyExc_TypeError, "serve(server, handler, wait=True)");
    if (!l5_poller_ok(self))
        return NULL;
    for (;;) {
        PyObject *up = NULL;
        enum found found;

        if (turn_is_over(self)) {
            up = l5_spots_next(self); /* its turn has come, however busy the rings are */
            return up ? up : Py_NewRef(Py_True);
        }
        found = serve_all(self, args[0], args[1], &up);
        if (found)
            self->waits = 0;
        if (found == HANDED_UP)
            return up;
        if (found || l5_poller_due(self)) {
            l5_poller_give_turn(self);
            continue;
        }
        if (!(self->count || self->spot_count) || !self->budget_ns || (count == 3 && args[2] == Py_False))
            Py_RETURN_NONE;
        if (!l5_poller_wait(self, self->budget_ns)) /* a client of a crowd, or of this loop, may not have the CPU just now */
            return Py_NewRef((self->serving > 1 || l5_poller_serves_itself(self)) && ++self->waits < CROWD_WAITS ? Py_True : Py_None);
        up = l5_spots_next(self);
        if (up)
            return up;
    }
}

/* The rings that have something; waits first while none has. */
static PyObject *poller_ready(Poller *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *list;

    if (!l5_poller_ok(self))
        return NULL;
    list = PyList_New(0);
    if (!list)
        return NULL;
    if ((self->count || self->spot_count) && self->budget_ns && !l5_poller_due(self))
        l5_poller_wait(self, self->budget_ns);
    for (uint32_t i = 0; i < self->count; i++)
        if ((l5_channel_ready(self->channels[i]) || take_room(self->rings[i])) &&
            PyList_Append(list, self->rings[i]->session) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    if (l5_spots_append(self, list) < 0)
        Py_CLEAR(list);
    return list;
}

static PyObject *poller_news(Poller *self, PyObject *Py_UNUSED(ignored))
{
    if (!l5_poller_ok(self))
        return NULL;
    return PyBool_FromLong(l5_channels_news(self->channels, self->count) || l5_spots_news(self));
}

/* The event loop has run, or a thread without one has slept. */
void l5_poller_breathe(Poller *self)
{
    self->streak = 0;
    self->spun_ns = self->yielded_ns = 0;
    self->turn_ns = 0;
    self->overdue = 0;
    self->patient_until_ns = 0;
    if (l5_poller_gil_dear(self))
        l5_poller_be_patient(self, l5_now_ns(), 2 * self->lost_ns);
    if (++self->breaths % REST_EVERY == 0 && self->count > REST_ABOVE && !self->spinning)
        l5_poller_rest(self);
    if (!self->spinning)
        l5_poller_look_around(self);
}

static PyObject *poller_breathe(Poller *self, PyObject *Py_UNUSED(ignored))
{
    l5_poller_breathe(self);
    Py_RETURN_NONE;
}

static PyObject *poller_due(Poller *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(l5_poller_due(self));
}

static int poller_init(Poller *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"spin_us", NULL};
    unsigned int spin_us;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "I", names, &spin_us))
        return -1;
    self->budget_ns = (uint64_t)spin_us * 1000u;
    self->thread = PyThread_get_thread_ident();
    return 0;
}

static int poller_traverse(Poller *self, visitproc visit, void *arg)
{
    for (uint32_t i = 0; i < self->total; i++)
        Py_VISIT(self->rings[i]);
    for (uint32_t i = 0; i < self->spot_count; i++)
        Py_VISIT((PyObject *)self->spots[i]);
    for (uint32_t fd = 0; fd < self->lane_room; fd++)
        Py_VISIT((PyObject *)self->lanes[fd]);
    return 0;
}

static int poller_clear(Poller *self)
{
    while (self->total)
        l5_poller_drop(self, self->rings[self->total - 1]);
    while (self->spot_count)
        l5_poller_drop_spot(self, self->spots[self->spot_count - 1]);
    for (uint32_t fd = 0; fd < self->lane_room; fd++)
        if (self->lanes[fd])
            l5_poller_drop_lane(self, self->lanes[fd]);
    return 0;
}

static void poller_dealloc(Poller *self)
{
    PyObject_GC_UnTrack(self);
    PyMem_Free(self->channels);
    PyMem_Free(self->rings);
    PyMem_Free(self->spots);
    PyMem_Free(self->lanes);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyGetSetDef poller_getset[] = {
    {"due", (getter)poller_due, NULL, "the event loop must run before the next message", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef poller_members[] = {
    {"count", T_UINT, offsetof(Poller, count), READONLY, "rings that are scanned"},
    {"total", T_UINT, offsetof(Poller, total), READONLY, "rings, with those that rest"},
    {"spots", T_UINT, offsetof(Poller, spot_count), READONLY, "what else is looked at"},
    {"spinning", T_BOOL, offsetof(Poller, spinning), READONLY, "a thread spins; no other may come in"},
    {"lanes", T_UINT, offsetof(Poller, lane_count), READONLY, "plain sockets with a short way"},
    {"hot", T_UINT, offsetof(Poller, hot_count), READONLY, "lanes that have requests, or may have"},
    {"budget_ns", T_ULONGLONG, offsetof(Poller, budget_ns), 0, "spin budget"},
    {"patient_until_ns", T_ULONGLONG, offsetof(Poller, patient_until_ns), READONLY, "the event loop may wait until then"},
    {"overdue", T_INT, offsetof(Poller, overdue), 0, "the event loop must run now, whatever its patience"},
    {"yield_only", T_INT, offsetof(Poller, yield_only), 0, "never spin, only yield"},
    {"movable", T_UINT, offsetof(Poller, movable), 0, "CPUs of the machine, if we may leave one; 0: never"},
    {"shared", T_INT, offsetof(Poller, shared), 0, "any thread may use it that holds the connection's lock"},
    {"spun_total_ns", T_ULONGLONG, offsetof(Poller, spun_total_ns), READONLY, "time spent spinning"},
    {"inner", T_UINT, offsetof(Poller, inner), READONLY, "connections of which both ends are here"},
    {"spins", T_ULONGLONG, offsetof(Poller, spins), READONLY, "how often it had to spin"},
    {"yielded_total_ns", T_ULONGLONG, offsetof(Poller, yielded_total_ns), READONLY, "time spent yielding"},
    {"yields", T_ULONGLONG, offsetof(Poller, yields), READONLY, "how often it yielded instead"},
    {"moves", T_ULONGLONG, offsetof(Poller, moves), READONLY, "how often it left its server's CPU"},
    {"turns", T_ULONGLONG, offsetof(Poller, turns), READONLY, "how often a spin let go of the GIL"},
    {"rests", T_ULONGLONG, offsetof(Poller, rests), READONLY, "how often the loop slept over one ring alone"},
    {"rested_ns", T_ULONGLONG, offsetof(Poller, rested_ns), READONLY, "for how long"},
    {"crowd", T_UINT, offsetof(Poller, crowd), READONLY, "clients of the same server, as that says"},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef poller_methods[] = {
    {"add", (PyCFunction)(void (*)(void))l5_poller_add, METH_FASTCALL, "add(ring, session)"},
    {"remove", (PyCFunction)l5_poller_remove, METH_O, "remove(ring)"},
    {"add_spot", (PyCFunction)(void (*)(void))l5_poller_add_spot, METH_FASTCALL, "add_spot(spot, session)"},
    {"remove_spot", (PyCFunction)l5_poller_remove_spot, METH_O, "remove_spot(spot)"},
    {"add_lane", (PyCFunction)(void (*)(void))l5_poller_add_lane, METH_FASTCALL, "add_lane(lane, session)"},
    {"remove_lane", (PyCFunction)l5_poller_remove_lane, METH_O, "remove_lane(lane)"},
    {"glance", (PyCFunction)(void (*)(void))l5_poller_glance, METH_FASTCALL, l5_glance_doc},
    {"serve", (PyCFunction)(void (*)(void))poller_serve, METH_FASTCALL, serve_doc},
    {"ready", (PyCFunction)poller_ready, METH_NOARGS, "ready() -> sessions whose rings or spots have something"},
    {"news", (PyCFunction)poller_news, METH_NOARGS, "Tell whether any has something, without waiting."},
    {"breathe", (PyCFunction)poller_breathe, METH_NOARGS, "The event loop has run."},
    {"slept", (PyCFunction)l5_poller_slept, METH_O, "slept(ns): the event loop had nothing to do for so long"},
    {"lost", (PyCFunction)l5_poller_note_lost, METH_O, "lost(ns): what may have let go of the GIL took so long"},
    {NULL, NULL, 0, NULL},
};

PyTypeObject l5_PollerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.Poller",
    .tp_doc = "Poller(spin_us): the rings of one event loop",
    .tp_basicsize = sizeof(Poller),
    .tp_dealloc = (destructor)poller_dealloc,
    .tp_traverse = (traverseproc)poller_traverse,
    .tp_clear = (inquiry)poller_clear,
    .tp_free = PyObject_GC_Del,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_methods = poller_methods,
    .tp_members = poller_members,
    .tp_getset = poller_getset,
    .tp_init = (initproc)poller_init,
    .tp_new = PyType_GenericNew,
};
