/* What l5_page.h is compiled with for the model: its atomic accesses and fences become the model's.
 *
 * The page is address space that cannot be accessed, a cell for each 4 bytes; a u64 is the cell that
 * it begins in.  Everything else, private copies above all, is memory as ever. */
#ifndef MODEL_PAGE_H
#define MODEL_PAGE_H

#define MODEL_ITSELF
#include "model.h"

uint64_t page_load(const void *at, size_t bytes, int order, struct place place);
void page_store(void *at, uint64_t value, size_t bytes, int order, struct place place);

static inline enum order page_order(int order)
{
    return order == __ATOMIC_RELAXED ? RELAXED : order == __ATOMIC_ACQUIRE ? ACQUIRE : RELEASE;
}

#define __atomic_load_n(at, order) ((__typeof__(*(at) + 0))page_load(at, sizeof(*(at)), order, HERE))
#define __atomic_store_n(at, value, order) page_store(at, value, sizeof(*(at)), order, HERE)
#define __atomic_thread_fence(order) memory->fence(page_order(order))

#endif
