/* Test program of the tree's C core; built plain and under sanitizers by test_native.py.
 *
 *   tree_main model SEED STEPS      random operations against a list, in a small arena that fills up
 *   tree_main agree SEED ROUNDS     every kernel builds the same bytes and gives the same answers (avx512: emulated)
 *   tree_main threads KERNEL OPS    readers and writers at once; the readers check what rtree.h guarantees
 */
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

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static double uniform(uint64_t *state)
{
    return (double)(next_random(state) >> 11) * 0x1p-53;
}

/* Some on a coarse grid, so that edges touch and rectangles repeat; some points; some large. */
static void random_rect(uint64_t *state, double offset, double rect[4])
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

static bool meets(const double a[4], const double b[4])
{
    return a[0] <= b[2] && a[2] >= b[0] && a[1] <= b[3] && a[3] >= b[1];
}

static int compare_ids(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void check_tree(struct rtree *tree)
{
    char message[200] = "";
    int error = rt_check(tree, message, sizeof message);
    REQUIRE(error == 0, "%d %s", error, message);
}

/* ---- model ---- */

struct entry {
    double rect[4];
    uint64_t id;
};

struct model {
    struct entry *entries;
    size_t n;
    struct rtree *tree;
    uint64_t random;
    double offset;
    uint64_t next_id;
    unsigned full; /* how often the arena was full */
    size_t most;
};

static void model_search(struct model *m)
{
    double query[4];
    random_rect(&m->random, m->offset, query);
    uint64_t *found = malloc((m->n + 1) * sizeof *found), *wanted = malloc((m->n + 1) * sizeof *wanted), count;
    size_t n = 0, total;
    for (size_t i = 0; i < m->n; i++)
        if (meets(m->entries[i].rect, query))
            wanted[n++] = m->entries[i].id;
    size_t room = next_random(&m->random) % 4 ? m->n : n / 2;
    REQUIRE(rt_search(m->tree, query, found, room, &total) == 0 && total == n, "%zu results, %zu wanted", total, n);
    REQUIRE(rt_count(m->tree, query, &count) == 0 && count == n, "count %" PRIu64 ", %zu wanted", count, n);
    if (room >= n) {
        qsort(found, n, sizeof *found, compare_ids);
        qsort(wanted, n, sizeof *wanted, compare_ids);
        REQUIRE(memcmp(found, wanted, n * sizeof *found) == 0, "other ids");
    }
    free(found);
    free(wanted);
}

static double distance2(const double a[4], const double b[4])
{
    double dx = fmax(fmax(a[0] - b[2], b[0] - a[2]), 0), dy = fmax(fmax(a[1] - b[3], b[1] - a[3]), 0);
    return dx * dx + dy * dy;
}

static void model_nearest(struct model *m)
{
    double query[4], distances2[10];
    uint64_t ids[10];
    size_t found, k = next_random(&m->random) % 10 + 1;
    random_rect(&m->random, m->offset, query);
    REQUIRE(rt_nearest(m->tree, query, k, ids, distances2, &found) == 0, "failed");
    REQUIRE(found == (m->n < k ? m->n : k), "%zu of %zu", found, k);
    for (size_t i = 1; i < found; i++)
        REQUIRE(distances2[i - 1] < distances2[i] || (distances2[i - 1] == distances2[i] && ids[i - 1] < ids[i]), "order");
    for (size_t i = 0, nearer = 0; found && i < m->n; i++) {
        nearer += distance2(m->entries[i].rect, query) < distances2[found - 1];
        REQUIRE(nearer < k, "something nearer was missed");
    }
}

static void model_insert(struct model *m)
{
    struct entry entry = {.id = m->next_id++};
    random_rect(&m->random, m->offset, entry.rect);
    int error = rt_insert(m->tree, entry.rect, entry.id);
    REQUIRE(error == 0 || error == -ENOSPC, "%d", error);
    if (error)
        m->full++;
    else
        m->entries[m->n++] = entry;
}

static void model_delete(struct model *m)
{
    if (m->n == 0)
        return;
    size_t i = next_random(&m->random) % m->n;
    struct entry *entry = &m->entries[i];
    REQUIRE(rt_delete(m->tree, entry->rect, entry->id + (UINT64_C(1) << 40)) == -ENOENT, "another id");
    REQUIRE(rt_delete(m->tree, entry->rect, entry->id) == 0, "id %" PRIu64, entry->id);
    REQUIRE(rt_delete(m->tree, entry->rect, entry->id) == -ENOENT, "twice");
    *entry = m->entries[--m->n];
}

static void model_update(struct model *m)
{
    double rect[4];
    if (m->n == 0)
        return;
    struct entry *entry = &m->entries[next_random(&m->random) % m->n];
    if (next_random(&m->random) % 2) {
        random_rect(&m->random, m->offset, rect);
    } else { /* a little way */
        memcpy(rect, entry->rect, sizeof rect);
        rect[2] += 0.001 * uniform(&m->random);
    }
    int error = rt_update(m->tree, entry->rect, entry->id, rect);
    REQUIRE(error == 0 || error == -ENOSPC, "%d", error);
    if (error)
        m->full++;
    else
        memcpy(entry->rect, rect, sizeof rect);
}

static void model_bounds(struct model *m)
{
    double bounds[4], wanted[4] = {INFINITY, INFINITY, -INFINITY, -INFINITY};
    for (size_t i = 0; i < m->n; i++)
        for (unsigned side = 0; side < 4; side++)
            wanted[side] = side < 2 ? fmin(wanted[side], m->entries[i].rect[side]) : fmax(wanted[side], m->entries[i].rect[side]);
    int error = rt_bounds(m->tree, bounds);
    REQUIRE(m->n ? error == 0 : error == -ENOENT, "%d", error);
    if (m->n)
        for (unsigned side = 0; side < 4; side++)
            REQUIRE(bounds[side] == wanted[side], "side %u: %.17g, wanted %.17g", side, bounds[side], wanted[side]);
}

static int model_main(uint64_t seed, size_t steps)
{
    static const double offsets[4] = {0, 1.7e9, -1e6, 1e15};
    struct model m = {.random = seed, .offset = offsets[seed % 4]};
    m.entries = calloc(steps + 1, sizeof *m.entries);
    size_t tide = seed % 2 ? steps / 20 : steps / 4; /* odd seeds: small and often full; even seeds: three levels */
    REQUIRE(rt_create(&m.tree, seed % 2 ? 12 : 300) == 0, "no tree");
    for (size_t step = 0; step < steps; step++) {
        bool filling = step / tide % 2 == 0;
        unsigned what = (unsigned)(next_random(&m.random) % 16);
        if (what < (filling ? 10 : 2))
            model_insert(&m);
        else if (what < 12)
            model_delete(&m);
        else if (what == 12)
            model_update(&m);
        else if (what == 13)
            model_nearest(&m);
        else
            model_search(&m);
        model_bounds(&m);
        check_tree(m.tree);
        REQUIRE(rt_size(m.tree) == m.n, "size");
        m.most = m.n > m.most ? m.n : m.most;
    }
    while (m.n)
        model_delete(&m);
    check_tree(m.tree);
    printf("model: %zu steps, up to %zu entries, full %u times\n", steps, m.most, m.full);
    REQUIRE(seed % 2 ? m.full > 0 : m.most > 1200, "the test did not reach what it is for");
    rt_destroy(m.tree);
    free(m.entries);
    return 0;
}

/* ---- agree ---- */

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

static int agree_main(uint64_t seed, size_t rounds)
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
        for (unsigned k = 1; k < n_kernels; k++) {
            struct built other = build_with(kernels[k], rects, n, round % 3);
            REQUIRE(memcmp(first.memory, other.memory, first.bytes) == 0, "the tree of %s differs", kernels[k]->name);
            compare_answers(first, other, &seed, offset, n);
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

/* ---- threads ---- */

enum { STABLE = 1500, MOVING = 40, COMING = 200, WRITERS = 2, READERS = 2, PER_WRITER = MOVING + COMING };
enum { ALL = STABLE + WRITERS * PER_WRITER };

struct shared {
    struct rtree *tree;
    double stable[STABLE][4];
    size_t ops;
    int writers_left;
};

struct job {
    struct shared *shared;
    unsigned number;
    size_t answers;
};

static bool writers_done(struct shared *shared)
{
    return __atomic_load_n(&shared->writers_left, __ATOMIC_ACQUIRE) == 0;
}

/* Slots of one writer: MOVING ones that are always there, somewhere; COMING ones that come and go, with a new id each time (slot
 * + ALL * time), for a reader may well see what was deleted and, elsewhere, what was inserted after that. */
static void *writer_run(void *argument)
{
    struct job *job = argument;
    struct rtree *tree = job->shared->tree;
    uint64_t random = job->number + 100, base = STABLE + job->number * PER_WRITER;
    double rects[PER_WRITER][4];
    bool there[PER_WRITER] = {false};
    uint64_t ids[PER_WRITER];
    for (unsigned i = 0; i < PER_WRITER; i++)
        ids[i] = base + i;
    for (unsigned i = 0; i < MOVING; i++) { /* main put them there, at the origin */
        memset(rects[i], 0, sizeof rects[i]);
        there[i] = true;
    }
    for (size_t op = 0; op < job->shared->ops; op++) {
        unsigned i = (unsigned)(next_random(&random) % PER_WRITER);
        double rect[4];
        random_rect(&random, 0, rect);
        if (i >= MOVING && !there[i])
            ids[i] += ALL;
        int error = i < MOVING  ? rt_update(tree, rects[i], ids[i], rect)
                    : there[i] ? rt_delete(tree, rects[i], ids[i])
                               : rt_insert(tree, rect, ids[i]);
        REQUIRE(error == 0, "writer: %d", error);
        if (i < MOVING || !there[i])
            memcpy(rects[i], rect, sizeof rect);
        there[i] = i < MOVING || !there[i];
    }
    __atomic_sub_fetch(&job->shared->writers_left, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void check_all_found(struct job *job, uint64_t *ids, unsigned char *seen)
{
    static const double everything[4] = {-INFINITY, -INFINITY, INFINITY, INFINITY};
    size_t total;
    REQUIRE(rt_search(job->shared->tree, everything, ids, 2 * ALL, &total) == 0 && total <= 2 * ALL, "%zu results", total);
    memset(seen, 0, ALL);
    qsort(ids, total, sizeof *ids, compare_ids);
    for (size_t i = 0; i < total; i++) {
        REQUIRE(i == 0 || ids[i] != ids[i - 1], "id %" PRIu64 " twice", ids[i]);
        seen[ids[i] % ALL] = 1;
    }
    for (unsigned i = 0; i < ALL; i++) {
        bool always = i < STABLE || (i - STABLE) % PER_WRITER < MOVING;
        REQUIRE(!always || seen[i], "id %u was missed", i);
    }
}

static void check_one_found(struct job *job, unsigned i, uint64_t *ids)
{
    const double *rect = job->shared->stable[i];
    size_t total, times = 0;
    REQUIRE(rt_search(job->shared->tree, rect, ids, 2 * ALL, &total) == 0 && total <= ALL, "%zu results", total);
    for (size_t k = 0; k < total; k++)
        times += ids[k] == i;
    REQUIRE(times == 1, "id %u %zu times", i, times);
}

static void check_nearest(struct job *job, unsigned i)
{
    uint64_t ids[8], count;
    double distances2[8];
    size_t found;
    const double *rect = job->shared->stable[i];
    REQUIRE(rt_nearest(job->shared->tree, rect, 8, ids, distances2, &found) == 0, "nearest");
    REQUIRE(found == 8 && distances2[0] == 0, "%zu, nearest at %g", found, distances2[0]);
    REQUIRE(rt_count(job->shared->tree, rect, &count) == 0 && count >= 1, "count");
}

static void *reader_run(void *argument)
{
    struct job *job = argument;
    uint64_t random = job->number + 500, *ids = malloc(2 * ALL * sizeof *ids);
    unsigned char *seen = malloc(ALL);
    do {
        unsigned i = (unsigned)(next_random(&random) % STABLE);
        check_one_found(job, i, ids);
        check_nearest(job, i);
        if (job->answers++ % 16 == 0)
            check_all_found(job, ids, seen);
    } while (!writers_done(job->shared));
    free(ids);
    free(seen);
    return NULL;
}

static int threads_main(const char *kernel, size_t ops)
{
    struct shared *shared = calloc(1, sizeof *shared);
    uint64_t random = 7;
    shared->ops = ops;
    shared->writers_left = WRITERS;
    REQUIRE(rt_create(&shared->tree, rt_nodes_for(ALL)) == 0, "no tree");
    int error = rt_set_kernel(shared->tree, kernel);
    if (error == -ENOTSUP) {
        printf("threads: this processor has no %s\n", kernel);
        return 77;
    }
    for (unsigned i = 0; i < STABLE; i++) {
        random_rect(&random, 0, shared->stable[i]);
        REQUIRE(rt_insert(shared->tree, shared->stable[i], i) == 0, "insert");
    }
    for (unsigned i = 0; i < WRITERS * PER_WRITER; i++) {
        static const double origin[4] = {0};
        if (i % PER_WRITER < MOVING)
            REQUIRE(rt_insert(shared->tree, origin, STABLE + i) == 0, "insert");
    }
    struct job jobs[WRITERS + READERS];
    pthread_t threads[WRITERS + READERS];
    for (unsigned i = 0; i < WRITERS + READERS; i++) {
        jobs[i] = (struct job){.shared = shared, .number = i};
        REQUIRE(pthread_create(&threads[i], NULL, i < WRITERS ? writer_run : reader_run, &jobs[i]) == 0, "no thread");
    }
    size_t answers = 0;
    for (unsigned i = 0; i < WRITERS + READERS; i++) {
        pthread_join(threads[i], NULL);
        answers += i < WRITERS ? 0 : jobs[i].answers;
    }
    check_tree(shared->tree);
    printf("threads: %s, %zu writes, %zu rounds of reads\n", kernel, 2 * ops, answers);
    rt_destroy(shared->tree);
    free(shared);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "model"))
        return model_main(strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    if (argc == 4 && !strcmp(argv[1], "agree"))
        return agree_main(strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    if (argc == 4 && !strcmp(argv[1], "threads"))
        return threads_main(argv[2], strtoull(argv[3], NULL, 10));
    fprintf(stderr, "usage: tree_main model SEED STEPS | agree SEED ROUNDS | threads KERNEL OPS\n");
    return 2;
}
