/* The arena: creation, nodes taken and freed, and the few writes that everything else is made of. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "rt_kernel.h"

uint32_t rt_nodes_for(uint64_t entries)
{
    /* All nodes but the root hold their minimum at least. */
    uint64_t nodes = entries / RT_LEAF_MIN, sum = 1;
    for (; nodes > 1; nodes /= RT_INNER_MIN)
        sum += nodes;
    sum += RT_MAX_HEIGHT;
    return sum < RT_MAX_NODES ? (uint32_t)sum : RT_MAX_NODES;
}

size_t rt_arena_bytes(uint32_t capacity_nodes)
{
    return RT_HEADER_BYTES + (size_t)capacity_nodes * RT_NODE_BYTES;
}

const struct rt_kernel *rt_kernel_named(const char *name)
{
#ifdef RT_X86
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f");
    if (avx512 && (!name || !strcmp(name, "avx512")))
        return &rt_kernel_avx512;
    if (avx2 && (!name || !strcmp(name, "avx2")))
        return &rt_kernel_avx2;
#endif
    return !name || !strcmp(name, "portable") ? &rt_kernel_portable : NULL;
}

int rt_set_kernel(struct rtree *tree, const char *name)
{
    const struct rt_kernel *kernel = rt_kernel_named(name);
    if (!kernel)
        return -ENOTSUP;
    tree->kernel = kernel;
    return 0;
}

const char *rt_kernel_name(const struct rtree *tree)
{
    return tree->kernel->name;
}

int rt_create_in(struct rtree **out, void *memory, size_t bytes)
{
    if (!memory || (uintptr_t)memory % RT_HEADER_BYTES || bytes < rt_arena_bytes(1))
        return -EINVAL;
    size_t nodes = (bytes - RT_HEADER_BYTES) / RT_NODE_BYTES;
    struct rtree *tree = calloc(1, sizeof *tree);
    if (!tree)
        return -ENOMEM;
    int error = rt_set_kernel(tree, getenv("CATFISH_KERNEL"));
    if (!error)
        error = -pthread_mutex_init(&tree->writer, NULL);
    if (error) {
        free(tree);
        return error;
    }
    struct rt_header *header = memory;
    memset(header, 0, RT_HEADER_BYTES);
    header->format = RT_FORMAT;
    header->node_bytes = RT_NODE_BYTES;
    header->leaf_max = RT_LEAF_MAX;
    header->inner_max = RT_INNER_MAX;
    header->capacity = nodes < RT_MAX_NODES ? (uint32_t)nodes : RT_MAX_NODES;
    header->free_head = RT_NONE;
    header->root_height = RT_NONE;
    header->magic = RT_MAGIC;
    tree->header = header;
    tree->nodes = (struct rt_node *)((char *)memory + RT_HEADER_BYTES);
    *out = tree;
    return 0;
}

#define HUGE_PAGE ((size_t)2 << 20)

/* Huge pages are worth 10 to 30 % of the rate where results are many; the kernel gives them only on their own boundaries, so
 * the mapping is a little larger than the arena. Nothing is committed before it is touched. */
