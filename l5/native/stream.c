/* Frames over a stream socket.  See stream.h. */
#include "stream.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

static uint64_t little(const uint8_t *data, int bytes)
{
    uint64_t value = 0;

    while (bytes-- > 0)
        value = value << 8 | data[bytes];
    return value;
}

/* Tell whether this is the header of a frame that is for here. */
static int usual(const uint8_t *data, uint32_t size, uint32_t limit)
{
    if (size > limit || data[5] || data[6] || data[7])
        return 0;
    return data[4] == L5_REQUEST || data[4] == L5_RESPONSE || (data[4] == L5_HEARTBEAT && size == L5_BEAT_BYTES);
}

int l5_stream_partial(const uint8_t *data, size_t bytes, uint32_t limit)
{
    uint32_t size;

    if (bytes < L5_HEADER_BYTES)
        return 1;
    size = (uint32_t)little(data, 4);
    return usual(data, size, limit) && size <= L5_STREAM_TAKE - L5_HEADER_BYTES && size > bytes - L5_HEADER_BYTES;
}

int l5_stream_peek(const uint8_t *data, size_t bytes, uint32_t limit, struct l5_frame *frame)
{
    uint32_t size;

    if (bytes < L5_HEADER_BYTES)
        return 0;
    size = (uint32_t)little(data, 4);
    if (size > bytes - L5_HEADER_BYTES || !usual(data, size, limit))
        return 0;
    frame->size = size;
    frame->kind = data[4];
    frame->flags = 0;
    frame->cpu_plus_one = 0;
    frame->id = little(data + 8, 8);
    frame->payload = data + L5_HEADER_BYTES;
    return 1;
}

ssize_t l5_stream_receive(int fd, void *room, size_t bytes)
{
    ssize_t got;

    do
        got = recv(fd, room, bytes, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    return got < 0 ? -errno : got;
}

static void write_header(uint8_t *header, const struct l5_stream_out *out)
{
    for (int i = 0; i < 4; i++)
        header[i] = (uint8_t)(out->bytes >> 8 * i);
    header[4] = (uint8_t)out->kind;
    header[5] = header[6] = header[7] = 0;
    for (int i = 0; i < 8; i++)
        header[8 + i] = (uint8_t)(out->id >> 8 * i);
}

/* What goes before the payload; its length. */
static size_t write_head(uint8_t head[L5_CARRIED_BYTES + L5_HEADER_BYTES], const struct l5_stream_out *out)
{
    if (out->front_bytes)
        memcpy(head, out->front, out->front_bytes);
    write_header(head + out->front_bytes, out);
    return out->front_bytes + L5_HEADER_BYTES;
}

void l5_stream_rest(const struct l5_stream_out *out, size_t sent, uint8_t *room)
{
    uint8_t head[L5_CARRIED_BYTES + L5_HEADER_BYTES];
    size_t bytes = write_head(head, out);

    if (sent < bytes) {
        memcpy(room, head + sent, bytes - sent);
        room += bytes - sent;
        sent = bytes;
    }
    if (out->bytes > sent - bytes)
        memcpy(room, (const uint8_t *)out->payload + (sent - bytes), out->bytes - (sent - bytes));
}

ssize_t l5_stream_send(int fd, const struct l5_stream_out *out)
{
    uint8_t joined[L5_CARRIED_BYTES + L5_HEADER_BYTES + L5_STREAM_JOIN];
    size_t head = write_head(joined, out);
    struct iovec parts[2] = {{joined, head}, {(void *)(uintptr_t)out->payload, out->bytes}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t sent;

    if (out->bytes && out->bytes <= L5_STREAM_JOIN)
        memcpy(joined + head, out->payload, out->bytes);
    do
        sent = out->bytes <= L5_STREAM_JOIN ? send(fd, joined, head + out->bytes, MSG_DONTWAIT | MSG_NOSIGNAL)
                                            : sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent < 0 ? -errno : sent;
}
