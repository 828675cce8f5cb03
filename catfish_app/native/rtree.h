/* The R*-tree of catfish_app: public C interface.
 *
 * A tree of 2-D rectangles (doubles, closed: edges belong to them) with 64-bit ids, in one flat arena of
 * 1 KiB nodes that are addressed by index. The same (rectangle, id) pair may be stored several times.
 * A rectangle is four doubles in the order xmin, ymin, xmax, ymax: finite, min <= max. A query may
 * also be infinite, but not NaN.
 *
 * Every function returns 0 or -errno. -EINVAL: a rectangle is not valid; -ENOSPC: no node is left, and the
 * tree holds what it held before; -ENOENT: there is no such (rectangle, id).
 *
 * Threads. Any number of threads may call any function at any time, but rt_destroy. Writers take turns (a
 * mutex). Readers (search, count, nearest) take no lock: they validate what they read by the sequence words of
 * the nodes and start again when entries moved between nodes under them; a reader that was disturbed
 * RT_READ_TRIES times takes its turn among the writers, so every call ends. Guarantee: a reader finds,
 * exactly once, every rectangle that was there when it started and was not deleted or updated meanwhile; it
 * finds one that was inserted or deleted meanwhile at most once, and an updated one at its old or its new
 * place. What a call has written before another call started is seen by it.
 *
 * Nothing here knows of Python, and no function that is named for a single rectangle allocates.
 */
#ifndef CATFISH_RTREE_H
#define CATFISH_RTREE_H

#include <stddef.h>
#include <stdint.h>

#define RT_LEAF_MAX 21
#define RT_INNER_MAX 45
#define RT_NODE_BYTES 1024
#define RT_HEADER_BYTES 4096
#define RT_MAX_NODES 1073741824

struct rtree;

struct rt_stats {
    uint64_t entries;        /* rectangles in the tree */
    uint32_t height;         /* levels; 0: empty, 1: the root is a leaf */
    uint32_t leaf_nodes;
    uint32_t inner_nodes;
    uint32_t capacity_nodes; /* nodes that the arena can hold */
    uint32_t free_nodes;     /* nodes that are not in use */
    uint32_t spare;
    uint64_t arena_bytes;
    double leaf_fill;        /* mean share of used entries, 0 to 1 */
    double inner_fill;
};

/* Return how many nodes always suffice for so many rectangles, whatever their order of arrival. */
uint32_t rt_nodes_for(uint64_t entries);

/* Return the bytes of an arena of so many nodes. */
size_t rt_arena_bytes(uint32_t capacity_nodes);

/* Create an empty tree in memory of its own (private, huge pages where the kernel gives them). */
int rt_create(struct rtree **out, uint32_t capacity_nodes);

/* Create an empty tree in the caller's memory: page-aligned, at least RT_HEADER_BYTES + 1 node, kept mapped until
 * rt_destroy. It holds no pointers, so it may be mapped elsewhere by others. */
int rt_create_in(struct rtree **out, void *memory, size_t bytes);

/* Move a tree that rt_create made into the caller's memory: a page-aligned shared mapping of at least rt_arena_bytes, which
 * is a second view of the tree from then on. Any other call may be running. On error the tree is as it was; -EEXIST: it
 * is in memory of a caller's already. */
int rt_share(struct rtree *tree, void *memory, size_t bytes);

/* Free the tree, and its memory unless that is the caller's. No other call may be running. */
void rt_destroy(struct rtree *tree);

/* Choose the search kernel: "portable", "avx2" or "avx512"; -ENOTSUP where this processor has none. Not while other
 * calls run. All of them give the same results; rt_create takes the best, or that of CATFISH_KERNEL. */
int rt_set_kernel(struct rtree *tree, const char *name);
const char *rt_kernel_name(const struct rtree *tree);

/* Return 0 if the rectangle can be stored, else -EINVAL. */
int rt_rect_check(const double rect[4]);

