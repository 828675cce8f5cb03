/* AdaptivePolicy's state machine in C: what `l5/_adaptive_model.py` says and why, step by step and bit by bit.
 *
 *   choose    --> by what is known of both ways, and by the share that heartbeats allow; one more is outstanding
 *   observe   --> one less is, or several less; the latency goes into its way's average and floor
 *   heartbeat --> the share takes a step
 *
 *   is the client's own way shorter?  --yes--> the client, the server when it is due for a try
 *     |no                                      (or has none of several requests, and is not far slower)
 *   of several requests at a time, does more get done if all stay?  --yes--> the client, as above
 *     |no, or there is one at a time
 *   does the share let it go to the server?  --no--> the client, too
 *     |yes
 *   has the server answered lately, and less than its share under way?  --no--> the client
 *     |yes
 *   the server, the client when it is due for a try
 *
 * Nothing is allocated after `__init__`, and `choose` draws no lots.  The tests compare every choice with the
 * model's, which has to do its sums in the same order, without fused multiplications (build.py). */
#include "_fast.h"

#include "_adaptive_way.h"
#include "_adaptive_windows.h"

enum { SERVER = 0, CLIENT = 1 };
enum { FIRST = 64, CLEAR_AFTER = 2 };

static const double MUCH = 4.0, PRICE = 2.0, WINDOW = 4.0, CLEAR = 8.0;
static const double RETURN_MAX = 2.0, RETURN_PAYS = 1.2, SHARE_MIN = 1e-4, SHARE_MAX = 0.99;

typedef struct {
    PyObject_HEAD
    PyObject *random; /* strong */
    Way of[2];
    long long n, busy_rounds, sequence;
    double threshold, interval_s, explore, stale_s;
    double server_share, credit, due, last;
    int until_first, busy; /* requests before the client's way is tried; what the server said last */
    Windows windows;
} Adaptive;

/* ---- both ------------------------------------------------------------------------------------ */

static void forget_all(Adaptive *self, double now)
{
    way_forget(&self->of[SERVER]);
    way_forget(&self->of[CLIENT]);
    self->server_share = 1.0;
    self->busy_rounds = 0;
    self->busy = 0;
    self->until_first = FIRST;
    self->due = INFINITY;
    windows_forget(&self->windows, now);
}

/* Forget what was before a long silence. */
static void wake(Adaptive *self, double now)
{
    if (now - self->last > self->stale_s)
        forget_all(self, now);
    self->last = now;
}

static void go_back(Adaptive *self, double factor)
{
    double more = self->server_share * factor, share = more / (more + 1.0 - self->server_share);

    self->busy_rounds = 0;
    self->server_share = share <= SHARE_MAX ? share : 1.0;
}

/* How many times slower the client's way is at its best; 1 where that may change. */
static double clearness(const Adaptive *self)
{
    const Way *server = &self->of[SERVER], *client = &self->of[CLIENT];

    if (client->count < CLEAR_AFTER || !server->count || self->busy)
        return 1.0;
    if (!(client->mean > server->mean && client->floor > server->floor))
        return 1.0;
    return client->floor >= server->floor * CLEAR ? CLEAR : client->floor / server->floor;
}

static int is_shorter(const Way *server, const Way *client)
{
    if (!(client->mean < server->mean))
        return 0;
    return client->floor < server->floor || client->mean * MUCH < server->mean;
}

/* Whether the server has answered nothing for a while, or has its share of what is under way. */
static int has_enough(const Adaptive *self, double now)
{
    const Way *server = &self->of[SERVER], *client = &self->of[CLIENT];
    long long under_way = server->outstanding + client->outstanding + 1;

    if (now - server->moved_at > server->mean + client->mean)
        return 1;
    return (double)server->outstanding >= self->server_share * (double)under_way;
}

/* Whether the server gets none of several requests, which it might have. */
static int keeps_all(Adaptive *self)
{
    const Way *server = &self->of[SERVER], *client = &self->of[CLIENT];

    if (!(server->outstanding + client->outstanding) || !server->count || !client->count)
        return 0;
    if (!(way_next_s(client) < way_next_s(server) * PRICE && client->floor < server->floor * PRICE))
        return 0;
    self->windows.offered = 1;
    return !self->windows.lends;
}

/* Whether the server, which would get nothing, gets one of several requests. */
static int may_have_one(Adaptive *self)
{
    const Way *server = &self->of[SERVER], *client = &self->of[CLIENT];

    if (server->outstanding || !client->outstanding || !server->count || !client->count)
        return 0;
    if (!(way_next_s(server) < way_next_s(client) * PRICE))
        return 0;
    self->windows.offered = 1;
    return self->windows.lends;
}

