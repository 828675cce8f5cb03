/* A channel over shared memory: two single-producer single-consumer rings in one sealed memfd.
 *
 * Memory of one connection (the file; each ring is mapped twice in a row, so that no message wraps):
 *
 *   0        control page
 *            +0    magic, page size, ring size   the client writes them once, the server compares
 *            +64   c2s.read    the server's read position         (server writes)
 *            +128  s2c.read    the client's read position         (client writes)
 *            +192  client.armed                  (client sets, server takes)
 *            +256  server.armed                  (server sets, client takes)
 *            +320  server.status: sequence, busy share, when; crowd    (server writes)
 *   P        ring c2s: client to server   [R bytes][mirror of the same R bytes]
 *   P + R    ring s2c: server to client   [R bytes][mirror]
 *
 * One message in a ring, at a multiple of 64 bytes:
 *
 *   +0   size word: bytes of header and payload; zero means "nothing here yet"
 *   +8   frame header: size u32, kind u8, flags u8, cpu u16, id u64
 *   +24  payload, then padding up to a multiple of 64
 *
 * Theory of operation (L5, section III-A).  The sender copies header and payload first and stores
 * the size word last.  The receiver polls the size word at its own position, copies header and
 * payload out, zeroes the message (so that the next lap finds zero there) and moves its position.
 * Positions only grow; the place in the ring is position modulo R.  The sender knows how far the
 * receiver is by a cached copy of the receiver's read position and looks again only when the
 * cached copy leaves no room.  The receiver publishes its position every R/8 bytes and before it
 * sleeps, not at every message.
 *
 * The pairs of orderings, named where they are used:
 *   MESSAGE  store of the size word -> load of the size word: header and payload are complete.
 *   SPACE    store of the read position -> load of it: the space has been zeroed, is not read.
 *   STATUS   store of the heartbeat's sequence number -> load of it: what goes with it is as new.
 *   DOORBELL publish (size word or read position), then load the peer's armed word;
 *            against: store the own armed word, then re-check size word and read position.
 *            All four are sequentially consistent, so at least one side sees the other.
 *
 * The peer may write anything anywhere at any time.  Every number is copied once and then checked
 * against what only we can write; payloads are copied before they are looked at (or leased, with
 * the documented caveat).  Nothing here blocks, allocates or trusts.
 */
#ifndef L5_CHANNEL_H
#define L5_CHANNEL_H

#include <stddef.h>
#include <stdint.h>

#include "_atomic.h"
#include "_copy.h"

#define L5_HEADER_BYTES 16u
#define L5_PREFIX_BYTES 24u /* size word and header */
#define L5_ALIGN 64u
#define L5_FETCH_BYTES 256u /* of each message that is fetched early */
#define L5_CROWD_MAX 8u /* a server may say anything: a yield of a millisecond for each is waited for */
#define L5_MAGIC 0x31474e49524c35ull /* "5LRING1" */

enum l5_kind {
    L5_DATA = 1,
    L5_REQUEST = 2,
    L5_RESPONSE = 3,
    L5_ERROR = 4,
    L5_CANCEL = 5,
    L5_CREDIT = 6,
    L5_HEARTBEAT = 7,
    L5_CLOSE = 8,
    L5_ABORT = 9,
};

enum l5_flag { L5_MORE = 1, L5_DEADLINE = 2, L5_FOR_RESPONSE = 4 };

enum l5_arm_bits { L5_ARM_DATA = 1, L5_ARM_SPACE = 2 };

enum l5_role { L5_CLIENT = 0, L5_SERVER = 1 };

/* A frame that has been checked; `payload` points into the ring until it is consumed. */
struct l5_frame {
    uint32_t size; /* of the payload */
    uint8_t kind;
    uint8_t flags;
    uint16_t cpu_plus_one;
    uint64_t id;
    const uint8_t *payload;
};

struct l5_control {
    uint64_t magic;
    uint64_t page_bytes;
    uint64_t ring_bytes;
    uint8_t pad0[40];
    struct {
        l5_word word;
        uint8_t pad[56];
    } read[2]; /* [0] of ring c2s, [1] of ring s2c */
    struct {
        l5_word word;
        uint8_t pad[56];
    } armed[2]; /* by enum l5_role */
    struct {
        l5_word sequence;
        l5_word busy_millionths;
        l5_word written_ns;
        l5_word crowd;
        uint8_t pad[32];
    } status;
};

struct l5_channel {
    /* what the sender touches */
    uint8_t *tx_base;
    uint64_t tx_write;       /* ours alone */
    uint64_t tx_read_cached; /* last checked copy of the receiver's position */
    uint64_t tx_wanted;      /* padded bytes that did not fit last time; 0: nothing is missed */
    l5_word *tx_read;        /* the peer writes it */
    l5_word *peer_armed;
    uint32_t tx_limit;       /* payload bytes of one frame */
    uint32_t tx_reserved;    /* payload bytes of an open reservation plus one; 0: none */
    /* what the receiver touches */
    uint8_t *rx_base;
    uint64_t rx_read;
    uint64_t rx_published;
    uint64_t rx_hold;        /* start of a leased message, or UINT64_MAX */
    uint64_t rx_hold_bytes;
    l5_word *rx_position;    /* we write it */
    l5_word *own_armed;
    uint32_t rx_limit;
    uint32_t rx_pending;     /* padded size of the message that peek found; 0: none */
    /* both */
    uint64_t ring_bytes;
    struct l5_control *control;
    const char *fault;       /* what the peer did, in words, once it broke the rules */
    size_t map_bytes;
    int bell;                /* socket of the bootstrap: one byte wakes the peer; -1: none */
    int cpu;                 /* where we ran when we last sent, or -1 */
    int peer_cpu;            /* where the peer last ran, or -1 */
    int gone;                /* the bell could not be rung: the peer is gone */
    int role;
    uint32_t crowd_told;     /* (server) how many clients it has, as this one was told last */
    uint64_t bells_rung;
    uint64_t space_waits;
};

