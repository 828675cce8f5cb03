/* Answers of a native service: the buffer that a handler writes into, its way to the client in
 * pieces, the errors.  Theory: service.h. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "service.h"

enum { FIRST_BYTES = 1 << 14, TYPE_MAX = 100, TEXT_MAX = 4096 };

static const struct {
    const char *type, *message;
} verdicts[L5_VERDICTS] = {
    [L5_CANCELLED] = {"Cancelled", "the request was cancelled before it was answered"},
    [L5_OVERLOADED] = {"Overloaded", "the service holds as many long requests and unsent answers as it may; "
                                     "try again later"},
    [L5_TOO_LARGE] = {"MessageTooLarge", "the request is larger than this service takes"},
    [L5_EXPIRED] = {"DeadlineExceeded", "the request's deadline passed before the service could begin it"},
};

/* ---- memory of all connections together --------------------------------------------------- */

int l5_store_take(struct l5_service *service, size_t bytes)
{
    if (l5_add(&service->stored_bytes, bytes) + bytes <= service->options.stored_bytes_max)
        return 0;
    l5_store_give(service, bytes);
    return -EDQUOT;
}

void l5_store_give(struct l5_service *service, size_t bytes)
{
    l5_add(&service->stored_bytes, (uint64_t)0 - bytes);
}

/* ---- error payloads: u16 length, type, message (a segment has at least 256 bytes) ------------- */

static uint32_t pack(const char *type, const char *message, uint8_t *payload, uint32_t room)
{
    size_t type_bytes = strnlen(type, TYPE_MAX);
    size_t text_bytes = strnlen(message, TEXT_MAX);

    if (text_bytes > room - 2 - type_bytes)
        text_bytes = room - 2 - type_bytes;
    payload[0] = (uint8_t)type_bytes;
    payload[1] = 0;
    memcpy(payload + 2, type, type_bytes);
    memcpy(payload + 2 + type_bytes, message, text_bytes);
    return (uint32_t)(2 + type_bytes + text_bytes);
}

uint32_t l5_verdict_pack(int verdict, uint8_t *payload, uint32_t room)
{
    return pack(verdicts[verdict].type, verdicts[verdict].message, payload, room);
}

/* ---- the reply ------------------------------------------------------------------------------ */

static int grow(struct l5_reply *reply, size_t more)
{
    size_t capacity = reply->capacity ? reply->capacity : FIRST_BYTES;
    uint8_t *data;

    if (reply->flushed + reply->size > reply->limit || more > reply->limit - reply->flushed - reply->size)
        return -EMSGSIZE;
    while (capacity - reply->size < more) {
        if (capacity > SIZE_MAX / 2)
            return -ENOMEM;
        capacity *= 2;
    }
    if (capacity == reply->capacity)
        return 0;
    data = realloc(reply->data, capacity);
    if (!data)
        return -ENOMEM;
    reply->data = data;
    reply->capacity = capacity;
    return 0;
}

static int fail(struct l5_reply *reply, const char *type, const char *message)
{
    struct l5_answering *answering = reply->owner;

    answering->failed = 1;
    reply->size = 0;
    if (reply->capacity < answering->error_max) {
        uint8_t *data = realloc(reply->data, answering->error_max);

        if (!data)
            return -ENOMEM; /* no payload: whoever sends this takes a verdict's instead */
        reply->data = data;
        reply->capacity = answering->error_max;
    }
    reply->size = pack(type ? type : "Error", message ? message : "", reply->data, answering->error_max);
    return -EIO;
}

/* End of the last whole record at or before `end`, both counted from the start of the answer. */
static uint64_t record_end(const struct l5_outbound *out, uint64_t end)
{
    if (!out->record_bytes || end <= out->record_offset)
        return end;
    return end - (end - out->record_offset) % out->record_bytes;
}

/* How many bytes the next piece has; 0: no credit.  It is the last one if it is all that is left. */
size_t l5_outbound_cut(const struct l5_outbound *out, size_t segment_bytes, uint64_t credit_bytes)
{
    uint64_t begin = out->before + out->sent;
    uint64_t left = out->size - out->sent;
    uint64_t room = out->allowed > begin ? out->allowed - begin : 0;
    uint64_t end;

    if (left <= segment_bytes && left <= room)
        return left;
    if (room > segment_bytes)
        room = segment_bytes;
    if (room > left)
        room = left;
    end = record_end(out, begin + room);
    if (end > begin)
        return end - begin;
    /* Not even one record: wait for credit if that will do, else cut through it. */
    if (room < segment_bytes && out->record_bytes <= credit_bytes / 2)
        return 0;
    return room;
}

