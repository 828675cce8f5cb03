/* The R-tree's handler: any bytes as a request, one after another on one tree, against a list.
 *
 * The tree has to hold what the list holds, whatever else is asked in between: counts and searches
 * are compared, the tree's own check runs at the end. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>

#include "input.h"
#include "l5_handler.h"
#include "service_handler.h"

enum { ROWS_MAX = 4096, BODY_MAX = 4096, REPLY_MAX = 1 << 17, FULL_NODES = 24 };

struct row {
    double rect[4];
    uint64_t id;
};

static struct {
    struct rtree *tree;
    struct rt_service *service;
    struct row rows[ROWS_MAX];
    size_t count;
    struct row load[ROWS_MAX]; /* of the load that is under way */
    size_t loaded;
    uint64_t token;
    int failed;
    int unknown; /* the last failure was that there is no such load */
    struct l5_reply reply;
} world;

static int grow(struct l5_reply *reply, size_t more)
{
    size_t wanted = reply->size + more;

    if (wanted > reply->limit)
        return -EMSGSIZE;
    reply->data = realloc(reply->data, wanted ? wanted : 1); /* no byte more than was asked for */
    CHECK(reply->data);
    reply->capacity = wanted;
    return 0;
}

static int flush(struct l5_reply *reply)
{
    (void)reply;
    return 0;
}

static int fail(struct l5_reply *reply, const char *type, const char *message)
{
    static const char *const known[] = {"ValueError", "TreeFull", "IndexError", "BusyError", "UnknownLoad"};

    (void)reply;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        world.failed |= !strcmp(type, known[i]);
    world.unknown = !strcmp(type, "UnknownLoad");
    CHECK(world.failed && *message);
    return -EIO;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    return 0;
}

/* ---- the list --------------------------------------------------------------------------------- */

static int meets(const double a[4], const double b[4])
{
    return a[0] <= b[2] && a[2] >= b[0] && a[1] <= b[3] && a[3] >= b[1];
}

static int same(const double a[4], const double b[4])
{
    return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3];
}

static void add(const uint8_t *rect, const uint8_t *id)
{
    struct row *row = &world.rows[world.count++];

    CHECK(world.count <= ROWS_MAX);
    memcpy(row->rect, rect, 32);
    memcpy(&row->id, id, 8);
}

static int take_out(const uint8_t *rect, const uint8_t *id)
{
    double wanted[4];
    uint64_t number;

    memcpy(wanted, rect, 32);
    memcpy(&number, id, 8);
    for (size_t i = 0; i < world.count; i++)
        if (world.rows[i].id == number && same(world.rows[i].rect, wanted)) {
            world.rows[i] = world.rows[--world.count];
            return 1;
        }
    return 0;
}

/* How many meet the query, and the sum of their ids. */
static size_t found(const uint8_t *rect, uint64_t *sum)
{
    double query[4];
    size_t count = 0;

    memcpy(query, rect, 32);
    *sum = 0;
    for (size_t i = 0; i < world.count; i++)
        if (meets(world.rows[i].rect, query)) {
            *sum += world.rows[i].id;
            count++;
        }
    return count;
}

/* ---- an answer that is no error ----------------------------------------------------------------- */

static uint64_t answered(void)
{
    uint64_t number;

    CHECK(world.reply.size == 8);
    memcpy(&number, world.reply.data, 8);
    return number;
}

static void check_search(const uint8_t *body)
{
    uint64_t sum, got = 0, id;
    size_t count = found(body, &sum);

    CHECK(world.reply.size == 8 * count);
    for (size_t i = 0; i < count; i++) {
        memcpy(&id, world.reply.data + 8 * i, 8);
        got += id;
    }
    CHECK(got == sum);
}

static void check_many(const uint8_t *body, size_t n)
{
    uint64_t begin, end, sum;

    CHECK(world.reply.size >= 8 * (n + 1));
    for (size_t i = 0; i < n; i++) {
        memcpy(&begin, world.reply.data + 8 * i, 8);
        memcpy(&end, world.reply.data + 8 * (i + 1), 8);
        CHECK(end - begin == found(body + 32 * i, &sum));
    }
    memcpy(&end, world.reply.data + 8 * n, 8);
    CHECK(world.reply.size == 8 * (n + 1 + end));
}

/* Rows that came for the load: rectangles, then ids. */
static void note_part(const uint8_t *body, size_t n)
{
    for (size_t i = 0; i < n && world.loaded < ROWS_MAX; i++) {
        struct row *row = &world.load[world.loaded++];

        memcpy(row->rect, body + 32 * i, 32);
        memcpy(&row->id, body + 32 * n + 8 * i, 8);
    }
}

static void take_load(void)
{
    for (size_t i = 0; i < world.loaded; i++)
        add((const uint8_t *)world.load[i].rect, (const uint8_t *)&world.load[i].id);
    world.loaded = 0;
}

