/* A writer of the R-tree and one who searches it, under every schedule: `tree_model tso|views SCENARIO`.
 *
 * Writer and readers are the files that are shipped, with nodes of three entries instead of 21 and 45 (the test makes a copy
 * of them with other numbers in it; nothing else changes).  All rectangles are points on a line, so that only their x has to be
 * looked at; y is the same everywhere, and no choice.
 *
 *   own       a thread of the server: the traversal of rt_traverse.h
 *   foreign   who maps the memory of another process: the same, with its checks
 *   walk      who reads copies: rt_walk.c; each copy is made word by word, in ascending order
 *
 * What must hold: what a reader approves of has every entry that was there all the time, once; any that came or went at most
 * once; of rows that were loaded all or none; and nothing else.  In the end memory is what the writer thinks it is. */
#define MODEL_ITSELF
#include "model.h"

#include <math.h>
#include <setjmp.h>

#include "rt_kernel.h"
#include "rt_walk.h"

enum { NODES = 10, BYTES = RT_HEADER_BYTES + NODES * RT_NODE_BYTES, WORDS = BYTES / 4, PAUSES = 2, TURNS = 6, ROOM = 40, SPANS = 4 };
enum reader { OWN, FOREIGN, WALK };
enum { INSERT = 1, DELETE, UPDATE, LOAD_ROWS };

struct operation {
    int what, id, from, to; /* places on the line; of rows that are loaded, id is how many, at 10, 20, ... */
};

static const struct scenario {
    const char *name;
    enum reader reader;
    struct operation before[12], during[4];
    double low, high; /* of the query */
} scenarios[] = {
#define PLACED(...) {__VA_ARGS__}
#define PUT(id, x) {INSERT, id, x, x}
#define TAKE(id, x) {DELETE, id, x, x}
#define ROWS(n) {LOAD_ROWS, n, 0, 0}
#define ALL -INFINITY, INFINITY
#define EACH(what, before, during, ...)          \
    {"own: " what, OWN, before, during, __VA_ARGS__},     \
    {"foreign: " what, FOREIGN, before, during, __VA_ARGS__}, \
    {"walk: " what, WALK, before, during, __VA_ARGS__}
#define FOUR PLACED(PUT(1, 10), PUT(2, 20), PUT(3, 70), PUT(4, 80))
#define FIVE PLACED(PUT(1, 10), PUT(2, 20), PUT(3, 70), PUT(4, 80), PUT(5, 90))
#define THREE PLACED(PUT(1, 10), PUT(2, 20), PUT(3, 70))
#define NOTHING_YET PLACED({0})
    EACH("insert", FOUR, PLACED(PUT(5, 90)), ALL),
    EACH("delete", FIVE, PLACED(TAKE(3, 70)), ALL),
    EACH("root splits", THREE, PLACED(PUT(4, 80)), ALL),
    EACH("split", FIVE, PLACED(PUT(6, 75)), ALL),
    EACH("split, narrow", FIVE, PLACED(PUT(6, 75)), 65, 95),
    EACH("merge", FOUR, PLACED(TAKE(1, 10)), ALL),
    EACH("even out", FIVE, PLACED(TAKE(1, 10)), ALL),
    EACH("moved", FIVE, PLACED({UPDATE, 5, 90, 15}), ALL),
    EACH("merge and split", FOUR, PLACED(TAKE(1, 10), PUT(6, 75), PUT(7, 76)), ALL),
    EACH("first and last", PLACED(PUT(1, 10)), PLACED(TAKE(1, 10), PUT(2, 20)), ALL),
    EACH("load", NOTHING_YET, PLACED(ROWS(4)), 5, 45),
};

static const struct scenario *scenario;
const struct memory *memory;

static struct rtree *own, view, sound; /* the writer's; the reader's; the writer's before a schedule */
static uint8_t *written, *seen;        /* memory of both */
static uint8_t snapshot[BYTES];
static struct rt_remote *remote;
static struct rt_walk *walk;
static struct {
    int32_t cell; /* + 1; 0: none yet */
} narrow[WORDS], wide[WORDS];
static struct {
    int word, bytes;
} cells[CELLS];
static int last[WORDS]; /* the cell that was stored to last, + 1; -1: none, but it was */
static int cell_count, pauses;
static uint32_t stable, possible, together; /* a bit for each id */
static long approved, refused;
static jmp_buf give_up;

