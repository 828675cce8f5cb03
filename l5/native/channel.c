/* Sending, receiving and arming.  Theory, drawing and the names of the pairs: channel.h. */
#define _GNU_SOURCE
#include "_copy.h"
#include "_steps.h"
#include "channel.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

struct wire_header {
    uint32_t size;
    uint8_t kind;
    uint8_t flags;
    uint16_t cpu_plus_one;
    uint64_t id;
};

_Static_assert(sizeof(struct wire_header) == L5_HEADER_BYTES, "the header is 16 bytes on the wire");

/* Which flags each kind may carry, and the exact payload size where there is one (-1: any). */
static const struct {
    uint8_t flags;
    int size;
} rules[] = {
    [L5_DATA] = {L5_MORE, -1},          [L5_REQUEST] = {L5_MORE | L5_DEADLINE, -1},
    [L5_RESPONSE] = {L5_MORE, -1},      [L5_ERROR] = {0, -1},
    [L5_CANCEL] = {0, 0},               [L5_CREDIT] = {L5_FOR_RESPONSE, 8},
    [L5_HEARTBEAT] = {0, 12},           [L5_CLOSE] = {L5_MORE, 0},
    [L5_ABORT] = {0, 0},
};

static int fault(struct l5_channel *channel, const char *what)
{
    channel->fault = what;
    return -EPROTO;
}

/* Wake the peer.  One byte on the bootstrap socket; MSG_DONTWAIT holds for this call whatever the
 * peer did to the descriptor's flags, which is why the doorbell is a socket and no eventfd.  A
 * full buffer means that the peer has wake-ups enough. */
