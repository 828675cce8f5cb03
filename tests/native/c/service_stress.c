/* Many clients at once, each a thread: short, long and cancelled requests, clients that vanish in
 * the middle, two workers.  Meant for the sanitizers. */
#include <pthread.h>

#include "service_harness.h"

enum { CLIENTS = 12, ROUNDS = 3, REQUESTS = 300 };

static struct l5_service *service;
static l5_word answered;

static int handler(void *state, const struct l5_request *request, struct l5_reply *reply)
{
    (void)state;
    if (request->size % 97 == 5)
        return l5_reply_error(reply, "Odd", "five");
    reply->record_bytes = 64;
    for (size_t at = 0; at < request->size; at += 4096) {
        size_t bytes = request->size - at < 4096 ? request->size - at : 4096;

        CHECK(!l5_reply_append(reply, request->data + at, bytes));
        if (request->id % 3 == 0)
            l5_reply_flush(reply);
    }
    return 0;
}

struct state {
    struct client client;
    uint64_t random;
    uint64_t done;
};

static uint32_t next_random(struct state *state)
{
    state->random = state->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state->random >> 33);
}

/* Take frames until the answer of `id` is complete; returns the kind of its last frame. */
static int take_answer(struct state *state, uint64_t id, const uint8_t *data, size_t size, uint64_t *credit)
{
    struct client *client = &state->client;
    struct l5_frame frame;
    size_t got = 0;

    for (;;) {
        int kind, more;

        client_peek(client, &frame);
        kind = frame.kind;
        more = frame.flags & L5_MORE;
        if (kind == L5_CREDIT && frame.id != id) { /* crossed an ABORT */
            l5_channel_consume(&client->channel);
            continue;
        }
        CHECK(frame.id == id);
        if (kind == L5_CREDIT) {
            memcpy(credit, frame.payload, 8);
        } else if (kind == L5_RESPONSE) {
            CHECK(got + frame.size <= size && (!frame.size || !memcmp(frame.payload, data + got, frame.size)));
            got += frame.size;
        }
        l5_channel_consume(&client->channel);
        if (kind == L5_ERROR)
            return kind;
        if (kind == L5_RESPONSE && !more) {
            CHECK(got == size);
            return kind;
        }
        if (kind == L5_RESPONSE) {
            uint64_t allowed = got + CREDIT;

            client_send(client, L5_CREDIT, L5_FOR_RESPONSE, id, &allowed, sizeof(allowed));
        }
        if (kind == L5_CREDIT && credit && *credit)
            return kind;
    }
}

static void ask(struct state *state, uint64_t id, const uint8_t *data)
{
    struct client *client = &state->client;
    size_t size = next_random(state) % 8 ? next_random(state) % 300 : next_random(state) % 60000;
    uint64_t allowed = CREDIT;
    size_t sent = 0;
    int kind;

    while (size - sent > SEGMENT) {
        client_send(client, L5_REQUEST, L5_MORE, id, data + sent, SEGMENT);
        sent += SEGMENT;
        while (sent + SEGMENT > allowed)
            CHECK(take_answer(state, id, data, size, &allowed) == L5_CREDIT);
    }
    if (sent && next_random(state) % 8 == 0) {
        client_send(client, L5_ABORT, 0, id, NULL, 0);
        return;
    }
    client_send(client, L5_REQUEST, 0, id, data + sent, (uint32_t)(size - sent));
    if (next_random(state) % 8 == 0)
        client_send(client, L5_CANCEL, 0, id, NULL, 0);
    allowed = 0;
    do {
        uint64_t ignored = 0;

        kind = take_answer(state, id, data, size, &ignored);
    } while (kind == L5_CREDIT);
    state->done++;
    l5_add(&answered, 1);
}

static void *client_main(void *argument)
{
    struct state *state = argument;
    uint8_t *data = malloc(60000);

    for (int i = 0; i < 60000; i++)
        data[i] = (uint8_t)(i * 7 + (i >> 8));
    for (uint64_t id = 1; id <= REQUESTS; id++)
        ask(state, id, data);
    if (next_random(state) % 2)
        client_send(&state->client, L5_CLOSE, 0, 0, NULL, 0);
    else
        client_send(&state->client, L5_REQUEST, L5_MORE, 1000, data, SEGMENT);
    client_hang_up(&state->client);
    free(data);
    return NULL;
}

static void round_of(uint32_t mode, int number)
{
    static struct state states[CLIENTS];
    struct l5_service_statistics statistics;
    pthread_t threads[CLIENTS];
    uint64_t done = 0;

    for (int i = 0; i < CLIENTS; i++) {
        states[i].random = mode * 1000 + (uint64_t)number * 100 + (uint64_t)i + 1;
        states[i].done = 0;
        client_connect(service, &states[i].client);
        CHECK(!pthread_create(&threads[i], NULL, client_main, &states[i]));
    }
    l5_service_count(service, &statistics);
    for (int i = 0; i < CLIENTS; i++) {
        CHECK(!pthread_join(threads[i], NULL));
        done += states[i].done;
    }
    for (int i = 0; i < CLIENTS; i++)
        CHECK(!await_done(service, NULL));
    for (int i = 0; i < CLIENTS; i++)
        client_free(&states[i].client);
    l5_service_count(service, &statistics);
    CHECK(statistics.connections == 0 && statistics.stored_bytes == 0 && statistics.faults == 0);
    CHECK(done > 0);
}

int main(void)
{
    for (uint32_t mode = L5_POLL; mode <= L5_ADAPTIVE; mode++) {
        struct l5_service_statistics statistics;

        l5_store_relaxed(&answered, 0);
        service = service_make(handler, NULL, mode, 2, 64 << 20);
        for (int i = 0; i < ROUNDS; i++)
            round_of(mode, i);
        l5_service_count(service, &statistics);
        CHECK(statistics.requests == l5_load_relaxed(&answered));
        CHECK(statistics.accepted == CLIENTS * ROUNDS);
        service_end(service, 1000000000);
    }
    puts("ok");
    return 0;
}
