/* Putting the module `l5._fast` into sys.modules.  Theory: _fast.h. */
#include "_lane.h"
#include "_spot.h"
#include "_verbs.h"

PyObject *l5_RemoteProtocolError, *l5_ClosedResourceError, *l5_BrokenResourceError, *l5_BusyResourceError;

static PyObject *fast_set_errors(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *remote, *closed, *broken, *busy, *access;

    if (!PyArg_ParseTuple(args, "OOOOO", &remote, &closed, &broken, &busy, &access))
        return NULL;
    Py_XSETREF(l5_RemoteProtocolError, Py_NewRef(remote));
    Py_XSETREF(l5_ClosedResourceError, Py_NewRef(closed));
    Py_XSETREF(l5_BrokenResourceError, Py_NewRef(broken));
    Py_XSETREF(l5_BusyResourceError, Py_NewRef(busy));
    Py_XSETREF(l5_RemoteAccessError, Py_NewRef(access));
    Py_RETURN_NONE;
}

static PyObject *fast_latency_bucket(PyObject *Py_UNUSED(module), PyObject *value)
{
    unsigned long long ns = PyLong_AsUnsignedLongLong(value);

    return PyErr_Occurred() ? NULL : PyLong_FromUnsignedLong(l5_latency_index(ns));
}

static PyMethodDef fast_methods[] = {
    {"latency_bucket", fast_latency_bucket, METH_O, "The bucket of a duration in ns, for the tests."},
    {"set_errors", fast_set_errors, METH_VARARGS, "set_errors(remote_protocol, closed, broken, busy, access)"},
    {"set_paths", l5_policy_set_paths, METH_VARARGS, "set_paths(server, client): the members of l5.Path"},
    {"set_verbs", l5_verbs_set, METH_VARARGS, "set_verbs(completion_class, error_for, refusal_for)"},
    {NULL, NULL, 0, NULL},
};

/* The types by their names in the module. */
static const struct {
    const char *name;
    PyTypeObject *type;
} types[] = {
    {"Ring", &l5_RingType},
    {"Poller", &l5_PollerType},
    {"Slot", &l5_SlotType},
    {"Memory", &l5_MemoryType},
    {"Beat", &l5_BeatType},
    {"Spot", &l5_SpotType},
    {"Latencies", &l5_LatenciesType},
    {"Adaptive", &l5_AdaptiveType},
    {"Lane", &l5_LaneType},
    {"VerbsQueue", &l5_VerbsQueueType},
    {"VerbsRegion", &l5_VerbsRegionType},
    {"VerbsRequest", &l5_VerbsRequestType},
    {"VerbsPair", &l5_VerbsPairType},
    {"VerbsReads", &l5_VerbsReadsType},
    {"VerbsAtomic", &l5_VerbsAtomicType},
    {"VerbsReceive", &l5_VerbsReceiveType},
    {"VerbsCompletions", &l5_VerbsCompletionsType},
    {"SendSlots", &l5_SendSlotsType},
    {"ForeignPair", &l5_ForeignPairType},
};

static struct PyModuleDef fast_module = {
    PyModuleDef_HEAD_INIT, .m_name = "l5._fast", .m_doc = "The hot calls of l5.", .m_size = -1,
    .m_methods = fast_methods};

static int install(void)
{
    PyObject *module = PyModule_Create(&fast_module);
    int rc = module ? 0 : -1;

    for (size_t index = 0; rc == 0 && index < sizeof types / sizeof types[0]; index++)
        rc = PyType_Ready(types[index].type) < 0 ||
                     PyModule_AddObjectRef(module, types[index].name, (PyObject *)types[index].type) < 0
                 ? -1
                 : 0;
    if (rc == 0)
        rc = PyDict_SetItemString(PyImport_GetModuleDict(), "l5._fast", module);
    Py_XDECREF(module);
    return rc;
}

int l5_install_fast(void);

int l5_install_fast(void)
{
    PyGILState_STATE state = PyGILState_Ensure();
    int rc = install();

    if (rc < 0)
        PyErr_WriteUnraisable(NULL);
    PyGILState_Release(state);
    return rc;
}
