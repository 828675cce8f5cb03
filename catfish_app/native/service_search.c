/* What searches: the tree writes what it finds into the reply's buffer itself.
 *
 * If that is too small the search is done again with more room, rather than in two steps that might see different
 * trees. The service sends a long answer in segments that end where an id does (record_bytes).
 */
#include "service_internal.h"

#define FEW_BYTES 2048 /* the room that a search begins with, at least */

/* ---- room in the reply ------------------------------------------------------------------------ */

/* Make the buffer hold `bytes` in all, of which the first `kept` are written. 0, -EMSGSIZE or -ENOMEM. */
static int hold(struct l5_reply *reply, size_t kept, size_t bytes)
{
    if (bytes > reply->limit)
        return -EMSGSIZE;
    reply->size = kept;
    return l5_reply_reserve(reply, bytes - kept);
}

/* How many items of so many bytes fit behind the first `offset` bytes. */
static size_t fits(const struct l5_reply *reply, size_t offset, size_t item_bytes)
{
    size_t end = reply->capacity < reply->limit ? reply->capacity : reply->limit;

    return end > offset ? (end - offset) / item_bytes : 0;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Room for a bit more than was found, as much of it as the client takes. */
static int hold_more(struct l5_reply *reply, size_t kept, size_t needed)
{
    return needed > reply->limit ? -EMSGSIZE : hold(reply, kept, smaller(needed + needed / 8, reply->limit));
}

/* ---- searching ---------------------------------------------------------------------------------- */

int service_search(struct call *call)
{
    struct l5_reply *reply = call->reply;
    size_t total, capacity;
    int rc;

    if (call->size != RECT_BYTES)
        return service_bad_size(call);
    reply->record_bytes = ID_BYTES;
    rc = hold(reply, 0, smaller(FEW_BYTES, reply->limit));
    while (!rc) {
        capacity = fits(reply, 0, ID_BYTES);
        if (rt_search(call->tree, doubles(call), (uint64_t *)(void *)reply->data, capacity, &total))
            return service_bad_rect(call, doubles(call), 1);
        if (total <= capacity) {
            reply->size = total * ID_BYTES;
            return 0;
        }
        rc = hold_more(reply, 0, total * ID_BYTES);
    }
    return rc;
}

int service_count(struct call *call)
{
    uint64_t found;

    if (call->size != RECT_BYTES)
        return service_bad_size(call);
    if (rt_count(call->tree, doubles(call), &found))
        return service_bad_rect(call, doubles(call), 1);
    return service_answer_number(call, found);
}

/* Ids, then squared distances: the tree writes each behind the room for k of the other. */
int service_nearest(struct call *call)
{
    struct l5_reply *reply = call->reply;
    size_t k = smaller(call->argument, (size_t)rt_size(call->tree)), found;
    uint64_t *ids;
    int rc;

    if (call->size != RECT_BYTES)
        return service_bad_size(call);
    if (rt_rect_check(doubles(call)))
        return service_bad_rect(call, doubles(call), 0);
    if (!k)
        return 0;
    rc = hold(reply, 0, k * 2 * ID_BYTES);
    if (rc)
        return rc;
    ids = (uint64_t *)(void *)reply->data;
    rc = rt_nearest(call->tree, doubles(call), k, ids, (double *)(void *)(ids + k), &found);
    if (rc)
        return rc;
    memmove(ids + found, ids + k, found * sizeof *ids);
    reply->size = found * 2 * ID_BYTES;
    return 0;
}

/* Offsets stand at the start, ids behind them. A pass that runs out of room is followed by one for the queries that are left. */
int service_search_many(struct call *call)
{
    struct l5_reply *reply = call->reply;
    size_t n = call->size / RECT_BYTES, first = 0, used = 0, start = (n + 1) * ID_BYTES, done;
    int rc;

    if (call->size % RECT_BYTES)
        return service_bad_size(call);
    rc = hold(reply, 0, start);
    while (!rc) {
        uint64_t *offsets = (uint64_t *)(void *)reply->data, *ids = offsets + n + 1;
        int error = rt_search_many(call->tree, doubles(call) + 4 * first, n - first, offsets + first, ids + used,
                                   fits(reply, start, ID_BYTES) - used, &done);

        if (error == -EINVAL)
            return service_bad_row(call, doubles(call), first + done, 0, 1);
        for (size_t i = first; i <= first + done; i++)
            offsets[i] += used;
        first += done;
        used = (size_t)offsets[first];
        reply->size = start + used * ID_BYTES;
        if (error != -ENOBUFS)
            return error;
        rc = reply->capacity >= reply->limit
                 ? -EMSGSIZE
                 : hold(reply, reply->size, smaller(2 * (reply->capacity + FEW_BYTES), reply->limit));
    }
    return rc;
}

/* ---- nodes ------------------------------------------------------------------------------------- */

int service_level_rects(struct call *call)
{
    struct l5_reply *reply = call->reply;
    struct rt_stats shape;
    size_t total, capacity;
    int rc = hold(reply, 0, smaller(FEW_BYTES, reply->limit));

    if (call->size)
        return service_bad_size(call);
    while (!rc) {
        capacity = fits(reply, 0, RECT_BYTES);
        if (rt_level_rects(call->tree, call->argument, (double *)(void *)reply->data, capacity, &total)) {
            rt_stats(call->tree, &shape);
            return service_refuse(call, "IndexError", "level is %u; the tree has %u levels", call->argument,
                                  shape.height);
        }
        if (total <= capacity) {
            reply->size = total * RECT_BYTES;
            return 0;
        }
        rc = hold_more(reply, 0, total * RECT_BYTES);
    }
    return rc;
}
