/* The row and the flag of pyverbs by one call into C: the same six steps as l5/rdma/_pyverbs_requests.py
 * would take, at a third of the price. Everything goes through pyverbs' own attributes and methods; no
 * word of its objects' memory is looked at.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <arpa/inet.h>

#include "_verbs.h"

typedef struct {
    PyObject_HEAD
    PyObject *row, *flag;         /* our requests, which keep what follows */
    Py_buffer row_quick, flag_quick; /* how many bytes may be posted without a look: an int64_t each */
    PyObject *row_wr, *row_sge, *flag_wr, *flag_sge;
    PyObject *live;               /* `call` is post_send, or what refuses */
    PyObject *slowly, *translate; /* for all else; and for what a post raised */
    int has_immediate;
} ForeignPair;

static PyObject *name_call, *name_length, *name_flags, *name_immediate, *one;

static int names_ready(void)
{
    if (one)
        return 1;
    name_call = PyUnicode_InternFromString("call");
    name_length = PyUnicode_InternFromString("length");
    name_flags = PyUnicode_InternFromString("send_flags");
    name_immediate = PyUnicode_InternFromString("imm_data");
    one = PyLong_FromLong(1);
    return name_call && name_length && name_flags && name_immediate && one;
}

static int set_immediate(ForeignPair *self, uint64_t immediate)
{
    PyObject *raw;
    int rc;

    if (!self->has_immediate)
        return 0;
    raw = PyLong_FromUnsignedLong(htonl((uint32_t)immediate));
    rc = raw ? PyObject_SetAttr(self->flag_wr, name_immediate, raw) : -1;
    Py_XDECREF(raw);
    return rc;
}

/* Raise our error for the one that a post raised. */
static void translate(ForeignPair *self)
{
    PyObject *type, *error, *trace, *ours;

    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    ours = PyObject_CallOneArg(self->translate, error);
    if (ours) {
        PyErr_SetObject((PyObject *)Py_TYPE(ours), ours);
        Py_DECREF(ours);
    }
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
}

static int post_both(ForeignPair *self)
{
    PyObject *call = PyObject_GetAttr(self->live, name_call), *first, *second = NULL;

    if (!call)
        return -1;
    first = PyObject_CallOneArg(call, self->row_wr);
    if (first)
        second = PyObject_CallOneArg(call, self->flag_wr);
    Py_DECREF(call);
    Py_XDECREF(first);
    Py_XDECREF(second);
    if (second)
        return 0;
    translate(self);
    return -1;
}