/* ---- memory --------------------------------------------------------------------------------- */

const char *cell_name(int cell)
{
    static char text[2][48];
    static int turn;
    int at = cells[cell].word * 4;

    turn = 1 - turn;
    if (at < RT_HEADER_BYTES)
        snprintf(text[turn], sizeof(text[turn]), "header +%d", at);
    else
        snprintf(text[turn], sizeof(text[turn]), "node %d +%d", (at - RT_HEADER_BYTES) / RT_NODE_BYTES,
                 (at - RT_HEADER_BYTES) % RT_NODE_BYTES);
    return text[turn];
}

/* What is no choice: y, and who reads no copies needs no versions but line 0's. */
static int is_modelled(int at, size_t bytes)
{
    int in_node = (at - RT_HEADER_BYTES) % RT_NODE_BYTES;

    if (at < RT_HEADER_BYTES)
        return at >= 64 && at < 96;
    if (bytes == 4 && in_node >= 64 && in_node % 64 == 0)
        return scenario->reader == WALK;
    if (in_node < 64)
        return in_node < 8;
    return bytes == 4 ? !((in_node >= 80 && in_node < 96) || (in_node >= 112 && in_node < 128))
                      : !((in_node >= 96 && in_node < 128) || (in_node >= 160 && in_node < 192));
}

static uint64_t initial(int word, int bytes)
{
    uint64_t value = 0;

    memcpy(&value, snapshot + word * 4, (size_t)bytes);
    return value;
}

static int cell_at(int at, size_t bytes)
{
    int32_t *place = bytes == 8 ? &wide[at / 4].cell : &narrow[at / 4].cell;

    if (!is_modelled(at, bytes))
        return -1;
    if (!*place) {
        if (cell_count == CELLS)
            model_fail("more than %d cells", CELLS);
        cells[cell_count].word = at / 4;
        cells[cell_count].bytes = (int)bytes;
        memory->preset(cell_count, initial(at / 4, (int)bytes));
        *place = ++cell_count;
    }
    return *place - 1;
}

static enum order order_of(int order)
{
    return order == __ATOMIC_RELAXED ? RELAXED : order == __ATOMIC_ACQUIRE ? ACQUIRE : RELEASE;
}

uint64_t tree_load(const void *at, size_t bytes, int order, const char *function, int line)
{
    struct place place = {function, line};
    ptrdiff_t offset = (const uint8_t *)at - seen;
    uint64_t value = 0;
    int cell;

    if (offset < 0 || offset >= BYTES) {
        if (me == 1 && (const uint8_t *)at >= written && (const uint8_t *)at < written + BYTES)
            model_fail("the reader looks into the writer's memory, in %s", place.function);
        memcpy(&value, at, bytes);
        return value;
    }
    cell = cell_at((int)offset, bytes);
    return cell < 0 ? 0 : memory->load(cell, order_of(order), place); /* 0: what y is everywhere */
}

void tree_store(void *at, uint64_t value, size_t bytes, int order, const char *function, int line)
{
    struct place place = {function, line};
    ptrdiff_t offset = (uint8_t *)at - written;
    int cell = offset >= 0 && offset < BYTES ? cell_at((int)offset, bytes) : -1;

    if (offset < 0 || offset >= BYTES)
        model_fail("a store outside the tree, in %s", place.function);
    last[offset / 4] = last[offset / 4 + (int)bytes / 4 - 1] = cell < 0 ? -1 : cell + 1;
    if (cell >= 0)
        memory->store(cell, value, order_of(order), place);
    memcpy(at, &value, bytes);
}

void tree_fence(int order)
{
    memory->fence(order_of(order));
}

/* Who waits for a writer sees nothing new until that writer goes on, which is another schedule. */
void tree_pause(void)
{
    if (me == 1 && ++pauses > PAUSES)
        longjmp(give_up, 1);
}

/* ---- the writer ----------------------------------------------------------------------------- */

static void point(double rect[4], int place)
{
    rect[0] = rect[2] = place;
    rect[1] = rect[3] = 0;
}

