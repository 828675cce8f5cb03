/* Memory as x86 has it (total store order): loads are performed in order, stores wait in a buffer of
 * their side and land one after the other; an exchange, and so a sequentially consistent store, lets
 * all of them land first.  A copy or a memset is one store of many cells.
 *
 * When a store lands only matters to those who load that cell, so that is when it is chosen. */
#define MODEL_ITSELF
#include "model.h"

enum { BUFFER_MAX = 400, PIECE_MAX = RING_BYTES_MAX / 8 };

struct pending {
    int cell, count;
    uint64_t values[PIECE_MAX];
};

static uint64_t cells[CELLS];
static struct buffer {
    struct pending stores[BUFFER_MAX];
    int first, end;
} buffers[SIDES];

static void reset(void)
{
    memset(cells, 0, sizeof(cells));
    buffers[0].first = buffers[0].end = buffers[1].first = buffers[1].end = 0;
}

static void land(struct buffer *buffer)
{
    struct pending *store = &buffer->stores[buffer->first++];

    memcpy(cells + store->cell, store->values, (size_t)store->count * 8);
    if (buffer->first == buffer->end)
        buffer->first = buffer->end = 0;
}

static void land_all(struct buffer *buffer)
{
    while (buffer->first < buffer->end)
        land(buffer);
}

static int touches(const struct pending *store, int cell, int count)
{
    return store->cell < cell + count && cell < store->cell + store->count;
}

/* How many stores must land until one of these cells has changed; 0: none will. */
static int stores_until(const struct buffer *buffer, int cell, int count)
{
    for (int i = buffer->first; i < buffer->end; i++)
        if (touches(&buffer->stores[i], cell, count))
            return i - buffer->first + 1;
    return 0;
}

/* Let stores to these cells land, or not; the own ones only where their order among others counts. */
static void let_land(int cell, int count)
{
    struct buffer *own = &buffers[me], *other = &buffers[1 - me];
    int others;

    while ((others = stores_until(other, cell, count))) {
        int mine = stores_until(own, cell, count);
        int taken = choose_stale(mine ? 3 : 2); /* landed: the other's past, as a stale load is */

        if (!taken)
            return;
        for (int i = taken == 1 ? others : mine; i > 0; i--)
            land(taken == 1 ? other : own);
    }
}

static uint64_t value_of(int cell)
{
    const struct buffer *own = &buffers[me];

    for (int i = own->end; i-- > own->first;)
        if (touches(&own->stores[i], cell, 1))
            return own->stores[i].values[cell - own->stores[i].cell];
    return cells[cell];
}

static void read_cells(int cell, int count, uint64_t *values, struct place place)
{
    step((struct action){LOAD, cell, count});
    let_land(cell, count);
    for (int i = 0; i < count; i++)
        values[i] = value_of(cell + i);
    tell(place, "reads %d bytes at %s", count * 8, cell_name(cell));
}

static uint64_t load(int cell, enum order order, struct place place)
{
    uint64_t value;

    (void)order;
    step((struct action){LOAD, cell, 1});
    let_land(cell, 1);
    value = value_of(cell);
    tell(place, "loads %s: %llu", cell_name(cell), (unsigned long long)value);
    return value;
}

static void buffer_store(int cell, int count, const uint64_t *values)
{
    struct buffer *own = &buffers[me];

    if (own->end == BUFFER_MAX)
        model_fail("more than %d stores wait", BUFFER_MAX);
    own->stores[own->end].cell = cell;
    own->stores[own->end].count = count;
    memcpy(own->stores[own->end++].values, values, (size_t)count * 8);
    noticed((struct action){STORE, cell, count});
}

static void write_cells(int cell, int count, const uint64_t *values, struct place place)
{
    buffer_store(cell, count, values);
    tell(place, "writes %d bytes at %s (may land later)", count * 8, cell_name(cell));
}

static uint64_t swap(int cell, uint64_t value, enum order order, struct place place)
{
    uint64_t before;

    (void)order;
    step((struct action){SWAP, cell, 1});
    let_land(cell, 1);
    land_all(&buffers[me]);
    before = cells[cell];
    cells[cell] = value;
    tell(place, "exchanges %s: %llu for %llu", cell_name(cell), (unsigned long long)before, (unsigned long long)value);
    return before;
}

static void store(int cell, uint64_t value, enum order order, struct place place)
{
    if (order != SEQ_CST) {
        buffer_store(cell, 1, &value);
        tell(place, "stores %s = %llu (may land later)", cell_name(cell), (unsigned long long)value);
        return;
    }
    step((struct action){STORE, cell, 1});
    let_land(cell, 1);
    land_all(&buffers[me]);
    cells[cell] = value;
    tell(place, "stores %s = %llu", cell_name(cell), (unsigned long long)value);
}

static uint64_t final(int cell)
{
    land_all(&buffers[0]);
    land_all(&buffers[1]);
    return cells[cell];
}

static void preset(int cell, uint64_t value)
{
    cells[cell] = value;
}

static int lands(int side, int cell, int count)
{
    const struct buffer *own = &buffers[side];

    for (int i = own->first; i < own->end; i++)
        if (stores_until(&buffers[1 - side], own->stores[i].cell, own->stores[i].count))
            return 1; /* both have stores to the same cells: every order is another one */
    return stores_until(own, cell, count) != 0;
}

static void give(int bell)
{
    (void)bell;
    land_all(&buffers[me]); /* the kernel's locks are exchanges */
}

static void obtain(int bell)
{
    (void)bell;
}

/* Loads are in order and stores land in order: there is nothing to add. */
static void fence(enum order order)
{
    (void)order;
}

const struct memory tso = {reset, load, store, swap, read_cells, write_cells, read_cells, fence,
                           final, preset, lands, give, obtain};
