/* The soak's handler in C: the same requests and answers as `_ask.py`, for native services. */
#include <stdlib.h>
#include <unistd.h>

#include "l5_handler.h"

enum { ASK = 2, ANSWER = 3, FAIL = 2, SLOW = 4 };

struct head {
    char magic[4];
    uint8_t kind, flags;
    uint16_t zero;
    uint64_t stream;
    uint32_t number, sure, offset, size, reply_offset, reply_size;
} __attribute__((packed));

struct state {
    const uint8_t *text;
    uint64_t text_bytes;
    uint64_t corrupt; /* requests that were not what they should be */
};

static uint32_t check_sum(const uint8_t *data, size_t size)
{
    uint32_t sum = ~0u;

    for (size_t i = 0; i < size; i++) {
        sum ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            sum = (sum >> 1) ^ (0xedb88320u & -(sum & 1));
    }
    return ~sum;
}

int answer(void *state, const struct l5_request *request, struct l5_reply *reply);
int answer(void *state, const struct l5_request *request, struct l5_reply *reply)
{
    struct state *own = state;
    struct head head, back;
    uint32_t sum;

    if (request->size < sizeof(head) + 4)
        goto corrupt;
    memcpy(&head, request->data, sizeof(head));
    memcpy(&sum, request->data + sizeof(head), 4);
    if (memcmp(head.magic, "soak", 4) || head.kind != ASK || sum != check_sum(request->data, sizeof(head)))
        goto corrupt;
    if (request->size != sizeof(head) + 4 + head.size || (uint64_t)head.offset + head.size > own->text_bytes ||
        (uint64_t)head.reply_offset + head.reply_size > own->text_bytes)
        goto corrupt;
    if (memcmp(request->data + sizeof(head) + 4, own->text + head.offset, head.size))
        goto corrupt;
    if (head.flags & SLOW)
        usleep(1000);
    if (head.flags & FAIL)
        return l5_reply_error(reply, "LookupError", "it is to fail");
    memset(&back, 0, sizeof(back));
    memcpy(back.magic, "soak", 4);
    back.kind = ANSWER;
    back.stream = head.stream;
    back.number = head.number;
    back.offset = head.reply_offset;
    back.size = head.reply_size;
    sum = check_sum((const uint8_t *)&back, sizeof(back));
    if (l5_reply_append(reply, &back, sizeof(back)) || l5_reply_append(reply, &sum, 4))
        return -ENOMEM;
    for (uint32_t at = 0; at < head.reply_size;) { /* some of it is sent in advance */
        uint32_t size = head.reply_size - at < 300000 ? head.reply_size - at : 300000;
        int rc = l5_reply_append(reply, own->text + head.reply_offset + at, size);

        if (rc || (rc = l5_reply_flush(reply)))
            return rc;
        at += size;
    }
    return 0;
corrupt:
    __atomic_add_fetch(&own->corrupt, 1, __ATOMIC_RELAXED);
    return l5_reply_error(reply, "Corrupt", "the request is not what was sent");
}
