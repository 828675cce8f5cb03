/* The Memory: one mapping of a region, as Python calls it.  See region.h, and _fast.h.
 *
 *   Memory (a region)                      Memory (its owner's page of control words)
 *   base --> | mapping, whole pages |      base --> | w0 | w1 | ... |
 *   guard, word --------------------------------------^  value while the region may be used;
 *                                                        the owner's zero revokes it, at once
 * Views (the buffer protocol) keep the mapping alive, whatever else happens: closing a Memory ends
 * accesses through its methods, and unmaps when the last view is gone.
 */
#include "_fast.h"
#include "region.h"

enum { PIECE_MAX = 256 << 10 }; /* bytes that are copied at once, with the event loop waiting */

typedef struct {
    PyObject_HEAD
    uint8_t *base;          /* NULL: not mapped (any more) */
    Py_ssize_t size;        /* what can be accessed */
    Py_ssize_t exports;     /* views that exist now */
    PyObject *guard;        /* strong: the Memory in which `word` is, or NULL */
    const l5_word *word;
    uint64_t value;         /* what the word says while access is granted */
    uint64_t turn_ns;       /* how long after `breathed` accesses go on; 0: for ever */
    uint64_t breathed_ns;
    unsigned long long calls;
    PyObject *reason;       /* strong: why it is closed, or NULL */
    PyObject *references;   /* weak ones */
    char open, writable;
} Memory;

PyObject *l5_RemoteAccessError;

/* ---- checks ---------------------------------------------------------------------------------- */

static int granted(const Memory *self)
{
    return !self->word || l5_load_acquire(self->word) == self->value; /* pairs with: REVOKE */
}

static int refuse(const Memory *self)
{
    if (!self->open && self->reason)
        PyErr_SetObject(l5_RemoteAccessError, self->reason);
    else if (!self->open)
        PyErr_SetString(l5_RemoteAccessError, "this region is closed");
    else
        PyErr_SetString(l5_RemoteAccessError, "the owner has revoked or closed this region");
    return 0;
}

static int usable(const Memory *self)
{
    return self->open && granted(self) ? 1 : refuse(self);
}

static int due(const Memory *self)
{
    return self->turn_ns && l5_now_ns() - self->breathed_ns > self->turn_ns;
}

/* A count of bytes: below zero, and too large for any, is out of bounds as everything else is. */
static int get_bytes(PyObject *object, int64_t *bytes)
{
    int overflow = 0;
    long long value = PyLong_AsLongLongAndOverflow(object, &overflow);

    if (value == -1 && PyErr_Occurred())
        return 0;
    *bytes = overflow ? -1 : value;
    return 1;
}

static int get_word(PyObject *object, uint64_t *value)
{
    *value = PyLong_AsUnsignedLongLong(object);
    return !PyErr_Occurred();
}

static int in_bounds(const Memory *self, PyObject *offset_object, int64_t offset, int64_t bytes)
{
    if (offset >= 0 && bytes >= 0 && offset <= self->size && bytes <= self->size - offset)
        return 1;
    PyErr_Format(l5_RemoteAccessError, "%lld bytes at offset %S are not within this region of %zd bytes",
                 (long long)bytes, offset_object, self->size);
    return 0;
}

static int changeable(const Memory *self)
{
    if (self->writable)
        return 1;
    PyErr_SetString(l5_RemoteAccessError, "this region is mapped for reading only");
    return 0;
}

/* ---- accesses -------------------------------------------------------------------------------- */

static PyObject *read_now(Memory *self, PyObject *const *args)
{
    int64_t offset, bytes;
    PyObject *data;

    if (!get_bytes(args[0], &offset) || !get_bytes(args[1], &bytes))
        return NULL;
    if (!usable(self) || !in_bounds(self, args[0], offset, bytes))
        return NULL;
    data = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
    if (!data)
        return NULL;
    l5_region_read(PyBytes_AS_STRING(data), self->base + offset, (size_t)bytes);
    if (granted(self)) /* after the copy: what was written since the revocation is nobody's to see */
        return data;
    Py_DECREF(data);
    refuse(self);
    return NULL;
}

static PyObject *memory_read_now(Memory *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "read_now(offset, length)");
    self->calls++;
    return read_now(self, args);
}

static PyObject *memory_read(Memory *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "read(offset, length)");
    self->calls++;
    if (due(self) || PyLong_AsLong(args[1]) > PIECE_MAX)
        Py_RETURN_NONE;
    if (PyErr_Occurred())
        PyErr_Clear(); /* what is no number, or too large a one, is said below */
    return read_now(self, args);
}