static int next_path(Adaptive *self, double now)
{
    Way *server = &self->of[SERVER], *client = &self->of[CLIENT];
    double credit;

    way_forgive(server, now, self->stale_s);
    way_forgive(client, now, self->stale_s);
    if (client->count && is_shorter(server, client))
        return way_is_due(server, now, self->explore) || may_have_one(self) ? SERVER : CLIENT;
    if (keeps_all(self))
        return way_is_due(server, now, self->explore) ? SERVER : CLIENT;
    credit = self->credit + self->server_share;
    if (credit < 1.0) {
        self->credit = credit;
        return may_have_one(self) ? SERVER : CLIENT;
    }
    self->credit = credit - 1.0;
    if (!client->count) {
        if (self->until_first) {
            self->until_first--;
            return SERVER;
        }
        return client->outstanding ? SERVER : CLIENT;
    }
    if (server->outstanding && has_enough(self, now))
        return CLIENT;
    return way_is_due(client, now, self->explore / clearness(self)) ? CLIENT : SERVER;
}

static int leaving_pays(const Adaptive *self)
{
    return !self->of[SERVER].count || self->of[CLIENT].mean < way_takes_s(&self->of[SERVER]) * PRICE;
}

static int is_ready(const Adaptive *self)
{
    if (self->random && l5_policy_paths[CLIENT])
        return 1;
    PyErr_SetString(PyExc_RuntimeError, "this policy was not initialised");
    return 0;
}

/* Draw a lot; -1 with an error set. */
static int draw(Adaptive *self, double *lot)
{
    PyObject *drawn = is_ready(self) ? PyObject_CallNoArgs(self->random) : NULL;

    if (!drawn)
        return -1;
    *lot = PyFloat_AsDouble(drawn);
    Py_DECREF(drawn);
    return *lot == -1.0 && PyErr_Occurred() ? -1 : 0;
}

static int leave(Adaptive *self)
{
    double lot, away, left;

    self->busy_rounds++;
    if (draw(self, &lot) < 0)
        return -1;
    away = ((double)(self->busy_rounds - 1) + lot) / (double)self->n;
    left = self->server_share * (1.0 - (away < 0.5 ? away : 0.5));
    self->server_share = left > SHARE_MIN ? left : SHARE_MIN;
    return 0;
}

/* ---- as Python calls it ---------------------------------------------------------------------- */

static PyObject *adaptive_choose(Adaptive *self, PyObject *now)
{
    double now_s = PyFloat_CheckExact(now) ? PyFloat_AS_DOUBLE(now) : PyFloat_AsDouble(now);
    Way *way;
    int path;

    if (now_s == -1.0 && PyErr_Occurred())
        return NULL;
    if (!is_ready(self))
        return NULL;
    wake(self, now_s);
    if (now_s >= self->due) {
        self->due = now_s + self->interval_s;
        go_back(self, RETURN_MAX);
    }
    if (now_s - self->windows.at >= self->interval_s * WINDOW)
        windows_judge(&self->windows, now_s, self->interval_s * WINDOW, self->explore);
    self->windows.requests++;
    path = next_path(self, now_s);
    way = &self->of[path];
    if (way->outstanding == 0)
        way->moved_at = now_s;
    way->outstanding++;
    way->passed_by = 0;
    self->of[!path].passed_by++;
    return Py_NewRef(l5_policy_paths[path]);
}

static PyObject *adaptive_observe(Adaptive *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *all[L5_OBSERVE_MAX] = {NULL};
    long long requests = 1;
    double latency_s, now, load;
    Way *way;

    if (l5_policy_observed(all, args, count, names) < 0)
        return NULL;
    latency_s = PyFloat_AsDouble(all[1]);
    if (latency_s == -1.0 && PyErr_Occurred())
        return NULL;
    now = PyFloat_AsDouble(all[2]);
    if (now == -1.0 && PyErr_Occurred())
        return NULL;
    if (all[4]) {
        requests = PyLong_AsLongLong(all[4]);
        if (requests < 0)
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "requests=%lld: there are no fewer than 0", requests);
    }
    way = &self->of[all[0] == l5_policy_paths[SERVER] ? SERVER : CLIENT];
    load = requests == 1 && way->outstanding > 1 ? (double)way->outstanding : 1.0;
    way->outstanding = way->outstanding > requests ? way->outstanding - requests : 0;
    if (latency_s >= 0.0 && latency_s < INFINITY) {
        way_add(way, latency_s, now, self->interval_s * WINDOW);
        way_note(way, latency_s, now, OUTLIER, load);
        way->moved_at = now;
    } else if (!(latency_s < 0.0)) { /* came to nothing: it took longer than usual until then, or says nothing */
        double waited_s = now - way->moved_at;

        if (way->mean < waited_s && waited_s < INFINITY && way->count)
            way_note(way, waited_s, now, INFINITY, load);
    }
    Py_RETURN_NONE;
}

