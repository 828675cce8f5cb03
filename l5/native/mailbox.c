/* Mailbox flags and messages that a device writes.  Theory: mailbox.h. */
#define _GNU_SOURCE
#include "mailbox.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* ---- flags ---------------------------------------------------------------------------------- */

/* One line of 64 flags.  A hint: what is found is taken with an atomic exchange. */
static int line_any(const uint8_t *line)
{
#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__)
    const __m128i *parts = (const __m128i *)(const void *)line;
    __m128i all;

    l5_copied(); /* loads of an earlier look are not reused */
    all = _mm_or_si128(_mm_or_si128(_mm_load_si128(parts), _mm_load_si128(parts + 1)),
                       _mm_or_si128(_mm_load_si128(parts + 2), _mm_load_si128(parts + 3)));
    return _mm_movemask_epi8(_mm_cmpeq_epi8(all, _mm_setzero_si128())) != 0xffff;
#else
    const l5_word *words = (const l5_word *)(const void *)line;
    uint64_t all = 0;

    for (int i = 0; i < 8; i++)
        all |= l5_load_relaxed(words + i);
    return all != 0;
#endif
}

int l5_flags_any(const uint8_t *flags, uint32_t bytes)
{
    for (uint32_t at = 0; at < bytes; at += L5_FLAGS_BLOCK)
        if (line_any(flags + at))
            return 1;
    return 0;
}

/* Take the set flags of one word of eight, of those from `from` to below `to`. */
static uint32_t take_word(uint8_t *flags, uint32_t word, uint32_t from, uint32_t to, uint32_t *found,
                          uint32_t most)
{
    uint64_t value = l5_load_relaxed((l5_word *)(void *)(flags + word));
    uint32_t count = 0;

    for (uint32_t i = word; value && i < word + 8 && count < most; i++) {
        if (i < from || i >= to)
            continue;
        /* FLAG: acquire, so that the row is read after it. */
        if (l5_flag_take((l5_flag_byte *)(void *)(flags + i)))
            found[count++] = i;
    }
    return count;
}

static uint32_t take_range(uint8_t *flags, uint32_t from, uint32_t to, uint32_t *found, uint32_t most)
{
    uint32_t count = 0;

    for (uint32_t at = from & ~7u; at < to && count < most; at += 8) {
        if (!(at % L5_FLAGS_BLOCK) && !line_any(flags + at))
            at += L5_FLAGS_BLOCK - 8;
        else
            count += take_word(flags, at, from, to, found + count, most - count);
    }
    return count;
}

uint32_t l5_flags_scan(uint8_t *flags, uint32_t bytes, uint32_t start, uint32_t *found, uint32_t most)
{
    uint32_t count = take_range(flags, start, bytes, found, most);

    return count + take_range(flags, 0, start, found + count, most - count);
}

/* ---- messages --------------------------------------------------------------------------------- */

int64_t l5_message_ready(const uint8_t *at, uint32_t limit)
{
    const l5_size *word = (const l5_size *)(const void *)at;
    uint32_t size = l5_size_acquire(word);

    if (!size)
        return 0;
    if (size > limit)
        return -EPROTO;
    /* OK: all three loads acquire, so none is done before the one above it. */
    if (l5_flag_acquire((const l5_flag_byte *)(const void *)(at + 4 + size)) != L5_OK)
        return 0;
    return l5_size_acquire(word) == size ? (int64_t)size : 0;
}

void l5_message_consume(uint8_t *at, uint64_t padded)
{
    memset(at + 4, 0, padded - 4);
    /* CONSUMED: release, so that a size of zero means that all behind it is zero. */
    l5_size_release((l5_size *)(void *)at, 0);
}

/* ---- memory ----------------------------------------------------------------------------------- */

#ifdef __linux__
static int map_both(uint8_t *base, int fd, uint64_t bytes)
{
    if (ftruncate(fd, (off_t)bytes) < 0)
        return -errno;
    for (int i = 0; i < 2; i++)
        if (mmap(base + (uint64_t)i * bytes, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
            MAP_FAILED)
            return -errno;
    return 0;
}

int l5_mirror_map(uint64_t bytes, uint8_t **base)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint8_t *at;
    int fd, rc;

    if (bytes < page || bytes > (1ull << 30) || bytes & (bytes - 1))
        return -EINVAL;
    fd = memfd_create("l5-mirror", MFD_CLOEXEC);
    if (fd < 0)
        return -errno;
    at = mmap(NULL, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    rc = at == MAP_FAILED ? -errno : map_both(at, fd, bytes);
    close(fd);
    if (rc) {
        if (at != MAP_FAILED)
            munmap(at, 2 * bytes);
        return rc;
    }
    *base = at;
    return 0;
}
#else
int l5_mirror_map(uint64_t bytes, uint8_t **base)
{
    (void)bytes;
    *base = NULL;
    return -ENOSYS;
}
#endif

void l5_mirror_unmap(uint8_t *base, uint64_t bytes)
{
    munmap(base, 2 * bytes);
}