static int flush(struct l5_reply *reply)
{
    struct l5_answering *answering = reply->owner;
    struct l5_connection *connection = answering->connection;
    struct l5_outbound out = {
        .data = reply->data, .size = reply->size, .before = reply->flushed, .allowed = answering->allowed,
        .record_bytes = reply->record_bytes, .record_offset = reply->record_offset};
    uint64_t end;

    if (!connection || answering->failed)
        return 0;
    if (connection->eof || connection->channel->gone)
        return -EPIPE;
    if (reply->flushed + reply->size > reply->limit)
        return -EMSGSIZE;
    end = record_end(&out, out.before + out.size);
    out.size = end > out.before ? end - out.before : 0;
    while (out.sent < out.size) {
        size_t bytes = l5_outbound_cut(&out, connection->peer.send_segment_bytes,
                                       connection->peer.send_credit_bytes);

        if (!bytes || l5_channel_send(connection->channel, L5_RESPONSE, L5_MORE, answering->id, NULL, 0,
                                      out.data + out.sent, (uint32_t)bytes))
            break;
        out.sent += bytes;
    }
    if (out.sent) {
        memmove(reply->data, reply->data + out.sent, reply->size - out.sent);
        reply->size -= out.sent;
        reply->flushed += out.sent;
    }
    return 0;
}

void l5_answering_init(struct l5_answering *answering, struct l5_connection *connection, uint32_t error_max)
{
    memset(answering, 0, sizeof(*answering));
    answering->connection = connection;
    answering->error_max = error_max;
    answering->reply.grow = grow;
    answering->reply.flush = flush;
    answering->reply.fail = fail;
    answering->reply.owner = answering;
}

void l5_answering_begin(struct l5_answering *answering, uint64_t id, size_t limit, uint64_t allowed)
{
    answering->id = id;
    answering->allowed = allowed;
    answering->failed = 0;
    answering->reply.size = 0;
    answering->reply.flushed = 0;
    answering->reply.limit = limit;
    answering->reply.record_bytes = 0;
    answering->reply.record_offset = 0;
}

/* Do not keep a buffer that one long answer made large. */
void l5_answering_trim(struct l5_answering *answering)
{
    if (answering->reply.capacity <= KEEP_BYTES)
        return;
    free(answering->reply.data);
    answering->reply.data = NULL;
    answering->reply.capacity = 0;
}

static int fail_with(struct l5_reply *reply, int rc)
{
    char text[160], buffer[128];

    switch (-rc) {
    case ENOMEM:
        return fail(reply, "MemoryError", "the handler could not get memory");
    case EMSGSIZE:
        snprintf(text, sizeof(text), "the answer is over the agreed limit of %zu bytes", reply->limit);
        return fail(reply, "MessageTooLarge", text);
    case ETIMEDOUT:
        return fail(reply, "DeadlineExceeded", "the handler gave up at the request's deadline");
    default:
        break;
    }
    if (rc > 0) {
        snprintf(text, sizeof(text), "the handler returned %d; it must return 0 or a negative errno", rc);
        return fail(reply, "SystemError", text);
    }
#ifdef __GLIBC__
    snprintf(text, sizeof(text), "[Errno %d] %s", -rc, strerror_r(-rc, buffer, sizeof(buffer)));
#else
    if (strerror_r(-rc, buffer, sizeof(buffer)))
        buffer[0] = 0;
    snprintf(text, sizeof(text), "[Errno %d] %s", -rc, buffer);
#endif
    return fail(reply, "OSError", text);
}

/* Let the handler answer; afterwards the reply holds an answer or, with `failed`, an ERROR payload. */
void l5_answering_run(struct l5_answering *answering, struct l5_service *service, struct l5_request *request)
{
    struct l5_reply *reply = &answering->reply;
    int rc;

    if (request->size > service->options.request_bytes_max) {
        fail(reply, verdicts[L5_TOO_LARGE].type, verdicts[L5_TOO_LARGE].message);
        return;
    }
    if (request->deadline_ns && l5_now_ns() >= request->deadline_ns) {
        fail(reply, verdicts[L5_EXPIRED].type, verdicts[L5_EXPIRED].message);
        return;
    }
    rc = service->handler(service->state, request, reply);
    if (answering->failed)
        return;
    if (!rc && reply->flushed + reply->size > reply->limit)
        rc = -EMSGSIZE;
    if (rc)
        fail_with(reply, rc);
}

/* Send what there is room and credit for: 1 all of it, 0 not all, -errno the client is gone or lied. */
int l5_outbound_push(struct l5_outbound *out, struct l5_connection *connection)
{
    const struct l5_service_peer *peer = &connection->peer;
    uint8_t payload[L5_SEGMENT_MIN];
    int rc;

    if (out->verdict) {
        uint32_t bytes = l5_verdict_pack(out->verdict, payload, sizeof(payload));

        rc = l5_channel_send(connection->channel, L5_ERROR, 0, out->id, NULL, 0, payload, bytes);
    } else if (out->failed) {
        rc = l5_channel_send(connection->channel, L5_ERROR, 0, out->id, NULL, 0, out->data, (uint32_t)out->size);
    } else {
        size_t bytes;
        int last;

        do {
            bytes = l5_outbound_cut(out, peer->send_segment_bytes, peer->send_credit_bytes);
            last = bytes == out->size - out->sent;
            if (!bytes && !last)
                return 0;
            /* An empty answer may have no buffer, and a null pointer must not be moved, even by 0. */
            rc = l5_channel_send(connection->channel, L5_RESPONSE, last ? 0 : L5_MORE, out->id, NULL, 0,
                                 bytes ? out->data + out->sent : NULL, (uint32_t)bytes);
            if (!rc)
                out->sent += bytes;
        } while (!rc && !last);
    }
    if (rc == -EAGAIN) {
        connection->space_blocked = 1;
        return 0;
    }
    return rc ? rc : 1;
}
