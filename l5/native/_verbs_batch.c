/* Many READs with one completion, atomics, and receives. See _verbs.h. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_verbs.h"

typedef struct {
    REQUEST_HEAD;
    Py_ssize_t count_max;
    struct l5v_sge *sges; /* count_max */
    struct l5v_send_wr *wrs;
} VerbsReads;

typedef struct {
    REQUEST_HEAD;
    struct l5v_sge sge;
    struct l5v_send_wr wr;
} VerbsAtomic;

typedef struct {
    REQUEST_HEAD; /* no region: it has room for an immediate alone */
    struct l5v_sge sge;
    struct l5v_recv_wr wr;
} VerbsReceive;

/* -- Reads */

static int reads_fill(VerbsReads *self, Py_ssize_t at, PyObject *item)
{
    uint64_t local = 0, remote = 0, length = 0;

    if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 3) {
        PyErr_SetString(PyExc_TypeError, "a read is a tuple of local address, remote address and length");
        return -1;
    }
    if (l5_arg(PyTuple_GET_ITEM(item, 0), "local address", UINT64_MAX, &local) < 0 ||
        l5_arg(PyTuple_GET_ITEM(item, 1), "remote address", UINT64_MAX, &remote) < 0 ||
        l5_arg(PyTuple_GET_ITEM(item, 2), "length", UINT32_MAX, &length) < 0 ||
        !l5_request_within(self->region, local, length))
        return -1;
    self->sges[at].addr = local;
    self->sges[at].length = (uint32_t)length;
    self->wrs[at].num_sge = length != 0;
    self->wrs[at].wr.rdma.remote_addr = remote;
    return 0;
}

/* Post the first `count`; only the last of them has flags and a name. */
static int reads_send(VerbsReads *self, Py_ssize_t count, uint64_t flags, uint64_t wr_id)
{
    struct l5v_send_wr *last = &self->wrs[count - 1], *next = last->next;
    int rc;

    last->next = NULL;
    last->send_flags = (unsigned int)flags;
    last->wr_id = wr_id;
    rc = l5_post(self->queue, self->wrs);
    last->next = next;
    last->send_flags = 0;
    last->wr_id = 0;
    return rc;
}

