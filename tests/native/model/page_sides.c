/* A writer of a page and one who reads it, under every schedule: `page_model tso|views SCENARIO`.
 *
 * The header under test is l5_page.h as it is.  The page has two lines, with one or two words of
 * payload each, which are all that is written; the writer writes it twice.
 *
 * A copy is made by a device: its loads happen one after the other, in an order that is chosen from
 * those that its promise allows.
 *
 * What must hold: what a reader approves of is one version, and that version's words.  In the end all
 * versions are equal and even, the words are the last ones, and every reader approves of them. */
#include "model_page.h"

#include <setjmp.h>

#include "l5_page.h"

enum { LINES = 2, WORDS = 2, LINE_CELLS = 16, FIRST = 2, WRITES = 2, NEVER = 0xffffffffu };

/* How the writer writes, and who reads by which check what kind of a copy has made. */
enum style { WHOLE, TOUCHES, DIES };
enum copier { MAPPED, BY_LINES, ASCENDING, ANYHOW, HEIR };
enum check { SEQUENCE, IS_WHOLE, IS_WHOLE_STILL, IS_BETWEEN };

static const struct scenario {
    const char *name;
    enum style style;
    enum copier copier;
    enum check check;
    int words;    /* of a line's payload */
    int switches; /* bound on forced ones under views; 0: none */
} scenarios[] = {
    {"mapped", WHOLE, MAPPED, SEQUENCE, 1, 0},
    {"mapped, touched", TOUCHES, MAPPED, SEQUENCE, 1, 0},
    {"lines", WHOLE, BY_LINES, IS_WHOLE, 2, 0},
    {"lines, touched", TOUCHES, BY_LINES, IS_WHOLE, 2, 0},
    {"lines, writer dies", DIES, BY_LINES, IS_WHOLE, 1, 0},
    {"ascending", WHOLE, ASCENDING, IS_WHOLE_STILL, 1, 0},
    {"ascending, touched", TOUCHES, ASCENDING, IS_WHOLE_STILL, 1, 0},
    {"ascending, two words", TOUCHES, ASCENDING, IS_WHOLE_STILL, 2, 1},
    {"ascending, writer dies", DIES, ASCENDING, IS_WHOLE_STILL, 1, 1},
    {"words", WHOLE, ANYHOW, IS_BETWEEN, 1, 1},
    {"words, touched", TOUCHES, ANYHOW, IS_BETWEEN, 1, 0},
    {"heir", WHOLE, HEIR, SEQUENCE, 1, 0},
    /* Promises that do not suffice: the model must find out. */
    {"not enough: lines checked, words ascend", WHOLE, ASCENDING, IS_WHOLE, 1, 0},
    {"not enough: lines checked, words anyhow", WHOLE, ANYHOW, IS_WHOLE, 1, 0},
    {"not enough: still the same, words anyhow", WHOLE, ANYHOW, IS_WHOLE_STILL, 1, 0},
    /* And what does. */
    {"enough: between, lines", TOUCHES, BY_LINES, IS_BETWEEN, 1, 0},
    {"enough: between, words ascend", TOUCHES, ASCENDING, IS_BETWEEN, 1, 0},
    {"enough: still the same, lines", TOUCHES, BY_LINES, IS_WHOLE_STILL, 1, 0},
};

struct copy {
    uint32_t words[LINES * LINE_CELLS] __attribute__((aligned(64)));
};

static const struct scenario *scenario;
static uint8_t *page;
const struct memory *memory;

/* What was put into the words, by the number of the write (from 0: the zeros of the beginning) and
 * the version under which it was published (0: it never was). */
static uint64_t states[WRITES + 2][LINES * WORDS];
static uint32_t published[WRITES + 2];
static int writes, died;
static long approved[WRITES + 2], refused; /* of all schedules, by the number of the write */
static jmp_buf death;

/* ---- memory --------------------------------------------------------------------------------- */

const char *cell_name(int cell)
{
    static char text[2][40];
    static int turn;
    int word = cell % LINE_CELLS;

    turn = 1 - turn;
    if (word)
        snprintf(text[turn], sizeof(text[turn]), "line %d, word %d", cell / LINE_CELLS, word / 2);
    else
        snprintf(text[turn], sizeof(text[turn]), "line %d's version", cell / LINE_CELLS);
    return text[turn];
}

