/* Search and count over the primitives of one instruction set. Internal: included by each
 * rt_kernel_*.c after it has defined the primitives below.
 *
 * All of it is compiled twice: for a tree of our own, and (foreign) for one in memory that others own. There every index, level and
 * count is checked before it is used, and nobody is waited for without end. A node that makes no sense although nobody has
 * touched it meanwhile ends the scan with -EILSEQ; all else that voids one is -EAGAIN.
 *
 *   struct vq              the query, spread over vector registers
 *   vq_make(query, box)    make it from doubles and from the box in the tree's single precision
 *   inner_hits(node, vq)   bit i: the box in place i meets the query (bits of places without entry are noise)
 *   leaf_hits(node, vq)    the same for the rectangles of a leaf
 *   leaf_emit(node, mask, out)   copy the ids of the set bits, in order, to out, where RT_LEAF_PLACES fit; return how many
 *   KERNEL, KERNEL_NAME    the table's name
 */

struct scan {
    const struct rtree *tree;
    uint64_t moves;
    struct vq query;
    unsigned patience; /* foreign: how often more to look at a node that is being written */
    uint32_t budget;   /* foreign: nodes that may still be visited */
    unsigned depth;
    uint32_t stack[RT_STACK];
    unsigned char level[RT_STACK]; /* foreign: of the nodes in the stack */
};

#define RT_TWICE static inline __attribute__((always_inline))

/* A node made no sense, and no writer moved entries meanwhile: the tree is damaged. */
static __attribute__((noinline, cold)) bool damaged(const struct rtree *tree, uint64_t moves)
{
    return rt_seq_same(&tree->header->moves, moves);
}

/* Why a scan is void: `wrong` if because of a node that made no sense. */
RT_TWICE int scan_void(const struct scan *scan, bool foreign, bool wrong)
{
    return foreign && wrong && damaged(scan->tree, scan->moves) ? -EILSEQ : -EAGAIN;
}

/* Whoever pushes a node asks the cache for it: the lines arrive while its elder siblings are looked at. */
static inline void prefetch_node(const struct rt_node *node)
{
    const char *line = (const char *)node;
    for (unsigned i = 0; i < RT_PREFETCH_LINES; i++)
        __builtin_prefetch(line + 64 * i, 0, 3);
}

RT_TWICE int scan_begin(struct scan *scan, bool foreign, const struct rtree *tree, const double query[4])
{
    const struct rt_header *header = tree->header;
    scan->tree = tree;
    scan->moves = rt_seq_load(&header->moves);
    if (scan->moves & 1)
        return -EAGAIN;
    uint64_t root_height = RT_GET(header->root_height);
    double origin[2] = {RT_GET(header->origin[0]), RT_GET(header->origin[1])};
    scan->query = vq_make(query, rt_fbox_of(query, origin));
    scan->depth = 0;
    if (foreign) {
        scan->patience = RT_PATIENCE;
        scan->budget = tree->reach + RT_PATIENCE;
        if (!rt_root_makes_sense(root_height, tree->reach))
            return scan_void(scan, foreign, true);
        scan->level[0] = (unsigned char)((root_height >> 32) - 1);
    }
    if (root_height >> 32)
        scan->stack[scan->depth++] = (uint32_t)root_height;
    return rt_seq_same(&header->moves, scan->moves) ? 0 : -EAGAIN;
}

/* Push what meets the query. False: there is no room, or a child is none: a writer moved entries, or the tree is damaged. */
RT_TWICE bool scan_inner(struct scan *scan, bool foreign, const struct rt_node *node, uint32_t meta)
{
    uint64_t mask = inner_hits(node, &scan->query) & rt_inner_places(rt_meta_count(meta));
    unsigned depth = scan->depth;
    if (depth + RT_INNER_MAX > RT_STACK)
        return false;
    while (mask) {
        uint32_t child = RT_GET(node->inner.child[__builtin_ctzll(mask)]);
        mask &= mask - 1;
        if (foreign) {
            if (child >= scan->tree->reach)
                return false;
            scan->level[depth] = (unsigned char)(rt_meta_level(meta) - 1);
        }
        prefetch_node(scan->tree->nodes + child);
        scan->stack[depth++] = child;
    }
    scan->depth = depth;
    return true;
}

