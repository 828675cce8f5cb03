/* A walk through copies of nodes.
 *
 *   header line   - root - inner nodes .. - leaves                       what is wanted, and
 *             versions of   :    :         :     header line again       what of it is wanted twice
 *
 * A node is used as soon as its copy is whole (all its versions equal and even), and its version is read once more, behind its
 * copy and beside its children's: if that is still the same, the copy was of one moment and the node has not changed since.
 * When all nodes have come, the line of the header with `moves`, the root and the origin is read. If it is what the walk
 * began with, no entry has moved between nodes meanwhile, which is all that a reader of the memory itself knows, too. Else
 * all was in vain.
 *
 * An inner node that is remembered costs its version only, and is used at once, its children wanted in the same breath: so
 * a search takes two round trips, one for leaves and the versions above, one for theirs and the header. Nothing that is
 * remembered is believed: a node whose version has changed is forgotten and the attempt is in vain. As versions come again
 * after 2^31 changes, no node is remembered for longer than a minute.
 */
#include <stdlib.h>

#include "rt_kernel.h"
#include "rt_near.h"
#include "rt_walk.h"

#define HEAD_AT 64 /* of the line with moves, root_height and origin */
#define WORD_BYTES 8
#define CACHE_S 60
#define TORN_MAX 64   /* torn copies in one attempt */
#define DAMAGED_AFTER 3 /* attempts that found nonsense in a tree that had not moved */
#define NEAREST_AHEAD 8 /* nodes under way at a time, for k nearest */

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

static uint32_t hash(uint32_t node)
{
    return node * UINT32_C(2654435761);
}

static uint32_t cache_slot(const struct rt_remote *remote, uint32_t node)
{
    return (uint32_t)((uint64_t)hash(node) * remote->cache_nodes >> 32);
}

static const struct rt_node *recall(const struct rt_walk *walk, uint32_t node)
{
    const struct rt_remote *remote = walk->remote;
    uint32_t slot = cache_slot(remote, node);
    bool there = remote->cache_nodes && remote->cached_node[slot] == node && walk->now_s - remote->cached_s[slot] < CACHE_S;
    return there ? remote->pages + slot : NULL;
}

static void remember(const struct rt_walk *walk, uint32_t node)
{
    struct rt_remote *remote = walk->remote;
    uint32_t slot = cache_slot(remote, node);
    if (remote->cache_nodes == 0)
        return;
    remote->cached_node[slot] = node;
    remote->cached_s[slot] = walk->now_s;
    memcpy(remote->pages + slot, &walk->page, sizeof walk->page);
}

static void forget(struct rt_remote *remote, uint32_t node)
{
    uint32_t slot = cache_slot(remote, node);
    if (remote->cache_nodes && remote->cached_node[slot] == node)
        remote->cached_node[slot] = RT_NONE;
}

/* ---- visits ---- */

static uint32_t *table_at(const struct rt_walk *walk, uint32_t node)
{
    uint32_t at = hash(node) & walk->table_mask;
    while (walk->table[at] && walk->visits[walk->table[at] - 1].node != node)
        at = (at + 1) & walk->table_mask;
    return walk->table + at;
}

static int more_visits(struct rt_walk *walk)
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

static int more_ids(struct rt_walk *walk)
{
    size_t room = walk->room_ids ? 2 * walk->room_ids : 256;
    uint64_t *ids = realloc(walk->ids, room * sizeof *ids);
    if (!ids)
        return -ENOMEM;
    walk->ids = ids;
    walk->room_ids = room;
    return 0;
}

static void branch_swap(struct rt_walk *walk, uint32_t a, uint32_t b)
{
    struct branch branch = walk->branches[a];
    walk->branches[a] = walk->branches[b];
    walk->branches[b] = branch;
}

static void branch_push(struct rt_walk *walk, double distance2, uint32_t visit)
{
    uint32_t at = walk->n_branches++;
    walk->branches[at] = (struct branch){distance2, visit};
    for (; at > 0 && walk->branches[at].distance2 < walk->branches[(at - 1) / 2].distance2; at = (at - 1) / 2)
        branch_swap(walk, at, (at - 1) / 2);
}

static uint32_t branch_pop(struct rt_walk *walk)
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

