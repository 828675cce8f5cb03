/* What the policies in C share: the paths that they return, and the arguments of `observe`. */
#include "_fast.h"

enum { SERVER = 0, CLIENT = 1 };

PyObject *l5_policy_paths[2]; /* strong: Path.SERVER and Path.CLIENT, for good */

PyObject *l5_policy_set_paths(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *server, *client;

    if (!PyArg_ParseTuple(args, "OO", &server, &client))
        return NULL;
    Py_XSETREF(l5_policy_paths[SERVER], Py_NewRef(server));
    Py_XSETREF(l5_policy_paths[CLIENT], Py_NewRef(client));
    Py_RETURN_NONE;
}

/* Put arguments that were named after those that were not. */
static int named(PyObject **all, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const char *const known[L5_OBSERVE_MAX] = {"path", "latency_s", "now", "reads", "requests"};

    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        Py_ssize_t at = 0;

        while (at < L5_OBSERVE_MAX && PyUnicode_CompareWithASCIIString(name, known[at]) != 0)
            at++;
        if (at == L5_OBSERVE_MAX || all[at]) {
            PyErr_Format(PyExc_TypeError, "observe() got %s argument %R",
                         at == L5_OBSERVE_MAX ? "an unknown" : "twice the", name);
            return -1;
        }
        all[at] = args[count + i];
    }
    return 0;
}

int l5_policy_observed(PyObject **all, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    for (Py_ssize_t i = 0; i < count && i < L5_OBSERVE_MAX; i++)
        all[i] = args[i];
    if (names && named(all, args, count, names) < 0)
        return -1;
    if (count > L5_OBSERVE_MAX || !all[0] || !all[1] || !all[2]) {
        PyErr_SetString(PyExc_TypeError, "observe() takes path, latency_s, now, and perhaps reads and requests");
        return -1;
    }
    return 0;
}
