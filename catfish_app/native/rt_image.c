/* Images of a tree: what is written to a file, and taken from one.
 *
 *   +------------------+--------+--------+- - -+--------------------+
 *   | header, one page | node 0 | node 1 |     | node `used` - 1    |      the arena as far as it was ever used
 *   +------------------+--------+--------+- - -+--------------------+
 *
 * An image is copied under the writer's mutex, so no write is half in it; readers are not disturbed. What is adopted may come
 * from anywhere: the caller puts the nodes where the arena has them, and rt_image_adopt looks at all of them before any
 * other function may. Nothing of the image is followed before it is checked. */
#include <stdio.h>

#include "rt_node.h"
#include "rt_view.h"

size_t rt_image_bytes(struct rtree *tree)
{
    rt_lock(tree);
    size_t bytes = rt_arena_bytes(tree->header->used);
    rt_unlock(tree);
    return bytes;
}

int rt_image_copy(struct rtree *tree, void *memory, size_t capacity, size_t *bytes)
{
    int error = 0;
    rt_lock(tree);
    *bytes = rt_arena_bytes(tree->header->used);
    if (*bytes > capacity) {
        error = -ENOBUFS;
    } else {
        memcpy(memory, tree->header, RT_HEADER_BYTES);
        memcpy((char *)memory + RT_HEADER_BYTES, tree->nodes, *bytes - RT_HEADER_BYTES);
    }
    rt_unlock(tree);
    return error;
}

void rt_image_count(const void *image, struct rt_image_counts *counts)
{
    struct rt_header header;
    memcpy(&header, image, sizeof header);
    *counts = (struct rt_image_counts){.entries = header.entries, .capacity_nodes = header.capacity};
}

uint32_t rt_image_format(void)
{
    return RT_FORMAT;
}

void *rt_image_nodes(struct rtree *tree)
{
    return tree->nodes;
}

static int refuse(char *message, size_t message_bytes, const char *text)
{
    (void)snprintf(message, message_bytes, "%s", text);
    return -EILSEQ;
}

/* What rt_check takes for granted. */
static const char *complaint(const struct rtree *tree, const struct rt_header *from, uint32_t nodes)
{
    const struct rt_header *to = tree->header;
    if (from->magic != to->magic || from->format != to->format || from->node_bytes != to->node_bytes ||
        from->leaf_max != to->leaf_max || from->inner_max != to->inner_max)
        return "its header is not that of a tree of this format";
    if (from->used != nodes || nodes > to->capacity)
        return "its header counts other nodes than there are";
    if (from->free_count > nodes)
        return "its header counts more free nodes than nodes";
    if (!isfinite(from->origin[0]) || !isfinite(from->origin[1]))
        return "its origin is not finite";
    for (uint32_t i = 0; i < nodes; i++)
        if (tree->nodes[i].version & 1)
            return "a node was being written";
    return NULL;
}

static void take(struct rt_header *to, const struct rt_header *from)
{
    to->origin[0] = from->origin[0];
    to->origin[1] = from->origin[1];
    to->entries = from->entries;
    to->used = from->used;
    to->free_head = from->free_head;
    to->free_count = from->free_count;
    to->bounds_stale = from->bounds_stale != 0;
    memcpy(to->bounds, from->bounds, sizeof to->bounds);
    RT_PUT(to->root_height, from->root_height);
}

int rt_image_adopt(struct rtree *tree, const void *header, uint32_t nodes, char *message, size_t message_bytes)
{
    struct rt_header from, empty = *tree->header;
    memcpy(&from, header, sizeof from);
    if (tree->header->used)
        return -EEXIST;
    const char *wrong = complaint(tree, &from, nodes);
    if (wrong)
        return refuse(message, message_bytes, wrong);
    rt_lock(tree);
    take(tree->header, &from);
    rt_unlock(tree);
    int error = rt_check(tree, message, message_bytes);
    if (error) {
        rt_lock(tree);
        take(tree->header, &empty);
        rt_unlock(tree);
    }
    return error;
}
