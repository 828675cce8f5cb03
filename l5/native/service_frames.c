/* The server's half of the protocol, for one connection of a native service.  Theory: service.h.
 *
 * What a client may send: REQUEST (in pieces with MORE; the first may carry a deadline), CANCEL,
 * ABORT, CREDIT, CLOSE.  All else, and more than was agreed, is a fault that ends the connection.
 */
#define _GNU_SOURCE
#include <stdlib.h>

#include "service.h"

/* ---- frames ---------------------------------------------------------------------------------- */

static struct l5_inbound **find(struct l5_inbound **list, uint64_t id)
{
    while (*list && (*list)->id != id)
        list = &(*list)->next;
    return *list ? list : NULL;
}

static void enqueue(struct l5_connection *connection, struct l5_inbound *inbound)
{
    inbound->next = NULL;
    *connection->queue_end = inbound;
    connection->queue_end = &inbound->next;
    connection->has_work = 1;
}

/* The deadline in front of a request's first frame: an absolute time, and 4 bytes to skip. */
static uint64_t take_deadline(struct l5_frame *frame)
{
    uint32_t remaining_us;

    if (!(frame->flags & L5_DEADLINE))
        return 0;
    memcpy(&remaining_us, frame->payload, sizeof(remaining_us));
    frame->payload += sizeof(remaining_us);
    frame->size -= (uint32_t)sizeof(remaining_us);
    return l5_now_ns() + (uint64_t)remaining_us * 1000u;
}

/* Make room for `more` bytes within what one message and all connections may hold. */
static int inbound_grow(struct l5_connection *connection, struct l5_inbound *inbound, size_t more)
{
    size_t limit = connection->peer.receive_message_bytes;
    size_t wanted = inbound->size + more;
    size_t capacity = inbound->capacity;
    uint8_t *data;

    if (wanted <= capacity)
        return 0;
    if (capacity)
        wanted = wanted > 2 * capacity ? wanted : 2 * capacity;
    if (wanted > limit)
        wanted = limit;
    if (l5_store_take(connection->worker->service, wanted - capacity))
        return -EDQUOT;
    data = realloc(inbound->data, wanted);
    if (!data) {
        l5_store_give(connection->worker->service, wanted - capacity);
        return -ENOMEM;
    }
    inbound->data = data;
    inbound->capacity = wanted;
    return 0;
}

static void append(struct l5_connection *connection, struct l5_inbound *inbound, const struct l5_frame *frame)
{
    if (inbound->verdict || !frame->size)
        return;
    if (inbound->size + frame->size > connection->worker->service->options.request_bytes_max) {
        l5_inbound_refuse(connection, inbound, L5_TOO_LARGE);
        return;
    }
    if (inbound_grow(connection, inbound, frame->size)) {
        l5_inbound_refuse(connection, inbound, L5_OVERLOADED);
        return;
    }
    memcpy(inbound->data + inbound->size, frame->payload, frame->size);
    inbound->size += frame->size;
}

static struct l5_inbound *new_inbound(struct l5_connection *connection, struct l5_frame *frame)
{
    struct l5_inbound *inbound;

    if (connection->in_flight >= connection->peer.in_flight_max) {
        l5_connection_break(connection, "more requests in flight than were agreed");
        return NULL;
    }
    inbound = calloc(1, sizeof(*inbound));
    if (!inbound) {
        l5_connection_break(connection, "no memory for another request");
        return NULL;
    }
    connection->in_flight++;
    inbound->id = frame->id;
    inbound->allowed = connection->peer.receive_credit_bytes;
    inbound->deadline_ns = take_deadline(frame);
    return inbound;
}

/* Grant more when what is left is less than half of the credit. */
static void grant(struct l5_connection *connection, struct l5_inbound *inbound)
{
    uint64_t credit = connection->peer.receive_credit_bytes;

    if (inbound->credit_due || inbound->allowed - inbound->arrived > credit / 2)
        return;
    inbound->credit_due = 1;
    connection->credits_due++;
    connection->has_work = 1;
}

static void take_request(struct l5_connection *connection, struct l5_frame *frame)
{
    struct l5_inbound **at = find(&connection->partials, frame->id);
    struct l5_inbound *inbound = at ? *at : NULL;
    int more = frame->flags & L5_MORE;

    if (inbound && (frame->flags & L5_DEADLINE)) {
        l5_connection_break(connection, "a deadline in the middle of a request");
        return;
    }
    if (!inbound) {
        inbound = new_inbound(connection, frame);
        if (!inbound)
            return;
        at = &connection->partials;
        inbound->next = *at;
        *at = inbound;
    }
    inbound->arrived += frame->size;
    if (inbound->arrived > connection->peer.receive_message_bytes) {
        l5_connection_break(connection, "a request longer than was agreed");
        return;
    }
    if (inbound->arrived > inbound->allowed) {
        l5_connection_break(connection, "more of a request than it had credit for");
        return;
    }
    append(connection, inbound, frame);
    if (more) {
        grant(connection, inbound);
        return;
    }
    *at = inbound->next;
    connection->credits_due -= inbound->credit_due;
    inbound->credit_due = 0;
    enqueue(connection, inbound);
}

