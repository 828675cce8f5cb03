/* A native service as its owner, the event loop, sees it: start, attach, drain, call, stop.
 * Theory: service.h. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "service.h"

#ifdef __linux__
#include <sys/eventfd.h>
#include <unistd.h>

static int new_event(void)
{
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    return fd < 0 ? -errno : fd;
}

static void ring_event(int fd)
{
    eventfd_write(fd, 1);
}

static void clear_event(int fd)
{
    eventfd_t value;

    eventfd_read(fd, &value);
}

static void close_event(int fd)
{
    if (fd >= 0)
        close(fd);
}
#else
static int new_event(void)
{
    return -ENOSYS;
}

static void ring_event(int fd)
{
    (void)fd;
}

static void clear_event(int fd)
{
    (void)fd;
}

static void close_event(int fd)
{
    (void)fd;
}
#endif

_Static_assert(sizeof(struct l5_service_entry) == sizeof(struct l5_handler_entry), "both are the same memory");

static int options_ok(const struct l5_service_options *options)
{
    return options->handler && options->workers >= 1 && options->workers <= WORKERS_MAX &&
           options->mode <= L5_ADAPTIVE && options->spin_ns <= 1000000000u && options->request_bytes_max &&
           options->stored_bytes_max;
}

int l5_service_new(const struct l5_service_options *options, struct l5_service **made)
{
    struct l5_service *service;

    if (!options_ok(options))
        return -EINVAL;
    service = calloc(1, sizeof(*service));
    if (!service)
        return -ENOMEM;
    service->options = *options;
    service->handler = (l5_handler)(uintptr_t)options->handler;
    service->state = (void *)(uintptr_t)options->state;
    service->done_fd = service->ended_fd = -1;
    pthread_mutex_init(&service->lock, NULL);
    *made = service;
    return 0;
}

static int start_thread(struct l5_worker *worker)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all); /* signals are for the threads of the event loop */
    sigdelset(&all, SIGSEGV); /* but faults are this thread's own: blocked, they would kill unreported */
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    sigdelset(&all, SIGABRT);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&worker->thread, NULL, l5_worker_main, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc)
        return -rc;
    worker->started = 1;
#ifdef __linux__
    char name[16];

    snprintf(name, sizeof(name), "l5-worker-%u", worker->index);
    pthread_setname_np(worker->thread, name);
#endif
    return 0;
}

/* After an error the service can only be freed. */
int l5_service_start(struct l5_service *service)
{
    int rc = 0;

    if (service->workers)
        return -EALREADY;
    service->workers = calloc(service->options.workers, sizeof(*service->workers));
    if (!service->workers)
        return -ENOMEM;
    service->done_fd = new_event();
    service->ended_fd = new_event();
    if (service->done_fd < 0 || service->ended_fd < 0)
        return service->done_fd < 0 ? service->done_fd : service->ended_fd;
    for (uint32_t i = 0; !rc && i < service->options.workers; i++)
        rc = l5_worker_init(&service->workers[i], service, i);
    for (uint32_t i = 0; !rc && i < service->options.workers; i++)
        rc = start_thread(&service->workers[i]);
    return rc;
}

static int peer_ok(const struct l5_service_peer *peer)
{
    const struct l5_channel *channel = (const struct l5_channel *)(uintptr_t)peer->channel;

    return channel && peer->in_flight_max && peer->send_segment_bytes >= L5_SEGMENT_MIN &&
           peer->send_segment_bytes <= channel->tx_limit && peer->send_credit_bytes >= peer->send_segment_bytes &&
           peer->receive_credit_bytes && peer->receive_message_bytes;
}

static struct l5_worker *least_loaded(struct l5_service *service)
{
    struct l5_worker *best = &service->workers[0];

    for (uint32_t i = 1; i < service->options.workers; i++)
        if (l5_load_relaxed(&service->workers[i].load) < l5_load_relaxed(&best->load))
            best = &service->workers[i];
    return best;
}

static int hand_over(struct l5_worker *worker, struct l5_connection *connection)
{
    pthread_mutex_lock(&worker->lock);
    if (worker->inbox_closed) {
        pthread_mutex_unlock(&worker->lock);
        return -ESHUTDOWN;
    }
    l5_add(&worker->load, 1);
    connection->next = worker->inbox;
    worker->inbox = connection;
    l5_store_relaxed(&worker->inbox_full, 1); /* a hint: the lock and the event below order */
    pthread_mutex_unlock(&worker->lock);
    ring_event(worker->wake);
    return 0;
}

/* Give a connection to the worker with the fewest.  From now on until it comes out of
 * l5_service_drain nobody else may touch its channel or close its bell. */
int l5_service_attach(struct l5_service *service, const struct l5_service_peer *peer, uint64_t *number)
{
    struct l5_connection *connection;
    int rc;

    if (!service->workers || !service->workers[0].started)
        return -EINVAL;
    if (l5_load_relaxed(&service->stopping)) /* a hint: hand_over finds it behind the lock */
        return -ESHUTDOWN;
    if (!peer_ok(peer))
        return -EINVAL;
    connection = calloc(1, sizeof(*connection));
    if (!connection)
        return -ENOMEM;
    connection->channel = (struct l5_channel *)(uintptr_t)peer->channel;
    connection->peer = *peer;
    connection->queue_end = &connection->queue;
    connection->number = l5_add(&service->accepted, 1) + 1;
    connection->worker = least_loaded(service);
    *number = connection->number;
    rc = hand_over(connection->worker, connection);
    if (rc)
        free(connection);
    return rc;
}

int l5_service_done_fd(struct l5_service *service)
{
    return service->done_fd;
}

int l5_service_ended_fd(struct l5_service *service)
{
    return service->ended_fd;
}