static PyObject *memory_write(Memory *self, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer view;
    int64_t offset;
    int ok;

    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "write(offset, data)");
    self->calls++;
    if (!get_bytes(args[0], &offset) || PyObject_GetBuffer(args[1], &view, PyBUF_SIMPLE) < 0)
        return NULL;
    /* Only now: asking for the bytes may have run Python code, which may have closed this. */
    ok = usable(self) && changeable(self) && in_bounds(self, args[0], offset, view.len);
    if (ok)
        l5_region_write(self->base + offset, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

static l5_word *word_at(Memory *self, PyObject *offset_object)
{
    int64_t offset;

    self->calls++;
    if (!get_bytes(offset_object, &offset) || !usable(self) || !changeable(self) ||
        !in_bounds(self, offset_object, offset, 8))
        return NULL;
    if (offset & 7) {
        PyErr_Format(l5_RemoteAccessError, "offset %S is not a multiple of 8: atomics need an aligned word",
                     offset_object);
        return NULL;
    }
    return (l5_word *)(void *)(self->base + offset);
}

static PyObject *memory_compare_and_swap(Memory *self, PyObject *const *args, Py_ssize_t count)
{
    uint64_t expected, desired;
    l5_word *word;

    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "compare_and_swap(offset, expected, desired)");
    if (!get_word(args[1], &expected) || !get_word(args[2], &desired))
        return NULL;
    word = word_at(self, args[0]);
    return word ? PyLong_FromUnsignedLongLong(l5_compare_swap(word, expected, desired)) : NULL;
}

static PyObject *memory_fetch_and_add(Memory *self, PyObject *const *args, Py_ssize_t count)
{
    uint64_t value;
    l5_word *word;

    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "fetch_and_add(offset, value)");
    word = get_word(args[1], &value) ? word_at(self, args[0]) : NULL;
    return word ? PyLong_FromUnsignedLongLong(l5_fetch_add(word, value)) : NULL;
}

/* (The owner, on its page of control words) grant by a value, or revoke by zero. */
static PyObject *memory_control(Memory *self, PyObject *const *args, Py_ssize_t count)
{
    uint64_t value;
    l5_word *word;

    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "control(offset, value)");
    word = get_word(args[1], &value) ? word_at(self, args[0]) : NULL;
    if (!word)
        return NULL;
    l5_store_seq(word, value); /* pairs with: REVOKE */
    l5_full_fence();           /* before whatever the owner writes into the region from now on */
    Py_RETURN_NONE;
}

static PyObject *memory_guarded_by(Memory *self, PyObject *const *args, Py_ssize_t count)
{
    Memory *guard;
    int64_t offset;
    uint64_t value;

    if (count != 3 || !PyObject_TypeCheck(args[0], &l5_MemoryType))
        return PyErr_Format(PyExc_TypeError, "guarded_by(memory, offset, value)");
    guard = (Memory *)args[0];
    if (!get_word(args[2], &value) || !get_bytes(args[1], &offset) || !usable(guard) ||
        !in_bounds(guard, args[1], offset, 8))
        return NULL;
    if (offset & 7 || self->guard || guard == self)
        return PyErr_Format(PyExc_ValueError, "a memory is guarded once, by an aligned word of another one");
    self->guard = Py_NewRef(guard);
    guard->exports++; /* as by a view: the page stays */
    self->word = (const l5_word *)(const void *)(guard->base + offset);
    self->value = value;
    Py_RETURN_NONE;
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void unmap_unused(Memory *self)
{
    if (self->open || self->exports || !self->base)
        return;
    l5_region_unmap(self->base, l5_region_map_bytes((uint64_t)self->size));
    self->base = NULL;
}

static void unguard(Memory *self)
{
    Memory *guard = (Memory *)self->guard;

    self->word = NULL;
    if (guard) {
        guard->exports--;
        unmap_unused(guard);
        Py_CLEAR(self->guard);
    }
}

static PyObject *memory_close(Memory *self, PyObject *reason)
{
    if (self->open) {
        self->open = 0;
        self->reason = Py_NewRef(reason);
        unguard(self);
        unmap_unused(self);
    }
    Py_RETURN_NONE;
}

/* In a forked child an alien mapping does not exist, and its addresses may soon be somebody else's:
 * they are not unmapped.  Under live views goes memory that means nothing. */
static PyObject *memory_forget(Memory *self, PyObject *reason)
{
    if (self->open) {
        self->open = 0;
        self->reason = Py_NewRef(reason);
    }
    self->word = NULL; /* the guard is forgotten by itself */
    if (self->base && (!self->exports || l5_mapping_blank(self->base, l5_region_map_bytes((uint64_t)self->size)) < 0))
        self->base = NULL;
    Py_RETURN_NONE;
}

static PyObject *memory_breathed(Memory *self, PyObject *Py_UNUSED(ignored))
{
    self->breathed_ns = l5_now_ns();
    Py_RETURN_NONE;
}

/* ---- the type -------------------------------------------------------------------------------- */

static int memory_init(Memory *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fd", "size", "writable", "alien", NULL};
    int fd, writable, alien, rc;
    Py_ssize_t size;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "inpp", names, &fd, &size, &writable, &alien))
        return -1;
    if (self->open || self->base || self->reason || size <= 0) {
        PyErr_SetString(PyExc_ValueError, "a memory is made once, and not empty");
        return -1;
    }
    rc = l5_region_map(fd, (uint64_t)size, writable, alien, &self->base);
    if (rc) {
        errno = -rc;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    self->size = size;
    self->writable = (char)writable;
    self->breathed_ns = l5_now_ns();
    self->open = 1;
    return 0;
}

