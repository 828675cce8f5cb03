/* What mailbox.c sees in place of _atomic.h: accesses to flags, rows and messages are the model's.
 *
 * Included by the compiler before everything else.  A cell is a word of four bytes of a message, or one
 * flag; of a word of eight flags, each is loaded by itself, which is less than the C asks for. */
#ifndef L5_MODEL_MAILBOX_H
#define L5_MODEL_MAILBOX_H

#define MODEL_ITSELF
#include "model.h"

#define L5_ATOMIC_H

typedef uint64_t l5_word;
typedef uint32_t l5_size;
typedef uint8_t l5_flag_byte;

uint64_t mailbox_load(const void *at, size_t bytes, enum order order, struct place place);
void mailbox_store(void *at, uint64_t value, enum order order, struct place place);
uint64_t mailbox_swap(void *at, uint64_t value, enum order order, struct place place);
void mailbox_fill(void *at, size_t bytes, struct place place);

#define l5_load_relaxed(word) mailbox_load(word, 8, RELAXED, HERE)
#define l5_size_acquire(size) ((uint32_t)mailbox_load(size, 4, ACQUIRE, HERE))
#define l5_size_release(size, value) mailbox_store(size, value, RELEASE, HERE)
#define l5_flag_acquire(flag) ((uint8_t)mailbox_load(flag, 1, ACQUIRE, HERE))
#define l5_flag_take(flag) ((uint8_t)mailbox_swap(flag, 0, ACQUIRE, HERE))
/* What nobody uses: to be put in place of the above. */
#define l5_size_relaxed(size) ((uint32_t)mailbox_load(size, 4, RELAXED, HERE))
#define l5_size_store_relaxed(size, value) mailbox_store(size, value, RELAXED, HERE)
#define l5_flag_relaxed(flag) ((uint8_t)mailbox_load(flag, 1, RELAXED, HERE))
#define l5_flag_take_relaxed(flag) ((uint8_t)mailbox_swap(flag, 0, RELAXED, HERE))

#undef memset
#define memset(at, value, bytes) mailbox_fill(at, bytes, HERE)

static inline void l5_copied(void)
{
}

#endif
