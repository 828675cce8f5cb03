/* What looks at the whole tree, under the writer's mutex: the invariants, statistics, bounds, and the boxes of a level.
 *
 * Invariants: sequence words are even; each node is reached once, at its parent's level less one; all but the root
 * hold their minimum; the root has an entry, two if it is no leaf; rectangles are valid; each box is exactly the box of what is
 * below; the entries and the exact bounds are those of the header; nodes reached and nodes in the free list are all that were taken.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "rt_node.h"

struct check {
    const struct rtree *tree;
    unsigned char *seen; /* one byte a node that was ever taken */
    uint64_t entries;
    uint64_t nodes;
    double bounds[4];
    char *message;
    size_t message_bytes;
};

__attribute__((format(printf, 2, 3))) static bool broken(const struct check *check, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(check->message, check->message_bytes, format, arguments);
    va_end(arguments);
    return false;
}

static bool check_leaf(struct check *check, uint32_t index, const struct rt_node *node)
{
    unsigned count = rt_count_of(node);
    for (unsigned i = 0; i < count; i++) {
        struct rt_dbox box = rt_entry_dbox(node, i);
        for (unsigned side = 0; side < 4; side++) {
            double v = box.v[side];
            if (side < 2 ? v < check->bounds[side] : v > check->bounds[side])
                check->bounds[side] = v;
        }
        if (rt_rect_check(box.v))
            return broken(check, "leaf %u entry %u: not a valid rectangle", index, i);
    }
    check->entries += count;
    return true;
}

static bool check_shape(const struct check *check, uint32_t index, unsigned level, bool root)
{
    const struct rt_header *header = check->tree->header;
    if (index >= header->used)
        return broken(check, "node %u was never taken", index);
    const struct rt_node *node = check->tree->nodes + index;
    unsigned count = rt_count_of(node), least = root ? (level ? 2 : 1) : rt_min_of(level);
    if (check->seen[index])
        return broken(check, "node %u is reached twice", index);
    if (!l5_page_is_whole(node, RT_NODE_LINES))
        return broken(check, "node %u: its version is odd, or not the same in all lines", index);
    if (rt_level_of(node) != level)
        return broken(check, "node %u: level %u instead of %u", index, rt_level_of(node), level);
    if (count < least || count > rt_max_of(level))
        return broken(check, "node %u of level %u: %u entries, not %u to %u", index, level, count, least, rt_max_of(level));
    return true;
}

static bool check_node(struct check *check, uint32_t index, unsigned level, bool root)
{
    if (!check_shape(check, index, level, root))
        return false;
    const struct rt_node *node = check->tree->nodes + index;
    check->seen[index] = 1;
    check->nodes++;
    if (level == 0)
        return check_leaf(check, index, node);
    for (unsigned i = 0; i < rt_count_of(node); i++) {
        uint32_t child = rt_entry_child(node, i);
        if (!check_node(check, child, level - 1, false))
            return false;
        if (!rt_fbox_equal(rt_entry_fbox(node, i), rt_node_box(check->tree, check->tree->nodes + child)))
            return broken(check, "node %u entry %u: its box is not that of node %u", index, i, child);
    }
    return true;
}

static bool check_free_list(struct check *check)
{
    const struct rt_header *header = check->tree->header;
    uint32_t n = 0;
    for (uint32_t index = header->free_head; index != RT_NONE; index = check->tree->nodes[index].next_free, n++) {
        if (index >= header->used || check->seen[index])
            return broken(check, "free list: node %u is in use, or listed twice, or was never taken", index);
        check->seen[index] = 1;
    }
    if (n != header->free_count)
        return broken(check, "free list: %u nodes, counted %u", n, header->free_count);
    if (check->nodes + n != header->used)
        return broken(check, "%u nodes taken, %llu in the tree, %u free", header->used, (unsigned long long)check->nodes, n);
    return true;
}

static bool check_header(const struct check *check)
{
    const struct rt_header *header = check->tree->header;
    if (header->magic != RT_MAGIC || header->format != RT_FORMAT || header->node_bytes != RT_NODE_BYTES)
        return broken(check, "header: not a tree of this format");
    if (header->moves & 1 || check->tree->move_depth)
        return broken(check, "header: its sequence word is odd");
    if (header->used > header->capacity)
        return broken(check, "header: %u nodes taken of %u", header->used, header->capacity);
    if (rt_height(header) > RT_MAX_HEIGHT || (rt_height(header) == 0) != (rt_root(header) == RT_NONE))
        return broken(check, "header: root %u with height %u", rt_root(header), rt_height(header));
    return true;
}

static bool check_totals(const struct check *check)
{
    const struct rt_header *header = check->tree->header;
    if (check->entries != header->entries)
        return broken(check, "%llu entries, counted %llu", (unsigned long long)check->entries,
                      (unsigned long long)header->entries);
    if (check->entries && !header->bounds_stale && memcmp(check->bounds, header->bounds, sizeof check->bounds) != 0)
        for (unsigned side = 0; side < 4; side++)
            if (check->bounds[side] != header->bounds[side]) /* -0 equals 0 */
                return broken(check, "bounds: side %u is %.17g, recorded %.17g", side, check->bounds[side],
                              header->bounds[side]);
    return true;
}

