/* The file and its mappings: from addresses to cells, and from calls to the memory model. */
#define MODEL_ITSELF
#include "model.h"

enum { MAPPINGS_MAX = 16 };

const struct memory *memory;

static struct mapping {
    uint8_t *at;
    size_t bytes;
    off_t offset;
} mappings[MAPPINGS_MAX];
static int mapping_count;
static const void *watched[WATCHED];
static int watched_count;
static off_t ring_bytes;

/* Address space is real, but without access; pages of the file are 512 bytes here. */
void *model_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    (void)protection;
    if (fd < 0)
        return mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!(flags & MAP_FIXED) || mapping_count == MAPPINGS_MAX)
        abort();
    mappings[mapping_count++] = (struct mapping){at, bytes, offset};
    if (offset)
        ring_bytes = (off_t)bytes;
    return at;
}

static int offset_of(const uint8_t *address)
{
    for (int i = 0; i < mapping_count; i++)
        if (address >= mappings[i].at && address < mappings[i].at + mappings[i].bytes)
            return (int)(mappings[i].offset + (address - mappings[i].at));
    return -1;
}

/* The first of the cells that these bytes are, or -1: private memory. */
int cell_of(const void *address, size_t bytes)
{
    int offset = offset_of(address);

    if (offset >= 0 && (offset % 8 || bytes % 8))
        model_fail("%zu bytes at %s+%d are not whole cells", bytes, cell_name(offset / 8), offset % 8);
    return offset < 0 ? -1 : offset / 8;
}

const char *cell_name(int cell)
{
    static const char *const words[] = {"magic", "c2s.read", "s2c.read", "client.armed", "server.armed", "status"};
    static char text[2][32];
    static int turn;
    int offset = cell * 8;

    turn = 1 - turn;
    if (cell >= CELLS - WATCHED) {
        snprintf(text[turn], sizeof(text[turn]), "service word %d", cell - (CELLS - WATCHED));
        return text[turn];
    }
    if (offset < PAGE_BYTES)
        snprintf(text[turn], sizeof(text[turn]), "%s", offset / 64 < 6 ? words[offset / 64] : "control");
    else if (offset < PAGE_BYTES + ring_bytes)
        snprintf(text[turn], sizeof(text[turn]), "c2s[%d]", offset - PAGE_BYTES);
    else
        snprintf(text[turn], sizeof(text[turn]), "s2c[%d]", (int)(offset - PAGE_BYTES - ring_bytes));
    return text[turn];
}

int watch_word(void *word)
{
    for (int i = 0; i < watched_count; i++)
        if (watched[i] == word)
            return CELLS - WATCHED + i;
    if (watched_count == WATCHED)
        abort();
    watched[watched_count++] = word;
    return CELLS - WATCHED + watched_count - 1;
}

/* The cell of a word, or -1: a word of private memory that nobody watches, such as a counter. */
static int shared(const void *word)
{
    for (int i = 0; i < watched_count; i++)
        if (watched[i] == word)
            return CELLS - WATCHED + i;
    return cell_of(word, 8);
}

uint64_t model_load(const void *word, enum order order, struct place place)
{
    int cell = shared(word);

    return cell < 0 ? *(const uint64_t *)word : memory->load(cell, order, place);
}

void model_store(void *word, uint64_t value, enum order order, struct place place)
{
    int cell = shared(word);

    if (cell < 0)
        *(uint64_t *)word = value;
    else
        memory->store(cell, value, order, place);
}

uint64_t model_add(void *word, uint64_t value)
{
    if (shared(word) >= 0)
        model_fail("the model cannot add");
    *(uint64_t *)word += value;
    return *(uint64_t *)word - value;
}

uint64_t model_swap(void *word, uint64_t value, enum order order, struct place place)
{
    int cell = shared(word);

    if (cell < 0)
        model_fail("an exchange in memory that is not shared");
    return memory->swap(cell, value, order, place);
}

/* A piece goes through the mappings cell by cell: the mirror of a ring is the same cells again. */
static void transfer(uint8_t *shared_memory, void *private, size_t bytes, int writing, struct place place)
{
    while (bytes) {
        int cell = cell_of(shared_memory, bytes), count = 1;

        while ((size_t)count * 8 < bytes && offset_of(shared_memory + count * 8) == (cell + count) * 8)
            count++;
        if (writing)
            memory->write(cell, count, private, place);
        else
            memory->read(cell, count, private, place);
        shared_memory += count * 8;
        private = (uint8_t *)private + count * 8;
        bytes -= (size_t)count * 8;
    }
}

void *model_copy(void *to, const void *from, size_t bytes, struct place place)
{
    uint64_t values[RING_BYTES_MAX / 8];
    int writing = offset_of(to) >= 0;

    if (!writing && offset_of(from) < 0)
        return memcpy(to, from, bytes);
    if (bytes > sizeof(values) || (writing && offset_of(from) >= 0))
        model_fail("a copy that the model does not know, in %s", place.function);
    if (writing)
        memcpy(values, from, bytes);
    transfer(writing ? to : (uint8_t *)(uintptr_t)from, values, bytes, writing, place);
    if (!writing)
        memcpy(to, values, bytes);
    return to;
}

void *model_fill(void *to, int value, size_t bytes, struct place place)
{
    uint64_t values[RING_BYTES_MAX / 8];

    if (offset_of(to) < 0)
        return memset(to, value, bytes);
    if (bytes > sizeof(values))
        model_fail("more than a ring is filled, in %s", place.function);
    memset(values, value, bytes);
    transfer(to, values, bytes, 1, place);
    return to;
}
