/* A view of memory that others own: the same answers as the tree itself, and no harm from memory that makes no sense. */
#include "rt_foreign.h"
#include "tree_test.h"

struct seen {
    char *memory; /* just as large as the arena, so that a sanitizer finds the first byte too many */
    size_t bytes;
    struct rt_foreign *view;
    size_t n;
};

static struct rt_node *node_of(struct seen *seen, uint32_t index)
{
    return (struct rt_node *)(seen->memory + RT_HEADER_BYTES + (size_t)index * RT_NODE_BYTES);
}

static struct rt_header *header_of(struct seen *seen)
{
    return (struct rt_header *)seen->memory;
}

static void compare(struct rtree *tree, struct seen *seen, uint64_t *random)
{
    enum { MANY = 40, K = 9 };
    size_t n = seen->n + 1, total_x, total_y, done;
    uint64_t *x = malloc(MANY * n * sizeof *x), *y = malloc(MANY * n * sizeof *y), count, offsets[2][MANY + 1];
    double queries[MANY][4], squares[2][K];
    for (unsigned i = 0; i < MANY; i++) {
        random_rect(random, 0, queries[i]);
        REQUIRE(rt_search(tree, queries[i], x, n, &total_x) == 0, "search");
        REQUIRE(rt_foreign_search(seen->view, queries[i], y, n, &total_y) == 0, "search of the view");
        REQUIRE(total_x == total_y && memcmp(x, y, total_x * sizeof *x) == 0, "other ids");
        REQUIRE(rt_foreign_count(seen->view, queries[i], &count) == 0 && count == total_x, "count");
        REQUIRE(rt_nearest(tree, queries[i], K, x, squares[0], &total_x) == 0, "nearest");
        REQUIRE(rt_foreign_nearest(seen->view, queries[i], K, y, squares[1], &total_y) == 0, "nearest of the view");
        REQUIRE(total_x == total_y && memcmp(x, y, total_x * sizeof *x) == 0, "others are nearest");
        REQUIRE(memcmp(squares[0], squares[1], total_x * sizeof squares[0][0]) == 0, "other distances");
    }
    REQUIRE(rt_search_many(tree, queries[0], MANY, offsets[0], x, MANY * n, &done) == 0, "search_many");
    REQUIRE(rt_foreign_search_many(seen->view, queries[0], MANY, offsets[1], y, MANY * n, &done) == 0, "of the view");
    REQUIRE(memcmp(offsets[0], offsets[1], sizeof offsets[0]) == 0, "other offsets");
    REQUIRE(memcmp(x, y, offsets[0][MANY] * sizeof *x) == 0, "other ids of many");
    REQUIRE(rt_foreign_size(seen->view) == seen->n, "size");
    queries[3][0] = NAN;
    REQUIRE(rt_foreign_search_many(seen->view, queries[0], MANY, offsets[1], y, MANY * n, &done) == -EINVAL && done == 3, "nan");
    free(x);
    free(y);
}

static int worst(int a, int b)
{
    return a == -EILSEQ || b == -EILSEQ ? -EILSEQ : a ? a : b;
}

/* Ask everything; whatever the memory is, each call comes back with an answer or a refusal. Returns the worst. */
static int ask(struct seen *seen, const double query[4])
{
    enum { ROOM = 100, K = 5, MANY = 10 };
    uint64_t *ids = malloc(ROOM * sizeof *ids), count, offsets[MANY + 1];
    double squares[K], queries[MANY][4];
    size_t total, done;
    int error = rt_foreign_search(seen->view, query, ids, ROOM, &total), result = error;
    REQUIRE(error == 0 || error == -EAGAIN || error == -EILSEQ, "search: %d", error);
    result = worst(result, error = rt_foreign_count(seen->view, query, &count));
    REQUIRE(error == 0 || error == -EAGAIN || error == -EILSEQ, "count: %d", error);
    result = worst(result, error = rt_foreign_nearest(seen->view, query, K, ids, squares, &total));
    REQUIRE(error == -EAGAIN || error == -EILSEQ || (error == 0 && total <= K), "nearest: %d", error);
    for (unsigned i = 0; i < MANY; i++)
        memcpy(queries[i], query, sizeof queries[i]);
    error = rt_foreign_search_many(seen->view, queries[0], MANY, offsets, ids, ROOM, &done);
    REQUIRE(error == 0 || error == -EAGAIN || error == -EILSEQ || error == -ENOBUFS, "search_many: %d", error);
    REQUIRE(done <= MANY && offsets[done] <= ROOM, "%zu done", done);
    free(ids);
    return result;
}