static void take_cancel(struct l5_connection *connection, uint64_t id)
{
    struct l5_inbound **at = find(&connection->queue, id);

    if (!at)
        at = find(&connection->partials, id);
    if (at) {
        l5_inbound_refuse(connection, *at, L5_CANCELLED);
        return;
    }
    for (uint32_t i = 0; i < connection->out_count; i++) {
        struct l5_outbound *out = &connection->outs[i];

        if (out->id != id || out->failed || out->verdict)
            continue;
        l5_outbound_clear(connection, out);
        out->verdict = L5_CANCELLED;
        return;
    }
    /* Answered already: the answer and the cancellation crossed. */
}

static void take_abort(struct l5_connection *connection, uint64_t id)
{
    struct l5_inbound **at = find(&connection->partials, id);
    struct l5_inbound *inbound;

    if (!at) {
        l5_connection_break(connection, "ABORT of a request that is not half sent");
        return;
    }
    inbound = *at;
    *at = inbound->next;
    l5_inbound_free(connection, inbound);
    connection->in_flight--;
}

static void take_credit(struct l5_connection *connection, const struct l5_frame *frame)
{
    uint64_t allowed;

    memcpy(&allowed, frame->payload, sizeof(allowed));
    if (!(frame->flags & L5_FOR_RESPONSE))
        return; /* of messages that this side does not send */
    for (uint32_t i = 0; i < connection->out_count; i++)
        if (connection->outs[i].id == frame->id && connection->outs[i].allowed < allowed)
            connection->outs[i].allowed = allowed;
}

/* With MORE the client still receives, and may cancel and grant; else nobody will read the answers. */
static void take_close(struct l5_connection *connection, int more)
{
    struct l5_inbound *inbound;

    connection->closing = 1;
    connection->has_work = 1;
    if (!more)
        connection->eof = 1;
    while ((inbound = connection->partials)) { /* their rest will not come */
        connection->partials = inbound->next;
        l5_inbound_free(connection, inbound);
        connection->in_flight--;
    }
}

static void take_frame(struct l5_connection *connection, struct l5_frame *frame)
{
    if (connection->closing && (frame->kind == L5_REQUEST || frame->kind == L5_ABORT)) {
        l5_connection_break(connection, "a request after CLOSE");
        return;
    }
    switch (frame->kind) {
    case L5_REQUEST:
        take_request(connection, frame);
        break;
    case L5_CANCEL:
        take_cancel(connection, frame->id);
        break;
    case L5_ABORT:
        take_abort(connection, frame->id);
        break;
    case L5_CREDIT:
        take_credit(connection, frame);
        break;
    case L5_CLOSE:
        take_close(connection, frame->flags & L5_MORE);
        break;
    case L5_DATA:
        l5_connection_break(connection, "a data message to a service that takes requests only");
        break;
    default:
        l5_connection_break(connection, "a frame of a kind that only servers send");
        break;
    }
}

/* The common case: a whole request, run from a private copy while the frame's space is still held. */
static int take_at_once(struct l5_connection *connection, struct l5_frame *frame)
{
    struct l5_worker *worker = connection->worker;
    uint32_t prefix = frame->flags & L5_DEADLINE ? 4 : 0;
    uint64_t deadline_ns;

    if (frame->kind != L5_REQUEST || (frame->flags & L5_MORE) || connection->closing ||
        !l5_connection_can_run(connection) || connection->in_flight >= connection->peer.in_flight_max)
        return 0;
    if (connection->partials && find(&connection->partials, frame->id))
        return 0; /* the last piece of a longer one */
    if (frame->size > worker->scratch_bytes || frame->size - prefix > connection->peer.receive_message_bytes)
        return 0;
    deadline_ns = take_deadline(frame);
    memcpy(worker->scratch, frame->payload, frame->size);
    connection->in_flight++;
    l5_connection_run(connection, frame->id, deadline_ns, worker->scratch, frame->size);
    return 1;
}

/* Serve one connection for a while: at most SERVE_MAX frames.  Returns how much was done. */
uint32_t l5_connection_serve(struct l5_connection *connection)
{
    struct l5_channel *channel = connection->channel;
    struct l5_frame frame;
    uint32_t progress = 0;

    if (connection->has_work)
        progress += l5_connection_settle(connection);
    for (int i = 0; i < SERVE_MAX && !connection->finished; i++) {
        int rc = l5_channel_peek(channel, &frame);

        if (!rc)
            break;
        progress++;
        if (rc < 0) {
            l5_connection_break(connection, channel->fault);
            break;
        }
        connection->frames++;
        if (!take_at_once(connection, &frame))
            take_frame(connection, &frame);
        l5_channel_consume(channel);
    }
    if (connection->has_work && !connection->finished)
        progress += l5_connection_settle(connection);
    return progress;
}
