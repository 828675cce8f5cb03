/* Putting the module `l5._fast` into sys.modules.  Theory: _fast.h. */
#include "_spot.h"

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
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef fast_module = {
    PyModuleDef_HEAD_INIT, .m_name = "l5._fast", .m_doc = "The hot calls of l5.", .m_size = -1,
    .m_methods = fast_methods};

static int install(void)
{
    PyObject *module;

    if (PyType_Ready(&l5_RingType) < 0 || PyType_Ready(&l5_PollerType) < 0 || PyType_Ready(&l5_SlotType) < 0 ||
        PyType_Ready(&l5_MemoryType) < 0 || PyType_Ready(&l5_BeatType) < 0 || PyType_Ready(&l5_SpotType) < 0)
        return -1;
    module = PyModule_Create(&fast_module);
    if (!module)
        return -1;
    if (PyModule_AddObjectRef(module, "Ring", (PyObject *)&l5_RingType) < 0 ||
        PyModule_AddObjectRef(module, "Poller", (PyObject *)&l5_PollerType) < 0 ||
        PyModule_AddObjectRef(module, "Slot", (PyObject *)&l5_SlotType) < 0 ||
        PyModule_AddObjectRef(module, "Memory", (PyObject *)&l5_MemoryType) < 0 ||
        PyModule_AddObjectRef(module, "Spot", (PyObject *)&l5_SpotType) < 0 ||
        PyDict_SetItemString(PyImport_GetModuleDict(), "l5._fast", module) < 0) {
        Py_DECREF(module);
        return -1;
    }
    Py_DECREF(module);
    return 0;
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
