/* The hot calls of RDMA, as Python sees them: posting, polling, arming. Setting up is in verbs.h.
 *
 * A request is made once per purpose and posted again and again. It holds the library's own
 * structures, so that a post is: check, change the few fields that differ, call the driver.
 *
 *   Queue <──── Request (sge, send_wr) ────> Region
 *     ^            ^   ^                        ^
 *     |            row flag                     |
 *     |              Pair                       |
 *     +──── Reads (count_max x sge, send_wr) ───+         Completions    SendSlots
 *     +──── Atomic, Receive ────────────────────+
 *
 * The GIL stays held: a post is a store to a doorbell on a card (a system call on Soft-RoCE) and a
 * poll looks at memory; neither waits. So one thread at a time is in here, as the driver wants it.
 *
 * Nothing here trusts its arguments: local memory must lie within its region, which must be open
 * (inline data is read by the library itself, so that a wrong address would be a crash); a queue
 * that was closed, or inherited by fork, refuses. Remote addresses are the peer's device's to judge.
 */
#ifndef L5_VERBS_HOT_H
#define L5_VERBS_HOT_H

#include <stdint.h>

#include "verbs_library.h"

enum {
    SEND_FLAGS = L5V_SEND_FENCE | L5V_SEND_SIGNALED | L5V_SEND_SOLICITED | L5V_SEND_INLINE,
    BATCH_REQUESTS_MAX = 65536, /* READs of one batch */
    RECEIVE_CHAIN = 64,         /* receives of one call into the driver */
    POLL_CHUNK = 32,            /* completions of one call into the driver */
    POLL_MAX = 65536,
    ACKNOWLEDGE_EVERY = 64,     /* each acknowledgement takes a mutex */
};

typedef struct {
    PyObject_HEAD
    struct l5v_qp *qp; /* NULL: closed */
    unsigned int forks;
    uint32_t depth, inline_bytes;
} VerbsQueue;

typedef struct {
    PyObject_HEAD
    uint64_t address, length;
    uint32_t lkey, open;
} VerbsRegion;

/* What all requests begin with. `keep` is the Python region, which keeps the memory. */
#define REQUEST_HEAD                                                                                \
    PyObject_HEAD                                                                                   \
    VerbsQueue *queue;                                                                              \
    VerbsRegion *region;                                                                            \
    PyObject *keep

typedef struct {
    REQUEST_HEAD;
} VerbsRequestHead;

typedef struct {
    REQUEST_HEAD;
    struct l5v_sge sge;
    struct l5v_send_wr wr;
} VerbsRequest;

#define KEYWORDS METH_FASTCALL | METH_KEYWORDS

/* Making an object is one step: there is none that was not filled by `fill`. */
#define L5_NEW(name, Type, fill)                                                                    \
    static PyObject *name(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords))        \
    {                                                                                               \
        PyObject *self = type->tp_alloc(type, 0);                                                   \
                                                                                                    \
        if (self && fill((Type *)self, args) < 0)                                                   \
            Py_CLEAR(self);                                                                         \
        return self;                                                                                \
    }

extern PyTypeObject l5_VerbsQueueType, l5_VerbsRegionType, l5_VerbsRequestType, l5_VerbsPairType;
extern PyTypeObject l5_VerbsReadsType, l5_VerbsAtomicType, l5_VerbsReceiveType;
extern PyTypeObject l5_VerbsCompletionsType, l5_SendSlotsType, l5_ForeignPairType;
extern PyObject *l5_CompletionType; /* the class of completions: a subclass of tuple */
extern unsigned int l5_forks;       /* how often this process's line was forked */

/* _verbs.c */
PyObject *l5_verbs_raise(const char *call, int code, uint32_t depth);
PyObject *l5_verbs_refuse(const char *call, int forked);
PyObject *l5_verbs_refuse_with(const char *call, PyObject *reason);
PyObject *l5_verbs_set(PyObject *module, PyObject *args);
int l5_args_bind(const char *const *names, int required, int count, PyObject *const *args, Py_ssize_t given,
                 PyObject *keywords, PyObject **bound);
int l5_arg_refuse(PyObject *object, const char *name, uint64_t most);
int l5_request_outside(const VerbsRegion *region, uint64_t address, uint64_t length);
void l5_request_init(VerbsRequestHead *self, PyObject *queue, PyObject *region, PyObject *keep);
int l5_request_traverse(VerbsRequestHead *self, visitproc visit, void *arg);
void l5_request_dealloc(VerbsRequestHead *self);

/* Read a number of 0 .. most; no object leaves the value as it is. */
static inline int l5_arg(PyObject *object, const char *name, uint64_t most, uint64_t *value)
{
    unsigned long long number;

    if (!object)
        return 0;
    if (PyLong_CheckExact(object)) {
        number = PyLong_AsUnsignedLongLong(object);
        if ((number != (unsigned long long)-1 || !PyErr_Occurred()) && number <= most) {
            *value = number;
            return 0;
        }
    }
    return l5_arg_refuse(object, name, most);
}

static inline int l5_queue_usable(const VerbsQueue *queue)
{
    if (queue->qp && queue->forks == l5_forks)
        return 1;
    l5_verbs_refuse("post", queue->qp != NULL);
    return 0;
}

/* Check that local memory may be used: all of it within a region that is open. Nothing lies anywhere. */
static inline int l5_request_within(const VerbsRegion *region, uint64_t address, uint64_t length)
{
    if (region->open && (length == 0 || (address >= region->address && length <= region->length &&
                                         address - region->address <= region->length - length)))
        return 1;
    return l5_request_outside(region, address, length);
}

static inline int l5_post(const VerbsQueue *queue, struct l5v_send_wr *first)
{
    struct l5v_send_wr *bad;
    int rc = queue->qp->context->ops.post_send(queue->qp, first, &bad);

    if (rc == 0)
        return 0;
    l5_verbs_raise("post", -l5v_failed(rc), queue->depth);
    return -1;
}

#endif