/* End a connection from this side: its worker finds end-of-file, finishes and lets go. */
void l5_service_hang_up(int bell)
{
    shutdown(bell, SHUT_RDWR);
}

static void copy_done(struct l5_service_done *done, const struct l5_connection *connection)
{
    done->connection = connection->number;
    done->fault = connection->fault;
}

/* Take the connections that the workers have let go of, at most `room`; returns how many. */
int l5_service_drain(struct l5_service *service, struct l5_service_done *done, uint32_t room)
{
    struct l5_connection *list, *rest;
    uint32_t count = 0;

    clear_event(service->done_fd);
    pthread_mutex_lock(&service->lock);
    rest = list = service->done;
    while (rest && count < room) {
        copy_done(&done[count++], rest);
        rest = rest->next;
    }
    service->done = rest;
    pthread_mutex_unlock(&service->lock);
    if (rest)
        ring_event(service->done_fd);
    while (list != rest) {
        struct l5_connection *next = list->next;

        free(list);
        list = next;
    }
    return (int)count;
}

static int answer_from(struct l5_answering *answering, struct l5_service_answer *answer)
{
    if (answering->failed && !answering->reply.size) {
        free(answering->reply.data);
        return -ENOMEM;
    }
    answer->failed = (int)answering->failed;
    answer->data = answering->reply.data;
    answer->size = answering->reply.size;
    answer->capacity = answering->reply.capacity;
    return 0;
}

/* Run the handler in the calling thread, for clients that stayed on sockets. */
int l5_service_call(struct l5_service *service, const uint8_t *data, uint64_t size, uint64_t deadline_ns,
                    uint64_t limit, struct l5_service_answer *answer)
{
    struct l5_request request = {
        .data = data, .size = size, .deadline_ns = deadline_ns, .worker = service->options.workers};
    struct l5_answering answering;
    void *aligned = NULL;

    if ((uintptr_t)data % 16 && size) {
        aligned = malloc(size);
        if (!aligned)
            return -ENOMEM;
        memcpy(aligned, data, size);
        request.data = aligned;
    }
    l5_answering_init(&answering, NULL, 4096);
    l5_answering_begin(&answering, 0, limit, 0);
    l5_answering_run(&answering, service, &request);
    free(aligned);
    return answer_from(&answering, answer);
}

void l5_service_answer_free(struct l5_service_answer *answer)
{
    free(answer->data);
    answer->data = NULL;
}

/* Ask the workers to end: no new connections, what was asked is answered within the grace.  Again
 * with a shorter grace cuts it short. */
void l5_service_stop(struct l5_service *service, uint64_t grace_ns)
{
    l5_store_relaxed(&service->stop_at_ns, l5_now_ns() + grace_ns);
    l5_store_release(&service->stopping, l5_load_relaxed(&service->stopping) + 1); /* pairs with: STOP */
    for (uint32_t i = 0; service->workers && i < service->options.workers; i++)
        if (service->workers[i].started)
            ring_event(service->workers[i].wake);
}

/* Have all workers ended?  Clears the event.  Their memory may be freed when they have been joined. */
int l5_service_ended(struct l5_service *service)
{
    uint64_t started = 0;

    clear_event(service->ended_fd);
    for (uint32_t i = 0; service->workers && i < service->options.workers; i++)
        started += (uint64_t)service->workers[i].started;
    return l5_load_relaxed(&service->ended) >= started;
}

/* Stop at once if need be, wait for the threads and free everything. */
void l5_service_free(struct l5_service *service)
{
    struct l5_service_done done[16];

    if (!l5_service_ended(service))
        l5_service_stop(service, 0);
    for (uint32_t i = 0; service->workers && i < service->options.workers; i++)
        if (service->workers[i].started)
            pthread_join(service->workers[i].thread, NULL);
    while (l5_service_drain(service, done, 16) > 0)
        ;
    for (uint32_t i = 0; service->workers && i < service->options.workers; i++)
        l5_worker_close(&service->workers[i]);
    close_event(service->done_fd);
    close_event(service->ended_fd);
    free(service->workers);
    pthread_mutex_destroy(&service->lock);
    free(service);
}

void l5_service_set_quota(struct l5_service *service, uint64_t millionths, const char *stat)
{
    pthread_mutex_lock(&service->lock);
    snprintf(service->quota_stat, sizeof(service->quota_stat), "%s", stat);
    pthread_mutex_unlock(&service->lock);
    l5_store_relaxed(&service->quota_millionths, millionths);
}

void l5_service_count(struct l5_service *service, struct l5_service_statistics *statistics)
{
    uint32_t workers = service->options.workers;

    memset(statistics, 0, sizeof(*statistics));
    statistics->accepted = l5_load_relaxed(&service->accepted);
    statistics->stored_bytes = l5_load_relaxed(&service->stored_bytes);
    for (uint32_t i = 0; service->workers && i < workers; i++) {
        struct l5_worker *worker = &service->workers[i];

        statistics->requests += l5_load_relaxed(&worker->requests);
        statistics->errors += l5_load_relaxed(&worker->errors);
        statistics->connections += l5_load_relaxed(&worker->load);
        statistics->faults += l5_load_relaxed(&worker->faults);
        statistics->busy_millionths += l5_load_relaxed(&worker->busy_millionths) / workers;
        statistics->spun_ns += l5_load_relaxed(&worker->spun_ns);
        statistics->slept_ns += l5_load_relaxed(&worker->slept_ns);
        statistics->sleeps += l5_load_relaxed(&worker->sleeps);
        statistics->bells_rung += l5_load_relaxed(&worker->bells_rung);
        statistics->bells_heard += l5_load_relaxed(&worker->bells_heard);
    }
}
