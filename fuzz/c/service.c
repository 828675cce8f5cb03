/* The native service's half of the protocol against a hostile client, in one thread.
 *
 * A client sends frames through a sound channel of its own, in any order and of any kind, reads
 * the answers or does not; in a third of the inputs it also writes into the memory.  If it only sent
 * frames, then, whatever they were:
 *
 *   - what comes back is a sequence of sound frames, answers to questions that were asked;
 *   - each question is answered exactly once, if the connection lives, the client reads on, and it
 *     gave no number twice;
 *   - no answer exceeds its credit, or the agreed length.
 *
 * In every case nothing is left: no memory, no count. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "input.h"
#include "service.h"

enum { RING = 4096, SEGMENT = 512, FILE_BYTES = 4096 + 2 * RING, STORED_MAX = 6000, IDS = 8, LONGEST = 3000 };

static struct {
    struct l5_channel server, fresh, client;
    uint8_t *memory;
    struct l5_service service;
    struct l5_worker worker;
    struct l5_connection connection;
    int hostile; /* writes into memory: then the answers prove nothing */
    int closed;  /* the client said that it asks no more; */
    int left;    /* and that it reads no more */
} world;

/* What the client knows of the questions with one id. */
static struct question {
    uint32_t asked, answered; /* whole ones */
    int open;                 /* half sent */
    uint64_t granted;         /* credit that it gave for the answers, at least */
    uint64_t got;             /* payload of the answer that is half here */
    int confused;             /* the client asked twice under one id: it cannot tell the answers apart */
} questions[IDS];

/* ---- the handler: the first byte says what it does ------------------------------------------- */

static int in_pieces(const struct l5_request *request, struct l5_reply *reply)
{
    size_t bytes = request->size > 2 ? request->data[2] * 16u : 0;

    reply->record_bytes = request->size > 3 ? request->data[3] : 0;
    reply->record_offset = request->size > 4 ? request->data[4] : 0;
    for (int i = 0; i < request->data[1] % 4; i++) {
        void *place = l5_reply_extend(reply, bytes);
        int rc;

        if (!place)
            return -EMSGSIZE;
        memset(place, i, bytes);
        rc = l5_reply_flush(reply);
        if (rc)
            return rc;
    }
    return 0;
}

static int handle(void *state, const struct l5_request *request, struct l5_reply *reply)
{
    uint8_t sum = 0;

    CHECK(state == &world && (uintptr_t)request->data % 16 == 0);
    CHECK(reply->limit == world.connection.peer.send_message_bytes && !reply->size && !reply->flushed);
    for (size_t i = 0; i < request->size; i++)
        sum = (uint8_t)(sum + request->data[i]);
    if (request->size < 2)
        return request->size ? -(int)sum : 0;
    switch (request->data[0] % 8) {
    case 0: case 1:
        return l5_reply_append(reply, request->data, request->size);
    case 2: case 3:
        return in_pieces(request, reply);
    case 4:
        return l5_reply_extend(reply, request->data[1] * 16u) || !request->data[1] ? 0 : -EMSGSIZE;
    case 5:
        return l5_reply_error(reply, "LookupError", request->data[1] & 1 ? "no" : NULL);
    case 6:
        return -(int)request->data[1];
    default:
        return request->data[1];
    }
}

/* ---- the world --------------------------------------------------------------------------------- */

/* Write zeros into what a new connection finds, and see that nothing was left by the last one. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    int fd = l5_segment_create(RING);

    (void)argc, (void)argv;
    CHECK(fd >= 0);
    CHECK(!l5_channel_map(&world.fresh, fd, RING, L5_SERVER));
    CHECK(!l5_channel_map(&world.client, fd, RING, L5_CLIENT));
    l5_channel_unmap(&world.client);
    world.memory = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(world.memory != MAP_FAILED);
    close(fd);
    world.worker.scratch = aligned_alloc(64, SEGMENT);
    world.worker.scratch_bytes = SEGMENT;
    l5_answering_init(&world.worker.answering, NULL, SEGMENT);
    return 0;
}

/* The client's channel, over the server's mapping. */
static void mirror(void)
{
    struct l5_channel *client = &world.client, *server = &world.server;

    memset(client, 0, sizeof(*client));
    client->ring_bytes = RING;
    client->role = L5_CLIENT;
    client->control = server->control;
    client->rx_hold = UINT64_MAX;
    client->bell = client->peer_cpu = -1;
    client->tx_base = server->rx_base;
    client->rx_base = server->tx_base;
    client->tx_read = server->rx_position;
    client->rx_position = server->tx_read;
    client->own_armed = server->peer_armed;
    client->peer_armed = server->own_armed;
    client->tx_limit = client->rx_limit = SEGMENT;
}

