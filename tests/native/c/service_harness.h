/* Clients of a native service inside the test's own process.
 *
 * Both channels of a pair live on one mapping, so that the thread sanitizer sees both ends use the
 * same addresses. */
#ifndef SERVICE_HARNESS_H
#define SERVICE_HARNESS_H

#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "service.h"

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s: failed: %s\n", __FILE__, __LINE__, __func__, #condition); \
            abort();                                                                              \
        }                                                                                         \
    } while (0)

enum { RING = 1 << 16, SEGMENT = 1 << 12, CREDIT = 1 << 14, LONGEST = 1 << 20 };

struct client {
    struct l5_channel channel, server;
    int bells[2]; /* [0] the client's end */
    uint64_t number;
};

/* The client's channel over the mapping that the server's uses. */
static void mirror(struct l5_channel *client, const struct l5_channel *server)
{
    struct l5_control *control = server->control;

    memset(client, 0, sizeof(*client));
    client->ring_bytes = server->ring_bytes;
    client->role = L5_CLIENT;
    client->control = control;
    client->rx_hold = UINT64_MAX;
    client->peer_cpu = -1;
    client->tx_base = server->rx_base;
    client->rx_base = server->tx_base;
    client->tx_read = server->rx_position;
    client->rx_position = &control->read[1].word;
    client->own_armed = &control->armed[L5_CLIENT].word;
    client->peer_armed = &control->armed[L5_SERVER].word;
}

__attribute__((unused)) static void client_open(struct client *client, uint64_t ring_bytes, uint32_t segment)
{
    int fd = l5_segment_create(ring_bytes);

    CHECK(fd >= 0);
    CHECK(!l5_channel_map(&client->server, fd, ring_bytes, L5_SERVER));
    close(fd);
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, client->bells));
    mirror(&client->channel, &client->server);
    client->channel.bell = client->bells[0];
    client->server.bell = client->bells[1];
    client->channel.tx_limit = client->channel.rx_limit = segment;
    client->server.tx_limit = client->server.rx_limit = segment;
}

static int client_attach_as(struct l5_service *service, struct client *client, struct l5_service_peer peer)
{
    peer.channel = (uint64_t)(uintptr_t)&client->server;
    peer.bell = client->bells[1];
    return l5_service_attach(service, &peer, &client->number);
}

static struct l5_service_peer usual_peer(void)
{
    struct l5_service_peer peer = {.in_flight_max = 16,
                                   .send_segment_bytes = SEGMENT,
                                   .send_credit_bytes = CREDIT,
                                   .send_message_bytes = LONGEST,
                                   .receive_credit_bytes = CREDIT,
                                   .receive_message_bytes = LONGEST,
                                   .heartbeat_ns = 10000000};
    return peer;
}

__attribute__((unused)) static void client_connect(struct l5_service *service, struct client *client)
{
    client_open(client, RING, SEGMENT);
    CHECK(!client_attach_as(service, client, usual_peer()));
}

__attribute__((unused)) static void client_hang_up(struct client *client)
{
    if (client->bells[0] >= 0)
        close(client->bells[0]);
    client->bells[0] = -1;
}

/* Only after the service has let go. */
__attribute__((unused)) static void client_free(struct client *client)
{
    client_hang_up(client);
    close(client->bells[1]);
    l5_channel_unmap(&client->server);
}

/* Sleep until the service rings, or has hung up. */
__attribute__((unused)) static void client_sleep(struct client *client, int bits)
{
    struct pollfd bell = {.fd = client->bells[0], .events = POLLIN};
    char bytes[64];

    if (l5_channel_arm(&client->channel, bits))
        return;
    CHECK(poll(&bell, 1, 20000) == 1);
    CHECK(recv(client->bells[0], bytes, sizeof(bytes), MSG_DONTWAIT) >= 0);
    l5_channel_disarm(&client->channel);
}

