/* Memory as C11 has it, for machines that reorder more than x86 does.
 *
 * Every cell keeps all that was ever stored in it, in order.  A side has a view: for each cell, the
 * oldest store that it may still find.  A load may find any store from there on.  A release store
 * takes the view of its side along, an acquire load that finds it adds it to its own.  Sequentially
 * consistent accesses to one cell have one order, in which a load finds nothing older than the last
 * store (nor than the last load found); they order nothing else than release and acquire do, so this
 * is what the standard promises and not what one processor does.
 *
 * A release fence lends its view to the relaxed stores behind it; an acquire fence adds the views of
 * what relaxed loads before it have found.  A snapshot is what a device reads at one moment: any
 * stores such that with each of them, all that was released before it is there as well.
 *
 * Plain accesses (headers, payloads, zeroing) must be ordered by views against everything that the
 * other side does to the same cells; otherwise that is a race, and a race is a failure. */
#define MODEL_ITSELF
#include "model.h"

enum { PAST_MAX = 48 };

struct view {
    uint8_t oldest[CELLS];
    uint32_t clock[SIDES]; /* how many accesses of each side are known to have happened */
};

struct stored {
    uint64_t value;
    int releases;
    struct view view;
};

static struct cell {
    struct stored past[PAST_MAX];
    int count;
    int sequential; /* the oldest that a sequentially consistent load may find */
    struct {
        uint32_t plain_write, plain_read, atomic_write, atomic_read; /* clocks of the last */
    } by[SIDES];
} cells[CELLS];
static struct view all[SIDES], carried[BELLS], fenced[SIDES], found_relaxed[SIDES];
static int has_fenced[SIDES];

static void reset(void)
{
    for (int i = 0; i < CELLS; i++) {
        cells[i].count = 1;
        cells[i].sequential = 0;
        cells[i].past[0].value = 0;
        cells[i].past[0].releases = 0;
        memset(cells[i].by, 0, sizeof(cells[i].by));
    }
    memset(all, 0, sizeof(all));
    memset(carried, 0, sizeof(carried));
    memset(found_relaxed, 0, sizeof(found_relaxed));
    memset(has_fenced, 0, sizeof(has_fenced));
}

static int newer(int a, int b)
{
    return a > b ? a : b;
}

static void join(struct view *view, const struct view *other)
{
    for (int i = 0; i < CELLS; i++)
        view->oldest[i] = view->oldest[i] > other->oldest[i] ? view->oldest[i] : other->oldest[i];
    for (int i = 0; i < SIDES; i++)
        view->clock[i] = view->clock[i] > other->clock[i] ? view->clock[i] : other->clock[i];
}

static void must_follow(int cell, uint32_t clock, const char *what, const char *theirs, struct place place)
{
    if (clock > all[me].clock[1 - me])
        model_fail("race: %s %s %s in %s, and nothing orders that after the %s that %s it", side_names[me], what,
             cell_name(cell), place.function, side_names[1 - me], theirs);
}

/* Note an access and look whether it races with one of the other side. */
static void access_cell(int cell, int plain, int writes, struct place place)
{
    struct cell *at = &cells[cell];
    uint32_t now = all[me].clock[me];
    const char *what = plain ? (writes ? "writes" : "reads") : (writes ? "stores" : "loads");

    must_follow(cell, at->by[1 - me].plain_write, what, "wrote", place);
    if (plain)
        must_follow(cell, at->by[1 - me].atomic_write, what, "stored", place);
    if (writes)
        must_follow(cell, at->by[1 - me].plain_read, what, "read", place);
    if (plain && writes)
        must_follow(cell, at->by[1 - me].atomic_read, what, "loaded", place);
    if (plain && writes)
        at->by[me].plain_write = now;
    else if (plain)
        at->by[me].plain_read = now;
    else if (writes)
        at->by[me].atomic_write = now;
    else
        at->by[me].atomic_read = now;
}

static void append(int cell, uint64_t value, int releases)
{
    struct cell *at = &cells[cell];
    struct stored *stored;

    if (at->count == PAST_MAX)
        model_fail("more than %d stores to %s", PAST_MAX, cell_name(cell));
    all[me].oldest[cell] = (uint8_t)at->count;
    stored = &at->past[at->count++];
    stored->value = value;
    stored->releases = releases || has_fenced[me];
    if (releases)
        stored->view = all[me];
    else if (has_fenced[me])
        stored->view = fenced[me];
}

