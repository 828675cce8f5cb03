/* The lanes of a Poller: which it has, which have news, whose turn it is.  See _lane.h. */
#include "_lane.h"

#include <sys/epoll.h>

enum { EVENTS_MAX = 64, TURN_MIN = 4 };

/* ---- members --------------------------------------------------------------------------------- */

static int grow(Poller *self, uint32_t fd)
{
    uint32_t room = self->lane_room ? self->lane_room : 16;
    Lane **lanes;

    if (fd < self->lane_room)
        return 1;
    while (room <= fd)
        room *= 2; /* descriptors are small: they are bounded by the limit on open files */
    lanes = PyMem_Realloc(self->lanes, room * sizeof(Lane *));
    if (!lanes)
        return PyErr_NoMemory(), 0;
    memset(lanes + self->lane_room, 0, (room - self->lane_room) * sizeof(Lane *));
    self->lanes = lanes;
    self->lane_room = room;
    return 1;
}

PyObject *l5_poller_add_lane(Poller *self, PyObject *const *args, Py_ssize_t count)
{
    Lane *lane;

    if (count != 2 || !Py_IS_TYPE(args[0], &l5_LaneType))
        return PyErr_Format(PyExc_TypeError, "add_lane(lane, session)");
    lane = (Lane *)args[0];
    if (!l5_poller_ok(self))
        return NULL;
    if (lane->fd < 0 || lane->poller)
        return PyErr_Format(PyExc_ValueError, "this lane is closed, or has a poller already");
    if (!grow(self, (uint32_t)lane->fd))
        return NULL;
    if (self->lanes[lane->fd])
        return PyErr_Format(PyExc_ValueError, "descriptor %d has a lane already", lane->fd);
    self->lanes[lane->fd] = (Lane *)Py_NewRef((PyObject *)lane);
    lane->poller = (Poller *)Py_NewRef((PyObject *)self);
    lane->session = Py_NewRef(args[1]);
    self->lane_count++;
    Py_RETURN_NONE;
}

static void push(Poller *self, Lane *lane)
{
    if (!self->hot)
        self->hot_end = &self->hot;
    lane->hot = 1;
    lane->next = NULL;
    *self->hot_end = lane;
    self->hot_end = &lane->next;
    self->hot_count++;
}

static Lane *pop(Poller *self)
{
    Lane *lane = self->hot;

    self->hot = lane->next;
    lane->next = NULL;
    lane->hot = 0;
    self->hot_count--;
    return lane;
}

static void unlink_hot(Poller *self, Lane *lane)
{
    Lane *one;

    for (uint32_t left = lane->hot ? self->hot_count : 0; left; left--) {
        one = pop(self);
        if (one != lane)
            push(self, one); /* all others once round: their order stays */
    }
}

void l5_poller_drop_lane(Poller *self, Lane *lane)
{
    if (lane->poller != self)
        return;
    unlink_hot(self, lane);
    self->lanes[lane->fd] = NULL;
    self->lane_count--;
    lane->poller = NULL;
    Py_CLEAR(lane->session);
    Py_DECREF(lane);
    Py_DECREF(self);
}

PyObject *l5_poller_remove_lane(Poller *self, PyObject *lane)
{
    if (!Py_IS_TYPE(lane, &l5_LaneType))
        return PyErr_Format(PyExc_TypeError, "remove_lane(lane)");
    if (!l5_poller_ok(self))
        return NULL;
    l5_poller_drop_lane(self, (Lane *)lane);
    Py_RETURN_NONE;
}

/* ---- news ------------------------------------------------------------------------------------ */

const char l5_glance_doc[] =
    "glance(epoll_fd, server) -> [(fd, mask)]\n\n"
    "Ask an epoll descriptor, without waiting.  Lanes that are readable and can be served join the queue\n"
    "(see `hot`), their servers' `on_news` is called unless they are `server`; the other descriptors are\n"
    "returned, errors as readable.";

