/* Prepared writes, sends and reads, and the row and flag that are posted by one call. See _verbs.h. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <arpa/inet.h>

#include "_verbs.h"

typedef struct {
    PyObject_HEAD
    VerbsRequest *row, *flag;
    int chained;
} VerbsPair;

/* Write into the request what this post changes. */
static inline int request_fill(VerbsRequest *self, uint64_t length, uint64_t flags, uint64_t immediate)
{
    if (!l5_request_within(self->region, self->sge.addr, length))
        return -1;
    if (flags & L5V_SEND_INLINE && (length > self->queue->inline_bytes || self->wr.opcode == L5V_WR_RDMA_READ)) {
        l5_verbs_raise("post", EINVAL, self->queue->depth);
        return -1;
    }
    self->sge.length = (uint32_t)length;
    self->wr.num_sge = length != 0;
    self->wr.send_flags = (unsigned int)flags;
    self->wr.imm_data = htonl((uint32_t)immediate);
    return 0;
}

static inline int flags_of(PyObject *object, const char *name, uint64_t *flags)
{
    return l5_arg(object, name, SEND_FLAGS, flags);
}

static PyObject *request_post(VerbsRequest *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"length", "flags", "immediate"};
    uint64_t length = 0, flags = 0, immediate = 0;
    PyObject *bound[3];

    if (l5_args_bind(names, 1, 3, args, given, keywords, bound) < 0 ||
        l5_arg(bound[0], "length", UINT32_MAX, &length) < 0 || flags_of(bound[1], "flags", &flags) < 0 ||
        l5_arg(bound[2], "immediate", UINT32_MAX, &immediate) < 0)
        return NULL;
    if (!l5_queue_usable(self->queue) || request_fill(self, length, flags, immediate) < 0 ||
        l5_post(self->queue, &self->wr) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *request_post_at(VerbsRequest *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"address", "remote_address", "length", "flags", "immediate"};
    uint64_t address = 0, remote = 0, length = 0, flags = 0, immediate = 0;
    PyObject *bound[5];

    if (l5_args_bind(names, 3, 5, args, given, keywords, bound) < 0 ||
        l5_arg(bound[0], "address", UINT64_MAX, &address) < 0 ||
        l5_arg(bound[1], "remote_address", UINT64_MAX, &remote) < 0 ||
        l5_arg(bound[2], "length", UINT32_MAX, &length) < 0 || flags_of(bound[3], "flags", &flags) < 0 ||
        l5_arg(bound[4], "immediate", UINT32_MAX, &immediate) < 0)
        return NULL;
    if (!l5_queue_usable(self->queue) || !l5_request_within(self->region, address, length))
        return NULL;
    self->sge.addr = address;
    self->wr.wr.rdma.remote_addr = remote;
    if (request_fill(self, length, flags, immediate) < 0 || l5_post(self->queue, &self->wr) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *request_place(VerbsRequest *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"address", "remote_address", "rkey"};
    uint64_t address = 0, remote = 0, rkey = self->wr.wr.rdma.rkey;
    PyObject *bound[3];

    if (l5_args_bind(names, 2, 3, args, given, keywords, bound) < 0 ||
        l5_arg(bound[0], "address", UINT64_MAX, &address) < 0 ||
        l5_arg(bound[1], "remote_address", UINT64_MAX, &remote) < 0 ||
        (bound[2] != Py_None && l5_arg(bound[2], "rkey", UINT32_MAX, &rkey) < 0))
        return NULL;
    self->sge.addr = address;
    self->wr.wr.rdma.remote_addr = remote;
    self->wr.wr.rdma.rkey = (uint32_t)rkey;
    Py_RETURN_NONE;
}

static PyObject *request_set_id(VerbsRequest *self, PyObject *id)
{
    uint64_t wr_id = 0;

    if (l5_arg(id, "wr_id", UINT64_MAX, &wr_id) < 0)
        return NULL;
    self->wr.wr_id = wr_id;
    Py_RETURN_NONE;
}

static int request_init(VerbsRequest *self, PyObject *args)
{
    PyObject *queue, *region, *keep, *address, *remote, *id;
    uint64_t local = 0, there = 0, wr_id = 0;
    unsigned int rkey;
    int opcode;

    if (!PyArg_ParseTuple(args, "O!O!OiOOIO", &l5_VerbsQueueType, &queue, &l5_VerbsRegionType, &region, &keep,
                          &opcode, &address, &remote, &rkey, &id))
        return -1;
    if (opcode < L5V_WR_RDMA_WRITE || opcode > L5V_WR_RDMA_READ) {
        PyErr_Format(PyExc_ValueError, "%d is no write, send or read", opcode);
        return -1;
    }
    if (l5_arg(address, "address", UINT64_MAX, &local) < 0 ||
        l5_arg(remote, "remote_address", UINT64_MAX, &there) < 0 || l5_arg(id, "wr_id", UINT64_MAX, &wr_id) < 0)
        return -1;
    l5_request_init((VerbsRequestHead *)self, queue, region, keep);
    self->sge = (struct l5v_sge){.addr = local, .lkey = self->region->lkey};
    self->wr = (struct l5v_send_wr){.wr_id = wr_id, .sg_list = &self->sge, .opcode = opcode};
    self->wr.wr.rdma.remote_addr = there;
    self->wr.wr.rdma.rkey = rkey;
    return 0;
}

L5_NEW(request_new, VerbsRequest, request_init)

static PyMethodDef request_methods[] = {
    {"post", (PyCFunction)(void (*)(void))request_post, KEYWORDS, "post(length, flags=0, immediate=0)"},
    {"post_at", (PyCFunction)(void (*)(void))request_post_at, KEYWORDS,
     "post_at(address, remote_address, length, flags=0, immediate=0)"},
    {"place", (PyCFunction)(void (*)(void))request_place, KEYWORDS, "place(address, remote_address, rkey=None)"},
    {"set_id", (PyCFunction)request_set_id, METH_O, "set_id(wr_id)"},
    {NULL, NULL, 0, NULL},
};

PyTypeObject l5_VerbsRequestType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.VerbsRequest",
    .tp_basicsize = sizeof(VerbsRequest),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "VerbsRequest(queue, region, keep, opcode, address, remote_address, rkey, wr_id)",
    .tp_new = request_new,
    .tp_dealloc = (destructor)l5_request_dealloc,
    .tp_traverse = (traverseproc)l5_request_traverse,
    .tp_methods = request_methods,
};

