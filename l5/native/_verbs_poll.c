/* A completion queue: taking completions, arming it, taking its events. See _verbs.h. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <arpa/inet.h>

#include "_verbs.h"

typedef struct {
    PyObject_HEAD
    struct l5v_cq *cq;                /* NULL: closed */
    struct l5v_comp_channel *channel; /* NULL: it has no events */
    unsigned int forks, unacknowledged;
} VerbsCompletions;

static int usable(const VerbsCompletions *self, const char *call)
{
    if (self->cq && self->forks == l5_forks)
        return 1;
    l5_verbs_refuse(call, self->cq != NULL);
    return 0;
}

/* A tuple of the class that verbs.py gave us; its own __new__ would cost three times as much. */
static PyObject *completion(const struct l5v_wc *wc)
{
    PyObject *immediate, *fields, *arguments, *made = NULL;
    /* Of sends and writes, and of what failed, a device need not say how long it was. */
    int sized = wc->status == L5V_WC_SUCCESS && wc->opcode >= L5V_WC_RDMA_READ;

    if (wc->status == L5V_WC_SUCCESS && wc->wc_flags & L5V_WC_WITH_IMM)
        immediate = PyLong_FromUnsignedLong(ntohl(wc->imm_data));
    else
        immediate = Py_NewRef(Py_None);
    fields = Py_BuildValue("KiiINI", (unsigned long long)wc->wr_id, wc->status, wc->opcode,
                           sized ? wc->byte_len : 0, immediate, wc->qp_num);
    arguments = fields ? PyTuple_Pack(1, fields) : NULL;
    if (arguments)
        made = PyTuple_Type.tp_new((PyTypeObject *)l5_CompletionType, arguments, NULL);
    Py_XDECREF(arguments);
    Py_XDECREF(fields);
    return made;
}

static int add_all(PyObject *list, const struct l5v_wc *wc, int count)
{
    for (int at = 0; at < count; at++) {
        PyObject *made = completion(&wc[at]);
        int rc = made ? PyList_Append(list, made) : -1;

        Py_XDECREF(made);
        if (rc < 0)
            return -1;
    }
    return 0;
}

static PyObject *completions_poll(VerbsCompletions *self, PyObject *const *args, Py_ssize_t given,
                                  PyObject *keywords)
{
    static const char *const names[] = {"count_max"};
    struct l5v_wc wc[POLL_CHUNK];
    uint64_t most = 16;
    PyObject *bound[1], *list = NULL;
    int count;

    if (l5_args_bind(names, 0, 1, args, given, keywords, bound) < 0 ||
        l5_arg(bound[0], "count_max", POLL_MAX, &most) < 0 || !usable(self, "poll"))
        return NULL;
    do {
        int some = most < POLL_CHUNK ? (int)most : POLL_CHUNK;

        count = self->cq->context->ops.poll_cq(self->cq, some, wc);
        if (count == 0)
            break;
        if (!list)
            list = PyList_New(0);
        if (count < 0)
            l5_verbs_raise("poll", EIO, 0);
        if (count < 0 || !list || add_all(list, wc, count) < 0) {
            Py_XDECREF(list);
            return NULL;
        }
        most -= (uint64_t)count;
        if (count < some)
            break;
    } while (most > 0);
    return list ? list : PyTuple_New(0); /* the empty tuple is a singleton */
}

static PyObject *completions_arm(VerbsCompletions *self, PyObject *Py_UNUSED(ignored))
{
    int rc;

    if (!usable(self, "arm"))
        return NULL;
    rc = self->cq->context->ops.req_notify_cq(self->cq, 0);
    if (rc != 0)
        return l5_verbs_raise("arm", -l5v_failed(rc), 0);
    Py_RETURN_NONE;
}

static unsigned int take_events(VerbsCompletions *self)
{
    struct l5v_cq *cq;
    unsigned int count = 0;
    void *tag;

    while (self->channel && l5v.get_cq_event(self->channel, &cq, &tag) == 0)
        count++;
    self->unacknowledged += count;
    return count;
}

static void acknowledge(VerbsCompletions *self)
{
    if (self->unacknowledged)
        l5v.ack_cq_events(self->cq, self->unacknowledged);
    self->unacknowledged = 0;
}

static PyObject *completions_drain(VerbsCompletions *self, PyObject *Py_UNUSED(ignored))
{
    unsigned int count;

    if (!usable(self, "take events"))
        return NULL;
    count = take_events(self);
    if (self->unacknowledged >= ACKNOWLEDGE_EVERY)
        acknowledge(self);
    return PyLong_FromUnsignedLong(count);
}

/* Every event that was read must be acknowledged, or destroying the queue waits for ever. */
static PyObject *completions_retire(VerbsCompletions *self, PyObject *Py_UNUSED(ignored))
{
    if (self->cq && self->forks == l5_forks) {
        take_events(self);
        acknowledge(self);
    }
    self->cq = NULL;
    self->channel = NULL;
    Py_RETURN_NONE;
}

static int completions_init(VerbsCompletions *self, PyObject *args)
{
    unsigned long long handle, channel;

    if (!PyArg_ParseTuple(args, "KK", &handle, &channel))
        return -1;
    self->cq = l5v_pointer(handle);
    self->channel = l5v_pointer(channel);
    self->forks = l5_forks;
    return 0;
}

L5_NEW(completions_new, VerbsCompletions, completions_init)

static PyMethodDef completions_methods[] = {
    {"poll", (PyCFunction)(void (*)(void))completions_poll, KEYWORDS, "poll(count_max=16)"},
    {"arm", (PyCFunction)completions_arm, METH_NOARGS, "Ask for one event with the next completion."},
    {"drain_events", (PyCFunction)completions_drain, METH_NOARGS, "Take all events; how many they were."},
    {"retire", (PyCFunction)completions_retire, METH_NOARGS, "Acknowledge all; refuse all further use."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject l5_VerbsCompletionsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.VerbsCompletions",
    .tp_basicsize = sizeof(VerbsCompletions),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "VerbsCompletions(handle, channel)",
    .tp_new = completions_new,
    .tp_methods = completions_methods,
};
