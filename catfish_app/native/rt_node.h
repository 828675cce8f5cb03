/* Memory of the tree, and the sequence-lock protocol on it. Internal.
 *
 *   offset 0        4096       5120       6144
 *   +---------------+----------+----------+----------+- - -
 *   | rt_header     | node 0   | node 1   | node 2   |          node i at 4096 + 1024 i; no pointers anywhere
 *   +---------------+----------+----------+----------+- - -
 *
 * A node is a page of l5_page.h: sixteen lines of 64 bytes, and each begins with the page's version (u32). So a vector that
 * holds one line has the version in its lane 0 (v below), and entries in the others:
 *
 *   line      0                 1             2             3             4 .. 6   7 .. 9   10 .. 12   13 .. 15
 *   leaf:   | v meta next .. |  v lo_x 0-6  | v lo_x 7-13 | v lo_x 14-20 | lo_y   | hi_x   | hi_y     | id      |  21 entries
 *   inner:  | v meta next .. |  v lo_x 0-14 | v lo_x 15-29| v lo_x 30-44 | lo_y   | hi_x   | hi_y     | child   |  45 entries
 *
 * Kernels compute with whole lines; a bit of their masks is a place (24 of a leaf, 48 of an inner node), and a table by the
 * count tells which places hold entries. All others count slots, 0 to 20 or 44, and find the place of a slot by
 * rt_leaf_at or rt_inner_at.
 *
 * Boxes of inner nodes are single precision, relative to an origin in the header, and rounded outwards. Twice the fan-out
 * for the same bytes and the same number of vector compares makes the tree a level lower; leaves hold the exact doubles,
 * so answers are exact. x -> down(x - origin) and x -> up(x - origin) are monotone, so a box meets a query
 * whenever something in it does. The origin (the first rectangle, or the middle of a bulk load) keeps coordinates
 * that are large compared with their spread, like seconds since 1970, from losing their bits.
 *
 * Sequence words. The version of a node is odd while the (one) writer changes it; who reads the memory itself looks at that of
 * line 0, who reads copies (rt_walk.c) at all of them. `moves` of the header is odd while
 * entries move from node to node, nodes are freed, or the root changes; a reader that sees it change starts
 * again. What leaves `moves` alone is harmless to a reader that has passed: an entry that comes or goes in one leaf, a
 * box that grows, a box that shrinks to what is there.
 *
 * In words: the reader loads the sequence word (acquire), the data (relaxed), and after an acquire fence the sequence word again.
 * The writer stores the odd word, a release fence, the data (relaxed), and the even word (release). Thread
 * sanitizer does not model fences, so for it the data accesses themselves are acquire and release.
 */
#ifndef CATFISH_RT_NODE_H
#define CATFISH_RT_NODE_H

#include <errno.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "l5_page.h"
#include "rtree.h"

#if defined(__SANITIZE_THREAD__)
#define RT_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RT_TSAN 1
#endif
#endif

#define RT_MAGIC UINT64_C(0x3165657274667463) /* "ctftree1" */
#define RT_FORMAT 2
#define RT_NONE UINT32_C(0xffffffff)
/* A little under the 40 % that the R*-tree paper found best, and not more than half of what a bulk load at fill 0.75 puts into
 * a node. */
#define RT_LEAF_MIN 8
#define RT_INNER_MIN 17
#define RT_MAX_HEIGHT 12 /* 2 * 17^11 nodes are more than 2^30 */
#define RT_READ_TRIES 16
#define RT_OVERFLOW_MAX (RT_INNER_MAX + RT_INNER_MIN) /* most entries that two nodes ever share out */

#define RT_LEAF_LANES 8
#define RT_INNER_LANES 16
#define RT_LEAF_PLACES 24 /* three lines of eight doubles, with those of the versions */
#define RT_INNER_PLACES 48

struct rt_node {
    uint32_t version;
    uint32_t meta; /* count | level << 16 */
    uint32_t next_free;
    uint32_t spare[13];
    union {
        struct {
            double box[4][RT_LEAF_PLACES]; /* lo_x, lo_y, hi_x, hi_y */
            uint64_t id[RT_LEAF_PLACES];
        } leaf;
        struct {
            float box[4][RT_INNER_PLACES];
            uint32_t child[RT_INNER_PLACES];
        } inner;
    };
} __attribute__((aligned(64)));