/* segment.c: the memory.  All return 0 (or a descriptor) or -errno. */
int l5_memfd_create(void);
/* In a forked child, where a mapping is gone: put private zeros in its place, if that is free. */
int l5_mapping_blank(void *base, uint64_t map_bytes);
int l5_segment_create(uint64_t ring_bytes);
int l5_segment_verify(int fd, uint64_t ring_bytes, const char **why);
int l5_segment_lock(int fd, uint64_t ring_bytes, const char **why);
int l5_channel_map(struct l5_channel *channel, int fd, uint64_t ring_bytes, int role);
void l5_channel_unmap(struct l5_channel *channel);
int l5_channel_blank(struct l5_channel *channel);

/* channel.c: sending.  -EAGAIN: no room now; -EMSGSIZE; -EPROTO: the peer lied (see fault);
 * -EBUSY: a reservation is open. */
int l5_channel_send(struct l5_channel *channel, int kind, int flags, uint64_t id, const void *prefix,
                    uint32_t prefix_bytes, const void *payload, uint32_t payload_bytes);
int l5_channel_reserve(struct l5_channel *channel, uint32_t payload_bytes, void **payload);
int l5_channel_commit(struct l5_channel *channel, int kind, int flags, uint64_t id, uint32_t payload_bytes);
void l5_channel_discard(struct l5_channel *channel);

/* Receiving.  peek: 1 a frame, 0 none, -EPROTO.  consume: done with the frame that peek gave.  take:
 * the same, its payload copied out. */
int l5_channel_peek(struct l5_channel *channel, struct l5_frame *frame);
void l5_channel_consume(struct l5_channel *channel);
void l5_channel_take(struct l5_channel *channel, const struct l5_frame *frame, void *target, int past);
int l5_channel_hold(struct l5_channel *channel);
void l5_channel_release(struct l5_channel *channel);
int l5_channel_publish(struct l5_channel *channel);

/* Sleeping.  arm: 0 armed, -EBUSY something is there already, -EPROTO. */
int l5_channel_arm(struct l5_channel *channel, int bits);
int l5_channel_armed(const struct l5_channel *channel);
void l5_channel_disarm(struct l5_channel *channel);

/* wait.c: wait for news of `count` channels; 1 when one has some (a message, or the room that was
 * missed), else 0.  near: how many of those that are in use have their peers on our CPU.  tell: how
 * many of them are clients of ours that are in use; they are told.  told: what ours are. */
int l5_channels_news(struct l5_channel *const *channels, uint32_t count);
uint32_t l5_channels_near(struct l5_channel *const *channels, uint32_t count, uint32_t *far);
uint32_t l5_channels_tell(struct l5_channel *const *channels, uint32_t count);
uint32_t l5_channels_told(struct l5_channel *const *channels, uint32_t count);
int l5_spin(struct l5_channel *const *channels, uint32_t count, uint64_t budget_ns, uint64_t *spent_ns);
int l5_yield(struct l5_channel *const *channels, uint32_t count, int times);
int l5_leave_cpu(int cpu, uint32_t cpus);
uint64_t l5_now_ns(void);
int l5_cpu(void);

static inline uint64_t l5_padded(uint64_t payload_bytes)
{
    return (payload_bytes + L5_PREFIX_BYTES + L5_ALIGN - 1) & ~(uint64_t)(L5_ALIGN - 1);
}

/* Tell a client how many use its server. */
static inline void l5_channel_tell(struct l5_channel *channel, uint32_t crowd)
{
    if (channel->crowd_told == crowd)
        return;
    channel->crowd_told = crowd;
    l5_store_relaxed(&channel->control->status.crowd, crowd);
}

static inline l5_word *l5_size_word(uint8_t *base, uint64_t position, uint64_t ring_bytes)
{
    return (l5_word *)(void *)(base + (position & (ring_bytes - 1)));
}

/* Tell whether a message waits: one load of a line that we own.  Nothing is read on the strength of
 * it (peek looks again), so it orders nothing. */
static inline int l5_channel_ready(struct l5_channel *channel)
{
    return l5_load_relaxed(l5_size_word(channel->rx_base, channel->rx_read, channel->ring_bytes)) != 0;
}

/* Fetch the lines of the next message, and of our next one, while something else is done; both are taken
 * to be as long as the last, `payload_bytes`.  For writing, since those are zeroed and these are filled:
 * fetched to be read, each line would be asked for again.  Only for a peer that has sent on without
 * waiting: one that waits looks at those lines all the time. */
static inline void l5_channel_prefetch(const struct l5_channel *channel, uint32_t payload_bytes)
{
    uint64_t last = channel->ring_bytes - 1, bytes = l5_padded(payload_bytes);
    const uint8_t *next = channel->rx_base + (channel->rx_read & last);
    const uint8_t *own = channel->tx_base + (channel->tx_write & last);

    for (uint64_t at = 0; at < bytes && at < L5_FETCH_BYTES; at += L5_ALIGN) {
        l5_prefetch_to_write(next + at);
        l5_prefetch_to_write(own + at);
    }
}

/* Tell whether what did not fit last time would fit now.  A hint like the one above: all that
 * follows from it is another try, in which make_room judges the position. */
static inline int l5_channel_has_room(struct l5_channel *channel)
{
    return channel->tx_wanted &&
           channel->ring_bytes - (channel->tx_write - l5_load_relaxed(channel->tx_read)) >= channel->tx_wanted;
}

#endif
