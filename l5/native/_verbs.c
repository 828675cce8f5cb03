/* What the hot types of RDMA share: errors, arguments, memory. Theory: _verbs.h. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_verbs.h"

PyObject *l5_CompletionType;
unsigned int l5_forks;

static PyObject *error_for;   /* (call, errno, depth) -> exception */
static PyObject *refusal_for; /* (call, why) -> exception */
static int fork_watched;

static void note_fork(void)
{
    l5_forks++;
}

PyObject *l5_verbs_set(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *completion, *failure, *refusal;

    if (!PyArg_ParseTuple(args, "O!OO", &PyType_Type, &completion, &failure, &refusal))
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)completion, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "the class of completions must be a subclass of tuple");
        return NULL;
    }
    if (!fork_watched && pthread_atfork(NULL, NULL, note_fork) == 0)
        fork_watched = 1;
    Py_XSETREF(l5_CompletionType, Py_NewRef(completion));
    Py_XSETREF(error_for, Py_NewRef(failure));
    Py_XSETREF(refusal_for, Py_NewRef(refusal));
    Py_RETURN_NONE;
}

static PyObject *raise_it(PyObject *error)
{
    if (error) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    return NULL;
}

static int told(void)
{
    if (error_for && refusal_for && l5_CompletionType)
        return 1;
    PyErr_SetString(PyExc_RuntimeError, "set_verbs was not called");
    return 0;
}

PyObject *l5_verbs_raise(const char *call, int code, uint32_t depth)
{
    return told() ? raise_it(PyObject_CallFunction(error_for, "siI", call, code, depth)) : NULL;
}

/* `reason` is taken over. */
PyObject *l5_verbs_refuse_with(const char *call, PyObject *reason)
{
    if (told())
        raise_it(PyObject_CallFunction(refusal_for, "sO", call, reason));
    Py_DECREF(reason);
    return NULL;
}

PyObject *l5_verbs_refuse(const char *call, int forked)
{
    PyObject *reason = PyUnicode_FromString(forked ? "it belongs to the process that forked this one" : "it is closed");

    return reason ? l5_verbs_refuse_with(call, reason) : NULL;
}

static const char *name_of(PyObject *keyword, const char *const *names, int count, int *at)
{
    for (*at = 0; *at < count; (*at)++)
        if (PyUnicode_CompareWithASCIIString(keyword, names[*at]) == 0)
            return names[*at];
    return NULL;
}

int l5_args_bind(const char *const *names, int required, int count, PyObject *const *args, Py_ssize_t given,
                 PyObject *keywords, PyObject **bound)
{
    Py_ssize_t named = keywords ? PyTuple_GET_SIZE(keywords) : 0;
    int at;

    if (given > count) {
        PyErr_Format(PyExc_TypeError, "takes at most %d arguments (%zd given)", count, given);
        return -1;
    }
    for (at = 0; at < count; at++)
        bound[at] = at < given ? args[at] : NULL;
    for (Py_ssize_t index = 0; index < named; index++) {
        PyObject *keyword = PyTuple_GET_ITEM(keywords, index);

        if (!name_of(keyword, names, count, &at) || bound[at]) {
            PyErr_Format(PyExc_TypeError, "unexpected or repeated argument '%U'", keyword);
            return -1;
        }
        bound[at] = args[given + index];
    }
    for (at = 0; at < required; at++) {
        if (!bound[at]) {
            PyErr_Format(PyExc_TypeError, "missing argument '%s'", names[at]);
            return -1;
        }
    }
    return 0;
}

/* Say what is wrong with an argument; or read it, if it is an int of some other class. */
int l5_arg_refuse(PyObject *object, const char *name, uint64_t most)
{
    PyErr_Clear();
    if (!PyLong_Check(object))
        PyErr_Format(PyExc_TypeError, "%s must be an int, not %.100s", name, Py_TYPE(object)->tp_name);
    else if (!PyLong_CheckExact(object))
        PyErr_Format(PyExc_TypeError, "%s must be a plain int, not %.100s", name, Py_TYPE(object)->tp_name);
    else
        PyErr_Format(PyExc_ValueError, "%s must be 0 to %llu, not %S", name, (unsigned long long)most, object);
    return -1;
}

int l5_request_outside(const VerbsRegion *region, uint64_t address, uint64_t length)
{
    if (!region->open)
        l5_verbs_refuse("use the memory region", 0);
    else
        PyErr_Format(PyExc_ValueError, "%llu bytes at %llu do not lie within the region, %llu bytes at %llu",
                     (unsigned long long)length, (unsigned long long)address,
                     (unsigned long long)region->length, (unsigned long long)region->address);
    return 0;
}

void l5_request_init(VerbsRequestHead *self, PyObject *queue, PyObject *region, PyObject *keep)
{
    self->queue = (VerbsQueue *)Py_NewRef(queue);
    self->region = (VerbsRegion *)Py_XNewRef(region);
    self->keep = Py_XNewRef(keep);
}

int l5_request_traverse(VerbsRequestHead *self, visitproc visit, void *arg)
{
    Py_VISIT(self->keep);
    return 0;
}

void l5_request_dealloc(VerbsRequestHead *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->queue);
    Py_CLEAR(self->region);
    Py_CLEAR(self->keep);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* -- Queue and Region: what requests refer to, and what closing them ends */

static int queue_init(VerbsQueue *self, PyObject *args)
{
    unsigned long long handle;

    if (!PyArg_ParseTuple(args, "KII", &handle, &self->depth, &self->inline_bytes))
        return -1;
    self->qp = l5v_pointer(handle);
    self->forks = l5_forks;
    return 0;
}

L5_NEW(queue_new, VerbsQueue, queue_init)

static PyObject *queue_retire(VerbsQueue *self, PyObject *Py_UNUSED(ignored))
{
    self->qp = NULL;
    Py_RETURN_NONE;
}

static PyMethodDef queue_methods[] = {
    {"retire", (PyCFunction)queue_retire, METH_NOARGS, "Refuse all further posts: the queue pair is being closed."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject l5_VerbsQueueType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.VerbsQueue",
    .tp_basicsize = sizeof(VerbsQueue),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "VerbsQueue(handle, depth, inline_bytes)",
    .tp_new = queue_new,
    .tp_methods = queue_methods,
};

static int region_init(VerbsRegion *self, PyObject *args)
{
    unsigned long long address, length;

    if (!PyArg_ParseTuple(args, "KKI", &address, &length, &self->lkey))
        return -1;
    self->address = address;
    self->length = length;
    self->open = 1;
    return 0;
}

L5_NEW(region_new, VerbsRegion, region_init)

static PyObject *region_retire(VerbsRegion *self, PyObject *Py_UNUSED(ignored))
{
    self->open = 0;
    Py_RETURN_NONE;
}

static PyMethodDef region_methods[] = {
    {"retire", (PyCFunction)region_retire, METH_NOARGS, "Refuse all further use: the region is being closed."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject l5_VerbsRegionType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.VerbsRegion",
    .tp_basicsize = sizeof(VerbsRegion),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "VerbsRegion(address, length, lkey)",
    .tp_new = region_new,
    .tp_methods = region_methods,
};
