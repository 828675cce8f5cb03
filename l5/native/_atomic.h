/* The only place that names memory orders.
 *
 * Three kinds of access exist in l5:
 *   load_acquire / store_release   hand data over (message, space);
 *   load_seq / store_seq           the store-then-load pairs of arming (publish v. arm): each side
 *                                  stores its own word and then loads the other's, and at least
 *                                  one of them must see the other's store.  Sequentially
 *                                  consistent operations rather than stand-alone fences, because
 *                                  thread sanitizers do not model fences;
 *   load_relaxed / store_relaxed   statistics and hints; swap takes a word that hands over nothing
 *                                  but itself, and orders nothing either.
 *
 * Regions (region.c), whose words belong to an application's protocol, have besides: store_byte
 * (release, for ends of writes that fill no word), compare_swap and fetch_add (sequentially
 * consistent, as verbs' atomics are between themselves), and one full fence, when a region is revoked.
 *
 * That each of them is needed is shown in tests/native/test_ring_model.py; what is added here is
 * added to tests/native/model/model.h as well.
 */
#ifndef L5_ATOMIC_H
#define L5_ATOMIC_H

#include <stdatomic.h>
#include <stdint.h>

typedef _Atomic uint64_t l5_word;
typedef _Atomic uint32_t l5_word32;

_Static_assert(sizeof(l5_word) == 8 && ATOMIC_LLONG_LOCK_FREE == 2,
               "shared words must be lock-free: they are shared between processes");

static inline uint64_t l5_load_acquire(const l5_word *word)
{
    return atomic_load_explicit((l5_word *)word, memory_order_acquire);
}

static inline void l5_store_release(l5_word *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
}

static inline uint64_t l5_load_seq(const l5_word *word)
{
    return atomic_load_explicit((l5_word *)word, memory_order_seq_cst);
}

static inline void l5_store_seq(l5_word *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_seq_cst);
}

static inline uint64_t l5_swap(l5_word *word, uint64_t value)
{
    return atomic_exchange_explicit(word, value, memory_order_relaxed);
}

static inline uint64_t l5_load_relaxed(const l5_word *word)
{
    return atomic_load_explicit((l5_word *)word, memory_order_relaxed);
}

static inline void l5_store_relaxed(l5_word *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_relaxed);
}

static inline uint64_t l5_add(l5_word *word, uint64_t value)
{
    return atomic_fetch_add_explicit(word, value, memory_order_relaxed);
}

static inline void l5_store_byte(uint8_t *byte, uint8_t value)
{
    atomic_store_explicit((_Atomic uint8_t *)byte, value, memory_order_release);
}

/* Return what was there; it is `desired` afterwards if that was `expected`. */
static inline uint64_t l5_compare_swap(l5_word *word, uint64_t expected, uint64_t desired)
{
    atomic_compare_exchange_strong_explicit(word, &expected, desired, memory_order_seq_cst, memory_order_seq_cst);
    return expected;
}

static inline uint64_t l5_fetch_add(l5_word *word, uint64_t value)
{
    return atomic_fetch_add_explicit(word, value, memory_order_seq_cst);
}

static inline void l5_full_fence(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}

/* What a device writes and mailbox.c reads; the model, which has no device, does not have these. */
typedef _Atomic uint32_t l5_size;
typedef _Atomic uint8_t l5_flag_byte;

static inline uint32_t l5_size_acquire(const l5_size *size)
{
    return atomic_load_explicit((l5_size *)size, memory_order_acquire);
}

static inline void l5_size_release(l5_size *size, uint32_t value)
{
    atomic_store_explicit(size, value, memory_order_release);
}

static inline uint8_t l5_flag_acquire(const l5_flag_byte *flag)
{
    return atomic_load_explicit((l5_flag_byte *)flag, memory_order_acquire);
}

static inline uint8_t l5_flag_take(l5_flag_byte *flag)
{
    return atomic_exchange_explicit(flag, 0, memory_order_acquire);
}

/* What was copied out of shared memory before this is not read there again: without it a compiler may
 * take the copy for superfluous, and load what was checked a second time. */
static inline void l5_copied(void)
{
    atomic_signal_fence(memory_order_seq_cst);
}

/* Tell the core that this is a spin loop. */
static inline void l5_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

#endif
