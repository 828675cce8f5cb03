/* A worker of a native service under every schedule: `service_model tso|views SCENARIO [SWITCHES STALE]`.
 *
 * The server's side is l5_worker_main as it is: the inbox, the scan, arming all connections, epoll, stopping.
 * The client's side is the event loop that attaches and drains, and the client itself.  Descriptors are bells:
 * 0 wakes the client, 1 is the worker's end of the client's socket, then the events that the service makes. */
#include "service.h"

enum { ARENA_BYTES = 1 << 18, MUTEX_BELLS = 12, DONE = 2, ENDED = 3, GRACE_NS = 7000 };

enum ending { HANGS_UP, STOPS, STOPS_BEFORE_THE_ANSWER };

static const struct scenario {
    const char *name;
    int requests, at_once; /* how many are sent before answers are read */
    uint32_t answer_bytes;
    enum ending ending;
    int switches[2], stale[2];
} scenarios[] = {
    {"served: one request", 1, 1, 8, HANGS_UP, {3, 2}, {0, 1}},
    {"served: two requests", 2, 1, 8, STOPS, {2, 2}, {0, 1}},
    {"served: room for answers", 3, 3, 232, HANGS_UP, {2, 2}, {0, 1}},
    {"served: stopping", 1, 1, 8, STOPS_BEFORE_THE_ANSWER, {3, 2}, {0, 1}},
};

static const struct scenario *scenario;
static struct l5_channel mapped[SIDES], client, server;
static struct l5_service *service;
static union {
    max_align_t align;
    uint8_t bytes[ARENA_BYTES];
} arena;
static size_t allocated;
static int next_bell;
static struct {
    int used;
    void *pointer;
} watched[BELLS];
static const void *mutexes[BELLS - MUTEX_BELLS];

/* ---- the kernel and the library ---------------------------------------------------------------- */

int model_eventfd(void)
{
    if (next_bell == MUTEX_BELLS)
        abort();
    return next_bell++;
}

int model_epoll_ctl(int operation, int fd, void *pointer)
{
    watched[fd].used = operation != EPOLL_CTL_DEL;
    watched[fd].pointer = pointer;
    return 0;
}

int model_epoll_wait(struct epoll_event *events, int timeout_ms)
{
    int bells = 0, ready, count = 0;

    for (int i = 0; i < BELLS; i++)
        bells |= watched[i].used << i;
    if (timeout_ms < 0)
        bell_wait(bells);
    ready = bell_take(bells);
    for (int i = 0; i < BELLS; i++)
        if (ready >> i & 1)
            events[count++] = (struct epoll_event){.events = EPOLLIN, .data.ptr = watched[i].pointer};
    return count;
}

ssize_t model_recv(int fd)
{
    if (bell_hear(fd))
        return 1;
    if (bell_take(1 << fd))
        return 0; /* end-of-file */
    errno = EAGAIN;
    return -1;
}

/* A mutex is a bell that has rung while nobody holds it. */
static int mutex_bell(const void *mutex)
{
    for (int i = 0; i < BELLS - MUTEX_BELLS; i++) {
        if (!mutexes[i])
            mutexes[i] = mutex;
        if (mutexes[i] == mutex)
            return MUTEX_BELLS + i;
    }
    abort();
}

void model_lock(const void *mutex)
{
    bell_wait(1 << mutex_bell(mutex));
    bell_hear(mutex_bell(mutex));
}

void model_unlock(const void *mutex)
{
    bell_ring(mutex_bell(mutex), HERE);
}

void *model_allocate(void *old, size_t bytes)
{
    size_t whole = (bytes + 15) & ~(size_t)15;
    uint8_t *made = arena.bytes + allocated;

    if (allocated + whole > ARENA_BYTES)
        model_fail("the arena is too small");
    allocated += whole;
    if (old) /* what it held lies before it; more than that does no harm */
        memmove(made, old, (size_t)(made - (uint8_t *)old) < bytes ? (size_t)(made - (uint8_t *)old) : bytes);
    else
        memset(made, 0, bytes);
    return made;
}

/* ---- the client and its event loop ------------------------------------------------------------- */

static int handler(void *state, const struct l5_request *request, struct l5_reply *reply)
{
    uint8_t answer[512] = {0};

    (void)state;
    memcpy(answer, request->data, 8);
    return l5_reply_append(reply, answer, scenario->answer_bytes);
}

static void sleep_for(int bits)
{
    int rc = l5_channel_arm(&client, bits);

    if (rc && rc != -EBUSY)
        model_fail("the client cannot arm: %s", client.fault);
    if (rc)
        return;
    bell_wait(1 << 0);
    bell_hear(0);
    l5_channel_disarm(&client);
}

