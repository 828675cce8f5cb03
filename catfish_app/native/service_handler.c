/* The R-tree answers requests: decoding with every length checked, the tree, the answer.
 *
 *   request:  | op u8 | version u8 | 0 u16 | argument u32 | body: rectangles, ids ... |     see catfish_app/_wire.py
 *
 * l5 hands us a private copy, aligned to 16 bytes, so the body is read in place, and the tree writes what it finds into the
 * reply's buffer itself: a search copies nothing. If that buffer is too small the search is done again with
 * more room, rather than in two steps that might see different trees; the service then sends a long answer in segments
 * that end where an id does. Threads share the tree, which takes care of itself, the load (service_load.c) and
 * nothing else: counts are per thread.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "rt_view.h"
#include "service_internal.h"

#define VERSION 1
#define STATS_SUMMARY 1 /* argument of STATS */
#define HEAD_BYTES 8

enum op {
    REFUSED,
    SEARCH,
    COUNT,
    NEAREST,
    SEARCH_MANY,
    INSERT,
    INSERT_MANY,
    DELETE,
    UPDATE,
    BOUNDS,
    STATS,
    LEVEL_RECTS,
    LOAD_BEGIN,
    LOAD_PART,
    LOAD_END,
    LOAD_ABORT,
};

_Static_assert(LOAD_ABORT + 1 == RT_SERVICE_OPERATIONS, "each operation is counted");

/* ---- errors --------------------------------------------------------------------------------- */

int service_refuse(struct call *call, const char *type, const char *format, ...)
{
    char message[320];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return l5_reply_error(call->reply, type, message);
}

int service_bad_size(struct call *call)
{
    return service_refuse(call, "ValueError", "a body of %zu bytes does not fit this operation", call->size);
}

static const char *kind_of(int query)
{
    return query ? "query" : "rectangle";
}

int service_bad_rect(struct call *call, const double rect[4], int query)
{
    char why[160];

    rt_rect_explain(rect, query, why, sizeof why);
    return service_refuse(call, "ValueError", "not a valid %s: %s", kind_of(query), why);
}

/* rects[row] is wrong; the client knows it as row first + row. */
int service_bad_row(struct call *call, const double *rects, size_t row, size_t first, int query)
{
    char why[160];

    rt_rect_explain(rects + 4 * row, query, why, sizeof why);
    return service_refuse(call, "ValueError", "row %zu: not a valid %s: %s", first + row, kind_of(query), why);
}

static int full(struct call *call)
{
    return service_refuse(call, "TreeFull", "the tree is full: its arena has %u nodes; make it with a greater capacity",
                          call->service->capacity_nodes);
}

int service_full_row(struct call *call, size_t row)
{
    return service_refuse(call, "TreeFull",
                          "row %zu: the tree is full: its arena has %u nodes; make it with a greater capacity "
                          "(nothing was inserted)",
                          row, call->service->capacity_nodes);
}

int service_answer_number(struct call *call, uint64_t number)
{
    return l5_reply_append(call->reply, &number, sizeof number);
}

/* ---- changing ------------------------------------------------------------------------------------ */

static int insert(struct call *call)
{
    int rc;

    if (call->size != ROW_BYTES)
        return service_bad_size(call);
    rc = rt_insert(call->tree, doubles(call), number_at(call, RECT_BYTES));
    if (rc == -EINVAL)
        return service_bad_rect(call, doubles(call), 0);
    return rc == -ENOSPC ? full(call) : rc;
}

static int insert_many(struct call *call)
{
    size_t n = call->size / ROW_BYTES, row;
    const uint64_t *ids = (const uint64_t *)(const void *)(call->body + n * RECT_BYTES);
    int rc;

    if (call->size % ROW_BYTES)
        return service_bad_size(call);
    rc = rt_insert_many(call->tree, doubles(call), ids, n, &row);
    if (rc == -EINVAL)
        return service_bad_row(call, doubles(call), row, 0, 0);
    return rc == -ENOSPC ? service_full_row(call, row) : rc;
}

/* Answer 1 if there was such an entry, 0 if not. */
static int answer_whether(struct call *call, int rc)
{
    if (rc == -ENOSPC)
        return full(call);
    return rc && rc != -ENOENT ? rc : service_answer_number(call, rc == 0);
}

static int delete(struct call *call)
{
    if (call->size != ROW_BYTES)
        return service_bad_size(call);
    if (rt_rect_check(doubles(call)))
        return service_bad_rect(call, doubles(call), 0);
    return answer_whether(call, rt_delete(call->tree, doubles(call), number_at(call, RECT_BYTES)));
}

static int update(struct call *call)
{
    const double *rects = doubles(call);

    if (call->size != 2 * RECT_BYTES + ID_BYTES)
        return service_bad_size(call);
    for (size_t row = 0; row < 2; row++)
        if (rt_rect_check(rects + 4 * row))
            return service_bad_row(call, rects, row, 0, 0);
    return answer_whether(call, rt_update(call->tree, rects, number_at(call, 2 * RECT_BYTES), rects + 4));
}

/* ---- asking -------------------------------------------------------------------------------------- */

static int bounds(struct call *call)
{
    double box[4];

    if (call->size)
        return service_bad_size(call);
    return rt_bounds(call->tree, box) ? 0 : l5_reply_append(call->reply, box, sizeof box);
}

/* What STATS answers: `STATS` of catfish_app/_wire.py. */
struct stats_answer {
    uint64_t entries;
    uint32_t height, leaf_nodes, inner_nodes, capacity_nodes, free_nodes, workers;
    uint64_t arena_bytes;
    double leaf_fill, inner_fill;
    char kernel[16];
    uint32_t connections, busy_millionths;
    uint64_t uptime_ns;
    uint64_t counts[RT_SERVICE_OPERATIONS];
};

