/* A histogram of durations: eight buckets for each power of two, so within 12.5 %.
 *
 *   0 1 .. 7 | 8 9 .. 15 | 16-17 18-19 .. 30-31 | 32-35 .. 60-63 | ...  nanoseconds
 *
 * Adding is a shift and an increment.  `l5/_latency.py` has the same layout; a test compares them.
 */
#ifndef L5_LATENCY_H
#define L5_LATENCY_H

#include <stdint.h>

enum { L5_LATENCY_BUCKETS = 272 }; /* the last one begins at 64 s and takes all above */

static inline unsigned int l5_latency_index(uint64_t ns)
{
    unsigned int exponent, index;

    if (ns < 8)
        return (unsigned int)ns;
    exponent = 63u - (unsigned int)__builtin_clzll(ns);
    index = (exponent - 2u) * 8u + (unsigned int)((ns >> (exponent - 3u)) & 7u);
    return index < L5_LATENCY_BUCKETS ? index : L5_LATENCY_BUCKETS - 1u;
}

#endif