static void begin(struct input *input)
{
    uint8_t how = take8(input), limits = take8(input);
    struct l5_service_peer *peer = &world.connection.peer;

    memset(world.memory, 0, FILE_BYTES);
    memset(questions, 0, sizeof(questions));
    world.server = world.fresh;
    world.server.tx_limit = world.server.rx_limit = SEGMENT;
    mirror();
    world.hostile = how % 3 == 0;
    world.closed = world.left = 0;
    world.service = (struct l5_service){.handler = handle, .state = &world};
    world.service.options = (struct l5_service_options){
        .workers = 1, .request_bytes_max = limits & 1 ? 1000 : LONGEST, .stored_bytes_max = limits & 2 ? STORED_MAX : 1 << 20};
    world.worker.service = &world.service;
    world.connection = (struct l5_connection){.channel = &world.server, .worker = &world.worker, .number = 1};
    world.connection.queue_end = &world.connection.queue;
    *peer = (struct l5_service_peer){.in_flight_max = 1 + (limits >> 2) % 8, .send_segment_bytes = limits & 32 ? 300 : SEGMENT,
                                     .send_credit_bytes = limits & 64 ? 1 << 20 : 600, .send_message_bytes = LONGEST,
                                     .receive_credit_bytes = limits & 128 ? 2000 : 700, .receive_message_bytes = LONGEST,
                                     .heartbeat_ns = 10000000};
    for (int id = 0; id < IDS; id++)
        questions[id].granted = peer->send_credit_bytes;
}

static void end(void)
{
    struct l5_service_statistics counted;

    l5_connection_clear(&world.connection);
    CHECK(l5_load_relaxed(&world.service.stored_bytes) == 0);
    CHECK(!world.connection.out_count && !world.connection.queue && !world.connection.partials);
    CHECK(!world.connection.credits_due);
    l5_service_count(&world.service, &counted);
    CHECK(!counted.stored_bytes);
    world.worker.answering.reply.capacity = 0; /* the next input finds no room: nothing carries over */
    free(world.worker.answering.reply.data);
    world.worker.answering.reply.data = NULL;
}

/* ---- what the client does ------------------------------------------------------------------------ */

/* Note what was sent, as far as the protocol gives it a meaning. */
static void note(int kind, int flags, uint64_t id, const uint8_t *data)
{
    struct question *question = &questions[id % IDS];

    if (kind == L5_REQUEST && !world.closed) {
        if (!question->open && question->answered < question->asked)
            question->confused = 1;
        question->open = flags & L5_MORE;
        question->asked += !question->open;
    } else if (kind == L5_ABORT) {
        question->open = 0;
    } else if (kind == L5_CREDIT && (flags & L5_FOR_RESPONSE)) {
        uint64_t granted;

        memcpy(&granted, data, sizeof(granted));
        if (granted > question->granted)
            question->granted = granted;
    } else if (kind == L5_CLOSE) {
        world.closed = 1;
        world.left |= !(flags & L5_MORE);
    }
}

static void client_sends(struct input *input)
{
    static const uint8_t kinds[16] = {L5_REQUEST, L5_REQUEST, L5_REQUEST, L5_REQUEST, L5_REQUEST, L5_CANCEL, L5_CANCEL,
                                      L5_ABORT, L5_CREDIT, L5_CREDIT, L5_CLOSE, L5_DATA, L5_RESPONSE, L5_ERROR,
                                      L5_HEARTBEAT, 0};
    uint8_t what = take8(input), data[SEGMENT] = {0};
    uint8_t flags = take8(input), id = take8(input) % IDS;
    uint16_t size = take16(input) % (SEGMENT + 1);
    int kind = kinds[what % 16];

    take_bytes(input, data, size < 16 ? size : 16);
    if (!kind)
        kind = what; /* one that there is not */
    if (kind == L5_CREDIT && size != 8)
        memset(data, 0, 8), data[1] = flags >> 4, size = 8;
    if (kind == L5_CANCEL || kind == L5_ABORT || kind == L5_CLOSE)
        size = 0;
    if (!(what & 128)) /* mostly flags that may be */
        flags &= kind == L5_REQUEST ? L5_MORE | L5_DEADLINE : kind == L5_CREDIT ? L5_FOR_RESPONSE : L5_MORE;
    if (flags & L5_DEADLINE && size >= 4)
        data[3] |= flags & 8 ? 0 : 0x7f; /* far away, or near */
    if (!l5_channel_send(&world.client, kind, flags, id, NULL, 0, data, size))
        note(kind, flags, id, data);
}

