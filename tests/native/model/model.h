/* A world in which the ring's own C runs under every schedule.
 *
 * This header is included by the compiler before everything else (-include) when channel.c, segment.c,
 * wait.c and region.c are built for the model; it takes the place of _atomic.h, and of the few calls by which
 * that code touches shared memory and the kernel.  Nothing of the code under test is written again.
 *
 *   channel.c segment.c wait.c region.c   as they are; only compiled with this header
 *   ring_sides.c                   who uses them: the wait loop, the scenarios, what must hold
 *   service*.c                     as they are, too, with model_service.h
 *   service_sides.c                a worker of a native service, and a client with its event loop
 *   l5_page.h                      as it is, too, with model_page.h
 *   page_sides.c                   a writer of a page, and readers of all kinds
 *   mailbox.c                      as it is, too, with model_mailbox.h
 *   mailbox_sides.c                a peer's device, and who reads what it writes
 *   catfish_app/native/rt_*.c      as they are, but for the size of nodes, with model_tree.h
 *   tree_sides.c                   a writer of the R-tree, and who searches it in place or by copies
 *   explore.c                      two coroutines, choices, depth-first search by replay
 *   memory.c                       the file and its mappings: addresses become cells of 8 bytes
 *   tso.c                          memory as x86 has it: each side's stores wait in a FIFO buffer
 *   views.c                        memory as C11 has it: each cell keeps its past, loads may be stale
 *
 * Copies of long payloads (_copy.h) run as on a processor without SSE2: line by line by memcpy, which
 * the model sees; and long is what fits into its rings.
 *
 * A mapping is address space that cannot be accessed: what the model does not see, crashes. */
#ifndef L5_MODEL_H
#define L5_MODEL_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#undef __SSE2__
#define L5_LONG_BYTES 256u
#define L5_QUARTERS_BYTES 320u

enum { SIDES = 2, PAGE_BYTES = 512, RING_BYTES_MAX = 1024, WATCHED = 4, CELLS = (PAGE_BYTES + 2 * RING_BYTES_MAX) / 8 + WATCHED };

enum order { RELAXED, ACQUIRE, RELEASE, SEQ_CST, PLAIN };

struct place {
    const char *function;
    int line;
};

/* What a side does next, as far as others can notice. */
struct action {
    enum { NOTHING, LOAD, STORE, SWAP, RING, SLEEP, HEAR, BEGIN } kind;
    int cell, count; /* of memory; of bells: a bit for each */
};

/* ---- explore.c ----------------------------------------------------------------------------- */

int choose(int options);                /* 0 is the plain course of things */
int choose_stale(int options);          /* the same; anything but 0 counts as a stale load */
void step(struct action action);        /* the caller is about to do this: somebody else may go first */
void noticed(struct action action);     /* this was done without a step */
void impossible(void) __attribute__((noreturn)); /* the choices that were taken exclude each other */
void model_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void tell(struct place place, const char *format, ...) __attribute__((format(printf, 2, 3)));
int explore(void (*begin)(void), void (*side)(int), void (*end)(void), int switches_max, int stale_max);
extern int me;                          /* which side runs */
extern const char *const side_names[SIDES];

/* Bells: sockets with room for one byte. The first two belong to the sides; others, of eventfds and
 * mutexes, carry order with them. */
enum { BELLS = 16 };

void bell_ring(int bell, struct place place);
void bell_wait(int bells);              /* sleep until one of these bits was rung */
int bell_hear(int bell);                /* 1: it was rung; 0: it was not, or nobody holds the other end */
int bell_take(int bells);               /* look which of these would not wait */
void start_ringing(int bells);          /* before a schedule: these have rung */
void bell_end(int bell);                /* the other end is closed: ready for ever */

/* ---- memory.c ------------------------------------------------------------------------------ */

struct memory {
    void (*reset)(void);
    uint64_t (*load)(int cell, enum order order, struct place place);
    void (*store)(int cell, uint64_t value, enum order order, struct place place);
    uint64_t (*swap)(int cell, uint64_t value, enum order order, struct place place);
    void (*read)(int cell, int count, uint64_t *values, struct place place);
    void (*write)(int cell, int count, const uint64_t *values, struct place place);
    void (*snapshot)(int cell, int count, uint64_t *values, struct place place); /* of one moment */
    void (*fence)(enum order order); /* acquire or release */
    uint64_t (*final)(int cell); /* the value when all stores have landed */
    void (*preset)(int cell, uint64_t value);
    int (*lands)(int side, int cell, int count); /* would a STORE or SWAP of that side change these, too? */
    void (*give)(int bell); /* who obtains the bell's order afterwards sees what the side sees now */
    void (*obtain)(int bell);
};

extern const struct memory tso, views;
extern const struct memory *memory;
const char *cell_name(int cell);
int cell_of(const void *address, size_t bytes);
int watch_word(void *word); /* from now on this word of private memory is a cell; others are not looked at */

uint64_t model_load(const void *word, enum order order, struct place place);
void model_store(void *word, uint64_t value, enum order order, struct place place);
uint64_t model_add(void *word, uint64_t value);
uint64_t model_swap(void *word, uint64_t value, enum order order, struct place place);
void *model_copy(void *to, const void *from, size_t bytes, struct place place);
void *model_fill(void *to, int value, size_t bytes, struct place place);
void *model_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
ssize_t model_send(int socket, struct place place);

#define HERE ((struct place){__func__, __LINE__})

/* ---- what _atomic.h has ----------------------------------------------------------------------- */

#ifndef MODEL_ITSELF
#define L5_ATOMIC_H

typedef uint64_t l5_word;
typedef uint32_t l5_word32;

#define l5_load_acquire(word) model_load(word, ACQUIRE, HERE)
#define l5_load_seq(word) model_load(word, SEQ_CST, HERE)
#define l5_load_relaxed(word) model_load(word, RELAXED, HERE)
#define l5_store_release(word, value) model_store(word, value, RELEASE, HERE)
#define l5_store_seq(word, value) model_store(word, value, SEQ_CST, HERE)
#define l5_store_relaxed(word, value) model_store(word, value, RELAXED, HERE)
#define l5_add(word, value) model_add(word, value)
#define l5_swap(word, value) model_swap(word, value, RELAXED, HERE)
#define l5_store_byte(byte, value) (*(byte) = (value)) /* crashes in shared memory: nobody writes parts of words there */

static inline void l5_copied(void)
{
}

static inline void l5_relax(void)
{
}

/* ---- what the C library has ------------------------------------------------------------------- */

#undef memcpy
#undef memset
#define memcpy(to, from, bytes) model_copy(to, from, bytes, HERE)
#define memset(to, value, bytes) model_fill(to, value, bytes, HERE)
#define send(socket, data, bytes, flags) ((void)(data), model_send(socket, HERE))
#define mmap model_mmap
#define sysconf(name) ((long)PAGE_BYTES)
#define sched_getcpu() 0
#endif

#endif