static int cell_at(const void *at)
{
    ptrdiff_t offset = (const uint8_t *)at - page;

    return offset >= 0 && offset < LINES * 64 ? (int)offset / 4 : -1;
}

uint64_t page_load(const void *at, size_t bytes, int order, struct place place)
{
    int cell = cell_at(at);

    if (cell >= 0)
        return memory->load(cell, page_order(order), place);
    return bytes == 4 ? *(const uint32_t *)at : *(const uint64_t *)at;
}

static void die(void);

void page_store(void *at, uint64_t value, size_t bytes, int order, struct place place)
{
    int cell = cell_at(at);

    (void)bytes;
    if (cell < 0)
        model_fail("a store outside the page, in %s", place.function);
    die();
    memory->store(cell, value, page_order(order), place);
}

/* ---- the writer ----------------------------------------------------------------------------- */

static void *word_at(int word)
{
    return page + word / WORDS * 64 + (FIRST + word % WORDS * 2) * 4;
}

static void put(int write, int line)
{
    for (int word = line * WORDS; word < line * WORDS + scenario->words; word++) {
        states[write][word] = (uint64_t)write * 100 + (uint64_t)word + 1;
        l5_page_put_u64(word_at(word), states[write][word]);
    }
}

/* Before any of its stores a writer may die, once. */
static void die(void)
{
    if (scenario->style != DIES || died || !choose(2))
        return;
    tell(HERE, "dies");
    died = 1;
    longjmp(death, 1);
}

static void write_once(void)
{
    int write = ++writes, touched = scenario->style == TOUCHES;

    memcpy(states[write], states[write - 1], sizeof(states[write]));
    if (!touched)
        l5_page_begin_whole(page, LINES);
    else
        l5_page_begin(page);
    if (touched && write == 1)
        l5_page_touch(page, 1, 1);
    for (int line = 0; line < LINES; line++)
        if (!touched || line == (write == 1))
            put(write, line);
    published[write] = l5_page_version(page, 0) + 1;
    l5_page_end(page, LINES);
}

/* Whether it lived: who dies leaves the page to another, who writes on. */
static int write_or_die(void)
{
    if (setjmp(death))
        return 0;
    write_once();
    return 1;
}

/* ---- readers -------------------------------------------------------------------------------- */

/* Approved: all words must be those of a write, and the version that which it was published by. */
static void approve(uint32_t version, const uint64_t *words)
{
    for (int write = 0; write <= writes; write++)
        if (published[write] == version && (version || !write)) {
            for (int word = 0; word < LINES * WORDS; word++)
                if (word % WORDS < scenario->words && words[word] != states[write][word])
                    model_fail("approved as version %u: line %d has %llu, not %llu", version, word / WORDS,
                               (unsigned long long)words[word], (unsigned long long)states[write][word]);
            approved[write]++;
            return;
        }
    model_fail("approved as version %u, which nobody published", version);
}

/* A device reads some cells, one after the other, in an order that is chosen. */
static void copy_in_some_order(struct copy *copy, uint64_t *words)
{
    int left[LINES * (1 + WORDS)], count = 0;

    for (int line = 0; line < LINES; line++)
        for (int i = 0; i <= scenario->words; i++)
            left[count++] = line * (1 + WORDS) + i;
    while (count) {
        int may[LINES * (1 + WORDS)], options = 0, taken, line, word;

        for (int i = 0; i < count; i++) {
            int first = left[i] / (1 + WORDS) * (1 + WORDS), waits = 0;

            for (int j = 0; j < count; j++)
                waits |= scenario->copier == ASCENDING && left[j] == first && left[i] != first;
            if (!waits)
                may[options++] = i;
        }
        taken = may[choose(options)];
        line = left[taken] / (1 + WORDS);
        word = left[taken] % (1 + WORDS);
        if (word)
            words[line * WORDS + word - 1] = memory->load(line * LINE_CELLS + FIRST + 2 * (word - 1), ACQUIRE, HERE);
        else
            copy->words[line * LINE_CELLS] = (uint32_t)memory->load(line * LINE_CELLS, ACQUIRE, HERE);
        left[taken] = left[--count];
    }
}

