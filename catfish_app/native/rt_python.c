/* Where CPython meets the tree: the type Tree, whose calls for single rectangles are METH_FASTCALL methods.
 *
 * The only file that knows Python, compiled into the module that cffi builds; rt_python_install, called once through cffi, puts
 * catfish_app._rtree_fast into sys.modules. The calls here keep the GIL (they take a microsecond or so; to get it back takes up to a
 * switch interval), but a writer who has to wait for another one waits without it. Calls for many rectangles go through cffi.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "rt_node.h"

#define FEW_IDS 1024

static PyObject *TreeFull;

typedef struct {
    PyObject_HEAD
    struct rtree *tree;
    PyObject *region; /* whose memory the tree is in, or NULL */
    Py_buffer memory;
} Tree;

static int as_double(PyObject *object, double *value)
{
    *value = PyFloat_CheckExact(object) ? PyFloat_AS_DOUBLE(object) : PyFloat_AsDouble(object);
    return *value == -1.0 && PyErr_Occurred() ? -1 : 0;
}

static int as_rect(PyObject *const *args, double rect[4])
{
    for (unsigned side = 0; side < 4; side++)
        if (as_double(args[side], &rect[side]) < 0)
            return -1;
    return 0;
}

static int as_id(PyObject *object, uint64_t *id)
{
    *id = PyLong_AsUnsignedLongLong(object);
    if (*id == UINT64_MAX && PyErr_Occurred() == PyExc_OverflowError)
        PyErr_Format(PyExc_OverflowError, "the id is %S; it must be from 0 to 2**64 - 1", object);
    return *id == UINT64_MAX && PyErr_Occurred() ? -1 : 0;
}

static int check_arity(const char *name, Py_ssize_t given, Py_ssize_t wanted, const char *names)
{
    if (given == wanted)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments (%s), got %zd", name, wanted, names, given);
    return -1;
}

static PyObject *raise_bad_rect(const double rect[4], int query)
{
    char message[160];
    if (rt_rect_explain(rect, query, message, sizeof message) == 0)
        PyErr_SetString(PyExc_SystemError, "a valid rectangle was refused");
    else
        PyErr_Format(PyExc_ValueError, "not a valid %s: %s", query ? "query" : "rectangle", message);
    return NULL;
}

static PyObject *raise_error(const Tree *self, int error)
{
    if (error == -ENOMEM)
        return PyErr_NoMemory();
    if (error == -ENOSPC)
        PyErr_Format(TreeFull, "the tree is full: its arena has %u nodes; make it with a greater capacity",
                     self->tree->header->capacity);
    else
        PyErr_Format(PyExc_OSError, "the tree failed: %s", strerror(-error));
    return NULL;
}

/* Nobody waits for the GIL with the writers' mutex in hand: a search that keeps the GIL may wait for that mutex, when it was
 * disturbed too often.  So who had to wait for the mutex without the GIL lets go of it, and tries again with the GIL. */
static void lock(Tree *self)
{
    while (rt_trylock(self->tree) != 0) {
        Py_BEGIN_ALLOW_THREADS
        rt_lock(self->tree);
        rt_unlock(self->tree);
        Py_END_ALLOW_THREADS
    }
}

static PyObject *ids_to_list(const uint64_t *ids, size_t n)
{
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; list && i < n; i++) {
        PyObject *item = ids[i] <= (uint64_t)LONG_MAX ? PyLong_FromLong((long)ids[i]) : PyLong_FromUnsignedLongLong(ids[i]);
        if (!item)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, item);
    }
    return list;
}

/* More results than fit on the stack: ask again with room for them, and some more that came meanwhile. */
static PyObject *search_large(Tree *self, const double query[4], size_t total)
{
    uint64_t *ids = NULL;
    size_t capacity = 0;
    int error = 0;
    while (!error && total > capacity) {
        capacity = total + total / 8;
        PyMem_RawFree(ids);
        ids = PyMem_RawMalloc(capacity * sizeof *ids);
        error = ids ? rt_search(self->tree, query, ids, capacity, &total) : -ENOMEM;
    }
    PyObject *list = error ? raise_error(self, error) : ids_to_list(ids, total);
    PyMem_RawFree(ids);
    return list;
}

