/* The ring by itself: `ring_main random SEED COUNT | threads SEED COUNT | lies | segments`.
 *
 * random    one thread plays both ends at random, against a queue that cannot be wrong
 * threads   two threads as the two ends, sleeping by the doorbell, both directions at once
 * lies      everything that a peer can write where we read it: -EPROTO, never more
 * segments  memory that must not be taken: not sealed, holes, other sizes, other kinds of files
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "channel.h"

#define RING_BYTES 65536u
#define LIMIT 16384u

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);      \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Mostly small, sometimes at the edges of a line, sometimes as large as can be. */
static uint32_t random_size(uint64_t *state)
{
    uint64_t choice = next_random(state) % 8;

    if (choice < 4)
        return (uint32_t)(next_random(state) % 200);
    if (choice < 6)
        return (uint32_t)(next_random(state) % 16 * 64 + 38 + next_random(state) % 5);
    if (choice < 7)
        return (uint32_t)(next_random(state) % LIMIT);
    return LIMIT - (uint32_t)(next_random(state) % 2);
}

static uint8_t byte_of(uint64_t id, uint32_t at)
{
    return (uint8_t)(id * 31 + at * 7 + 1); /* rarely zero: zero is what an empty ring holds */
}

static void fill(uint8_t *data, uint64_t id, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++)
        data[i] = byte_of(id, i);
}

static void expect(const uint8_t *data, uint64_t id, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++)
        CHECK(data[i] == byte_of(id, i));
}

static void set_up(struct l5_channel *channel, int bell)
{
    channel->bell = bell;
    channel->tx_limit = channel->rx_limit = LIMIT;
}

/* The two ends, each with a mapping of its own, as two processes have them. */
static void make_pair(struct l5_channel *client, struct l5_channel *server)
{
    const char *why = NULL;
    int fd = l5_segment_create(RING_BYTES);

    CHECK(fd >= 0);
    CHECK(l5_channel_map(client, fd, RING_BYTES, L5_CLIENT) == 0);
    CHECK(l5_segment_verify(fd, RING_BYTES, &why) == 0);
    CHECK(l5_channel_map(server, fd, RING_BYTES, L5_SERVER) == 0);
    CHECK(l5_segment_lock(fd, RING_BYTES, &why) == 0);
    close(fd);
    set_up(client, -1);
    set_up(server, -1);
}

/* ---- random ------------------------------------------------------------------------------- */

struct model {
    uint32_t sizes[4096]; /* of the messages on their way, oldest first */
    uint64_t first_id, count;
    uint64_t held_id;
    const uint8_t *held;
    uint32_t held_size;
};

static uint32_t *slot(struct model *model, uint64_t id)
{
    return &model->sizes[id % 4096];
}

static void do_send(struct l5_channel *tx, struct model *model, uint64_t *random)
{
    static uint8_t data[LIMIT];
    uint64_t id = model->first_id + model->count;
    uint32_t size = random_size(random), prefix = size ? (uint32_t)(next_random(random) % size) : 0;
    int rc;

    fill(data, id, size);
    rc = l5_channel_send(tx, L5_DATA, 0, id, data, prefix, data + prefix, size - prefix);
    CHECK(rc == 0 || rc == -EAGAIN);
    CHECK(l5_channel_send(tx, L5_DATA, 0, id, NULL, 0, data, LIMIT + 1) == -EMSGSIZE);
    if (rc)
        return;
    *slot(model, id) = size;
    model->count++;
}