/* -- Pair */

static PyObject *pair_post(VerbsPair *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"length", "row_flags", "flag_flags", "immediate"};
    uint64_t length = 0, row_flags = 0, flag_flags = 0, immediate = 0;
    VerbsRequest *row = self->row, *flag = self->flag;
    PyObject *bound[4];
    int rc;

    if (l5_args_bind(names, 1, 4, args, given, keywords, bound) < 0 ||
        l5_arg(bound[0], "length", UINT32_MAX, &length) < 0 ||
        flags_of(bound[1], "row_flags", &row_flags) < 0 || flags_of(bound[2], "flag_flags", &flag_flags) < 0 ||
        l5_arg(bound[3], "immediate", UINT32_MAX, &immediate) < 0)
        return NULL;
    if (!l5_queue_usable(row->queue) || request_fill(row, length, row_flags, 0) < 0 ||
        request_fill(flag, 1, flag_flags, immediate) < 0)
        return NULL;
    if (self->chained) {
        row->wr.next = &flag->wr;
        rc = l5_post(row->queue, &row->wr);
        row->wr.next = NULL;
    } else {
        rc = l5_post(row->queue, &row->wr);
        if (rc == 0)
            rc = l5_post(row->queue, &flag->wr);
    }
    if (rc < 0)
        return NULL;
    Py_RETURN_NONE;
}

static int pair_init(VerbsPair *self, PyObject *args)
{
    PyObject *row, *flag;
    int chained;

    if (!PyArg_ParseTuple(args, "O!O!p", &l5_VerbsRequestType, &row, &l5_VerbsRequestType, &flag, &chained))
        return -1;
    if (row == flag || ((VerbsRequest *)row)->queue != ((VerbsRequest *)flag)->queue) {
        PyErr_SetString(PyExc_ValueError, "row and flag must be two requests of one queue pair");
        return -1;
    }
    self->row = (VerbsRequest *)Py_NewRef(row);
    self->flag = (VerbsRequest *)Py_NewRef(flag);
    self->chained = chained;
    return 0;
}

L5_NEW(pair_new, VerbsPair, pair_init)

static int pair_traverse(VerbsPair *self, visitproc visit, void *arg)
{
    Py_VISIT(self->row);
    Py_VISIT(self->flag);
    return 0;
}

static void pair_dealloc(VerbsPair *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->row);
    Py_CLEAR(self->flag);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef pair_methods[] = {
    {"post", (PyCFunction)(void (*)(void))pair_post, KEYWORDS,
     "post(length, row_flags=0, flag_flags=0, immediate=0)"},
    {NULL, NULL, 0, NULL},
};

PyTypeObject l5_VerbsPairType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.VerbsPair",
    .tp_basicsize = sizeof(VerbsPair),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "VerbsPair(row, flag, chained)",
    .tp_new = pair_new,
    .tp_dealloc = (destructor)pair_dealloc,
    .tp_traverse = (traverseproc)pair_traverse,
    .tp_methods = pair_methods,
};
