/* How two nodes share out entries: the split of the R*-tree (Beckmann and others, 1990, section 4.2).
 *
 * For both axes, sort by lower and by upper edge, and add up the margins of all allowed pairs of groups; the axis with the
 * smaller sum is split. On it, of all groups of both sorts, take those that overlap least, then those of least area.
 */
#include "rt_node.h"

struct order {
    unsigned char at[RT_OVERFLOW_MAX];
};

struct groups {
    struct rt_dbox left[RT_OVERFLOW_MAX];  /* [i]: box of entries 0..i of an order */
    struct rt_dbox right[RT_OVERFLOW_MAX]; /* [i]: box of entries i..n-1 */
};

static struct rt_dbox join(struct rt_dbox a, struct rt_dbox b)
{
    return (struct rt_dbox){{a.v[0] < b.v[0] ? a.v[0] : b.v[0], a.v[1] < b.v[1] ? a.v[1] : b.v[1],
                             a.v[2] > b.v[2] ? a.v[2] : b.v[2], a.v[3] > b.v[3] ? a.v[3] : b.v[3]}};
}

static double margin(struct rt_dbox b)
{
    return (b.v[HI_X] - b.v[LO_X]) + (b.v[HI_Y] - b.v[LO_Y]);
}

static double area(struct rt_dbox b)
{
    return (b.v[HI_X] - b.v[LO_X]) * (b.v[HI_Y] - b.v[LO_Y]);
}

static double overlap(struct rt_dbox a, struct rt_dbox b)
{
    double w = (a.v[HI_X] < b.v[HI_X] ? a.v[HI_X] : b.v[HI_X]) - (a.v[LO_X] > b.v[LO_X] ? a.v[LO_X] : b.v[LO_X]);
    double h = (a.v[HI_Y] < b.v[HI_Y] ? a.v[HI_Y] : b.v[HI_Y]) - (a.v[LO_Y] > b.v[LO_Y] ? a.v[LO_Y] : b.v[LO_Y]);
    return w > 0 && h > 0 ? w * h : 0;
}

void rt_pool_add_node(struct rt_pool *pool, const struct rt_node *node)
{
    unsigned count = rt_count_of(node), n = pool->n;
    bool leaf = rt_level_of(node) == 0;
    for (unsigned i = 0; i < count; i++, n++) {
        struct rt_fbox box = leaf ? (struct rt_fbox){{0}} : rt_entry_fbox(node, i);
        pool->box[n] = leaf ? rt_entry_dbox(node, i) : rt_widen(box);
        pool->ref[n] = leaf ? rt_entry_id(node, i) : rt_entry_child(node, i);
    }
    pool->n = n;
}

void rt_pool_write(const struct rt_pool *pool, unsigned from, unsigned to, struct rt_node *node, unsigned level)
{
    rt_node_begin(node);
    for (unsigned i = from; i < to; i++) {
        const double *v = pool->box[i].v;
        if (level == 0)
            rt_put_leaf_entry(node, i - from, v, pool->ref[i]);
        else /* these doubles were floats, so the casts are exact */
            rt_put_inner_entry(node, i - from, (struct rt_fbox){{(float)v[0], (float)v[1], (float)v[2], (float)v[3]}},
                               (uint32_t)pool->ref[i]);
    }
    rt_set_meta(node, to - from, level);
    rt_node_end(node);
}

/* Insertion sort: nodes are small, and the two sorts of an axis are almost the same order. */
static void sort_by(const struct rt_pool *pool, unsigned side, struct order *order)
{
    double key[RT_OVERFLOW_MAX];
    for (unsigned i = 0; i < pool->n; i++) {
        unsigned char entry = order->at[i];
        double k = pool->box[entry].v[side];
        unsigned at = i;
        for (; at > 0 && key[at - 1] > k; at--) {
            key[at] = key[at - 1];
            order->at[at] = order->at[at - 1];
        }
        key[at] = k;
        order->at[at] = entry;
    }
}

/* Return the sum of the margins of all groups from lo to hi entries on the left. */
static double form_groups(const struct rt_pool *pool, const struct order *order, unsigned lo, unsigned hi, struct groups *groups)
{
    unsigned n = pool->n;
    double sum = 0;
    groups->left[0] = pool->box[order->at[0]];
    for (unsigned i = 1; i < hi; i++)
        groups->left[i] = join(groups->left[i - 1], pool->box[order->at[i]]);
    groups->right[n - 1] = pool->box[order->at[n - 1]];
    for (unsigned i = n - 1; i-- > lo;)
        groups->right[i] = join(groups->right[i + 1], pool->box[order->at[i]]);
    for (unsigned k = lo; k <= hi; k++)
        sum += margin(groups->left[k - 1]) + margin(groups->right[k]);
    return sum;
}

struct choice {
    double overlap, area;
    unsigned count;
};

/* Return whether one of these groups beats the best so far. */
static bool best_groups(const struct groups *groups, unsigned lo, unsigned hi, struct choice *best)
{
    bool better = false;
    for (unsigned k = lo; k <= hi; k++) {
        struct rt_dbox left = groups->left[k - 1], right = groups->right[k];
        double o = overlap(left, right), a = area(left) + area(right);
        if (best->count == 0 || o < best->overlap || (o == best->overlap && a < best->area)) {
            *best = (struct choice){o, a, k};
            better = true;
        }
    }
    return better;
}

static void apply_order(struct rt_pool *pool, const struct order *order)
{
    struct rt_pool sorted;
    for (unsigned i = 0; i < pool->n; i++) {
        sorted.box[i] = pool->box[order->at[i]];
        sorted.ref[i] = pool->ref[order->at[i]];
    }
    memcpy(pool->box, sorted.box, pool->n * sizeof pool->box[0]);
    memcpy(pool->ref, sorted.ref, pool->n * sizeof pool->ref[0]);
}

unsigned rt_pool_split(struct rt_pool *pool, unsigned level)
{
    unsigned n = pool->n, lo = rt_min_of(level), most = rt_max_of(level);
    lo = n - lo > most ? n - most : lo;
    unsigned hi = n - lo;
    struct order order[2][2]; /* [axis][lower or upper edge] */
    struct groups groups[2][2];
    double sum[2];
    for (unsigned axis = 0; axis < 2; axis++) {
        for (unsigned i = 0; i < n; i++)
            order[axis][0].at[i] = (unsigned char)i;
        sort_by(pool, axis, &order[axis][0]);
        order[axis][1] = order[axis][0];
        sort_by(pool, axis + 2, &order[axis][1]);
        sum[axis] = form_groups(pool, &order[axis][0], lo, hi, &groups[axis][0]) +
                    form_groups(pool, &order[axis][1], lo, hi, &groups[axis][1]);
    }
    unsigned axis = sum[1] < sum[0];
    struct choice best = {0};
    best_groups(&groups[axis][0], lo, hi, &best);
    bool upper = best_groups(&groups[axis][1], lo, hi, &best);
    apply_order(pool, &order[axis][upper]);
    return best.count;
}
