/* Versioned pages: memory that is read without its owner's help, and never taken for whole while torn.
 *
 * This header stands alone: no part of l5 is linked.  A page is a power of two of 64-byte lines
 * (8 to 1024 of them: 512 B to 64 KiB), aligned to 64 bytes.  Each line begins with a version:
 *
 *   byte      0        4                                                          64
 *   line 0    +--------+----------------------------------------------------------+
 *             | u32 v  | 60 bytes of payload: one u32 (or float), then 7 u64      |
 *   line 1    +--------+----------------------------------------------------------+
 *             | u32 v  | ...                                                      |
 *             :        :                                                          :
 *   line n-1  +--------+----------------------------------------------------------+
 *
 * While nobody writes, all versions of a page are the same even number.  While somebody does, line
 * 0's is odd.  Memory of zeros is a page: version 0, payload zeros.
 *
 * The writer (one at a time a page; who that is, is the caller's business):
 *
 *   begin   line 0's version becomes odd               | OPEN: before any payload changes
 *   touch   so does that of each line that will change | LINE: before that line changes
 *           payload
 *   end     all versions become the next even number,  | CLOSE: after all payload has changed;
 *           line 0's last                              | LAST: line 0 is even when all others are
 *
 * Readers, by what they know of how the bytes reach them:
 *
 *   MAPPED  The memory itself, coherent: a sequence lock on line 0 alone.  Even before, and the
 *           same afterwards, means: what was read between is one version.
 *   LINES   A copy in which each line is of one moment, the lines in any order of time.  All
 *           versions are equal and even: then each line is what that version put there.
 *   ASCENDING  A copy of 8-byte words in any order, but in each line the first word first.  As LINES,
 *           and line 0's version, read once more after the whole copy, is still the same: the
 *           versions in the copy say that nothing is older, that one says that nothing is newer.
 *   WORDS   A copy of 8-byte words in any order at all.  No version inside the copy says anything of
 *           the words beside it; line 0's version, read before the copy *and* after it, does.
 *
 * Before and after are as the reading machine orders them: by what it waited for, or (RDMA) by
 * READs one behind the other on one queue pair, where the responder serves them in order.  What a
 * fabric promises is to be found out, not to be hoped for: a `memcpy` promises words and no order.
 *
 * Why each part is there (tests/native/test_page_model.py takes them away one by one):
 *   OPEN     a payload word of version v + 2 was read => line 0's version, read later, is not v.
 *   LINE     a line that is half changed has an odd version: LINES needs no more than its line.
 *   CLOSE    version v + 2 was read => payload words of that line (of all lines, if it was line
 *            0's), read later, are at least of v + 2.
 *   LAST     whoever enters a page at an even version finds no line's version older.  No reader
 *            above needs that, but who inherits the memory of a writer that died does: line 0 is
 *            even only if the page is whole.  Beginning to write a page whose line 0 is odd skips a
 *            number, so that what the dead writer left in some lines and what comes now never bear
 *            the same one.
 *
 * A version comes again after 2^31 writes of a page; who was away meanwhile, in the middle of one
 * read, and returns at that very one, is deceived.  A million writes a second take 36 minutes.
 *
 * Readers trust nothing else in a page that is not their own: its owner may store anything, at any
 * time.  Check what is used as an index, in a private copy, also when the versions are in order.
 *
 * In C11's words: payload is loaded and stored relaxed, with fences as named at each.  Thread
 * sanitizer does not model fences, so for it the accesses themselves are acquire and release.
 */
#ifndef L5_PAGE_H
#define L5_PAGE_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define L5_PAGE_LINE_BYTES 64u
#define L5_PAGE_PAYLOAD_BYTES 60u /* of one line */
#define L5_PAGE_BYTES_MIN 512u
#define L5_PAGE_BYTES_MAX 65536u

#if defined(__SANITIZE_THREAD__)
#define L5_PAGE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define L5_PAGE_TSAN 1
#endif
#endif

/* Orders of payload accesses and of versions that a fence orders, for those who make their own. */
#ifdef L5_PAGE_TSAN
#define L5_PAGE_LOAD __ATOMIC_ACQUIRE
#define L5_PAGE_STORE __ATOMIC_RELEASE
#define l5_page_fence(order) ((void)0)
#else
#define L5_PAGE_LOAD __ATOMIC_RELAXED
#define L5_PAGE_STORE __ATOMIC_RELAXED
#define l5_page_fence(order) __atomic_thread_fence(order)
#endif

/* ---- words ----------------------------------------------------------------------------------- */

static inline uint32_t *l5_page_word(const void *page, size_t line)
{
    return (uint32_t *)(uintptr_t)((const uint8_t *)page + line * L5_PAGE_LINE_BYTES);
}

/* A version, without any order: for statistics, and in a private copy. */
static inline uint32_t l5_page_version(const void *page, size_t line)
{
    return __atomic_load_n(l5_page_word(page, line), __ATOMIC_RELAXED);
}

/* Payload of a page that others write (get) or read (put). */
static inline uint32_t l5_page_get_u32(const void *at)
{
    return __atomic_load_n((const uint32_t *)at, L5_PAGE_LOAD);
}

static inline uint64_t l5_page_get_u64(const void *at)
{
    return __atomic_load_n((const uint64_t *)at, L5_PAGE_LOAD);
}

static inline void l5_page_put_u32(void *at, uint32_t value)
{
    __atomic_store_n((uint32_t *)at, value, L5_PAGE_STORE);
}

static inline void l5_page_put_u64(void *at, uint64_t value)
{
    __atomic_store_n((uint64_t *)at, value, L5_PAGE_STORE);
}

static inline void l5_page_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* ---- the writer ------------------------------------------------------------------------------ */

