/* A worker of a native service: adopting, scanning, waiting, letting go.  Theory: service.h. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "service.h"

#ifdef __linux__
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- the array of connections: active ones first -------------------------------------------- */

static void swap(struct l5_worker *worker, uint32_t a, uint32_t b)
{
    struct l5_connection *first = worker->connections[a], *second = worker->connections[b];

    worker->connections[a] = second;
    worker->connections[b] = first;
    second->index = a;
    first->index = b;
}

void l5_worker_activate(struct l5_worker *worker, struct l5_connection *connection)
{
    if (connection->armed) {
        connection->armed = 0;
        l5_channel_disarm(connection->channel);
    }
    if (connection->index < worker->active)
        return;
    swap(worker, connection->index, worker->active);
    worker->active++;
}

/* Arm a connection and let it leave the scan; false when there is something to do already. */
int l5_worker_idle(struct l5_worker *worker, struct l5_connection *connection)
{
    int bits = L5_ARM_DATA | (connection->space_blocked ? L5_ARM_SPACE : 0);

    if (connection->finished || l5_channel_arm(connection->channel, bits))
        return 0; /* a fault is found again by the next scan */
    connection->armed = 1;
    worker->active--;
    swap(worker, connection->index, worker->active);
    return 1;
}

static int make_room(struct l5_worker *worker, const struct l5_connection *connection)
{
    size_t segment = connection->channel->rx_limit;

    if (worker->count == worker->room) {
        uint32_t room = worker->room ? worker->room * 2 : 8;
        void *grown = realloc(worker->connections, room * sizeof(*worker->connections));

        if (!grown)
            return -ENOMEM;
        worker->connections = grown;
        worker->room = room;
    }
    if (worker->scratch_bytes < segment) {
        void *grown = realloc(worker->scratch, segment);

        if (!grown)
            return -ENOMEM;
        worker->scratch = grown;
        worker->scratch_bytes = segment;
    }
    return 0;
}

/* Hand a connection back to the event loop; nothing of it is touched afterwards. */
static void let_go(struct l5_worker *worker, struct l5_connection *connection)
{
    struct l5_service *service = worker->service;

    if (connection->fault)
        l5_bump(&worker->faults, 1);
    l5_connection_clear(connection);
    l5_add(&worker->load, (uint64_t)0 - 1);
    pthread_mutex_lock(&service->lock);
    connection->next = service->done;
    service->done = connection;
    pthread_mutex_unlock(&service->lock);
    eventfd_write(service->done_fd, 1);
}

void l5_worker_release(struct l5_worker *worker, struct l5_connection *connection)
{
    l5_worker_activate(worker, connection);
    worker->lingering -= connection->linger_until_ns != 0;
    l5_channel_publish(connection->channel);
    l5_bump(&worker->bells_rung, connection->channel->bells_rung);
    if (connection->peer.bell >= 0)
        epoll_ctl(worker->epoll, EPOLL_CTL_DEL, connection->peer.bell, NULL);
    worker->active--;
    swap(worker, connection->index, worker->active);
    worker->count--;
    swap(worker, connection->index, worker->count);
    let_go(worker, connection);
}

static void drain(struct l5_worker *worker, struct l5_connection *connection)
{
    uint64_t until = l5_load_relaxed(&worker->service->stop_at_ns);

    worker->lingering += !connection->linger_until_ns;
    if (!connection->linger_until_ns || connection->linger_until_ns > until)
        connection->linger_until_ns = until;
    connection->draining = 1;
    connection->has_work = 1;
    l5_worker_activate(worker, connection);
}

static void adopt_one(struct l5_worker *worker, struct l5_connection *connection)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = connection};

    if (make_room(worker, connection) ||
        (connection->peer.bell >= 0 && epoll_ctl(worker->epoll, EPOLL_CTL_ADD, connection->peer.bell, &event))) {
        connection->fault = "the service has no memory or descriptors for another connection";
        let_go(worker, connection);
        return;
    }
    connection->index = worker->count;
    worker->connections[worker->count++] = connection;
    l5_worker_activate(worker, connection);
    if (worker->draining)
        drain(worker, connection);
}

static void adopt(struct l5_worker *worker)
{
    struct l5_connection *list;

    pthread_mutex_lock(&worker->lock);
    list = worker->inbox;
    worker->inbox = NULL;
    l5_store_relaxed(&worker->inbox_full, 0);
    pthread_mutex_unlock(&worker->lock);
    while (list) {
        struct l5_connection *next = list->next;

        adopt_one(worker, list);
        list = next;
    }
}

