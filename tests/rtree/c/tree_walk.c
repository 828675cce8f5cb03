/* Walks through copies: a writer changes the tree between any two words of a copy, and between any two copies.
 *
 * All of it is one thread and a random number: which of the spans under way is served next, how many of its words are copied before
 * the writer does something, what the writer does. What was there throughout must be found, once; copies that nobody would send
 * must do no harm. */
#include "rt_foreign.h"
#include "rt_walk.h"
#include "tree_test.h"

enum { STABLE = 700, COMING = 300, UNDER_WAY = 64, TRIES = 40, K = 6, ROOM = STABLE + COMING + 1 };

struct world {
    uint64_t random;
    struct rtree *tree;
    char *memory;
    size_t bytes;
    double stable[STABLE][4], coming[COMING][4];
    bool there[COMING];
    unsigned restless; /* one in so many words is followed by a write; 0: nobody writes */
    unsigned bursts;   /* one in so many copies is preceded by many writes, which split nodes and merge them; 0: none */
    unsigned spoils;   /* one in so many copies is nonsense; 0: none */
    size_t outcomes[3];
};

static void write_something(struct world *world)
{
    unsigned i = (unsigned)(next_random(&world->random) % COMING);
    double *rect = world->coming[i];
    int error;
    if (world->there[i] && next_random(&world->random) % 4 == 0) {
        double to[4];
        random_rect(&world->random, 0, to);
        error = rt_update(world->tree, rect, STABLE + i, to);
        memcpy(rect, to, sizeof to);
    } else if (world->there[i]) {
        error = rt_delete(world->tree, rect, STABLE + i);
        world->there[i] = false;
    } else {
        random_rect(&world->random, 0, rect);
        error = rt_insert(world->tree, rect, STABLE + i);
        world->there[i] = true;
    }
    REQUIRE(error == 0, "the writer: %d", error);
}

/* A copy as regions promise it: words of eight bytes, ascending; anything may happen in between. */
static void copy(struct world *world, uint64_t *to, uint64_t offset, size_t bytes)
{
    REQUIRE(offset <= world->bytes && bytes <= world->bytes - offset && offset % 8 == 0, "a span within the region");
    if (world->bursts && next_random(&world->random) % world->bursts == 0)
        for (unsigned i = 0; i < COMING; i++)
            write_something(world);
    for (size_t word = 0; word < bytes / 8; word++) {
        if (world->restless && next_random(&world->random) % world->restless == 0)
            write_something(world);
        memcpy(to + word, world->memory + offset + 8 * word, 8);
    }
    if (world->spoils && next_random(&world->random) % world->spoils == 0) {
        size_t at = next_random(&world->random) % (bytes / 8);
        to[at] = next_random(&world->random) >> next_random(&world->random) % 64;
        if (bytes == RT_NODE_BYTES && next_random(&world->random) % 2)
            ((struct rt_node *)to)->meta = rt_meta((unsigned)to[at] % 70, (unsigned)(to[at] >> 8) % 14);
    }
}

/* Serve what a walk wants, in any order, until it is over. */
static int drive(struct world *world, struct rt_walk *walk)
{
    uint64_t spans[UNDER_WAY][2], page[RT_NODE_BYTES / 8] __attribute__((aligned(64)));
    size_t n = 0;
    while (rt_walk_outcome(walk) == -EINPROGRESS) {
        size_t more = rt_walk_want(walk, spans[n], 1 + next_random(&world->random) % (UNDER_WAY - n));
        n += more;
        if (n == 0)
            break;
        if (more && n < UNDER_WAY && next_random(&world->random) % 2)
            continue;
        size_t i = next_random(&world->random) % n;
        uint64_t offset = spans[i][0], bytes = spans[i][1];
        memcpy(spans[i], spans[--n], sizeof spans[i]);
        copy(world, page, offset, bytes);
        REQUIRE(rt_walk_got(walk, offset, page, bytes) == 0, "the walk takes what it wanted");
        REQUIRE(rt_walk_got(walk, offset + 8, page, bytes) == -EINVAL, "and nothing else");
        if (n == UNDER_WAY - 1)
            continue;
    }
    REQUIRE(n == 0, "%zu spans under way at the end", n);
    return rt_walk_outcome(walk);
}

static bool changing(const struct world *world)
{
    return world->restless || world->bursts || world->spoils;
}

static int finish(struct world *world, struct rt_walk *walk)
{
    int outcome = drive(world, walk);
    for (unsigned i = 0; outcome == -EAGAIN && i < TRIES; i++) {
        world->outcomes[1]++;
        REQUIRE(rt_walk_again(walk) == 0, "again");
        outcome = drive(world, walk);
    }
    REQUIRE(outcome == 0 || (changing(world) && outcome == -EAGAIN) || (world->spoils && outcome != -EINPROGRESS), "%d", outcome);
    world->outcomes[outcome == 0 ? 0 : 2]++;
    return outcome;
}

static void check_search(struct world *world, struct rt_walk *walk, const double query[4], uint64_t now)
{
    bool seen[STABLE + COMING] = {false};
    REQUIRE(rt_walk_begin(walk, RT_WALK_SEARCH, query, 0, now) == 0, "begin");
    if (finish(world, walk) || world->spoils)
        return;
    for (size_t i = 0; i < rt_walk_total(walk); i++) {
        uint64_t id = rt_walk_ids(walk)[i];
        REQUIRE(id < STABLE + COMING && !seen[id], "id %" PRIu64 " twice, or none", id);
        seen[id] = true;
    }
    for (unsigned i = 0; i < STABLE; i++)
        REQUIRE(seen[i] == meets(world->stable[i], query), "id %u: %d", i, seen[i]);
}

