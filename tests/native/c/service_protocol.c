/* One client, frame by frame: what a native service answers, and what it does not put up with. */
#include "service_harness.h"

static uint8_t pattern[LONGEST];

/* The first byte says what to do. */
static int handler(void *state, const struct l5_request *request, struct l5_reply *reply)
{
    uint32_t count;

    CHECK(state == pattern);
    CHECK((uintptr_t)request->data % 16 == 0);
    if (!request->size)
        return 0;
    switch (request->data[0]) {
    case 'e': /* echo */
        return l5_reply_append(reply, request->data, request->size);
    case 'n': /* a number of bytes */
        memcpy(&count, request->data + 1, sizeof(count));
        return l5_reply_append(reply, pattern, count);
    case 'r': /* records of 100 bytes behind 8, flushed now and then */
        reply->record_bytes = 100;
        reply->record_offset = 8;
        CHECK(!l5_reply_append(reply, pattern, 8));
        for (int i = 0; i < 400; i++) {
            uint8_t *at = l5_reply_extend(reply, 100);

            CHECK(at);
            memset(at, i & 0xff, 100);
            if (i % 50 == 49)
                CHECK(!l5_reply_flush(reply));
        }
        return 0;
    case 'f': /* fails with its own words, after writing and flushing something */
        CHECK(!l5_reply_append(reply, pattern, 10));
        if (request->size > 1)
            CHECK(!l5_reply_flush(reply));
        return l5_reply_error(reply, "LookupError", "no such thing");
    case 'x':
        return -ENOENT;
    case 'p':
        return 7;
    default:
        return -EINVAL;
    }
}

static struct l5_service *begin(struct client *client, uint32_t mode)
{
    struct l5_service *service = service_make(handler, pattern, mode, 1, 16 << 20);

    client_connect(service, client);
    return service;
}

/* The connection ends by itself with this fault; nothing of it is left. */
static void expect_fault(struct l5_service *service, struct client *client, const char *words)
{
    struct l5_service_statistics statistics;
    const char *fault = await_done(service, NULL);

    if (!fault || !strstr(fault, words))
        fprintf(stderr, "fault: %s\n", fault ? fault : "(none)");
    CHECK(fault && strstr(fault, words));
    l5_service_count(service, &statistics);
    CHECK(statistics.stored_bytes == 0 && statistics.connections == 0 && statistics.faults == 1);
    client_free(client);
    service_end(service, 0);
}

static void finish(struct l5_service *service, struct client *client)
{
    struct l5_service_statistics statistics;

    client_send(client, L5_CLOSE, L5_MORE, 0, NULL, 0);
    expect(client, L5_CLOSE, 0, 0, NULL, 0);
    CHECK(!await_done(service, NULL));
    l5_service_count(service, &statistics);
    CHECK(statistics.stored_bytes == 0 && statistics.connections == 0);
    client_free(client);
    service_end(service, 0);
}

static void test_answers(uint32_t mode)
{
    struct client client;
    struct l5_service *service = begin(&client, mode);
    struct l5_service_statistics statistics;

    client_send(&client, L5_REQUEST, 0, 1, "echo", 4);
    expect(&client, L5_RESPONSE, 0, 1, "echo", 4);
    client_send(&client, L5_REQUEST, 0, 2, NULL, 0);
    expect(&client, L5_RESPONSE, 0, 2, NULL, 0);
    client_send(&client, L5_REQUEST, 0, 3, "f", 1);
    expect_error(&client, 3, "LookupError");
    client_send(&client, L5_REQUEST, 0, 4, "x", 1);
    expect_error(&client, 4, "OSError");
    client_send(&client, L5_REQUEST, 0, 5, "p", 1);
    expect_error(&client, 5, "SystemError");
    for (uint64_t id = 6; id < 3000; id++) { /* many laps of the ring */
        uint32_t size = (uint32_t)(id * 37 % (SEGMENT - 1)) + 1;
        uint8_t *data = calloc(1, size);

        data[0] = 'e';
        data[size - 1] ^= (uint8_t)id;
        if (size == 1)
            data[0] = 'e';
        client_send(&client, L5_REQUEST, 0, id, data, size);
        expect(&client, L5_RESPONSE, 0, id, data, size);
        free(data);
    }
    l5_service_count(service, &statistics);
    CHECK(statistics.requests == 2999 && statistics.errors == 3 && statistics.accepted == 1);
    finish(service, &client);
}

