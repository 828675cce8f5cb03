/* A request handler in C, in an extension module of its own: how often does each byte occur? */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>

#include <l5_handler.h>

/* The handler's state.  Several workers call at once, hence the atomic. */
static struct {
    _Atomic uint64_t requests;
} totals;

/* Runs without the GIL: no Python in here. */
static int histogram(void *state, const struct l5_request *request, struct l5_reply *reply)
{
    uint64_t *counts;

    if (!request->size)
        return l5_reply_error(reply, "ValueError", "an empty request has no histogram");
    counts = l5_reply_extend(reply, 256 * sizeof(*counts));
    if (!counts)
        return -ENOMEM;
    memset(counts, 0, 256 * sizeof(*counts));
    for (size_t i = 0; i < request->size; i++)
        counts[request->data[i]]++;
    atomic_fetch_add(&((__typeof__(totals) *)state)->requests, 1);
    return 0;
}

static struct l5_handler_entry entry = {
    .struct_bytes = sizeof(entry), .handler = histogram, .state = &totals};

static PyObject *get_handler(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyCapsule_New(&entry, L5_HANDLER_CAPSULE, NULL);
}

static PyObject *get_requests(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyLong_FromUnsignedLongLong(atomic_load(&totals.requests));
}

static PyMethodDef methods[] = {
    {"handler", get_handler, METH_NOARGS, "Return the capsule for l5.NativeService."},
    {"requests", get_requests, METH_NOARGS, "Return how many requests were answered."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "histogram", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit_histogram(void)
{
    return PyModule_Create(&module);
}
