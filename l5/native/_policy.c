/* LatencyPolicy's state machine in C: what `l5/_offload_model.py` says, step by step and bit by bit.
 *
 *   choose  --> while `until_event` is not 0 and nobody was silent: `better`; one counter goes down
 *   observe --> `fresh` of that path's history, while there is room; more, or what is no time, is not looked at
 *   event   --> fresh latencies, without outliers, become one batch of the moving average; judge
 *
 *   history:  | batch | batch | ... | batch |   a ring, oldest first: count, sum, sum of squares
 *
 * A request costs two calls of a few dozen instructions; an event comes every REQUESTS requests, and
 * no memory is taken after `__init__`.  The tests compare every choice with the model's, which has to do its
 * sums in the same order, without fused multiplications (build.py). */
#include <math.h>

#include "_fast.h"

enum { REQUESTS = 128, BATCH = 16, KNOWN = 8, WINDOW_MAX = 65536 };
enum { SERVER = 0, CLIENT = 1 };

static const double GAP_MAX = 1e15;

typedef struct {
    Py_ssize_t count;
    double total, squares;
} Batch;

typedef struct {
    Batch *batches; /* room for window + 1 */
    Py_ssize_t window, first, used;
    Py_ssize_t count, kept, dropped;
    double outlier, sum, squares, mean;
    Py_ssize_t fresh_count;
    double fresh[BATCH];
} History;

typedef struct {
    PyObject_HEAD
    PyObject *random; /* strong */
    History of[2];
    Py_ssize_t reads_count;
    double reads_fresh[BATCH];
    double explore, stale_s, reads_first, last;
    double reads, round_trip_s;
    long long until_digest, until_other, until_event;
    int better;
} Latencies;

/* ---- one path's latencies -------------------------------------------------------------------- */

static void history_forget(History *self)
{
    self->first = self->used = 0;
    self->count = self->kept = self->dropped = self->fresh_count = 0;
    self->sum = self->squares = self->mean = 0.0;
}

static void history_add(History *self, Batch batch)
{
    Py_ssize_t room = self->window + 1;

    self->batches[(self->first + self->used++) % room] = batch;
    self->count += batch.count;
    self->sum += batch.total;
    self->squares += batch.squares;
    while (self->count - self->batches[self->first].count >= self->window) {
        const Batch *oldest = &self->batches[self->first];

        self->count -= oldest->count;
        self->sum -= oldest->total;
        self->squares -= oldest->squares;
        self->first = (self->first + 1) % room;
        self->used--;
    }
    self->mean = self->sum / (double)self->count;
}

/* Leave out what lies too far from the average. */
static void history_filter(History *self)
{
    double variance = self->squares / (double)self->count - self->mean * self->mean;
    double deviation = sqrt(variance > 0.0 ? variance : 0.0), least = 0.01 * self->mean;
    double far = self->outlier * (deviation > least ? deviation : least);
    double low = self->mean - far, high = self->mean + far;
    Py_ssize_t kept = 0;

    for (Py_ssize_t i = 0; i < self->fresh_count; i++)
        if (low < self->fresh[i] && self->fresh[i] < high)
            self->fresh[kept++] = self->fresh[i];
    self->kept += kept;
    self->dropped += self->fresh_count - kept;
    self->fresh_count = kept;
}

static void history_digest(History *self)
{
    Batch batch = {0, 0.0, 0.0};

    if (self->count >= KNOWN)
        history_filter(self);
    if (self->kept + self->dropped >= self->window) {
        if (self->dropped > self->kept) { /* what was thought to be far off is the truth now */
            history_forget(self);
            return;
        }
        self->kept = self->dropped = 0;
    }
    batch.count = self->fresh_count;
    for (Py_ssize_t i = 0; i < self->fresh_count; i++) {
        batch.total += self->fresh[i];
        batch.squares += self->fresh[i] * self->fresh[i];
    }
    self->fresh_count = 0;
    if (batch.count)
        history_add(self, batch);
}

/* ---- both ------------------------------------------------------------------------------------ */

