/* Requests of all kinds, and none, to the handler, for the sanitizers.
 *
 * service_main fuzz SEED COUNT       one thread: lies about sizes, hostile numbers, tight limits
 * service_main threads SEED COUNT    four threads share a tree, a load and the counts
 *
 * Each request is a block of exactly its size and each reply one of exactly its room, so that one byte too far is seen. Prints
 * how many requests were answered and how many refused.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "l5_handler.h"
#include "service_handler.h"

#define THREADS 4
#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            abort(); \
        } \
    } while (0)

enum { SEARCH = 1, COUNT, NEAREST, SEARCH_MANY, INSERT, INSERT_MANY, DELETE, UPDATE, BOUNDS, STATS, LEVEL_RECTS,
       LOAD_BEGIN, LOAD_PART, LOAD_END, LOAD_ABORT };

struct client {
    struct rt_service *service;
    uint64_t state;
    uint32_t worker;
    size_t rounds, answered, refused;
    uint64_t token;
    uint64_t load_rows;
    struct l5_reply reply;
    int failed;
};

/* ---- a reply without slack ------------------------------------------------------------------------- */

static int grow(struct l5_reply *reply, size_t more)
{
    size_t capacity = reply->size + more;
    uint8_t *data;

    if (capacity > reply->limit)
        return -EMSGSIZE;
    data = malloc(capacity ? capacity : 1);
    CHECK(data);
    if (reply->size)
        memcpy(data, reply->data, reply->size); /* what lies behind is not promised to survive */
    free(reply->data);
    reply->data = data;
    reply->capacity = capacity;
    return 0;
}

static int flush(struct l5_reply *reply)
{
    (void)reply;
    return 0;
}

static int fail(struct l5_reply *reply, const char *type, const char *message)
{
    struct client *client = reply->owner;

    CHECK(type && *type && message && *message);
    client->failed = 1;
    return -EIO;
}

/* ---- random things ------------------------------------------------------------------------------------- */