static void do_reserve(struct l5_channel *tx, struct model *model, uint64_t *random)
{
    uint64_t id = model->first_id + model->count;
    uint32_t size = random_size(random);
    void *data;
    int rc = l5_channel_reserve(tx, size, &data);

    CHECK(rc == 0 || rc == -EAGAIN);
    if (rc)
        return;
    memset(data, 0xff, size);
    CHECK(l5_channel_send(tx, L5_DATA, 0, 1, NULL, 0, data, 1) == -EBUSY);
    CHECK(l5_channel_reserve(tx, 1, &data) == -EBUSY);
    if (next_random(random) % 3 == 0) {
        l5_channel_discard(tx);
        return;
    }
    CHECK(l5_channel_commit(tx, L5_DATA, 0, id, size + 1) == -EINVAL);
    if (next_random(random) % 2)
        size = size ? (uint32_t)(next_random(random) % size) : 0;
    fill(data, id, size);
    CHECK(l5_channel_commit(tx, L5_DATA, 0, id, size) == 0);
    CHECK(l5_channel_commit(tx, L5_DATA, 0, id, size) == -EINVAL);
    *slot(model, id) = size;
    model->count++;
}

/* Copy the message out, to any alignment, with the caches or past them; nothing beside it is written,
 * and all that it took of the ring is zero afterwards. */
static void take(struct l5_channel *rx, const struct l5_frame *frame, uint64_t choice)
{
    static uint8_t room[LIMIT + 256];
    uint8_t *place = room + 64 + choice % 64;
    const uint8_t *slot = frame->payload - L5_PREFIX_BYTES;
    uint64_t id = frame->id, padded = l5_padded(frame->size);
    uint32_t size = frame->size;

    memset(room, 0xee, sizeof(room));
    l5_channel_take(rx, frame, place, choice / 64 % 2);
    expect(place, id, size);
    for (const uint8_t *at = room; at < room + sizeof(room); at++)
        CHECK(*at == 0xee || (at >= place && at < place + size));
    for (uint64_t i = 0; i < padded; i++)
        CHECK(!slot[i]);
}

static void do_receive(struct l5_channel *rx, struct model *model, uint64_t *random)
{
    struct l5_frame frame;
    int rc = l5_channel_peek(rx, &frame);

    CHECK(rc == (model->count ? 1 : 0));
    CHECK(l5_channel_ready(rx) == rc);
    if (!rc)
        return;
    CHECK(frame.kind == L5_DATA && frame.id == model->first_id && frame.size == *slot(model, frame.id));
    expect(frame.payload, frame.id, frame.size);
    if (!model->held && next_random(random) % 8 == 0) {
        CHECK(l5_channel_hold(rx) == 0);
        model->held = frame.payload;
        model->held_id = frame.id;
        model->held_size = frame.size;
    } else {
        if (model->held)
            CHECK(l5_channel_hold(rx) == -EBUSY);
        if (next_random(random) % 4)
            take(rx, &frame, next_random(random));
        else
            l5_channel_consume(rx);
    }
    model->first_id++;
    model->count--;
}

static void do_release(struct l5_channel *rx, struct model *model)
{
    if (!model->held)
        return;
    expect(model->held, model->held_id, model->held_size);
    model->held = NULL;
    l5_channel_release(rx);
}

static void run_random(uint64_t seed, uint64_t count)
{
    struct l5_channel ends[2];
    struct model models[2] = {{.first_id = 1}, {.first_id = 1}};
    uint64_t random = seed * 2654435761u + 1;
    uint64_t delivered = 0;

    make_pair(&ends[0], &ends[1]);
    for (uint64_t i = 0; i < count; i++) {
        int way = (int)(next_random(&random) % 2);
        struct l5_channel *tx = &ends[way], *rx = &ends[1 - way];
        struct model *model = &models[way];

        switch (next_random(&random) % 8) {
        case 0: case 1: do_send(tx, model, &random); break;
        case 2: do_reserve(tx, model, &random); break;
        case 3: case 4: case 5: do_receive(rx, model, &random); break;
        case 6: do_release(rx, model); break;
        default:
            CHECK(l5_channel_arm(rx, L5_ARM_DATA) == (model->count ? -EBUSY : 0));
            l5_channel_disarm(rx);
        }
    }
    for (int way = 0; way < 2; way++) {
        struct model *model = &models[way];

        do_release(&ends[1 - way], model);
        while (model->count)
            do_receive(&ends[1 - way], model, &random), do_release(&ends[1 - way], model);
        delivered += model->first_id - 1;
        CHECK(!l5_channel_ready(&ends[1 - way]));
    }
    for (int end = 0; end < 2; end++) {
        l5_channel_unmap(&ends[end]);
        l5_channel_unmap(&ends[end]);
    }
    printf("%llu messages\n", (unsigned long long)delivered);
}

