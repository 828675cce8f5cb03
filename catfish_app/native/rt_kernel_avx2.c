/* Kernel for x86 with AVX2: eight boxes of an inner node, or four rectangles of a leaf, per compare. */
#include "rt_kernel.h"

#ifdef RT_X86

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,popcnt,lzcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,popcnt,lzcnt")
#endif

/* A vector load is no atomic access in the eyes of C or of the thread sanitizer. On x86 each aligned eight bytes of it
 * are read at once, and what the writer changed in between is found by the sequence word. */
#ifdef RT_TSAN
#define RT_RACY __attribute__((noinline, no_sanitize("thread")))
#else
#define RT_RACY inline
#endif

#define KERNEL rt_kernel_avx2
#define KERNEL_NAME "avx2"
#define RT_PREFETCH_LINES 8

struct vq {
    __m256 f[4];
    __m256d d[4];
};

static RT_RACY struct vq vq_make(const double query[4], struct rt_fbox box)
{
    struct vq vq;
    for (int i = 0; i < 4; i++) {
        vq.f[i] = _mm256_set1_ps(box.v[i]);
        vq.d[i] = _mm256_set1_pd(query[i]);
    }
    return vq;
}

static RT_RACY uint64_t inner_hits(const struct rt_node *node, const struct vq *vq)
{
    uint64_t mask = 0;
    for (unsigned i = 0; i < RT_INNER_PLACES; i += 8) {
        __m256 x = _mm256_and_ps(_mm256_cmp_ps(_mm256_load_ps(node->inner.box[LO_X] + i), vq->f[HI_X], _CMP_LE_OQ),
                                 _mm256_cmp_ps(_mm256_load_ps(node->inner.box[HI_X] + i), vq->f[LO_X], _CMP_GE_OQ));
        __m256 y = _mm256_and_ps(_mm256_cmp_ps(_mm256_load_ps(node->inner.box[LO_Y] + i), vq->f[HI_Y], _CMP_LE_OQ),
                                 _mm256_cmp_ps(_mm256_load_ps(node->inner.box[HI_Y] + i), vq->f[LO_Y], _CMP_GE_OQ));
        mask |= (uint64_t)(unsigned)_mm256_movemask_ps(_mm256_and_ps(x, y)) << i;
    }
    return mask;
}

static RT_RACY uint64_t inner_containing(const struct rt_node *node, struct rt_fbox box)
{
    uint64_t mask = 0;
    for (unsigned i = 0; i < RT_INNER_PLACES; i += 8) {
        __m256 x = _mm256_and_ps(
            _mm256_cmp_ps(_mm256_load_ps(node->inner.box[LO_X] + i), _mm256_set1_ps(box.v[LO_X]), _CMP_LE_OQ),
            _mm256_cmp_ps(_mm256_load_ps(node->inner.box[HI_X] + i), _mm256_set1_ps(box.v[HI_X]), _CMP_GE_OQ));
        __m256 y = _mm256_and_ps(
            _mm256_cmp_ps(_mm256_load_ps(node->inner.box[LO_Y] + i), _mm256_set1_ps(box.v[LO_Y]), _CMP_LE_OQ),
            _mm256_cmp_ps(_mm256_load_ps(node->inner.box[HI_Y] + i), _mm256_set1_ps(box.v[HI_Y]), _CMP_GE_OQ));
        mask |= (uint64_t)(unsigned)_mm256_movemask_ps(_mm256_and_ps(x, y)) << i;
    }
    return mask;
}

static RT_RACY uint32_t leaf_hits(const struct rt_node *node, const struct vq *vq)
{
    uint32_t mask = 0;
    for (unsigned i = 0; i < RT_LEAF_PLACES; i += 4) {
        __m256d x = _mm256_and_pd(_mm256_cmp_pd(_mm256_load_pd(node->leaf.box[LO_X] + i), vq->d[HI_X], _CMP_LE_OQ),
                                  _mm256_cmp_pd(_mm256_load_pd(node->leaf.box[HI_X] + i), vq->d[LO_X], _CMP_GE_OQ));
        __m256d y = _mm256_and_pd(_mm256_cmp_pd(_mm256_load_pd(node->leaf.box[LO_Y] + i), vq->d[HI_Y], _CMP_LE_OQ),
                                  _mm256_cmp_pd(_mm256_load_pd(node->leaf.box[HI_Y] + i), vq->d[LO_Y], _CMP_GE_OQ));
        mask |= (uint32_t)_mm256_movemask_pd(_mm256_and_pd(x, y)) << i;
    }
    return mask;
}

/* Row m: the 32-bit lanes of the 64-bit lanes that are set in m, packed to the left. */
#define LANE(k) 2 * (k), 2 * (k) + 1
static const uint32_t pack_left[16][8] __attribute__((aligned(32))) = {
    {0},
    {LANE(0)},
    {LANE(1)},
    {LANE(0), LANE(1)},
    {LANE(2)},
    {LANE(0), LANE(2)},
    {LANE(1), LANE(2)},
    {LANE(0), LANE(1), LANE(2)},
    {LANE(3)},
    {LANE(0), LANE(3)},
    {LANE(1), LANE(3)},
    {LANE(0), LANE(1), LANE(3)},
    {LANE(2), LANE(3)},
    {LANE(0), LANE(2), LANE(3)},
    {LANE(1), LANE(2), LANE(3)},
    {LANE(0), LANE(1), LANE(2), LANE(3)},
};

/* Whole vectors are stored and the next one overwrites what was not hit: no branch depends on the mask. */
static RT_RACY unsigned leaf_emit(const struct rt_node *node, uint32_t mask, uint64_t *out)
{
    uint64_t *to = out;
    for (unsigned i = 0; i < RT_LEAF_PLACES; i += 4) {
        unsigned bits = mask >> i & 15;
        __m256i ids = _mm256_load_si256((const __m256i *)(node->leaf.id + i));
        __m256i lanes = _mm256_load_si256((const __m256i *)pack_left[bits]);
        _mm256_storeu_si256((__m256i *)to, _mm256_permutevar8x32_epi32(ids, lanes));
        to += __builtin_popcount(bits);
    }
    return (unsigned)(to - out);
}

#include "rt_traverse.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#else
typedef int rt_kernel_avx2_is_for_x86;
#endif