static uint64_t draw(struct client *client)
{
    uint64_t x = client->state += UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static size_t below(struct client *client, size_t bound)
{
    return (size_t)(draw(client) % bound);
}

static double coordinate(struct client *client)
{
    static const double odd[] = {NAN, INFINITY, -INFINITY, 1e308, -1e308, 5e-324, -0.0};

    return below(client, 100) ? (double)below(client, 1000) / 10 : odd[below(client, 7)];
}

static void put_rect(struct client *client, uint8_t *at)
{
    double rect[4] = {coordinate(client), coordinate(client), 0, 0};

    rect[2] = rect[0] + (double)below(client, 50) / 10;
    rect[3] = below(client, 200) ? rect[1] + (double)below(client, 50) / 10 : coordinate(client);
    memcpy(at, rect, sizeof rect);
}

static void put_rects(struct client *client, uint8_t *at, size_t n)
{
    for (size_t i = 0; i < n; i++)
        put_rect(client, at + 32 * i);
}

static void put_number(uint8_t *at, uint64_t number)
{
    memcpy(at, &number, sizeof number);
}

/* The body of a request that is right but for its rectangles; its size. */
static size_t fill_body(struct client *client, unsigned op, uint8_t *body)
{
    size_t n = below(client, 40);

    switch (op) {
    case SEARCH: case COUNT: case NEAREST:
        put_rect(client, body);
        return 32;
    case SEARCH_MANY:
        put_rects(client, body, n);
        return 32 * n;
    case INSERT: case DELETE:
        put_rect(client, body);
        put_number(body + 32, below(client, 100));
        return 40;
    case INSERT_MANY:
        put_rects(client, body, n);
        for (size_t i = 0; i < n; i++)
            put_number(body + 32 * n + 8 * i, below(client, 100));
        return 40 * n;
    case UPDATE:
        put_rects(client, body, 2);
        put_number(body + 64, below(client, 100));
        return 72;
    case LOAD_BEGIN:
        client->load_rows = 0;
        put_number(body, below(client, 8) ? below(client, 200) : draw(client));
        return 8;
    case LOAD_PART:
        put_number(body, client->token);
        put_number(body + 8, below(client, 10) ? client->load_rows : draw(client));
        put_rects(client, body + 16, n);
        memset(body + 16 + 32 * n, 7, 8 * n);
        client->load_rows += n;
        return 16 + 40 * n;
    case LOAD_END: case LOAD_ABORT:
        put_number(body, client->token);
        return 8;
    default:
        return 0;
    }
}

/* ---- one round ------------------------------------------------------------------------------------------- */

static size_t make_request(struct client *client, uint8_t *bytes)
{
    unsigned op = 1 + (unsigned)below(client, LOAD_ABORT);
    uint32_t argument = below(client, 20) ? (uint32_t)below(client, 100) : (uint32_t)draw(client);
    size_t size = 8 + fill_body(client, op, bytes + 8);

    bytes[0] = (uint8_t)op;
    bytes[1] = 1;
    bytes[2] = bytes[3] = 0;
    memcpy(bytes + 4, &argument, 4);
    if (below(client, 8) == 0) /* cut it, or let it be longer than it says */
        size = below(client, size + 40);
    for (size_t hits = below(client, 12) ? 0 : 1 + below(client, 6); size && hits > 0; hits--)
        bytes[below(client, size)] = (uint8_t)draw(client);
    return size;
}

static void check_answer(struct client *client, unsigned op)
{
    struct l5_reply *reply = &client->reply;

    CHECK(reply->size <= reply->limit && reply->size <= reply->capacity);
    if (op == SEARCH || op == SEARCH_MANY)
        CHECK(reply->size % 8 == 0);
    if (op == LOAD_BEGIN)
        memcpy(&client->token, reply->data, 8);
    if (op == STATS)
        CHECK(reply->size == 88 + 8 * RT_SERVICE_OPERATIONS);
    for (size_t i = 0, sum = 0; i < reply->size; i++) /* all of it was written (memory sanitizer) */
        CHECK((sum += reply->data[i]) < SIZE_MAX);
}

static void ask(struct client *client)
{
    static _Thread_local uint8_t scratch[1 << 14];
    size_t size = make_request(client, scratch);
    uint8_t *exact = malloc(size ? size : 1);
    struct l5_request request = {.data = exact, .size = size, .worker = client->worker};
    int rc;

    CHECK(exact);
    memcpy(exact, scratch, size);
    client->failed = 0;
    client->reply.size = 0;
    client->reply.limit = below(client, 20) ? 1 << 20 : 1024 + below(client, 2048);
    rc = rt_service_handle(client->service, &request, &client->reply);
    if (rc == 0) {
        CHECK(!client->failed);
        check_answer(client, exact[0]);
        client->answered++;
    } else {
        CHECK(client->failed || rc == -EMSGSIZE);
        client->refused++;
    }
    free(exact);
    if (below(client, 4) == 0) { /* begin again with no room at all */
        free(client->reply.data);
        client->reply.data = NULL;
        client->reply.capacity = 0;
    }
}

static void *run(void *argument)
{
    struct client *client = argument;

    client->reply = (struct l5_reply){.grow = grow, .flush = flush, .fail = fail, .owner = client};
    client->reply.data = malloc(1);
    for (size_t i = 0; i < client->rounds; i++)
        ask(client);
    free(client->reply.data);
    return NULL;
}

int main(int argc, char **argv)
{
    struct client clients[THREADS] = {0};
    pthread_t threads[THREADS];
    struct rt_service *service;
    struct rtree *tree;
    char message[200] = "";
    size_t n, answered = 0, refused = 0;

    CHECK(argc == 4);
    n = strcmp(argv[1], "threads") == 0 ? THREADS : 1;
    CHECK(rt_create(&tree, rt_nodes_for(2000)) == 0);
    CHECK(rt_service_create(&service, tree, THREADS - 1) == 0); /* the last thread counts as the event loop */
    for (size_t i = 0; i < n; i++) {
        clients[i] = (struct client){.service = service, .worker = (uint32_t)i, .rounds = strtoul(argv[3], NULL, 10),
                                     .state = strtoull(argv[2], NULL, 10) * 1000 + i};
        CHECK(pthread_create(&threads[i], NULL, run, &clients[i]) == 0);
    }
    for (size_t i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        answered += clients[i].answered;
        refused += clients[i].refused;
    }
    if (rt_check(tree, message, sizeof message)) {
        fprintf(stderr, "the tree is damaged: %s\n", message);
        return 1;
    }
    printf("%zu answered, %zu refused, %llu in the tree\n", answered, refused, (unsigned long long)rt_size(tree));
    rt_service_destroy(service);
    rt_destroy(tree);
    return 0;
}
