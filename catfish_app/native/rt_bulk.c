/* Bulk load by sort-tile-recursive (Leutenegger and others, 1997).
 *
 * Each level: sort the boxes by their middle in x, cut them into about sqrt(nodes) slabs, sort each slab by the middle in y,
 * and fill nodes in that order. The n entries are dealt evenly to the nodes (n(i+1)/p - ni/p each), so that none is below the
 * minimum. Sorting is by radix on the order-preserving bits of a double, eleven bits a pass, skipping passes in
 * which all digits agree. Nodes are built unseen by readers and appear with the root.
 */
#include <stdlib.h>

#include "rt_node.h"

struct key {
    uint64_t bits;
    uint32_t row;
};

#define DIGIT_BITS 11
#define DIGITS (1 << DIGIT_BITS)

static uint64_t ordered_bits(double d)
{
    uint64_t bits;
    memcpy(&bits, &d, sizeof bits);
    return bits ^ (bits >> 63 ? ~UINT64_C(0) : UINT64_C(1) << 63);
}

static void radix_sort(struct key *keys, struct key *other, size_t n)
{
    struct key *from = keys, *to = other;
    for (unsigned shift = 0; shift < 64; shift += DIGIT_BITS) {
        size_t start[DIGITS] = {0}, sum = 0;
        for (size_t i = 0; i < n; i++)
            start[from[i].bits >> shift & (DIGITS - 1)]++;
        if (start[from[0].bits >> shift & (DIGITS - 1)] == n)
            continue;
        for (unsigned d = 0; d < DIGITS; d++) {
            size_t count = start[d];
            start[d] = sum;
            sum += count;
        }
        for (size_t i = 0; i < n; i++)
            to[start[from[i].bits >> shift & (DIGITS - 1)]++] = from[i];
        struct key *swap = from;
        from = to;
        to = swap;
    }
    if (from != keys)
        memcpy(keys, from, n * sizeof *keys);
}

static int compare_keys(const void *a, const void *b)
{
    const struct key *x = a, *y = b;
    if (x->bits != y->bits)
        return x->bits < y->bits ? -1 : 1;
    return x->row < y->row ? -1 : x->row > y->row;
}

static void sort_keys(struct key *keys, struct key *other, size_t n)
{
    if (n > 512)
        radix_sort(keys, other, n); /* stable, so rows stay in order as below */
    else
        qsort(keys, n, sizeof *keys, compare_keys);
}

/* One level to be packed: boxes of doubles for leaves, of floats for inner nodes. */
struct level {
    size_t n;
    const double *rects;
    const uint64_t *ids;
    const struct rt_fbox *boxes;
    const uint32_t *children;
};

static double middle(const struct level *level, size_t row, unsigned axis)
{
    if (level->rects)
        return level->rects[4 * row + axis] / 2 + level->rects[4 * row + axis + 2] / 2;
    return (double)level->boxes[row].v[axis] / 2 + (double)level->boxes[row].v[axis + 2] / 2;
}

static void fill_keys(const struct level *level, struct key *keys, size_t n, unsigned axis)
{
    for (size_t i = 0; i < n; i++)
        keys[i].bits = ordered_bits(middle(level, keys[i].row, axis));
}

/* Put the rows in packing order; nodes is how many they will fill. */
static void tile(const struct level *level, struct key *keys, struct key *other, size_t nodes)
{
    size_t slabs = (size_t)ceil(sqrt((double)nodes));
    for (size_t i = 0; i < level->n; i++)
        keys[i].row = (uint32_t)i;
    fill_keys(level, keys, level->n, 0);
    sort_keys(keys, other, level->n);
    for (size_t s = 0; s < slabs; s++) {
        size_t from = nodes * s / slabs * level->n / nodes, to = nodes * (s + 1) / slabs * level->n / nodes;
        fill_keys(level, keys + from, to - from, 1);
        if (to - from > 1)
            sort_keys(keys + from, other, to - from);
    }
}

static void pack_node(struct rtree *tree, const struct level *level, const struct key *keys, size_t n, unsigned depth,
                      uint32_t index)
{
    struct rt_node *node = tree->nodes + index;
    rt_node_begin(node);
    for (unsigned i = 0; i < n; i++) {
        size_t row = keys[i].row;
        if (level->rects)
            rt_put_leaf_entry(node, i, level->rects + 4 * row, level->ids ? level->ids[row] : row);
        else
            rt_put_inner_entry(node, i, level->boxes[row], level->children[row]);
    }
    rt_set_meta(node, (unsigned)n, depth);
    rt_node_end(node);
}

