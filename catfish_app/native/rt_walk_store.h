/* What a walk remembers: inner nodes of the tree (struct rt_remote), the nodes that it visits, and those that it may visit. Internal. */
#ifndef CATFISH_RT_WALK_STORE_H
#define CATFISH_RT_WALK_STORE_H

#include <stdlib.h>

#include "rt_kernel.h"
#include "rt_near.h"
#include "rt_walk.h"

#define HEAD_AT 64 /* of the line with moves, root_height and origin */
#define CACHE_S 60

struct head {
    uint64_t moves, root_height;
    double origin[2];
};

_Static_assert(offsetof(struct rt_header, moves) == HEAD_AT, "the head is one line");
_Static_assert(offsetof(struct rt_header, origin) == HEAD_AT + offsetof(struct head, origin), "the same fields");

struct rt_remote {
    const struct rt_kernel *kernel;
    uint32_t reach; /* nodes of the region */
    bool known;
    struct head head; /* the last one seen, if known */
    uint32_t cache_nodes;
    uint32_t *cached_node;   /* [cache_nodes]: which node, or RT_NONE */
    uint64_t *cached_s;      /* when it was read */
    struct rt_node *pages;
    struct rt_walk_counts counts;
};

enum { PAGE_WANTED, PAGE_ASKED, WORD_WANTED, WORD_ASKED, FINE };

struct visit {
    uint32_t node, version;
    unsigned char level, state;
};

struct branch {
    double distance2;
    uint32_t visit;
};

enum phase { OVER, FIRST_HEAD, NODES, LAST_HEAD };

struct rt_walk {
    struct rt_remote *remote;
    enum phase phase;
    int kind, outcome;
    double query[4];
    struct rt_fbox box;
    struct head head;
    uint64_t now_s;
    bool head_asked, wrong, disturbed;
    unsigned torn, damages;
    uint32_t pages_out, words_out;
    uint32_t n_visits, room_visits, n_todo; /* todo: those that want something; a stack */
    struct visit *visits;
    uint32_t *todo;
    uint32_t *table, table_mask; /* node -> visit + 1; 0: none */
    uint32_t n_branches;
    struct branch *branches; /* a heap, nearest on top */
    size_t total, room_ids;
    uint64_t *ids;
    struct rt_nearest best;
    struct rt_node page; /* a copy on its own lines */
};

/* ---- what is remembered ---- */

static inline uint32_t hash(uint32_t node)
{
    return node * UINT32_C(2654435761);
}

static inline uint32_t cache_slot(const struct rt_remote *remote, uint32_t node)
{
    return (uint32_t)((uint64_t)hash(node) * remote->cache_nodes >> 32);
}

static inline const struct rt_node *recall(const struct rt_walk *walk, uint32_t node)
{
    const struct rt_remote *remote = walk->remote;
    uint32_t slot = cache_slot(remote, node);
    bool there = remote->cache_nodes && remote->cached_node[slot] == node && walk->now_s - remote->cached_s[slot] < CACHE_S;
    return there ? remote->pages + slot : NULL;
}

static inline void remember(const struct rt_walk *walk, uint32_t node)
{
    struct rt_remote *remote = walk->remote;
    uint32_t slot = cache_slot(remote, node);
    if (remote->cache_nodes == 0)
        return;
    remote->cached_node[slot] = node;
    remote->cached_s[slot] = walk->now_s;
    memcpy(remote->pages + slot, &walk->page, sizeof walk->page);
}

static inline void forget(struct rt_remote *remote, uint32_t node)
{
    uint32_t slot = cache_slot(remote, node);
    if (remote->cache_nodes && remote->cached_node[slot] == node)
        remote->cached_node[slot] = RT_NONE;
}

/* ---- visits ---- */

static inline uint32_t *table_at(const struct rt_walk *walk, uint32_t node)
{
    uint32_t at = hash(node) & walk->table_mask;
    while (walk->table[at] && walk->visits[walk->table[at] - 1].node != node)
        at = (at + 1) & walk->table_mask;
    return walk->table + at;
}

static inline int more_visits(struct rt_walk *walk)
{
    uint32_t room = walk->room_visits ? 2 * walk->room_visits : 128;
    struct visit *visits = realloc(walk->visits, room * sizeof *visits);
    walk->visits = visits ? visits : walk->visits;
    uint32_t *todo = realloc(walk->todo, room * sizeof *todo);
    walk->todo = todo ? todo : walk->todo;
    struct branch *branches = realloc(walk->branches, room * sizeof *branches);
    walk->branches = branches ? branches : walk->branches;
    uint32_t *table = calloc(2 * (size_t)room, sizeof *table);
    if (!visits || !todo || !branches || !table) {
        free(table);
        return -ENOMEM;
    }
    free(walk->table);
    walk->table = table;
    walk->table_mask = 2 * room - 1;
    walk->room_visits = room;
    for (uint32_t i = 0; i < walk->n_visits; i++)
        *table_at(walk, walk->visits[i].node) = i + 1;
    return 0;
}

static inline int more_ids(struct rt_walk *walk)
{
    size_t room = walk->room_ids ? 2 * walk->room_ids : 256;
    uint64_t *ids = realloc(walk->ids, room * sizeof *ids);
    if (!ids)
        return -ENOMEM;
    walk->ids = ids;
    walk->room_ids = room;
    return 0;
}

static inline void branch_swap(struct rt_walk *walk, uint32_t a, uint32_t b)
{
    struct branch branch = walk->branches[a];
    walk->branches[a] = walk->branches[b];
    walk->branches[b] = branch;
}

static inline void branch_push(struct rt_walk *walk, double distance2, uint32_t visit)
{
    uint32_t at = walk->n_branches++;
    walk->branches[at] = (struct branch){distance2, visit};
    for (; at > 0 && walk->branches[at].distance2 < walk->branches[(at - 1) / 2].distance2; at = (at - 1) / 2)
        branch_swap(walk, at, (at - 1) / 2);
}

static inline uint32_t branch_pop(struct rt_walk *walk)
{
    uint32_t visit = walk->branches[0].visit, n = --walk->n_branches;
    walk->branches[0] = walk->branches[n];
    for (uint32_t at = 0, child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && walk->branches[child + 1].distance2 < walk->branches[child].distance2)
            child++;
        if (walk->branches[at].distance2 <= walk->branches[child].distance2)
            break;
        branch_swap(walk, at, child);
    }
    return visit;
}

#endif
