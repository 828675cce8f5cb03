/* Searching a tree by reads: its memory is elsewhere, and what comes of it are copies. Also a cffi cdef, hence plain declarations.
 *
 * A walk does no I/O. It says which spans it wants; whoever drives it reads them, in any order and as many at a time as he
 * likes, and hands each over as it arrives, which gives rise to new wishes:
 *
 *     rt_walk_begin
 *     repeat, until rt_walk_outcome is not -EINPROGRESS:
 *         rt_walk_want -> spans                   rt_walk_got(span, bytes) for each
 *     outcome -EAGAIN: rt_walk_again, perhaps after a pause, or ask the owner
 *
 * A span must be a copy whose aligned words of eight bytes are whole and come in ascending order, made after it was wanted.
 * Nothing else is expected of what comes: any bytes at all do no harm, and a walk wants no node twice.
 *
 * What a walk finds is what rtree.h guarantees to readers. All functions for one rt_remote, and all its walks: one thread at
 * a time. They return 0 or -errno: -ENOMEM; -EINVAL: the query is not valid, or nobody wanted that span.
 */
#ifndef CATFISH_RT_WALK_H
#define CATFISH_RT_WALK_H

#include "rtree.h"

#define RT_WALK_SEARCH 0
#define RT_WALK_COUNT 1
#define RT_WALK_NEAREST 2
/* Bytes that rt_remote_open wants to see, from the beginning of the region. */
#define RT_REMOTE_HEAD_BYTES 128

struct rt_remote;
struct rt_walk;

/* Since the remote tree was opened. */
struct rt_walk_counts {
    uint64_t walks;   /* that were begun */
    uint64_t pages;   /* nodes that were read */
    uint64_t words;   /* versions that were read */
    uint64_t cached;  /* nodes that were not read because they were known */
    uint64_t torn;    /* nodes that came while they were being written */
    uint64_t retries; /* attempts in vain */
};

/* Know a tree by the first bytes of its region. -EILSEQ: that is none, or of another format. cache_nodes: how many inner
 * nodes to remember at most (of 1 KiB each); they are used only while their versions, which are read each time, have not changed. */
int rt_remote_open(struct rt_remote **out, const void *head, size_t head_bytes, uint64_t region_bytes, uint32_t cache_nodes);
void rt_remote_close(struct rt_remote *remote);
void rt_remote_counts(const struct rt_remote *remote, struct rt_walk_counts *counts);
uint64_t rt_remote_retries(const struct rt_remote *remote);

/* A walk may be begun again and again. */
int rt_walk_create(struct rt_walk **out, struct rt_remote *remote);
void rt_walk_destroy(struct rt_walk *walk);

/* Begin to search, to count, or to look for the k nearest. now_s: any clock that never goes back. */
int rt_walk_begin(struct rt_walk *walk, int kind, const double query[4], size_t k, uint64_t now_s);
int rt_walk_again(struct rt_walk *walk);

/* Put what is wanted now into spans, as pairs of offset and length, `room` pairs at most. Returns how many. */
size_t rt_walk_want(struct rt_walk *walk, uint64_t *spans, size_t room);
int rt_walk_got(struct rt_walk *walk, uint64_t offset, const void *data, size_t bytes);
/* Both in one call: how many spans are wanted now that this one has come, or -errno. */
int64_t rt_walk_take(struct rt_walk *walk, uint64_t offset, const void *data, size_t bytes, uint64_t *spans, size_t room);

/* -EINPROGRESS; 0: what was found is valid; -EAGAIN: writers disturbed it; -EILSEQ: the tree is damaged. */
int rt_walk_outcome(const struct rt_walk *walk);

/* What was found: how many, and (but for RT_WALK_COUNT) the ids, with squared distances if what is nearest was asked for. Valid
 * until the walk is used again. */
size_t rt_walk_total(const struct rt_walk *walk);
const uint64_t *rt_walk_ids(const struct rt_walk *walk);
const double *rt_walk_distances2(const struct rt_walk *walk);

#endif
