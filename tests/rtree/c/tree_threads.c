/* Readers and writers at once. */
#include "rt_foreign.h"
#include "tree_test.h"

enum { STABLE = 1500, MOVING = 40, COMING = 200, WRITERS = 2, READERS = 2, PER_WRITER = MOVING + COMING };
enum { ALL = STABLE + WRITERS * PER_WRITER, ROOM = 20 * ALL };

struct shared {
    struct rtree *tree;
    struct rt_foreign *view; /* the same memory, as others see it */
    double stable[STABLE][4];
    size_t ops;
    int writers_left;
};

struct job {
    struct shared *shared;
    unsigned number;
    size_t answers;
    size_t from_view, disturbed;
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

/* Ask the view first, as a client does, and the tree only if writers disturbed it too often. */
static void ask_view(struct job *job, const double query[4], uint64_t *ids, size_t room, size_t *total)
{
    int error = rt_foreign_search(job->shared->view, query, ids, room, total);
    REQUIRE(error == 0 || error == -EAGAIN, "the view: %d", error);
    job->from_view += error == 0;
    job->disturbed += error != 0;
    if (error)
        REQUIRE(rt_search(job->shared->tree, query, ids, room, total) == 0, "search");
}

static void check_all_found(struct job *job, uint64_t *ids, unsigned char *seen)
{
    static const double everything[4] = {-INFINITY, -INFINITY, INFINITY, INFINITY};
    size_t total;
    if (job->number % 2)
        ask_view(job, everything, ids, 2 * ALL, &total);
    else
        REQUIRE(rt_search(job->shared->tree, everything, ids, 2 * ALL, &total) == 0, "search");
    REQUIRE(total <= 2 * ALL, "%zu results", total);
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
    if (job->number % 2)
        ask_view(job, rect, ids, 2 * ALL, &total);
    else
        REQUIRE(rt_search(job->shared->tree, rect, ids, 2 * ALL, &total) == 0, "search");
    REQUIRE(total <= ALL, "%zu results", total);
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

/* Queries in groups, some of whose lanes a writer disturbs. */
static void check_many(struct job *job, unsigned first, uint64_t *ids)
{
    enum { MANY = 21 };
    double queries[MANY][4];
    uint64_t offsets[MANY + 1];
    size_t done;
    for (unsigned i = 0; i < MANY; i++)
        memcpy(queries[i], job->shared->stable[(first + i) % STABLE], sizeof queries[i]);
    int error = rt_search_many(job->shared->tree, queries[0], MANY, offsets, ids, ROOM, &done);
    REQUIRE(error == 0 && done == MANY, "%d, %zu done", error, done);
    for (unsigned i = 0; i < MANY; i++) {
        unsigned times = 0;
        for (uint64_t k = offsets[i]; k < offsets[i + 1]; k++)
            times += ids[k] == (first + i) % STABLE;
        REQUIRE(times == 1, "id %u %u times", (first + i) % STABLE, times);
    }
}

static void *reader_run(void *argument)
{
    struct job *job = argument;
    uint64_t random = job->number + 500, *ids = malloc(ROOM * sizeof *ids);
    unsigned char *seen = malloc(ALL);
    do {
        unsigned i = (unsigned)(next_random(&random) % STABLE);
        check_one_found(job, i, ids);
        check_nearest(job, i);
        check_many(job, i, ids);
        if (job->answers++ % 16 == 0)
            check_all_found(job, ids, seen);
    } while (!writers_done(job->shared));
    free(ids);
    free(seen);
    return NULL;
}

int threads_main(const char *kernel, size_t ops)
{
    setenv("CATFISH_KERNEL", kernel, 1); /* for the view */
    struct shared *shared = calloc(1, sizeof *shared);
    uint64_t random = 7;
    shared->ops = ops;
    shared->writers_left = WRITERS;
    int error = rt_create(&shared->tree, rt_nodes_for(ALL));
    if (error == -ENOTSUP) {
        printf("threads: this processor has no %s\n", kernel);
        return 77;
    }
    error = rt_foreign_open(&shared->view, shared->tree->header, rt_arena_bytes(shared->tree->header->capacity));
    REQUIRE(error == 0, "no view: %d", error);
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
    size_t answers = 0, from_view = 0, disturbed = 0;
    for (unsigned i = 0; i < WRITERS + READERS; i++) {
        pthread_join(threads[i], NULL);
        answers += i < WRITERS ? 0 : jobs[i].answers;
        from_view += jobs[i].from_view;
        disturbed += jobs[i].disturbed;
    }
    check_tree(shared->tree);
    printf("threads: %s, %zu writes, %zu rounds of reads; the view answered %zu times and not %zu times\n", kernel, 2 * ops,
           answers, from_view, disturbed);
    REQUIRE(from_view > 0, "the view never answered");
    rt_foreign_close(shared->view);
    rt_destroy(shared->tree);
    free(shared);
    return 0;
}