static void ask(uint64_t id)
{
    uint64_t payload = id * 0x9e3779b97f4a7c15u;
    int rc;

    while ((rc = l5_channel_send(&client, L5_REQUEST, 0, id, NULL, 0, &payload, 8)) == -EAGAIN)
        sleep_for(L5_ARM_DATA | L5_ARM_SPACE);
    if (rc)
        model_fail("the client cannot send: %s", client.fault ? client.fault : strerror(-rc));
}

static void take_answer(uint64_t id)
{
    struct l5_frame frame;
    uint64_t payload;
    int rc;

    while (!(rc = l5_channel_peek(&client, &frame)))
        sleep_for(L5_ARM_DATA);
    if (rc < 0)
        model_fail("the client cannot receive: %s", client.fault);
    if (frame.kind != L5_RESPONSE || frame.id != id || frame.size != scenario->answer_bytes)
        model_fail("request %llu got kind %d of %llu", (unsigned long long)id, frame.kind, (unsigned long long)frame.id);
    memcpy(&payload, frame.payload, 8);
    if (payload != id * 0x9e3779b97f4a7c15u)
        model_fail("request %llu got another answer", (unsigned long long)id);
    l5_channel_consume(&client);
}

static void attach(void)
{
    struct l5_service_peer peer = {.channel = (uint64_t)(uintptr_t)&server,
                                   .bell = 1,
                                   .in_flight_max = 4,
                                   .send_segment_bytes = 256,
                                   .send_credit_bytes = 1024,
                                   .send_message_bytes = 1024,
                                   .receive_credit_bytes = 1024,
                                   .receive_message_bytes = 1024};
    uint64_t number;

    if (l5_service_attach(service, &peer, &number))
        model_fail("the service takes no connection");
}

static void drain_one(void)
{
    struct l5_service_done done;

    while (!l5_service_drain(service, &done, 1))
        bell_wait(1 << DONE);
    if (done.fault)
        model_fail("the service finds fault: %s", done.fault);
}

static void run_client(void)
{
    uint64_t asked = 0, answered = 0, requests = (uint64_t)scenario->requests;

    attach();
    while (answered < requests) {
        while (asked < requests && asked - answered < (uint64_t)scenario->at_once)
            ask(++asked);
        if (scenario->ending == STOPS_BEFORE_THE_ANSWER)
            l5_service_stop(service, GRACE_NS);
        while (answered < asked)
            take_answer(++answered);
    }
    if (scenario->ending == HANGS_UP) {
        bell_end(1);
        drain_one();
    }
    if (scenario->ending != STOPS_BEFORE_THE_ANSWER)
        l5_service_stop(service, 0);
    while (!l5_service_ended(service))
        bell_wait(1 << ENDED);
    if (scenario->ending != HANGS_UP)
        drain_one();
}

static void side(int number)
{
    if (number)
        l5_worker_main(&service->workers[0]);
    else
        run_client();
}

/* ---- begin and end ----------------------------------------------------------------------------- */

static void set_up(struct l5_channel *channel, const struct l5_channel *as, int bell)
{
    *channel = *as;
    channel->bell = bell;
    channel->tx_limit = channel->rx_limit = 256;
}

static void begin(void)
{
    struct l5_service_options options = {.handler = (uint64_t)(uintptr_t)handler,
                                         .workers = 1,
                                         .mode = L5_EVENT,
                                         .request_bytes_max = 1024,
                                         .stored_bytes_max = 1 << 16};

    allocated = 0;
    next_bell = 2;
    memset(watched, 0, sizeof(watched));
    set_up(&client, &mapped[0], 1);
    set_up(&server, &mapped[1], 0);
    if (l5_service_new(&options, &service) || l5_service_start(service))
        abort();
    memory->preset(watch_word(&service->workers[0].inbox_full), 0);
    memory->preset(watch_word(&service->stopping), 0);
    memory->preset(watch_word(&service->stop_at_ns), 0);
    me = 0;
    mutexes[0] = mutexes[1] = NULL;
    start_ringing(1 << mutex_bell(&service->lock) | 1 << mutex_bell(&service->workers[0].lock));
}

static void end(void)
{
    const struct l5_worker *worker = &service->workers[0];

    if (worker->count || service->done)
        model_fail("a connection is left");
    /* Nothing is freed before the next schedule: the last connection still tells until when it had time. */
    if (scenario->ending == STOPS_BEFORE_THE_ANSWER &&
        worker->connections[0]->linger_until_ns != memory->final(watch_word(&service->stop_at_ns)))
        model_fail("the worker stops with another grace than it was given");
}

static int run(const char *model, int switches_max, int stale_max)
{
    int weak = !strcmp(model, "views");

    memory = weak ? &views : &tso;
    for (int i = 0; i < SIDES; i++)
        if (l5_channel_map(&mapped[i], 0, PAGE_BYTES, i))
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
    fputs("service_model tso|views SCENARIO [SWITCHES STALE]\n", stderr);
    return 2;
}