/* Receive a long answer, granting credit as it comes; checks the bytes and the limits. */
static void expect_long(struct client *client, uint64_t id, const uint8_t *data, size_t size, size_t record)
{
    struct l5_frame frame;
    size_t got = 0, allowed = CREDIT;

    do {
        client_peek(client, &frame);
        CHECK(frame.kind == L5_RESPONSE && frame.id == id && frame.size <= SEGMENT);
        CHECK(got + frame.size <= size && got + frame.size <= allowed);
        CHECK(!memcmp(frame.payload, data + got, frame.size));
        got += frame.size;
        if (record && (frame.flags & L5_MORE))
            CHECK((got - 8) % record == 0);
        l5_channel_consume(&client->channel);
        if ((frame.flags & L5_MORE) && got + CREDIT / 2 >= allowed) {
            uint64_t more = allowed = got + CREDIT;

            client_send(client, L5_CREDIT, L5_FOR_RESPONSE, id, &more, sizeof(more));
        }
    } while (frame.flags & L5_MORE);
    CHECK(got == size);
}

static void ask_for(struct client *client, uint64_t id, uint32_t count)
{
    uint8_t request[5] = "n";

    memcpy(request + 1, &count, sizeof(count));
    client_send(client, L5_REQUEST, 0, id, request, sizeof(request));
}

static void test_long_answers(uint32_t mode)
{
    static const uint32_t sizes[] = {0, 1, SEGMENT - 1, SEGMENT, SEGMENT + 1, CREDIT, CREDIT + 1, RING,
                                     RING + 1, 3 * RING + 17, LONGEST};
    struct client client;
    struct l5_service *service = begin(&client, mode);
    uint8_t *records = malloc(40008);

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        ask_for(&client, i + 1, sizes[i]);
        expect_long(&client, i + 1, pattern, sizes[i], 0);
    }
    ask_for(&client, 90, LONGEST + 1);
    expect_error(&client, 90, "MessageTooLarge");
    memcpy(records, pattern, 8);
    for (int i = 0; i < 400; i++)
        memset(records + 8 + 100 * i, i & 0xff, 100);
    client_send(&client, L5_REQUEST, 0, 91, "r", 1);
    expect_long(&client, 91, records, 40008, 100);
    client_send(&client, L5_REQUEST, 0, 92, "ff", 2);
    expect(&client, L5_RESPONSE, L5_MORE, 92, pattern, 10);
    expect_error(&client, 92, "LookupError");
    free(records);
    finish(service, &client);
}

/* Send a long request in pieces of `piece` bytes, within the credit that comes back; `last` are the
 * flags of the last piece. */
static void send_long(struct client *client, uint64_t id, const uint8_t *data, size_t size, uint32_t piece, int last)
{
    uint64_t allowed = CREDIT;
    size_t sent = 0;

    while (sent < size) {
        uint32_t now = size - sent < piece ? (uint32_t)(size - sent) : piece;

        while (sent + now > allowed) {
            struct l5_frame frame;

            client_peek(client, &frame);
            CHECK(frame.kind == L5_CREDIT && frame.id == id && !frame.flags);
            memcpy(&allowed, frame.payload, sizeof(allowed));
            l5_channel_consume(&client->channel);
        }
        client_send(client, L5_REQUEST, sent + now < size ? L5_MORE : last, id, data + sent, now);
        sent += now;
    }
}

static void skip_credits(struct client *client)
{
    struct l5_frame frame;

    for (;;) {
        client_peek(client, &frame);
        if (frame.kind != L5_CREDIT)
            return;
        l5_channel_consume(&client->channel);
    }
}