/* ---- threads ------------------------------------------------------------------------------ */

struct end {
    struct l5_channel channel;
    int sleep_on;
    uint64_t seed, count, sleeps;
};

static void rest(struct end *end, int bits)
{
    struct pollfd pollfd = {.fd = end->sleep_on, .events = POLLIN};
    char bytes[256];
    int rc = l5_channel_arm(&end->channel, bits);

    CHECK(rc == 0 || rc == -EBUSY);
    if (rc)
        return;
    end->sleeps++;
    CHECK(poll(&pollfd, 1, 20000) == 1); /* a lost wake-up ends here */
    CHECK(read(end->sleep_on, bytes, sizeof(bytes)) > 0);
    l5_channel_disarm(&end->channel);
}

static int take_one(struct end *end, uint64_t *received, int hold)
{
    struct l5_frame frame;
    int rc = l5_channel_peek(&end->channel, &frame);

    CHECK(rc >= 0);
    if (!rc)
        return 0;
    CHECK(frame.id == *received + 1);
    if (hold && l5_channel_hold(&end->channel) == 0) {
        expect(frame.payload, frame.id, frame.size);
        l5_channel_release(&end->channel);
    } else {
        expect(frame.payload, frame.id, frame.size);
        l5_channel_consume(&end->channel);
    }
    ++*received;
    return 1;
}

/* Send by copy, or in place, sometimes after a reservation that was thought better of. */
static int send_one(struct end *end, uint64_t id, const uint8_t *data, uint32_t size, uint64_t choice)
{
    uint32_t more = size < LIMIT / 2 ? (uint32_t)(choice >> 8) % 512 : 0;
    void *place;

    if (choice % 4 == 0 && l5_channel_reserve(&end->channel, size + more, &place) == 0) {
        memset(place, 0xff, size + more);
        memcpy(place, data, size);
        if (choice % 8 == 0)
            return l5_channel_commit(&end->channel, L5_DATA, 0, id, size);
        l5_channel_discard(&end->channel);
    }
    return l5_channel_send(&end->channel, L5_DATA, 0, id, NULL, 0, data, size);
}

static void *run_end(void *argument)
{
    static _Thread_local uint8_t data[LIMIT];
    struct end *end = argument;
    uint64_t random = end->seed, sent = 0, received = 0;
    uint32_t size = random_size(&random);
    uint64_t prepared = 0;

    while (sent < end->count || received < end->count) {
        int progress = 0, blocked = 0;

        if (sent < end->count) {
            if (prepared != sent + 1) {
                prepared = sent + 1;
                size = random_size(&random);
                fill(data, prepared, size);
            }
            if (send_one(end, prepared, data, size, next_random(&random)) == 0)
                sent++, progress = 1;
            else
                blocked = 1;
        }
        for (int i = 0; i < 3; i++)
            progress |= take_one(end, &received, (int)(next_random(&random) % 4 == 0));
        if (!progress)
            rest(end, L5_ARM_DATA | (blocked ? L5_ARM_SPACE : 0));
    }
    l5_channel_publish(&end->channel); /* the other end may still wait for room */
    return NULL;
}

/* Both ends over one mapping: a sanitizer knows addresses, not pages. */
static void share_mapping(struct l5_channel *client, struct l5_channel *server)
{
    *server = *client;
    server->role = L5_SERVER;
    server->tx_base = client->rx_base;
    server->rx_base = client->tx_base;
    server->tx_read = client->rx_position;
    server->rx_position = client->tx_read;
    server->own_armed = client->peer_armed;
    server->peer_armed = client->own_armed;
}

