/* A worker's turn: clocks, scanning, and waiting by the mode.  Theory: service.h. */
#define _GNU_SOURCE
#include "service.h"
#include "status.h"

#ifdef __linux__
#include <fcntl.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

/* ---- clocks ---------------------------------------------------------------------------------- */

/* Tell every client that wants to know, those too that do not ask us now: they may be just about to.
 * A client gets what was measured since the last tick, and averages as it likes. */
static void publish_busy(struct l5_worker *worker, double share, uint64_t now_ns, uint64_t interval_ns)
{
    uint64_t busy = (uint64_t)(share * 1e6 + 0.5);

    worker->sequence++;
    for (uint32_t i = 0; i < worker->count; i++) {
        struct l5_connection *connection = worker->connections[i];

        if (!connection->peer.heartbeat_ns || now_ns + interval_ns / 2 < connection->beat_at_ns)
            continue;
        connection->beat_at_ns = now_ns + connection->peer.heartbeat_ns;
        l5_status_write(connection->channel->control, worker->sequence, busy, now_ns);
    }
}

static int never_spins(const struct l5_worker *worker)
{
    const struct l5_service_options *options = &worker->service->options;

    return options->mode == L5_EVENT || (options->mode == L5_ADAPTIVE && !options->spin_ns);
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec time;

    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void read_text(int fd, char *text, size_t room)
{
    ssize_t got = fd >= 0 ? pread(fd, text, room - 1, 0) : -1;

    text[got > 0 ? got : 0] = 0;
}

/* Count the periods of the quota: a file to open, but ten times a second at most. */
static void read_periods(struct l5_service *service, struct l5_busy_reading *reading)
{
    char text[512];
    int fd;

    pthread_mutex_lock(&service->lock);
    memcpy(text, service->quota_stat, sizeof(text));
    pthread_mutex_unlock(&service->lock);
    fd = text[0] ? open(text, O_RDONLY | O_CLOEXEC) : -1;
    read_text(fd, text, sizeof(text));
    if (fd >= 0)
        close(fd);
    reading->periods = l5_busy_counted(text, "nr_periods ");
    reading->held_back = l5_busy_counted(text, "nr_throttled ");
}

static void read_clocks(const struct l5_worker *worker, uint64_t now_ns, struct l5_busy_reading *reading)
{
    char text[96];

    memset(reading, 0, sizeof(*reading));
    read_text(worker->schedstat, text, sizeof(text));
    reading->now_ns = now_ns;
    reading->thread_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    reading->waited_ns = l5_busy_waited(text);
    reading->process_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    reading->quota_millionths = l5_load_relaxed(&worker->service->quota_millionths);
    if (reading->quota_millionths && l5_busy_window_over(&worker->claims, now_ns))
        read_periods(worker->service, reading);
}

/* Return useful time over wall time since the last tick; the statistics have an average over about three. */
static double measure_busy(struct l5_worker *worker, uint64_t now, uint64_t now_ns, uint64_t interval_ns)
{
    double wall = (double)(now - worker->tick_ticks);
    double share = wall > 0 ? (double)worker->useful / wall : 0;
    double interval = (double)(now_ns - worker->tick_ns);
    double weight = interval / (interval + 2.0 * (double)interval_ns);

    if (never_spins(worker)) {
        struct l5_busy_reading reading;
        double claimed;

        read_clocks(worker, now_ns, &reading);
        claimed = l5_busy_share(&worker->claims, &reading, now_ns - worker->tick_ns);
        share = claimed > share ? claimed : share;
    }
    if (share > 1)
        share = 1;
    worker->busy += (share - worker->busy) * weight;
    l5_store_relaxed(&worker->busy_millionths, (uint64_t)(worker->busy * 1e6 + 0.5));
    worker->useful = 0;
    if (now_ns > worker->tick_ns && now > worker->tick_ticks) {
        uint64_t rate = (uint64_t)(wall * 1000.0 / interval);

        worker->ticks_per_us = rate ? rate : 1;
    }
    worker->tick_ticks = now;
    worker->tick_ns = now_ns;
    return share;
}

/* Connections without a frame since the last tick leave the scan. */
static void retire(struct l5_worker *worker)
{
    for (uint32_t i = worker->active; i-- > 0;) {
        struct l5_connection *connection = worker->connections[i];
        int quiet = connection->frames == connection->frames_seen;

        connection->frames_seen = connection->frames;
        if (quiet && !connection->has_work)
            l5_worker_idle(worker, connection);
    }
}

static void tick(struct l5_worker *worker, uint64_t now)
{
    uint64_t heartbeat_ns = worker->service->options.heartbeat_ns;
    uint64_t interval_ns = heartbeat_ns ? heartbeat_ns : TICK_NS;
    uint64_t now_ns = l5_now_ns();

    if (now_ns - worker->tick_ns >= interval_ns) {
        double share = measure_busy(worker, now, now_ns, interval_ns);

        if (heartbeat_ns)
            publish_busy(worker, share, now_ns, interval_ns);
        if (worker->service->options.mode != L5_POLL)
            retire(worker);
        l5_worker_listen(worker, 0);
    }
    worker->tick_at = now + interval_ns / 1000 * worker->ticks_per_us;
}

static int shares_cpu(const struct l5_worker *worker)
{
    int cpu = l5_cpu();

    for (uint32_t i = 0; cpu >= 0 && i < worker->active; i++)
        if (worker->connections[i]->channel->peer_cpu == cpu)
            return 1;
    return 0;
}

/* What a worker that is never idle must do now and then. */
static void keep_up(struct l5_worker *worker, uint64_t now)
{
    if (now >= worker->tick_at)
        tick(worker, now);
    if (now >= worker->bells_at && worker->active < worker->count)
        l5_worker_listen(worker, 0);
    if (now >= worker->share_at) {
        worker->share_at = now + worker->ticks_per_us * (SHARE_NS / 1000);
        for (uint32_t i = 0; i < worker->active; i++) /* those beside us leave us the CPU */
            l5_channel_tell(worker->connections[i]->channel, worker->active);
        if (shares_cpu(worker))
            sched_yield();
    }
}

/* ---- scanning and waiting -------------------------------------------------------------------- */

uint32_t l5_worker_scan(struct l5_worker *worker)
{
    uint64_t begun = 0;
    uint32_t progress = 0;

    for (uint32_t i = 0; i < worker->active;) {
        struct l5_connection *connection = worker->connections[i];

        if (!l5_channel_ready(connection->channel) && !connection->has_work) {
            i++;
            continue;
        }
        if (!begun)
            begun = l5_ticks();
        progress += l5_connection_serve(connection);
        if (connection->finished)
            l5_worker_release(worker, connection);
        else
            i++;
    }
    if (progress) {
        uint64_t now = l5_ticks();

        worker->useful += now - begun;
        worker->empty_scans = 0;
        worker->idle_since = 0;
        keep_up(worker, now);
    }
    return progress;
}

/* Arm every active connection; true when all agreed. */
static int arm_all(struct l5_worker *worker)
{
    for (uint32_t i = worker->active; i-- > 0;)
        l5_worker_idle(worker, worker->connections[i]);
    return worker->active == 0;
}

static void sleep_for_bells(struct l5_worker *worker)
{
    uint64_t begun;
    int timeout_ms = worker->lingering ? LINGER_CHECK_MS : -1;

    if (!arm_all(worker) || l5_load_relaxed(&worker->inbox_full))
        return;
    begun = l5_now_ns();
    l5_worker_listen(worker, timeout_ms);
    l5_bump(&worker->slept_ns, l5_now_ns() - begun);
    l5_bump(&worker->sleeps, 1);
    worker->empty_scans = 0;
    worker->idle_since = 0;
    if (worker->lingering)
        for (uint32_t i = worker->active; i < worker->count; i++)
            if (worker->connections[i]->linger_until_ns)
                l5_worker_activate(worker, worker->connections[i]);
    if (l5_ticks() >= worker->tick_at)
        tick(worker, l5_ticks());
}

/* An empty scan of the adaptive mode: pause, or sleep.  No sched_yield here: since Linux 6.18 it
 * forfeits the rest of the caller's slice, after which a busy neighbour keeps the worker off its CPU
 * for milliseconds, where a sleeper is woken at once. */
static void wait_adaptive(struct l5_worker *worker)
{
    uint64_t spin_ns = worker->service->options.spin_ns;
    uint64_t now, idle;

    if (++worker->empty_scans % SHARE_AFTER) {
        l5_relax();
        return;
    }
    now = l5_ticks();
    if (!worker->idle_since)
        worker->idle_since = now;
    idle = now - worker->idle_since;
    if (idle >= spin_ns * worker->ticks_per_us / 1000 || shares_cpu(worker)) {
        l5_bump(&worker->spun_ns, idle * 1000 / worker->ticks_per_us);
        sleep_for_bells(worker);
    }
    if (now >= worker->tick_at)
        tick(worker, now);
}

static void wait_polling(struct l5_worker *worker)
{
    uint64_t now;

    if (++worker->empty_scans % SHARE_AFTER) {
        l5_relax();
        return;
    }
    now = l5_ticks();
    if (worker->idle_since)
        l5_bump(&worker->spun_ns, (now - worker->idle_since) * 1000 / worker->ticks_per_us);
    worker->idle_since = now;
    if (shares_cpu(worker))
        sched_yield();
    if (now >= worker->tick_at)
        tick(worker, now);
}

void l5_worker_wait(struct l5_worker *worker)
{
    switch (worker->service->options.mode) {
    case L5_POLL:
        wait_polling(worker);
        break;
    case L5_EVENT:
        sleep_for_bells(worker);
        break;
    default:
        wait_adaptive(worker);
        break;
    }
}

#endif