static int load(int n)
{
    double rects[ROOM][4];
    uint64_t ids[ROOM];
    size_t bad_row;

    for (int i = 0; i < n; i++) {
        point(rects[i], 10 * (i + 1));
        ids[i] = (uint64_t)i + 1;
    }
    return rt_bulk_load(own, rects[0], ids, (size_t)n, 1, &bad_row);
}

static void do_it(const struct operation *operation)
{
    double from[4], to[4];
    int error = 0;

    point(from, operation->from);
    point(to, operation->to);
    if (operation->what == INSERT)
        error = rt_insert_locked(own, to, (uint64_t)operation->id);
    else if (operation->what == DELETE)
        error = rt_delete_locked(own, from, (uint64_t)operation->id);
    else if (operation->what == LOAD_ROWS)
        error = load(operation->id);
    else
        error = rt_update_locked(own, from, (uint64_t)operation->id, to);
    if (error)
        model_fail("the writer: %d", error);
}

static void write_all(void)
{
    for (const struct operation *operation = scenario->during; operation->what; operation++)
        do_it(operation);
}

/* ---- readers -------------------------------------------------------------------------------- */

static void approve(const uint64_t *ids, size_t total)
{
    uint32_t found = 0;

    for (size_t i = 0; i < total; i++) {
        uint32_t bit = ids[i] < 32 ? UINT32_C(1) << ids[i] : 0;

        if (!(bit & possible))
            model_fail("approved: %llu was never there", (unsigned long long)ids[i]);
        if (found & bit)
            model_fail("approved: %llu was found twice", (unsigned long long)ids[i]);
        found |= bit;
    }
    if (stable & ~found)
        model_fail("approved: of %#x only %#x was found", stable, found);
    if (found & together && together & ~found)
        model_fail("approved: of %#x, which came at once, only %#x was found", together, found & together);
    approved++;
}

static int copy_word(uint8_t *to, int at, size_t bytes)
{
    int cell = cell_at(at, bytes);
    uint64_t value = 0;

    if (cell < 0)
        return 0;
    value = memory->load(cell, ACQUIRE, HERE);
    memcpy(to, &value, bytes);
    return 1;
}

/* A node is a leaf or not by its own word for it: the other kind's cells are not what it holds. */
static void copy_span(uint8_t *to, int from, size_t bytes)
{
    size_t width = 8;

    memset(to, 0, bytes); /* y, and what is never read */
    for (size_t at = 0; at < bytes; at += 4) {
        int in_node = from < RT_HEADER_BYTES ? -1 : (int)(from + (int)at - RT_HEADER_BYTES) % RT_NODE_BYTES;

        if (in_node == 8)
            width = ((struct rt_node *)(void *)to)->meta >> 16 ? 4 : 8;
        if (in_node >= 0 && (in_node % 64 == 0 || in_node < 8))
            copy_word(to + at, from + (int)at, 4);
        else if (in_node < 0 ? at % 8 == 0 : width == 4 || at % 8 == 0)
            copy_word(to + at, from + (int)at, in_node < 0 ? 8 : width);
    }
}

static int read_walking(const double query[4])
{
    uint64_t spans[SPANS][2];
    uint8_t copy[RT_NODE_BYTES] __attribute__((aligned(64)));
    size_t under_way;

    if (rt_walk_begin(walk, RT_WALK_SEARCH, query, 0, 0))
        model_fail("the walk does not begin");
    while (rt_walk_outcome(walk) == -EINPROGRESS) {
        under_way = rt_walk_want(walk, spans[0], SPANS);
        if (!under_way)
            break;
        for (size_t i = 0; i < under_way; i++) {
            copy_span(copy, (int)spans[i][0], spans[i][1]);
            if (rt_walk_got(walk, spans[i][0], copy, spans[i][1]))
                model_fail("the walk takes no copy");
        }
        if (++pauses > TURNS)
            return 0;
    }
    if (rt_walk_outcome(walk))
        return 0;
    approve(rt_walk_ids(walk), rt_walk_total(walk));
    return 1;
}

