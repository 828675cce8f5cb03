"""C request handlers for tests, built as an outside extension would build them."""

import ctypes
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

NATIVE = Path(__file__).resolve().parents[2] / "l5" / "native"

SOURCE = r"""
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "l5_handler.h"

/* First byte: e echo, n this many bytes, s sleep this many ms, d milliseconds left, f fail,
 * c count (in the state), w the worker's number, v whether what it reads twice is the same. */
static uint64_t sum_of(const struct l5_request *request)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < request->size; i++)
        sum = sum * 31 + ((const volatile uint8_t *)request->data)[i];
    return sum;
}

int handle(void *state, const struct l5_request *request, struct l5_reply *reply);
int handle(void *state, const struct l5_request *request, struct l5_reply *reply)
{
    uint32_t number = 0;
    uint64_t sum;
    struct timespec now;
    int64_t left;

    if (!request->size)
        return 0;
    if (request->size >= 5)
        memcpy(&number, request->data + 1, 4);
    switch (request->data[0]) {
    case 'e':
        return l5_reply_append(reply, request->data, request->size);
    case 'n':
        return l5_reply_extend(reply, number) || !number ? 0 : -EMSGSIZE;
    case 's':
        usleep(number * 1000);
        return l5_reply_append(reply, request->data, request->size);
    case 'd':
        clock_gettime(CLOCK_MONOTONIC, &now);
        left = request->deadline_ns ? (int64_t)request->deadline_ns / 1000000 - now.tv_sec * 1000 -
                                          now.tv_nsec / 1000000 : -1;
        return l5_reply_append(reply, &left, sizeof(left));
    case 'f':
        return l5_reply_error(reply, "LookupError", "n\xc3\xb6 such thing");
    case 'c':
        number = __atomic_add_fetch((uint32_t *)state, 1, __ATOMIC_SEQ_CST);
        return l5_reply_append(reply, &number, sizeof(number));
    case 'w':
        return l5_reply_append(reply, &request->worker, sizeof(request->worker));
    case 'v':
        sum = sum_of(request);
        usleep(200);
        return l5_reply_append(reply, sum == sum_of(request) ? "same" : "else", 4);
    default:
        return -EINVAL;
    }
}

static struct l5_handler_entry entry = {sizeof(entry), 0, handle, NULL};

struct l5_handler_entry *get_entry(void *state);
struct l5_handler_entry *get_entry(void *state)
{
    entry.state = state;
    return &entry;
}
"""


def compiler() -> str:
    return os.environ.get("CC") or shutil.which("cc") or "cc"


@cache
def library() -> ctypes.CDLL:
    """Build the handlers once a run and load them."""
    folder = Path(mkdtemp(prefix="l5-handlers-"))
    try:
        source, target = folder / "handlers.c", folder / "handlers.so"
        source.write_text(SOURCE)
        flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        command = [compiler(), *flags, f"-I{NATIVE}", str(source), "-o", str(target)]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(target))
    finally:
        shutil.rmtree(folder)


def address() -> int:
    """Return the handler's address."""
    value = ctypes.cast(library().handle, ctypes.c_void_p).value
    assert value is not None
    return value


def capsule(state: int, name: bytes = b"l5.handler") -> object:
    """Return a capsule with the handler and a state."""
    get_entry = library().get_entry
    get_entry.restype, get_entry.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
    )
    _names.append(name)  # a capsule keeps the pointer to its name only
    return new(get_entry(state), name, None)


_names: list[bytes] = []


def command(letter: str, number: int = 0) -> bytes:
    """Return a request that the handler understands."""
    return letter.encode() + number.to_bytes(4, "little")
