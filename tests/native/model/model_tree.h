/* What the R-tree's C is compiled with for the model (-include): atomic accesses and fences become the model's.
 *
 * The tree is there twice: memory of the writer's own, which it may read as it likes, for it finds there what it wrote; and the
 * reader's, address space that cannot be accessed, where only the model's loads find something.  A store goes to both. */
#ifndef MODEL_TREE_H
#define MODEL_TREE_H

#include <stddef.h>
#include <stdint.h>

uint64_t tree_load(const void *at, size_t bytes, int order, const char *function, int line);
void tree_store(void *at, uint64_t value, size_t bytes, int order, const char *function, int line);
void tree_fence(int order);
void tree_pause(void);

#define __atomic_load_n(at, order) ((__typeof__(*(at) + 0))tree_load(at, sizeof(*(at)), order, __func__, __LINE__))
#define __atomic_store_n(at, value, order) tree_store(at, (uint64_t)(value), sizeof(*(at)), order, __func__, __LINE__)
#define __atomic_load(from, to, order)                                     \
    do {                                                                   \
        uint64_t loaded_ = tree_load(from, sizeof(*(from)), order, __func__, __LINE__);  \
        __builtin_memcpy(to, &loaded_, sizeof(*(from)));                   \
    } while (0)
#define __atomic_store(to, from, order)                                    \
    do {                                                                   \
        uint64_t stored_ = 0;                                              \
        __builtin_memcpy(&stored_, from, sizeof(*(from)));                 \
        tree_store(to, stored_, sizeof(*(from)), order, __func__, __LINE__);             \
    } while (0)
#define __atomic_add_fetch(at, value, order) (*(at) += (value))
#define __atomic_thread_fence(order) tree_fence(order)

#endif
