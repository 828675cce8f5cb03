/* The k nearest so far, and how far entries and boxes are. Internal: shared by the traversal of memory (rt_nearest.c) and that of
 * copies (rt_walk.c), which therefore find the same.
 *
 * The k best so far are a heap, worst on top, in the caller's arrays. A child's distance is taken from its outward-rounded box and
 * the outward-rounded query; both leave a margin much larger than the rounding of what follows, so it never exceeds
 * the distance of anything in it.
 */
#ifndef CATFISH_RT_NEAR_H
#define CATFISH_RT_NEAR_H

#include "rt_node.h"

struct rt_nearest {
    size_t k, n;
    uint64_t *ids;
    double *distances2;
};

static inline double rt_gap2(double before, double past)
{
    double gap = before > past ? before : past;
    return gap > 0 ? gap * gap : 0; /* also for NaN, of infinite boxes */
}

static inline bool rt_after(double distance_a, uint64_t id_a, double distance_b, uint64_t id_b)
{
    return distance_a > distance_b || (distance_a == distance_b && id_a > id_b);
}

static inline bool rt_heap_after(const struct rt_nearest *best, size_t a, size_t b)
{
    return rt_after(best->distances2[a], best->ids[a], best->distances2[b], best->ids[b]);
}

static inline void rt_heap_swap(struct rt_nearest *best, size_t a, size_t b)
{
    double distance2 = best->distances2[a];
    uint64_t id = best->ids[a];
    best->distances2[a] = best->distances2[b];
    best->ids[a] = best->ids[b];
    best->distances2[b] = distance2;
    best->ids[b] = id;
}

static inline void rt_heap_sink(struct rt_nearest *best, size_t n)
{
    for (size_t at = 0, child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && rt_heap_after(best, child + 1, child))
            child++;
        if (!rt_heap_after(best, child, at))
            return;
        rt_heap_swap(best, at, child);
    }
}

static inline void rt_nearest_offer(struct rt_nearest *best, double distance2, uint64_t id)
{
    if (best->n < best->k) {
        size_t at = best->n++;
        best->distances2[at] = distance2;
        best->ids[at] = id;
        for (; at > 0 && rt_heap_after(best, at, (at - 1) / 2); at = (at - 1) / 2)
            rt_heap_swap(best, at, (at - 1) / 2);
    } else if (rt_after(best->distances2[0], best->ids[0], distance2, id)) {
        best->distances2[0] = distance2;
        best->ids[0] = id;
        rt_heap_sink(best, best->n);
    }
}

/* Whether nothing at this distance, or farther, can be one of the k: an equal one may have a smaller id. */
static inline bool rt_nearest_cuts(const struct rt_nearest *best, double distance2)
{
    return best->n == best->k && distance2 > best->distances2[0];
}

/* The heap, worst first, becomes a list, best first. */
static inline void rt_nearest_sort(struct rt_nearest *best)
{
    for (size_t n = best->n; n > 1; n--) {
        rt_heap_swap(best, 0, n - 1);
        rt_heap_sink(best, n - 1);
    }
}

static inline double rt_leaf_distance2(const struct rt_node *node, unsigned slot, const double q[4])
{
    unsigned at = rt_leaf_at(slot);
    return rt_gap2(RT_GET(node->leaf.box[LO_X][at]) - q[HI_X], q[LO_X] - RT_GET(node->leaf.box[HI_X][at])) +
           rt_gap2(RT_GET(node->leaf.box[LO_Y][at]) - q[HI_Y], q[LO_Y] - RT_GET(node->leaf.box[HI_Y][at]));
}

static inline double rt_inner_distance2(const struct rt_node *node, unsigned slot, struct rt_fbox box)
{
    unsigned at = rt_inner_at(slot);
    const float *q = box.v;
    double dx2 = rt_gap2((double)RT_GET(node->inner.box[LO_X][at]) - (double)q[HI_X],
                         (double)q[LO_X] - (double)RT_GET(node->inner.box[HI_X][at]));
    double dy2 = rt_gap2((double)RT_GET(node->inner.box[LO_Y][at]) - (double)q[HI_Y],
                         (double)q[LO_Y] - (double)RT_GET(node->inner.box[HI_Y][at]));
    return dx2 + dy2;
}

#endif