static PyObject *adaptive_heartbeat(Adaptive *self, PyObject *args, PyObject *named)
{
    static char *words[] = {"busy_share", "sequence", "now", NULL};
    double busy_share, now;
    long long sequence;

    if (!PyArg_ParseTupleAndKeywords(args, named, "dLd:heartbeat", words, &busy_share, &sequence, &now))
        return NULL;
    if (sequence == self->sequence)
        Py_RETURN_NONE;
    wake(self, now);
    self->sequence = sequence;
    self->due = now + 2.0 * self->interval_s;
    self->busy = busy_share > self->threshold;
    if (!self->busy) {
        double more = busy_share * RETURN_MAX > self->threshold ? self->threshold / busy_share : RETURN_MAX;

        go_back(self, more);
    } else if (leaving_pays(self)) {
        if (leave(self) < 0)
            return NULL;
    } else {
        go_back(self, RETURN_PAYS);
    }
    Py_RETURN_NONE;
}

static int adaptive_init(Adaptive *self, PyObject *args, PyObject *Py_UNUSED(named))
{
    PyObject *random;
    double credit, jitter;

    if (!PyArg_ParseTuple(args, "OLdddd", &random, &self->n, &self->threshold, &self->interval_s, &self->explore,
                          &self->stale_s))
        return -1;
    if (self->n < 1 || self->random) {
        PyErr_SetString(PyExc_ValueError, "a round of at least 1 request was expected, once");
        return -1;
    }
    self->random = Py_NewRef(random);
    self->sequence = -1;
    self->last = -INFINITY;
    forget_all(self, 0.0);
    if (draw(self, &credit) < 0 || draw(self, &jitter) < 0)
        return -1;
    self->credit = credit;
    self->explore /= 0.5 + jitter;
    return 0;
}

static int adaptive_traverse(Adaptive *self, visitproc visit, void *arg)
{
    Py_VISIT(self->random);
    return 0;
}

static int adaptive_clear(Adaptive *self)
{
    Py_CLEAR(self->random);
    return 0;
}

static void adaptive_dealloc(Adaptive *self)
{
    PyObject_GC_UnTrack(self);
    (void)adaptive_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *adaptive_outstanding(Adaptive *self, void *Py_UNUSED(closure))
{
    return Py_BuildValue("LL", self->of[SERVER].outstanding, self->of[CLIENT].outstanding);
}

static PyMethodDef adaptive_methods[] = {
    {"choose", (PyCFunction)adaptive_choose, METH_O, "Return the path of the next request."},
    {"observe", (PyCFunction)(void (*)(void))adaptive_observe, METH_FASTCALL | METH_KEYWORDS,
     "Take note of what became of a request, or of some at once."},
    {"heartbeat", (PyCFunction)(void (*)(void))adaptive_heartbeat, METH_VARARGS | METH_KEYWORDS,
     "Take one step, away from the server or back to it."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef adaptive_members[] = {
    {"n", T_LONGLONG, offsetof(Adaptive, n), READONLY, "the part of the requests of a round"},
    {"threshold", T_DOUBLE, offsetof(Adaptive, threshold), READONLY, "over which the server is busy"},
    {"interval_s", T_DOUBLE, offsetof(Adaptive, interval_s), READONLY, "between heartbeats"},
    {"stale_s", T_DOUBLE, offsetof(Adaptive, stale_s), READONLY, "after which all is forgotten"},
    {"server_share", T_DOUBLE, offsetof(Adaptive, server_share), READONLY, "what heartbeats let go to the server"},
    {"busy_rounds", T_LONGLONG, offsetof(Adaptive, busy_rounds), READONLY, "heartbeats in a row that said busy"},
    {"lends", T_INT, offsetof(Adaptive, windows.lends), READONLY, "whether the server gets some of several requests, just now"},
    {"server_s", T_DOUBLE, offsetof(Adaptive, of[SERVER].mean), READONLY, "what a request to the server takes"},
    {"client_s", T_DOUBLE, offsetof(Adaptive, of[CLIENT].mean), READONLY, "what one of the client's own takes"},
    {"server_least_s", T_DOUBLE, offsetof(Adaptive, of[SERVER].floor), READONLY, "the same, at its best"},
    {"client_least_s", T_DOUBLE, offsetof(Adaptive, of[CLIENT].floor), READONLY, "the same, at its best"},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef adaptive_getset[] = {
    {"outstanding", (getter)adaptive_outstanding, NULL, "requests under way to the server, and of the client's own", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject l5_AdaptiveType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.Adaptive",
    .tp_doc = "The state of the policy that adaptive clients have.",
    .tp_basicsize = sizeof(Adaptive),
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)adaptive_init,
    .tp_dealloc = (destructor)adaptive_dealloc,
    .tp_traverse = (traverseproc)adaptive_traverse,
    .tp_clear = (inquiry)adaptive_clear,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_methods = adaptive_methods,
    .tp_members = adaptive_members,
    .tp_getset = adaptive_getset,
};
