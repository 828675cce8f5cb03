/* Who uses the ring, and what must hold: `ring_model tso|views SCENARIO [SWITCHES STALE]`.
 *
 * A side sends and receives as a session does (l5/_session.py), and waits as the loop does
 * (l5/_wait.py, l5/shm/_channel.py; tests/native/c/ring_main.c has the same for threads):
 *
 *   receive and send what is possible; if nothing was: arm, unless armed and of the same mind;
 *   if that is refused, begin again; sleep; read the bell; disarm.
 *
 * Whatever else wakes the loop, a side that is armed stays armed, looks at its ring, and sleeps on.
 *
 * What must hold: nobody sleeps for ever; every message comes once, whole and in order; nothing is
 * left in the rings.  Under `views` also: no plain access races with another. */
#include "channel.h"
#include "region.h"
#include "status.h"

enum { MESSAGES_MAX = 8, BYTES_MAX = 960 };

enum habit { SENDS = 0, RESERVES = 1, DISCARDS = 2, LEASES = 4, ANSWERS = 8, GIVES_UP = 16, TAKES = 32, TELLS = 64, COPIES = 128 };

/* What one side does: messages by their payload, how many it must get, and how. */
struct plan {
    uint32_t sizes[MESSAGES_MAX];
    int count, expects, habits, interruptions;
};

struct scenario {
    const char *name;
    uint64_t ring_bytes, start; /* start: where in the ring the first message stands */
    struct plan plans[SIDES];
    int switches[2], stale[2]; /* bounds under tso and views; 0: none */
};

struct end {
    struct l5_channel channel;
    const struct plan *plan;
    int sent, received, to_send, armed_for, interruptions;
    const uint8_t *held; /* a leased message, and which */
    int held_index;
};

/* Of 8 slots of 64 bytes one stays free, so three messages of three slots do not fit at once. */
static const struct scenario scenarios[] = {
    {"message", 512, 448, {{{40}, 1, 0, SENDS, 0}, {{0}, 0, 1, SENDS, 0}}, {0}, {0}},
    {"messages", 512, 384, {{{40, 104}, 2, 0, SENDS, 0}, {{0}, 0, 2, SENDS, 0}}, {0}, {0}},
    {"woken by others", 512, 0, {{{40, 8}, 2, 0, SENDS, 1}, {{0}, 0, 2, SENDS, 1}}, {0}, {0}},
    {"answer", 512, 64, {{{40}, 1, 1, SENDS, 0}, {{104}, 1, 1, ANSWERS, 0}}, {0}, {0}},
    {"space", 512, 448, {{{216, 216}, 2, 0, SENDS, 0}, {{0}, 0, 2, SENDS, 0}}, {0}, {0}},
    {"space of a whole ring", 1024, 64, {{{8, 936}, 2, 0, SENDS, 0}, {{0}, 0, 2, SENDS, 0}}, {0}, {0}},
    {"laps", 512, 0, {{{152, 152, 40, 152, 104}, 5, 0, SENDS, 0}, {{0}, 0, 5, SENDS, 0}}, {3, 2}, {0, 1}},
    {"both directions", 512, 0, {{{152, 152, 152}, 3, 3, SENDS, 0}, {{152, 152, 152}, 3, 3, SENDS, 0}}, {3, 2}, {0, 1}},
    {"gives up", 512, 0, {{{152, 152, 152}, 3, 1, GIVES_UP, 1}, {{8}, 1, 2, ANSWERS, 0}}, {3, 3}, {0, 1}},
    {"reserved", 512, 320, {{{40, 40}, 2, 0, RESERVES, 0}, {{0}, 0, 2, SENDS, 0}}, {0}, {0}},
    {"discarded", 512, 320, {{{40, 40}, 2, 0, DISCARDS, 0}, {{0}, 0, 2, SENDS, 0}}, {0}, {0}},
    {"leased", 512, 0, {{{8, 168, 232, 40}, 4, 0, SENDS, 0}, {{0}, 0, 4, LEASES, 0}}, {3, 2}, {0, 1}},
    {"taken", 1024, 0, {{{360, 296, 40, 360, 8}, 5, 0, SENDS, 0}, {{0}, 0, 5, TAKES, 0}}, {3, 2}, {0, 1}},
    {"status", 512, 0, {{{0}, 0, 0, TELLS, 0}, {{0}, 0, 0, TELLS, 0}}, {0}, {0}},
    {"forward", 512, 0, {{{0}, 0, 0, COPIES, 0}, {{0}, 0, 0, COPIES, 0}}, {0}, {0}},
};

static const struct scenario *scenario;
static struct l5_channel mapped[SIDES];
static struct end ends[SIDES];

static uint64_t word_of(int side, int index, uint32_t at)
{
    return ((uint64_t)(side + 1) << 56 | (uint64_t)(index + 1) << 48 | at) * 0x9e3779b97f4a7c15u | 1;
}

