/* Versioned pages for Python.  All theory is in l5_page.h; bounds are checked by `l5/_pages.py`. */
#include "l5_page.h"

#include "l5.h"

/* Lines first .. last hold bytes [offset, offset + bytes) of the payload. */
static size_t first_line(size_t offset)
{
    return offset / L5_PAGE_PAYLOAD_BYTES;
}

static size_t last_line(size_t offset, size_t bytes)
{
    return (offset + bytes - 1) / L5_PAGE_PAYLOAD_BYTES;
}

void l5_pages_begin(uint8_t *page)
{
    l5_page_begin(page);
}

/* Change bytes of the payload, and no line but theirs.  The writer is alone, so it may read. */
void l5_pages_patch(uint8_t *page, uint64_t offset, const uint8_t *data, uint64_t bytes)
{
    size_t line = first_line(offset), last = last_line(offset, bytes), at = offset % L5_PAGE_PAYLOAD_BYTES;

    l5_page_touch(page, line, last - line + 1);
    for (; line <= last; line++, at = 0) {
        uint8_t payload[L5_PAGE_PAYLOAD_BYTES];
        size_t piece = sizeof(payload) - at < bytes ? sizeof(payload) - at : bytes;

        l5_page_unpack(payload, page, line, 1);
        memcpy(payload + at, data, piece);
        l5_page_pack(page, line, 1, payload);
        data += piece;
        bytes -= piece;
    }
}

void l5_pages_end(uint8_t *page, uint32_t lines)
{
    l5_page_end(page, lines);
}

/* Replace the whole payload: `bytes` bytes, then zeros. */
void l5_pages_write(uint8_t *page, uint32_t lines, const uint8_t *data, uint64_t bytes)
{
    size_t whole = bytes / L5_PAGE_PAYLOAD_BYTES;
    uint8_t payload[L5_PAGE_PAYLOAD_BYTES] = {0};

    l5_page_begin_whole(page, lines);
    l5_page_pack(page, 0, whole, data);
    if (whole < lines) {
        memcpy(payload, data + whole * sizeof(payload), bytes - whole * sizeof(payload));
        l5_page_pack(page, whole++, 1, payload);
        memset(payload, 0, sizeof(payload));
    }
    for (; whole < lines; whole++)
        l5_page_pack(page, whole, 1, payload);
    l5_page_end(page, lines);
}

/* Read from the memory itself: 0 or -EAGAIN; `retries` is added to. */
int l5_pages_read(uint8_t *payload, const uint8_t *page, uint32_t lines, uint32_t tries, uint64_t *retries)
{
    return l5_page_read(payload, page, 0, lines, tries, retries);
}

/* Judge a copy by what is known of how it was made, and take the payload out of it: 0 or -EAGAIN. */
int l5_pages_take(uint8_t *payload, const uint8_t *copy, uint32_t lines, int copies, uint32_t before, uint32_t after)
{
    int good = 0;

    if (copies == L5_PAGES_LINES)
        good = l5_page_is_whole(copy, lines);
    else if (copies == L5_PAGES_ASCENDING)
        good = l5_page_is_whole_still(copy, lines, after);
    else if (copies == L5_PAGES_WORDS)
        good = l5_page_is_between(before, after);
    if (!good)
        return -EAGAIN;
    l5_page_unpack(payload, copy, 0, lines);
    return 0;
}

/* CRC-64 (ECMA-182, as in xz) of data behind `crc`; 0 to begin with. */
uint64_t l5_pages_crc64(uint64_t crc, const uint8_t *data, uint64_t bytes)
{
    static const uint64_t polynomial = UINT64_C(0xc96c5795d7870f42); /* reflected */
    static uint64_t table[8][256];
    static int made; /* whoever makes it makes the same one */

    if (!__atomic_load_n(&made, __ATOMIC_ACQUIRE)) { /* pairs with: the table is made */
        uint64_t own[8][256];

        for (unsigned i = 0; i < 256; i++) {
            own[0][i] = i;
            for (int bit = 0; bit < 8; bit++)
                own[0][i] = own[0][i] & 1 ? own[0][i] >> 1 ^ polynomial : own[0][i] >> 1;
        }
        for (int step = 1; step < 8; step++)
            for (unsigned i = 0; i < 256; i++)
                own[step][i] = own[step - 1][i] >> 8 ^ own[0][own[step - 1][i] & 255];
        for (int step = 0; step < 8; step++)
            for (unsigned i = 0; i < 256; i++)
                __atomic_store_n(&table[step][i], own[step][i], __ATOMIC_RELAXED);
        __atomic_store_n(&made, 1, __ATOMIC_RELEASE); /* pairs with: the table is made */
    }
    crc = ~crc;
    for (; bytes >= 8; bytes -= 8, data += 8) {
        uint64_t mixed = crc, next = 0;

        for (int i = 0; i < 8; i++) {
            mixed ^= (uint64_t)data[i] << (8 * i);
            next ^= table[7 - i][mixed >> (8 * i) & 255];
        }
        crc = next;
    }
    for (; bytes; bytes--, data++)
        crc = crc >> 8 ^ table[0][(crc ^ *data) & 255];
    return ~crc;
}