static void test_long_requests(uint32_t mode)
{
    struct client client;
    struct l5_service *service = begin(&client, mode);
    uint8_t *data = malloc(LONGEST);

    memcpy(data, pattern, LONGEST);
    data[0] = 'e';
    send_long(&client, 1, data, LONGEST, SEGMENT, 0);
    skip_credits(&client);
    expect_long(&client, 1, data, LONGEST, 0);
    send_long(&client, 2, data, 1000, 1, 0);
    skip_credits(&client);
    expect_long(&client, 2, data, 1000, 0);
    /* Two at once, and a short one between their pieces. */
    client_send(&client, L5_REQUEST, L5_MORE, 3, data, 10);
    client_send(&client, L5_REQUEST, L5_MORE, 4, data, 20);
    client_send(&client, L5_REQUEST, 0, 5, "e5", 2);
    expect(&client, L5_RESPONSE, 0, 5, "e5", 2);
    client_send(&client, L5_REQUEST, 0, 4, data + 20, 1);
    expect(&client, L5_RESPONSE, 0, 4, data, 21);
    client_send(&client, L5_ABORT, 0, 3, NULL, 0);
    client_send(&client, L5_REQUEST, 0, 3, "e3", 2); /* the id is free again */
    expect(&client, L5_RESPONSE, 0, 3, "e3", 2);
    free(data);
    finish(service, &client);
}

static void test_deadlines(uint32_t mode)
{
    struct client client;
    struct l5_service *service = begin(&client, mode);
    uint8_t request[8] = {0, 0, 0, 0, 'e', 'c', 'h', 'o'};
    uint32_t far_away_us = 60000000;

    client_send(&client, L5_REQUEST, L5_DEADLINE, 1, request, 8);
    expect_error(&client, 1, "DeadlineExceeded");
    memcpy(request, &far_away_us, 4);
    client_send(&client, L5_REQUEST, L5_DEADLINE, 2, request, 8);
    expect(&client, L5_RESPONSE, 0, 2, "echo", 4);
    client_send(&client, L5_REQUEST, L5_DEADLINE | L5_MORE, 3, request, 8);
    client_send(&client, L5_REQUEST, 0, 3, "es", 2);
    expect(&client, L5_RESPONSE, 0, 3, "echoes", 6);
    finish(service, &client);
}

static void test_cancel(uint32_t mode)
{
    struct client client;
    struct l5_service *service = begin(&client, mode);
    uint32_t seen = 0;

    for (uint64_t id = 1; id <= OUTS_MAX; id++) /* each stops at its credit */
        ask_for(&client, id, LONGEST);
    ask_for(&client, 10, 5);       /* so these wait their turn */
    ask_for(&client, 11, 6);
    client_send(&client, L5_CANCEL, 0, 10, NULL, 0);
    client_send(&client, L5_CANCEL, 0, 77, NULL, 0); /* nobody knows it: answered before, surely */
    for (uint64_t id = 1; id <= OUTS_MAX; id++)
        for (uint32_t got = 0; got < CREDIT; got += SEGMENT)
            expect(&client, L5_RESPONSE, L5_MORE, id, pattern + got, SEGMENT);
    for (uint64_t id = 1; id <= OUTS_MAX; id++)
        client_send(&client, L5_CANCEL, 0, id, NULL, 0);
    for (int i = 0; i < OUTS_MAX + 2; i++) { /* in any order: 10 and 11 move up as soon as one is gone */
        struct l5_frame frame;

        client_peek(&client, &frame);
        CHECK(frame.id <= 11 && !(seen & 1u << frame.id));
        seen |= 1u << frame.id;
        if (frame.id == 11)
            expect(&client, L5_RESPONSE, 0, 11, pattern, 6);
        else
            expect_error(&client, frame.id, "Cancelled");
    }
    /* A partial one. */
    client_send(&client, L5_REQUEST, L5_MORE, 12, "e", 1);
    client_send(&client, L5_CANCEL, 0, 12, NULL, 0);
    client_send(&client, L5_REQUEST, 0, 12, "e", 1);
    expect_error(&client, 12, "Cancelled");
    finish(service, &client);
}