static void fill(uint8_t *private, int side, int index, uint32_t size)
{
    for (uint32_t at = 0; at < size; at += 8) {
        uint64_t word = word_of(side, index, at);

        memcpy(private + at, &word, 8);
    }
}

static void examine(const uint8_t *in_ring, int side, int index, uint32_t size)
{
    uint8_t copy[BYTES_MAX], expected[BYTES_MAX];

    memcpy(copy, in_ring, size);
    fill(expected, side, index, size);
    if (memcmp(copy, expected, size))
        model_fail("message %d from the %s is not what was sent", index + 1, side_names[side]);
}

/* ---- a side ---------------------------------------------------------------------------------- */

static int send_whole(struct end *end, uint32_t size)
{
    uint8_t data[BYTES_MAX];

    fill(data, me, end->sent, size);
    return l5_channel_send(&end->channel, L5_DATA, 0, (uint64_t)end->sent, NULL, 0, data, size);
}

static int send_reserved(struct end *end, uint32_t size)
{
    uint8_t data[BYTES_MAX];
    void *in_ring;
    int rc = l5_channel_reserve(&end->channel, size + 128, &in_ring);

    if (rc)
        return rc;
    memset(data, 0xff, size + 128);
    fill(data, me, end->sent, size);
    memcpy(in_ring, data, size + 128);
    if (end->plan->habits & DISCARDS) {
        l5_channel_discard(&end->channel);
        return send_whole(end, size);
    }
    return l5_channel_commit(&end->channel, L5_DATA, 0, (uint64_t)end->sent, size);
}

static int send_next(struct end *end)
{
    uint32_t size = end->plan->sizes[end->sent];
    int rc = end->plan->habits & (RESERVES | DISCARDS) ? send_reserved(end, size) : send_whole(end, size);

    if (rc && rc != -EAGAIN)
        model_fail("the %s cannot send: %s", side_names[me], end->channel.fault ? end->channel.fault : strerror(-rc));
    end->sent += !rc;
    return rc;
}

static void release(struct end *end)
{
    if (!end->held)
        return;
    examine(end->held, 1 - me, end->held_index, ends[1 - me].plan->sizes[end->held_index]);
    end->held = NULL;
    l5_channel_release(&end->channel);
}

/* To a place that begins within a line, as most do. */
static void take(struct end *end, const struct l5_frame *frame, int index)
{
    uint8_t copy[BYTES_MAX + L5_LINE] __attribute__((aligned(64)));
    uint32_t size = frame->size;

    l5_channel_take(&end->channel, frame, copy + 16, 0);
    examine(copy + 16, 1 - me, index, size);
}

static int receive_next(struct end *end)
{
    const struct plan *theirs = ends[1 - me].plan;
    struct l5_frame frame;
    int rc = l5_channel_peek(&end->channel, &frame), index = end->received;

    if (rc < 0)
        model_fail("the %s cannot receive: %s", side_names[me], end->channel.fault);
    if (!rc)
        return 0;
    if (frame.id != (uint64_t)index || index >= theirs->count || frame.size != theirs->sizes[index])
        model_fail("the %s expects message %d and finds %llu", side_names[me], index + 1, (unsigned long long)frame.id + 1);
    end->received++;
    if ((end->plan->habits & LEASES) && !index) {
        end->held = frame.payload;
        end->held_index = index;
        return l5_channel_hold(&end->channel) == 0;
    }
    if (end->plan->habits & TAKES) {
        take(end, &frame, index);
        return 1;
    }
    examine(frame.payload, 1 - me, index, frame.size);
    l5_channel_consume(&end->channel);
    return 1;
}

static void rest(struct end *end, int blocked)
{
    int bits = L5_ARM_DATA | (blocked ? L5_ARM_SPACE : 0), rc;

    if (end->armed_for != bits) {
        rc = l5_channel_arm(&end->channel, bits);
        if (rc && rc != -EBUSY)
            model_fail("the %s cannot arm: %s", side_names[me], end->channel.fault ? end->channel.fault : strerror(-rc));
        end->armed_for = rc ? 0 : bits;
        if (rc)
            return;
    }
    if (end->interruptions && choose(2)) {
        end->interruptions--;
        tell(HERE, "is woken by something else");
        if (end->plan->habits & GIVES_UP)
            end->to_send = end->sent;
        return;
    }
    bell_wait(1 << me);
    bell_hear(me);
    l5_channel_disarm(&end->channel);
    end->armed_for = 0;
}

static int may_send(const struct end *end)
{
    return end->sent < end->to_send && (!(end->plan->habits & ANSWERS) || end->received > end->sent);
}