static PyObject *Tree_search(Tree *self, PyObject *const *args, Py_ssize_t n_args)
{
    double query[4];
    uint64_t ids[FEW_IDS];
    size_t total;
    if (check_arity("search", n_args, 4, "xmin, ymin, xmax, ymax") < 0 || as_rect(args, query) < 0)
        return NULL;
    if (rt_search(self->tree, query, ids, FEW_IDS, &total))
        return raise_bad_rect(query, 1);
    return total > FEW_IDS ? search_large(self, query, total) : ids_to_list(ids, total);
}

static PyObject *Tree_search_into(Tree *self, PyObject *const *args, Py_ssize_t n_args)
{
    double query[4];
    size_t total;
    Py_buffer buffer;
    if (check_arity("search_into", n_args, 5, "xmin, ymin, xmax, ymax, buffer") < 0 || as_rect(args, query) < 0 ||
        PyObject_GetBuffer(args[4], &buffer, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) < 0)
        return NULL;
    PyObject *result = NULL;
    if ((uintptr_t)buffer.buf % sizeof(uint64_t))
        PyErr_SetString(PyExc_ValueError, "the buffer is not aligned to 8 bytes");
    else if (rt_search(self->tree, query, buffer.buf, (size_t)buffer.len / sizeof(uint64_t), &total))
        raise_bad_rect(query, 1);
    else
        result = PyLong_FromSize_t(total);
    PyBuffer_Release(&buffer);
    return result;
}

static PyObject *Tree_count(Tree *self, PyObject *const *args, Py_ssize_t n_args)
{
    double query[4];
    uint64_t count;
    if (check_arity("count", n_args, 4, "xmin, ymin, xmax, ymax") < 0 || as_rect(args, query) < 0)
        return NULL;
    if (rt_count(self->tree, query, &count))
        return raise_bad_rect(query, 1);
    return PyLong_FromUnsignedLongLong(count);
}

static PyObject *Tree_insert(Tree *self, PyObject *const *args, Py_ssize_t n_args)
{
    double rect[4];
    uint64_t id;
    if (check_arity("insert", n_args, 5, "xmin, ymin, xmax, ymax, id") < 0 || as_rect(args, rect) < 0 ||
        as_id(args[4], &id) < 0)
        return NULL;
    if (rt_rect_check(rect))
        return raise_bad_rect(rect, 0);
    lock(self);
    int error = rt_insert_locked(self->tree, rect, id);
    rt_unlock(self->tree);
    if (error)
        return raise_error(self, error);
    Py_RETURN_NONE;
}

static PyObject *Tree_delete(Tree *self, PyObject *const *args, Py_ssize_t n_args)
{
    double rect[4];
    uint64_t id;
    if (check_arity("delete", n_args, 5, "xmin, ymin, xmax, ymax, id") < 0 || as_rect(args, rect) < 0 ||
        as_id(args[4], &id) < 0)
        return NULL;
    if (rt_rect_check(rect))
        return raise_bad_rect(rect, 0);
    lock(self);
    int error = rt_delete_locked(self->tree, rect, id);
    rt_unlock(self->tree);
    return PyBool_FromLong(error == 0);
}

static int rect_of_sequence(PyObject *object, double rect[4])
{
    PyObject *items = PySequence_Fast(object, "a rectangle is a sequence of xmin, ymin, xmax, ymax");
    int result = -1;
    if (items && PySequence_Fast_GET_SIZE(items) != 4)
        PyErr_Format(PyExc_ValueError, "a rectangle has 4 numbers (xmin, ymin, xmax, ymax), got %zd",
                     PySequence_Fast_GET_SIZE(items));
    else if (items)
        result = as_rect(PySequence_Fast_ITEMS(items), rect);
    Py_XDECREF(items);
    return result;
}

