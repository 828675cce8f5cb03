/* Frames over a stream socket: the ones that every request is made of, and nothing else.
 *
 *   +0 size u32   +4 kind u8   +5 flags u8   +6 reserved u16   +8 id u64   +16 payload
 *
 * What a peer sent is judged in one place, `l5/_frames.py`.  Here only the most usual frames are
 * recognised: whole, without flags, of three kinds.  Everything else (long messages, other control
 * frames, what breaks a rule, half a frame) is "not for here", and whoever asked hands it to Python.  Nothing here blocks, allocates or trusts.
 */
#ifndef L5_STREAM_H
#define L5_STREAM_H

#include <sys/types.h>

#include "channel.h"

enum {
    L5_STREAM_TAKE = 16 * 1024, /* bytes of one read */
    L5_STREAM_JOIN = 2048,      /* up to here a copy is cheaper to send than a vector of two */
    L5_STREAM_GIVE = 16 * 1024, /* longest payload that is sent from here */
    L5_BEAT_BYTES = 12,         /* payload of a HEARTBEAT */
    L5_CARRIED_BYTES = L5_HEADER_BYTES + L5_BEAT_BYTES, /* what may go in front of another frame */
};

/* 1: `data` begins with a whole REQUEST, RESPONSE or HEARTBEAT without flags, of at most `limit` bytes,
 * which is put into `frame`; 0: it does not, for whatever reason. */
int l5_stream_peek(const uint8_t *data, size_t bytes, uint32_t limit, struct l5_frame *frame);

/* Tell whether `data` is the beginning of such a frame, which one read may complete. */
int l5_stream_partial(const uint8_t *data, size_t bytes, uint32_t limit);

/* Bytes read (0: the peer has closed), or -errno; never waits. */
ssize_t l5_stream_receive(int fd, void *room, size_t bytes);

/* What is sent at once: the bytes in front (at most L5_CARRIED_BYTES, or none), then a frame. */
struct l5_stream_out {
    const void *front;
    uint32_t front_bytes;
    int kind;
    uint64_t id;
    const void *payload;
    uint32_t bytes;
};

/* Write all of it; how many bytes were taken, or -errno; never waits. */
ssize_t l5_stream_send(int fd, const struct l5_stream_out *out);

/* Write to `room` what is behind the first `sent` bytes; for who has to send the rest. */
void l5_stream_rest(const struct l5_stream_out *out, size_t sent, uint8_t *room);

#endif
