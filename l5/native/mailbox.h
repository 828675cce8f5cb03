/* Memory that a peer's RDMA device writes: mailboxes at the server, a ring of messages at the client.
 *
 *   server   flags  |0|1|0|0|0|1|0|0| ...      one byte for each client, packed
 *                      |       |
 *            rows    [size u32][payload ....]  one for each client, written before its flag
 *
 *   client   ring   |[size u32][payload][OK][0 0 0]|[size][payload][OK]|0 0 0 ...|   mapped twice in a row
 *                   ^ each message at a multiple of 64 bytes, whole, and zero when it has been consumed
 *
 * Theory of operation (L5, section IV-D).  Two writes carry a request: the row, then the flag.  The
 * server looks at flags alone; a set one is taken with an atomic exchange and its row read after it.
 * One write carries an answer: the client polls the size; once it is not zero, the OK byte behind the
 * payload; then the size once more, for a size that was seen half written.  A message is zeroed as it
 * is consumed, payload and OK byte first and the size last: an OK byte, or a payload of that value,
 * that an old message left behind would pass for the new one's.
 *
 * What orders them:
 *   FLAG      the device writes the flag after the row -> the flag is taken with acquire, then the
 *             row is read.  Pairs with no store of ours.  That the device keeps this order is what
 *             reliable connections do, and what no call promises (docs/rdma.md).
 *   OK        the device writes a message front to back -> size, OK byte, size: all with acquire.
 *   CONSUMED  zeros, then the position that the peer is told (a post, which orders what is before it):
 *             the peer's device writes no place that is not zero yet.
 *
 * The peer can write anything into its row, its flag, and this ring, at any time: a size is read once
 * and bounded before it is used; what is parsed is a copy.
 */
#ifndef L5_MAILBOX_H
#define L5_MAILBOX_H

#include <stdint.h>

#include "_atomic.h"

enum { L5_OK = 0x4f, L5_MESSAGE_ALIGN = 64, L5_FLAGS_BLOCK = 64 };

/* Tell whether any of `bytes` bytes (a multiple of 64, aligned to 64) is set.  Orders nothing. */
int l5_flags_any(const uint8_t *flags, uint32_t bytes);

/* Take set flags, from `start` on and round: their places go to `found`, at most `most`; the number.
 * Who was served last comes last in the next scan if that starts behind it. */
uint32_t l5_flags_scan(uint8_t *flags, uint32_t bytes, uint32_t start, uint32_t *found, uint32_t most);

/* The payload's size once the message at `at` is whole, 0 before, -EPROTO for a size over `limit`. */
int64_t l5_message_ready(const uint8_t *at, uint32_t limit);

/* Zero a message of `padded` bytes (size word, payload, OK byte and padding). */
void l5_message_consume(uint8_t *at, uint64_t padded);

/* Map new zeroed memory twice in a row; 0 or -errno.  `bytes` is a power of two of whole pages. */
int l5_mirror_map(uint64_t bytes, uint8_t **base);
void l5_mirror_unmap(uint8_t *base, uint64_t bytes);

static inline uint64_t l5_message_padded(uint64_t payload_bytes)
{
    return (payload_bytes + 5 + L5_MESSAGE_ALIGN - 1) & ~(uint64_t)(L5_MESSAGE_ALIGN - 1);
}

#endif