static void check_same(struct world *world, struct rt_walk *walk, const double query[4], uint64_t now)
{
    uint64_t ids[ROOM], count;
    double distances2[K];
    size_t found;
    REQUIRE(rt_walk_begin(walk, RT_WALK_COUNT, query, 0, now) == 0, "begin");
    if (finish(world, walk) == 0 && !changing(world))
        REQUIRE(rt_count(world->tree, query, &count) == 0 && count == rt_walk_total(walk), "count");
    REQUIRE(rt_walk_begin(walk, RT_WALK_NEAREST, query, K, now) == 0, "begin");
    if (finish(world, walk) || changing(world))
        return;
    REQUIRE(rt_nearest(world->tree, query, K, ids, distances2, &found) == 0, "nearest");
    REQUIRE(found == rt_walk_total(walk) && !memcmp(ids, rt_walk_ids(walk), found * sizeof *ids), "others are nearest");
    REQUIRE(!memcmp(distances2, rt_walk_distances2(walk), found * sizeof *distances2), "other distances");
}

static void make_world(struct world *world, size_t stable)
{
    world->bytes = rt_arena_bytes(rt_nodes_for(STABLE + COMING) + 20);
    size_t pages = (world->bytes + RT_HEADER_BYTES - 1) / RT_HEADER_BYTES * RT_HEADER_BYTES;
    world->memory = aligned_alloc(RT_HEADER_BYTES, pages);
    memset(world->memory, 0, pages);
    REQUIRE(rt_create_in(&world->tree, world->memory, world->bytes) == 0, "no tree");
    for (unsigned i = 0; i < stable; i++) {
        random_rect(&world->random, 0, world->stable[i]);
        REQUIRE(rt_insert(world->tree, world->stable[i], i) == 0, "insert");
    }
}

static struct rt_remote *open_remote(struct world *world, uint32_t cache_nodes)
{
    struct rt_remote *remote;
    uint64_t *head = malloc(RT_REMOTE_HEAD_BYTES); /* no byte more */
    memcpy(head, world->memory, RT_REMOTE_HEAD_BYTES);
    REQUIRE(rt_remote_open(&remote, head, RT_REMOTE_HEAD_BYTES, world->bytes, cache_nodes) == 0, "no remote tree");
    REQUIRE(rt_remote_open(&remote, head, RT_REMOTE_HEAD_BYTES - 1, world->bytes, cache_nodes) == -EINVAL, "too short");
    head[0]++;
    struct rt_remote *none;
    REQUIRE(rt_remote_open(&none, head, RT_REMOTE_HEAD_BYTES, world->bytes, cache_nodes) == -EILSEQ, "not a tree");
    free(head);
    return remote;
}

/* Where nobody writes, a second search reads leaves and words only. */
static void check_cache(struct world *world, struct rt_remote *remote, struct rt_walk *walk)
{
    static const double everything[4] = {-9, -9, 9, 9};
    struct rt_walk_counts before, after;
    struct rt_stats stats;
    REQUIRE(rt_stats(world->tree, &stats) == 0, "stats");
    check_search(world, walk, everything, 5);
    rt_remote_counts(remote, &before);
    check_search(world, walk, everything, 6);
    rt_remote_counts(remote, &after);
    REQUIRE(after.pages - before.pages == stats.leaf_nodes, "%" PRIu64 " pages", after.pages - before.pages);
    REQUIRE(after.cached - before.cached == stats.inner_nodes, "%" PRIu64 " remembered", after.cached - before.cached);
    check_search(world, walk, everything, 1000);
    rt_remote_counts(remote, &before);
    REQUIRE(before.pages - after.pages == stats.leaf_nodes + stats.inner_nodes, "they are remembered for a minute only");
}

int walk_main(uint64_t seed, size_t rounds)
{
    size_t outcomes[3] = {0}, torn = 0;
    for (size_t round = 0; round < rounds; round++) {
        static const unsigned restless[4] = {0, 40, 400, 0};
        static const double everything[4] = {-9, -9, 9, 9};
        struct world *world = calloc(1, sizeof *world);
        world->random = seed + round;
        make_world(world, STABLE);
        uint32_t cache_nodes = (uint32_t[]){0, 8, 1000}[round % 3];
        struct rt_remote *remote = open_remote(world, cache_nodes);
        struct rt_walk *walk;
        REQUIRE(rt_walk_create(&walk, remote) == 0, "no walk");
        if (cache_nodes == 1000)
            check_cache(world, remote, walk);
        world->restless = restless[round % 4];
        world->bursts = round % 4 == 3 ? 60 : 0;
        world->spoils = round % 5 == 4 ? 20 : 0;
        for (unsigned i = 0; i < 30; i++) {
            double query[4];
            random_rect(&world->random, 0, query);
            check_search(world, walk, world->bursts ? everything : query, 2000 + i);
            check_same(world, walk, query, 2000 + i);
            if (world->restless)
                write_something(world);
        }
        struct rt_walk_counts counts;
        rt_remote_counts(remote, &counts);
        torn += counts.torn;
        for (unsigned i = 0; i < 3; i++)
            outcomes[i] += world->outcomes[i];
        rt_walk_destroy(walk);
        rt_remote_close(remote);
        check_tree(world->tree);
        rt_destroy(world->tree);
        free(world->memory);
        free(world);
    }
    printf("walk: %zu found, %zu attempts in vain, %zu given up, %zu torn copies\n", outcomes[0], outcomes[1], outcomes[2], torn);
    REQUIRE(rounds < 10 || (outcomes[0] > outcomes[2] && outcomes[1]), "the test did not reach what it is for");
    return 0;
}
