/* What is compiled once per instruction set. Internal.
 *
 * `search` and `count` make one optimistic attempt: -EAGAIN if a writer disturbed it, -EILSEQ (foreign only) if the memory
 * makes no sense. `choose` and the rest belong to the writer. Every kernel gives the same answers in the same order.
 */
#ifndef CATFISH_RT_KERNEL_H
#define CATFISH_RT_KERNEL_H

#include "rt_node.h"

#define RT_STACK (RT_MAX_HEIGHT * RT_INNER_MAX)

/* Queries that search_many runs in turn, and what each may find without being searched again by itself. */
#define RT_GROUP 8
#define RT_LANE_IDS 128
#define RT_REDO SIZE_MAX

/* How often in one search of a foreign tree to look once more at a node that is being written. */
#define RT_PATIENCE 256

struct rt_kernel {
    const char *name;
    const struct rt_kernel *foreign; /* the same for memory that others own */
    int (*search)(const struct rtree *tree, const double query[4], uint64_t *ids, size_t capacity, size_t *total);
    int (*count)(const struct rtree *tree, const double query[4], uint64_t *total);
    void (*search_group)(const struct rtree *tree, const double *queries, unsigned n, size_t *totals,
                         uint64_t ids[][RT_LANE_IDS]);
    unsigned (*choose)(const struct rt_node *node, struct rt_fbox box);
    uint64_t (*containing)(const struct rt_node *node, struct rt_fbox box);
    uint64_t (*meeting)(const struct rt_node *node, unsigned level, unsigned count, const double query[4], struct rt_fbox box);
};

/* rt_arena.c: the kernel of this name that runs here (NULL: the best), or NULL. */
const struct rt_kernel *rt_kernel_named(const char *name);

/* rt_search.c: let the writer finish, longer with every try. */
void rt_wait_a_little(unsigned tries);

/* rt_search.c: whether to make another attempt after this outcome, after a wait. A reader of a foreign tree gives up in the end:
 * there is no turn for it. */
bool rt_again(struct rtree *tree, int error, unsigned tries);

extern const struct rt_kernel rt_kernel_portable;
#if defined(__x86_64__)
#define RT_X86 1
extern const struct rt_kernel rt_kernel_avx2;
extern const struct rt_kernel rt_kernel_avx512;
#endif

#endif
