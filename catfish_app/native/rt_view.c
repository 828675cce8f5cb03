/* Looking at a tree: the boxes in a window, and a picture of everything in it. For those who draw.
 *
 * Both walk under the writer's mutex: writers wait as long as it takes (a few milliseconds a million entries), readers do
 * not. Only what meets the window is visited. */
#include "rt_node.h"
#include "rt_view.h"

struct view {
    const struct rtree *tree;
    const double *window;
    /* A list of boxes: */
    unsigned level; /* of the boxes: 0 the entries, 1 the leaves, ... */
    double *rects;
    uint64_t *ids;
    size_t capacity, total;
    /* A picture: */
    double scale[2]; /* cells a unit */
    uint32_t width, height;
    int32_t *cells; /* (width + 1) x (height + 1) */
};

static bool meets(const double window[4], const double box[4])
{
    return box[LO_X] <= window[HI_X] && box[HI_X] >= window[LO_X] && box[LO_Y] <= window[HI_Y] && box[HI_Y] >= window[LO_Y];
}

static struct rt_dbox entry_box(const struct view *view, const struct rt_node *node, unsigned slot)
{
    if (rt_level_of(node) == 0)
        return rt_entry_dbox(node, slot);
    struct rt_fbox box = rt_entry_fbox(node, slot);
    const double *origin = view->tree->header->origin;
    return (struct rt_dbox){{(double)box.v[LO_X] + origin[0], (double)box.v[LO_Y] + origin[1],
                             (double)box.v[HI_X] + origin[0], (double)box.v[HI_Y] + origin[1]}};
}

/* ---- lists ---- */

static void list(struct view *view, const double box[4], uint64_t id)
{
    if (view->total < view->capacity) {
        memcpy(view->rects + 4 * view->total, box, 4 * sizeof *box);
        view->ids[view->total] = id;
    }
    view->total++;
}

static void list_below(struct view *view, uint32_t index)
{
    const struct rt_node *node = view->tree->nodes + index;
    unsigned level = rt_level_of(node);
    for (unsigned i = 0; i < rt_count_of(node) && view->total <= view->capacity; i++) {
        struct rt_dbox box = entry_box(view, node, i);
        if (!meets(view->window, box.v))
            continue;
        if (level == view->level)
            list(view, box.v, level ? rt_entry_child(node, i) : rt_entry_id(node, i));
        else
            list_below(view, rt_entry_child(node, i));
    }
}

int rt_view_boxes(struct rtree *tree, uint32_t level, const double window[4], double *rects, uint64_t *ids, size_t capacity,
                  size_t *total)
{
    struct view view = {.tree = tree, .window = window, .level = level, .rects = rects, .ids = ids, .capacity = capacity};
    int error = 0;
    rt_lock(tree);
    unsigned height = rt_height(tree->header);
    if (level > height) {
        error = -ENOENT;
    } else if (level == height && height) {
        const struct rt_node *root = tree->nodes + rt_root(tree->header);
        struct rt_fbox box = rt_node_box(tree, root);
        double exact[4];
        for (unsigned side = 0; side < 4; side++)
            exact[side] = (double)box.v[side] + tree->header->origin[side & 1];
        if (meets(window, exact))
            list(&view, exact, rt_root(tree->header));
    } else if (height) {
        list_below(&view, rt_root(tree->header));
    }
    rt_unlock(tree);
    *total = view.total;
    return error;
}

/* ---- pictures ---- */

/* The cell of a coordinate, 0 to cells - 1; what is outside goes to the edge. */
static uint32_t cell_of(double v, double low, double scale, uint32_t cells)
{
    double at = (v - low) * scale;
    return !(at > 0) ? 0 : at >= (double)cells ? cells - 1 : (uint32_t)at;
}

/* Adds one to all cells that the box covers, by its four corners; rt_view_paint sums up afterwards. */
static void paint(struct view *view, const double box[4])
{
    const double *window = view->window;
    size_t row = (size_t)view->width + 1;
    uint32_t x0 = cell_of(box[LO_X], window[LO_X], view->scale[0], view->width);
    uint32_t x1 = cell_of(box[HI_X], window[LO_X], view->scale[0], view->width) + 1;
    uint32_t y0 = cell_of(box[LO_Y], window[LO_Y], view->scale[1], view->height);
    uint32_t y1 = cell_of(box[HI_Y], window[LO_Y], view->scale[1], view->height) + 1;
    int32_t *cells = view->cells;
    cells[y0 * row + x0]++;
    cells[y0 * row + x1]--;
    cells[y1 * row + x0]--;
    cells[y1 * row + x1]++;
    view->total++;
}

static void paint_below(struct view *view, uint32_t index)
{
    const struct rt_node *node = view->tree->nodes + index;
    unsigned level = rt_level_of(node);
    for (unsigned i = 0; i < rt_count_of(node); i++) {
        struct rt_dbox box = entry_box(view, node, i);
        if (!meets(view->window, box.v))
            continue;
        if (level == 0)
            paint(view, box.v);
        else
            paint_below(view, rt_entry_child(node, i));
    }
}

static void sum_up(int32_t *cells, size_t width, size_t height)
{
    size_t row = width + 1;
    for (size_t y = 0; y <= height; y++)
        for (size_t x = 1; x <= width; x++)
            cells[y * row + x] += cells[y * row + x - 1];
    for (size_t y = 1; y <= height; y++)
        for (size_t x = 0; x <= width; x++)
            cells[y * row + x] += cells[(y - 1) * row + x];
}

int rt_view_paint(struct rtree *tree, const double window[4], uint32_t width, uint32_t height, int32_t *cells, uint64_t *total)
{
    double edge[2] = {window[HI_X] - window[LO_X], window[HI_Y] - window[LO_Y]};
    if (rt_rect_check(window) || !(edge[0] > 0) || !(edge[1] > 0) || !isfinite(edge[0]) || !isfinite(edge[1]) || !width ||
        !height || width > RT_VIEW_SIDE_MAX || height > RT_VIEW_SIDE_MAX)
        return -EINVAL;
    struct view view = {.tree = tree, .window = window, .width = width, .height = height, .cells = cells};
    view.scale[0] = width / edge[0];
    view.scale[1] = height / edge[1];
    memset(cells, 0, ((size_t)width + 1) * ((size_t)height + 1) * sizeof *cells);
    rt_lock(tree);
    if (rt_height(tree->header))
        paint_below(&view, rt_root(tree->header));
    rt_unlock(tree);
    sum_up(cells, width, height);
    *total = view.total;
    return 0;
}

/* ---- figures ---- */

int rt_summary(struct rtree *tree, struct rt_stats *stats)
{
    const struct rt_header *header = tree->header;
    rt_lock(tree);
    *stats = (struct rt_stats){
        .entries = header->entries,
        .height = rt_height(header),
        .capacity_nodes = header->capacity,
        .free_nodes = rt_free_nodes(header),
        .arena_bytes = rt_arena_bytes(header->capacity),
    };
    rt_unlock(tree);
    return 0;
}