int rt_create(struct rtree **out, uint32_t capacity_nodes)
{
    if (capacity_nodes < 1 || capacity_nodes > RT_MAX_NODES)
        return -EINVAL;
    size_t bytes = rt_arena_bytes(capacity_nodes), mapped = bytes + HUGE_PAGE;
    void *base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return -errno;
    void *memory = (void *)(((uintptr_t)base + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
#ifdef MADV_HUGEPAGE
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    int error = rt_create_in(out, memory, bytes);
    if (error) {
        munmap(base, mapped);
        return error;
    }
    (*out)->mapped_base = base;
    (*out)->mapped_bytes = mapped;
    return 0;
}

void rt_destroy(struct rtree *tree)
{
    if (!tree)
        return;
    if (tree->mapped_base)
        munmap(tree->mapped_base, tree->mapped_bytes);
    pthread_mutex_destroy(&tree->writer);
    free(tree);
}

void rt_lock(struct rtree *tree)
{
    pthread_mutex_lock(&tree->writer);
}

int rt_trylock(struct rtree *tree)
{
    return -pthread_mutex_trylock(&tree->writer);
}

void rt_unlock(struct rtree *tree)
{
    pthread_mutex_unlock(&tree->writer);
}

uint32_t rt_node_take(struct rtree *tree, unsigned level)
{
    struct rt_header *header = tree->header;
    uint32_t index = header->free_head;
    if (index != RT_NONE) {
        header->free_head = tree->nodes[index].next_free;
        header->free_count--;
    } else {
        index = header->used++;
    }
    struct rt_node *node = tree->nodes + index;
    rt_node_begin(node);
    rt_set_meta(node, 0, level);
    rt_node_end(node);
    return index;
}

void rt_node_free(struct rtree *tree, uint32_t index)
{
    struct rt_node *node = tree->nodes + index;
    rt_node_begin(node);
    rt_set_meta(node, 0, 0);
    RT_PUT(node->next_free, tree->header->free_head);
    rt_node_end(node);
    tree->header->free_head = index;
    tree->header->free_count++;
}

void rt_moves_begin(struct rtree *tree)
{
    if (tree->move_depth++ == 0)
        rt_seq_begin(&tree->header->moves);
}

void rt_moves_end(struct rtree *tree)
{
    if (--tree->move_depth == 0)
        rt_seq_end(&tree->header->moves);
}

void rt_set_root(struct rtree *tree, uint32_t root, unsigned height)
{
    RT_PUT(tree->header->root_height, root | (uint64_t)height << 32);
}

void rt_put_leaf_entry(struct rt_node *node, unsigned slot, const double rect[4], uint64_t id)
{
    unsigned at = rt_leaf_at(slot);
    for (unsigned i = 0; i < 4; i++)
        RT_PUT(node->leaf.box[i][at], rect[i]);
    RT_PUT(node->leaf.id[at], id);
}

void rt_put_inner_entry(struct rt_node *node, unsigned slot, struct rt_fbox box, uint32_t child)
{
    unsigned at = rt_inner_at(slot);
    for (unsigned i = 0; i < 4; i++)
        RT_PUT(node->inner.box[i][at], box.v[i]);
    RT_PUT(node->inner.child[at], child);
}

void rt_copy_entry(struct rt_node *node, unsigned to, unsigned from)
{
    if (rt_level_of(node))
        rt_put_inner_entry(node, to, rt_entry_fbox(node, from), rt_entry_child(node, from));
    else
        rt_put_leaf_entry(node, to, rt_entry_dbox(node, from).v, rt_entry_id(node, from));
}

static struct rt_fbox leaf_box(const struct rtree *tree, const struct rt_node *node, unsigned count)
{
    double box[4] = {INFINITY, INFINITY, -INFINITY, -INFINITY};
    for (unsigned i = 0; i < count; i++) {
        struct rt_dbox entry = rt_entry_dbox(node, i);
        for (unsigned axis = 0; axis < 2; axis++) {
            box[axis] = entry.v[axis] < box[axis] ? entry.v[axis] : box[axis];
            box[axis + 2] = entry.v[axis + 2] > box[axis + 2] ? entry.v[axis + 2] : box[axis + 2];
        }
    }
    return rt_fbox_of(box, tree->header->origin);
}

struct rt_fbox rt_node_box(const struct rtree *tree, const struct rt_node *node)
{
    unsigned count = rt_count_of(node);
    if (rt_level_of(node) == 0)
        return leaf_box(tree, node, count);
    struct rt_fbox box = rt_entry_fbox(node, 0);
    for (unsigned i = 1; i < count; i++)
        box = rt_fbox_union(box, rt_entry_fbox(node, i));
    return box;
}

uint64_t rt_size(const struct rtree *tree)
{
    return __atomic_load_n(&tree->header->entries, __ATOMIC_RELAXED);
}

int rt_rect_check(const double rect[4])
{
    bool finite = isfinite(rect[0]) && isfinite(rect[1]) && isfinite(rect[2]) && isfinite(rect[3]);
    return finite && rect[LO_X] <= rect[HI_X] && rect[LO_Y] <= rect[HI_Y] ? 0 : -EINVAL;
}

static int complain(char *message, size_t message_bytes, const char *format, const char *name, double value)
{
    (void)snprintf(message, message_bytes, format, name, value);
    return -EINVAL;
}

/* With as few digits as tell it apart, or nearly so: 25.4, and not 25.399999999999999. */
static const char *number(double value, char text[32])
{
    (void)snprintf(text, 32, "%.15g", value);
    if (strtod(text, NULL) != value)
        (void)snprintf(text, 32, "%.17g", value);
    return text;
}

static int complain_of_order(char *message, size_t message_bytes, char axis, double low, double high)
{
    char one[32], other[32];
    (void)snprintf(message, message_bytes, "%cmin %s is greater than %cmax %s", axis, number(low, one), axis,
                   number(high, other));
    return -EINVAL;
}

int rt_rect_explain(const double rect[4], int query, char *message, size_t message_bytes)
{
    static const char *const names[4] = {"xmin", "ymin", "xmax", "ymax"};
    for (unsigned side = 0; side < 4; side++)
        if (query ? isnan(rect[side]) : !isfinite(rect[side]))
            return complain(message, message_bytes, query ? "%s is %g" : "%s is %g, which is not finite", names[side],
                            rect[side]);
    if (rect[LO_X] > rect[HI_X])
        return complain_of_order(message, message_bytes, 'x', rect[LO_X], rect[HI_X]);
    if (rect[LO_Y] > rect[HI_Y])
        return complain_of_order(message, message_bytes, 'y', rect[LO_Y], rect[HI_Y]);
    return 0;
}
