/* Moving a tree into memory that other processes can read, while it is used.
 *
 *   before:  [ private, huge pages: the arena ]              [ the caller's shared mapping ]
 *   after:   [ the same addresses: the caller's pages ]      [ the caller's shared mapping ]
 *
 * The arena keeps its addresses, so nothing that points into it has to change. Readers go on meanwhile: the writer's mutex
 * keeps the words as they are while they are copied, and the kernel exchanges the pages under a lock of its own,
 * for which whoever touches one just then waits; what they find is the same before and after. A file that is sealed against new
 * mappings for writing cannot be mapped once more; but mremap of a shared mapping with an old size of 0 makes another of
 * the same pages. It is tried at a free place first: where it fails (other kernels than Linux), the tree is as it was. The
 * exchange itself has nothing left to ask for but page tables; should the kernel have none of those, it may have taken the old
 * pages away before it said so, and then the arena is made anew from the copy. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sys/mman.h>

#include "rt_node.h"

#if defined(MREMAP_FIXED) && defined(MAP_FIXED_NOREPLACE)

/* Put private memory, with what the copy says, where the exchange may have left none. */
static void put_back(void *arena, const void *copy, size_t bytes, size_t used)
{
    void *place = mmap(arena, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (place == arena)
        memcpy(arena, copy, used);
    else if (place != MAP_FAILED) /* an old kernel: it was there still */
        munmap(place, bytes);
}

static int exchange(struct rtree *tree, void *memory, size_t bytes)
{
    void *arena = tree->header;
    void *again = mremap(memory, 0, bytes, MREMAP_MAYMOVE);
    if (again == MAP_FAILED)
        return -errno;
    size_t used = rt_arena_bytes(tree->header->used);
    memcpy(again, arena, used);
    if (mremap(again, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, arena) == arena)
        return 0;
    int error = -errno;
    put_back(arena, again, bytes, used);
    munmap(again, bytes);
    return error;
}

int rt_share(struct rtree *tree, void *memory, size_t bytes)
{
    if (!memory || bytes < rt_arena_bytes(tree->header->capacity))
        return -EINVAL;
    rt_lock(tree);
    int error = !tree->mapped_base || tree->shared ? -EEXIST : exchange(tree, memory, rt_arena_bytes(tree->header->capacity));
    tree->shared |= !error;
    rt_unlock(tree);
    return error;
}

#else

int rt_share(struct rtree *tree, void *memory, size_t bytes)
{
    (void)tree, (void)memory, (void)bytes;
    return -ENOTSUP;
}

#endif
