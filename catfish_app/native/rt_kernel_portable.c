/* Kernel for any processor, and the one that the thread sanitizer can see through: every shared word is read by an atomic load, and
 * no version as anything else. */
#include "rt_kernel.h"

#define KERNEL rt_kernel_portable
#define KERNEL_NAME "portable"
#define RT_PREFETCH_LINES 8

struct vq {
    struct rt_fbox f;
    double d[4];
};

static inline struct vq vq_make(const double query[4], struct rt_fbox box)
{
    return (struct vq){.f = box, .d = {query[0], query[1], query[2], query[3]}};
}

static inline uint64_t inner_hits(const struct rt_node *node, const struct vq *vq)
{
    uint64_t mask = 0;
    for (unsigned slot = 0; slot < RT_INNER_MAX; slot++) {
        unsigned i = rt_inner_at(slot);
        unsigned a = RT_GET(node->inner.box[LO_X][i]) <= vq->f.v[HI_X], b = RT_GET(node->inner.box[HI_X][i]) >= vq->f.v[LO_X];
        unsigned c = RT_GET(node->inner.box[LO_Y][i]) <= vq->f.v[HI_Y], d = RT_GET(node->inner.box[HI_Y][i]) >= vq->f.v[LO_Y];
        mask |= (uint64_t)(a & b & c & d) << i; /* without branches, which would be guessed wrong */
    }
    return mask;
}

static inline uint64_t inner_containing(const struct rt_node *node, struct rt_fbox box)
{
    uint64_t mask = 0;
    for (unsigned slot = 0; slot < RT_INNER_MAX; slot++) {
        unsigned i = rt_inner_at(slot);
        unsigned a = node->inner.box[LO_X][i] <= box.v[LO_X], b = node->inner.box[HI_X][i] >= box.v[HI_X];
        unsigned c = node->inner.box[LO_Y][i] <= box.v[LO_Y], d = node->inner.box[HI_Y][i] >= box.v[HI_Y];
        mask |= (uint64_t)(a & b & c & d) << i;
    }
    return mask;
}

static inline uint32_t leaf_hits(const struct rt_node *node, const struct vq *vq)
{
    uint32_t mask = 0;
    for (unsigned slot = 0; slot < RT_LEAF_MAX; slot++) {
        unsigned i = rt_leaf_at(slot);
        unsigned a = RT_GET(node->leaf.box[LO_X][i]) <= vq->d[HI_X], b = RT_GET(node->leaf.box[HI_X][i]) >= vq->d[LO_X];
        unsigned c = RT_GET(node->leaf.box[LO_Y][i]) <= vq->d[HI_Y], d = RT_GET(node->leaf.box[HI_Y][i]) >= vq->d[LO_Y];
        mask |= (uint32_t)(a & b & c & d) << i;
    }
    return mask;
}

static inline unsigned leaf_emit(const struct rt_node *node, uint32_t mask, uint64_t *out)
{
    unsigned n = 0;
    for (; mask; mask &= mask - 1)
        out[n++] = RT_GET(node->leaf.id[__builtin_ctz(mask)]);
    return n;
}

#include "rt_traverse.h"