/* Put a lane into the queue; -1: an exception. */
static int stir(Poller *self, Lane *lane, PyObject *server)
{
    PyObject *done;

    if (lane->hot)
        return 0;
    push(self, lane);
    if (lane->server == server)
        return 0;
    done = PyObject_CallMethod(lane->server, "on_news", NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static int append(PyObject *list, int fd, unsigned mask)
{
    PyObject *pair = Py_BuildValue("(iI)", fd, mask & ~(unsigned)(EPOLLIN | EPOLLOUT) ? mask | EPOLLIN : mask);
    int rc = pair ? PyList_Append(list, pair) : -1;

    Py_XDECREF(pair);
    return rc;
}

PyObject *l5_poller_glance(Poller *self, PyObject *const *args, Py_ssize_t count)
{
    struct epoll_event events[EVENTS_MAX];
    PyObject *list;
    int found, rc = 0;

    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "glance(epoll_fd, server)");
    if (!l5_poller_ok(self))
        return NULL;
    found = epoll_wait((int)PyLong_AsLong(args[0]), events, EVENTS_MAX, 0);
    if (PyErr_Occurred())
        return NULL;
    if (found < 0 && errno != EINTR)
        return PyErr_SetFromErrno(PyExc_OSError);
    list = PyList_New(0);
    for (int i = 0; list && i < found && !rc; i++) {
        int fd = events[i].data.fd;
        Lane *lane = fd >= 0 && (uint32_t)fd < self->lane_room ? self->lanes[fd] : NULL;

        if (lane && events[i].events == EPOLLIN && l5_lane_serves(lane))
            rc = stir(self, lane, args[1]);
        else
            rc = append(list, fd, events[i].events);
    }
    if (rc)
        Py_CLEAR(list);
    return list;
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* Up to `quota` requests of one lane.  NULL without an exception: go on. */
static PyObject *turn(Poller *self, Lane *lane, PyObject *handler, uint32_t quota, int *progress)
{
    PyObject *payload, *up = NULL;
    uint64_t id;
    int rc;

    while (quota-- && !up && l5_lane_serves(lane)) {
        rc = l5_lane_next(lane, &id, &payload);
        if (rc == 0)
            return NULL;
        *progress = 1;
        if (rc != 1)
            return rc < 0 ? NULL : Py_NewRef((PyObject *)lane);
        lane->handling++;
        self->streak++;
        if (handler == Py_None)
            up = l5_hand_up("request", (PyObject *)lane, id, Py_NewRef(payload), NULL);
        else
            l5_handle((PyObject *)lane, id, payload, handler, &up);
        l5_note_handled(self);
        Py_DECREF(payload);
        if (PyErr_Occurred() || l5_poller_due(self))
            break;
        if (!lane->rest && !lane->more)
            break; /* the socket is empty, or its event comes again */
    }
    return up;
}

/* Go once through the lanes that have requests, or may have: a turn for each, the others next. */
PyObject *l5_lanes_turn(Poller *self, PyObject *server, PyObject *handler, int *progress)
{
    uint32_t count = self->hot_count, quota = STREAK_MAX / count > TURN_MIN ? STREAK_MAX / count : TURN_MIN;
    PyObject *up = NULL;

    for (; count && self->hot_count && !up && !PyErr_Occurred() && !l5_poller_due(self); count--) {
        Lane *lane = pop(self);

        if (lane->server != server && l5_lane_serves(lane)) {
            push(self, lane); /* another server's: it has been told */
            continue;
        }
        if (!l5_lane_serves(lane)) {
            if (lane->rest) /* the channel takes it: whatever stands in the way, it knows */
                up = Py_NewRef((PyObject *)lane);
            continue;
        }
        Py_INCREF(lane); /* the handler may close it */
        up = turn(self, lane, handler, quota, progress);
        if (lane->poller == self && !lane->hot && (lane->rest || lane->more))
            push(self, lane);
        Py_DECREF(lane);
    }
    return up;
}
