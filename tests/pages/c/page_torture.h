/* Pages that prove themselves: whatever a writer puts into one, a reader can tell that it is whole.
 *
 * The payload is u64 words at first, of which word 0 is a checksum of the others and of the page's
 * number.  A writer knows what is in its pages by a copy of its own. */
#ifndef PAGE_TORTURE_H
#define PAGE_TORTURE_H

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "l5_page.h"

struct torture {
    uint8_t *pages;
    uint8_t *shadow; /* payloads, private */
    uint32_t count, lines;
    uint64_t random;
    uint64_t writes;
    int stop;
    pthread_t thread;
};

static inline uint64_t torture_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline uint64_t torture_sum(const uint8_t *payload, uint32_t lines, uint32_t page)
{
    uint64_t sum = page + UINT64_C(0x9e3779b97f4a7c15);

    for (uint32_t at = 8; at + 8 <= lines * L5_PAGE_PAYLOAD_BYTES; at += 8) {
        uint64_t word;

        memcpy(&word, payload + at, 8);
        sum = (sum ^ word) * UINT64_C(0xff51afd7ed558ccd);
        sum ^= sum >> 32;
    }
    return sum;
}

/* A page of zeros is what memory begins with. */
static inline int torture_good(const uint8_t *payload, uint32_t lines, uint32_t page)
{
    uint64_t sum;

    memcpy(&sum, payload, 8);
    if (sum == torture_sum(payload, lines, page))
        return 1;
    for (uint32_t i = 0; i < lines * L5_PAGE_PAYLOAD_BYTES; i++)
        if (payload[i])
            return 0;
    return 1;
}

/* Write one page: all of it, or some lines besides the checksum's. */
static inline void torture_write(struct torture *torture)
{
    uint64_t dice = torture_random(&torture->random);
    uint32_t page = (uint32_t)(dice >> 8) % torture->count, lines = torture->lines;
    uint32_t first = 1 + (uint32_t)(dice >> 32) % (lines - 1), count = 1 + (uint32_t)(dice >> 56) % (lines - first);
    uint8_t *shadow = torture->shadow + (size_t)page * lines * L5_PAGE_PAYLOAD_BYTES;
    uint8_t *at = torture->pages + (size_t)page * lines * L5_PAGE_LINE_BYTES;
    uint64_t sum;
    int whole = dice & 1;

    if (whole)
        first = 0, count = lines;
    for (uint32_t i = first * L5_PAGE_PAYLOAD_BYTES; i + 4 <= (first + count) * L5_PAGE_PAYLOAD_BYTES; i += 4) {
        uint32_t word = (uint32_t)torture_random(&torture->random);

        memcpy(shadow + i, &word, 4);
    }
    sum = torture_sum(shadow, lines, page);
    memcpy(shadow, &sum, 8);
    if (whole) {
        l5_page_begin_whole(at, lines);
        l5_page_pack(at, 0, lines, shadow);
    } else {
        l5_page_begin(at);
        l5_page_touch(at, first, count);
        l5_page_pack(at, 0, 1, shadow);
        l5_page_pack(at, first, count, shadow + first * L5_PAGE_PAYLOAD_BYTES);
    }
    l5_page_end(at, lines);
    __atomic_store_n(&torture->writes, torture->writes + 1, __ATOMIC_RELAXED);
}

static inline void *torture_main(void *state)
{
    struct torture *torture = (struct torture *)state;

    while (!__atomic_load_n(&torture->stop, __ATOMIC_ACQUIRE))
        torture_write(torture);
    return NULL;
}

static inline int torture_begin(struct torture *torture, void *pages, uint32_t count, uint32_t lines)
{
    memset(torture, 0, sizeof(*torture));
    torture->pages = (uint8_t *)pages;
    torture->count = count;
    torture->lines = lines;
    torture->random = 88172645463325252u;
    torture->shadow = (uint8_t *)calloc(count, lines * L5_PAGE_PAYLOAD_BYTES);
    return torture->shadow ? pthread_create(&torture->thread, NULL, torture_main, torture) : ENOMEM;
}

static inline uint64_t torture_end(struct torture *torture)
{
    __atomic_store_n(&torture->stop, 1, __ATOMIC_RELEASE);
    pthread_join(torture->thread, NULL);
    free(torture->shadow);
    return torture->writes;
}

#endif
