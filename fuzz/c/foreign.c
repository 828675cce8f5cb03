/* A tree in the memory of somebody else, who stores there what he likes: searched in a mapping, and by reads.
 *
 * Whatever is there, each call comes back with an answer or a refusal, asks for nothing beyond the region, and works no longer than
 * the region is large.  Where nothing was spoiled, the answers are those of the tree. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>

#include "input.h"
#include "rt_foreign.h"
#include "rt_kernel.h"
#include "rt_walk.h"

enum { ENTRIES = 900, ROOM = 64, UNDER_WAY = 8, K = 5, MANY = 12, CACHED = 6 };

static struct {
    struct rtree *tree;
    uint8_t *sound, *memory; /* the tree's own, and what the owner spoils: not a byte more than the region */
    size_t bytes;
    uint32_t nodes;
    int spoiled;
} world;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    world.nodes = rt_nodes_for(ENTRIES);
    world.bytes = rt_arena_bytes(world.nodes);
    world.sound = aligned_alloc(4096, (world.bytes + 4095) / 4096 * 4096);
    CHECK(world.sound);
    memset(world.sound, 0, world.bytes);
    CHECK(!rt_create_in(&world.tree, world.sound, world.bytes));
    for (unsigned i = 0; i < ENTRIES; i++) {
        double x = i * 37 % 251, y = i * 91 % 241, rect[4] = {x, y, x + i % 5, y + i % 7};

        CHECK(!rt_insert(world.tree, rect, i));
    }
    CHECK(rt_height(world.tree->header) == 3);
    return 0;
}

static struct rt_node *node_at(uint32_t index)
{
    return (struct rt_node *)(world.memory + RT_HEADER_BYTES + (size_t)(index % world.nodes) * RT_NODE_BYTES);
}

static uint32_t take_node(struct input *input)
{
    uint8_t which = take8(input);

    return which == 255 ? take32(input) : which == 254 ? rt_root(world.tree->header) : which;
}

/* ---- what the owner does ------------------------------------------------------------------------- */

static void spoil(struct input *input)
{
    struct rt_header *header = (struct rt_header *)world.memory;
    uint8_t how = take8(input) % 9;
    struct rt_node *node = node_at(take_node(input));

    world.spoiled = 1;
    switch (how) {
    case 0: node->meta = take8(input) | (uint32_t)(take8(input) % 16) << 16; break;
    case 1: node->meta = take32(input); break;
    case 2: node->inner.child[take8(input) % RT_INNER_PLACES] = take_node(input); break;
    case 3: header->root_height = take_node(input) | (uint64_t)take8(input) << 32; break;
    case 4: header->moves = take8(input) < 128 ? take8(input) : take64(input); break;
    case 5: node->version = take8(input) < 128 ? take8(input) : take32(input); break;
    case 6: memcpy(node, node_at(take_node(input)), sizeof(*node)); break;
    case 7: take_bytes(input, (uint8_t *)node + take16(input) % (RT_NODE_BYTES - 8), 8); break;
    default: take_bytes(input, world.memory + take16(input) % (RT_HEADER_BYTES - 8), 8);
    }
    if (how != 5 && take8(input) < 128) /* the lines agree, so that copies are whole */
        for (unsigned line = 0; line < RT_NODE_LINES; line++)
            memcpy((uint8_t *)node + 64 * line, &node->version, 4);
}

static void take_query(struct input *input, double query[4])
{
    uint8_t kind = take8(input);

    if (kind == 255) {
        take_bytes(input, query, 32);
        return;
    }
    query[0] = take8(input);
    query[1] = take8(input);
    query[2] = query[0] + kind;
    query[3] = query[1] + kind;
}

/* ---- a mapping ------------------------------------------------------------------------------------- */

static void check_outcome(int error, int valid)
{
    CHECK(valid ? error == 0 || error == -EAGAIN || error == -EILSEQ : error == -EINVAL);
    CHECK(world.spoiled || !valid || !error);
}

static void search_mapping(const double query[4])
{
    struct rt_foreign *foreign;
    uint64_t *ids = malloc(ROOM * sizeof(*ids)), own[ENTRIES], count = 0, offsets[MANY + 1];
    double squares[K], queries[MANY][4];
    size_t total = 0, own_total = 0, done = 0;
    int error = rt_foreign_open(&foreign, world.memory, world.bytes);
    int valid = query[0] <= query[2] && query[1] <= query[3];

    CHECK(ids && (error == 0 || (error == -EILSEQ && world.spoiled)));
    if (error) {
        free(ids);
        return;
    }
    CHECK(rt_foreign_size(foreign) <= (uint64_t)world.nodes * RT_LEAF_MAX);
    error = rt_foreign_search(foreign, query, ids, ROOM, &total);
    check_outcome(error, valid);
    if (!world.spoiled && valid) {
        CHECK(!rt_search(world.tree, query, own, ENTRIES, &own_total) && total == own_total);
        CHECK(!memcmp(ids, own, (total < ROOM ? total : ROOM) * sizeof(*ids)));
    }
    check_outcome(rt_foreign_count(foreign, query, &count), valid);
    CHECK(world.spoiled || !valid || count == total);
    check_outcome(rt_foreign_nearest(foreign, query, K, ids, squares, &total), !rt_rect_check(query));
    for (unsigned i = 0; i < MANY; i++)
        memcpy(queries[i], query, sizeof(queries[i]));
    error = rt_foreign_search_many(foreign, queries[0], MANY, offsets, ids, ROOM, &done);
    CHECK(done <= MANY && offsets[done] <= ROOM);
    if (error != -ENOBUFS)
        check_outcome(error, valid);
    rt_foreign_close(foreign);
    free(ids);
}