_Static_assert(sizeof(struct stats_answer) == 88 + 8 * RT_SERVICE_OPERATIONS, "no padding travels");

static void sum_counts(const struct rt_service *service, uint64_t sums[RT_SERVICE_OPERATIONS])
{
    for (uint32_t worker = 0; worker <= service->workers; worker++)
        for (unsigned op = 0; op < RT_SERVICE_OPERATIONS; op++)
            sums[op] += __atomic_load_n(&service->counts[worker].of[op], __ATOMIC_RELAXED);
}

static int stats(struct call *call)
{
    const struct rt_service *service = call->service;
    struct rt_stats shape;
    struct stats_answer answer = {.workers = service->workers, .uptime_ns = now_ns() - service->started_ns};
    int rc;

    if (call->size)
        return service_bad_size(call);
    /* Who looks again and again is not meant to have every node visited each time. */
    rc = call->argument == STATS_SUMMARY ? rt_summary(call->tree, &shape) : rt_stats(call->tree, &shape);
    if (rc)
        return rc;
    answer.entries = shape.entries;
    answer.height = shape.height;
    answer.leaf_nodes = shape.leaf_nodes;
    answer.inner_nodes = shape.inner_nodes;
    answer.capacity_nodes = shape.capacity_nodes;
    answer.free_nodes = shape.free_nodes;
    answer.arena_bytes = shape.arena_bytes;
    answer.leaf_fill = shape.leaf_fill;
    answer.inner_fill = shape.inner_fill;
    snprintf(answer.kernel, sizeof answer.kernel, "%s", rt_kernel_name(call->tree));
    answer.connections = __atomic_load_n(&service->connections, __ATOMIC_RELAXED);
    answer.busy_millionths = __atomic_load_n(&service->busy_millionths, __ATOMIC_RELAXED);
    sum_counts(service, answer.counts);
    return l5_reply_append(call->reply, &answer, sizeof answer);
}

/* ---- the handler --------------------------------------------------------------------------------- */

static int (*const operations[RT_SERVICE_OPERATIONS])(struct call *) = {
    [SEARCH] = service_search,
    [COUNT] = service_count,
    [NEAREST] = service_nearest,
    [SEARCH_MANY] = service_search_many,
    [INSERT] = insert,
    [INSERT_MANY] = insert_many,
    [DELETE] = delete,
    [UPDATE] = update,
    [BOUNDS] = bounds,
    [STATS] = stats,
    [LEVEL_RECTS] = service_level_rects,
    [LOAD_BEGIN] = service_load_begin,
    [LOAD_PART] = service_load_part,
    [LOAD_END] = service_load_end,
    [LOAD_ABORT] = service_load_abort,
};

/* Only this worker writes its counts, so there is no need for an atomic addition. */
static void tally(struct rt_service *service, uint32_t worker, unsigned op)
{
    uint64_t *word = &service->counts[worker < service->workers ? worker : service->workers].of[op];

    __atomic_store_n(word, __atomic_load_n(word, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

int rt_service_handle(void *state, const struct l5_request *request, struct l5_reply *reply)
{
    struct rt_service *service = state;
    struct call call = {.service = service, .tree = service->tree, .reply = reply};
    const uint8_t *head = request->data;

    if (request->size < HEAD_BYTES) {
        tally(service, request->worker, REFUSED);
        return service_refuse(&call, "ValueError", "a request has at least 8 bytes, this one has %zu", request->size);
    }
    if (head[0] == 0 || head[0] >= RT_SERVICE_OPERATIONS || head[1] != VERSION || head[2] || head[3]) {
        tally(service, request->worker, REFUSED);
        return service_refuse(&call, "ValueError", "operation %u of version %u is not known; this server speaks version %u",
                              head[0], head[1], VERSION);
    }
    tally(service, request->worker, head[0]);
    memcpy(&call.argument, head + 4, sizeof call.argument);
    call.body = head + HEAD_BYTES;
    call.size = request->size - HEAD_BYTES;
    return operations[head[0]](&call);
}

/* ---- life ---------------------------------------------------------------------------------------- */

int rt_service_create(struct rt_service **out, struct rtree *tree, uint32_t workers)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    size_t bytes = sizeof(struct rt_service) + (workers + (size_t)1) * sizeof(struct counts);
    struct rt_stats shape;
    struct rt_service *service = aligned_alloc(64, (bytes + 63) / 64 * 64);
    int rc = service ? rt_stats(tree, &shape) : -ENOMEM;

    if (rc) {
        free(service);
        return rc;
    }
    memset(service, 0, bytes);
    service->tree = tree;
    service->workers = workers;
    service->capacity_nodes = shape.capacity_nodes;
    service->started_ns = now_ns();
    pthread_mutex_init(&service->mutex, NULL);
    *out = service;
    return 0;
#else
    (void)out, (void)tree, (void)workers;
    return -ENOTSUP;
#endif
}

void rt_service_destroy(struct rt_service *service)
{
    if (!service)
        return;
    free(service->load.rects);
    free(service->load.ids);
    pthread_mutex_destroy(&service->mutex);
    free(service);
}

void rt_service_counts(const struct rt_service *service, uint64_t counts[RT_SERVICE_OPERATIONS])
{
    memset(counts, 0, RT_SERVICE_OPERATIONS * sizeof *counts);
    sum_counts(service, counts);
}

void rt_service_report(struct rt_service *service, uint32_t connections, uint32_t busy_millionths)
{
    __atomic_store_n(&service->connections, connections, __ATOMIC_RELAXED);
    __atomic_store_n(&service->busy_millionths, busy_millionths, __ATOMIC_RELAXED);
}
