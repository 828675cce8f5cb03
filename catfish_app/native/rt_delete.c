/* Deletion and update.
 *
 * A node that falls below its minimum is merged with the sibling whose box grows least by it, or, if the two do not fit in one
 * node, shares its entries with it by the R*-tree split. The original tree inserts the orphans anew instead, which may need
 * nodes; this needs none, so a deletion never fails in a full arena, and touches one path only.
 */
#include "rt_kernel.h"

static bool find_in_leaf(const struct rt_node *leaf, const double rect[4], uint64_t id, unsigned *slot)
{
    unsigned count = rt_count_of(leaf);
    for (unsigned i = 0; i < count; i++) {
        struct rt_dbox box = rt_entry_dbox(leaf, i);
        if (rt_entry_id(leaf, i) == id && box.v[LO_X] == rect[LO_X] && box.v[LO_Y] == rect[LO_Y] &&
            box.v[HI_X] == rect[HI_X] && box.v[HI_Y] == rect[HI_Y]) {
            *slot = i;
            return true;
        }
    }
    return false;
}

struct target {
    const double *rect;
    struct rt_fbox box;
    uint64_t id;
};

static bool find_below(const struct rtree *tree, uint32_t index, unsigned level, const struct target *target, struct rt_path *path)
{
    const struct rt_node *node = tree->nodes + index;
    path->node[level] = index;
    if (level == 0)
        return find_in_leaf(node, target->rect, target->id, &path->slot[0]);
    for (uint64_t mask = tree->kernel->containing(node, target->box); mask; mask &= mask - 1) {
        path->slot[level] = rt_inner_slot((unsigned)__builtin_ctzll(mask));
        if (find_below(tree, rt_entry_child(node, path->slot[level]), level - 1, target, path))
            return true;
    }
    return false;
}

bool rt_find_locked(struct rtree *tree, const double rect[4], uint64_t id, struct rt_path *path)
{
    const struct rt_header *header = tree->header;
    path->height = rt_height(header);
    if (path->height == 0)
        return false;
    struct target target = {rect, rt_fbox_of(rect, header->origin), id};
    return find_below(tree, rt_root(header), path->height - 1, &target, path);
}

static void put_box(struct rt_node *node, unsigned slot, struct rt_fbox box)
{
    rt_node_begin(node);
    rt_put_inner_entry(node, slot, box, rt_entry_child(node, slot));
    rt_node_end(node);
}

/* Make the boxes above the path's node of this level tight again. */
void rt_tighten(struct rtree *tree, const struct rt_path *path, unsigned level)
{
    for (; level + 1 < path->height; level++) {
        struct rt_node *parent = tree->nodes + path->node[level + 1];
        unsigned slot = path->slot[level + 1];
        struct rt_fbox box = rt_node_box(tree, tree->nodes + path->node[level]);
        if (rt_fbox_equal(box, rt_entry_fbox(parent, slot)))
            return;
        put_box(parent, slot, box);
    }
}

static void remove_entry(struct rt_node *node, unsigned slot)
{
    unsigned last = rt_count_of(node) - 1, level = rt_level_of(node);
    rt_node_begin(node);
    if (slot != last)
        rt_copy_entry(node, slot, last);
    rt_set_meta(node, last, level);
    rt_node_end(node);
}

static float box_area(struct rt_fbox box)
{
    return (box.v[HI_X] - box.v[LO_X]) * (box.v[HI_Y] - box.v[LO_Y]);
}

static unsigned choose_sibling(const struct rt_node *parent, unsigned slot)
{
    struct rt_fbox box = rt_entry_fbox(parent, slot);
    unsigned count = rt_count_of(parent), best = slot == 0 ? 1 : 0;
    float least = INFINITY;
    for (unsigned i = 0; i < count; i++) {
        struct rt_fbox other = rt_entry_fbox(parent, i);
        float growth = box_area(rt_fbox_union(box, other)) - box_area(other);
        if (i != slot && growth < least) {
            least = growth;
            best = i;
        }
    }
    return best;
}

/* The root of an inner level with one child gives way to it. */
static void lower_root(struct rtree *tree)
{
    uint32_t root = rt_root(tree->header);
    unsigned height = rt_height(tree->header);
    while (height > 1 && rt_count_of(tree->nodes + root) == 1) {
        uint32_t child = rt_entry_child(tree->nodes + root, 0);
        rt_set_root(tree, child, --height);
        rt_node_free(tree, root);
        root = child;
    }
}

/* Merge or even out the path's node of this level, which is below its minimum. Return whether the parent lost an entry. */
static bool merge(struct rtree *tree, const struct rt_path *path, unsigned level)
{
    struct rt_node *parent = tree->nodes + path->node[level + 1];
    unsigned slot = path->slot[level + 1], other = choose_sibling(parent, slot);
    uint32_t index = path->node[level], sibling = rt_entry_child(parent, other);
    struct rt_pool pool = {0};
    rt_pool_add_node(&pool, tree->nodes + sibling);
    rt_pool_add_node(&pool, tree->nodes + index);
    if (pool.n <= rt_max_of(level)) {
        rt_pool_write(&pool, 0, pool.n, tree->nodes + sibling, level);
        put_box(parent, other, rt_node_box(tree, tree->nodes + sibling));
        remove_entry(parent, slot);
        rt_node_free(tree, index);
        return true;
    }
    unsigned k = rt_pool_split(&pool, level);
    rt_pool_write(&pool, 0, k, tree->nodes + sibling, level);
    rt_pool_write(&pool, k, pool.n, tree->nodes + index, level);
    put_box(parent, other, rt_node_box(tree, tree->nodes + sibling));
    put_box(parent, slot, rt_node_box(tree, tree->nodes + index));
    return false;
}