_Static_assert(sizeof(struct rt_node) == RT_NODE_BYTES, "a node is 1 KiB");
_Static_assert(RT_LEAF_MAX == RT_LEAF_PLACES / RT_LEAF_LANES * (RT_LEAF_LANES - 1), "one lane of a line is the version");
_Static_assert(RT_INNER_MAX == RT_INNER_PLACES / RT_INNER_LANES * (RT_INNER_LANES - 1), "one lane of a line is the version");

enum { LO_X, LO_Y, HI_X, HI_Y };

/* The place of a slot, and the slot of a place. */
static inline unsigned rt_leaf_at(unsigned slot)
{
    return slot + slot / (RT_LEAF_LANES - 1) + 1;
}
static inline unsigned rt_inner_at(unsigned slot)
{
    return slot + slot / (RT_INNER_LANES - 1) + 1;
}
static inline unsigned rt_inner_slot(unsigned place)
{
    return place - place / RT_INNER_LANES - 1;
}

/* The places of the first `count` entries. */
static inline uint32_t rt_leaf_places(unsigned count)
{
    return ((UINT32_C(1) << (rt_leaf_at(count) & 31)) - 1) & UINT32_C(0xfefefe);
}
static inline uint64_t rt_inner_places(unsigned count)
{
    return ((UINT64_C(1) << (rt_inner_at(count) & 63)) - 1) & UINT64_C(0xfffefffefffe);
}

struct rt_header {
    uint64_t magic;
    uint32_t format;
    uint32_t node_bytes;
    uint32_t leaf_max;
    uint32_t inner_max;
    uint32_t capacity;
    uint32_t spare0[9];
    /* Written only when the structure changes: readers keep this line. */
    uint64_t moves __attribute__((aligned(64)));
    uint64_t root_height; /* root | height << 32 */
    double origin[2];
    /* The writer's. */
    uint64_t entries __attribute__((aligned(64)));
    uint32_t used; /* nodes ever taken: index of the first untouched one */
    uint32_t free_head;
    uint32_t free_count; /* nodes in the list of freed ones */
    uint32_t bounds_stale;
    double bounds[4]; /* exact, unless stale */
};

struct rt_kernel;

struct rtree {
    struct rt_header *header;
    struct rt_node *nodes;
    const struct rt_kernel *kernel;
    uint32_t reach;       /* nodes of a foreign tree that are in our memory; 0: the tree is our own */
    uint64_t retries;     /* foreign: attempts that a writer disturbed */
    pthread_mutex_t writer;
    unsigned move_depth; /* the writer's: rt_moves_begin may nest */
    void *mapped_base; /* NULL: the memory is the caller's */
    size_t mapped_bytes;
    bool shared; /* rt_share has put the caller's memory there */
};

/* One box as the inner nodes hold it, and one in exact coordinates. */
struct rt_fbox {
    float v[4];
};
struct rt_dbox {
    double v[4];
};

/* ---- accesses to shared words: the only place that names memory orders ---- */

#ifdef RT_TSAN
#define RT_DATA_LOAD __ATOMIC_ACQUIRE
#define RT_DATA_STORE __ATOMIC_RELEASE
#define rt_release_fence() ((void)0)
#else
#define RT_DATA_LOAD __ATOMIC_RELAXED
#define RT_DATA_STORE __ATOMIC_RELAXED
#define rt_release_fence() __atomic_thread_fence(__ATOMIC_RELEASE)
#endif

#define RT_GETTER(name, type)                                              \
    static inline type name(const type *word)                              \
    {                                                                      \
        type value;                                                        \
        __atomic_load((type *)(uintptr_t)word, &value, RT_DATA_LOAD);      \
        return value;                                                      \
    }
RT_GETTER(rt_get_f32, float)
RT_GETTER(rt_get_f64, double)
RT_GETTER(rt_get_u32, uint32_t)
RT_GETTER(rt_get_u64, uint64_t)
#define RT_GET(field)                                                                                       \
    _Generic((field), float: rt_get_f32, double: rt_get_f64, uint32_t: rt_get_u32, uint64_t: rt_get_u64)(&(field))
#define RT_PUT(field, value)                              \
    do {                                                  \
        __typeof__(field) rt_v_ = (value);                \
        __atomic_store(&(field), &rt_v_, RT_DATA_STORE);  \
    } while (0)

