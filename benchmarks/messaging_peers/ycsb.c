/* The table of YCSB as a native handler: lookups by key (an open-addressed hash), and scans in blocks.
 *
 * Request: key u32, field u8.  A field below FIELDS answers with its 100 bytes of the row that has this key; SCAN answers with
 * whole rows, from the row numbered `key` on, as many as fit a block. */
#include <stdlib.h>

#include "l5_handler.h"

enum { FIELDS = 10, FIELD_BYTES = 100, ROW_BYTES = FIELDS * FIELD_BYTES, BLOCK_BYTES = 128 * 1024, SCAN = 255 };

struct table {
    uint32_t rows, mask;
    uint8_t *data;
    uint32_t *slots; /* key, row + 1; and so on */
};

struct table *table_new(uint32_t rows, const uint32_t *keys, const uint8_t *data);
int table_answer(void *state, const struct l5_request *request, struct l5_reply *reply);

static uint32_t spread(uint32_t key)
{
    return key * UINT32_C(2654435761);
}

struct table *table_new(uint32_t rows, const uint32_t *keys, const uint8_t *data)
{
    struct table *table = calloc(1, sizeof(*table));
    uint32_t size = 16;

    while (size < 2 * rows)
        size *= 2;
    if (!table)
        return NULL;
    table->rows = rows;
    table->mask = size - 1;
    table->slots = calloc(size, 2 * sizeof(uint32_t));
    table->data = malloc((size_t)rows * ROW_BYTES);
    if (!table->slots || !table->data)
        return NULL;
    memcpy(table->data, data, (size_t)rows * ROW_BYTES);
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t at = spread(keys[row]) & table->mask;

        while (table->slots[2 * at + 1])
            at = (at + 1) & table->mask;
        table->slots[2 * at] = keys[row];
        table->slots[2 * at + 1] = row + 1;
    }
    return table;
}

static const uint8_t *find(const struct table *table, uint32_t key)
{
    for (uint32_t at = spread(key) & table->mask;; at = (at + 1) & table->mask) {
        uint32_t row = table->slots[2 * at + 1];

        if (!row)
            return NULL;
        if (table->slots[2 * at] == key)
            return table->data + (size_t)(row - 1) * ROW_BYTES;
    }
}

int table_answer(void *state, const struct l5_request *request, struct l5_reply *reply)
{
    const struct table *table = state;
    const uint8_t *row;
    uint32_t key;
    uint8_t field;

    if (request->size != 5)
        return l5_reply_error(reply, "ValueError", "a request is a key of four bytes and a field of one");
    memcpy(&key, request->data, 4);
    field = request->data[4];
    if (field == SCAN) {
        size_t rows = key < table->rows ? table->rows - key : 0;

        if (rows > BLOCK_BYTES / ROW_BYTES)
            rows = BLOCK_BYTES / ROW_BYTES;
        return l5_reply_append(reply, table->data + (size_t)(rows ? key : 0) * ROW_BYTES, rows * ROW_BYTES);
    }
    row = field < FIELDS ? find(table, key) : NULL;
    if (!row)
        return l5_reply_error(reply, "LookupError", "there is no such key, or no such field");
    return l5_reply_append(reply, row + field * FIELD_BYTES, FIELD_BYTES);
}
