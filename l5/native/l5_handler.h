/* Request handlers in C, for extensions outside l5.
 *
 * This header stands alone: no part of l5 is linked.  A handler is a function
 *
 *     int handler(void *state, const struct l5_request *request, struct l5_reply *reply);
 *
 * whose address is given to `l5.NativeService`.  The service's worker threads call it without the
 * GIL, several at a time when there are several workers, and so may the thread of the event loop
 * (for clients on sockets): it must be thread-safe and must not touch Python.  It writes its
 * answer with the `l5_reply_` functions below and returns 0; or a negative errno; or what
 * `l5_reply_error` returned, after naming type and message itself.  The client sees an error as
 * `RequestFailed`.
 *
 * The request's bytes are a private, stable copy, 16-byte aligned, valid until the handler
 * returns.  So is the reply's buffer, which may move whenever it grows.
 */
#ifndef L5_HANDLER_H
#define L5_HANDLER_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Name of the capsule (see PyCapsule_New) that may carry a handler's address into Python. */
#define L5_HANDLER_CAPSULE "l5.handler"

struct l5_request {
    const uint8_t *data;
    size_t size;
    uint64_t id;          /* unique among the unanswered requests of its connection */
    uint64_t connection;  /* counts from 1; 0: a client on a socket */
    uint64_t deadline_ns; /* CLOCK_MONOTONIC; 0: none.  An answer after it is of no use */
    uint32_t worker;      /* who calls: less than the number of workers; that number: the event loop */
    uint32_t reserved;
};

struct l5_reply {
    uint8_t *data;
    size_t size;     /* written so far and not flushed */
    size_t capacity;
    size_t limit;    /* largest answer that the client takes, in bytes */
    size_t flushed;  /* bytes that are on their way already */
    /* A long answer is cut into segments only where a record ends, if this is not zero: behind
     * `record_offset` bytes of introduction follow records of `record_bytes` bytes each. */
    size_t record_bytes;
    size_t record_offset;
    /* The functions of the service; use the inline ones below. */
    int (*grow)(struct l5_reply *reply, size_t more_bytes);
    int (*flush)(struct l5_reply *reply);
    int (*fail)(struct l5_reply *reply, const char *type, const char *message);
    void *owner;
};

typedef int (*l5_handler)(void *state, const struct l5_request *request, struct l5_reply *reply);

/* The capsule points to one of these, which must live as long as the service. */
struct l5_handler_entry {
    uint32_t struct_bytes; /* sizeof(struct l5_handler_entry) */
    uint32_t reserved;     /* zero */
    l5_handler handler;
    void *state;
};

/* Make room for `more_bytes` at the end: 0, -EMSGSIZE (over the limit) or -ENOMEM. */
static inline int l5_reply_reserve(struct l5_reply *reply, size_t more_bytes)
{
    if (more_bytes <= reply->capacity - reply->size)
        return 0;
    return reply->grow(reply, more_bytes);
}

/* Append bytes: 0 or what l5_reply_reserve says. */
static inline int l5_reply_append(struct l5_reply *reply, const void *data, size_t bytes)
{
    int rc = l5_reply_reserve(reply, bytes);

    if (rc)
        return rc;
    if (bytes)
        memcpy(reply->data + reply->size, data, bytes);
    reply->size += bytes;
    return 0;
}

/* Append `bytes` bytes to be written by the caller: where, or NULL when there is no room.  The
 * place is good until the next call. */
static inline void *l5_reply_extend(struct l5_reply *reply, size_t bytes)
{
    void *at;

    /* Nothing more, and no buffer yet: there is room, and NULL would say that there is none. */
    if (reply->data ? l5_reply_reserve(reply, bytes) : reply->grow(reply, bytes))
        return NULL;
    at = reply->data + reply->size;
    reply->size += bytes;
    return at;
}

/* Send what is there in advance, as far as there is room; the rest stays.  Never waits.  0, or
 * -EPIPE when nobody will read the answer, so that the handler may as well return that. */
static inline int l5_reply_flush(struct l5_reply *reply)
{
    return reply->flush(reply);
}

/* Answer with an error instead: what was written is dropped.  Use: return l5_reply_error(...). */
static inline int l5_reply_error(struct l5_reply *reply, const char *type, const char *message)
{
    return reply->fail(reply, type, message);
}

#ifdef __cplusplus
}
#endif

#endif
