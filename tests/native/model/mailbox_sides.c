/* A peer's device and who reads what it writes, under every schedule: `mailbox_model tso|views SCENARIO`.
 *
 * mailbox.c is as it is.  The device keeps the order that reliable connections keep: a message front to
 * back, a size word in two halves, a row before its flag.  It writes to the same place again when the
 * reader's post, which orders what is before it, has told it that this place is free.
 *
 * What must hold: each message comes once, with its own size and payload, each flag with its own row;
 * who reads a payload or a row is ordered behind the device's writes (under `views`, else it is a race);
 * in the end no size and no flag is left.
 *
 * All payloads consist of OK bytes: one that stands where an OK byte is looked for passes for it. */
#include "model_mailbox.h"

#include "mailbox.h"

enum { WORDS = 16, FLAG_CELL = 100, ROW_CELL = 200, FLAGS = 2, ROUNDS = 2, LOOKS = 3, LIMIT = 40 };
enum { TOLD = 2, WRITTEN = 3 }; /* bells that carry order, as a post and a completion do */

static const uint32_t OK_WORD = 0x4f4f4f4f;

static const struct scenario {
    const char *name;
    uint32_t sizes[ROUNDS]; /* of the messages that come to one place; none: rows and flags */
    int rounds;
} scenarios[] = {
    {"message", {12}, 1},
    {"laps, shorter", {20, 12}, 2},
    {"laps, longer", {8, 12}, 2},
    {"row and flag", {0}, 2},
};

static const struct scenario *scenario;
static uint8_t *ring, *flags; /* addresses without access */
static int heard;             /* (the reader) that all of this round is written */
const struct memory *memory;

/* ---- memory ----------------------------------------------------------------------------------- */

const char *cell_name(int cell)
{
    static char text[2][40];
    static int turn;

    turn = 1 - turn;
    if (cell >= ROW_CELL)
        snprintf(text[turn], sizeof(text[turn]), "row %d", cell - ROW_CELL);
    else if (cell >= FLAG_CELL)
        snprintf(text[turn], sizeof(text[turn]), "flag %d", cell - FLAG_CELL);
    else
        snprintf(text[turn], sizeof(text[turn]), cell ? "word %d" : "the size", cell);
    return text[turn];
}

/* The cell of a word of the message or of a flag; -1: a flag that nobody sets. */
static int cell_at(const void *at)
{
    ptrdiff_t word = (const uint8_t *)at - ring, flag = (const uint8_t *)at - flags;

    if (word >= 0 && word < 4 * WORDS && word % 4 == 0)
        return (int)word / 4;
    if (flag < 0 || flag >= L5_FLAGS_BLOCK)
        model_fail("an access outside the message and the flags");
    return flag < FLAGS ? FLAG_CELL + (int)flag : -1;
}

static uint64_t load_flags(const uint8_t *at, struct place place)
{
    uint64_t value = 0;

    for (int i = 0; i < 8; i++)
        if (cell_at(at + i) >= 0)
            value |= memory->load(cell_at(at + i), RELAXED, place) << (8 * i);
    return value;
}

uint64_t mailbox_load(const void *at, size_t bytes, enum order order, struct place place)
{
    if (bytes == 8)
        return load_flags(at, place);
    return memory->load(cell_at(at), order, place) & (bytes == 1 ? 0xff : 0xffffffff);
}

void mailbox_store(void *at, uint64_t value, enum order order, struct place place)
{
    memory->store(cell_at(at), value, order, place);
}

uint64_t mailbox_swap(void *at, uint64_t value, enum order order, struct place place)
{
    return memory->swap(cell_at(at), value, order, place);
}

void mailbox_fill(void *at, size_t bytes, struct place place)
{
    static const uint64_t zeros[WORDS];
    int cell = cell_at(at);

    if (bytes % 4 || cell + (int)bytes / 4 > WORDS)
        model_fail("%zu bytes are zeroed", bytes);
    memory->write(cell, (int)bytes / 4, zeros, place);
}

/* ---- the device -------------------------------------------------------------------------------- */

static void land(int cell, uint64_t value)
{
    memory->store(cell, value, RELEASE, HERE);
}