static void ring_bell(struct l5_channel *channel)
{
    static const char byte = 0;

    channel->bells_rung++;
    if (channel->bell < 0)
        return;
    if (send(channel->bell, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN && errno != EINTR)
        channel->gone = 1;
}

/* DOORBELL, publisher's half: the caller has just published by a sequentially consistent store.
 * Whoever takes the word rings, whatever it says by then: the peer may have armed again for
 * something else meanwhile, and sleeps by what it wrote last. */
static inline void wake_if_armed(struct l5_channel *channel, uint64_t bit)
{
    if (l5_load_seq(channel->peer_armed) & bit) /* pairs with: DOORBELL in l5_channel_arm */
        if (l5_swap(channel->peer_armed, 0))
            ring_bell(channel);
}

/* Find room for `padded` bytes, believing the receiver's position only as far as it can be true. */
static int make_room(struct l5_channel *channel, uint64_t padded)
{
    uint64_t used = channel->tx_write - channel->tx_read_cached;
    uint64_t read;

    if (channel->ring_bytes - used >= padded)
        return 0;
    /* pairs with: SPACE in l5_channel_publish; and DOORBELL, when l5_channel_arm looks once more */
    read = l5_load_seq(channel->tx_read);
    if (read - channel->tx_read_cached > used || (read & (L5_ALIGN - 1)))
        return fault(channel, "the peer's read position is not one that it can have reached");
    channel->tx_read_cached = read;
    if (channel->ring_bytes - (channel->tx_write - read) >= padded)
        return 0;
    channel->tx_wanted = padded;
    return -EAGAIN;
}

/* `spare` bytes stay free behind it: only a closing CLOSE may take the last ones, so that there is
 * always room to say goodbye, and a leased message never stands where the next one is awaited. */
static int begin(struct l5_channel *channel, uint32_t payload_bytes, uint64_t spare)
{
    uint64_t padded = l5_padded(payload_bytes) + spare;
    int rc;

    if (channel->tx_reserved) {
        channel->tx_wanted = 0; /* its end, not room in the ring, is what the caller waits for */
        return -EBUSY;
    }
    if (payload_bytes > channel->tx_limit)
        return -EMSGSIZE;
    if (channel->gone)
        return -EPIPE;
    rc = make_room(channel, padded);
    if (!rc && padded >= channel->tx_wanted)
        channel->tx_wanted = 0; /* found: neither that nor anything smaller is missed any more */
    return rc;
}

static void finish(struct l5_channel *channel, int kind, int flags, uint64_t id, uint32_t payload_bytes)
{
    uint8_t *at = channel->tx_base + (channel->tx_write & (channel->ring_bytes - 1));
    struct wire_header header = {
        .size = payload_bytes,
        .kind = (uint8_t)kind,
        .flags = (uint8_t)flags,
        .cpu_plus_one = (uint16_t)((channel->cpu = l5_cpu()) + 1),
        .id = id,
    };

    memcpy(at + 8, &header, sizeof(header));
    channel->tx_write += l5_padded(payload_bytes);
    L5_STEP(31); /* (both, shm): a message is written, and its size word is not */
    /* pairs with: MESSAGE in l5_channel_peek; and DOORBELL: store, then look at the armed word */
    l5_store_seq((l5_word *)(void *)at, payload_bytes + L5_HEADER_BYTES);
    L5_STEP(32); /* (both, shm): a message is sent, and the peer is not woken */
    wake_if_armed(channel, L5_ARM_DATA);
    L5_STEP(33); /* (both, shm): the peer is woken */
}

int l5_channel_send(struct l5_channel *channel, int kind, int flags, uint64_t id, const void *prefix,
                    uint32_t prefix_bytes, const void *payload, uint32_t payload_bytes)
{
    uint64_t total = (uint64_t)prefix_bytes + payload_bytes;
    uint8_t *at;
    int rc;

    if (total > channel->tx_limit)
        return channel->tx_reserved ? -EBUSY : -EMSGSIZE;
    rc = begin(channel, (uint32_t)total, kind == L5_CLOSE && !flags ? 0 : L5_ALIGN);
    if (rc)
        return rc;
    at = channel->tx_base + (channel->tx_write & (channel->ring_bytes - 1)) + L5_PREFIX_BYTES;
    if (prefix_bytes)
        memcpy(at, prefix, prefix_bytes);
    if (payload_bytes >= L5_LONG_BYTES)
        l5_copy_in(at + prefix_bytes, payload, payload_bytes);
    else if (payload_bytes)
        memcpy(at + prefix_bytes, payload, payload_bytes);
    finish(channel, kind, flags, id, (uint32_t)total);
    return 0;
}

int l5_channel_reserve(struct l5_channel *channel, uint32_t payload_bytes, void **payload)
{
    int rc = begin(channel, payload_bytes, L5_ALIGN);

    if (rc)
        return rc;
    channel->tx_reserved = payload_bytes + 1;
    *payload = channel->tx_base + (channel->tx_write & (channel->ring_bytes - 1)) + L5_PREFIX_BYTES;
    return 0;
}

/* Zero the unused tail of a reservation: the next message's size word may lie in it.  The own size
 * word is left alone, the receiver polls it. */
static void clear_tail(struct l5_channel *channel, uint64_t keep, uint64_t dirty)
{
    uint8_t *at = channel->tx_base + (channel->tx_write & (channel->ring_bytes - 1));

    if (dirty > keep)
        memset(at + keep, 0, dirty - keep);
}

int l5_channel_commit(struct l5_channel *channel, int kind, int flags, uint64_t id, uint32_t payload_bytes)
{
    uint32_t reserved = channel->tx_reserved;

    if (!reserved || payload_bytes > reserved - 1)
        return -EINVAL;
    if (channel->gone)
        return -EPIPE;
    clear_tail(channel, l5_padded(payload_bytes), l5_padded(reserved - 1));
    channel->tx_reserved = 0;
    finish(channel, kind, flags, id, payload_bytes);
    return 0;
}

void l5_channel_discard(struct l5_channel *channel)
{
    if (!channel->tx_reserved)
        return;
    clear_tail(channel, L5_PREFIX_BYTES, l5_padded(channel->tx_reserved - 1));
    channel->tx_reserved = 0;
}

static int check(struct l5_channel *channel, uint64_t word, const struct wire_header *header)
{
    if (word != (uint64_t)header->size + L5_HEADER_BYTES)
        return fault(channel, "a message's size word and its header disagree");
    if (header->kind < L5_DATA || header->kind > L5_ABORT)
        return fault(channel, "a frame of unknown kind");
    if (header->flags & ~rules[header->kind].flags)
        return fault(channel, "a frame with flags that mean nothing for its kind");
    if (rules[header->kind].size >= 0 && header->size != (uint32_t)rules[header->kind].size)
        return fault(channel, "a control frame of the wrong size");
    if ((header->flags & L5_DEADLINE) && header->size < 4)
        return fault(channel, "a request too short for its deadline");
    return 0;
}

int l5_channel_peek(struct l5_channel *channel, struct l5_frame *frame)
{
    uint8_t *at = channel->rx_base + (channel->rx_read & (channel->ring_bytes - 1));
    struct wire_header header;
    uint64_t word = l5_load_acquire((l5_word *)(void *)at); /* pairs with: MESSAGE in finish */

    if (!word)
        return 0;
    if (word < L5_HEADER_BYTES || word > (uint64_t)channel->rx_limit + L5_HEADER_BYTES)
        return fault(channel, "a message size outside what was agreed");
    memcpy(&header, at + 8, sizeof(header)); /* once; from here on only the copy counts */
    l5_copied();
    if (check(channel, word, &header))
        return -EPROTO;
    channel->peer_cpu = (int)header.cpu_plus_one - 1;
    channel->rx_pending = (uint32_t)l5_padded(header.size);
    frame->size = header.size;
    frame->kind = header.kind;
    frame->flags = header.flags;
    frame->cpu_plus_one = header.cpu_plus_one;
    frame->id = header.id;
    frame->payload = at + L5_PREFIX_BYTES;
    return 1;
}

int l5_channel_publish(struct l5_channel *channel)
{
    uint64_t position = channel->rx_hold != UINT64_MAX ? channel->rx_hold : channel->rx_read;

    if (position == channel->rx_published)
        return 0;
    channel->rx_published = position;
    /* pairs with: SPACE in make_room; and DOORBELL: store, then look at the armed word */
    l5_store_seq(channel->rx_position, position);
    L5_STEP(35); /* (both, shm): space is given back, and who waits for it is not woken */
    wake_if_armed(channel, L5_ARM_SPACE);
    return 1;
}

static void give_back(struct l5_channel *channel, uint64_t position, uint64_t bytes)
{
    memset(channel->rx_base + (position & (channel->ring_bytes - 1)), 0, bytes);
    if (channel->rx_read - channel->rx_published >= channel->ring_bytes / 8)
        l5_channel_publish(channel);
}

void l5_channel_consume(struct l5_channel *channel)
{
    uint64_t bytes = channel->rx_pending;
    uint64_t position = channel->rx_read;

    L5_STEP(34); /* (both, shm): a message is received, and its place is not given back */
    channel->rx_pending = 0;
    channel->rx_read = position + bytes;
    give_back(channel, position, bytes);
}

/* Copy the payload of the message that peek found, and be done with it; `past` the caches if it goes
 * where nothing of it is in them. */
void l5_channel_take(struct l5_channel *channel, const struct l5_frame *frame, void *target, int past)
{
    if (frame->size < L5_LONG_BYTES) {
        memcpy(target, frame->payload, frame->size);
        l5_channel_consume(channel);
        return;
    }
    l5_copy_out(target, channel->rx_base + (channel->rx_read & (channel->ring_bytes - 1)), L5_PREFIX_BYTES,
                frame->size, channel->rx_pending, past);
    channel->rx_read += channel->rx_pending;
    channel->rx_pending = 0;
    if (channel->rx_read - channel->rx_published >= channel->ring_bytes / 8)
        l5_channel_publish(channel);
}

/* Lease the message that peek found: it is read past, but neither zeroed nor given back. */
int l5_channel_hold(struct l5_channel *channel)
{
    if (channel->rx_hold != UINT64_MAX || !channel->rx_pending)
        return -EBUSY;
    channel->rx_hold = channel->rx_read;
    channel->rx_hold_bytes = channel->rx_pending;
    channel->rx_read += channel->rx_pending;
    channel->rx_pending = 0;
    return 0;
}

void l5_channel_release(struct l5_channel *channel)
{
    uint64_t position = channel->rx_hold;

    if (position == UINT64_MAX)
        return;
    channel->rx_hold = UINT64_MAX;
    give_back(channel, position, channel->rx_hold_bytes);
}

int l5_channel_arm(struct l5_channel *channel, int bits)
{
    int rc;

    l5_channel_publish(channel);
    l5_store_seq(channel->own_armed, (uint64_t)bits); /* pairs with: DOORBELL in wake_if_armed */
    if (l5_load_seq(l5_size_word(channel->rx_base, channel->rx_read, channel->ring_bytes)))
        goto refuse;
    if ((bits & L5_ARM_SPACE) && channel->tx_wanted) {
        rc = make_room(channel, channel->tx_wanted);
        if (rc == -EPROTO)
            return rc;
        if (rc == 0)
            goto refuse;
        channel->space_waits++;
    }
    return 0;
refuse:
    l5_store_relaxed(channel->own_armed, 0);
    return -EBUSY;
}

/* Tell whether the peer will ring for a message.  One that came before the word was set has been
 * seen by arm; who takes the word afterwards rings. */
int l5_channel_armed(const struct l5_channel *channel)
{
    return (l5_load_relaxed(channel->own_armed) & L5_ARM_DATA) != 0;
}

void l5_channel_disarm(struct l5_channel *channel)
{
    l5_store_relaxed(channel->own_armed, 0);
}