/* The sequence word of the header. */
static inline uint64_t rt_seq_load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE); /* pairs with: rt_seq_end */
}

static inline bool rt_seq_same(const uint64_t *word, uint64_t seen)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED) == seen; /* pairs with: rt_seq_begin, by the fence of the last page */
}

static inline void rt_seq_begin(uint64_t *word)
{
    __atomic_store_n(word, *word + 1, __ATOMIC_RELAXED);
    rt_release_fence(); /* pairs with: rt_seq_same */
}

static inline void rt_seq_end(uint64_t *word)
{
    __atomic_store_n(word, *word + 1, __ATOMIC_RELEASE); /* pairs with: rt_seq_load */
}

/* The versions of a node, which is a page: l5_page.h has the protocol, and the names of the pairs. */
#define RT_NODE_LINES (RT_NODE_BYTES / L5_PAGE_LINE_BYTES)

static inline void rt_node_begin(struct rt_node *node)
{
    l5_page_begin_whole(node, RT_NODE_LINES);
}

static inline void rt_node_end(struct rt_node *node)
{
    l5_page_end(node, RT_NODE_LINES);
}

static inline void rt_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static inline unsigned rt_meta_count(uint32_t meta)
{
    return meta & 0xffff;
}
static inline unsigned rt_meta_level(uint32_t meta)
{
    return meta >> 16;
}
static inline uint32_t rt_meta(unsigned count, unsigned level)
{
    return count | level << 16;
}
static inline unsigned rt_count_of(const struct rt_node *node)
{
    return rt_meta_count(node->meta);
}
static inline unsigned rt_level_of(const struct rt_node *node)
{
    return rt_meta_level(node->meta);
}
static inline void rt_set_meta(struct rt_node *node, unsigned count, unsigned level)
{
    RT_PUT(node->meta, rt_meta(count, level));
}
static inline unsigned rt_max_of(unsigned level)
{
    return level ? RT_INNER_MAX : RT_LEAF_MAX;
}
static inline unsigned rt_min_of(unsigned level)
{
    return level ? RT_INNER_MIN : RT_LEAF_MIN;
}

/* ---- single-precision boxes ---- */

/* A float strictly below d, at most two units in the last place: strictly, for d may itself be a rounded
 * difference. Monotone, and never denormal. What a float cannot hold becomes FLT_MAX one way and infinite the other. */
#define RT_FLOAT_STEP(d) (fabs(d) * 0x1p-23 + 0x1p-125)
static inline float rt_down(double d)
{
    d = d > (double)FLT_MAX ? (double)FLT_MAX : d;
    return (float)(d - RT_FLOAT_STEP(d));
}
static inline float rt_up(double d)
{
    d = d < -(double)FLT_MAX ? -(double)FLT_MAX : d;
    return (float)(d + RT_FLOAT_STEP(d));
}

static inline struct rt_fbox rt_fbox_of(const double rect[4], const double origin[2])
{
    return (struct rt_fbox){{rt_down(rect[LO_X] - origin[0]), rt_down(rect[LO_Y] - origin[1]),
                             rt_up(rect[HI_X] - origin[0]), rt_up(rect[HI_Y] - origin[1])}};
}
static inline struct rt_fbox rt_fbox_union(struct rt_fbox a, struct rt_fbox b)
{
    return (struct rt_fbox){{a.v[LO_X] < b.v[LO_X] ? a.v[LO_X] : b.v[LO_X], a.v[LO_Y] < b.v[LO_Y] ? a.v[LO_Y] : b.v[LO_Y],
                             a.v[HI_X] > b.v[HI_X] ? a.v[HI_X] : b.v[HI_X], a.v[HI_Y] > b.v[HI_Y] ? a.v[HI_Y] : b.v[HI_Y]}};
}
static inline struct rt_dbox rt_widen(struct rt_fbox box)
{
    return (struct rt_dbox){{(double)box.v[0], (double)box.v[1], (double)box.v[2], (double)box.v[3]}};
}
static inline bool rt_fbox_equal(struct rt_fbox a, struct rt_fbox b)
{
    return a.v[0] == b.v[0] && a.v[1] == b.v[1] && a.v[2] == b.v[2] && a.v[3] == b.v[3];
}

/* ---- entries, by slot: for the writer, and who looks at the tree under its mutex ---- */