static void run_threads(uint64_t seed, uint64_t count)
{
    static struct end ends[2];
    pthread_t threads[2];
    int sockets[2];
    int fd = l5_segment_create(RING_BYTES);

    CHECK(fd >= 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    CHECK(l5_channel_map(&ends[0].channel, fd, RING_BYTES, L5_CLIENT) == 0);
    close(fd);
    share_mapping(&ends[0].channel, &ends[1].channel);
    for (int i = 0; i < 2; i++) {
        set_up(&ends[i].channel, sockets[i]);
        ends[i].sleep_on = sockets[i];
        ends[i].seed = seed * 7919 + (uint64_t)i + 1;
        ends[i].count = count;
        CHECK(pthread_create(&threads[i], NULL, run_end, &ends[i]) == 0);
    }
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    printf("%llu sleeps, %llu bells\n", (unsigned long long)(ends[0].sleeps + ends[1].sleeps),
           (unsigned long long)(ends[0].channel.bells_rung + ends[1].channel.bells_rung));
    l5_channel_unmap(&ends[0].channel);
    close(sockets[0]);
    close(sockets[1]);
}

/* ---- lies --------------------------------------------------------------------------------- */

static l5_word *word_at(uint8_t *at)
{
    return (l5_word *)(void *)at;
}

static void lie_in_message(uint64_t word, uint32_t size, uint8_t kind, uint8_t flags, int expected)
{
    struct l5_channel client, server;
    struct l5_frame frame;

    make_pair(&client, &server);
    memcpy(client.tx_base + 8, &size, 4);
    client.tx_base[12] = kind;
    client.tx_base[13] = flags;
    l5_store_release(word_at(client.tx_base), word);
    CHECK(l5_channel_peek(&server, &frame) == expected);
    CHECK((expected == -EPROTO) == (server.fault != NULL));
    l5_channel_unmap(&client);
    l5_channel_unmap(&server);
}

static void lies_in_messages(void)
{
    static const uint64_t words[] = {1, 15, LIMIT + 17, RING_BYTES, 1ull << 31, 1ull << 32, 1ull << 63,
                                     ~0ull, (1ull << 32) + 16};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        lie_in_message(words[i], (uint32_t)(words[i] - 16), L5_DATA, 0, -EPROTO);
        lie_in_message(words[i], 0, L5_DATA, 0, -EPROTO);
    }
    lie_in_message(16, 0, L5_DATA, 0, 1);
    lie_in_message(16, 1, L5_DATA, 0, -EPROTO); /* the two sizes disagree */
    lie_in_message(17, 0, L5_DATA, 0, -EPROTO);
    for (int kind = 0; kind < 256; kind++) /* sizes that no control frame has */
        lie_in_message(19, 3, (uint8_t)kind, 0, kind >= L5_DATA && kind <= L5_ERROR ? 1 : -EPROTO);
    for (int flags = 0; flags < 256; flags++) {
        lie_in_message(16, 0, L5_DATA, (uint8_t)flags, flags & ~L5_MORE ? -EPROTO : 1);
        lie_in_message(16, 0, L5_CANCEL, (uint8_t)flags, flags ? -EPROTO : 1);
    }
    lie_in_message(19, 3, L5_REQUEST, L5_DEADLINE, -EPROTO);
    lie_in_message(20, 4, L5_REQUEST, L5_DEADLINE, 1);
}