static PyObject *Tree_update(Tree *self, PyObject *const *args, Py_ssize_t n_args)
{
    double old_rect[4], new_rect[4];
    uint64_t id;
    if (check_arity("update", n_args, 3, "old rectangle, id, new rectangle") < 0 || rect_of_sequence(args[0], old_rect) < 0 ||
        as_id(args[1], &id) < 0 || rect_of_sequence(args[2], new_rect) < 0)
        return NULL;
    if (rt_rect_check(old_rect) || rt_rect_check(new_rect))
        return raise_bad_rect(rt_rect_check(old_rect) ? old_rect : new_rect, 0);
    lock(self);
    int error = rt_update_locked(self->tree, old_rect, id, new_rect);
    rt_unlock(self->tree);
    if (error && error != -ENOENT)
        return raise_error(self, error);
    return PyBool_FromLong(error == 0);
}

static PyObject *nearest_of(Tree *self, const double rect[4], size_t k)
{
    size_t found;
    size_t entries = (size_t)rt_size(self->tree), room = k < entries ? k : entries;
    uint64_t *ids = PyMem_RawMalloc((room + 1) * (sizeof(uint64_t) + sizeof(double)));
    if (!ids)
        return PyErr_NoMemory();
    PyObject *list = NULL;
    if (rt_nearest(self->tree, rect, room, ids, (double *)(ids + room + 1), &found))
        raise_bad_rect(rect, 0);
    else
        list = ids_to_list(ids, found);
    PyMem_RawFree(ids);
    return list;
}

static PyObject *Tree_nearest_to(Tree *self, PyObject *const *args, Py_ssize_t n_args)
{
    double rect[4];
    if (check_arity("nearest_to", n_args, 5, "xmin, ymin, xmax, ymax, k") < 0 || as_rect(args, rect) < 0)
        return NULL;
    Py_ssize_t k = PyNumber_AsSsize_t(args[4], PyExc_OverflowError);
    if (k < 0 && !PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "k is %zd; it must not be negative", k);
    if (k < 0)
        return NULL;
    if (rt_rect_check(rect))
        return raise_bad_rect(rect, 0);
    return nearest_of(self, rect, (size_t)k);
}

static int memory_of(PyObject *region, Py_buffer *memory)
{
    PyObject *view = PyObject_GetAttrString(region, "view");
    int error = view ? PyObject_GetBuffer(view, memory, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) : -1;
    Py_XDECREF(view);
    return error;
}

/* Put the tree into the memory of an l5.Region, which it keeps. */
static int create_in_region(Tree *self, PyObject *region)
{
    if (memory_of(region, &self->memory) < 0)
        return -EINVAL;
    self->region = Py_NewRef(region);
    return rt_create_in(&self->tree, self->memory.buf, (size_t)self->memory.len);
}

static PyObject *Tree_move_into(Tree *self, PyObject *region)
{
    Py_buffer memory;
    int error = memory_of(region, &memory);
    if (error)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    error = rt_share(self->tree, memory.buf, (size_t)memory.len);
    Py_END_ALLOW_THREADS
    if (!error) { /* nobody else gets so far with this tree */
        self->memory = memory;
        self->region = Py_NewRef(region);
        Py_RETURN_NONE;
    }
    PyBuffer_Release(&memory);
    errno = -error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *Tree_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"capacity", "region", NULL};
    PyObject *region = Py_None;
    unsigned long long capacity = 1000000;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|KO:RTree", names, &capacity, &region))
        return NULL;
    uint32_t nodes = rt_nodes_for(capacity);
    if (capacity == 0 || nodes == RT_MAX_NODES)
        return PyErr_Format(PyExc_ValueError, "capacity is %llu; it must be from 1 to about 9,000,000,000 rectangles", capacity);
    Tree *self = (Tree *)type->tp_alloc(type, 0);
    int error = !self ? 0 : region == Py_None ? rt_create(&self->tree, nodes) : create_in_region(self, region);
    if (error) {
        self->tree = NULL;
        Py_DECREF(self);
        if (PyErr_Occurred())
            return NULL;
        errno = -error;
        PyErr_Format(PyExc_OSError, "no tree for %llu rectangles: %s (kernels: CATFISH_KERNEL)", capacity, strerror(-error));
        return NULL;
    }
    return (PyObject *)self;
}

