/* rt_share on a kernel that refuses: what the tree is afterwards.  Prints "ok".
 *
 *   share_fails MODE    early: no second mapping; late: none at the old place, which is left alone;
 *                       hole: none at the old place, and what was there is gone
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const char *mode = "";

static void *played_mremap(void *old, size_t old_bytes, size_t bytes, int flags, ...)
{
    va_list rest;
    void *place;

    va_start(rest, flags);
    place = flags & MREMAP_FIXED ? va_arg(rest, void *) : NULL;
    va_end(rest);
    if (!*mode || (!place && strcmp(mode, "early")))
        return place ? (mremap)(old, old_bytes, bytes, flags, place) : (mremap)(old, old_bytes, bytes, flags);
    if (!strcmp(mode, "hole"))
        munmap(place, bytes);
    errno = ENOMEM;
    return MAP_FAILED;
}

#define mremap played_mremap
#include "rt_share.c"

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what); \
            exit(1); \
        } \
    } while (0)

enum { COUNT = 3000 };

int main(int count, char **arguments)
{
    uint32_t nodes = rt_nodes_for(2 * COUNT);
    size_t bytes = rt_arena_bytes(nodes);
    char why[200];
    struct rtree *tree;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(count == 2 && memory != MAP_FAILED && !rt_create(&tree, nodes));
    mode = arguments[1];
    for (int i = 0; i < COUNT; i++) {
        double rect[4] = {i, i % 7, i + 1, i % 7 + 1};

        CHECK(!rt_insert(tree, rect, (uint64_t)i));
    }
    CHECK(rt_share(tree, memory, bytes) == -ENOMEM && !tree->shared);
    CHECK(!rt_check(tree, why, sizeof(why)) && rt_size(tree) == COUNT);
    for (int i = 0; i < COUNT; i++) {
        double rect[4] = {-i - 1, i % 7, -i, i % 7 + 1};

        CHECK(!rt_insert(tree, rect, (uint64_t)i));
    }
    CHECK(!rt_check(tree, why, sizeof(why)) && rt_size(tree) == 2 * COUNT);
    mode = ""; /* the kernel has thought better of it */
    CHECK(!rt_share(tree, memory, bytes) && tree->shared);
    CHECK(!rt_check(tree, why, sizeof(why)) && rt_size(tree) == 2 * COUNT);
    rt_destroy(tree);
    munmap(memory, bytes);
    puts("ok");
    return 0;
}
