/* The ring's send side against a receiver whose position and armed word are anything at any time. */
#define _GNU_SOURCE
#include "ring_model.h"

/* The sender as it has to be. */
static struct {
    uint64_t write, read, wanted;
    uint32_t reserved; /* plus one */
} model;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    ring_open();
    return 0;
}

static uint64_t padded(uint64_t payload)
{
    return (payload + 24 + 63) / 64 * 64;
}

/* Room for so many bytes?  The peer's word counts only where it can be true. */
static int model_room(uint64_t bytes)
{
    uint64_t word = shadow_word(tx_position());

    if (model.write + bytes - model.read <= RING)
        return 0;
    if (word < model.read || word > model.write || word % 64)
        return -EPROTO;
    model.read = word;
    if (model.write + bytes - model.read <= RING)
        return 0;
    model.wanted = bytes;
    return -EAGAIN;
}

static int model_begin(uint32_t payload, uint64_t spare)
{
    uint64_t bytes = padded(payload) + spare;
    int rc;

    if (model.reserved) {
        model.wanted = 0;
        return -EBUSY;
    }
    if (payload > LIMIT)
        return -EMSGSIZE;
    if (ring.channel.gone)
        return -EPIPE;
    rc = model_room(bytes);
    if (!rc && bytes >= model.wanted)
        model.wanted = 0; /* what was found, or less, is not missed any more */
    return rc;
}

/* Header and size word.  Which CPU it was is not ours to foretell: it is copied. */
static void model_finish(int kind, int flags, uint64_t id, uint32_t payload)
{
    uint64_t at = model.write, word = payload + 16;
    uint8_t header[16] = {0};

    memcpy(header, &payload, 4);
    header[4] = (uint8_t)kind;
    header[5] = (uint8_t)flags;
    memcpy(header + 6, ring.peer + tx_ring() + ((at + 14) & (RING - 1)), 2);
    memcpy(header + 8, &id, 8);
    shadow_ring(tx_ring(), at, &word, 8);
    shadow_ring(tx_ring(), at + 8, header, 16);
    model.write += padded(payload);
    model_wake(L5_ARM_DATA);
}

static void send_one(struct input *input)
{
    static uint8_t data[LIMIT + 64];
    int kind = 1 + take8(input) % 9, flags = take8(input) & 7;
    uint32_t prefix = take8(input) % 8, payload = take16(input) % (LIMIT + 16);
    uint64_t id = take8(input), at = model.write;
    uint32_t total = prefix + payload;
    int rc, want;

    for (uint32_t i = 0; i < total; i++)
        data[i] = (uint8_t)(at / 64 + i + id);
    want = total > LIMIT ? (model.reserved ? -EBUSY : -EMSGSIZE)
                         : model_begin(total, kind == L5_CLOSE && !flags ? 0 : 64);
    rc = l5_channel_send(&ring.channel, kind, flags, id, data, prefix, data + prefix, payload);
    CHECK(rc == want);
    if (rc)
        return;
    shadow_ring(tx_ring(), at + 24, data, total);
    model_finish(kind, flags, id, total);
}

static void reserve(struct input *input)
{
    uint32_t payload = take16(input) % (LIMIT + 16);
    uint8_t fill = take8(input);
    void *place = NULL;
    int want = model_begin(payload, 64);

    CHECK(l5_channel_reserve(&ring.channel, payload, &place) == want);
    if (want)
        return;
    memset(place, fill, payload); /* the application writes in place */
    for (uint32_t i = 0; i < payload; i++)
        shadow_ring(tx_ring(), model.write + 24 + i, &fill, 1);
    model.reserved = payload + 1;
}

static void commit(struct input *input)
{
    uint32_t payload = take16(input) % (LIMIT + 16);
    int rc = l5_channel_commit(&ring.channel, L5_DATA, 0, 5, payload);

    if (!model.reserved || payload > model.reserved - 1) {
        CHECK(rc == -EINVAL);
        return;
    }
    CHECK(rc == (ring.channel.gone ? -EPIPE : 0));
    if (rc)
        return;
    shadow_ring(tx_ring(), model.write + padded(payload), NULL, padded(model.reserved - 1) - padded(payload));
    model.reserved = 0;
    model_finish(L5_DATA, 0, 5, payload);
}

static void discard(void)
{
    l5_channel_discard(&ring.channel);
    if (model.reserved) /* all but the size word and header, which were never written */
        shadow_ring(tx_ring(), model.write + 24, NULL, padded(model.reserved - 1) - 24);
    model.reserved = 0;
}

static void arm(struct input *input)
{
    int bits = take8(input) & 3;
    uint64_t word = shadow_word(rx_ring());
    int want = word ? -EBUSY : 0;

    if (!word && (bits & L5_ARM_SPACE) && model.wanted) {
        want = model_room(model.wanted);
        want = want == -EAGAIN ? 0 : want ? want : -EBUSY;
    }
    CHECK(l5_channel_arm(&ring.channel, bits) == want);
    shadow_set(own_armed(), want == -EBUSY ? 0 : (uint64_t)bits);
}

/* What an honest receiver does: read all, or some, and leave zeros. */
static void peer_reads(struct input *input)
{
    uint64_t lines = take8(input), left = (model.write - model.read) / 64;
    uint64_t to = model.read + 64 * (lines < left ? lines : left);
    static const uint8_t zero;

    for (uint64_t at = model.read; at < to; at++)
        peer_writes(tx_ring() + (at & (RING - 1)), &zero, 1);
    peer_sets(tx_position(), to);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};

    memset(&model, 0, sizeof(model));
    ring_reset(take8(&input) & 1);
    while (input.left) {
        switch (take8(&input) % 11) {
        case 0: peer_pokes(&input); break;
        case 1: send_one(&input); break;
        case 2: reserve(&input); break;
        case 3: commit(&input); break;
        case 4: discard(); break;
        case 5: arm(&input); break;
        case 6: l5_channel_disarm(&ring.channel); shadow_set(own_armed(), 0); break;
        case 7: peer_reads(&input); break;
        case 8: peer_sets(tx_position(), take64(&input)); break;
        case 9: peer_sets(tx_position(), model.write + take8(&input) * 64u - 8192u + (take8(&input) & 1)); break;
        case 10: ring.channel.gone = take8(&input) == 255; break;
        }
        ring_check();
        CHECK(ring.channel.tx_write == model.write && ring.channel.tx_read_cached == model.read);
        CHECK(model.write - model.read <= RING);
    }
    return 0;
}
