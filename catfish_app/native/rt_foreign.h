/* The R-tree of somebody else, read in memory that we share with them; this file is also a cffi cdef, hence plain declarations.
 *
 * The memory may be read-only for us, and its owner may store anything there at any time: nothing that is read is used
 * before it was checked, and the work of a call is bounded by the size of the memory. Nothing is copied, nothing locked, and
 * no system call made. Every function may be called by any number of threads at a time, and returns 0 or
 *
 *   -EINVAL   the query is not valid
 *   -EAGAIN   writers disturbed the reader RT_READ_TRIES times, or one stopped amid a change: ask the owner
 *   -EILSEQ   what is there is no tree, or a damaged one
 *
 * What a search finds is what rtree.h guarantees to readers of the own tree.
 */
#ifndef CATFISH_RT_FOREIGN_H
#define CATFISH_RT_FOREIGN_H

#include "rtree.h"

struct rt_foreign;

/* Look at the tree in so many bytes of memory, which stay mapped until rt_foreign_close; aligned to 64 bytes. -EILSEQ, -EINVAL,
 * -ENOMEM, or -ENOTSUP: the kernel of CATFISH_KERNEL does not run here. */
int rt_foreign_open(struct rt_foreign **out, const void *memory, size_t bytes);
void rt_foreign_close(struct rt_foreign *foreign);

/* As rt_search, rt_search_many, rt_count and rt_nearest. */
int rt_foreign_search(struct rt_foreign *foreign, const double query[4], uint64_t *ids, size_t capacity, size_t *total);
int rt_foreign_search_many(struct rt_foreign *foreign, const double *queries, size_t n, uint64_t *offsets, uint64_t *ids,
                        size_t capacity, size_t *done);
int rt_foreign_count(struct rt_foreign *foreign, const double query[4], uint64_t *count);
int rt_foreign_nearest(struct rt_foreign *foreign, const double query[4], size_t k, uint64_t *ids, double *distances2,
                    size_t *found);

/* Return how many entries the tree says it has, but never more than fit into the memory. */
uint64_t rt_foreign_size(const struct rt_foreign *foreign);

/* Return how many attempts were disturbed since it was opened. */
uint64_t rt_foreign_retries(const struct rt_foreign *foreign);

#endif