/* ---- bells ----------------------------------------------------------------------------------- */

static void hear(struct l5_worker *worker, struct l5_connection *connection, uint32_t events)
{
    char bytes[256];
    ssize_t got = recv(connection->peer.bell, bytes, sizeof(bytes), MSG_DONTWAIT);

    l5_bump(&worker->bells_heard, got > 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR) || (got < 0 && (events & (EPOLLERR | EPOLLHUP)))) {
        connection->eof = 1;
        connection->has_work = 1;
        epoll_ctl(worker->epoll, EPOLL_CTL_DEL, connection->peer.bell, NULL);
        connection->peer.bell = -1; /* heard for the last time: it stays readable */
    }
    l5_worker_activate(worker, connection);
}

void l5_worker_listen(struct l5_worker *worker, int timeout_ms)
{
    struct epoll_event events[EVENTS_MAX];
    int count = epoll_wait(worker->epoll, events, EVENTS_MAX, timeout_ms);

    for (int i = 0; i < count; i++) {
        eventfd_t value;

        if (events[i].data.ptr)
            hear(worker, events[i].data.ptr, events[i].events);
        else
            eventfd_read(worker->wake, &value);
    }
    worker->bells_at = l5_ticks() + worker->ticks_per_us * (BELLS_NS / 1000);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* The service stops: every connection finishes what it has, until the grace is over. */
static void begin_to_stop(struct l5_worker *worker)
{
    worker->draining = 1;
    for (uint32_t i = 0; i < worker->count; i++)
        drain(worker, worker->connections[i]);
}

/* With the inbox empty no connection can come any more. */
static int close_inbox(struct l5_worker *worker)
{
    int empty;

    pthread_mutex_lock(&worker->lock);
    empty = !worker->inbox;
    worker->inbox_closed = empty;
    pthread_mutex_unlock(&worker->lock);
    return empty;
}

void *l5_worker_main(void *argument)
{
    struct l5_worker *worker = argument;
    struct l5_service *service = worker->service;
    uint64_t stop = 0, seen = 0;

    worker->tick_ns = l5_now_ns();
    worker->tick_ticks = l5_ticks();
    worker->ticks_per_us = 1000; /* until the first tick has measured it */
    worker->schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    for (;;) {
        if (l5_load_relaxed(&worker->inbox_full)) /* what is in it stands behind a lock */
            adopt(worker);
        stop = l5_load_acquire(&service->stopping); /* pairs with: STOP in l5_service_stop */
        if (stop != seen) { /* once more when the grace is cut short */
            seen = stop;
            begin_to_stop(worker);
        }
        if (!l5_worker_scan(worker) && (!stop || worker->count))
            l5_worker_wait(worker);
        if (stop && !worker->count && close_inbox(worker))
            break;
    }
    if (worker->schedstat >= 0)
        close(worker->schedstat);
    l5_store_relaxed(&worker->busy_millionths, 0);
    l5_add(&service->ended, 1);
    eventfd_write(service->ended_fd, 1);
    return NULL;
}

int l5_worker_init(struct l5_worker *worker, struct l5_service *service, uint32_t index)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};

    worker->service = service;
    worker->index = index;
    worker->epoll = worker->wake = -1;
    pthread_mutex_init(&worker->lock, NULL);
    l5_answering_init(&worker->answering, NULL, 0);
    worker->epoll = epoll_create1(EPOLL_CLOEXEC);
    worker->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (worker->epoll < 0 || worker->wake < 0 || epoll_ctl(worker->epoll, EPOLL_CTL_ADD, worker->wake, &event))
        return -errno;
    return 0;
}

void l5_worker_close(struct l5_worker *worker)
{
    if (!worker->service)
        return;
    if (worker->epoll >= 0)
        close(worker->epoll);
    if (worker->wake >= 0)
        close(worker->wake);
    free(worker->connections);
    free(worker->scratch);
    free(worker->answering.reply.data);
    pthread_mutex_destroy(&worker->lock);
}

#else

int l5_worker_init(struct l5_worker *worker, struct l5_service *service, uint32_t index)
{
    (void)worker;
    (void)service;
    (void)index;
    return -ENOSYS;
}

void l5_worker_close(struct l5_worker *worker)
{
    (void)worker;
}

void *l5_worker_main(void *argument)
{
    return argument;
}

#endif
