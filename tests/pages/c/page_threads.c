/* A thread that writes pages at full speed, and one that reads them:
 *
 *     page_threads mapped|lines|ascending|words READS [until-wrong]
 *
 * Copies are made word by word, as slowly and in as bad an order as their promise allows (a line at
 * one moment cannot be had of a processor, so "lines" copies each line until it did not change).
 * Every page that a reader approves of is verified by its checksum.  With `until-wrong`, ends at
 * the first wrong page: for headers that lack something. */
#include <stdio.h>

#include "page_torture.h"

enum { PAGES = 3, LINES = 8, WORDS = LINES * 8 };

static uint8_t memory[PAGES * LINES * L5_PAGE_LINE_BYTES] __attribute__((aligned(64)));

struct reader {
    uint64_t random, read, retries, wrong;
};

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Where a reader is interrupted, now and then: in the middle. */
static void stop_now_and_then(struct reader *reader)
{
    if (torture_random(&reader->random) % 64 == 0)
        sched_yield();
}

static int read_mapped(struct reader *reader, const uint8_t *page, uint8_t *payload)
{
    uint32_t version = l5_page_enter(page);
    int good;

    for (uint32_t line = 0; line < LINES; line++) {
        l5_page_unpack(payload + line * L5_PAGE_PAYLOAD_BYTES, page, line, 1);
        stop_now_and_then(reader);
    }
    good = l5_page_unchanged(page, version);
    reader->retries += !good;
    return good;
}

/* The first word of a line is two accesses, as a version has an order of its own. */
static uint64_t load_first(const uint64_t *word)
{
    uint32_t halves[2];
    uint64_t both;

    halves[0] = l5_page_enter(word);
    halves[1] = l5_page_get_u32((const uint32_t *)word + 1);
    memcpy(&both, halves, 8);
    return both;
}

static void copy_ascending(struct reader *reader, uint64_t *copy, const uint64_t *page)
{
    uint32_t turn = (uint32_t)torture_random(&reader->random) % LINES;

    for (uint32_t i = 0; i < LINES; i++) {
        uint32_t line = (i * 3 + turn) % LINES; /* 3: every line, in no order */

        copy[line * 8] = load_first(page + line * 8);
        stop_now_and_then(reader);
        for (uint32_t word = 7; word > 0; word--)
            copy[line * 8 + word] = load(page + line * 8 + word);
    }
}

static void copy_anyhow(struct reader *reader, uint64_t *copy, const uint64_t *page)
{
    uint32_t turn = (uint32_t)torture_random(&reader->random) % WORDS;

    for (uint32_t i = 0; i < WORDS; i++) {
        uint32_t word = (i * 27 + turn) % WORDS;

        copy[word] = word % 8 ? load(page + word) : load_first(page + word);
        stop_now_and_then(reader);
    }
}

static void copy_lines(struct reader *reader, uint64_t *copy, const uint64_t *page)
{
    for (uint32_t line = LINES; line-- > 0;) {
        const uint64_t *at = page + line * 8;
        uint64_t *to = copy + line * 8;
        int same;

        do {
            uint64_t again[8];

            for (uint32_t word = 0; word < 8; word++)
                to[word] = word ? load(at + word) : load_first(at);
            for (uint32_t word = 0; word < 8; word++)
                again[word] = word ? load(at + word) : load_first(at);
            same = !memcmp(to, again, sizeof(again));
        } while (!same);
        stop_now_and_then(reader);
    }
}

static int read_one(struct reader *reader, const char *how, const uint8_t *page, uint8_t *payload)
{
    uint64_t copy[WORDS] __attribute__((aligned(64)));
    uint32_t before;
    int good;

    if (*how == 'm')
        return read_mapped(reader, page, payload);
    before = *how == 'w' ? l5_page_enter(page) : 0;
    if (*how == 'l')
        copy_lines(reader, copy, (const uint64_t *)(const void *)page);
    else if (*how == 'a')
        copy_ascending(reader, copy, (const uint64_t *)(const void *)page);
    else
        copy_anyhow(reader, copy, (const uint64_t *)(const void *)page);
    if (*how == 'l')
        good = l5_page_is_whole(copy, LINES);
    else if (*how == 'a')
        good = l5_page_is_whole_still(copy, LINES, l5_page_enter(page));
    else
        good = l5_page_is_between(before, l5_page_enter(page));
    if (good)
        l5_page_unpack(payload, copy, 0, LINES);
    else
        reader->retries++;
    return good;
}

int main(int argc, char **argv)
{
    struct torture torture;
    struct reader reader = {.random = 1};
    uint64_t wanted = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    int until_wrong = argc > 3;

    if (!wanted || torture_begin(&torture, memory, PAGES, LINES))
        return 2;
    while (reader.read < wanted && !(until_wrong && reader.wrong)) {
        uint32_t page = (uint32_t)(torture_random(&reader.random) >> 16) % PAGES;
        uint8_t payload[LINES * L5_PAGE_PAYLOAD_BYTES];

        if (!read_one(&reader, argv[1], memory + page * LINES * L5_PAGE_LINE_BYTES, payload))
            continue;
        reader.read++;
        reader.wrong += !torture_good(payload, LINES, page);
    }
    printf("%llu read, %llu retries, %llu wrong, %llu writes\n", (unsigned long long)reader.read,
           (unsigned long long)reader.retries, (unsigned long long)reader.wrong,
           (unsigned long long)torture_end(&torture));
    return 0;
}
