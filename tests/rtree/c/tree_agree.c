/* Every kernel builds the same bytes and gives the same answers. */
#include "tree_test.h"

struct built {
    struct rtree *tree;
    void *memory;
    size_t bytes;
};

static struct built build_with(const struct rt_kernel *kernel, const double *rects, size_t n, bool packed)
{
    struct built b = {.bytes = rt_arena_bytes(rt_nodes_for(n))};
    b.bytes = (b.bytes + RT_HEADER_BYTES - 1) / RT_HEADER_BYTES * RT_HEADER_BYTES;
    b.memory = aligned_alloc(RT_HEADER_BYTES, b.bytes);
    memset(b.memory, 0, b.bytes);
    REQUIRE(rt_create_in(&b.tree, b.memory, b.bytes) == 0, "no tree");
    b.tree->kernel = kernel;
    size_t bad_row, half = packed ? n / 2 : 0;
    REQUIRE(rt_bulk_load(b.tree, rects, NULL, half, 0.8, &bad_row) == 0, "bulk");
    for (size_t i = half; i < n; i++)
        REQUIRE(rt_insert(b.tree, rects + 4 * i, i) == 0, "insert");
    for (size_t i = 0; i < n; i += 3)
        REQUIRE(rt_delete(b.tree, rects + 4 * i, i) == 0, "delete");
    check_tree(b.tree);
    return b;
}

/* search_many, in groups and with too little room, against one search after another. */
static void compare_many(struct built b, uint64_t *random, double offset, size_t n)
{
    enum { MANY = 200 };
    double queries[MANY][4];
    uint64_t offsets[MANY + 1], *ids = malloc(MANY * n * sizeof *ids), *one = malloc(n * sizeof *one);
    size_t done, total, sum = 0;
    for (unsigned i = 0; i < MANY; i++) {
        random_rect(random, offset, queries[i]);
        REQUIRE(rt_count(b.tree, queries[i], &offsets[0]) == 0, "count");
        sum += offsets[0];
    }
    for (size_t room = sum; room <= sum; room -= sum / 3 + 1) { /* until it wraps */
        int error = rt_search_many(b.tree, queries[0], MANY, offsets, ids, room, &done);
        REQUIRE(error == (room < sum ? -ENOBUFS : 0) && (done == MANY) == (room == sum), "%d, %zu done", error, done);
        for (size_t i = 0; i < done; i++) {
            REQUIRE(rt_search(b.tree, queries[i], one, n, &total) == 0 && total == offsets[i + 1] - offsets[i], "totals");
            REQUIRE(memcmp(one, ids + offsets[i], total * sizeof *one) == 0, "query %zu of %s", i, rt_kernel_name(b.tree));
        }
    }
    queries[77][1] = NAN;
    REQUIRE(rt_search_many(b.tree, queries[0], MANY, offsets, ids, sum, &done) == -EINVAL && done == 77, "%zu", done);
    free(ids);
    free(one);
}

static void compare_answers(struct built a, struct built b, uint64_t *random, double offset, size_t n)
{
    uint64_t *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y), count;
    for (unsigned i = 0; i < 300; i++) {
        double query[4];
        size_t total_x, total_y;
        random_rect(random, offset, query);
        REQUIRE(rt_search(a.tree, query, x, n, &total_x) == 0 && rt_search(b.tree, query, y, n, &total_y) == 0, "search");
        REQUIRE(total_x == total_y && memcmp(x, y, total_x * sizeof *x) == 0, "answers of %s", rt_kernel_name(b.tree));
        REQUIRE(rt_count(b.tree, query, &count) == 0 && count == total_x, "count of %s", rt_kernel_name(b.tree));
    }
    free(x);
    free(y);
}

int agree_main(uint64_t seed, size_t rounds)
{
    const struct rt_kernel *kernels[3] = {&rt_kernel_portable};
    unsigned n_kernels = 1;
#ifdef RT_X86
    kernels[n_kernels++] = &rt_kernel_avx512; /* emulated */
    if (__builtin_cpu_supports("avx2"))
        kernels[n_kernels++] = &rt_kernel_avx2;
#endif
    for (size_t round = 0; round < rounds; round++) {
        size_t n = 200 + next_random(&seed) % 6000;
        double offset = round % 2 ? 1e7 : 0, *rects = malloc(n * 4 * sizeof *rects);
        for (size_t i = 0; i < n; i++)
            random_rect(&seed, offset, rects + 4 * i);
        struct built first = build_with(kernels[0], rects, n, round % 3);
        compare_many(first, &seed, offset, n);
        for (unsigned k = 1; k < n_kernels; k++) {
            struct built other = build_with(kernels[k], rects, n, round % 3);
            REQUIRE(memcmp(first.memory, other.memory, first.bytes) == 0, "the tree of %s differs", kernels[k]->name);
            compare_answers(first, other, &seed, offset, n);
            compare_many(other, &seed, offset, n);
            rt_destroy(other.tree);
            free(other.memory);
        }
        rt_destroy(first.tree);
        free(first.memory);
        free(rects);
    }
    printf("agree: %u kernels\n", n_kernels);
    return 0;
}
