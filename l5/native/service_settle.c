/* What a connection owes its client: running requests, sending answers and credit, ending.
 * Theory: service.h. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "service.h"

void l5_connection_break(struct l5_connection *connection, const char *fault)
{
    if (!connection->fault)
        connection->fault = fault;
    connection->finished = 1;
    connection->has_work = 1;
}

static void free_data(struct l5_connection *connection, struct l5_inbound *inbound)
{
    if (inbound->capacity)
        l5_store_give(connection->worker->service, inbound->capacity);
    free(inbound->data);
    inbound->data = NULL;
    inbound->size = inbound->capacity = 0;
}

void l5_inbound_free(struct l5_connection *connection, struct l5_inbound *inbound)
{
    free_data(connection, inbound);
    connection->credits_due -= inbound->credit_due;
    free(inbound);
}

void l5_inbound_refuse(struct l5_connection *connection, struct l5_inbound *inbound, enum l5_verdict verdict)
{
    free_data(connection, inbound);
    inbound->verdict = (uint8_t)verdict;
}

void l5_outbound_clear(struct l5_connection *connection, struct l5_outbound *out)
{
    if (out->capacity)
        l5_store_give(connection->worker->service, out->capacity);
    free(out->data);
    out->data = NULL;
    out->size = out->sent = out->capacity = 0;
}

void l5_connection_drop(struct l5_connection *connection, uint32_t at)
{
    l5_outbound_clear(connection, &connection->outs[at]);
    connection->out_count--;
    memmove(&connection->outs[at], &connection->outs[at + 1],
            (connection->out_count - at) * sizeof(connection->outs[0]));
    connection->in_flight--;
}

static void drop_outs(struct l5_connection *connection)
{
    while (connection->out_count)
        l5_connection_drop(connection, connection->out_count - 1);
    connection->space_blocked = 0;
}

/* Give back all that a connection holds. */
void l5_connection_clear(struct l5_connection *connection)
{
    struct l5_inbound *inbound;

    drop_outs(connection);
    while ((inbound = connection->partials)) {
        connection->partials = inbound->next;
        l5_inbound_free(connection, inbound);
    }
    while ((inbound = connection->queue)) {
        connection->queue = inbound->next;
        l5_inbound_free(connection, inbound);
    }
    connection->queue_end = &connection->queue;
}

/* ---- running a request and sending its answer ------------------------------------------------ */

int l5_connection_can_run(const struct l5_connection *connection)
{
    return !connection->queue && !connection->space_blocked && connection->out_count < OUTS_MAX;
}

/* Keep what is left of an answer; its buffer changes hands. */
static void keep(struct l5_connection *connection, struct l5_outbound *out, struct l5_reply *reply)
{
    if (out->data && !l5_store_take(connection->worker->service, reply->capacity)) {
        out->capacity = reply->capacity;
        reply->data = NULL;
        reply->capacity = 0;
    } else if (out->data) {
        out->data = NULL;
        out->verdict = L5_OVERLOADED;
    }
    connection->outs[connection->out_count++] = *out;
    connection->has_work = 1;
}

static void deliver(struct l5_connection *connection, struct l5_outbound *out, struct l5_reply *reply)
{
    int rc;

    l5_bump(&connection->worker->requests, 1);
    if (out->failed || out->verdict)
        l5_bump(&connection->worker->errors, 1);
    if (connection->eof) {
        connection->in_flight--;
        return;
    }
    rc = l5_outbound_push(out, connection);
    if (rc > 0)
        connection->in_flight--;
    else if (rc == 0)
        keep(connection, out, reply);
    else if (rc == -EPROTO)
        l5_connection_break(connection, connection->channel->fault);
    else { /* nobody is there to read it */
        connection->in_flight--;
        connection->eof = 1;
        connection->has_work = 1;
    }
}

void l5_connection_run(struct l5_connection *connection, uint64_t id, uint64_t deadline_ns, const uint8_t *data,
                       size_t size)
{
    struct l5_worker *worker = connection->worker;
    struct l5_answering *answering = &worker->answering;
    struct l5_reply *reply = &answering->reply;
    struct l5_outbound out = {.id = id, .allowed = connection->peer.send_credit_bytes};
    struct l5_request request = {.data = data, .size = size, .id = id, .connection = connection->number,
                                 .deadline_ns = deadline_ns, .worker = worker->index};

    answering->connection = connection;
    answering->error_max = connection->channel->tx_limit;
    l5_answering_begin(answering, id, connection->peer.send_message_bytes, out.allowed);
    l5_answering_run(answering, worker->service, &request);
    out.data = reply->data;
    out.size = reply->size;
    out.before = reply->flushed;
    out.record_bytes = reply->record_bytes;
    out.record_offset = reply->record_offset;
    out.failed = (uint8_t)answering->failed;
    if (out.failed && !out.size)
        out.verdict = L5_OVERLOADED;
    deliver(connection, &out, reply);
    l5_answering_trim(answering);
}