static size_t level_nodes(size_t n, unsigned depth, double fill)
{
    size_t per_node = (size_t)(rt_max_of(depth) * fill);
    return (n + per_node - 1) / per_node;
}

struct work {
    struct key *keys, *other;
    struct rt_fbox *boxes[2];
    uint32_t *children[2];
};

/* Pack levels until one node is left: the root, which is returned. */
static uint32_t pack_all(struct rtree *tree, struct level level, double fill, struct work *work, unsigned *height)
{
    unsigned depth = 0;
    for (;; depth++) {
        size_t nodes = level_nodes(level.n, depth, fill);
        struct rt_fbox *boxes = work->boxes[depth & 1];
        uint32_t *children = work->children[depth & 1];
        tile(&level, work->keys, work->other, nodes);
        for (size_t i = 0; i < nodes; i++) {
            size_t from = level.n * i / nodes, to = level.n * (i + 1) / nodes;
            children[i] = rt_node_take(tree, depth);
            pack_node(tree, &level, work->keys + from, to - from, depth, children[i]);
            boxes[i] = rt_node_box(tree, tree->nodes + children[i]);
        }
        level = (struct level){.n = nodes, .boxes = boxes, .children = children};
        if (nodes == 1)
            break;
    }
    *height = depth + 1;
    return level.children[0];
}

static uint64_t nodes_needed(size_t n, double fill)
{
    uint64_t sum = 0;
    for (unsigned depth = 0;; depth++) {
        n = level_nodes(n, depth, fill);
        sum += n;
        if (n == 1)
            return sum;
    }
}

static void set_bounds(struct rt_header *header, const double *rects, size_t n)
{
    double *bounds = header->bounds;
    memcpy(bounds, rects, sizeof header->bounds);
    for (size_t i = 1; i < n; i++) {
        for (unsigned axis = 0; axis < 2; axis++) {
            double lo = rects[4 * i + axis], hi = rects[4 * i + axis + 2];
            bounds[axis] = lo < bounds[axis] ? lo : bounds[axis];
            bounds[axis + 2] = hi > bounds[axis + 2] ? hi : bounds[axis + 2];
        }
    }
    header->bounds_stale = 0;
}

static int load_locked(struct rtree *tree, const double *rects, const uint64_t *ids, size_t n, double fill)
{
    struct rt_header *header = tree->header;
    if (header->entries)
        return -EEXIST;
    if (nodes_needed(n, fill) > rt_free_nodes(header))
        return -ENOSPC;
    size_t leaves = level_nodes(n, 0, fill), parents = level_nodes(leaves, 1, fill);
    struct work work = {malloc(n * sizeof(struct key)), malloc(n * sizeof(struct key)),
                        {malloc(leaves * sizeof(struct rt_fbox)), malloc(parents * sizeof(struct rt_fbox))},
                        {malloc(leaves * sizeof(uint32_t)), malloc(parents * sizeof(uint32_t))}};
    int error = -ENOMEM;
    if (work.keys && work.other && work.boxes[0] && work.boxes[1] && work.children[0] && work.children[1]) {
        set_bounds(header, rects, n);
        for (unsigned axis = 0; axis < 2; axis++) /* nobody looks at the origin of an empty tree */
            RT_PUT(header->origin[axis], header->bounds[axis] / 2 + header->bounds[axis + 2] / 2);
        unsigned height;
        uint32_t root = pack_all(tree, (struct level){.n = n, .rects = rects, .ids = ids}, fill, &work, &height);
        rt_moves_begin(tree);
        rt_set_root(tree, root, height);
        RT_PUT(header->entries, n);
        rt_moves_end(tree);
        error = 0;
    }
    free(work.keys);
    free(work.other);
    for (unsigned i = 0; i < 2; i++) {
        free(work.boxes[i]);
        free(work.children[i]);
    }
    return error;
}

int rt_bulk_load(struct rtree *tree, const double *rects, const uint64_t *ids, size_t n, double fill, size_t *bad_row)
{
    *bad_row = 0;
    if (!(fill >= 0.75 && fill <= 1) || n >= RT_NONE)
        return -EINVAL;
    for (size_t i = 0; i < n; i++) {
        if (rt_rect_check(rects + 4 * i)) {
            *bad_row = i;
            return -EINVAL;
        }
    }
    if (n == 0)
        return 0;
    rt_lock(tree);
    int error = load_locked(tree, rects, ids, n, fill);
    rt_unlock(tree);
    return error;
}