static void spoil(struct seen *seen, uint64_t *random)
{
    struct rt_node *node = node_of(seen, (uint32_t)(next_random(random) % (seen->bytes / RT_NODE_BYTES - 4)));
    struct rt_header *header = header_of(seen);
    uint64_t value = next_random(random) >> next_random(random) % 64;
    switch (next_random(random) % 8) {
    case 0:
        node->meta = (uint32_t)value;
        break;
    case 1:
        node->meta = rt_meta((unsigned)value % 64, (unsigned)(value >> 8) % 4);
        break;
    case 2:
        node->inner.child[value % RT_INNER_PLACES] = (uint32_t)next_random(random);
        break;
    case 3:
        node->inner.child[value % RT_INNER_PLACES] = (uint32_t)(next_random(random) % (header->capacity + 1));
        break;
    case 4:
        memset(node->inner.box, 0xff, sizeof node->inner.box); /* not a number */
        break;
    case 5:
        header->root_height = value;
        break;
    case 6:
        node->version = (uint32_t)value;
        break;
    default:
        seen->memory[next_random(random) % seen->bytes] = (char)value;
    }
}

/* One thing wrong at a time, and what it must be called. */
static void name_damages(struct seen *seen, const char *whole)
{
    static const double everything[4] = {-9, -9, 9, 9};
    struct rt_header *header = header_of(seen);
    struct rt_node *root = node_of(seen, rt_root(header));
    unsigned height = rt_height(header);
    REQUIRE(height > 1 && ask(seen, everything) == 0, "sound at first");
    header->moves++;
    REQUIRE(ask(seen, everything) == -EAGAIN, "a writer that stopped");
    memcpy(seen->memory, whole, seen->bytes);
    root->version++;
    REQUIRE(ask(seen, everything) == -EAGAIN && rt_foreign_retries(seen->view) > RT_READ_TRIES, "a node that stays odd");
    memcpy(seen->memory, whole, seen->bytes);
    root->inner.child[1] = header->capacity;
    REQUIRE(ask(seen, everything) == -EILSEQ, "a child beyond the end");
    root->inner.child[1] = rt_root(header);
    REQUIRE(ask(seen, everything) == -EILSEQ, "a child that is its parent");
    memcpy(seen->memory, whole, seen->bytes);
    root->meta = rt_meta(RT_INNER_MAX + 1, height - 1);
    REQUIRE(ask(seen, everything) == -EILSEQ, "too many entries");
    memcpy(seen->memory, whole, seen->bytes);
    rt_set_root(&(struct rtree){.header = header}, rt_root(header), RT_MAX_HEIGHT + 1);
    REQUIRE(ask(seen, everything) == -EILSEQ, "too high");
    rt_set_root(&(struct rtree){.header = header}, header->capacity, height);
    REQUIRE(ask(seen, everything) == -EILSEQ, "a root beyond the end");
    memcpy(seen->memory, whole, seen->bytes);
}