/* A node that is to be visited. Nonsense: there is none, or it was met before, so that the levels lead in a circle, or meet. */
static int discover(struct rt_walk *walk, uint32_t node, unsigned level, double distance2)
{
    if (walk->n_visits == walk->room_visits) {
        int error = more_visits(walk);
        if (error)
            return error;
    }
    uint32_t *entry = node < walk->remote->reach ? table_at(walk, node) : NULL;
    if (!entry || *entry) {
        walk->wrong = true;
        return 0;
    }
    uint32_t visit = walk->n_visits++;
    walk->visits[visit] = (struct visit){.node = node, .level = (unsigned char)level, .state = PAGE_WANTED};
    *entry = visit + 1;
    if (walk->kind == RT_WALK_NEAREST)
        branch_push(walk, distance2, visit);
    else
        walk->todo[walk->n_todo++] = visit;
    return 0;
}

/* ---- nodes ---- */

static int use_leaf(struct rt_walk *walk, const struct rt_node *node, unsigned count)
{
    if (walk->kind == RT_WALK_NEAREST) {
        for (unsigned i = 0; i < count; i++)
            rt_nearest_offer(&walk->best, rt_leaf_distance2(node, i, walk->query), node->leaf.id[rt_leaf_at(i)]);
        return 0;
    }
    uint64_t mask = walk->remote->kernel->meeting(node, 0, count, walk->query, walk->box);
    if (walk->kind == RT_WALK_COUNT) {
        walk->total += (unsigned)__builtin_popcountll(mask);
        return 0;
    }
    if (walk->total + RT_LEAF_MAX > walk->room_ids) {
        int error = more_ids(walk);
        if (error)
            return error;
    }
    for (; mask; mask &= mask - 1)
        walk->ids[walk->total++] = node->leaf.id[__builtin_ctzll(mask)];
    return 0;
}

static int use_inner(struct rt_walk *walk, const struct rt_node *node, unsigned level, unsigned count)
{
    int error = 0;
    if (walk->kind == RT_WALK_NEAREST) {
        for (unsigned i = 0; i < count && !error; i++) {
            double distance2 = rt_inner_distance2(node, i, walk->box);
            if (!rt_nearest_cuts(&walk->best, distance2))
                error = discover(walk, rt_entry_child(node, i), level - 1, distance2);
        }
        return error;
    }
    uint64_t mask = walk->remote->kernel->meeting(node, level, count, walk->query, walk->box);
    for (; mask && !error; mask &= mask - 1)
        error = discover(walk, node->inner.child[__builtin_ctzll(mask)], level - 1, 0);
    return error;
}

/* Look at a whole copy, and want its version again. */
static int use_node(struct rt_walk *walk, const struct rt_node *node, uint32_t at)
{
    struct visit *visit = walk->visits + at;
    unsigned level = visit->level, count = rt_count_of(node);
    visit->version = node->version;
    visit->state = WORD_WANTED;
    walk->todo[walk->n_todo++] = at;
    if (rt_level_of(node) != level || count > rt_max_of(level)) {
        walk->wrong = true;
        return 0;
    }
    return level ? use_inner(walk, node, level, count) : use_leaf(walk, node, count);
}

/* ---- what is wanted ---- */

static void finish(struct rt_walk *walk, int outcome)
{
    walk->phase = OVER;
    walk->outcome = outcome;
    walk->remote->counts.retries += outcome == -EAGAIN;
}

static bool in_vain(const struct rt_walk *walk)
{
    return walk->wrong || walk->disturbed;
}

/* Nothing is under way any more: is it over? */
static void settle(struct rt_walk *walk)
{
    if (walk->phase == OVER || walk->pages_out || walk->words_out || walk->head_asked)
        return;
    if (walk->disturbed && walk->phase != FIRST_HEAD)
        finish(walk, -EAGAIN);
}

/* For k nearest: more nodes, as long as they can be better than what is there. */
static void choose_branches(struct rt_walk *walk)
{
    while (walk->n_branches && walk->pages_out + walk->n_todo < NEAREST_AHEAD &&
           !rt_nearest_cuts(&walk->best, walk->branches[0].distance2))
        walk->todo[walk->n_todo++] = branch_pop(walk);
}

