/* Counting the slots of a send queue, as l5/rdma/_slots.py describes it, for the hot path.
 *
 *   posted     ----+----+----S----+----+----+----S----+---->      S: signalled
 *   completed  ..............^ all up to here are free
 *
 * `marks` is a ring of the values that `posted` had after each signalled take: at most one a slot.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "_verbs.h"

enum { DEPTH_MAX = 1 << 20 };

typedef struct {
    PyObject_HEAD
    uint32_t depth, half, tail;
    unsigned int forks;
    uint64_t posted, completed, signalled;
    uint64_t taken; /* marks taken out of the ring; `signalled` were put in */
    uint64_t *marks;
    PyObject *closed; /* why; NULL while open */
} SendSlots;

static uint64_t slots_free(const SendSlots *self)
{
    return self->closed || self->forks != l5_forks ? 0 : self->depth - (self->posted - self->completed);
}

static PyObject *slots_reason(const SendSlots *self)
{
    if (self->closed)
        return Py_NewRef(self->closed);
    if (self->forks != l5_forks)
        return PyUnicode_FromString(
            "it belongs to the process that forked this one; open the device again here");
    return PyUnicode_FromString("");
}

static PyObject *slots_refuse(const SendSlots *self)
{
    PyObject *reason;

    if (!self->closed && self->forks == l5_forks)
        return l5_verbs_raise("post", ENOMEM, self->depth);
    reason = slots_reason(self);
    if (reason)
        l5_verbs_refuse_with("post", reason);
    return NULL;
}

static PyObject *slots_take(SendSlots *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"count", "flags"};
    uint64_t flags = 0;
    long count = 1;
    PyObject *bound[2];

    if (l5_args_bind(names, 0, 2, args, given, keywords, bound) < 0 ||
        l5_arg(bound[1], "flags", SEND_FLAGS, &flags) < 0)
        return NULL;
    if (bound[0]) {
        count = PyLong_AsLong(bound[0]);
        if (count == -1 && PyErr_Occurred())
            return NULL;
    }
    if (count < 1 || count > (long)self->half)
        return PyErr_Format(PyExc_ValueError, "take 1 to %u slots at once, not %ld", self->half, count);
    if ((uint64_t)count > slots_free(self))
        return slots_refuse(self);
    self->posted += (uint64_t)count;
    self->tail += (uint32_t)count;
    if (flags & L5V_SEND_SIGNALED || self->tail >= self->half) {
        flags |= L5V_SEND_SIGNALED;
        self->marks[self->signalled++ % self->depth] = self->posted;
        self->tail = 0;
    }
    return PyLong_FromUnsignedLongLong(flags);
}

static PyObject *slots_done(SendSlots *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"count"};
    uint64_t count = 1;
    PyObject *bound[1];

    if (l5_args_bind(names, 0, 1, args, given, keywords, bound) < 0 ||
        l5_arg(bound[0], "count", UINT64_MAX, &count) < 0)
        return NULL;
    if (count > self->signalled - self->taken)
        return PyErr_Format(PyExc_IndexError, "%llu completions, but only %llu were asked for",
                            (unsigned long long)count, (unsigned long long)(self->signalled - self->taken));
    self->taken += count;
    if (count)
        self->completed = self->marks[(self->taken - 1) % self->depth];
    Py_RETURN_NONE;
}

static PyObject *slots_close(SendSlots *self, PyObject *reason)
{
    if (!PyUnicode_Check(reason))
        return PyErr_Format(PyExc_TypeError, "the reason must be a str");
    if (!self->closed)
        self->closed = Py_NewRef(reason);
    Py_RETURN_NONE;
}

static int slots_init(SendSlots *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"depth", NULL};
    unsigned long long depth;
    PyObject *given;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!", names, &PyLong_Type, &given))
        return -1;
    depth = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred() || depth < 2 || depth > DEPTH_MAX) {
        PyErr_Format(PyExc_ValueError, "depth must be 2 to %d, not %S", DEPTH_MAX, given);
        return -1;
    }
    self->marks = PyMem_Calloc(depth, sizeof *self->marks);
    if (!self->marks) {
        PyErr_NoMemory();
        return -1;
    }
    self->depth = (uint32_t)depth;
    self->half = self->depth / 2;
    self->forks = l5_forks;
    return 0;
}

static PyObject *slots_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *self = type->tp_alloc(type, 0);

    if (self && slots_init((SendSlots *)self, args, keywords) < 0)
        Py_CLEAR(self);
    return self;
}

static void slots_dealloc(SendSlots *self)
{
    PyMem_Free(self->marks);
    Py_XDECREF(self->closed);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *slots_get_free(SendSlots *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(slots_free(self));
}

static PyObject *slots_get_outstanding(SendSlots *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(self->posted - self->completed);
}

static PyObject *slots_get_closed(SendSlots *self, void *Py_UNUSED(closure))
{
    return slots_reason(self);
}

static PyMethodDef slots_methods[] = {
    {"take", (PyCFunction)(void (*)(void))slots_take, KEYWORDS, "take(count=1, flags=0): the flags of the last"},
    {"done", (PyCFunction)(void (*)(void))slots_done, KEYWORDS, "done(count=1): completions that were polled"},
    {"close", (PyCFunction)slots_close, METH_O, "close(reason): refuse further posts"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef slots_members[] = {
    {"depth", T_UINT, offsetof(SendSlots, depth), READONLY, NULL},
    {"batch_max", T_UINT, offsetof(SendSlots, half), READONLY, NULL},
    {"posted", T_ULONGLONG, offsetof(SendSlots, posted), READONLY, NULL},
    {"completed", T_ULONGLONG, offsetof(SendSlots, completed), READONLY, NULL},
    {"signalled", T_ULONGLONG, offsetof(SendSlots, signalled), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef slots_getset[] = {
    {"free", (getter)slots_get_free, NULL, "How many requests may be posted now.", NULL},
    {"outstanding", (getter)slots_get_outstanding, NULL, "How many are not known to be done.", NULL},
    {"closed", (getter)slots_get_closed, NULL, "Why nothing more may be posted; empty if it may.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject l5_SendSlotsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.SendSlots",
    .tp_basicsize = sizeof(SendSlots),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "SendSlots(depth): who may post how much to one send queue",
    .tp_new = slots_new,
    .tp_dealloc = (destructor)slots_dealloc,
    .tp_methods = slots_methods,
    .tp_members = slots_members,
    .tp_getset = slots_getset,
};
