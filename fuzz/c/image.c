/* An image of a tree from anywhere, as a snapshot's file has it: refused, or a tree that works.
 *
 * What is refused leaves an empty tree that can be used.  What is taken passes the tree's own check, holds as many entries as it
 * says, and takes writes and searches like any other. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>

#include "input.h"
#include "rt_kernel.h"
#include "rt_view.h"

enum { ENTRIES = 700, SPARE = 8 };

static struct {
    uint8_t *image;
    size_t bytes;
    uint32_t nodes;
} sound;

static void rect_of(unsigned i, double rect[4])
{
    rect[0] = i * 37 % 251;
    rect[1] = i * 91 % 241;
    rect[2] = rect[0] + i % 5;
    rect[3] = rect[1] + i % 7;
}

/* Some entries are deleted again, so that there are free nodes. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct rtree *tree;
    double rect[4];

    (void)argc, (void)argv;
    CHECK(!rt_create(&tree, rt_nodes_for(ENTRIES)));
    for (unsigned i = 0; i < ENTRIES; i++) {
        rect_of(i, rect);
        CHECK(!rt_insert(tree, rect, i));
    }
    for (unsigned i = 0; i < ENTRIES / 3; i++) {
        rect_of(i, rect);
        CHECK(!rt_delete(tree, rect, i));
    }
    CHECK(tree->header->free_count);
    sound.image = malloc(rt_image_bytes(tree));
    CHECK(sound.image && !rt_image_copy(tree, sound.image, rt_image_bytes(tree), &sound.bytes));
    sound.nodes = (uint32_t)((sound.bytes - RT_HEADER_BYTES) / RT_NODE_BYTES);
    rt_destroy(tree);
    return 0;
}

static void spoil(struct input *input, struct rt_header *header, struct rt_node *nodes)
{
    struct rt_node *node = nodes + take8(input) % sound.nodes;
    uint32_t *words[] = {&header->used, &header->free_head, &header->free_count, &header->bounds_stale, &header->capacity};

    switch (take8(input) % 8) {
    case 0: node->meta = take8(input) | (uint32_t)(take8(input) % 16) << 16; break;
    case 1: node->inner.child[take8(input) % RT_INNER_PLACES] = take8(input); break;
    case 2: node->next_free = take8(input) == 255 ? take32(input) : take8(input); break;
    case 3: header->root_height = take8(input) | (uint64_t)take8(input) << 32; break;
    case 4: *words[take8(input) % 5] = take8(input) == 255 ? take32(input) : take8(input); break;
    case 5: header->entries = take8(input) == 255 ? take64(input) : take16(input); break;
    case 6: take_bytes(input, (uint8_t *)node + take16(input) % (RT_NODE_BYTES - 8), 8); break;
    default: take_bytes(input, (uint8_t *)header + take16(input) % (sizeof(*header) - 8), 8);
    }
}

static void search_all(struct rtree *tree)
{
    static const double everything[4] = {-INFINITY, -INFINITY, INFINITY, INFINITY}, window[4] = {0, 0, 256, 256};
    int32_t cells[9 * 9];
    double rects[16][4];
    uint64_t count, ids[16];
    size_t total;

    CHECK(!rt_count(tree, everything, &count) && count == rt_size(tree));
    CHECK(!rt_view_paint(tree, window, 8, 8, cells, &count));
    for (uint32_t level = 0; level <= RT_MAX_HEIGHT; level++) {
        int error = rt_view_boxes(tree, level, window, rects[0], ids, 16, &total);

        CHECK(error == 0 || error == -ENOENT);
    }
}

static void use(struct input *input, struct rtree *tree)
{
    char message[200] = "";
    double rect[4];

    for (unsigned steps = 0; input->left && steps < 40; steps++) {
        unsigned i = take16(input) % (2 * ENTRIES);
        int error;

        rect_of(i, rect);
        if (take8(input) < 128) {
            error = rt_insert(tree, rect, i);
            CHECK(error == 0 || error == -ENOSPC);
        } else {
            error = rt_delete(tree, rect, i);
            CHECK(error == 0 || error == -ENOENT);
        }
    }
    if (rt_check(tree, message, sizeof(message))) {
        fprintf(stderr, "the tree is damaged: %s\n", message);
        abort();
    }
    search_all(tree);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    struct rtree *tree;
    char message[200] = "";
    uint8_t *header = malloc(RT_HEADER_BYTES), begins = take8(&input);
    uint32_t nodes = begins == 255 ? take8(&input) % (sound.nodes + SPARE) : sound.nodes;
    int error;

    CHECK(header && !rt_create(&tree, sound.nodes + SPARE));
    memcpy(header, sound.image, RT_HEADER_BYTES);
    memcpy(rt_image_nodes(tree), sound.image + RT_HEADER_BYTES, sound.bytes - RT_HEADER_BYTES);
    for (unsigned spoils = begins % 8; spoils; spoils--)
        spoil(&input, (struct rt_header *)header, rt_image_nodes(tree));
    error = rt_image_adopt(tree, header, nodes, message, sizeof(message));
    CHECK(error == 0 || (error == -EILSEQ && *message));
    CHECK(!error || rt_size(tree) == 0);
    if (!error)
        search_all(tree);
    use(&input, tree);
    if (!error && rt_size(tree))
        CHECK(rt_image_adopt(tree, header, nodes, message, sizeof(message)) == -EEXIST);
    rt_destroy(tree);
    free(header);
    return 0;
}