static size_t want_head(struct rt_walk *walk, uint64_t *spans)
{
    if (walk->head_asked)
        return 0;
    walk->head_asked = true;
    spans[0] = HEAD_AT;
    spans[1] = sizeof walk->head;
    return 1;
}

/* Use what is remembered, and ask for the rest. */
static size_t want_nodes(struct rt_walk *walk, uint64_t *spans, size_t room)
{
    size_t n = 0;
    for (;;) {
        if (walk->kind == RT_WALK_NEAREST && !in_vain(walk))
            choose_branches(walk);
        if (n == room || walk->n_todo == 0)
            return n;
        uint32_t at = walk->todo[--walk->n_todo];
        struct visit *visit = walk->visits + at;
        bool page = visit->state == PAGE_WANTED;
        if (in_vain(walk))
            continue;
        const struct rt_node *known = page && visit->level ? recall(walk, visit->node) : NULL;
        if (known) {
            walk->remote->counts.cached++;
            if (use_node(walk, known, at) != 0)
                walk->disturbed = true; /* no memory: the owner is asked */
            continue;
        }
        visit->state = page ? PAGE_ASKED : WORD_ASKED;
        walk->pages_out += page;
        walk->words_out += !page;
        spans[2 * n] = RT_HEADER_BYTES + (uint64_t)visit->node * RT_NODE_BYTES;
        spans[2 * n++ + 1] = page ? RT_NODE_BYTES : WORD_BYTES;
    }
}

size_t rt_walk_want(struct rt_walk *walk, uint64_t *spans, size_t room)
{
    size_t n = 0;
    if (room == 0 || walk->phase == OVER)
        return 0;
    if (walk->phase == FIRST_HEAD)
        return want_head(walk, spans);
    if (walk->phase == NODES)
        n = want_nodes(walk, spans, room);
    if (walk->phase == NODES && n < room && walk->pages_out == 0 && !walk->disturbed) {
        walk->phase = LAST_HEAD; /* all nodes have come; versions may be under way */
        n += want_head(walk, spans + 2 * n);
    }
    settle(walk);
    return n;
}

/* ---- what has come ---- */

static int got_page(struct rt_walk *walk, struct visit *visit, const void *data)
{
    struct rt_remote *remote = walk->remote;
    uint32_t at = (uint32_t)(visit - walk->visits);
    memcpy(&walk->page, data, sizeof walk->page);
    walk->pages_out--;
    remote->counts.pages++;
    if (in_vain(walk))
        return 0;
    if (!l5_page_is_whole(&walk->page, RT_NODE_LINES)) {
        remote->counts.torn++;
        walk->disturbed = ++walk->torn > TORN_MAX;
        visit->state = PAGE_WANTED;
        walk->todo[walk->n_todo++] = at;
        return 0;
    }
    if (visit->level)
        remember(walk, visit->node);
    return use_node(walk, &walk->page, at);
}

static void got_word(struct rt_walk *walk, struct visit *visit, const void *data)
{
    uint32_t version;
    memcpy(&version, data, sizeof version);
    walk->words_out--;
    walk->remote->counts.words++;
    visit->state = FINE;
    if (version != visit->version) {
        forget(walk->remote, visit->node);
        walk->disturbed = true;
    }
}

static int start_nodes(struct rt_walk *walk)
{
    const struct head *head = &walk->head;
    walk->phase = NODES;
    walk->box = rt_fbox_of(walk->query, head->origin);
    if (head->moves & 1)
        walk->disturbed = true;
    else if (!rt_root_makes_sense(head->root_height, walk->remote->reach))
        walk->wrong = true;
    else if (head->root_height >> 32)
        return discover(walk, (uint32_t)head->root_height, (unsigned)(head->root_height >> 32) - 1, 0);
    return 0;
}

static int got_head(struct rt_walk *walk, const void *data)
{
    struct rt_remote *remote = walk->remote;
    bool first = walk->phase == FIRST_HEAD;
    struct head head;
    memcpy(&head, data, sizeof head);
    walk->head_asked = false;
    remote->head = head;
    remote->known = !(head.moves & 1);
    if (first) {
        walk->head = head;
        return start_nodes(walk);
    }
    if (memcmp(&head, &walk->head, sizeof head) != 0)
        walk->disturbed = true;
    return 0;
}