static PyObject *reads_post(VerbsReads *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"reads", "flags", "wr_id"};
    uint64_t flags = L5V_SEND_SIGNALED, wr_id = 0;
    PyObject *bound[3], *items;
    Py_ssize_t count;
    int rc = 0;

    if (l5_args_bind(names, 1, 3, args, given, keywords, bound) < 0 ||
        l5_arg(bound[1], "flags", SEND_FLAGS & ~L5V_SEND_INLINE, &flags) < 0 ||
        l5_arg(bound[2], "wr_id", UINT64_MAX, &wr_id) < 0 || !l5_queue_usable(self->queue))
        return NULL;
    items = PySequence_Tuple(bound[0]);
    if (!items)
        return NULL;
    count = PyTuple_GET_SIZE(items);
    if (count < 1 || count > self->count_max) {
        PyErr_Format(PyExc_ValueError, "a batch has 1 to %zd reads, not %zd", self->count_max, count);
        rc = -1;
    }
    for (Py_ssize_t at = 0; rc == 0 && at < count; at++)
        rc = reads_fill(self, at, PyTuple_GET_ITEM(items, at));
    Py_DECREF(items);
    if (rc < 0 || !l5_queue_usable(self->queue) || reads_send(self, count, flags, wr_id) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static int reads_init(VerbsReads *self, PyObject *args)
{
    PyObject *queue, *region, *keep;
    unsigned int rkey;
    Py_ssize_t count;

    if (!PyArg_ParseTuple(args, "O!O!OIn", &l5_VerbsQueueType, &queue, &l5_VerbsRegionType, &region, &keep, &rkey,
                          &count))
        return -1;
    if (count < 1 || count > BATCH_REQUESTS_MAX) {
        PyErr_Format(PyExc_ValueError, "a batch may have 1 to %d reads, not %zd", BATCH_REQUESTS_MAX, count);
        return -1;
    }
    self->sges = PyMem_Calloc((size_t)count, sizeof *self->sges);
    self->wrs = PyMem_Calloc((size_t)count, sizeof *self->wrs);
    if (!self->sges || !self->wrs) {
        PyErr_NoMemory();
        return -1;
    }
    l5_request_init((VerbsRequestHead *)self, queue, region, keep);
    self->count_max = count;
    for (Py_ssize_t at = 0; at < count; at++) {
        self->sges[at].lkey = self->region->lkey;
        self->wrs[at].sg_list = &self->sges[at];
        self->wrs[at].opcode = L5V_WR_RDMA_READ;
        self->wrs[at].wr.rdma.rkey = rkey;
        self->wrs[at].next = at + 1 < count ? &self->wrs[at + 1] : NULL;
    }
    return 0;
}

static void reads_dealloc(VerbsReads *self)
{
    PyMem_Free(self->sges);
    PyMem_Free(self->wrs);
    l5_request_dealloc((VerbsRequestHead *)self);
}

static PyObject *reads_count_max(VerbsReads *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(self->count_max);
}

L5_NEW(reads_new, VerbsReads, reads_init)

static PyMethodDef reads_methods[] = {
    {"post", (PyCFunction)(void (*)(void))reads_post, KEYWORDS, "post(reads, flags=SIGNALED, wr_id=0)"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef reads_getset[] = {
    {"count_max", (getter)reads_count_max, NULL, "How many reads a batch may have.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject l5_VerbsReadsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.VerbsReads",
    .tp_basicsize = sizeof(VerbsReads),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "VerbsReads(queue, region, keep, rkey, count_max)",
    .tp_new = reads_new,
    .tp_dealloc = (destructor)reads_dealloc,
    .tp_traverse = (traverseproc)l5_request_traverse,
    .tp_methods = reads_methods,
    .tp_getset = reads_getset,
};

/* -- Atomic */

static PyObject *atomic_post(VerbsAtomic *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"remote_address", "operand", "swap", "flags", "wr_id"};
    uint64_t remote = 0, operand = 0, swap = 0, flags = L5V_SEND_SIGNALED, wr_id = 0;
    PyObject *bound[5];

    if (l5_args_bind(names, 2, 5, args, given, keywords, bound) < 0 ||
        l5_arg(bound[0], "remote_address", UINT64_MAX, &remote) < 0 ||
        l5_arg(bound[1], "operand", UINT64_MAX, &operand) < 0 || l5_arg(bound[2], "swap", UINT64_MAX, &swap) < 0 ||
        l5_arg(bound[3], "flags", SEND_FLAGS & ~L5V_SEND_INLINE, &flags) < 0 ||
        l5_arg(bound[4], "wr_id", UINT64_MAX, &wr_id) < 0 || !l5_queue_usable(self->queue) ||
        !l5_request_within(self->region, self->sge.addr, self->sge.length))
        return NULL;
    if (remote & 7) {
        PyErr_Format(PyExc_ValueError, "an atomic's address must be a multiple of 8, not %llu",
                     (unsigned long long)remote);
        return NULL;
    }
    self->wr.wr_id = wr_id;
    self->wr.send_flags = (unsigned int)flags;
    self->wr.wr.atomic.remote_addr = remote;
    self->wr.wr.atomic.compare_add = operand;
    self->wr.wr.atomic.swap = swap;
    if (l5_post(self->queue, &self->wr) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static int atomic_init(VerbsAtomic *self, PyObject *args)
{
    PyObject *queue, *region, *keep, *address;
    uint64_t local = 0;
    unsigned int rkey;
    int opcode;

    if (!PyArg_ParseTuple(args, "O!O!OiOI", &l5_VerbsQueueType, &queue, &l5_VerbsRegionType, &region, &keep,
                          &opcode, &address, &rkey))
        return -1;
    if (opcode != L5V_WR_ATOMIC_CMP_AND_SWP && opcode != L5V_WR_ATOMIC_FETCH_AND_ADD) {
        PyErr_Format(PyExc_ValueError, "%d is no atomic", opcode);
        return -1;
    }
    if (l5_arg(address, "address", UINT64_MAX, &local) < 0)
        return -1;
    l5_request_init((VerbsRequestHead *)self, queue, region, keep);
    self->sge = (struct l5v_sge){local, sizeof(uint64_t), self->region->lkey};
    self->wr = (struct l5v_send_wr){.sg_list = &self->sge, .num_sge = 1, .opcode = opcode};
    self->wr.wr.atomic.rkey = rkey;
    return 0;
}

L5_NEW(atomic_new, VerbsAtomic, atomic_init)

static PyMethodDef atomic_methods[] = {
    {"post", (PyCFunction)(void (*)(void))atomic_post, KEYWORDS,
     "post(remote_address, operand, swap=0, flags=SIGNALED, wr_id=0)"},
    {NULL, NULL, 0, NULL},
};

PyTypeObject l5_VerbsAtomicType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.VerbsAtomic",
    .tp_basicsize = sizeof(VerbsAtomic),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "VerbsAtomic(queue, region, keep, opcode, address, rkey)",
    .tp_new = atomic_new,
    .tp_dealloc = (destructor)l5_request_dealloc,
    .tp_traverse = (traverseproc)l5_request_traverse,
    .tp_methods = atomic_methods,
};

/* -- Receive */

static PyObject *receive_post(VerbsReceive *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"count"};
    struct l5v_recv_wr chain[RECEIVE_CHAIN], *bad;
    uint64_t count = 1;
    PyObject *bound[1];

    if (l5_args_bind(names, 0, 1, args, given, keywords, bound) < 0 ||
        l5_arg(bound[0], "count", UINT32_MAX, &count) < 0 || !l5_queue_usable(self->queue) ||
        (self->region && !l5_request_within(self->region, self->sge.addr, self->sge.length)))
        return NULL;
    while (count > 0) {
        int some = count < RECEIVE_CHAIN ? (int)count : RECEIVE_CHAIN, rc;
        struct l5v_qp *qp = self->queue->qp;

        for (int at = 0; at < some; at++) {
            chain[at] = self->wr;
            chain[at].next = at + 1 < some ? &chain[at + 1] : NULL;
        }
        rc = qp->context->ops.post_recv(qp, chain, &bad);
        if (rc != 0)
            return l5_verbs_raise("post a receive", -l5v_failed(rc), self->queue->depth);
        count -= (uint64_t)some;
    }
    Py_RETURN_NONE;
}

static int receive_put(VerbsReceive *self, uint64_t address, uint64_t length)
{
    if (!self->region) {
        if (!length)
            return 0;
        PyErr_SetString(PyExc_ValueError, "a receive without a region has no room for data");
        return -1;
    }
    if (!l5_request_within(self->region, address, length))
        return -1;
    self->sge = (struct l5v_sge){address, (uint32_t)length, self->region->lkey};
    self->wr.num_sge = length != 0;
    return 0;
}

static PyObject *receive_place(VerbsReceive *self, PyObject *const *args, Py_ssize_t given, PyObject *keywords)
{
    static const char *const names[] = {"address", "length", "wr_id"};
    uint64_t address = 0, length = 0, wr_id = 0;
    PyObject *bound[3];

    if (l5_args_bind(names, 2, 3, args, given, keywords, bound) < 0 ||
        l5_arg(bound[0], "address", UINT64_MAX, &address) < 0 ||
        l5_arg(bound[1], "length", UINT32_MAX, &length) < 0 || l5_arg(bound[2], "wr_id", UINT64_MAX, &wr_id) < 0 ||
        receive_put(self, address, length) < 0)
        return NULL;
    self->wr.wr_id = wr_id;
    Py_RETURN_NONE;
}

static int receive_init(VerbsReceive *self, PyObject *args)
{
    PyObject *queue, *region, *keep, *at, *size, *id;
    uint64_t address = 0, length = 0, wr_id = 0;

    if (!PyArg_ParseTuple(args, "O!OOOOO", &l5_VerbsQueueType, &queue, &region, &keep, &at, &size, &id))
        return -1;
    if (region != Py_None && !Py_IS_TYPE(region, &l5_VerbsRegionType)) {
        PyErr_SetString(PyExc_TypeError, "region must be a VerbsRegion or None");
        return -1;
    }
    if (l5_arg(at, "address", UINT64_MAX, &address) < 0 || l5_arg(size, "length", UINT32_MAX, &length) < 0 ||
        l5_arg(id, "wr_id", UINT64_MAX, &wr_id) < 0)
        return -1;
    l5_request_init((VerbsRequestHead *)self, queue, region == Py_None ? NULL : region, keep);
    self->wr = (struct l5v_recv_wr){.wr_id = wr_id, .sg_list = &self->sge};
    return receive_put(self, address, length);
}

L5_NEW(receive_new, VerbsReceive, receive_init)

static PyMethodDef receive_methods[] = {
    {"post", (PyCFunction)(void (*)(void))receive_post, KEYWORDS, "post(count=1)"},
    {"place", (PyCFunction)(void (*)(void))receive_place, KEYWORDS, "place(address, length, wr_id=0)"},
    {NULL, NULL, 0, NULL},
};

PyTypeObject l5_VerbsReceiveType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.VerbsReceive",
    .tp_basicsize = sizeof(VerbsReceive),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "VerbsReceive(queue, region, keep, address, length, wr_id)",
    .tp_new = receive_new,
    .tp_dealloc = (destructor)l5_request_dealloc,
    .tp_traverse = (traverseproc)l5_request_traverse,
    .tp_methods = receive_methods,
};