static void test_overloaded(void)
{
    struct client client, other;
    struct l5_service *service = service_make(handler, pattern, L5_ADAPTIVE, 1, 100000);
    uint8_t *data = calloc(1, 150000);

    client_connect(service, &client);
    client_connect(service, &other);
    data[0] = 'e';
    send_long(&client, 1, data, 150000, SEGMENT, 0);
    skip_credits(&client);
    expect_error(&client, 1, "Overloaded");
    send_long(&client, 2, data, 30000, SEGMENT, 0);
    skip_credits(&client);
    expect_long(&client, 2, data, 30000, 0);
    ask_for(&client, 3, LONGEST); /* an unsent answer that may not be kept: what was sent is followed by an error */
    for (uint32_t got = 0; got < CREDIT; got += SEGMENT)
        expect(&client, L5_RESPONSE, L5_MORE, 3, pattern + got, SEGMENT);
    expect_error(&client, 3, "Overloaded");
    client_send(&other, L5_REQUEST, 0, 1, "e", 1);
    expect(&other, L5_RESPONSE, 0, 1, "e", 1);
    client_hang_up(&other);
    CHECK(!await_done(service, NULL));
    client_free(&other);
    free(data);
    finish(service, &client);
}

/* A client that does not read: its answers wait, its neighbour's do not. */
static void test_clogged(uint32_t mode)
{
    struct client client, other;
    struct l5_service *service = begin(&client, mode);

    client_connect(service, &other);
    for (uint64_t id = 1; id <= 16; id++)
        ask_for(&client, id, CREDIT);
    for (uint64_t id = 1; id <= 50; id++) {
        client_send(&other, L5_REQUEST, 0, id, "e", 1);
        expect(&other, L5_RESPONSE, 0, id, "e", 1);
    }
    for (uint64_t id = 1; id <= 16; id++)
        for (uint32_t got = 0; got < CREDIT; got += SEGMENT)
            expect(&client, L5_RESPONSE, got + SEGMENT < CREDIT ? L5_MORE : 0, id, pattern + got, SEGMENT);
    client_hang_up(&other);
    CHECK(!await_done(service, NULL));
    client_free(&other);
    finish(service, &client);
}

static void test_hostile(uint32_t mode)
{
    static const struct {
        int kind, flags;
        uint32_t size;
        const char *fault;
    } bad[] = {
        {L5_DATA, 0, 5, "data message"},
        {L5_RESPONSE, 0, 5, "only servers send"},
        {L5_ERROR, 0, 5, "only servers send"},
        {L5_HEARTBEAT, 0, 12, "only servers send"},
        {L5_CANCEL, 0, 1, "wrong size"},
        {L5_CREDIT, 0, 4, "wrong size"},
        {L5_REQUEST, 8, 4, "flags"},
        {L5_REQUEST, L5_DEADLINE, 3, "deadline"},
        {42, 0, 4, "unknown kind"},
        {0, 0, 4, "unknown kind"},
    };
    struct client client;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct l5_service *service = begin(&client, mode);

        client_send(&client, bad[i].kind, bad[i].flags, 1, pattern, bad[i].size);
        expect_fault(service, &client, bad[i].fault);
    }
}

