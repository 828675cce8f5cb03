/* What the parts of the test program share. */
#ifndef TREE_TEST_H
#define TREE_TEST_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "rt_kernel.h"

#define REQUIRE(condition, ...)                                          \
    do {                                                                 \
        if (!(condition)) {                                              \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__);                                \
            fputc('\n', stderr);                                         \
            exit(1);                                                     \
        }                                                                \
    } while (0)

static inline uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static inline double uniform(uint64_t *state)
{
    return (double)(next_random(state) >> 11) * 0x1p-53;
}

/* Some on a coarse grid, so that edges touch and rectangles repeat; some points; some large. */
static inline void random_rect(uint64_t *state, double offset, double rect[4])
{
    unsigned kind = (unsigned)(next_random(state) % 8);
    double x = uniform(state), y = uniform(state), size = kind == 7 ? 0.3 : 0.01;
    if (kind < 3) {
        x = floor(x * 16) / 16;
        y = floor(y * 16) / 16;
        size = kind == 0 ? 0 : 0.0625;
    }
    rect[0] = offset + x;
    rect[1] = offset + y;
    rect[2] = offset + x + (kind < 3 ? size : size * uniform(state));
    rect[3] = offset + y + (kind < 3 ? size : size * uniform(state));
}

static inline bool meets(const double a[4], const double b[4])
{
    return a[0] <= b[2] && a[2] >= b[0] && a[1] <= b[3] && a[3] >= b[1];
}

static inline int compare_ids(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static inline void check_tree(struct rtree *tree)
{
    char message[200] = "";
    int error = rt_check(tree, message, sizeof message);
    REQUIRE(error == 0, "%d %s", error, message);
}

int model_main(uint64_t seed, size_t steps);
int agree_main(uint64_t seed, size_t rounds);
int walk_main(uint64_t seed, size_t rounds);
int view_main(uint64_t seed, size_t rounds);
int threads_main(const char *kernel, size_t ops);

#endif
