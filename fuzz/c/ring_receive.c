/* The ring's receive side against a peer that writes whatever it likes between our calls. */
#define _GNU_SOURCE
#include "ring_model.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    ring_open();
    return 0;
}

struct header {
    uint32_t size;
    uint8_t kind, flags;
    uint16_t cpu;
    uint64_t id;
};

/* Is this a frame that may be sent?  Written from the table in l5/_frames.py, not from channel.c. */
static int sound(uint64_t word, const struct header *header)
{
    uint64_t size = header->size;

    if (word != size + 16 || size > LIMIT)
        return 0;
    switch (header->kind) {
    case L5_DATA: case L5_RESPONSE:
        return !(header->flags & ~L5_MORE);
    case L5_REQUEST:
        return !(header->flags & ~(L5_MORE | L5_DEADLINE)) && (size >= 4 || !(header->flags & L5_DEADLINE));
    case L5_ERROR:
        return !header->flags;
    case L5_CANCEL: case L5_ABORT:
        return !header->flags && !size;
    case L5_CREDIT:
        return !(header->flags & ~L5_FOR_RESPONSE) && size == 8;
    case L5_HEARTBEAT:
        return !header->flags && size == 12;
    case L5_CLOSE:
        return !(header->flags & ~L5_MORE) && !size;
    default:
        return 0;
    }
}

static void read_from_ring(void *to, uint64_t position, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)to)[i] = ring.peer[rx_ring() + ((position + i) & (RING - 1))];
}

/* Look for a frame: 1, 0 or -EPROTO, as it has to be. */
static int peek(struct l5_frame *frame)
{
    static uint8_t copy[LIMIT];
    struct header header;
    uint64_t word;
    int rc;

    read_from_ring(&word, ring.read, sizeof(word));
    read_from_ring(&header, ring.read + 8, sizeof(header));
    ring.channel.fault = NULL;
    rc = l5_channel_peek(&ring.channel, frame);
    CHECK(rc == (!word ? 0 : sound(word, &header) ? 1 : -EPROTO));
    CHECK((rc < 0) == (ring.channel.fault != NULL));
    CHECK(l5_channel_ready(&ring.channel) == (word != 0));
    if (rc != 1)
        return rc;
    CHECK(frame->size == header.size && frame->kind == header.kind && frame->flags == header.flags);
    CHECK(frame->id == header.id && frame->cpu_plus_one == header.cpu);
    CHECK(ring.channel.peer_cpu == (int)header.cpu - 1);
    memcpy(copy, frame->payload, frame->size); /* beyond the mapping, or LIMIT, the sanitizer sees it */
    return 1;
}

static void consume(uint32_t pending)
{
    uint64_t position = ring.read;

    l5_channel_consume(&ring.channel);
    ring.read += pending;
    model_give_back(position, pending);
}

/* As Python receives: the payload is copied out, to a place that begins anywhere, past the caches or not. */
static void take(const struct l5_frame *frame, uint32_t pending, int past, size_t skip)
{
    static uint8_t place[LIMIT + 2 * LINE] __attribute__((aligned(64)));
    static uint8_t expected[LIMIT];
    uint64_t position = ring.read;

    read_from_ring(expected, position + 24, frame->size);
    memset(place, 0xa5, sizeof(place));
    l5_channel_take(&ring.channel, frame, place + 1 + skip, past);
    CHECK(!memcmp(place + 1 + skip, expected, frame->size));
    CHECK(place[skip] == 0xa5 && place[1 + skip + frame->size] == 0xa5);
    CHECK(!ring.channel.rx_pending);
    ring.read += pending;
    model_give_back(position, pending);
}

static void receive(struct input *input, int lease)
{
    struct l5_frame frame;
    int meanwhile = take8(input);

    if (peek(&frame) != 1)
        return;
    if (meanwhile & 1) /* the peer changes what is being read */
        peer_pokes(input);
    if (!lease && meanwhile & 2) {
        take(&frame, (uint32_t)l5_padded(frame.size), meanwhile >> 2 & 1, (size_t)(meanwhile >> 3) * 2);
    } else if (!lease) {
        consume((uint32_t)l5_padded(frame.size));
    } else if (!l5_channel_hold(&ring.channel)) {
        CHECK(ring.hold == UINT64_MAX);
        ring.hold = ring.read;
        ring.hold_bytes = l5_padded(frame.size);
        ring.read += ring.hold_bytes;
    } else {
        CHECK(ring.hold != UINT64_MAX);
        ring.channel.rx_pending = 0; /* what a caller does: it looks again later */
    }
}

static void release(void)
{
    uint64_t position = ring.hold;

    l5_channel_release(&ring.channel);
    if (position == UINT64_MAX)
        return;
    ring.hold = UINT64_MAX;
    model_give_back(position, ring.hold_bytes);
}

static void arm(void)
{
    uint64_t word;
    int rc = l5_channel_arm(&ring.channel, L5_ARM_DATA);

    model_publish();
    read_from_ring(&word, ring.read, sizeof(word));
    shadow_set(own_armed(), word ? 0 : L5_ARM_DATA);
    CHECK(rc == (word ? -EBUSY : 0));
}

/* A frame where we will look for it, or some lines further on. */
static void peer_sends(struct input *input)
{
    uint8_t data[24 + 40], lines = take8(input);
    struct header header = {.kind = take8(input), .flags = take8(input)};
    uint64_t word, position = ring.read + LINE * (uint64_t)(lines & 63);
    size_t bytes;

    header.size = take16(input) % (LIMIT + 64);
    header.id = take8(input);
    header.cpu = (uint16_t)(header.id * 257);
    word = header.size + 16u + (lines & 64 ? take64(input) : 0);
    memcpy(data, &word, 8);
    memcpy(data + 8, &header, 16);
    bytes = header.size < 40 ? header.size : 40;
    take_bytes(input, data + 24, bytes);
    for (size_t i = 0; i < 24 + bytes; i++)
        peer_writes(rx_ring() + ((position + i) & (RING - 1)), data + i, 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};

    ring_reset(take8(&input) & 1);
    while (input.left) {
        switch (take8(&input) % 9) {
        case 0: peer_pokes(&input); break;
        case 1: peer_sends(&input); break;
        case 2: receive(&input, 0); break;
        case 3: receive(&input, 1); break;
        case 4: release(); break;
        case 5: l5_channel_publish(&ring.channel); model_publish(); break;
        case 6: arm(); break;
        case 7: l5_channel_disarm(&ring.channel); shadow_set(own_armed(), 0); break;
        case 8: peer_sets(peer_armed(), take8(&input)); break;
        }
        ring_check();
    }
    return 0;
}
