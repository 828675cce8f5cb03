/* Copies of long payloads into a ring and out of it.
 *
 *   source ──prefetchnta──▶ sender's core ──stores──▶ ring ──prefetchw──▶ receiver's core ──▶ target
 *   (read once)                                 (stays in the caches)        and zeros back
 *
 * A ring is small and stays in the caches; source and target may be large and cold.  So:
 *
 *   in    the source is prefetched past the outer caches (it is read once and would push the ring out),
 *         line by line of the ring, which starts 24 bytes before its payload does; of a long payload a
 *         line of each quarter in turn, because the processor itself fetches ahead as well, one run for
 *         each page that is being read: four runs, where a copy from front to back has one
 *   out   copying and zeroing are one pass: a line of the ring is asked for once, and at once for
 *         writing, where a copy followed by a memset moves it twice
 *   past  (out, where the target is known to be cold) non-temporal stores: the target's lines are not
 *         read before they are overwritten, which is a third of the memory traffic
 *
 * What each of these gave, and what was tried and lost, stands in docs/performance.md.  Only plain
 * loads and stores touch the ring, so the orderings of channel.h are untouched by all this. */
#ifndef L5_COPY_H
#define L5_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#ifndef L5_LONG_BYTES /* the rings of models and of fuzz targets are too small for these */
#define L5_LONG_BYTES 1024u      /* from here on; below, memcpy is as good */
#define L5_QUARTERS_BYTES 32768u /* from here on by quarters: of two pages at least, each */
#endif

enum {
    L5_LINE = 64,
    L5_AHEAD_SOURCE = 1024, /* how far ahead is prefetched: */
    L5_AHEAD_RING = 512,
};

/* Prefetching never faults, so it may run over the end of what is copied. */
static inline void l5_prefetch_once(const uint8_t *at)
{
#if defined(__SSE2__)
    _mm_prefetch((const char *)at, _MM_HINT_NTA);
#else
    __builtin_prefetch(at, 0, 0);
#endif
}

static inline void l5_prefetch_to_write(const uint8_t *at)
{
#if defined(__x86_64__) /* the builtin becomes another instruction where the compiler is not told of this one */
    __asm__ __volatile__("prefetchw %0" : : "m"(*at));
#else
    __builtin_prefetch(at, 1, 3);
#endif
}

static inline void l5_line_copy(uint8_t *to, const uint8_t *from)
{
#if defined(__SSE2__)
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
    __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
    __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));

    _mm_store_si128((__m128i *)(void *)to, a);
    _mm_store_si128((__m128i *)(void *)(to + 16), b);
    _mm_store_si128((__m128i *)(void *)(to + 32), c);
    _mm_store_si128((__m128i *)(void *)(to + 48), d);
#else
    memcpy(to, from, L5_LINE);
#endif
}

/* The same, past the caches where the machine can. */
static inline void l5_line_copy_past(uint8_t *to, const uint8_t *from)
{
#if defined(__SSE2__)
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
    __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
    __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));

    _mm_stream_si128((__m128i *)(void *)to, a);
    _mm_stream_si128((__m128i *)(void *)(to + 16), b);
    _mm_stream_si128((__m128i *)(void *)(to + 32), c);
    _mm_stream_si128((__m128i *)(void *)(to + 48), d);
#else
    memcpy(to, from, L5_LINE);
#endif
}

static inline void l5_past_done(void)
{
#if defined(__SSE2__)
    _mm_sfence(); /* what went past the caches is seen before anything that follows */
#endif
}

/* Bytes up to the next line of `at`. */
static inline size_t l5_to_line(const uint8_t *at)
{
    return (size_t)(-(uintptr_t)at & (L5_LINE - 1));
}

/* Copy whole lines into the ring, a line of each quarter in turn; return how many bytes that are. */
static inline size_t l5_copy_quarters(uint8_t *to, const uint8_t *from, size_t bytes)
{
    size_t quarter = bytes / 4 & ~(size_t)(L5_LINE - 1);

    for (size_t done = 0; done < quarter; done += L5_LINE)
        for (size_t at = done, i = 0; i < 4; i++, at += quarter) {
            l5_prefetch_once(from + at + L5_AHEAD_SOURCE);
            l5_line_copy(to + at, from + at);
        }
    return 4 * quarter;
}

/* Copy a payload of at least a line into the ring. */
static inline void l5_copy_in(uint8_t *to, const uint8_t *from, size_t bytes)
{
    size_t done = l5_to_line(to);

    memcpy(to, from, done);
    if (bytes >= L5_QUARTERS_BYTES)
        done += l5_copy_quarters(to + done, from + done, bytes - done);
    for (; done + L5_LINE <= bytes; done += L5_LINE) {
        l5_prefetch_once(from + done + L5_AHEAD_SOURCE);
        l5_line_copy(to + done, from + done);
    }
    memcpy(to + done, from + done, bytes - done);
}

/* Copy a payload of at least a line out of the message at `slot` (a line of the ring), where it begins
 * `prefix` bytes on, and zero all `padded` bytes of the message.  A line is zeroed when all that it has
 * was loaded: the loads are `prefix` and less than a line ahead. */
static inline void l5_copy_out(uint8_t *to, uint8_t *slot, size_t prefix, size_t bytes, size_t padded, int past)
{
    const uint8_t *from = slot + prefix;
    size_t head = l5_to_line(to), done = head;

    memcpy(to, from, head);
    for (; done + L5_LINE <= bytes; done += L5_LINE) {
        l5_prefetch_to_write(from + done + L5_AHEAD_RING);
        if (past)
            l5_line_copy_past(to + done, from + done);
        else
            l5_line_copy(to + done, from + done);
        memset(slot + done - head, 0, L5_LINE);
    }
    memcpy(to + done, from + done, bytes - done);
    memset(slot + done - head, 0, padded - (done - head));
    if (past)
        l5_past_done();
}

#endif
