/* Search and count: the attempts of the kernels, repeated until one was not disturbed. */
#include <stdlib.h>

#include "rt_kernel.h"

#define RT_EACH_IDS 4096

static bool query_valid(const double query[4])
{
    return query[LO_X] <= query[HI_X] && query[LO_Y] <= query[HI_Y]; /* false for NaN */
}

/* A writer that is at work now will be done in a microsecond or two, unless it was preempted. */
void rt_wait_a_little(unsigned tries)
{
    for (unsigned i = 0; i < 1U << (tries < 8 ? tries : 8); i++)
        rt_pause();
}

static int search_valid(struct rtree *tree, const double query[4], uint64_t *ids, size_t capacity, size_t *total)
{
    for (unsigned tries = 0; tries < RT_READ_TRIES; tries++) {
        if (tree->kernel->search(tree, query, ids, capacity, total) == 0)
            return 0;
        rt_wait_a_little(tries);
    }
    rt_lock(tree);
    int error = tree->kernel->search(tree, query, ids, capacity, total);
    rt_unlock(tree);
    return error;
}

int rt_search(struct rtree *tree, const double query[4], uint64_t *ids, size_t capacity, size_t *total)
{
    return query_valid(query) ? search_valid(tree, query, ids, capacity, total) : -EINVAL;
}

int rt_count(struct rtree *tree, const double query[4], uint64_t *count)
{
    if (!query_valid(query))
        return -EINVAL;
    for (unsigned tries = 0; tries < RT_READ_TRIES; tries++) {
        if (tree->kernel->count(tree, query, count) == 0)
            return 0;
        rt_wait_a_little(tries);
    }
    rt_lock(tree);
    int error = tree->kernel->count(tree, query, count);
    rt_unlock(tree);
    return error;
}

static int hand_out(const uint64_t *ids, size_t total, size_t piece_ids,
                    int (*each)(void *context, const uint64_t *ids, size_t n, int last), void *context)
{
    size_t from = 0;
    for (;;) {
        size_t n = total - from < piece_ids ? total - from : piece_ids;
        bool last = from + n == total;
        int stop = each(context, ids + from, n, last);
        if (stop || last)
            return stop;
        from += n;
    }
}

int rt_search_each(struct rtree *tree, const double query[4], size_t piece_ids,
                   int (*each)(void *context, const uint64_t *ids, size_t n, int last), void *context)
{
    if (!query_valid(query) || piece_ids == 0)
        return -EINVAL;
    uint64_t few[RT_EACH_IDS], *ids = few, *more = NULL;
    size_t capacity = RT_EACH_IDS, total = 0;
    int error;
    while ((error = search_valid(tree, query, ids, capacity, &total)) == 0 && total > capacity) {
        free(more);
        capacity = total + total / 8; /* it may grow until the next attempt */
        ids = more = malloc(capacity * sizeof *ids);
        if (!ids)
            return -ENOMEM;
    }
    if (!error)
        error = hand_out(ids, total, piece_ids, each, context);
    free(more);
    return error;
}

int rt_search_many(struct rtree *tree, const double *queries, size_t n, uint64_t *offsets, uint64_t *ids,
                   size_t capacity, size_t *done)
{
    size_t used = 0;
    offsets[0] = 0;
    for (*done = 0; *done < n; ++*done) {
        size_t total = 0;
        int error = rt_search(tree, queries + 4 * *done, ids + used, capacity - used, &total);
        if (error)
            return error;
        if (total > capacity - used)
            return -ENOBUFS;
        used += total;
        offsets[*done + 1] = used;
    }
    return 0;
}