static void lies_in_positions(void)
{
    static const uint64_t positions[] = {64, 1, ~0ull, 1ull << 63, RING_BYTES, RING_BYTES * 2, 65};
    static uint8_t data[LIMIT];

    for (size_t i = 0; i < sizeof(positions) / sizeof(positions[0]); i++) {
        struct l5_channel client, server;
        uint64_t lie = positions[i];
        int rc = 0;

        make_pair(&client, &server);
        if (lie != 64) /* a position that was not written yet, or is none */
            l5_store_release(client.tx_read, lie);
        while (!rc)
            rc = l5_channel_send(&client, L5_DATA, 0, 1, NULL, 0, data, LIMIT);
        CHECK(rc == (lie == 64 ? -EAGAIN : -EPROTO));
        if (lie == 64) { /* true so far; now it runs backwards */
            l5_store_release(client.tx_read, ~63ull);
            CHECK(l5_channel_send(&client, L5_DATA, 0, 1, NULL, 0, data, LIMIT) == -EPROTO);
            CHECK(l5_channel_arm(&client, L5_ARM_DATA | L5_ARM_SPACE) == -EPROTO);
        }
        l5_channel_unmap(&client);
        l5_channel_unmap(&server);
    }
}

/* Whatever the whole segment holds, both ends go on reading within it, or say EPROTO. */
static void noise(uint64_t seed)
{
    static uint8_t data[LIMIT];
    struct l5_channel client, server;
    struct l5_frame frame;
    uint64_t random = seed + 1, sum = 0;

    make_pair(&client, &server);
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < 64; i++) {
            uint64_t at = next_random(&random) % (RING_BYTES / 8) * 8;
            uint64_t value = next_random(&random) >> (next_random(&random) % 64);

            l5_store_relaxed(word_at(client.tx_base + at), next_random(&random) % 2 ? value : 0);
        }
        l5_store_relaxed(client.rx_position, next_random(&random) >> (next_random(&random) % 64));
        l5_store_relaxed(client.own_armed, next_random(&random));
        if (l5_channel_peek(&server, &frame) == 1) {
            for (uint32_t i = 0; i < frame.size; i++)
                sum += frame.payload[i];
            if (next_random(&random) % 2 && l5_channel_hold(&server) == 0)
                l5_channel_release(&server);
            else if (server.rx_pending)
                l5_channel_consume(&server);
        }
        l5_channel_send(&server, L5_DATA, 0, sum, NULL, 0, data, random_size(&random));
        l5_channel_arm(&server, L5_ARM_DATA | L5_ARM_SPACE);
        l5_channel_disarm(&server);
    }
    l5_channel_unmap(&client);
    l5_channel_unmap(&server);
}

static void run_lies(void)
{
    lies_in_messages();
    lies_in_positions();
    for (uint64_t seed = 1; seed <= 200; seed++)
        noise(seed * 7919);
    printf("no lie was believed\n");
}

/* ---- leases and goodbyes ------------------------------------------------------------------ */

/* With a lease held, a lap later: the leased message must not be met again. */
static void run_leases(void)
{
    static uint8_t data[LIMIT];

    for (uint32_t size = 0; size <= 3000; size += 20) {
        struct l5_channel client, server;
        struct l5_frame frame;
        uint64_t sent = 1, received = 1;

        make_pair(&client, &server);
        CHECK(l5_channel_send(&client, L5_DATA, 0, 1, NULL, 0, "held", 4) == 0);
        CHECK(l5_channel_peek(&server, &frame) == 1 && l5_channel_hold(&server) == 0);
        for (int lap = 0; lap < 3; lap++) {
            while (l5_channel_send(&client, L5_DATA, 0, sent + 1, NULL, 0, data, size) == 0)
                sent++;
            while (l5_channel_peek(&server, &frame) == 1) {
                CHECK(frame.id == ++received && frame.size == size);
                l5_channel_consume(&server);
            }
            CHECK(sent == received);
        }
        CHECK(l5_channel_send(&client, L5_CLOSE, 0, 0, NULL, 0, NULL, 0) == 0);
        CHECK(l5_channel_peek(&server, &frame) == 1 && frame.kind == L5_CLOSE);
        l5_channel_consume(&server);
        l5_channel_release(&server);
        CHECK(!l5_channel_ready(&server));
        l5_channel_unmap(&client);
        l5_channel_unmap(&server);
    }
    printf("no message came twice\n");
}

/* ---- segments ----------------------------------------------------------------------------- */