/* ---- reads ------------------------------------------------------------------------------------------- */

/* Hand over one of the spans, as it is in the memory or as the input wants it. */
static void serve(struct input *input, struct rt_walk *walk, const uint64_t span[2])
{
    uint8_t *copy, how = take8(input);

    CHECK(span[0] <= world.bytes && span[1] <= world.bytes - span[0] && span[1] <= RT_NODE_BYTES);
    copy = malloc(span[1]); /* so that reading beyond it is seen */
    CHECK(copy);
    if (how >= 224)
        spoil(input);
    memcpy(copy, world.memory + span[0], span[1]);
    if (how >= 192 && how < 224) {
        world.spoiled = 1;
        take_bytes(input, copy + take16(input) % (span[1] - 7), 8);
    }
    if (how == 191) /* what nobody asked for */
        CHECK(rt_walk_got(walk, span[0] + 8, copy, span[1]) == -EINVAL);
    CHECK(!rt_walk_got(walk, span[0], copy, span[1]));
    if (how == 190)
        CHECK(rt_walk_got(walk, span[0], copy, span[1] + 1) == -EINVAL);
    free(copy);
}

static void drive(struct input *input, struct rt_walk *walk)
{
    uint64_t spans[UNDER_WAY][2];
    size_t under_way = 0, served = 0;

    while (rt_walk_outcome(walk) == -EINPROGRESS) {
        size_t room = 1 + take8(input) % (UNDER_WAY - under_way), which;
        size_t more = rt_walk_want(walk, spans[under_way], room);

        CHECK(more <= room);
        under_way += more;
        if (!under_way)
            break;
        which = take8(input) % under_way;
        serve(input, walk, spans[which]);
        memcpy(spans[which], spans[--under_way], sizeof(spans[which]));
        CHECK(++served <= 2 * (size_t)world.nodes + 80); /* each node and its version, torn copies, heads */
    }
    CHECK(rt_walk_outcome(walk) != -EINPROGRESS);
    while (under_way) /* late ones do no harm */
        if (under_way--, world.bytes)
            (void)rt_walk_got(walk, spans[under_way][0], world.memory + spans[under_way][0], spans[under_way][1]);
}

static void check_walk(struct rt_walk *walk, int kind, const double query[4])
{
    int error = rt_walk_outcome(walk);
    size_t total = rt_walk_total(walk), own_total;
    uint64_t own[ENTRIES];

    CHECK(error == 0 || error == -EAGAIN || error == -EILSEQ);
    CHECK(total <= (size_t)world.nodes * RT_LEAF_MAX);
    if (world.spoiled)
        return;
    CHECK(!error);
    if (kind != RT_WALK_NEAREST) {
        CHECK(!rt_search(world.tree, query, own, ENTRIES, &own_total) && total == own_total);
    } else {
        CHECK(total == K);
    }
}

static void walk_once(struct input *input, struct rt_remote *remote)
{
    struct rt_walk *walk;
    double query[4];
    int kind = take8(input) % 3, error;

    take_query(input, query);
    CHECK(!rt_walk_create(&walk, remote));
    error = rt_walk_begin(walk, kind, query, K, take8(input));
    CHECK(error == 0 || error == -EINVAL);
    for (unsigned tries = 0; !error && tries < 5; tries++) {
        drive(input, walk);
        check_walk(walk, kind, query);
        if (rt_walk_outcome(walk) != -EAGAIN)
            break;
        error = rt_walk_again(walk);
        CHECK(!error);
    }
    rt_walk_destroy(walk);
}

static void read_it(struct input *input)
{
    struct rt_remote *remote;
    struct rt_walk_counts counts;
    uint8_t begins = take8(input);
    uint64_t bytes = begins == 255 ? take64(input) % (world.bytes + 1) : world.bytes;
    int error = rt_remote_open(&remote, world.memory, RT_REMOTE_HEAD_BYTES, bytes, begins % 2 ? CACHED : 0);

    CHECK(error == 0 || error == -EILSEQ);
    CHECK(!error || world.spoiled || bytes < world.bytes);
    if (error)
        return;
    for (unsigned walks = 1 + begins / 2 % 4; walks; walks--)
        walk_once(input, remote);
    rt_remote_counts(remote, &counts);
    CHECK(counts.walks <= 4 && (begins % 2 || !counts.cached));
    rt_remote_close(remote);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    double query[4];

    world.memory = aligned_alloc(64, world.bytes);
    CHECK(world.memory);
    memcpy(world.memory, world.sound, world.bytes);
    world.spoiled = 0;
    for (unsigned steps = 0; input.left && steps < 24; steps++)
        switch (take8(&input) % 4) {
        case 0: spoil(&input); break;
        case 1: take_query(&input, query); search_mapping(query); break;
        case 2: read_it(&input); break;
        default: memcpy(world.memory, world.sound, world.bytes); world.spoiled = 0;
        }
    free(world.memory);
    return 0;
}