static void test_hostile_streams(uint32_t mode)
{
    struct client client;
    struct l5_service *service = begin(&client, mode);
    struct l5_service_peer peer = usual_peer();

    for (uint64_t id = 1; id <= 17; id++) /* one more than 16, none of them complete */
        client_send(&client, L5_REQUEST, L5_MORE, id, "e", 1);
    expect_fault(service, &client, "in flight");

    service = begin(&client, mode); /* the same, waiting for their turn */
    for (uint64_t id = 1; id <= 17; id++)
        ask_for(&client, id, LONGEST);
    expect_fault(service, &client, "in flight");

    peer.receive_credit_bytes = SEGMENT - 1; /* without waiting for credit */
    service = service_make(handler, pattern, mode, 1, 16 << 20);
    client_open(&client, RING, SEGMENT);
    CHECK(!client_attach_as(service, &client, peer));
    client_send(&client, L5_REQUEST, L5_MORE, 1, pattern, SEGMENT);
    expect_fault(service, &client, "credit");

    service = begin(&client, mode); /* without end */
    send_long(&client, 1, pattern, LONGEST, SEGMENT, L5_MORE);
    client_send(&client, L5_REQUEST, L5_MORE, 1, "e", 1);
    expect_fault(service, &client, "longer than was agreed");

    service = begin(&client, mode);
    client_send(&client, L5_REQUEST, L5_MORE, 1, "e", 1);
    client_send(&client, L5_REQUEST, L5_DEADLINE, 1, "\0\0\0\0e", 5);
    expect_fault(service, &client, "deadline in the middle");

    service = begin(&client, mode);
    ask_for(&client, 1, LONGEST); /* keeps the connection open */
    client_send(&client, L5_CLOSE, L5_MORE, 0, NULL, 0);
    client_send(&client, L5_REQUEST, 0, 2, "e", 1);
    expect_fault(service, &client, "after CLOSE");

    service = begin(&client, mode);
    client_send(&client, L5_ABORT, 0, 1, NULL, 0);
    expect_fault(service, &client, "not half sent");
}

static void test_too_long(uint32_t mode)
{
    struct client client;
    struct l5_service *service = service_make(handler, pattern, mode, 1, 16 << 20);
    struct l5_service_peer peer = usual_peer();

    client_open(&client, RING, SEGMENT);
    peer.receive_message_bytes = 5000;
    CHECK(!client_attach_as(service, &client, peer));
    client_send(&client, L5_REQUEST, L5_MORE, 1, pattern, SEGMENT);
    client_send(&client, L5_REQUEST, L5_MORE, 1, pattern, SEGMENT);
    expect_fault(service, &client, "longer than was agreed");
}

/* Lies in the control words and in the ring itself. */
static void test_lies(uint32_t mode)
{
    struct client client;
    struct l5_service *service = begin(&client, mode);
    uint8_t *at = client.channel.tx_base;

    l5_store_seq((l5_word *)(void *)at, UINT64_MAX);
    client_hang_up(&client); /* rings in every mode: end-of-file */
    CHECK(strstr(await_done(service, NULL), "size outside"));
    client_free(&client);
    service_end(service, 0);

    service = begin(&client, mode);
    for (uint64_t id = 1; id <= 5; id++) /* fills the ring of answers */
        ask_for(&client, id, CREDIT);
    l5_store_seq(client.channel.rx_position, UINT64_MAX - 63);
    ask_for(&client, 6, CREDIT);
    expect_fault(service, &client, "read position");
}

static void test_stop(uint32_t mode)
{
    struct client client;
    struct l5_service *service = begin(&client, mode);
    struct l5_service_peer peer = usual_peer();
    struct client late;

    client_send(&client, L5_REQUEST, 0, 1, "e", 1);
    expect(&client, L5_RESPONSE, 0, 1, "e", 1);
    l5_service_stop(service, 10000000000u);
    expect(&client, L5_CLOSE, 0, 0, NULL, 0);
    CHECK(!await_done(service, NULL));
    client_open(&late, RING, SEGMENT);
    CHECK(client_attach_as(service, &late, peer) == -ESHUTDOWN);
    client_free(&late);
    client_free(&client);
    service_end(service, 0);

    service = begin(&client, mode); /* an answer that nobody fetches does not hold the service up */
    ask_for(&client, 1, LONGEST);
    service_end(service, 50000000);
    client_free(&client);

    service = begin(&client, mode); /* freed without a stop */
    l5_service_free(service);
    client_free(&client);
}

/* A client that has sent all still gets its answers, and grants credit for them. */
static void test_half_close(uint32_t mode)
{
    struct client client;
    struct l5_service *service = begin(&client, mode);

    ask_for(&client, 1, LONGEST);
    client_send(&client, L5_CLOSE, L5_MORE, 0, NULL, 0);
    expect_long(&client, 1, pattern, LONGEST, 0);
    expect(&client, L5_CLOSE, 0, 0, NULL, 0);
    CHECK(!await_done(service, NULL));
    client_free(&client);

    client_connect(service, &client);
    ask_for(&client, 1, LONGEST);
    client_send(&client, L5_CLOSE, 0, 0, NULL, 0);
    CHECK(!await_done(service, NULL));
    client_free(&client);
    service_end(service, 0);
}