static void Tree_dealloc(Tree *self)
{
    PyTypeObject *type = Py_TYPE(self);
    rt_destroy(self->tree);
    if (self->region)
        PyBuffer_Release(&self->memory);
    Py_XDECREF(self->region);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static Py_ssize_t Tree_length(Tree *self) { return (Py_ssize_t)rt_size(self->tree); }

static PyObject *Tree_address(Tree *self, void *unused)
{
    (void)unused;
    return PyLong_FromVoidPtr(self->tree);
}

static PyObject *Tree_region(Tree *self, void *unused)
{
    (void)unused;
    return Py_NewRef(self->region ? self->region : Py_None);
}

static PyMethodDef Tree_methods[] = {
    {"search", (PyCFunction)(void (*)(void))Tree_search, METH_FASTCALL,
     "search($self, xmin, ymin, xmax, ymax, /)\n--\n\nReturn the ids of all rectangles that meet this one."},
    {"search_into", (PyCFunction)(void (*)(void))Tree_search_into, METH_FASTCALL,
     "search_into($self, xmin, ymin, xmax, ymax, buffer, /)\n--\n\nWrite the ids (unsigned, 64 bits) to a buffer; "
     "return how many there are."},
    {"count", (PyCFunction)(void (*)(void))Tree_count, METH_FASTCALL,
     "count($self, xmin, ymin, xmax, ymax, /)\n--\n\nReturn how many rectangles meet this one."},
    {"insert", (PyCFunction)(void (*)(void))Tree_insert, METH_FASTCALL,
     "insert($self, xmin, ymin, xmax, ymax, id, /)\n--\n\nInsert one rectangle."},
    {"delete", (PyCFunction)(void (*)(void))Tree_delete, METH_FASTCALL,
     "delete($self, xmin, ymin, xmax, ymax, id, /)\n--\n\nDelete one entry that is exactly this; return whether there was one."},
    {"update", (PyCFunction)(void (*)(void))Tree_update, METH_FASTCALL,
     "update($self, old, id, new, /)\n--\n\nMove one entry to another rectangle; return whether there was one."},
    {"nearest_to", (PyCFunction)(void (*)(void))Tree_nearest_to, METH_FASTCALL,
     "nearest_to($self, xmin, ymin, xmax, ymax, k, /)\n--\n\nReturn the ids of the k nearest entries, nearest first."},
    {"move_into", (PyCFunction)Tree_move_into, METH_O,
     "move_into($self, region, /)\n--\n\nMove into the memory of an l5.Region; FileExistsError: it is in one already."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef Tree_properties[] = {
    {"address", (getter)Tree_address, NULL, "Address of the struct rtree, for other C code; valid as long as this object.", NULL},
    {"region", (getter)Tree_region, NULL, "The l5.Region that the tree is in, or None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot Tree_slots[] = {
    {Py_tp_new, Tree_new},         {Py_tp_dealloc, Tree_dealloc}, {Py_tp_methods, Tree_methods}, {Py_tp_getset, Tree_properties},
    {Py_sq_length, Tree_length},   {Py_tp_doc, "Tree(capacity=1000000)\n--\n\nAn R*-tree of 2-D rectangles with 64-bit ids."},
    {0, NULL},
};

static PyType_Spec Tree_spec = {
    .name = "catfish_app._rtree_fast.Tree",
    .basicsize = sizeof(Tree),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = Tree_slots,
};

static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, .m_name = "catfish_app._rtree_fast", .m_size = -1};

static int install(void)
{
    PyObject *modules = PyImport_GetModuleDict();
    PyObject *module = PyModule_Create(&module_def), *type = PyType_FromSpec(&Tree_spec);
    TreeFull = PyErr_NewExceptionWithDoc("catfish_app.TreeFull", "No node is left in the tree's arena.", PyExc_RuntimeError, NULL);
    int failed = !module || !type || !TreeFull || PyModule_AddObjectRef(module, "Tree", type) < 0 ||
                 PyModule_AddObjectRef(module, "TreeFull", TreeFull) < 0 ||
                 PyDict_SetItemString(modules, "catfish_app._rtree_fast", module) < 0;
    Py_XDECREF(type);
    Py_XDECREF(module);
    return failed ? -1 : 0;
}

int rt_python_install(void)
{
    PyGILState_STATE state = PyGILState_Ensure();
    int result = install();
    if (result < 0)
        PyErr_Print();
    PyGILState_Release(state);
    return result;
}