static void copy_lines(struct copy *copy, uint64_t *words)
{
    int first = choose(LINES);

    for (int i = 0; i < LINES; i++) {
        int line = (first + i) % LINES;
        uint64_t values[FIRST + 2 * WORDS];

        memory->snapshot(line * LINE_CELLS, FIRST + 2 * WORDS, values, HERE);
        copy->words[line * LINE_CELLS] = (uint32_t)values[0];
        for (int word = 0; word < WORDS; word++)
            words[line * WORDS + word] = values[FIRST + 2 * word];
    }
}

static int read_copy(void)
{
    struct copy copy = {{0}};
    uint64_t words[LINES * WORDS] = {0};
    uint32_t before = 0, after = 0;
    int good;

    if (scenario->check == IS_BETWEEN)
        before = l5_page_enter(page);
    if (scenario->copier == BY_LINES)
        copy_lines(&copy, words);
    else
        copy_in_some_order(&copy, words);
    if (scenario->check != IS_WHOLE)
        after = l5_page_enter(page);
    if (scenario->check == IS_WHOLE)
        good = l5_page_is_whole(&copy, LINES);
    else if (scenario->check == IS_WHOLE_STILL)
        good = l5_page_is_whole_still(&copy, LINES, after);
    else
        good = l5_page_is_between(before, after);
    if (good)
        approve(scenario->check == IS_BETWEEN ? after : copy.words[0], words);
    return good;
}

static int read_mapped(void)
{
    uint32_t version = l5_page_enter(page);
    uint64_t words[LINES * WORDS] = {0};

    for (int word = 0; word < LINES * WORDS; word++)
        if (word % WORDS < scenario->words)
            words[word] = l5_page_get_u64(word_at(word));
    if (!l5_page_unchanged(page, version))
        return 0;
    approve(version, words);
    return 1;
}

/* Whoever enters at an even version finds no line's version older: odd and even count up. */
static int inherit(void)
{
    uint32_t version = l5_page_enter(page);

    for (int line = 1; line < LINES && !(version & 1); line++)
        if (l5_page_version(page, line) < version)
            model_fail("line 0 has version %u, line %d an older one", version, line);
    return 1;
}

static int read_once(void)
{
    if (scenario->copier == HEIR)
        return inherit();
    return scenario->copier == MAPPED ? read_mapped() : read_copy();
}

/* ---- begin and end -------------------------------------------------------------------------- */

static void side(int number)
{
    if (number)
        refused += !read_once();
    else
        for (int left = WRITES; left;)
            left -= write_or_die();
}

static void begin(void)
{
    writes = died = 0;
    memset(states, 0, sizeof(states));
    memset(published, 0, sizeof(published));
}

static void end(void)
{
    uint32_t version = (uint32_t)memory->final(0);

    if (version & 1)
        model_fail("the last version is odd");
    if (version != published[writes])
        model_fail("the last version is not what was published");
    for (int line = 1; line < LINES; line++)
        if (memory->final(line * LINE_CELLS) != version)
            model_fail("in the end, the versions differ");
    for (int word = 0; word < LINES * WORDS; word++)
        if (memory->final(cell_at(word_at(word))) != states[writes][word])
            model_fail("in the end, a word is not the last one");
}

int main(int argc, char **argv)
{
    int rc;

    page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; argc > 2 && i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
        if (!strcmp(argv[2], scenarios[i].name)) {
            scenario = &scenarios[i];
            memory = !strcmp(argv[1], "views") ? &views : &tso;
            printf("%s, %s: ", argv[1], scenario->name);
            rc = explore(begin, side, end, memory == &views ? scenario->switches : 0, 0);
            printf("%ld refused, %ld %ld %ld approved\n", refused, approved[0], approved[1], approved[2]);
            return rc;
        }
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
        puts(scenarios[i].name);
    return argc > 2 ? 2 : 0;
}
