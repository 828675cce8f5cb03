/* A Python type whose buffer calls functions: `Trap(taken, released)`, with the bytes "payload".
 *
 * As a class with __buffer__ and __release_buffer__ does from Python 3.12 on.  What `taken` raises reaches who
 * asked for the bytes; what `released` raises nobody can be told. */
#include <Python.h>

typedef struct {
    PyObject_HEAD
    PyObject *taken, *released;
} Trap;

static int trap_init(Trap *self, PyObject *arguments, PyObject *names)
{
    (void)names;
    if (!PyArg_ParseTuple(arguments, "OO", &self->taken, &self->released))
        return -1;
    Py_INCREF(self->taken);
    Py_INCREF(self->released);
    return 0;
}

static void trap_dealloc(Trap *self)
{
    PyTypeObject *type = Py_TYPE(self);

    Py_XDECREF(self->taken);
    Py_XDECREF(self->released);
    type->tp_free(self);
    Py_DECREF(type);
}

static int trap_getbuffer(Trap *self, Py_buffer *view, int flags)
{
    PyObject *result = PyObject_CallNoArgs(self->taken);

    view->obj = NULL;
    if (!result)
        return -1;
    Py_DECREF(result);
    return PyBuffer_FillInfo(view, (PyObject *)self, (void *)"payload", 7, 1, flags);
}

static void trap_releasebuffer(Trap *self, Py_buffer *view)
{
    PyObject *type, *value, *traceback, *result;

    (void)view;
    PyErr_Fetch(&type, &value, &traceback);
    result = PyObject_CallNoArgs(self->released);
    if (!result)
        PyErr_WriteUnraisable((PyObject *)self);
    Py_XDECREF(result);
    PyErr_Restore(type, value, traceback);
}

static PyType_Slot trap_slots[] = {
    {Py_tp_init, (void *)trap_init},
    {Py_tp_dealloc, (void *)trap_dealloc},
    {Py_bf_getbuffer, (void *)trap_getbuffer},
    {Py_bf_releasebuffer, (void *)trap_releasebuffer},
    {0, NULL},
};

static PyType_Spec trap_spec = {"trap.Trap", sizeof(Trap), 0, Py_TPFLAGS_DEFAULT, trap_slots};

static int trap_exec(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&trap_spec);
    int rc = type ? PyModule_AddObjectRef(module, "Trap", type) : -1;

    Py_XDECREF(type);
    return rc;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)trap_exec}, {0, NULL}};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, "trap", NULL, 0, NULL, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_trap(void)
{
    return PyModuleDef_Init(&module);
}
