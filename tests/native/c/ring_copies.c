/* Preloaded: counts copies of one size, so that a test can tell how often a payload is copied. */
#include <stddef.h>
#include <stdint.h>

static size_t watched_bytes;
static uint64_t copies;

void watch_copies(size_t bytes)
{
    watched_bytes = bytes;
    copies = 0;
}

uint64_t copies_seen(void)
{
    return copies;
}

/* Plain loops: the compiler must not make calls of memcpy out of them (-fno-builtin and so on). */
void *memmove(void *to, const void *from, size_t bytes)
{
    volatile uint8_t *out = to;
    const volatile uint8_t *in = from;

    if (bytes == watched_bytes)
        copies++;
    if ((uintptr_t)to < (uintptr_t)from)
        for (size_t i = 0; i < bytes; i++)
            out[i] = in[i];
    else
        for (size_t i = bytes; i-- > 0;)
            out[i] = in[i];
    return to;
}

void *memcpy(void *to, const void *from, size_t bytes)
{
    return memmove(to, from, bytes);
}

void *__memcpy_chk(void *to, const void *from, size_t bytes, size_t room)
{
    (void)room;
    return memmove(to, from, bytes);
}

void *__memmove_chk(void *to, const void *from, size_t bytes, size_t room)
{
    (void)room;
    return memmove(to, from, bytes);
}
