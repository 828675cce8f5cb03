/* Walks and the trees that they are for: made, asked, freed. */
#include "rt_walk_store.h"

int rt_walk_outcome(const struct rt_walk *walk)
{
    return walk->outcome;
}

size_t rt_walk_total(const struct rt_walk *walk)
{
    return walk->total;
}

const uint64_t *rt_walk_ids(const struct rt_walk *walk)
{
    return walk->kind == RT_WALK_NEAREST ? walk->best.ids : walk->ids;
}

const double *rt_walk_distances2(const struct rt_walk *walk)
{
    return walk->best.distances2;
}

int rt_walk_create(struct rt_walk **out, struct rt_remote *remote)
{
    struct rt_walk *walk = aligned_alloc(_Alignof(struct rt_walk), sizeof *walk);
    if (!walk)
        return -ENOMEM;
    memset(walk, 0, sizeof *walk);
    walk->remote = remote;
    *out = walk;
    return 0;
}

void rt_walk_destroy(struct rt_walk *walk)
{
    if (!walk)
        return;
    free(walk->visits);
    free(walk->todo);
    free(walk->branches);
    free(walk->table);
    free(walk->ids);
    free(walk->best.ids);
    free(walk->best.distances2);
    free(walk);
}

void rt_remote_close(struct rt_remote *remote)
{
    if (!remote)
        return;
    free(remote->cached_node);
    free(remote->cached_s);
    free(remote->pages);
    free(remote);
}

int rt_remote_open(struct rt_remote **out, const void *head, size_t head_bytes, uint64_t region_bytes, uint32_t cache_nodes)
{
    struct rt_header header;
    if (head_bytes < RT_REMOTE_HEAD_BYTES)
        return -EINVAL;
    memset(&header, 0, sizeof header);
    memcpy(&header, head, RT_REMOTE_HEAD_BYTES);
    uint32_t reach = rt_header_nodes(&header, region_bytes);
    const struct rt_kernel *kernel = rt_kernel_named(getenv("CATFISH_KERNEL"));
    if (reach == 0)
        return -EILSEQ;
    if (!kernel)
        return -ENOTSUP;
    struct rt_remote *remote = calloc(1, sizeof *remote);
    if (!remote)
        return -ENOMEM;
    remote->kernel = kernel;
    remote->reach = reach;
    remote->cache_nodes = cache_nodes;
    remote->cached_node = malloc((cache_nodes + (size_t)1) * sizeof *remote->cached_node);
    remote->cached_s = malloc((cache_nodes + (size_t)1) * sizeof *remote->cached_s);
    remote->pages = aligned_alloc(64, (cache_nodes + (size_t)1) * sizeof *remote->pages);
    if (!remote->cached_node || !remote->cached_s || !remote->pages) {
        rt_remote_close(remote);
        return -ENOMEM;
    }
    memset(remote->cached_node, 0xff, (cache_nodes + (size_t)1) * sizeof *remote->cached_node);
    *out = remote;
    return 0;
}

void rt_remote_counts(const struct rt_remote *remote, struct rt_walk_counts *counts)
{
    *counts = remote->counts;
}

uint64_t rt_remote_retries(const struct rt_remote *remote)
{
    return remote->counts.retries;
}