static bool check_all(struct check *check)
{
    const struct rt_header *header = check->tree->header;
    unsigned height = rt_height(header);
    if (!check_header(check) || (height && !check_node(check, rt_root(header), height - 1, true)))
        return false;
    return check_free_list(check) && check_totals(check);
}

int rt_check(struct rtree *tree, char *message, size_t message_bytes)
{
    struct check check = {.tree = tree,
                          .bounds = {INFINITY, INFINITY, -INFINITY, -INFINITY},
                          .message = message,
                          .message_bytes = message_bytes};
    rt_lock(tree);
    check.seen = calloc(tree->header->used ? tree->header->used : 1, 1);
    int error = !check.seen ? -ENOMEM : check_all(&check) ? 0 : -EILSEQ;
    rt_unlock(tree);
    free(check.seen);
    return error;
}

/* ---- statistics and boxes ---- */

struct walk {
    const struct rtree *tree;
    uint64_t nodes[2], entries[2]; /* of leaves, of inner nodes */
    unsigned level;                /* whose boxes are wanted */
    double *rects;
    size_t capacity, total;
};

static void count_below(struct walk *walk, uint32_t index, unsigned level)
{
    const struct rt_node *node = walk->tree->nodes + index;
    unsigned count = rt_count_of(node);
    walk->nodes[level > 0]++;
    walk->entries[level > 0] += count;
    for (unsigned i = 0; level > 0 && i < count; i++)
        count_below(walk, rt_entry_child(node, i), level - 1);
}

static double fill_of(uint64_t entries, uint64_t nodes, unsigned most)
{
    return nodes ? (double)entries / ((double)nodes * most) : 0;
}

int rt_stats(struct rtree *tree, struct rt_stats *stats)
{
    const struct rt_header *header = tree->header;
    struct walk walk = {.tree = tree};
    rt_lock(tree);
    unsigned height = rt_height(header);
    if (height)
        count_below(&walk, rt_root(header), height - 1);
    *stats = (struct rt_stats){
        .entries = header->entries,
        .height = height,
        .leaf_nodes = (uint32_t)walk.nodes[0],
        .inner_nodes = (uint32_t)walk.nodes[1],
        .capacity_nodes = header->capacity,
        .free_nodes = rt_free_nodes(header),
        .arena_bytes = rt_arena_bytes(header->capacity),
        .leaf_fill = fill_of(walk.entries[0], walk.nodes[0], RT_LEAF_MAX),
        .inner_fill = fill_of(walk.entries[1], walk.nodes[1], RT_INNER_MAX),
    };
    rt_unlock(tree);
    return 0;
}

/* The exact extreme of one side: only children whose box may hold a better one are looked at. */
static void extreme(const struct rtree *tree, uint32_t index, unsigned level, unsigned side, double *best)
{
    const struct rt_node *node = tree->nodes + index;
    double origin = tree->header->origin[side & 1];
    for (unsigned i = 0; i < rt_count_of(node); i++) {
        if (level == 0) {
            double v = rt_entry_dbox(node, i).v[side];
            if (side < 2 ? v < *best : v > *best)
                *best = v;
        } else {
            float v = rt_entry_fbox(node, i).v[side];
            if (side < 2 ? v <= rt_down(*best - origin) : v >= rt_up(*best - origin))
                extreme(tree, rt_entry_child(node, i), level - 1, side, best);
        }
    }
}

static void refresh_bounds(struct rtree *tree)
{
    struct rt_header *header = tree->header;
    for (unsigned side = 0; side < 4; side++) {
        double best = side < 2 ? INFINITY : -INFINITY;
        extreme(tree, rt_root(header), rt_height(header) - 1, side, &best);
        header->bounds[side] = best;
    }
    header->bounds_stale = 0;
}

int rt_bounds(struct rtree *tree, double bounds[4])
{
    int error = -ENOENT;
    rt_lock(tree);
    if (tree->header->entries) {
        if (tree->header->bounds_stale)
            refresh_bounds(tree);
        memcpy(bounds, tree->header->bounds, sizeof tree->header->bounds);
        error = 0;
    }
    rt_unlock(tree);
    return error;
}

static void add_box(struct walk *walk, struct rt_fbox box)
{
    if (walk->total < walk->capacity)
        for (unsigned side = 0; side < 4; side++)
            walk->rects[4 * walk->total + side] = (double)box.v[side] + walk->tree->header->origin[side & 1];
    walk->total++;
}

static void list_level(struct walk *walk, uint32_t index, unsigned level)
{
    const struct rt_node *node = walk->tree->nodes + index;
    for (unsigned i = 0; i < rt_count_of(node); i++) {
        if (level == walk->level + 1)
            add_box(walk, rt_entry_fbox(node, i));
        else
            list_level(walk, rt_entry_child(node, i), level - 1);
    }
}

int rt_level_rects(struct rtree *tree, uint32_t level, double *rects, size_t capacity, size_t *total)
{
    const struct rt_header *header = tree->header;
    struct walk walk = {.tree = tree, .level = level, .rects = rects, .capacity = capacity};
    int error = 0;
    rt_lock(tree);
    unsigned height = rt_height(header);
    if (level >= height)
        error = -ENOENT;
    else if (level == height - 1)
        add_box(&walk, rt_node_box(tree, tree->nodes + rt_root(header)));
    else
        list_level(&walk, rt_root(header), height - 1);
    rt_unlock(tree);
    *total = walk.total;
    return error;
}
