/* Included before the tree's C: whatever is read in a node counts only if every line's version is right.
 *
 * Readers of a coherent mapping need line 0's alone; this is what the check of all lines costs, without a copy. */
#ifndef EVERY_LINE_H
#define EVERY_LINE_H

#include "l5_page.h"

enum { EVERY_LINE_LINES = 16 };

static inline int every_line_unchanged(const void *page, uint32_t version)
{
    uint32_t other[4] = {version & 1}; /* four, so that the loads do not wait for each other */

    l5_page_fence(__ATOMIC_ACQUIRE);
    for (size_t line = 0; line < EVERY_LINE_LINES; line++)
        other[line % 4] |= l5_page_version(page, line) ^ version;
    return !(other[0] | other[1] | other[2] | other[3]);
}

#define l5_page_unchanged every_line_unchanged

#endif
