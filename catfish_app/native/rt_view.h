/* Images of a tree, and looking at one: beside rtree.h, for those who keep or draw a tree. Also a cffi cdef, hence plain. */
#ifndef CATFISH_RT_VIEW_H
#define CATFISH_RT_VIEW_H

#include "rtree.h"

/* Most cells of a side of a picture. */
#define RT_VIEW_SIDE_MAX 4096

/* ---- rt_image.c ---- */

/* Return the number that changes when images of before cannot be taken any more. */
uint32_t rt_image_format(void);

/* Return how long an image would be now: a page for the header, and the nodes that were ever taken. */
size_t rt_image_bytes(struct rtree *tree);

/* Copy an image of one moment to memory. -ENOBUFS: it is longer than `capacity`; *bytes tells how long. Writers wait meanwhile,
 * readers do not. */
int rt_image_copy(struct rtree *tree, void *memory, size_t capacity, size_t *bytes);

struct rt_image_counts {
    uint64_t entries;
    uint32_t capacity_nodes;
};

/* Tell what an image holds that rt_image_copy has made. */
void rt_image_count(const void *image, struct rt_image_counts *counts);

/* Return where the nodes of the arena are: there the nodes of an image go before it is adopted, into a tree that nobody else
 * knows yet. */
void *rt_image_nodes(struct rtree *tree);

/* Make the tree that of the image: `header` is its first page, its `nodes` nodes are in place. Everything is checked. -EILSEQ:
 * it is no tree, for the reason in message; the tree is empty then. -EEXIST: the tree has been used. */
int rt_image_adopt(struct rtree *tree, const void *header, uint32_t nodes, char *message, size_t message_bytes);

/* ---- rt_view.c ---- */

/* Like rt_stats, but without a walk: what has to be counted (nodes in use by kind, fill) is 0. */
int rt_summary(struct rtree *tree, struct rt_stats *stats);

/* List the boxes of one level that meet a window: level 0 the entries, with their ids; above that nodes (1: the leaves), as
 * the tree stores them, with their indexes. *total is their number, or capacity + 1 if there are more. -ENOENT: no such level.
 * Writers wait meanwhile. */
int rt_view_boxes(struct rtree *tree, uint32_t level, const double window[4], double *rects, uint64_t *ids, size_t capacity,
                  size_t *total);

/* Count the entries that cover each cell of a window: cell (x, y) is cells[y * (width + 1) + x], and there are
 * (width + 1) * (height + 1) of them, the last of each row and column without a meaning. *total entries meet the window. -EINVAL: the window has no
 * area or is not finite, or a side has no cell or more than RT_VIEW_SIDE_MAX. Writers wait meanwhile. */
int rt_view_paint(struct rtree *tree, const double window[4], uint32_t width, uint32_t height, int32_t *cells,
                  uint64_t *total);

#endif