/* Begin to write: line 0 may be changed, other lines after they were touched.  Does not nest. */
static inline void l5_page_begin(void *page)
{
    uint32_t *word = l5_page_word(page, 0);

    __atomic_store_n(word, (__atomic_load_n(word, __ATOMIC_RELAXED) + 1) | 1, __ATOMIC_RELAXED);
    l5_page_fence(__ATOMIC_RELEASE); /* pairs with: OPEN in l5_page_unchanged */
}

/* Say that lines first .. first + count - 1 will change, after begin and before they do. */
static inline void l5_page_touch(void *page, size_t first, size_t count)
{
    uint32_t odd = l5_page_version(page, 0);

    for (size_t line = first; line < first + count; line++)
        __atomic_store_n(l5_page_word(page, line), odd, L5_PAGE_STORE);
    l5_page_fence(__ATOMIC_RELEASE); /* pairs with: LINE, each line's copy at one moment */
}

/* Begin to write, and touch all lines. */
static inline void l5_page_begin_whole(void *page, size_t lines)
{
    l5_page_begin(page);
    l5_page_touch(page, 1, lines - 1);
}

/* All is written: every line gets the next version, touched or not. */
static inline void l5_page_end(void *page, size_t lines)
{
    uint32_t even = l5_page_version(page, 0) + 1;

    l5_page_fence(__ATOMIC_RELEASE); /* pairs with: CLOSE in l5_page_enter; in copies, each line's version */
    for (size_t line = lines - 1; line > 0; line--)
        __atomic_store_n(l5_page_word(page, line), even, L5_PAGE_STORE);
    __atomic_store_n(l5_page_word(page, 0), even, __ATOMIC_RELEASE); /* pairs with: LAST in l5_page_enter */
}

/* ---- readers of the memory itself ------------------------------------------------------------ */

/* Return line 0's version before payload is read; odd: somebody writes, so do not even begin. */
static inline uint32_t l5_page_enter(const void *page)
{
    return __atomic_load_n(l5_page_word(page, 0), __ATOMIC_ACQUIRE); /* pairs with: CLOSE, LAST in l5_page_end */
}

/* Tell whether all payload that was read since `version` was returned is of that version. */
static inline int l5_page_unchanged(const void *page, uint32_t version)
{
    l5_page_fence(__ATOMIC_ACQUIRE); /* pairs with: OPEN in l5_page_begin */
    return l5_page_version(page, 0) == version && !(version & 1);
}

/* ---- readers of a copy ----------------------------------------------------------------------- */

/* LINES: tell whether all versions in a private copy are equal and even. */
static inline int l5_page_is_whole(const void *copy, size_t lines)
{
    uint32_t first = *l5_page_word(copy, 0), other = 0;

    for (size_t line = 1; line < lines; line++)
        other |= *l5_page_word(copy, line) ^ first;
    return !(other | (first & 1));
}

/* ASCENDING: the same, and `after`, line 0's version as it was read after the copy, must be that. */
static inline int l5_page_is_whole_still(const void *copy, size_t lines, uint32_t after)
{
    return l5_page_is_whole(copy, lines) && *l5_page_word(copy, 0) == after;
}

/* WORDS: line 0's version as it was read before the copy and after it. */
static inline int l5_page_is_between(uint32_t before, uint32_t after)
{
    return before == after && !(before & 1);
}

/* ---- whole payloads -------------------------------------------------------------------------- */

/* Store the payload of `count` lines (60 bytes each, packed) that have been touched. */
static inline void l5_page_pack(void *page, size_t first, size_t count, const void *payload)
{
    uint8_t *at = (uint8_t *)page + first * L5_PAGE_LINE_BYTES;
    const uint8_t *from = (const uint8_t *)payload;

    for (; count--; at += L5_PAGE_LINE_BYTES, from += L5_PAGE_PAYLOAD_BYTES) {
        uint32_t head;
        uint64_t rest[7];

        memcpy(&head, from, 4);
        memcpy(rest, from + 4, sizeof(rest));
        l5_page_put_u32(at + 4, head);
        for (int i = 0; i < 7; i++)
            l5_page_put_u64(at + 8 + 8 * i, rest[i]);
    }
}

/* Load the payload of `count` lines, from a page or from a copy of one: which l5_page_unchanged or
 * the checks of a copy then approve of, or not. */
static inline void l5_page_unpack(void *payload, const void *page, size_t first, size_t count)
{
    const uint8_t *at = (const uint8_t *)page + first * L5_PAGE_LINE_BYTES;
    uint8_t *to = (uint8_t *)payload;

    for (; count--; at += L5_PAGE_LINE_BYTES, to += L5_PAGE_PAYLOAD_BYTES) {
        uint32_t head = l5_page_get_u32(at + 4);
        uint64_t rest[7];

        for (int i = 0; i < 7; i++)
            rest[i] = l5_page_get_u64(at + 8 + 8 * i);
        memcpy(to, &head, 4);
        memcpy(to + 4, rest, sizeof(rest));
    }
}

/* Read lines of a mapped page as of one version: 0, or -EAGAIN after that many tries.  `*retries`
 * counts those in vain. */
static inline int l5_page_read(void *payload, const void *page, size_t first, size_t count, unsigned tries,
                               uint64_t *retries)
{
    for (; tries; tries--) {
        uint32_t version = l5_page_enter(page);

        if (!(version & 1)) {
            l5_page_unpack(payload, page, first, count);
            if (l5_page_unchanged(page, version))
                return 0;
        }
        ++*retries;
        l5_page_pause();
    }
    return -EAGAIN;
}

#ifdef __cplusplus
}
#endif

#endif
