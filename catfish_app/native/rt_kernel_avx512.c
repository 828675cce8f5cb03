/* Kernel for x86 with AVX-512: sixteen boxes of an inner node, or eight rectangles of a leaf, per compare. Hits are compressed in
 * a register and stored whole: compressing into memory is microcoded on some processors.
 *
 * The tests compile this file with RT_EMULATED and an emulation of the few intrinsics, to check it where there is no AVX-512.
 */
#include "rt_kernel.h"

#ifdef RT_X86

#ifndef RT_EMULATED
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,bmi,bmi2,popcnt,lzcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,bmi,bmi2,popcnt,lzcnt")
#endif
#endif

/* See rt_kernel_avx2.c. */
#ifdef RT_TSAN
#define RT_RACY __attribute__((noinline, no_sanitize("thread")))
#else
#define RT_RACY inline
#endif

#define KERNEL rt_kernel_avx512
#define KERNEL_NAME "avx512"
#define RT_PREFETCH_LINES 8

struct vq {
    __m512 f[4];
    __m512d d[4];
};

static RT_RACY struct vq vq_make(const double query[4], struct rt_fbox box)
{
    struct vq vq;
    for (int i = 0; i < 4; i++) {
        vq.f[i] = _mm512_set1_ps(box.v[i]);
        vq.d[i] = _mm512_set1_pd(query[i]);
    }
    return vq;
}

static RT_RACY uint64_t inner_hits(const struct rt_node *node, const struct vq *vq)
{
    uint64_t mask = 0;
    for (unsigned i = 0; i < RT_INNER_PLACES; i += 16) {
        __mmask16 hit = _mm512_cmp_ps_mask(_mm512_load_ps(node->inner.box[LO_X] + i), vq->f[HI_X], _CMP_LE_OQ);
        hit = _mm512_mask_cmp_ps_mask(hit, _mm512_load_ps(node->inner.box[HI_X] + i), vq->f[LO_X], _CMP_GE_OQ);
        hit = _mm512_mask_cmp_ps_mask(hit, _mm512_load_ps(node->inner.box[LO_Y] + i), vq->f[HI_Y], _CMP_LE_OQ);
        hit = _mm512_mask_cmp_ps_mask(hit, _mm512_load_ps(node->inner.box[HI_Y] + i), vq->f[LO_Y], _CMP_GE_OQ);
        mask |= (uint64_t)hit << i;
    }
    return mask;
}

static RT_RACY uint64_t inner_containing(const struct rt_node *node, struct rt_fbox box)
{
    uint64_t mask = 0;
    for (unsigned i = 0; i < RT_INNER_PLACES; i += 16) {
        __mmask16 hit = _mm512_cmp_ps_mask(_mm512_load_ps(node->inner.box[LO_X] + i), _mm512_set1_ps(box.v[LO_X]), _CMP_LE_OQ);
        hit = _mm512_mask_cmp_ps_mask(hit, _mm512_load_ps(node->inner.box[HI_X] + i), _mm512_set1_ps(box.v[HI_X]), _CMP_GE_OQ);
        hit = _mm512_mask_cmp_ps_mask(hit, _mm512_load_ps(node->inner.box[LO_Y] + i), _mm512_set1_ps(box.v[LO_Y]), _CMP_LE_OQ);
        hit = _mm512_mask_cmp_ps_mask(hit, _mm512_load_ps(node->inner.box[HI_Y] + i), _mm512_set1_ps(box.v[HI_Y]), _CMP_GE_OQ);
        mask |= (uint64_t)hit << i;
    }
    return mask;
}

static RT_RACY uint32_t leaf_hits(const struct rt_node *node, const struct vq *vq)
{
    uint32_t mask = 0;
    for (unsigned i = 0; i < RT_LEAF_PLACES; i += 8) {
        __mmask8 hit = _mm512_cmp_pd_mask(_mm512_load_pd(node->leaf.box[LO_X] + i), vq->d[HI_X], _CMP_LE_OQ);
        hit = _mm512_mask_cmp_pd_mask(hit, _mm512_load_pd(node->leaf.box[HI_X] + i), vq->d[LO_X], _CMP_GE_OQ);
        hit = _mm512_mask_cmp_pd_mask(hit, _mm512_load_pd(node->leaf.box[LO_Y] + i), vq->d[HI_Y], _CMP_LE_OQ);
        hit = _mm512_mask_cmp_pd_mask(hit, _mm512_load_pd(node->leaf.box[HI_Y] + i), vq->d[LO_Y], _CMP_GE_OQ);
        mask |= (uint32_t)hit << i;
    }
    return mask;
}

static RT_RACY unsigned leaf_emit(const struct rt_node *node, uint32_t mask, uint64_t *out)
{
    uint64_t *to = out;
    for (unsigned i = 0; i < RT_LEAF_PLACES; i += 8) {
        __mmask8 bits = (__mmask8)(mask >> i);
        _mm512_storeu_si512(to, _mm512_maskz_compress_epi64(bits, _mm512_load_si512(node->leaf.id + i)));
        to += __builtin_popcount(bits);
    }
    return (unsigned)(to - out);
}

#include "rt_traverse.h"

#ifndef RT_EMULATED
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

#else
typedef int rt_kernel_avx512_is_for_x86;
#endif