/* Look at the node on top of the stack: push its children, or return the mask of the leaf's hits. The caller
 * validates by l5_page_unchanged(node, *version) after it has used the leaf. -EAGAIN or -EILSEQ: the scan is void. */
RT_TWICE int scan_step(struct scan *scan, bool foreign, const struct rt_node **out, uint32_t *version, uint32_t *mask)
{
    const struct rtree *tree = scan->tree;
    const struct rt_node *node = tree->nodes + scan->stack[scan->depth - 1];
    unsigned level = foreign ? scan->level[scan->depth - 1] : 0;
    if (foreign && scan->budget-- == 0)
        return scan_void(scan, foreign, true);
    for (;;) {
        uint32_t seen = l5_page_enter(node);
        if (!(seen & 1)) {
            uint32_t meta = RT_GET(node->meta);
            if (foreign && (rt_meta_level(meta) != level || rt_meta_count(meta) > rt_max_of(level))) {
                if (l5_page_unchanged(node, seen))
                    return scan_void(scan, foreign, true);
            } else if (rt_meta_level(meta) == 0) {
                scan->depth--;
                *out = node;
                *version = seen;
                *mask = leaf_hits(node, &scan->query) & rt_leaf_places(rt_meta_count(meta));
                return 1;
            } else {
                unsigned depth = scan->depth--;
                bool fits = scan_inner(scan, foreign, node, meta);
                if (l5_page_unchanged(node, seen)) {
                    if (!fits)
                        return scan_void(scan, foreign, true);
                    return __atomic_load_n(&tree->header->moves, __ATOMIC_RELAXED) == scan->moves ? 0 : scan_void(scan, foreign, false);
                }
                scan->depth = depth;
            }
        }
        if (!rt_seq_same(&tree->header->moves, scan->moves) || (foreign && scan->patience-- == 0))
            return scan_void(scan, foreign, false);
        rt_pause();
    }
}

/* Put a leaf's hits behind the n ids that are there; return the new number, which may be beyond the capacity. */
static inline size_t emit(const struct rt_node *node, uint32_t mask, uint64_t *ids, size_t n, size_t capacity)
{
    if (capacity >= RT_LEAF_PLACES && n <= capacity - RT_LEAF_PLACES)
        return n + leaf_emit(node, mask, ids + n);
    uint64_t spill[RT_LEAF_PLACES];
    unsigned hits = leaf_emit(node, mask, spill);
    for (unsigned i = 0; i < hits && n + i < capacity; i++)
        ids[n + i] = spill[i];
    return n + hits;
}

RT_TWICE int search_once(bool foreign, const struct rtree *tree, const double query[4], uint64_t *ids, size_t capacity, size_t *total)
{
    struct scan scan;
    size_t n = 0;
    int error = scan_begin(&scan, foreign, tree, query);
    if (error)
        return error;
    while (scan.depth) {
        const struct rt_node *node;
        uint32_t version;
        uint32_t mask;
        int leaf = scan_step(&scan, foreign, &node, &version, &mask);
        if (leaf < 0)
            return leaf;
        if (!leaf)
            continue;
        size_t after = mask ? emit(node, mask, ids, n, capacity) : n;
        if (l5_page_unchanged(node, version))
            n = after;
        else
            scan.depth++; /* the leaf is still there: look again */
    }
    if (!rt_seq_same(&tree->header->moves, scan.moves))
        return -EAGAIN;
    *total = n;
    return 0;
}

RT_TWICE int count_once(bool foreign, const struct rtree *tree, const double query[4], uint64_t *total)
{
    struct scan scan;
    uint64_t n = 0;
    int error = scan_begin(&scan, foreign, tree, query);
    if (error)
        return error;
    while (scan.depth) {
        const struct rt_node *node;
        uint32_t version;
        uint32_t mask;
        int leaf = scan_step(&scan, foreign, &node, &version, &mask);
        if (leaf < 0)
            return leaf;
        if (!leaf)
            continue;
        if (l5_page_unchanged(node, version))
            n += (unsigned)__builtin_popcount(mask);
        else
            scan.depth++;
    }
    if (!rt_seq_same(&tree->header->moves, scan.moves))
        return -EAGAIN;
    *total = n;
    return 0;
}

