/* The AVX-512 kernel on any processor: its intrinsics as loops, so that its logic is tested where there is no such hardware. */
#include <stdint.h>
#include <string.h>

typedef struct {
    float v[16];
} __m512;
typedef struct {
    double v[8];
} __m512d;
typedef struct {
    uint64_t v[8];
} __m512i;
typedef uint16_t __mmask16;
typedef uint8_t __mmask8;

enum { _CMP_LE_OQ, _CMP_GE_OQ };

static inline __m512 _mm512_set1_ps(float value)
{
    __m512 r;
    for (int i = 0; i < 16; i++)
        r.v[i] = value;
    return r;
}
static inline __m512d _mm512_set1_pd(double value)
{
    __m512d r;
    for (int i = 0; i < 8; i++)
        r.v[i] = value;
    return r;
}
static inline __m512 _mm512_load_ps(const void *from)
{
    __m512 r;
    memcpy(&r, from, sizeof r);
    return r;
}
static inline __m512d _mm512_load_pd(const void *from)
{
    __m512d r;
    memcpy(&r, from, sizeof r);
    return r;
}
static inline __m512i _mm512_load_si512(const void *from)
{
    __m512i r;
    memcpy(&r, from, sizeof r);
    return r;
}
static inline void _mm512_storeu_si512(void *to, __m512i value)
{
    memcpy(to, &value, sizeof value);
}
static inline __mmask16 _mm512_mask_cmp_ps_mask(__mmask16 mask, __m512 a, __m512 b, int how)
{
    __mmask16 r = 0;
    for (int i = 0; i < 16; i++)
        r |= (__mmask16)((how == _CMP_LE_OQ ? a.v[i] <= b.v[i] : a.v[i] >= b.v[i]) << i);
    return r & mask;
}
static inline __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int how)
{
    return _mm512_mask_cmp_ps_mask(0xffff, a, b, how);
}
static inline __mmask8 _mm512_mask_cmp_pd_mask(__mmask8 mask, __m512d a, __m512d b, int how)
{
    __mmask8 r = 0;
    for (int i = 0; i < 8; i++)
        r |= (__mmask8)((how == _CMP_LE_OQ ? a.v[i] <= b.v[i] : a.v[i] >= b.v[i]) << i);
    return r & mask;
}
static inline __mmask8 _mm512_cmp_pd_mask(__m512d a, __m512d b, int how)
{
    return _mm512_mask_cmp_pd_mask(0xff, a, b, how);
}
static inline __m512i _mm512_maskz_compress_epi64(__mmask8 mask, __m512i value)
{
    __m512i r = {{0}};
    for (int i = 0, n = 0; i < 8; i++)
        if (mask >> i & 1)
            r.v[n++] = value.v[i];
    return r;
}

#define RT_EMULATED
#include "rt_kernel_avx512.c"
