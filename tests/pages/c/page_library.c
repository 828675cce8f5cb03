/* The writer and the judge of page_torture.h for Python (ctypes). */
#include "page_torture.h"

struct torture *library_begin(void *pages, uint32_t count, uint32_t lines);
uint64_t library_end(struct torture *torture);
int library_good(const uint8_t *payload, uint32_t lines, uint32_t page);

struct torture *library_begin(void *pages, uint32_t count, uint32_t lines)
{
    struct torture *torture = (struct torture *)malloc(sizeof(*torture));

    if (torture && torture_begin(torture, pages, count, lines)) {
        free(torture);
        return NULL;
    }
    return torture;
}

uint64_t library_end(struct torture *torture)
{
    uint64_t writes = torture_end(torture);

    free(torture);
    return writes;
}

int library_good(const uint8_t *payload, uint32_t lines, uint32_t page)
{
    return torture_good(payload, lines, page);
}