/* Several searches in turn, a node each, so that the nodes of one arrive while the others are looked at. One that a writer
 * disturbs, or that finds more than its lane holds, is left to the caller: its total is RT_REDO. */
struct lane {
    struct scan scan;
    size_t total;
    uint64_t *ids; /* RT_LANE_IDS of them */
};

RT_TWICE void lane_begin(struct lane *lane, bool foreign, const struct rtree *tree, const double query[4])
{
    lane->total = 0;
    if (scan_begin(&lane->scan, foreign, tree, query)) {
        lane->total = RT_REDO;
        lane->scan.depth = 0;
    }
}

RT_TWICE void lane_step(struct lane *lane, bool foreign)
{
    const struct rt_node *node;
    uint32_t version;
    uint32_t mask;
    int leaf = scan_step(&lane->scan, foreign, &node, &version, &mask);
    if (leaf > 0) {
        size_t after = mask ? emit(node, mask, lane->ids, lane->total, RT_LANE_IDS) : lane->total;
        if (l5_page_unchanged(node, version))
            lane->total = after;
        else
            lane->scan.depth++;
    }
    if (leaf < 0 || lane->total > RT_LANE_IDS ||
        (lane->scan.depth == 0 && !rt_seq_same(&lane->scan.tree->header->moves, lane->scan.moves))) {
        lane->total = RT_REDO;
        lane->scan.depth = 0;
    }
}

RT_TWICE void search_group(bool foreign, const struct rtree *tree, const double *queries, unsigned n, size_t *totals,
                           uint64_t ids[][RT_LANE_IDS])
{
    struct lane lanes[RT_GROUP];
    unsigned busy[RT_GROUP], n_busy = 0;
    for (unsigned i = 0; i < n; i++) {
        lanes[i].ids = ids[i];
        lane_begin(&lanes[i], foreign, tree, queries + 4 * i);
        busy[n_busy] = i;
        n_busy += lanes[i].scan.depth > 0;
    }
    while (n_busy) {
        unsigned still = 0;
        for (unsigned i = 0; i < n_busy; i++) {
            lane_step(&lanes[busy[i]], foreign);
            busy[still] = busy[i];
            still += lanes[busy[i]].scan.depth > 0;
        }
        n_busy = still;
    }
    for (unsigned i = 0; i < n; i++)
        totals[i] = lanes[i].total;
}

/* The places of the children whose boxes hold the whole of this one. */
static uint64_t containing(const struct rt_node *node, struct rt_fbox box)
{
    return inner_containing(node, box) & rt_inner_places(rt_count_of(node));
}

#include "rt_choose.h"

/* The places of the entries of one node, be it a leaf or not, that meet the query. */
static uint64_t meeting(const struct rt_node *node, unsigned level, unsigned count, const double query[4], struct rt_fbox box)
{
    struct vq vq = vq_make(query, box);
    return level ? inner_hits(node, &vq) & rt_inner_places(count) : leaf_hits(node, &vq) & rt_leaf_places(count);
}

#define RT_BOTH(which, foreign)                                                                                           \
    static int search_##which(const struct rtree *tree, const double query[4], uint64_t *ids, size_t capacity, size_t *total) \
    {                                                                                                                     \
        return search_once(foreign, tree, query, ids, capacity, total);                                                   \
    }                                                                                                                     \
    static int count_##which(const struct rtree *tree, const double query[4], uint64_t *total)                             \
    {                                                                                                                     \
        return count_once(foreign, tree, query, total);                                                                   \
    }                                                                                                                     \
    static void group_##which(const struct rtree *tree, const double *queries, unsigned n, size_t *totals,                 \
                              uint64_t ids[][RT_LANE_IDS])                                                                \
    {                                                                                                                     \
        search_group(foreign, tree, queries, n, totals, ids);                                                             \
    }
RT_BOTH(own, false)
RT_BOTH(foreign, true)

static const struct rt_kernel foreign_kernel = {
    .name = KERNEL_NAME,
    .search = search_foreign,
    .count = count_foreign,
    .search_group = group_foreign,
};

const struct rt_kernel KERNEL = {
    .name = KERNEL_NAME,
    .foreign = &foreign_kernel,
    .search = search_own,
    .count = count_own,
    .search_group = group_own,
    .choose = choose,
    .containing = containing,
    .meeting = meeting,
};