static inline struct rt_fbox rt_entry_fbox(const struct rt_node *node, unsigned slot)
{
    unsigned at = rt_inner_at(slot);
    return (struct rt_fbox){
        {node->inner.box[LO_X][at], node->inner.box[LO_Y][at], node->inner.box[HI_X][at], node->inner.box[HI_Y][at]}};
}
static inline uint32_t rt_entry_child(const struct rt_node *node, unsigned slot)
{
    return node->inner.child[rt_inner_at(slot)];
}
static inline struct rt_dbox rt_entry_dbox(const struct rt_node *node, unsigned slot)
{
    unsigned at = rt_leaf_at(slot);
    return (struct rt_dbox){
        {node->leaf.box[LO_X][at], node->leaf.box[LO_Y][at], node->leaf.box[HI_X][at], node->leaf.box[HI_Y][at]}};
}
static inline uint64_t rt_entry_id(const struct rt_node *node, unsigned slot)
{
    return node->leaf.id[rt_leaf_at(slot)];
}

/* ---- rt_arena.c ---- */

static inline uint32_t rt_root(const struct rt_header *header)
{
    return (uint32_t)header->root_height;
}
static inline unsigned rt_height(const struct rt_header *header)
{
    return (unsigned)(header->root_height >> 32);
}
/* Foreign: whether these may be the root and the height of a tree of at most `reach` nodes. */
static inline bool rt_root_makes_sense(uint64_t root_height, uint32_t reach)
{
    uint64_t height = root_height >> 32;
    return height == 0 || (height <= RT_MAX_HEIGHT && (uint32_t)root_height < reach);
}
/* rt_foreign.c: the nodes of a tree whose header this is in so many bytes; 0: it is none, or does not fit. */
uint32_t rt_header_nodes(const struct rt_header *header, uint64_t bytes);

static inline uint32_t rt_free_nodes(const struct rt_header *header)
{
    return header->capacity - header->used + header->free_count;
}

/* The writer's mutex, which a reader that was disturbed too often takes, too. */
void rt_lock(struct rtree *tree);
int rt_trylock(struct rtree *tree);
void rt_unlock(struct rtree *tree);

/* All of these: the writer only. rt_node_take never fails: who calls it has counted rt_free_nodes. */
uint32_t rt_node_take(struct rtree *tree, unsigned level);
void rt_node_free(struct rtree *tree, uint32_t index);
void rt_moves_begin(struct rtree *tree);
void rt_moves_end(struct rtree *tree);
void rt_set_root(struct rtree *tree, uint32_t root, unsigned height);
void rt_put_leaf_entry(struct rt_node *node, unsigned slot, const double rect[4], uint64_t id);
void rt_put_inner_entry(struct rt_node *node, unsigned slot, struct rt_fbox box, uint32_t child);
void rt_copy_entry(struct rt_node *node, unsigned to, unsigned from);
struct rt_fbox rt_node_box(const struct rtree *tree, const struct rt_node *node);

/* ---- insertion and deletion without the lock: the caller holds it ---- */

struct rt_path {
    unsigned height;                /* nodes in it */
    uint32_t node[RT_MAX_HEIGHT];   /* [level] */
    unsigned slot[RT_MAX_HEIGHT];   /* [level]: entry of node[level] that leads to node[level - 1]; [0]: entry in the leaf */
};

int rt_insert_locked(struct rtree *tree, const double rect[4], uint64_t id);
int rt_delete_locked(struct rtree *tree, const double rect[4], uint64_t id);
int rt_update_locked(struct rtree *tree, const double old_rect[4], uint64_t id, const double new_rect[4]);
bool rt_find_locked(struct rtree *tree, const double rect[4], uint64_t id, struct rt_path *path);
void rt_tighten(struct rtree *tree, const struct rt_path *path, unsigned level);

/* Entries that two nodes are to share. */
struct rt_pool {
    unsigned n;
    struct rt_dbox box[RT_OVERFLOW_MAX];
    uint64_t ref[RT_OVERFLOW_MAX]; /* id or child */
};

void rt_pool_add_node(struct rt_pool *pool, const struct rt_node *node);
/* Order the pool as the R*-tree split wants it; the first so many go to the first node. */
unsigned rt_pool_split(struct rt_pool *pool, unsigned level);
/* Overwrite a node by pool entries from (inclusive) to (exclusive). */
void rt_pool_write(const struct rt_pool *pool, unsigned from, unsigned to, struct rt_node *node, unsigned level);

#endif
