/* Opening libibverbs.so.1, by name, when it is first asked for. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "verbs.h"
#include "verbs_library.h"

struct l5v_calls l5v;

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static void *library;
static char why_not[256];

/* dlsym returns an object pointer; POSIX says that it may be a function's. */
static int find(void *handle, const char *name, void *pointer, int required)
{
    void *symbol = dlsym(handle, name);

    memcpy(pointer, &symbol, sizeof symbol);
    if (symbol || !required)
        return 0;
    snprintf(why_not, sizeof why_not, "libibverbs.so.1 has no %s", name);
    return -ENOENT;
}

static const char *load(void)
{
    void *handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    const char *said;

    if (!handle) {
        said = dlerror();
        snprintf(why_not, sizeof why_not, "%s", said ? said : "libibverbs.so.1 cannot be opened");
        return why_not;
    }
#define REQUIRED(name, result, arguments)                                                           \
    if (find(handle, "ibv_" #name, &l5v.name, 1) < 0) {                                             \
        dlclose(handle);                                                                            \
        return why_not;                                                                             \
    }
#define OPTIONAL(symbol, name, result, arguments) find(handle, #symbol, &l5v.name, 0);
    L5V_CALLS(REQUIRED, OPTIONAL)
#undef REQUIRED
#undef OPTIONAL
    /* Kernels before 5.12 would give a child our registered pages, and us copies of them. */
    if (l5v.fork_init)
        l5v.fork_init();
    library = handle;
    return NULL;
}

const char *l5_verbs_load(void)
{
    const char *why = NULL;

    pthread_mutex_lock(&loading);
    if (!library)
        why = load();
    pthread_mutex_unlock(&loading);
    return why;
}