/* After how many requests the other path has its turn, for a coin at each; -1 with an error set. */
static long long next_gap(Latencies *self)
{
    PyObject *drawn = PyObject_CallNoArgs(self->random);
    double draw = drawn ? PyFloat_AsDouble(drawn) : -1.0, gap;

    Py_XDECREF(drawn);
    if (draw == -1.0 && PyErr_Occurred())
        return -1;
    gap = log(1.0 - draw) / self->explore;
    return 1 + (long long)(gap < GAP_MAX ? gap > 0.0 ? gap : 0.0 : GAP_MAX);
}

static int forget_all(Latencies *self)
{
    long long gap;

    history_forget(&self->of[SERVER]);
    history_forget(&self->of[CLIENT]);
    self->reads_count = 0;
    self->reads = self->reads_first;
    self->round_trip_s = INFINITY;
    self->better = SERVER;
    self->until_digest = 1;
    gap = next_gap(self);
    self->until_other = gap > 0 ? gap - 1 : 0; /* with an error it is drawn again */
    self->until_event = 0;
    return gap < 0 ? -1 : 0;
}

static void learn_reads(Latencies *self)
{
    double told = 0.0, total = 0.0;

    for (Py_ssize_t i = 0; i < self->reads_count; i++)
        if (self->reads_fresh[i] != 0.0) {
            told += 1.0;
            total += self->reads_fresh[i];
        }
    if (told > 0.0) {
        double weight = told / 16.0;

        self->reads += (total / told - self->reads) * (weight < 1.0 ? weight : 1.0);
    }
}

static void digest(Latencies *self)
{
    History *client = &self->of[CLIENT], *server = &self->of[SERVER];

    learn_reads(self);
    if (client->fresh_count) {
        for (Py_ssize_t i = 0; i < client->fresh_count; i++) {
            double reads = self->reads_fresh[i];

            client->fresh[i] /= reads != 0.0 ? reads : self->reads;
            if (client->fresh[i] < self->round_trip_s)
                self->round_trip_s = client->fresh[i];
        }
        self->reads_count = 0;
        history_digest(client);
    }
    if (server->fresh_count)
        history_digest(server);
    if (!server->count)
        self->better = SERVER;
    else if (!client->count)
        self->better = CLIENT;
    else
        self->better =
            server->mean - self->round_trip_s < self->reads * (client->mean - self->round_trip_s) ? SERVER : CLIENT;
}

/* The request at which something happens; -1 with an error set. */
static int choose_slowly(Latencies *self, double silence_s)
{
    long long step, gap;
    int chosen;

    if (silence_s > self->stale_s && forget_all(self) < 0)
        return -1;
    if (self->until_digest == 0) {
        digest(self);
        self->until_digest = self->of[SERVER].count && self->of[CLIENT].count ? REQUESTS : 1;
    }
    chosen = self->better;
    if (self->until_other == 0) {
        gap = next_gap(self);
        if (gap < 0)
            return -1;
        self->until_other = gap;
        chosen = !chosen;
    }
    if (self->until_digest == 0) /* drawing may have run Python code, which may have chosen */
        self->until_digest = 1;
    step = self->until_digest < self->until_other ? self->until_digest : self->until_other;
    self->until_digest -= step;
    self->until_other -= step;
    self->until_event = step - 1;
    return chosen;
}

/* ---- as Python calls it ---------------------------------------------------------------------- */

static PyObject *latencies_choose(Latencies *self, PyObject *now)
{
    double now_s = PyFloat_CheckExact(now) ? PyFloat_AS_DOUBLE(now) : PyFloat_AsDouble(now), silence_s;
    int chosen;

    if (now_s == -1.0 && PyErr_Occurred())
        return NULL;
    if (!self->random || !l5_policy_paths[CLIENT]) {
        PyErr_SetString(PyExc_RuntimeError, "this policy was not initialised");
        return NULL;
    }
    silence_s = now_s - self->last;
    self->last = now_s;
    if (self->until_event && silence_s <= self->stale_s) {
        self->until_event--;
        chosen = self->better;
    } else {
        chosen = choose_slowly(self, silence_s);
    }
    return chosen < 0 ? NULL : Py_NewRef(l5_policy_paths[chosen]);
}