static void test_gone(uint32_t mode)
{
    struct client client;
    struct l5_service *service = begin(&client, mode);

    ask_for(&client, 1, LONGEST);
    client_send(&client, L5_REQUEST, L5_MORE, 2, "e", 1);
    client_hang_up(&client);
    CHECK(!await_done(service, NULL));
    client_free(&client);
    service_end(service, 0);
}

static void test_call(void)
{
    struct l5_service *service = service_make(handler, pattern, L5_ADAPTIVE, 1, 16 << 20);
    struct l5_service_answer answer;

    CHECK(!l5_service_call(service, (const uint8_t *)"echo", 4, 0, 100, &answer));
    CHECK(!answer.failed && answer.size == 4 && !memcmp(answer.data, "echo", 4));
    l5_service_answer_free(&answer);
    CHECK(!l5_service_call(service, (const uint8_t *)"echo", 4, 1, 100, &answer));
    CHECK(answer.failed && answer.data[0] == strlen("DeadlineExceeded"));
    l5_service_answer_free(&answer);
    CHECK(!l5_service_call(service, (const uint8_t *)"echo", 4, 0, 3, &answer));
    CHECK(answer.failed && answer.data[0] == strlen("MessageTooLarge"));
    l5_service_answer_free(&answer);
    service_end(service, 0);
}

/* The busy share arrives in the client's control page while requests are served. */
static void test_status(uint32_t mode)
{
    struct client client;
    struct l5_service *service = begin(&client, mode);
    uint64_t id = 0;

    while (!l5_load_acquire(&client.channel.control->status.sequence)) {
        id++;
        client_send(&client, L5_REQUEST, 0, id, "e", 1);
        expect(&client, L5_RESPONSE, 0, id, "e", 1);
    }
    CHECK(l5_load_relaxed(&client.channel.control->status.busy_millionths) <= 1000000);
    finish(service, &client);
}

/* A worker without requests sleeps: its armed word is set, and the next request rings. */
static void test_idle(uint32_t mode)
{
    struct client clients[3];
    struct l5_service_statistics statistics;
    struct l5_service *service = service_make(handler, pattern, mode, 1, 16 << 20);

    for (int i = 0; i < 3; i++)
        client_connect(service, &clients[i]);
    for (int i = 0; i < 3; i++)
        while (!l5_load_seq(clients[i].channel.peer_armed))
            usleep(1000);
    for (int i = 0; i < 3; i++) {
        client_send(&clients[i], L5_REQUEST, 0, 1, "e", 1);
        expect(&clients[i], L5_RESPONSE, 0, 1, "e", 1);
        CHECK(clients[i].channel.bells_rung == 1);
    }
    l5_service_count(service, &statistics);
    CHECK(statistics.bells_heard >= 3 && statistics.sleeps >= 1);
    service_end(service, 1000000000);
    for (int i = 0; i < 3; i++)
        client_free(&clients[i]);
}

int main(void)
{
    for (size_t i = 0; i < sizeof(pattern); i++)
        pattern[i] = (uint8_t)(i * 131 + (i >> 8));
    for (uint32_t mode = L5_POLL; mode <= L5_ADAPTIVE; mode++) {
        test_answers(mode);
        test_long_answers(mode);
        test_long_requests(mode);
        test_deadlines(mode);
        test_cancel(mode);
        test_clogged(mode);
        test_hostile(mode);
        test_hostile_streams(mode);
        test_too_long(mode);
        test_lies(mode);
        test_stop(mode);
        test_gone(mode);
        test_half_close(mode);
        if (mode != L5_POLL)
            test_idle(mode);
        test_status(mode);
    }
    test_overloaded();
    test_call();
    puts("ok");
    return 0;
}