static int new_file(unsigned seals, off_t bytes, int holes)
{
    const uint64_t mark[3] = {L5_MAGIC, (uint64_t)sysconf(_SC_PAGESIZE), RING_BYTES};
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    CHECK(fd >= 0 && ftruncate(fd, bytes) == 0);
    if (!holes)
        CHECK(fallocate(fd, 0, 0, bytes) == 0);
    CHECK(pwrite(fd, mark, sizeof(mark), 0) == sizeof(mark));
    if (seals)
        CHECK(fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

static void must_refuse(int fd, uint64_t ring_bytes)
{
    struct l5_channel channel;
    const char *why = NULL;
    int rc = l5_segment_verify(fd, ring_bytes, &why);

    if (rc == 0) {
        CHECK(l5_channel_map(&channel, fd, ring_bytes, L5_SERVER) == 0);
        rc = l5_segment_lock(fd, ring_bytes, &why);
        l5_channel_unmap(&channel);
    }
    CHECK(rc == -EPERM && why);
    printf("%s\n", why);
    close(fd);
}

/* An emulator of user programs knows madvise for itself, and does nothing. */
static void run_segments(int emulated)
{
    const unsigned size_seals = F_SEAL_SHRINK | F_SEAL_GROW;
    off_t bytes = (off_t)sysconf(_SC_PAGESIZE) + 2 * (off_t)RING_BYTES;
    int pipes[2], fd;

    CHECK(pipe(pipes) == 0);
    must_refuse(pipes[0], RING_BYTES);
    close(pipes[1]);
    must_refuse(open("/proc/self/exe", O_RDONLY), RING_BYTES);
    must_refuse(new_file(0, bytes, 0), RING_BYTES);
    must_refuse(new_file(F_SEAL_SHRINK, bytes, 0), RING_BYTES);
    must_refuse(new_file(F_SEAL_GROW, bytes, 0), RING_BYTES);
    must_refuse(new_file(size_seals, bytes, 1), RING_BYTES);
    must_refuse(new_file(size_seals, bytes - 4096, 0), RING_BYTES);
    must_refuse(new_file(size_seals | F_SEAL_SEAL, bytes, 0), RING_BYTES);
    must_refuse(new_file(size_seals, bytes, 0), RING_BYTES + 4096);
    must_refuse(new_file(size_seals, bytes, 0), 0);
    must_refuse(new_file(size_seals, bytes, 0), 1ull << 63);
    CHECK(l5_segment_create(RING_BYTES + 1) == -EINVAL);
    CHECK(l5_segment_create(1024) == -EINVAL);

    /* A good one; and then nobody can punch holes into it any more. */
    fd = new_file(size_seals, bytes, 0);
    {
        struct l5_channel channel;
        const char *why = NULL;

        CHECK(l5_segment_verify(fd, RING_BYTES, &why) == 0);
        CHECK(l5_channel_map(&channel, fd, RING_BYTES, L5_SERVER) == 0);
        CHECK(l5_segment_lock(fd, RING_BYTES, &why) == 0);
        CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) < 0 && errno == EPERM);
        CHECK(ftruncate(fd, 0) < 0 && ftruncate(fd, 2 * bytes) < 0);
        CHECK(pwrite(fd, "x", 1, 0) < 0);
        CHECK(emulated || madvise(channel.control, 4096, MADV_REMOVE) < 0);
        CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
        l5_channel_unmap(&channel);
        close(fd);
    }
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint64_t count = argc > 3 ? strtoull(argv[3], NULL, 10) : 1000;

    if (!strcmp(mode, "random"))
        run_random(seed, count);
    else if (!strcmp(mode, "threads"))
        run_threads(seed, count);
    else if (!strcmp(mode, "lies"))
        run_lies();
    else if (!strcmp(mode, "leases"))
        run_leases();
    else if (!strcmp(mode, "segments"))
        run_segments(argc > 2 && !strcmp(argv[2], "emulated"));
    else
        return 2;
    return 0;
}
