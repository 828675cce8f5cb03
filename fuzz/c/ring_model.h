/* One end of a channel, a hostile peer, and a copy of the whole file as it has to be.
 *
 *   ours  -- channel ->  [ control | ring c2s | ring s2c ]  <- mapping --  the peer writes anything
 *                                    == shadow, byte for byte, after every step
 *
 * Each step does something with the channel and, by the rules of docs/shared-memory.md, to the
 * shadow.  A write of ours that strays, or fails to happen, is a difference. */
#ifndef FUZZ_RING_MODEL_H
#define FUZZ_RING_MODEL_H

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "channel.h"
#include "input.h"

enum {
    PAGE = 4096,
    RING = 4096,
    FILE_BYTES = PAGE + 2 * RING,
    LIMIT = RING / 4,
    AT_READ = 64,   /* of c2s; that of s2c is the next line */
    AT_ARMED = 192, /* the client's; the server's is the next line */
    LINE = 64,
};

struct ring {
    struct l5_channel channel;
    struct l5_channel fresh[2]; /* by role, as they were mapped */
    uint8_t *peer;              /* the file, mapped a second time */
    uint8_t shadow[FILE_BYTES];
    int role;
    uint64_t bells;
    uint64_t read, published, hold, hold_bytes; /* the receiver as it has to be */
};

static struct ring ring;

static inline void ring_open(void)
{
    int fd = l5_segment_create(RING);

    CHECK(fd >= 0 && sysconf(_SC_PAGESIZE) == PAGE);
    for (int role = 0; role < 2; role++) {
        CHECK(!l5_channel_map(&ring.fresh[role], fd, RING, role));
        ring.fresh[role].tx_limit = ring.fresh[role].rx_limit = LIMIT;
    }
    ring.peer = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(ring.peer != MAP_FAILED);
    close(fd);
}

static inline void ring_reset(int role)
{
    memset(ring.peer, 0, FILE_BYTES);
    memset(ring.shadow, 0, FILE_BYTES);
    ring.channel = ring.fresh[role];
    ring.role = role;
    ring.bells = ring.read = ring.published = ring.hold_bytes = 0;
    ring.hold = UINT64_MAX;
}

/* Where things are in the file, seen from our end. */
static inline size_t rx_ring(void)
{
    return PAGE + (ring.role == L5_SERVER ? 0 : RING);
}

static inline size_t tx_ring(void)
{
    return PAGE + (ring.role == L5_SERVER ? RING : 0);
}

static inline size_t rx_position(void)
{
    return AT_READ + (ring.role == L5_SERVER ? 0 : LINE);
}

static inline size_t tx_position(void)
{
    return AT_READ + (ring.role == L5_SERVER ? LINE : 0);
}

static inline size_t own_armed(void)
{
    return (size_t)(AT_ARMED + LINE * ring.role);
}

static inline size_t peer_armed(void)
{
    return (size_t)(AT_ARMED + LINE * (1 - ring.role));
}

static inline uint64_t shadow_word(size_t at)
{
    uint64_t word;

    memcpy(&word, ring.shadow + at, sizeof(word));
    return word;
}

static inline void shadow_set(size_t at, uint64_t word)
{
    memcpy(ring.shadow + at, &word, sizeof(word));
}

/* Write `bytes` bytes into a ring of the shadow, or zeros. */
static inline void shadow_ring(size_t base, uint64_t position, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ring.shadow[base + ((position + i) & (RING - 1))] = data ? ((const uint8_t *)data)[i] : 0;
}

static inline void peer_writes(size_t at, const void *data, size_t bytes)
{
    memcpy(ring.peer + at, data, bytes);
    memcpy(ring.shadow + at, data, bytes);
}

static inline void peer_sets(size_t at, uint64_t word)
{
    peer_writes(at, &word, sizeof(word));
}

/* The peer writes anything anywhere. */
static inline void peer_pokes(struct input *input)
{
    uint8_t data[64];
    size_t at = take16(input) % FILE_BYTES, bytes = 1 + take8(input) % sizeof(data);

    if (bytes > FILE_BYTES - at)
        bytes = FILE_BYTES - at;
    take_bytes(input, data, bytes);
    peer_writes(at, data, bytes);
}

/* We published something: whoever is armed for it is disarmed and woken. */
static inline void model_wake(uint64_t bit)
{
    if (!(shadow_word(peer_armed()) & bit))
        return;
    shadow_set(peer_armed(), 0);
    ring.bells++;
}

static inline void model_publish(void)
{
    uint64_t position = ring.hold != UINT64_MAX ? ring.hold : ring.read;

    if (position == ring.published)
        return;
    ring.published = position;
    shadow_set(rx_position(), position);
    model_wake(L5_ARM_SPACE);
}

static inline void model_give_back(uint64_t position, uint64_t bytes)
{
    shadow_ring(rx_ring(), position, NULL, bytes);
    if (ring.read - ring.published >= RING / 8)
        model_publish();
}

static inline void ring_check(void)
{
    CHECK(!memcmp(ring.peer, ring.shadow, FILE_BYTES));
    CHECK(ring.channel.bells_rung == ring.bells);
    CHECK(ring.channel.rx_read == ring.read && ring.channel.rx_published == ring.published);
    CHECK(ring.channel.rx_hold == ring.hold);
}

#endif