static int read_mapped(const double query[4])
{
    const struct rt_kernel *kernel = scenario->reader == FOREIGN ? view.kernel->foreign : view.kernel;
    uint64_t ids[ROOM];
    size_t total;
    int error;

    if (setjmp(give_up))
        return 0;
    error = kernel->search(&view, query, ids, ROOM, &total);
    if (error == -EILSEQ)
        model_fail("a sound tree is called damaged");
    if (error)
        return 0;
    if (total > ROOM)
        model_fail("approved: %zu were found", total);
    approve(ids, total);
    return 1;
}

static void read_once(void)
{
    double query[4] = {scenario->low, -1, scenario->high, 1};

    refused += !(scenario->reader == WALK ? read_walking(query) : read_mapped(query));
}

/* ---- begin and end -------------------------------------------------------------------------- */

static void side(int number)
{
    if (number)
        read_once();
    else
        write_all();
}

static void begin(void)
{
    memcpy(written, snapshot, BYTES);
    memset(last, 0, sizeof(last));
    *own = sound;
    pauses = 0;
    for (int cell = 0; cell < cell_count; cell++)
        memory->preset(cell, initial(cells[cell].word, cells[cell].bytes));
    if (scenario->reader == WALK) { /* each schedule knows nothing of the one before */
        rt_remote_close(remote);
        rt_walk_destroy(walk);
        if (rt_remote_open(&remote, snapshot, RT_REMOTE_HEAD_BYTES, BYTES, 0) || rt_walk_create(&walk, remote))
            abort();
    }
}

/* A place that a leaf and an inner node use differently holds what was stored there last. */
static int is_last(int cell)
{
    for (int word = cells[cell].word; word < cells[cell].word + cells[cell].bytes / 4; word++)
        if (last[word] && last[word] != cell + 1)
            return 0;
    return 1;
}

static void end(void)
{
    for (int cell = 0; cell < cell_count; cell++) {
        uint64_t value = 0;

        memcpy(&value, written + cells[cell].word * 4, (size_t)cells[cell].bytes);
        if (is_last(cell) && memory->final(cell) != value)
            model_fail("in the end, %s is not what the writer wrote", cell_name(cell));
    }
}

/* Entries in sight of the query, by whether they were there all the time. */
static void expect(void)
{
    for (const struct operation *operation = scenario->before; operation->what; operation++)
        possible |= UINT32_C(1) << operation->id;
    stable = possible;
    for (const struct operation *operation = scenario->during; operation->what; operation++) {
        if (operation->what == LOAD_ROWS) {
            together = (UINT32_C(2) << operation->id) - 2;
            possible |= together;
            continue;
        }
        possible |= UINT32_C(1) << operation->id;
        stable &= ~(UINT32_C(1) << operation->id);
    }
    for (const struct operation *operation = scenario->before; operation->what; operation++)
        if (operation->to < scenario->low || operation->to > scenario->high)
            stable &= ~(UINT32_C(1) << operation->id);
}

static void make_tree(void)
{
    written = mmap(NULL, 2 * RT_HEADER_BYTES + BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    seen = mmap(NULL, 2 * RT_HEADER_BYTES + BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memory->reset();
    me = 0;
    if (rt_create_in(&own, written, BYTES))
        abort();
    for (const struct operation *operation = scenario->before; operation->what; operation++)
        do_it(operation);
    memcpy(snapshot, written, BYTES);
    sound = *own;
    view = *own;
    view.header = (struct rt_header *)(void *)seen;
    view.nodes = (struct rt_node *)(void *)(seen + RT_HEADER_BYTES);
    view.reach = scenario->reader == FOREIGN ? NODES : 0;
}

int main(int argc, char **argv)
{
    int rc, weak = argc > 1 && !strcmp(argv[1], "views");

    for (size_t i = 0; argc > 4 && i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
        if (!strcmp(argv[2], scenarios[i].name)) {
            scenario = &scenarios[i];
            memory = weak ? &views : &tso;
            make_tree();
            expect();
            printf("%s, %s: ", argv[1], scenario->name);
            rc = explore(begin, side, end, atoi(argv[3]), atoi(argv[4]));
            printf("%ld approved, %ld refused\n", approved, refused);
            return rc;
        }
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
        puts(scenarios[i].name);
    return argc > 1 ? 2 : 0;
}