static uint64_t load(int cell, enum order order, struct place place)
{
    struct cell *at = &cells[cell];
    int oldest, age;

    step((struct action){LOAD, cell, 1});
    all[me].clock[me]++;
    access_cell(cell, 0, 0, place);
    oldest = all[me].oldest[cell];
    if (order == SEQ_CST)
        oldest = newer(oldest, at->sequential);
    age = choose_stale(at->count - oldest);
    oldest = at->count - 1 - age;
    all[me].oldest[cell] = (uint8_t)oldest;
    if (order == SEQ_CST)
        at->sequential = oldest;
    if (at->past[oldest].releases)
        join(order == RELAXED ? &found_relaxed[me] : &all[me], &at->past[oldest].view);
    tell(place, "loads %s: %llu%s", cell_name(cell), (unsigned long long)at->past[oldest].value,
         age ? " (stale)" : "");
    return at->past[oldest].value;
}

static void store(int cell, uint64_t value, enum order order, struct place place)
{
    step((struct action){STORE, cell, 1});
    all[me].clock[me]++;
    access_cell(cell, 0, 1, place);
    append(cell, value, order != RELAXED);
    if (order == SEQ_CST)
        cells[cell].sequential = cells[cell].count - 1;
    tell(place, "stores %s = %llu", cell_name(cell), (unsigned long long)value);
}

/* An exchange finds the last store, whatever its order; what it found is passed on. */
static uint64_t swap(int cell, uint64_t value, enum order order, struct place place)
{
    struct cell *at = &cells[cell];
    struct stored *found;

    step((struct action){SWAP, cell, 1});
    all[me].clock[me]++;
    access_cell(cell, 0, 0, place);
    access_cell(cell, 0, 1, place);
    found = &at->past[at->count - 1];
    if (order != RELAXED && found->releases)
        join(&all[me], &found->view);
    append(cell, value, order != RELAXED);
    if (order == RELAXED && found->releases) {
        found[1].releases = 1;
        found[1].view = found->view;
        found[1].view.oldest[cell] = all[me].oldest[cell];
    }
    if (order == SEQ_CST)
        at->sequential = at->count - 1;
    tell(place, "exchanges %s: %llu for %llu", cell_name(cell), (unsigned long long)found->value,
         (unsigned long long)value);
    return found->value;
}

static void read_cells(int cell, int count, uint64_t *values, struct place place)
{
    noticed((struct action){LOAD, cell, count});
    all[me].clock[me]++;
    tell(place, "reads %d bytes at %s", count * 8, cell_name(cell));
    for (int i = 0; i < count; i++) {
        access_cell(cell + i, 1, 0, place);
        values[i] = cells[cell + i].past[cells[cell + i].count - 1].value;
    }
}

static void write_cells(int cell, int count, const uint64_t *values, struct place place)
{
    noticed((struct action){STORE, cell, count});
    all[me].clock[me]++;
    tell(place, "writes %d bytes at %s", count * 8, cell_name(cell));
    for (int i = 0; i < count; i++) {
        access_cell(cell + i, 1, 1, place);
        append(cell + i, values[i], 0);
    }
}

static void snapshot(int cell, int count, uint64_t *values, struct place place)
{
    struct view seen = all[me];

    step((struct action){LOAD, cell, count});
    all[me].clock[me]++;
    for (int i = 0; i < count; i++) {
        struct cell *at = &cells[cell + i];
        int index = at->count - 1 - choose_stale(at->count - all[me].oldest[cell + i]);

        access_cell(cell + i, 0, 0, place);
        seen.oldest[cell + i] = (uint8_t)newer(seen.oldest[cell + i], index);
        if (at->past[index].releases)
            join(&seen, &at->past[index].view);
        all[me].oldest[cell + i] = (uint8_t)index;
        values[i] = at->past[index].value;
    }
    for (int i = 0; i < count; i++)
        if (all[me].oldest[cell + i] < seen.oldest[cell + i])
            impossible();
    all[me] = seen;
    tell(place, "reads %d words at %s at one moment", count, cell_name(cell));
}

static void fence(enum order order)
{
    if (order == ACQUIRE) {
        join(&all[me], &found_relaxed[me]);
    } else {
        fenced[me] = all[me];
        has_fenced[me] = 1;
    }
}

static uint64_t final(int cell)
{
    return cells[cell].past[cells[cell].count - 1].value;
}

static void preset(int cell, uint64_t value)
{
    cells[cell].past[0].value = value;
}

static int lands(int side, int cell, int count)
{
    (void)side, (void)cell, (void)count;
    return 0;
}

static void give(int bell)
{
    join(&carried[bell], &all[me]);
}

static void obtain(int bell)
{
    join(&all[me], &carried[bell]);
}

const struct memory views = {reset, load, store, swap, read_cells, write_cells, snapshot, fence,
                             final, preset, lands, give, obtain};