static uint32_t run_queue(struct l5_connection *connection)
{
    uint32_t ran = 0;

    while (connection->queue && ran < SERVE_MAX && !connection->finished) {
        struct l5_inbound *inbound = connection->queue;

        if (connection->space_blocked || connection->out_count >= OUTS_MAX)
            break;
        connection->queue = inbound->next;
        if (!connection->queue)
            connection->queue_end = &connection->queue;
        if (inbound->verdict) {
            struct l5_outbound out = {.id = inbound->id, .verdict = inbound->verdict};

            deliver(connection, &out, NULL);
        } else {
            l5_connection_run(connection, inbound->id, inbound->deadline_ns, inbound->data, inbound->size);
        }
        l5_inbound_free(connection, inbound);
        ran++;
    }
    return ran;
}

/* ---- what is owed ---------------------------------------------------------------------------- */

static uint32_t send_credits(struct l5_connection *connection)
{
    uint64_t credit = connection->peer.receive_credit_bytes;
    uint32_t sent = 0;

    for (struct l5_inbound *inbound = connection->partials; inbound; inbound = inbound->next) {
        uint64_t allowed = inbound->arrived + credit;
        int rc;

        if (!inbound->credit_due)
            continue;
        rc = l5_channel_send(connection->channel, L5_CREDIT, 0, inbound->id, NULL, 0, &allowed, sizeof(allowed));
        if (rc == -EAGAIN) {
            connection->space_blocked = 1;
            break;
        }
        if (rc == -EPROTO)
            l5_connection_break(connection, connection->channel->fault);
        else if (rc)
            connection->eof = 1;
        if (rc)
            break;
        inbound->allowed = allowed;
        inbound->credit_due = 0;
        connection->credits_due--;
        sent++;
    }
    return sent;
}

static uint32_t send_outs(struct l5_connection *connection)
{
    uint32_t progress = 0;

    for (uint32_t i = 0; i < connection->out_count && !connection->space_blocked;) {
        struct l5_outbound *out = &connection->outs[i];
        size_t sent = out->sent;
        int rc = l5_outbound_push(out, connection);

        if (rc == -EPROTO) {
            l5_connection_break(connection, connection->channel->fault);
            return progress;
        }
        if (rc < 0) {
            connection->eof = 1;
            return progress;
        }
        progress += rc > 0 || out->sent != sent;
        if (rc > 0)
            l5_connection_drop(connection, i);
        else
            i++;
    }
    return progress;
}

/* Is everything answered, and will nothing more come? */
static int is_complete(struct l5_connection *connection)
{
    if (connection->queue || connection->out_count)
        return 0;
    if (connection->closing && !connection->eof)
        return 1;
    if (l5_channel_ready(connection->channel))
        return 0;
    return connection->eof || (connection->draining && !connection->partials);
}

static void finish_if_complete(struct l5_connection *connection)
{
    if (connection->finished || !(connection->eof || connection->closing || connection->draining))
        return;
    if (!is_complete(connection)) {
        uint64_t now = l5_now_ns();

        if (!connection->eof && !connection->draining)
            return; /* half closed: it may take its time to read */
        if (!connection->linger_until_ns) {
            connection->linger_until_ns = now + LINGER_NS;
            connection->worker->lingering++;
        }
        if (now < connection->linger_until_ns)
            return;
    }
    if (!connection->eof)
        l5_channel_send(connection->channel, L5_CLOSE, 0, 0, NULL, 0, NULL, 0); /* best effort */
    connection->finished = 1;
}

/* Send what waits for room or credit, then run what waits for its turn. */
uint32_t l5_connection_settle(struct l5_connection *connection)
{
    uint32_t progress = 0;

    connection->space_blocked = 0;
    if (connection->eof || connection->channel->gone) {
        connection->eof = 1;
        drop_outs(connection);
    }
    if (connection->credits_due && !connection->eof)
        progress += send_credits(connection);
    progress += send_outs(connection);
    progress += run_queue(connection);
    finish_if_complete(connection);
    connection->has_work = connection->finished || connection->out_count || connection->queue ||
                           connection->credits_due || connection->eof || connection->closing || connection->draining;
    return progress;
}