static void check(unsigned op, uint32_t argument, const uint8_t *body, size_t size)
{
    uint64_t sum;
    size_t n = size / 40;

    switch (op) {
    case 1: check_search(body); break;
    case 2: CHECK(answered() == found(body, &sum)); break;
    case 3: CHECK(world.reply.size == 16 * (argument < world.count ? argument : world.count)); break;
    case 4: check_many(body, size / 32); break;
    case 5: add(body, body + 32); break;
    case 6:
        for (size_t i = 0; i < n; i++)
            add(body + 32 * i, body + 32 * n + 8 * i);
        break;
    case 7: CHECK(answered() == (uint64_t)take_out(body, body + 32)); break;
    case 8:
        sum = answered();
        CHECK(sum == (uint64_t)take_out(body, body + 64));
        if (sum)
            add(body + 32, body + 64);
        break;
    case 9: CHECK(world.reply.size == (world.count ? 32 : 0)); break;
    case 10: CHECK(world.reply.size == 88 + 8 * RT_SERVICE_OPERATIONS); break;
    case 11: CHECK(world.reply.size % 32 == 0); break;
    case 12: world.token = answered(); world.loaded = 0; break;
    case 13: note_part(body + 16, (size - 16) / 40); break;
    case 14: take_load(); break;
    case 15: world.loaded = 0; break;
    default: CHECK(!"an operation that there is not was answered");
    }
}

/* ---- a request -------------------------------------------------------------------------------------- */

/* Rectangles of small whole numbers, so that some meet; the input's own bytes, if it likes, as they are. */
static void tame(uint8_t *body, size_t rects)
{
    for (size_t i = 0; i < rects; i++) {
        uint8_t *at = body + 32 * i;
        double rect[4] = {at[0], at[8], at[0] + at[16] % 16, at[8] + at[24] % 16};

        memcpy(at, rect, sizeof(rect));
    }
}

static size_t body_for(struct input *input, unsigned op, uint8_t *body)
{
    static const uint8_t rects[] = {0, 1, 1, 1, 0, 1, 0, 1, 2}, extra[] = {0, 0, 0, 0, 0, 8, 0, 8, 8};
    size_t n = take8(input) % 60, bytes;

    if (op < 9 && op != 4 && op != 6)
        n = rects[op];
    else if (op != 4 && op != 6 && op != 13)
        n = 0;
    bytes = 32 * n + (op == 6 || op == 13 ? 8 * n : op < 9 ? extra[op] : op == 12 || op > 13 ? 8 : 0);
    if (op == 13)
        bytes += 16;
    take_bytes(input, body, bytes);
    tame(op == 13 ? body + 16 : body, n);
    if (op == 12)
        memset(body + 1, 0, 7);
    if (op >= 13) /* a number that no input can know */
        memcpy(body, &world.token, 8);
    if (op == 13)
        memcpy(body + 8, &(uint64_t){world.loaded}, 8);
    return bytes;
}

static size_t make(struct input *input, uint8_t *request)
{
    uint8_t how = take8(input);
    uint32_t argument = how & 64 ? take32(input) : take8(input);
    size_t size;

    if (how & 128) { /* the bytes as they are */
        size = take16(input) % (BODY_MAX + 1);
        if (size > input->left)
            size = input->left;
        take_bytes(input, request, size);
        return size;
    }
    request[0] = how % 16;
    request[1] = 1;
    request[2] = request[3] = 0;
    memcpy(request + 4, &argument, 4);
    size = 8 + body_for(input, how % 16, request + 8);
    for (unsigned hits = how & 32 ? take8(input) % 4 : 0; hits; hits--) /* and now something wrong with it */
        request[take16(input) % size] = take8(input);
    if (how & 16 && !(how & 32))
        size = take16(input) % (size + 41);
    return size;
}

static void ask(struct input *input)
{
    static uint8_t scratch[BODY_MAX + 64];
    size_t size = make(input, scratch);
    uint8_t *exact = malloc(size ? size : 1); /* so that reading beyond it is seen */
    struct l5_request request = {.data = exact, .size = size};
    uint32_t argument = 0;
    int rc;

    CHECK(exact);
    memcpy(exact, scratch, size);
    world.failed = 0;
    world.reply.size = 0;
    rc = rt_service_handle(world.service, &request, &world.reply);
    if (size >= 8)
        memcpy(&argument, exact + 4, 4);
    if (!rc) {
        CHECK(!world.failed && size >= 8 && world.reply.size <= world.reply.limit);
        check(exact[0], argument, exact + 8, size - 8);
    } else {
        CHECK(world.failed ? rc == -EIO : rc == -EMSGSIZE);
        if (size == 16 && exact[0] == 14 && world.failed && !world.unknown) /* it took the load, and could not */
            world.loaded = 0;
    }
    free(exact);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    char message[200] = "";

    world.count = world.loaded = 0;
    world.token = 0;
    CHECK(!rt_create(&world.tree, FULL_NODES));
    CHECK(!rt_service_create(&world.service, world.tree, 1));
    world.reply = (struct l5_reply){.grow = grow, .flush = flush, .fail = fail, .limit = REPLY_MAX};
    if (take8(&input) & 1)
        world.reply.limit = 512;
    while (input.left)
        ask(&input);
    CHECK(rt_size(world.tree) == world.count);
    if (rt_check(world.tree, message, sizeof(message))) {
        fprintf(stderr, "the tree is damaged: %s\n", message);
        abort();
    }
    rt_service_destroy(world.service);
    rt_destroy(world.tree);
    free(world.reply.data);
    return 0;
}
