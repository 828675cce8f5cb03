/* Our tree in a C loop, by the calls that any C program would make.
 *
 *     ours_loop FOLDER packed|inserted|foreign
 *
 * "foreign" is packed, in shared memory; another mapping of it, which cannot be written, is searched as a
 * client searches the tree of its server.
 */
#include "loop.h"
#include "rt_foreign.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROOM = 1 << 16 };

static uint64_t found[ROOM];

static void require(int error, const char *what)
{
    if (error) {
        fprintf(stderr, "%s: %s\n", what, strerror(-error));
        exit(1);
    }
}

static size_t search(void *tree, const double *query)
{
    size_t total;
    require(rt_search((struct rtree *)tree, query, found, ROOM, &total), "search");
    return total;
}

static void insert(void *tree, const double *rect, size_t id)
{
    require(rt_insert((struct rtree *)tree, rect, id), "insert");
}

static size_t search_many(void *tree, const double *queries, size_t n)
{
    static uint64_t *ids, *offsets;
    static size_t room;
    size_t done, hits = 0, used = 0;
    if (!ids || room < n) {
        room = n;
        ids = (uint64_t *)realloc(ids, room * 64 * sizeof *ids);
        offsets = (uint64_t *)realloc(offsets, (room + 1) * sizeof *offsets);
        memset(ids, 1, room * 64 * sizeof *ids); /* the kernel's pages are not the tree's time */
    }
    while (used < n) {
        int error = rt_search_many((struct rtree *)tree, queries + 4 * used, n - used, offsets, ids, room * 64, &done);
        if (error != -ENOBUFS || done == 0)
            require(error, "search_many");
        hits += offsets[done];
        used += done;
    }
    return hits;
}

static size_t search_foreign(void *foreign, const double *query)
{
    size_t total;
    require(rt_foreign_search((struct rt_foreign *)foreign, query, found, ROOM, &total), "search");
    return total;
}

static void *shared_memory(size_t bytes, const void **readable)
{
    int fd = memfd_create("tree", 0);
    void *writable = MAP_FAILED;
    if (fd >= 0 && !ftruncate(fd, (off_t)bytes))
        writable = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    *readable = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (writable == MAP_FAILED || *readable == MAP_FAILED) {
        perror("shared memory");
        exit(1);
    }
    return writable;
}

int main(int argc, char **argv)
{
    size_t n, bad_row;
    if (argc != 3)
        return 2;
    double *data = read_rects(argv[1], "data", &n);
    struct rtree *tree;
    int is_foreign = !strcmp(argv[2], "foreign");
    size_t bytes = rt_arena_bytes(rt_nodes_for(n + n / 8));
    const void *readable = NULL;
    if (is_foreign)
        require(rt_create_in(&tree, shared_memory(bytes, &readable), bytes), "create");
    else
        require(rt_create(&tree, rt_nodes_for(2 * n + 4000000)), "create");
    double start = seconds();
    if (is_foreign || !strcmp(argv[2], "packed"))
        require(rt_bulk_load(tree, data, NULL, n, 1.0, &bad_row), "bulk load");
    else
        for (size_t i = 0; i < n; i++)
            insert(tree, data + 4 * i, i);
    loop ours = {tree, n, seconds() - start, search, insert, search_many};
    if (is_foreign) {
        struct rt_foreign *foreign;
        require(rt_foreign_open(&foreign, readable, bytes), "open");
        ours = (loop){foreign, n, ours.build_seconds, search_foreign, NULL, NULL};
    }
    return obey(&ours, argv[1]);
}