static void write_message(uint32_t size)
{
    int words = (int)size / 4;

    land(0, size & (size - 1)); /* half of it */
    land(0, size);
    for (int i = 1; i <= words; i++)
        land(i, OK_WORD);
    land(words + 1, L5_OK);
}

static void write_row(int round)
{
    for (int flag = 0; flag < FLAGS; flag++) {
        land(ROW_CELL + flag, (uint64_t)(100 * round + flag + 1));
        land(FLAG_CELL + flag, 1);
    }
}

static void device(void)
{
    for (int round = 0; round < scenario->rounds; round++) {
        if (round) {
            bell_wait(1 << TOLD);
            bell_hear(TOLD);
        }
        if (scenario->sizes[0])
            write_message(scenario->sizes[round]);
        else
            write_row(round);
        bell_ring(WRITTEN, HERE);
    }
}

/* ---- who reads --------------------------------------------------------------------------------- */

static void hear_of_the_end(void)
{
    if (!heard) {
        bell_wait(1 << WRITTEN);
        bell_hear(WRITTEN);
    }
    heard = 1;
}

/* Look a few times whenever it pleases; then once more, when all has been written. */
static int wait_for(int look)
{
    if (look == LOOKS - 1)
        hear_of_the_end();
    return look < LOOKS;
}

static void read_message(uint32_t expected)
{
    uint64_t words[WORDS];
    int64_t size = 0;

    for (int look = 0; !size && wait_for(look); look++)
        size = l5_message_ready(ring, LIMIT);
    if (size != expected)
        model_fail("a message of %u bytes is taken for one of %lld", expected, (long long)size);
    memory->read(1, (int)size / 4, words, HERE);
    for (int i = 0; i < (int)size / 4; i++)
        if (words[i] != OK_WORD)
            model_fail("word %d of the payload is %llx", i + 1, (unsigned long long)words[i]);
    l5_message_consume(ring, l5_message_padded((uint64_t)size));
}

static void read_rows(int round)
{
    uint32_t found[FLAGS + 1], start = (uint32_t)round;
    int taken[FLAGS] = {0};

    for (int look = 0, left = FLAGS; left && wait_for(look); look++)
        for (uint32_t i = 0, count = l5_flags_scan(flags, L5_FLAGS_BLOCK, start, found, FLAGS + 1); i < count; i++, left--) {
            uint64_t row;

            memory->read(ROW_CELL + (int)found[i], 1, &row, HERE);
            if (row != 100 * (uint64_t)round + found[i] + 1)
                model_fail("flag %u is over row %llu", found[i], (unsigned long long)row);
            taken[found[i]]++;
        }
    for (int flag = 0; flag < FLAGS; flag++)
        if (taken[flag] != 1)
            model_fail("flag %d is found %d times", flag, taken[flag]);
}

static void reader(void)
{
    for (int round = 0; round < scenario->rounds; round++) {
        if (scenario->sizes[0])
            read_message(scenario->sizes[round]);
        else
            read_rows(round);
        hear_of_the_end();
        heard = 0;
        bell_ring(TOLD, HERE);
    }
}

/* ---- begin and end ------------------------------------------------------------------------------ */

static void side(int number)
{
    if (number)
        reader();
    else
        device();
}

static void begin(void)
{
    heard = 0;
}

static void end(void)
{
    if (memory->final(0))
        model_fail("the size is not zero in the end");
    for (int flag = 0; flag < FLAGS; flag++)
        if (memory->final(FLAG_CELL + flag))
            model_fail("flag %d is set in the end", flag);
}

int main(int argc, char **argv)
{
    ring = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    flags = ring + 4096;
    for (size_t i = 0; argc > 2 && i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
        if (!strcmp(argv[2], scenarios[i].name)) {
            scenario = &scenarios[i];
            memory = !strcmp(argv[1], "views") ? &views : &tso;
            printf("%s, %s: ", argv[1], scenario->name);
            return explore(begin, side, end, 0, 0);
        }
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
        puts(scenarios[i].name);
    return argc > 2 ? 2 : 0;
}