/* The last head has come, and so have all versions. */
static void conclude(struct rt_walk *walk)
{
    if (walk->disturbed)
        finish(walk, -EAGAIN);
    else if (walk->wrong)
        finish(walk, ++walk->damages < DAMAGED_AFTER ? -EAGAIN : -EILSEQ);
    else
        finish(walk, 0);
    if (walk->outcome == 0 && walk->kind == RT_WALK_NEAREST) {
        walk->total = walk->best.n;
        rt_nearest_sort(&walk->best);
    }
}

static struct visit *visit_at(struct rt_walk *walk, uint64_t offset, size_t bytes)
{
    uint64_t node = (offset - RT_HEADER_BYTES) / RT_NODE_BYTES;
    if (offset < RT_HEADER_BYTES || (offset - RT_HEADER_BYTES) % RT_NODE_BYTES || node >= walk->remote->reach || !walk->table)
        return NULL;
    uint32_t entry = *table_at(walk, (uint32_t)node);
    struct visit *visit = entry ? walk->visits + entry - 1 : NULL;
    bool page = bytes == RT_NODE_BYTES, word = bytes == WORD_BYTES;
    return visit && ((page && visit->state == PAGE_ASKED) || (word && visit->state == WORD_ASKED)) ? visit : NULL;
}

int rt_walk_got(struct rt_walk *walk, uint64_t offset, const void *data, size_t bytes)
{
    int error = 0;
    if (offset == HEAD_AT && bytes == sizeof walk->head && walk->head_asked) {
        error = got_head(walk, data);
    } else {
        struct visit *visit = visit_at(walk, offset, bytes);
        if (!visit)
            return -EINVAL;
        if (bytes == RT_NODE_BYTES)
            error = got_page(walk, visit, data);
        else
            got_word(walk, visit, data);
    }
    if (error)
        walk->disturbed = true;
    if (walk->phase == LAST_HEAD && !walk->head_asked && !walk->words_out)
        conclude(walk);
    settle(walk);
    return error;
}

/* ---- beginning and end ---- */

static void attempt(struct rt_walk *walk)
{
    walk->n_visits = walk->n_todo = walk->n_branches = 0;
    walk->pages_out = walk->words_out = 0;
    walk->torn = 0;
    walk->head_asked = walk->wrong = walk->disturbed = false;
    walk->total = walk->best.n = 0;
    walk->outcome = -EINPROGRESS;
    walk->phase = FIRST_HEAD;
    if (walk->table)
        memset(walk->table, 0, ((size_t)walk->table_mask + 1) * sizeof *walk->table);
}

int rt_walk_again(struct rt_walk *walk)
{
    attempt(walk);
    walk->head = walk->remote->head;
    return walk->remote->known ? start_nodes(walk) : 0;
}

int rt_walk_begin(struct rt_walk *walk, int kind, const double query[4], size_t k, uint64_t now_s)
{
    bool valid = query[LO_X] <= query[HI_X] && query[LO_Y] <= query[HI_Y]; /* false for NaN */
    walk->phase = OVER;
    walk->outcome = -EINVAL;
    if (!valid || kind < RT_WALK_SEARCH || kind > RT_WALK_NEAREST || (kind == RT_WALK_NEAREST && rt_rect_check(query)))
        return -EINVAL;
    if (kind == RT_WALK_NEAREST) {
        size_t most = (size_t)walk->remote->reach * RT_LEAF_MAX;
        walk->best.k = k < most ? k : most;
        free(walk->best.ids);
        free(walk->best.distances2);
        walk->best.ids = malloc((walk->best.k + 1) * sizeof(uint64_t));
        walk->best.distances2 = malloc((walk->best.k + 1) * sizeof(double));
        if (!walk->best.ids || !walk->best.distances2)
            return -ENOMEM;
    }
    walk->kind = kind;
    walk->now_s = now_s;
    walk->damages = 0;
    memcpy(walk->query, query, sizeof walk->query);
    walk->remote->counts.walks++;
    return rt_walk_again(walk);
}

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
