/* Clients that come and go while others work, and a service that stops under them.
 *
 * The main thread is the event loop: it attaches (under a lock, on behalf of the clients' threads),
 * drains, counts, reads what the workers publish.  Each client's thread connects again and again, asks
 * a little, and dies in one of several ways; then it waits until its connection was let go, because only
 * then is its memory its own.  In the end the service is stopped in the middle of it all, first with a
 * grace, then with none.  Meant for the thread sanitizer. */
#include <pthread.h>

#include "service_harness.h"
#include "status.h"

enum { CLIENTS = 8, WORKERS = 4, LIVES = 160, NUMBERS = 4096 };

enum death { HANGS_UP, SAYS_CLOSE, HANGS_UP_IN_A_REQUEST, HANGS_UP_BEFORE_THE_ANSWER, LIES, DEATHS };

static struct l5_service *service;
static pthread_mutex_t loop = PTHREAD_MUTEX_INITIALIZER;
static struct client *attached[NUMBERS]; /* by number, under the lock */
static l5_word let_go[NUMBERS];          /* 1: drained, 2: drained with a fault */
static l5_word lives, refused, answered, died[DEATHS];

static int handler(void *state, const struct l5_request *request, struct l5_reply *reply)
{
    (void)state;
    return l5_reply_append(reply, request->data, request->size);
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* 0, or -ESHUTDOWN once the service stops. */
static int come(struct client *client)
{
    int rc;

    client_open(client, RING, SEGMENT);
    pthread_mutex_lock(&loop);
    rc = client_attach_as(service, client, usual_peer());
    if (!rc) {
        CHECK(client->number < NUMBERS);
        attached[client->number] = client;
    }
    pthread_mutex_unlock(&loop);
    return rc;
}

static int is_let_go(const struct client *client)
{
    return l5_load_acquire(&let_go[client->number]) != 0;
}

/* Wait for one answer; 0 when the connection ended first. */
static int await_answer(struct client *client, uint64_t id)
{
    struct l5_frame frame;
    int rc, gone = 0;

    while (!(rc = l5_channel_peek(&client->channel, &frame)) && !gone) {
        gone = is_let_go(client); /* then look once more: it may have answered before */
        if (!gone)
            client_sleep(client, L5_ARM_DATA);
    }
    CHECK(rc >= 0);
    if (!rc || frame.kind == L5_CLOSE)
        return 0;
    if (frame.id != id || (frame.kind != L5_RESPONSE && frame.kind != L5_ERROR))
        fprintf(stderr, "kind %d of request %llu\n", frame.kind, (unsigned long long)frame.id);
    CHECK(frame.id == id && (frame.kind == L5_RESPONSE || frame.kind == L5_ERROR));
    l5_channel_consume(&client->channel);
    l5_add(&answered, 1);
    return 1;
}

static void watch_status(const struct client *client)
{
    struct l5_status status;

    l5_status_read(client->channel.control, &status);
    if (status.sequence)
        CHECK(status.busy_millionths <= 1000000);
}

static void die(struct client *client, enum death death, const uint8_t *data)
{
    struct l5_channel *channel = &client->channel;

    if (death == SAYS_CLOSE)
        l5_channel_send(channel, L5_CLOSE, 0, 0, NULL, 0, NULL, 0);
    if (death == HANGS_UP_IN_A_REQUEST)
        l5_channel_send(channel, L5_REQUEST, L5_MORE, 1000, NULL, 0, data, SEGMENT);
    if (death == HANGS_UP_BEFORE_THE_ANSWER)
        l5_channel_send(channel, L5_REQUEST, 0, 1000, NULL, 0, data, SEGMENT);
    if (death == LIES)
        l5_channel_send(channel, L5_RESPONSE, 0, 1000, NULL, 0, data, 8);
    shutdown(client->bells[0], death == SAYS_CLOSE ? SHUT_WR : SHUT_RDWR);
    l5_add(&died[death], 1);
}

static void *live(void *argument)
{
    uint64_t random = (uint64_t)(uintptr_t)argument * 7919 + 1;
    static const uint8_t data[SEGMENT];

    while (l5_add(&lives, 1) < LIVES) {
        struct client client;
        uint32_t requests = next_random(&random) % 24;

        if (come(&client)) {
            l5_add(&refused, 1);
            client_free(&client);
            break;
        }
        for (uint64_t id = 1; id <= requests; id++) {
            if (l5_channel_send(&client.channel, L5_REQUEST, 0, id, NULL, 0, data, next_random(&random) % 200))
                break;
            if (!await_answer(&client, id))
                break;
            watch_status(&client);
        }
        die(&client, next_random(&random) % DEATHS, data);
        while (!is_let_go(&client))
            poll(NULL, 0, 1);
        client_free(&client);
    }
    return NULL;
}

/* What the event loop does when the service lets connections go: it closes their sockets. */
static uint32_t drain_some(void)
{
    struct l5_service_done done[4];
    int count = l5_service_drain(service, done, 4);

    for (int i = 0; i < count; i++) {
        uint64_t number = done[i].connection;

        pthread_mutex_lock(&loop);
        shutdown(attached[number]->bells[1], SHUT_RDWR);
        attached[number] = NULL;
        pthread_mutex_unlock(&loop);
        l5_store_release(&let_go[number], done[i].fault ? 2 : 1);
    }
    return (uint32_t)count;
}

static uint64_t run_loop(uint64_t drained, uint64_t until)
{
    struct pollfd event = {.fd = l5_service_done_fd(service), .events = POLLIN};
    struct l5_service_statistics statistics;

    while (drained < until) {
        CHECK(poll(&event, 1, 20000) == 1);
        drained += drain_some();
        l5_service_count(service, &statistics);
        CHECK(statistics.connections <= CLIENTS);
    }
    return drained;
}

static void stop_under_them(uint64_t drained)
{
    struct pollfd events[2] = {{.fd = l5_service_done_fd(service), .events = POLLIN},
                               {.fd = l5_service_ended_fd(service), .events = POLLIN}};

    l5_service_stop(service, 1000000000);
    l5_service_stop(service, 0);
    while (!l5_service_ended(service)) {
        CHECK(poll(events, 2, 20000) > 0);
        drained += drain_some();
    }
    while (drained < l5_load_relaxed(&service->accepted))
        drained += drain_some();
}

static void churn(uint32_t mode)
{
    pthread_t threads[CLIENTS];
    struct l5_service_statistics statistics;
    uint64_t drained;

    memset(let_go, 0, sizeof(let_go));
    l5_store_relaxed(&lives, 0);
    l5_store_relaxed(&answered, 0);
    service = service_make(handler, NULL, mode, WORKERS, 64 << 20);
    for (uintptr_t i = 0; i < CLIENTS; i++)
        CHECK(!pthread_create(&threads[i], NULL, live, (void *)(i + 1 + mode * 100)));
    drained = run_loop(0, LIVES * 3 / 4);
    stop_under_them(drained);
    for (int i = 0; i < CLIENTS; i++)
        CHECK(!pthread_join(threads[i], NULL));
    l5_service_count(service, &statistics);
    CHECK(statistics.connections == 0 && statistics.stored_bytes == 0);
    CHECK(statistics.faults > 0 && l5_load_relaxed(&answered) > LIVES);
    l5_service_free(service);
}

int main(void)
{
    for (uint32_t mode = L5_POLL; mode <= L5_ADAPTIVE; mode++)
        churn(mode);
    for (int death = 0; death < DEATHS; death++)
        CHECK(l5_load_relaxed(&died[death]) > 0);
    CHECK(l5_load_relaxed(&refused) > 0);
    puts("ok");
    return 0;
}
