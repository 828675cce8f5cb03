/* Our tree in a C loop, by the calls that any C program would make.
 *
 *     ours_loop FOLDER packed|inserted
 */
#include "loop.h"
#include "rtree.h"

#include <errno.h>

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

int main(int argc, char **argv)
{
    size_t n, bad_row;
    if (argc != 3)
        return 2;
    double *data = read_rects(argv[1], "data", &n);
    struct rtree *tree;
    require(rt_create(&tree, rt_nodes_for(2 * n + 4000000)), "create");
    double start = seconds();
    if (!strcmp(argv[2], "packed"))
        require(rt_bulk_load(tree, data, NULL, n, 1.0, &bad_row), "bulk load");
    else
        for (size_t i = 0; i < n; i++)
            insert(tree, data + 4 * i, i);
    loop ours = {tree, n, seconds() - start, search, insert, search_many};
    return obey(&ours, argv[1]);
}
