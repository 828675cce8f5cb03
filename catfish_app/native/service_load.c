/* A bulk load that comes in parts: rows wait here until all have come, then the tree takes them at once.
 *
 *   BEGIN total --> token     PART token first rows ...     END token --> packed, or inserted
 *
 * One load at a time, so that clients cannot have the server hold more than one arena's worth of rows. A client that went away leaves
 * its load behind; the next BEGIN after RT_SERVICE_LOAD_IDLE_S takes its place. The token keeps the two apart.
 */
#include <stdlib.h>

#include "service_internal.h"

static void drop(struct load *load)
{
    free(load->rects);
    free(load->ids);
    memset(load, 0, sizeof *load);
}

/* A number that no other load of this server had, nor, most likely, one of another server. Never 0. */
static uint64_t new_token(struct rt_service *service)
{
    uint64_t x = now_ns() + ++service->loads * UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return x ? x : 1;
}

static int begin_locked(struct call *call, uint64_t total)
{
    struct load *load = &call->service->load;
    uint64_t now = now_ns();

    if (load->token && now - load->used_ns < RT_SERVICE_LOAD_IDLE_S * UINT64_C(1000000000))
        return service_refuse(call, "BusyError", "another load is running; try again when it has ended");
    drop(load);
    /* Their pages are committed as they are written: an empty promise costs nothing. */
    load->rects = malloc((size_t)(total + 1) * RECT_BYTES);
    load->ids = malloc((size_t)(total + 1) * ID_BYTES);
    if (!load->rects || !load->ids) {
        drop(load);
        return -ENOMEM;
    }
    load->token = new_token(call->service);
    load->total = total;
    load->used_ns = now;
    return service_answer_number(call, load->token);
}

int service_load_begin(struct call *call)
{
    uint64_t most = (uint64_t)call->service->capacity_nodes * RT_LEAF_MAX, total;
    int rc;

    if (call->size != sizeof total)
        return service_bad_size(call);
    total = number_at(call, 0);
    if (total > most)
        return service_refuse(call, "TreeFull", "%llu rows do not fit: the tree has room for at most %llu",
                              (unsigned long long)total, (unsigned long long)most);
    pthread_mutex_lock(&call->service->mutex);
    rc = begin_locked(call, total);
    pthread_mutex_unlock(&call->service->mutex);
    return rc;
}

static int unknown(struct call *call)
{
    return service_refuse(call, "UnknownLoad", "there is no such load; it may have been idle for too long");
}

static int is_ours(const struct call *call, const struct load *load)
{
    return load->token && load->token == number_at(call, 0);
}

static int part_locked(struct call *call, size_t n)
{
    struct load *load = &call->service->load;
    const uint8_t *rows = call->body + 2 * sizeof(uint64_t);
    uint64_t first = number_at(call, sizeof(uint64_t));

    if (!is_ours(call, load))
        return unknown(call);
    if (first != load->count || n > load->total - load->count)
        return service_refuse(call, "ValueError", "rows %llu to %llu do not follow on %llu of %llu",
                              (unsigned long long)first, (unsigned long long)(first + n),
                              (unsigned long long)load->count, (unsigned long long)load->total);
    memcpy(load->rects + 4 * first, rows, n * RECT_BYTES);
    memcpy(load->ids + first, rows + n * RECT_BYTES, n * ID_BYTES);
    load->count += n;
    load->used_ns = now_ns();
    return 0;
}

int service_load_part(struct call *call)
{
    const size_t before = 2 * sizeof(uint64_t);
    size_t n = call->size >= before ? (call->size - before) / ROW_BYTES : 0;
    const double *rects = (const double *)(const void *)(call->body + before);
    int rc;

    if (call->size < before || (call->size - before) % ROW_BYTES)
        return service_bad_size(call);
    for (size_t row = 0; row < n; row++)
        if (rt_rect_check(rects + 4 * row))
            return service_bad_row(call, rects, row, (size_t)number_at(call, sizeof(uint64_t)), 0);
    pthread_mutex_lock(&call->service->mutex);
    rc = part_locked(call, n);
    pthread_mutex_unlock(&call->service->mutex);
    return rc;
}

/* Take the load out of the service, so that the tree is built with no lock held: 0, or what was refused. */
static int take(struct call *call, struct load *taken)
{
    struct load *load = &call->service->load;
    int rc = 0;

    pthread_mutex_lock(&call->service->mutex);
    if (is_ours(call, load)) {
        *taken = *load;
        memset(load, 0, sizeof *load);
    } else {
        rc = unknown(call);
    }
    pthread_mutex_unlock(&call->service->mutex);
    return rc;
}

static int build(struct call *call, const struct load *load)
{
    size_t row = 0;
    int rc, packed = rt_size(call->tree) == 0;

    if (load->count != load->total)
        return service_refuse(call, "ValueError", "only %llu of %llu rows have come", (unsigned long long)load->count,
                              (unsigned long long)load->total);
    rc = rt_bulk_load(call->tree, load->rects, load->ids, (size_t)load->count, 1.0, &row);
    if (rc == -EEXIST) {
        packed = 0; /* others may have inserted meanwhile */
        rc = rt_insert_many(call->tree, load->rects, load->ids, (size_t)load->count, &row);
    }
    if (rc == -ENOSPC)
        return service_full_row(call, row);
    return rc ? rc : service_answer_number(call, (uint64_t)packed);
}

int service_load_end(struct call *call)
{
    struct load load = {0};
    int rc;

    if (call->size != sizeof load.token)
        return service_bad_size(call);
    rc = take(call, &load);
    if (rc)
        return rc;
    rc = build(call, &load);
    drop(&load);
    return rc;
}

int service_load_abort(struct call *call)
{
    struct load load = {0};
    int rc;

    if (call->size != sizeof load.token)
        return service_bad_size(call);
    rc = take(call, &load);
    if (!rc)
        drop(&load);
    return rc;
}