static PyObject *latencies_observe(Latencies *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *all[L5_OBSERVE_MAX] = {NULL};
    History *history;
    double latency_s, reads = 0.0;

    if (l5_policy_observed(all, args, count, names) < 0)
        return NULL;
    history = &self->of[all[0] == l5_policy_paths[SERVER] ? SERVER : CLIENT];
    if (history->fresh_count == BATCH)
        Py_RETURN_NONE;
    latency_s = PyFloat_AsDouble(all[1]);
    if (all[3])
        reads = PyFloat_AsDouble(all[3]);
    if ((latency_s == -1.0 || reads == -1.0) && PyErr_Occurred())
        return NULL;
    if (history->fresh_count == BATCH || !(latency_s >= 0.0 && latency_s < INFINITY))
        Py_RETURN_NONE; /* asking for numbers may have run Python code, which may have come in here */
    history->fresh[history->fresh_count++] = latency_s;
    if (history == &self->of[CLIENT])
        self->reads_fresh[self->reads_count++] = reads >= 1.0 && reads < INFINITY ? reads : 0.0;
    Py_RETURN_NONE;
}

static int latencies_init(Latencies *self, PyObject *args, PyObject *Py_UNUSED(named))
{
    PyObject *random;
    Py_ssize_t window;
    double outlier, explore, stale_s, reads;

    if (!PyArg_ParseTuple(args, "Ondddd", &random, &window, &outlier, &explore, &stale_s, &reads))
        return -1;
    if (window < BATCH || window > WINDOW_MAX || self->random) {
        PyErr_SetString(PyExc_ValueError, "a window of 16 to 65536 latencies was expected, once");
        return -1;
    }
    for (int path = SERVER; path <= CLIENT; path++) {
        History *history = &self->of[path];

        history->batches = PyMem_Calloc((size_t)window + 1, sizeof *history->batches);
        if (!history->batches) {
            PyErr_NoMemory();
            return -1;
        }
        history->window = window;
        history->outlier = outlier;
    }
    self->random = Py_NewRef(random);
    self->explore = explore;
    self->stale_s = stale_s;
    self->reads_first = reads;
    self->last = -INFINITY;
    return forget_all(self);
}

static int latencies_traverse(Latencies *self, visitproc visit, void *arg)
{
    Py_VISIT(self->random);
    return 0;
}

static int latencies_clear(Latencies *self)
{
    Py_CLEAR(self->random);
    return 0;
}

static void latencies_dealloc(Latencies *self)
{
    PyObject_GC_UnTrack(self);
    (void)latencies_clear(self);
    PyMem_Free(self->of[SERVER].batches);
    PyMem_Free(self->of[CLIENT].batches);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *latencies_better(Latencies *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(l5_policy_paths[self->better] ? l5_policy_paths[self->better] : Py_None);
}

static PyObject *latencies_heartbeat(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(named))
{
    Py_RETURN_NONE; /* latencies tell all */
}

static PyMethodDef latencies_methods[] = {
    {"choose", (PyCFunction)latencies_choose, METH_O, "Return the path of the next request."},
    {"observe", (PyCFunction)(void (*)(void))latencies_observe, METH_FASTCALL | METH_KEYWORDS,
     "Keep a latency until it is taken into the average of its path."},
    {"heartbeat", (PyCFunction)(void (*)(void))latencies_heartbeat, METH_VARARGS | METH_KEYWORDS, "Learn nothing."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef latencies_members[] = {
    {"reads", T_DOUBLE, offsetof(Latencies, reads), READONLY, "reads thought to follow each other in a request"},
    {"round_trip_s", T_DOUBLE, offsetof(Latencies, round_trip_s), READONLY, "the fastest read ever seen"},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef latencies_getset[] = {
    {"better", (getter)latencies_better, NULL, "the path that seems better", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject l5_LatenciesType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.Latencies",
    .tp_doc = "The state of a policy that follows latencies.",
    .tp_basicsize = sizeof(Latencies),
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)latencies_init,
    .tp_dealloc = (destructor)latencies_dealloc,
    .tp_traverse = (traverseproc)latencies_traverse,
    .tp_clear = (inquiry)latencies_clear,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_methods = latencies_methods,
    .tp_members = latencies_members,
    .tp_getset = latencies_getset,
};