/* All inner nodes lead to the same node below, again and again: more visits than there are nodes. */
static void bound_work(struct seen *seen)
{
    static const double everything[4] = {-9, -9, 9, 9};
    struct rt_header *header = header_of(seen);
    unsigned height = RT_MAX_HEIGHT;
    REQUIRE(header->capacity > RT_MAX_HEIGHT, "nodes enough");
    for (unsigned level = 0; level < height; level++) {
        struct rt_node *node = node_of(seen, level);
        memset(node, 0, sizeof *node);
        node->meta = rt_meta(level ? RT_INNER_MAX : RT_LEAF_MAX, level);
        for (unsigned place = 0; level && place < RT_INNER_PLACES; place++)
            node->inner.child[place] = level - 1;
    }
    header->root_height = (height - 1) | (uint64_t)height << 32;
    REQUIRE(ask(seen, everything) == -EILSEQ, "work without end");
}

static void refuse_headers(struct seen *seen)
{
    struct rt_foreign *other;
    struct rt_header *header = header_of(seen);
    uint32_t *words[] = {&header->format, &header->node_bytes, &header->leaf_max, &header->inner_max, &header->capacity};
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        ++*words[i];
        REQUIRE(rt_foreign_open(&other, seen->memory, seen->bytes) == -EILSEQ, "word %u", i);
        --*words[i];
    }
    REQUIRE(rt_foreign_open(&other, seen->memory, seen->bytes - 1) == -EILSEQ, "a node that is cut off");
    REQUIRE(rt_foreign_open(&other, seen->memory, 100) == -EILSEQ, "no room for a header");
    REQUIRE(rt_foreign_open(&other, seen->memory + 8, seen->bytes) == -EINVAL, "not aligned");
    header->magic++;
    REQUIRE(rt_foreign_open(&other, seen->memory, seen->bytes) == -EILSEQ, "another magic");
    header->magic--;
}

static struct rtree *grow(void *memory, size_t bytes, size_t n, uint64_t *random)
{
    struct rtree *tree;
    REQUIRE(rt_create_in(&tree, memory, bytes) == 0, "no tree");
    for (size_t i = 0; i < n; i++) {
        double rect[4];
        random_rect(random, 0, rect);
        REQUIRE(rt_insert(tree, rect, i) == 0, "insert");
    }
    return tree;
}

int view_main(uint64_t seed, size_t rounds)
{
    size_t outcomes[3] = {0};
    for (size_t round = 0; round < rounds; round++) {
        struct seen seen = {.n = round ? next_random(&seed) % 4000 : 3000};
        seen.bytes = rt_arena_bytes(rt_nodes_for(seen.n));
        size_t pages = (seen.bytes + RT_HEADER_BYTES - 1) / RT_HEADER_BYTES * RT_HEADER_BYTES;
        char *original = aligned_alloc(RT_HEADER_BYTES, pages), *whole = malloc(seen.bytes);
        memset(original, 0, pages);
        struct rtree *tree = grow(original, seen.bytes, seen.n, &seed);
        seen.memory = aligned_alloc(64, seen.bytes);
        memcpy(seen.memory, original, seen.bytes);
        memcpy(whole, original, seen.bytes);
        REQUIRE(rt_foreign_open(&seen.view, seen.memory, seen.bytes) == 0, "no view");
        compare(tree, &seen, &seed);
        refuse_headers(&seen);
        if (round == 0)
            name_damages(&seen, whole);
        for (unsigned i = 0; i < 60; i++) {
            double query[4];
            random_rect(&seed, 0, query);
            spoil(&seen, &seed);
            int result = ask(&seen, query);
            outcomes[result == 0 ? 0 : result == -EAGAIN ? 1 : 2]++;
            if (i % 4 == 3)
                memcpy(seen.memory, whole, seen.bytes);
        }
        bound_work(&seen);
        rt_foreign_close(seen.view);
        rt_destroy(tree);
        free(seen.memory);
        free(original);
        free(whole);
    }
    printf("view: %zu answered, %zu disturbed, %zu refused\n", outcomes[0], outcomes[1], outcomes[2]);
    REQUIRE(rounds < 10 || (outcomes[0] && outcomes[1] && outcomes[2]), "the test did not reach what it is for");
    return 0;
}