__attribute__((unused)) static void client_send(struct client *client, int kind, int flags, uint64_t id, const void *data, uint32_t size)
{
    int rc;

    while ((rc = l5_channel_send(&client->channel, kind, flags, id, NULL, 0, data, size)) == -EAGAIN)
        client_sleep(client, L5_ARM_DATA | L5_ARM_SPACE);
    CHECK(!rc);
}

/* Wait for the next frame; it stays in the ring until l5_channel_consume. */
__attribute__((unused)) static void client_peek(struct client *client, struct l5_frame *frame)
{
    int rc;

    while (!(rc = l5_channel_peek(&client->channel, frame)))
        client_sleep(client, L5_ARM_DATA);
    CHECK(rc == 1);
}

__attribute__((unused)) static void expect(struct client *client, int kind, int flags, uint64_t id, const void *data, uint32_t size)
{
    struct l5_frame frame;

    client_peek(client, &frame);
    if (frame.kind != kind || frame.flags != flags || frame.id != id)
        fprintf(stderr, "got kind %d flags %d id %llu size %u\n", frame.kind, frame.flags,
                (unsigned long long)frame.id, frame.size);
    CHECK(frame.kind == kind && frame.flags == flags && frame.id == id && frame.size == size);
    CHECK(!size || !memcmp(frame.payload, data, size));
    l5_channel_consume(&client->channel);
}

/* Expect an ERROR of this type. */
__attribute__((unused)) static void expect_error(struct client *client, uint64_t id, const char *type)
{
    struct l5_frame frame;
    size_t length = strlen(type);

    client_peek(client, &frame);
    if (frame.kind != L5_ERROR || frame.id != id || frame.size < 2 + length || frame.payload[0] != length ||
        memcmp(frame.payload + 2, type, length))
        fprintf(stderr, "got kind %d id %llu: %.*s\n", frame.kind, (unsigned long long)frame.id,
                frame.size > 2 ? (int)frame.size - 2 : 0, (const char *)frame.payload + 2);
    CHECK(frame.kind == L5_ERROR && frame.id == id && frame.size >= 2 + length);
    CHECK(frame.payload[0] == length && !memcmp(frame.payload + 2, type, length));
    l5_channel_consume(&client->channel);
}

/* Wait until the service has let one connection go; returns its fault or NULL. */
__attribute__((unused)) static const char *await_done(struct l5_service *service, uint64_t *number)
{
    struct pollfd done = {.fd = l5_service_done_fd(service), .events = POLLIN};
    struct l5_service_done one;

    for (;;) {
        CHECK(poll(&done, 1, 20000) == 1);
        if (l5_service_drain(service, &one, 1) == 1)
            break;
    }
    if (number)
        *number = one.connection;
    return one.fault;
}

__attribute__((unused)) static struct l5_service *service_make(l5_handler handler, void *state, uint32_t mode, uint32_t workers,
                                       uint64_t stored_bytes_max)
{
    struct l5_service_options options = {.handler = (uint64_t)(uintptr_t)handler,
                                         .state = (uint64_t)(uintptr_t)state,
                                         .workers = workers,
                                         .mode = mode,
                                         .spin_ns = 50000,
                                         .heartbeat_ns = 10000000,
                                         .request_bytes_max = LONGEST,
                                         .stored_bytes_max = stored_bytes_max};
    struct l5_service *service = NULL;

    CHECK(!l5_service_new(&options, &service));
    CHECK(!l5_service_start(service));
    return service;
}

/* Stop within `grace_ns`, then free. */
__attribute__((unused)) static void service_end(struct l5_service *service, uint64_t grace_ns)
{
    struct pollfd ended = {.fd = l5_service_ended_fd(service), .events = POLLIN};

    l5_service_stop(service, grace_ns);
    while (!l5_service_ended(service))
        CHECK(poll(&ended, 1, 20000) == 1);
    l5_service_free(service);
}

#endif