static PyObject *foreign_post(ForeignPair *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"length", "row_flags", "flag_flags", "immediate"};
    uint64_t length = 0, row_flags = 0, flag_flags = 0, immediate = 0;
    PyObject *bound[4], *zero = NULL;
    int64_t row_quick = *(const int64_t *)self->row_quick.buf;
    int rc;

    if (l5_args_bind(names, 1, 4, args, given, keywords, bound) < 0 ||
        l5_arg(bound[0], "length", UINT32_MAX, &length) < 0 ||
        l5_arg(bound[1], "row_flags", SEND_FLAGS, &row_flags) < 0 ||
        l5_arg(bound[2], "flag_flags", SEND_FLAGS, &flag_flags) < 0 ||
        l5_arg(bound[3], "immediate", UINT32_MAX, &immediate) < 0)
        return NULL;
    if (length == 0 || row_quick < 0 || length > (uint64_t)row_quick || *(const int64_t *)self->flag_quick.buf < 1)
        return PyObject_CallFunction(self->slowly, "KKKK", (unsigned long long)length,
                                     (unsigned long long)row_flags, (unsigned long long)flag_flags,
                                     (unsigned long long)immediate);
    if (!bound[1] || !bound[2])
        zero = PyLong_FromLong(0);
    rc = PyObject_SetAttr(self->row_sge, name_length, bound[0]);
    if (rc == 0)
        rc = PyObject_SetAttr(self->row_wr, name_flags, bound[1] ? bound[1] : zero);
    if (rc == 0)
        rc = PyObject_SetAttr(self->flag_sge, name_length, one);
    if (rc == 0)
        rc = PyObject_SetAttr(self->flag_wr, name_flags, bound[2] ? bound[2] : zero);
    Py_XDECREF(zero);
    if (rc == 0)
        rc = set_immediate(self, immediate);
    if (rc < 0 || post_both(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static int foreign_init(ForeignPair *self, PyObject *args)
{
    PyObject *row, *flag, *row_wr, *row_sge, *flag_wr, *flag_sge, *live, *slowly, *translate_with;
    PyObject *row_quick, *flag_quick;

    if (!names_ready() ||
        !PyArg_ParseTuple(args, "OOOOOOOOOOOp", &row, &flag, &row_quick, &flag_quick, &row_wr, &row_sge, &flag_wr,
                          &flag_sge, &live, &slowly, &translate_with, &self->has_immediate) ||
        PyObject_GetBuffer(row_quick, &self->row_quick, PyBUF_SIMPLE) < 0 ||
        PyObject_GetBuffer(flag_quick, &self->flag_quick, PyBUF_SIMPLE) < 0)
        return -1;
    if (self->row_quick.len != sizeof(int64_t) || self->flag_quick.len != sizeof(int64_t)) {
        PyErr_SetString(PyExc_ValueError, "a limit is an array of one 64-bit integer");
        return -1;
    }
    self->row = Py_NewRef(row);
    self->flag = Py_NewRef(flag);
    self->row_wr = Py_NewRef(row_wr);
    self->row_sge = Py_NewRef(row_sge);
    self->flag_wr = Py_NewRef(flag_wr);
    self->flag_sge = Py_NewRef(flag_sge);
    self->live = Py_NewRef(live);
    self->slowly = Py_NewRef(slowly);
    self->translate = Py_NewRef(translate_with);
    return 0;
}

static int foreign_traverse(ForeignPair *self, visitproc visit, void *arg)
{
    Py_VISIT(self->row);
    Py_VISIT(self->flag);
    Py_VISIT(self->live);
    Py_VISIT(self->slowly);
    Py_VISIT(self->translate);
    return 0;
}

static int foreign_clear(ForeignPair *self)
{
    Py_CLEAR(self->slowly);
    return 0;
}

static void foreign_dealloc(ForeignPair *self)
{
    PyObject_GC_UnTrack(self);
    PyBuffer_Release(&self->row_quick);
    PyBuffer_Release(&self->flag_quick);
    Py_CLEAR(self->row);
    Py_CLEAR(self->flag);
    Py_CLEAR(self->row_wr);
    Py_CLEAR(self->row_sge);
    Py_CLEAR(self->flag_wr);
    Py_CLEAR(self->flag_sge);
    Py_CLEAR(self->live);
    Py_CLEAR(self->slowly);
    Py_CLEAR(self->translate);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

L5_NEW(foreign_new, ForeignPair, foreign_init)

static PyMethodDef foreign_methods[] = {
    {"post", (PyCFunction)(void (*)(void))foreign_post, KEYWORDS,
     "post(length, row_flags=0, flag_flags=0, immediate=0)"},
    {NULL, NULL, 0, NULL},
};

PyTypeObject l5_ForeignPairType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.ForeignPair",
    .tp_basicsize = sizeof(ForeignPair),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "ForeignPair(row, flag, row_quick, flag_quick, row_wr, row_sge, flag_wr, flag_sge, live, slowly, translate, immediate)",
    .tp_new = foreign_new,
    .tp_dealloc = (destructor)foreign_dealloc,
    .tp_traverse = (traverseproc)foreign_traverse,
    .tp_clear = (inquiry)foreign_clear,
    .tp_methods = foreign_methods,
};