/* One frame of the service; 0 when there is none. */
static int client_reads(void)
{
    struct l5_frame frame;
    struct question *question;
    uint64_t allowed;
    int rc = l5_channel_peek(&world.client, &frame);

    if (rc <= 0) {
        CHECK(rc == 0 || world.hostile);
        return 0;
    }
    question = &questions[frame.id % IDS];
    if (!world.hostile && (frame.kind == L5_RESPONSE || frame.kind == L5_ERROR)) {
        CHECK(frame.id < IDS && question->answered < question->asked && frame.size <= SEGMENT);
        if (frame.kind == L5_RESPONSE) {
            question->got += frame.size;
            CHECK(question->confused || (question->got <= question->granted && question->got <= LONGEST));
        } else {
            CHECK(frame.size > 2 && frame.payload[0] && 2u + frame.payload[0] <= frame.size);
        }
        if (!(frame.flags & L5_MORE)) {
            question->answered++;
            question->got = 0;
        }
    } else if (!world.hostile && frame.kind == L5_CREDIT) {
        memcpy(&allowed, frame.payload, sizeof(allowed));
        CHECK(frame.id < IDS && allowed <= LONGEST + world.connection.peer.receive_credit_bytes);
    } else if (!world.hostile) {
        CHECK(frame.kind == L5_CLOSE);
    }
    l5_channel_consume(&world.client);
    return 1;
}

static void client_pokes(struct input *input)
{
    uint8_t data[32];
    size_t at = take16(input) % FILE_BYTES, bytes = 1 + take8(input) % sizeof(data);

    if (bytes > FILE_BYTES - at)
        bytes = FILE_BYTES - at;
    take_bytes(input, data, bytes);
    if (world.hostile)
        memcpy(world.memory + at, data, bytes);
}

/* Serve as a worker does; let a connection that is finished alone. */
static void serve(void)
{
    if (!world.connection.finished)
        l5_connection_serve(&world.connection);
    CHECK(world.connection.in_flight <= world.connection.peer.in_flight_max);
    CHECK(world.connection.out_count <= OUTS_MAX);
    CHECK(l5_load_relaxed(&world.service.stored_bytes) <= world.service.options.stored_bytes_max);
}

/* Grant more of the answers of which something has come, as l5/_flow.py does: half the initial credit ahead. */
static void grant(void)
{
    uint64_t credit = world.connection.peer.send_credit_bytes;

    for (uint64_t id = 0; id < IDS; id++) {
        uint64_t allowed = questions[id].got + credit < LONGEST ? questions[id].got + credit : LONGEST;

        if (!questions[id].got ||
            l5_channel_send(&world.client, L5_CREDIT, L5_FOR_RESPONSE, id, NULL, 0, &allowed, sizeof(allowed)))
            continue;
        if (questions[id].granted < allowed)
            questions[id].granted = allowed;
    }
}

/* A sound client reads on, grants what is needed, and then has every answer. */
static void read_on(void)
{
    if (world.hostile || world.left)
        return;
    for (int idle = 0; idle < 20 && !world.connection.fault; idle++) {
        grant();
        serve();
        while (client_reads())
            idle = 0;
        l5_channel_publish(&world.client);
        if (idle && !world.connection.out_count && !world.connection.queue && !l5_channel_ready(&world.server))
            break;
    }
    for (int id = 0; id < IDS && !world.connection.fault; id++)
        CHECK(questions[id].confused || questions[id].answered == questions[id].asked);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};

    begin(&input);
    while (input.left) {
        switch (take8(&input) % 8) {
        case 0: case 1: case 2: client_sends(&input); break;
        case 3: serve(); break;
        case 4: client_reads(); break;
        case 5: client_pokes(&input); break;
        case 6: l5_channel_publish(&world.client); break;
        case 7: l5_channel_arm(&world.client, take8(&input) & 3); break;
        }
    }
    read_on();
    end();
    return 0;
}
