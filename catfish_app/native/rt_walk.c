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
#include "rt_walk_store.h"

#define WORD_BYTES 8
#define TORN_MAX 64   /* torn copies in one attempt */
#define DAMAGED_AFTER 3 /* attempts that found nonsense in a tree that had not moved */
#define NEAREST_AHEAD 8 /* nodes under way at a time, for k nearest */

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

int64_t rt_walk_take(struct rt_walk *walk, uint64_t offset, const void *data, size_t bytes, uint64_t *spans, size_t room)
{
    int error = rt_walk_got(walk, offset, data, bytes);
    return error ? error : (int64_t)rt_walk_want(walk, spans, room);
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
