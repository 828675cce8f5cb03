/* What a lane recognises of the bytes that a peer sent (stream.h), against the table of the frames.
 *
 * The bytes lie in memory of exactly their length, so the sanitizer sees whoever reads on. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "input.h"
#include "stream.h"

static int ends[2];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    return 0;
}

struct header {
    uint32_t size;
    uint8_t kind, flags;
    uint16_t reserved;
    uint64_t id;
};

/* A frame for the short way?  Written from the table in l5/_frames.py, not from stream.c. */
static int usual(const struct header *header, uint32_t limit)
{
    if (header->size > limit || header->flags || header->reserved)
        return 0;
    switch (header->kind) {
    case L5_REQUEST: case L5_RESPONSE:
        return 1;
    case L5_HEARTBEAT:
        return header->size == 12;
    default:
        return 0;
    }
}

/* The frame that was recognised is what our own sender makes of it, alone or behind what it carries;
 * and so is what has to be sent later, wherever the kernel cut it. */
static void send_back(const uint8_t *data, const struct l5_frame *frame, uint32_t front_bytes)
{
    static uint8_t room[L5_CARRIED_BYTES + L5_HEADER_BYTES + 4096], rest[sizeof(room)];
    uint8_t front[L5_CARRIED_BYTES];
    const struct l5_stream_out out = {front, front_bytes, frame->kind, frame->id, frame->payload, frame->size};
    size_t bytes = front_bytes + L5_HEADER_BYTES + frame->size, cut = (size_t)(frame->id % bytes);

    if (frame->size > 4096)
        return;
    memset(front, 0xA5, sizeof(front));
    CHECK(l5_stream_send(ends[0], &out) == (ssize_t)bytes);
    CHECK(l5_stream_receive(ends[1], room, sizeof(room)) == (ssize_t)bytes);
    CHECK(!memcmp(room, front, front_bytes));
    CHECK(!memcmp(room + front_bytes, data, bytes - front_bytes));
    CHECK(l5_stream_receive(ends[1], room, sizeof(room)) == -EAGAIN);
    l5_stream_rest(&out, cut, rest);
    CHECK(!memcmp(rest, room + cut, bytes - cut));
}

static size_t look(const uint8_t *data, size_t left, uint32_t limit)
{
    struct l5_frame frame;
    struct header header = {0};
    int whole, known;

    memcpy(&header, data, left < sizeof(header) ? left : sizeof(header));
    known = left >= L5_HEADER_BYTES && usual(&header, limit);
    whole = known && header.size <= left - L5_HEADER_BYTES;
    CHECK(l5_stream_peek(data, left, limit, &frame) == whole);
    CHECK(l5_stream_partial(data, left, limit) ==
          (left < L5_HEADER_BYTES ||
           (known && !whole && header.size <= L5_STREAM_TAKE - L5_HEADER_BYTES)));
    if (!whole)
        return 0;
    CHECK(frame.kind == header.kind && frame.size == header.size && frame.id == header.id);
    CHECK(!frame.flags && frame.payload == data + L5_HEADER_BYTES);
    send_back(data, &frame, 0);
    send_back(data, &frame, L5_CARRIED_BYTES);
    return L5_HEADER_BYTES + frame.size;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct input input = {bytes, size};
    uint32_t limit = take16(&input);
    size_t at = 0, used, left = input.left;
    uint8_t *data = malloc(left ? left : 1);

    CHECK(data);
    memcpy(data, input.at, left);
    while ((used = look(data + at, left - at, limit)))
        at += used;
    free(data);
    return 0;
}