static void condense(struct rtree *tree, const struct rt_path *path)
{
    unsigned level = 0;
    while (level + 1 < path->height && rt_count_of(tree->nodes + path->node[level]) < rt_min_of(level)) {
        bool lost = merge(tree, path, level);
        level++;
        if (!lost)
            break;
    }
    rt_tighten(tree, path, level);
    lower_root(tree);
}

static bool touches_bounds(const struct rt_header *header, const double rect[4])
{
    const double *bounds = header->bounds;
    return rect[0] <= bounds[0] || rect[1] <= bounds[1] || rect[2] >= bounds[2] || rect[3] >= bounds[3];
}

static void remove_last(struct rtree *tree)
{
    rt_moves_begin(tree);
    rt_node_free(tree, rt_root(tree->header));
    rt_set_root(tree, RT_NONE, 0);
    rt_moves_end(tree);
}

static void remove_at(struct rtree *tree, const struct rt_path *path)
{
    struct rt_header *header = tree->header;
    struct rt_node *leaf = tree->nodes + path->node[0];
    unsigned left = rt_count_of(leaf) - 1;
    if (path->height == 1 && left == 0) {
        remove_last(tree);
    } else if (path->height == 1 || left >= RT_LEAF_MIN) {
        remove_entry(leaf, path->slot[0]);
        rt_tighten(tree, path, 0);
    } else {
        rt_moves_begin(tree);
        remove_entry(leaf, path->slot[0]);
        condense(tree, path);
        rt_moves_end(tree);
    }
    RT_PUT(header->entries, header->entries - 1);
}

int rt_delete_locked(struct rtree *tree, const double rect[4], uint64_t id)
{
    struct rt_path path;
    if (!rt_find_locked(tree, rect, id, &path))
        return -ENOENT;
    if (touches_bounds(tree->header, rect))
        tree->header->bounds_stale = 1;
    remove_at(tree, &path);
    return 0;
}

int rt_delete(struct rtree *tree, const double rect[4], uint64_t id)
{
    if (rt_rect_check(rect))
        return -EINVAL;
    rt_lock(tree);
    int error = rt_delete_locked(tree, rect, id);
    rt_unlock(tree);
    return error;
}

/* Overwrite the entry where it is, if its leaf's box holds the new place, too. */
static bool update_in_place(struct rtree *tree, const struct rt_path *path, const double rect[4], uint64_t id)
{
    struct rt_node *leaf = tree->nodes + path->node[0];
    if (path->height > 1) {
        struct rt_fbox box = rt_fbox_of(rect, tree->header->origin);
        struct rt_fbox room = rt_entry_fbox(tree->nodes + path->node[1], path->slot[1]);
        if (!rt_fbox_equal(rt_fbox_union(room, box), room))
            return false;
    }
    rt_node_begin(leaf);
    rt_put_leaf_entry(leaf, path->slot[0], rect, id);
    rt_node_end(leaf);
    rt_tighten(tree, path, 0);
    return true;
}

/* The new entry goes in before the old one comes out: if there is no room for it, nothing has changed. */
static int move_entry(struct rtree *tree, const double old_rect[4], uint64_t id, const double new_rect[4])
{
    rt_moves_begin(tree); /* no reader sees both */
    int error = rt_insert_locked(tree, new_rect, id);
    if (!error)
        error = rt_delete_locked(tree, old_rect, id);
    rt_moves_end(tree);
    return error;
}

int rt_update_locked(struct rtree *tree, const double old_rect[4], uint64_t id, const double new_rect[4])
{
    struct rt_header *header = tree->header;
    struct rt_path path;
    if (!rt_find_locked(tree, old_rect, id, &path))
        return -ENOENT;
    if (!update_in_place(tree, &path, new_rect, id))
        return move_entry(tree, old_rect, id, new_rect);
    for (unsigned axis = 0; axis < 2; axis++) {
        if (new_rect[axis] < header->bounds[axis])
            header->bounds[axis] = new_rect[axis];
        if (new_rect[axis + 2] > header->bounds[axis + 2])
            header->bounds[axis + 2] = new_rect[axis + 2];
    }
    if (touches_bounds(header, old_rect))
        header->bounds_stale = 1;
    return 0;
}

int rt_update(struct rtree *tree, const double old_rect[4], uint64_t id, const double new_rect[4])
{
    if (rt_rect_check(old_rect) || rt_rect_check(new_rect))
        return -EINVAL;
    rt_lock(tree);
    int error = rt_update_locked(tree, old_rect, id, new_rect);
    rt_unlock(tree);
    return error;
}