/* The same for storing (query = 0) or searching (1), with what is wrong in message: "xmin is nan". */
int rt_rect_explain(const double rect[4], int query, char *message, size_t message_bytes);

int rt_insert(struct rtree *tree, const double rect[4], uint64_t id);

/* Insert n rectangles (n x 4 doubles). All are checked before the first is inserted. On error *bad_row tells the first
 * row that is not valid, or that found no room, and none of them is in the tree. Readers see them arrive one
 * by one. ids == NULL: the row numbers. */
int rt_insert_many(struct rtree *tree, const double *rects, const uint64_t *ids, size_t n, size_t *bad_row);

/* Delete one entry that has exactly this rectangle and id. */
int rt_delete(struct rtree *tree, const double rect[4], uint64_t id);

/* Move one entry to another rectangle. No reader sees it twice or not at all. The new place may need nodes (-ENOSPC). */
int rt_update(struct rtree *tree, const double old_rect[4], uint64_t id, const double new_rect[4]);

/* Load n rectangles into an empty tree (-EEXIST if it is not), packed by sort-tile-recursive. fill is the share of
 * each node to be used, 0.75 to 1. Readers see all or none. */
int rt_bulk_load(struct rtree *tree, const double *rects, const uint64_t *ids, size_t n, double fill, size_t *bad_row);

/* Find the ids of all rectangles that meet the query. *total is their number; the first `capacity` of them are in
 * ids. If *total > capacity, call again with more room. */
int rt_search(struct rtree *tree, const double query[4], uint64_t *ids, size_t capacity, size_t *total);

/* Pass all ids that meet the query to `each`, in pieces of up to piece_ids ids; a piece is the last one if `last` is set (there is
 * always a last one, be it empty). `each` runs with no lock held and may take its time; what it returns, if not 0, ends
 * the search and is returned. The pieces are of one consistent search. Allocates if there are more than 4096 ids. */
int rt_search_each(struct rtree *tree, const double query[4], size_t piece_ids,
                   int (*each)(void *context, const uint64_t *ids, size_t n, int last), void *context);

/* Search n queries: the ids of query i are ids[offsets[i]] to ids[offsets[i + 1]]; offsets has n + 1 items. If ids is
 * too small: -ENOBUFS and *done tells how many queries were answered, offsets up to there are set. On -EINVAL *done is
 * the row of the bad query. */
int rt_search_many(struct rtree *tree, const double *queries, size_t n, uint64_t *offsets, uint64_t *ids,
                   size_t capacity, size_t *done);

int rt_count(struct rtree *tree, const double query[4], uint64_t *count);

/* Find the k entries nearest to a rectangle (a point: min == max), by squared distance, then by id. *found <= k of them
 * are in ids, nearest first, with their squared distances in distances2. */
int rt_nearest(struct rtree *tree, const double query[4], size_t k, uint64_t *ids, double *distances2, size_t *found);

/* Return the box of all rectangles; -ENOENT if there are none. */
int rt_bounds(struct rtree *tree, double bounds[4]);

/* Return the number of entries, without a lock. */
uint64_t rt_size(const struct rtree *tree);

int rt_stats(struct rtree *tree, struct rt_stats *stats);

/* Return the boxes of the nodes of one level (0: leaves), *total of them, the first `capacity` (of four doubles each) in
 * rects. Boxes are as the tree stores them: rounded outwards to single precision. -ENOENT: no such level. */
int rt_level_rects(struct rtree *tree, uint32_t level, double *rects, size_t capacity, size_t *total);

/* Check every invariant. 0, or -EILSEQ with a sentence in message. Blocks writers meanwhile. */
int rt_check(struct rtree *tree, char *message, size_t message_bytes);

/* Make the module catfish_app._rtree_fast, whose type Tree holds a tree for Python. 0, or -1 with a Python error printed. */
int rt_python_install(void);

#endif
