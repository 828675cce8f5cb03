/* The k nearest: a depth-first branch and bound (Roussopoulos and others, 1995). Children are visited nearest first, and those
 * that cannot beat the worst of the k are cut. The k best so far are a heap, worst on top, in the caller's arrays, so
 * nothing is allocated. A child's distance is taken from its outward-rounded box and the outward-rounded query; both
 * leave a margin much larger than the rounding of what follows, so it never exceeds the distance of anything in it.
 */
#include "rt_kernel.h"
#include "rt_near.h"

struct near {
    const struct rtree *tree;
    uint64_t moves;
    const double *query;
    struct rt_fbox box;
    struct rt_nearest best;
    int error;         /* why what was found is void */
    unsigned patience; /* foreign: how often more to look at a node that is being written */
    uint32_t budget;   /* foreign: nodes that may still be visited */
};

struct branch {
    double distance2;
    uint32_t child;
};

static bool visit_leaf(struct near *near, const struct rt_node *node, uint32_t version, unsigned count)
{
    double distances2[RT_LEAF_MAX];
    uint64_t ids[RT_LEAF_MAX];
    for (unsigned i = 0; i < count; i++) {
        ids[i] = RT_GET(node->leaf.id[rt_leaf_at(i)]);
        distances2[i] = rt_leaf_distance2(node, i, near->query);
    }
    if (!l5_page_unchanged(node, version))
        return false;
    for (unsigned i = 0; i < count; i++)
        rt_nearest_offer(&near->best, distances2[i], ids[i]);
    return true;
}

/* The children in order of distance. */
static void list_branches(const struct near *near, const struct rt_node *node, unsigned count, struct branch *branches)
{
    for (unsigned i = 0; i < count; i++) {
        struct branch branch = {rt_inner_distance2(node, i, near->box), RT_GET(node->inner.child[rt_inner_at(i)])};
        unsigned to = i;
        for (; to > 0 && branches[to - 1].distance2 > branch.distance2; to--)
            branches[to] = branches[to - 1];
        branches[to] = branch;
    }
}

/* What was found is void: a writer moved entries, or, if not and the tree is foreign, it is damaged. */
static bool make_void(struct near *near, bool wrong)
{
    wrong = wrong && near->tree->reach && rt_seq_same(&near->tree->header->moves, near->moves);
    near->error = wrong ? -EILSEQ : -EAGAIN;
    return false;
}

static bool foreign_makes_sense(struct near *near, uint32_t index)
{
    return !near->tree->reach || (index < near->tree->reach && near->budget-- > 0);
}

/* False: void. */
static bool visit(struct near *near, uint32_t index, unsigned level)
{
    const struct rt_node *node = near->tree->nodes + index;
    struct branch branches[RT_INNER_MAX];
    unsigned count;
    if (!foreign_makes_sense(near, index))
        return make_void(near, true);
    for (;; rt_pause()) {
        if (!rt_seq_same(&near->tree->header->moves, near->moves) || (near->tree->reach && near->patience-- == 0))
            return make_void(near, false);
        uint32_t version = l5_page_enter(node), meta = RT_GET(node->meta);
        count = rt_meta_count(meta);
        if (version & 1)
            continue;
        if (rt_meta_level(meta) != level || count > rt_max_of(level)) {
            if (l5_page_unchanged(node, version))
                return make_void(near, true); /* it was freed and is another one's now */
            continue;
        }
        if (level == 0) {
            if (visit_leaf(near, node, version, count))
                return true;
            continue;
        }
        list_branches(near, node, count, branches);
        if (l5_page_unchanged(node, version))
            break;
    }
    if (!rt_seq_same(&near->tree->header->moves, near->moves))
        return make_void(near, false);
    for (unsigned i = 0; i < count && !rt_nearest_cuts(&near->best, branches[i].distance2); i++)
        if (!visit(near, branches[i].child, level - 1))
            return false;
    return true;
}

static bool nearest_once(struct near *near)
{
    const struct rt_header *header = near->tree->header;
    near->best.n = 0;
    near->error = -EAGAIN;
    near->patience = RT_PATIENCE;
    near->budget = near->tree->reach;
    near->moves = rt_seq_load(&header->moves);
    if (near->moves & 1)
        return false;
    uint64_t root_height = RT_GET(header->root_height);
    double origin[2] = {RT_GET(header->origin[0]), RT_GET(header->origin[1])};
    if (!rt_seq_same(&header->moves, near->moves))
        return false;
    if (near->tree->reach && !rt_root_makes_sense(root_height, near->tree->reach))
        return make_void(near, true);
    near->box = rt_fbox_of(near->query, origin);
    if (root_height >> 32 && !visit(near, (uint32_t)root_height, (unsigned)(root_height >> 32) - 1))
        return false;
    return rt_seq_same(&header->moves, near->moves);
}

int rt_nearest(struct rtree *tree, const double query[4], size_t k, uint64_t *ids, double *distances2, size_t *found)
{
    *found = 0;
    if (rt_rect_check(query))
        return -EINVAL;
    if (k == 0)
        return 0;
    struct near near = {.tree = tree, .query = query, .best = {.k = k, .ids = ids, .distances2 = distances2}};
    bool done = nearest_once(&near);
    for (unsigned tries = 0; !done && rt_again(tree, near.error, tries); tries++)
        done = nearest_once(&near);
    if (!done && tree->reach)
        return near.error;
    if (!done) {
        rt_lock(tree);
        (void)nearest_once(&near); /* nobody disturbs it now */
        rt_unlock(tree);
    }
    *found = near.best.n;
    rt_nearest_sort(&near.best);
    return 0;
}