/* (STATUS) the server tells how busy it is, twice; the client looks as often. */
static void tell_or_hear(int server)
{
    for (uint64_t said = 1; said <= 2; said++) {
        struct l5_status status;

        if (server) {
            l5_status_write(mapped[1].control, said, 10 * said, 100 * said);
            continue;
        }
        l5_status_read(mapped[0].control, &status);
        if (status.busy_millionths < 10 * status.sequence || status.written_ns < 100 * status.sequence)
            model_fail("what goes with number %llu is older than it", (unsigned long long)status.sequence);
    }
}

/* (FORWARD) who finds a number in a region finds what was written before it, in the same copy or the next,
 * also where a copy begins or ends within the word of the number. */
static void read_region(const uint8_t *region)
{
    uint64_t seen[2] = {0};
    size_t skip = choose(2) ? 4 : 0;

    if (choose(2)) {
        l5_region_read((uint8_t *)seen + skip, region + skip, sizeof(seen) - skip);
    } else {
        l5_region_read((uint8_t *)seen + skip, region + skip, 4);
        l5_region_read(seen + 1, region + 8, 8);
    }
    if (seen[1] < (seen[0] >> 8 * skip & 0xff))
        model_fail("the number is there, and what was written before it is not");
}

static void write_or_read(int reads)
{
    for (uint64_t i = 1; i <= 2; i++) {
        uint64_t number = i << 32 | i;

        if (reads) {
            read_region(mapped[1].rx_base);
            continue;
        }
        l5_region_write(mapped[0].tx_base + 8, &i, 8);
        l5_region_write(mapped[0].tx_base, &number, 8);
    }
}

static void side(int number)
{
    struct end *end = &ends[number];

    if (end->plan->habits & COPIES) {
        write_or_read(number);
        return;
    }
    if (end->plan->habits & TELLS) {
        tell_or_hear(number);
        return;
    }
    while (end->sent < end->to_send || end->received < end->plan->expects) {
        int progress = 0, blocked = 0;

        if (may_send(end)) {
            blocked = send_next(end) != 0;
            progress = !blocked;
        }
        progress |= receive_next(end);
        if (progress)
            continue;
        if (end->held)
            release(end);
        else
            rest(end, blocked);
    }
    release(end);
    if (l5_channel_arm(&end->channel, L5_ARM_DATA) && !(ends[1 - me].plan->habits & GIVES_UP))
        model_fail("the %s finds a message that nobody sent", side_names[me]);
}

/* ---- begin and end ---------------------------------------------------------------------------- */

static int position_cell(int ring)
{
    return cell_of(&mapped[0].control->read[ring].word, 8);
}

static void begin(void)
{
    for (int i = 0; i < SIDES; i++) {
        struct end *end = &ends[i];

        memset(end, 0, sizeof(*end));
        end->plan = &scenario->plans[i];
        end->to_send = end->plan->count;
        end->interruptions = end->plan->interruptions;
        end->channel = mapped[i];
        end->channel.bell = 1 - i;
        end->channel.tx_limit = end->channel.rx_limit = BYTES_MAX;
        end->channel.tx_write = end->channel.tx_read_cached = scenario->start;
        end->channel.rx_read = end->channel.rx_published = scenario->start;
        memory->preset(position_cell(i), scenario->start);
    }
}

static void end(void)
{
    for (int i = 0; i < SIDES; i++) {
        const struct l5_channel *channel = &ends[i].channel;
        int ring = cell_of(channel->rx_base, 8), slots = (int)scenario->ring_bytes / 64;

        if (ends[i].sent != ends[i].to_send || ends[i].received < ends[i].plan->expects)
            model_fail("the %s ended early", side_names[i]);
        for (int slot = 0; slot < slots && !(ends[1 - i].plan->habits & (GIVES_UP | COPIES)); slot++)
            if (memory->final(ring + slot * 8))
                model_fail("a message is left at %s", cell_name(ring + slot * 8));
    }
}

static int run(const char *model, int switches_max, int stale_max)
{
    int weak = !strcmp(model, "views");

    memory = weak ? &views : &tso;
    for (int i = 0; i < SIDES; i++)
        if (l5_channel_map(&mapped[i], 0, scenario->ring_bytes, i))
            return 2;
    if (switches_max < 0)
        switches_max = scenario->switches[weak];
    if (stale_max < 0)
        stale_max = scenario->stale[weak];
    printf("%s, %s: ", model, scenario->name);
    if (switches_max)
        printf("at most %d forced switches: ", switches_max);
    return explore(begin, side, end, switches_max, stale_max);
}

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 2 && i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
        if (!strcmp(argv[2], scenarios[i].name)) {
            scenario = &scenarios[i];
            return run(argv[1], argc > 3 ? atoi(argv[3]) : -1, argc > 4 ? atoi(argv[4]) : -1);
        }
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
        puts(scenarios[i].name);
    return argc > 2 ? 2 : 0;
}