static void memory_dealloc(Memory *self)
{
    if (self->references)
        PyObject_ClearWeakRefs((PyObject *)self);
    self->open = 0;
    unguard(self);
    unmap_unused(self);
    Py_XDECREF(self->reason);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int memory_getbuffer(Memory *self, Py_buffer *view, int flags)
{
    if (!usable(self))
        return -1;
    if (PyBuffer_FillInfo(view, (PyObject *)self, self->base, self->size, !self->writable, flags) < 0)
        return -1;
    self->exports++;
    return 0;
}

static void memory_releasebuffer(Memory *self, Py_buffer *Py_UNUSED(view))
{
    self->exports--;
    unmap_unused(self);
}

static PyObject *memory_granted(Memory *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(self->open && granted(self));
}

static PyObject *memory_due(Memory *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(due(self));
}

#define FAST(name) (PyCFunction)(void (*)(void))memory_##name, METH_FASTCALL

static PyMethodDef memory_methods[] = {
    {"read", FAST(read), "read(offset, length): a copy; None when it is long, or the event loop should run first."},
    {"read_now", FAST(read_now), "read_now(offset, length): a copy."},
    {"write", FAST(write), "write(offset, data)"},
    {"compare_and_swap", FAST(compare_and_swap), "compare_and_swap(offset, expected, desired): what was there."},
    {"fetch_and_add", FAST(fetch_and_add), "fetch_and_add(offset, value): what was there."},
    {"control", FAST(control), "control(offset, value): store a control word, before all that follows."},
    {"guarded_by", FAST(guarded_by), "guarded_by(memory, offset, value): usable while that word has that value."},
    {"breathed", (PyCFunction)memory_breathed, METH_NOARGS, "The event loop has just run."},
    {"close", (PyCFunction)memory_close, METH_O, "close(reason): refuse accesses; unmap when no view is left."},
    {"forget", (PyCFunction)memory_forget, METH_O, "forget(reason): (in a forked child) the mapping is gone."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef memory_members[] = {
    {"size", T_PYSSIZET, offsetof(Memory, size), READONLY, "bytes"},
    {"views", T_PYSSIZET, offsetof(Memory, exports), READONLY, "views that exist now"},
    {"open", T_BOOL, offsetof(Memory, open), READONLY, "not closed"},
    {"writable", T_BOOL, offsetof(Memory, writable), READONLY, "mapped for writing"},
    {"turn_ns", T_ULONGLONG, offsetof(Memory, turn_ns), 0, "how long reads go on without the event loop; 0: for ever"},
    {"calls", T_ULONGLONG, offsetof(Memory, calls), READONLY, "accesses"},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef memory_getset[] = {
    {"due", (getter)memory_due, NULL, "the event loop should run first", NULL},
    {"granted", (getter)memory_granted, NULL, "open, and not revoked", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyBufferProcs memory_buffer = {(getbufferproc)memory_getbuffer, (releasebufferproc)memory_releasebuffer};

PyTypeObject l5_MemoryType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "l5._fast.Memory",
    .tp_doc = "A mapping of a region: copies, atomics, and views through the buffer protocol.",
    .tp_basicsize = sizeof(Memory),
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)memory_init,
    .tp_dealloc = (destructor)memory_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_weaklistoffset = offsetof(Memory, references),
    .tp_methods = memory_methods,
    .tp_members = memory_members,
    .tp_getset = memory_getset,
    .tp_as_buffer = &memory_buffer,
};
