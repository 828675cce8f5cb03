/* Random operations against a list of all entries, in a small arena. */
#include "tree_test.h"

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

int model_main(uint64_t seed, size_t steps)
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
