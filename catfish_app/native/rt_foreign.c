/* A tree in memory that others own: the same traversals, compiled with their checks (see rt_traverse.h). */
#include <stdlib.h>

#include "rt_kernel.h"
#include "rt_foreign.h"

struct rt_foreign {
    struct rtree tree; /* without a mutex: no function here takes it */
};

/* What is fixed when a tree is made. The rest of the header is checked whenever it is used. */
uint32_t rt_header_nodes(const struct rt_header *header, uint64_t bytes)
{
    if (bytes < rt_arena_bytes(1) || RT_GET(header->magic) != RT_MAGIC || RT_GET(header->format) != RT_FORMAT ||
        RT_GET(header->node_bytes) != RT_NODE_BYTES || RT_GET(header->leaf_max) != RT_LEAF_MAX ||
        RT_GET(header->inner_max) != RT_INNER_MAX)
        return 0;
    uint32_t capacity = RT_GET(header->capacity);
    uint64_t room = (bytes - RT_HEADER_BYTES) / RT_NODE_BYTES;
    return capacity <= RT_MAX_NODES && capacity <= room ? capacity : 0;
}

int rt_foreign_open(struct rt_foreign **out, const void *memory, size_t bytes)
{
    if (!memory || (uintptr_t)memory % L5_PAGE_LINE_BYTES)
        return -EINVAL;
    const struct rt_header *header = memory;
    uint32_t reach = rt_header_nodes(header, bytes);
    if (reach == 0)
        return -EILSEQ;
    const struct rt_kernel *kernel = rt_kernel_named(getenv("CATFISH_KERNEL"));
    if (!kernel)
        return -ENOTSUP;
    struct rt_foreign *foreign = calloc(1, sizeof *foreign);
    if (!foreign)
        return -ENOMEM;
    foreign->tree.header = (struct rt_header *)(uintptr_t)memory; /* nobody writes through this */
    foreign->tree.nodes = (struct rt_node *)((uintptr_t)memory + RT_HEADER_BYTES);
    foreign->tree.kernel = kernel->foreign;
    foreign->tree.reach = reach;
    *out = foreign;
    return 0;
}

void rt_foreign_close(struct rt_foreign *foreign)
{
    free(foreign);
}

int rt_foreign_search(struct rt_foreign *foreign, const double query[4], uint64_t *ids, size_t capacity, size_t *total)
{
    return rt_search(&foreign->tree, query, ids, capacity, total);
}

int rt_foreign_search_many(struct rt_foreign *foreign, const double *queries, size_t n, uint64_t *offsets, uint64_t *ids,
                        size_t capacity, size_t *done)
{
    return rt_search_many(&foreign->tree, queries, n, offsets, ids, capacity, done);
}

int rt_foreign_count(struct rt_foreign *foreign, const double query[4], uint64_t *count)
{
    return rt_count(&foreign->tree, query, count);
}

int rt_foreign_nearest(struct rt_foreign *foreign, const double query[4], size_t k, uint64_t *ids, double *distances2,
                    size_t *found)
{
    return rt_nearest(&foreign->tree, query, k, ids, distances2, found);
}

uint64_t rt_foreign_size(const struct rt_foreign *foreign)
{
    uint64_t entries = rt_size(&foreign->tree), most = (uint64_t)foreign->tree.reach * RT_LEAF_MAX;
    return entries < most ? entries : most;
}

uint64_t rt_foreign_retries(const struct rt_foreign *foreign)
{
    return __atomic_load_n(&foreign->tree.retries, __ATOMIC_RELAXED);
}
