/* Inside a native service.
 *
 * Theory of operation.  A service has one handler and a few workers; a worker is a thread that
 * owns many connections and all that belongs to them, so nothing of a connection is locked:
 *
 *   event loop (Python)                     worker (C, no GIL)
 *     attach  -- inbox, wake eventfd  -->     adopt
 *     drain   <-- done list, done eventfd --  release (client gone, closed, or at fault)
 *     stop    -- stop word, wake eventfd -->  drain all, end  -- ended eventfd -->
 *
 * A worker keeps its connections in one array, the active ones first:
 *
 *   connections  [ active: scanned round robin, at most SERVE_MAX frames each | idle: armed ]
 *
 * An idle connection costs nothing: its client sees the armed word and rings the bell, which is a
 * byte on its socket, which epoll reports.  End-of-file there is the client's death.
 *
 * What waits for what (adaptive mode): a scan that finds nothing is repeated for the spin budget,
 * or not at all when a client last ran on our CPU and needs it to go on; then all active
 * connections are armed, and the worker sleeps in epoll_wait.  A worker that is never idle looks
 * for bells every BELLS_NS, and every SHARE_NS yields to clients that share its CPU: they would
 * otherwise get one turn in a time slice.
 *
 * How busy it is: useful time over wall time.  A worker that never spins has its processor time for it,
 * system calls included, and what it waited for a processor: one whose quota is used up is full (busy.h).
 *
 * Per connection, service_frames.c is the server's half of the protocol:
 *
 *   frames --> run at once from the worker's scratch copy ----------------------> reply
 *        \---> partial (MORE, under credit) --> queue (copies) --> run ---------> reply
 *                                                            reply --> ring, or outs[] (no room,
 *                                                                      no credit), flushed first
 *
 * Every request is answered exactly once (RESPONSE without MORE, or ERROR) unless it is aborted
 * in the middle by its sender.  A connection holds at most in_flight_max of them; copies, partial
 * requests and unsent answers of all connections together hold at most stored_bytes_max: beyond
 * that a request is answered by the error Overloaded.
 */
#ifndef L5_SERVICE_INTERNAL_H
#define L5_SERVICE_INTERNAL_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "busy.h"
#include "channel.h"
#include "l5_handler.h"
#include "l5_service.h"

enum {
    SERVE_MAX = 8,        /* frames of one connection per scan */
    OUTS_MAX = 4,         /* unsent answers of one connection */
    EVENTS_MAX = 64,
    SHARE_AFTER = 8,      /* empty scans before the CPU of the clients is looked at */
    KEEP_BYTES = 1 << 20, /* a reply buffer larger than this is not kept */
    BELLS_NS = 50000,
    SHARE_NS = 1000000,   /* how often a worker that is never idle gives its slice away */
    TICK_NS = 10000000,   /* when there are no heartbeats */
    LINGER_NS = 1000000000,
    LINGER_CHECK_MS = 10,
    WORKERS_MAX = 256,
    L5_SEGMENT_MIN = 256, /* the least that two ends may agree on */
};

enum l5_mode { L5_POLL = 0, L5_EVENT = 1, L5_ADAPTIVE = 2 };

/* Why a request is not handled but answered by an error of our own. */
enum l5_verdict { L5_SOUND = 0, L5_CANCELLED, L5_OVERLOADED, L5_TOO_LARGE, L5_EXPIRED, L5_VERDICTS };

/* A request that is not complete, or waits for its turn. */
struct l5_inbound {
    struct l5_inbound *next;
    uint64_t id;
    uint64_t deadline_ns;
    uint8_t *data;
    size_t size;       /* of data; less than what arrived when the verdict is not L5_SOUND */
    size_t capacity;   /* counted in stored_bytes */
    uint64_t arrived;  /* payload bytes of all its frames */
    uint64_t allowed;  /* how far arrived may go */
    uint8_t verdict;
    uint8_t credit_due;
};

/* An answer, or what is left of it. */
struct l5_outbound {
    uint64_t id;
    uint8_t *data;
    size_t size;
    size_t sent;       /* of data */
    size_t capacity;   /* counted in stored_bytes once it is kept */
    uint64_t before;   /* bytes of the answer that went out before data */
    uint64_t allowed;  /* credit, cumulative */
    size_t record_bytes;
    size_t record_offset;
    uint8_t failed;    /* data is an ERROR payload */
    uint8_t verdict;   /* not L5_SOUND: an ERROR of our own, no data */
};

struct l5_connection {
    struct l5_channel *channel;
    uint32_t has_work;   /* look at it even if its ring is empty */
    uint32_t in_flight;
    struct l5_worker *worker;
    struct l5_connection *next; /* in inbox or done list */
    uint64_t number;
    uint64_t frames;     /* read; */
    uint64_t frames_seen; /* at the last tick */
    struct l5_inbound *partials;
    struct l5_inbound *queue, **queue_end;
    struct l5_outbound outs[OUTS_MAX];
    uint32_t out_count;
    uint32_t credits_due;
    uint32_t index;      /* in the worker's array */
    uint8_t space_blocked;
    uint8_t armed;
    uint8_t eof;         /* the client is gone */
    uint8_t closing;     /* the client said CLOSE */
    uint8_t draining;    /* the service stops */
    uint8_t finished;
    uint64_t linger_until_ns;
    uint64_t beat_at_ns; /* when its next heartbeat is due */
    const char *fault;
    struct l5_service_peer peer;
};

/* What a handler writes into, and who it is for. */
struct l5_answering {
    struct l5_reply reply;
    struct l5_connection *connection; /* NULL: a call from the event loop */
    uint64_t id;
    uint64_t allowed;
    uint32_t error_max; /* bytes of an ERROR payload */
    uint32_t failed;
};

struct l5_worker {
    struct l5_service *service;
    struct l5_connection **connections;
    uint32_t active, count, room;
    uint32_t index;
    uint32_t empty_scans;
    uint8_t *scratch;
    size_t scratch_bytes;
    struct l5_answering answering;
    int epoll, wake;
    int schedstat; /* of this thread, in /proc; -1: not known */
    int draining;
    pthread_t thread;
    int started;
    /* clocks, in ticks but where the name says ns */
    uint64_t idle_since, tick_at, bells_at, share_at, useful, tick_ticks, tick_ns;
    uint64_t ticks_per_us;
    struct l5_busy claims; /* of a worker that does not spin */
    double busy;
    uint64_t sequence;
    uint32_t lingering;
    /* with the event loop */
    pthread_mutex_t lock;
    struct l5_connection *inbox;
    int inbox_closed;
    l5_word inbox_full;
    l5_word load; /* connections, those in the inbox included */
    /* statistics: this worker writes, anyone reads */
    l5_word requests, errors, faults, busy_millionths, spun_ns, slept_ns, sleeps, bells_rung, bells_heard;
};

struct l5_service {
    struct l5_service_options options;
    l5_handler handler;
    void *state;
    struct l5_worker *workers;
    l5_word stored_bytes;
    l5_word stopping;
    l5_word stop_at_ns;
    l5_word ended;
    l5_word accepted;
    l5_word quota_millionths; /* of processors; 0: none */
    char quota_stat[512]; /* where its periods are counted; under the lock */
    int done_fd, ended_fd;
    pthread_mutex_t lock;
    struct l5_connection *done; /* let go of, not drained yet */
};

/* service_frames.c */
uint32_t l5_connection_serve(struct l5_connection *connection);

/* service_settle.c */
void l5_connection_clear(struct l5_connection *connection);
void l5_connection_break(struct l5_connection *connection, const char *fault);
void l5_connection_drop(struct l5_connection *connection, uint32_t at);
int l5_connection_can_run(const struct l5_connection *connection);
void l5_connection_run(struct l5_connection *connection, uint64_t id, uint64_t deadline_ns, const uint8_t *data,
                       size_t size);
uint32_t l5_connection_settle(struct l5_connection *connection);
void l5_inbound_free(struct l5_connection *connection, struct l5_inbound *inbound);
void l5_inbound_refuse(struct l5_connection *connection, struct l5_inbound *inbound, enum l5_verdict verdict);
void l5_outbound_clear(struct l5_connection *connection, struct l5_outbound *out);

/* service_reply.c */
void l5_answering_init(struct l5_answering *answering, struct l5_connection *connection, uint32_t error_max);
void l5_answering_begin(struct l5_answering *answering, uint64_t id, size_t limit, uint64_t allowed);
void l5_answering_run(struct l5_answering *answering, struct l5_service *service, struct l5_request *request);
void l5_answering_trim(struct l5_answering *answering);
uint32_t l5_verdict_pack(int verdict, uint8_t *payload, uint32_t room);
size_t l5_outbound_cut(const struct l5_outbound *out, size_t segment_bytes, uint64_t credit_bytes);
int l5_outbound_push(struct l5_outbound *out, struct l5_connection *connection);
int l5_store_take(struct l5_service *service, size_t bytes);
void l5_store_give(struct l5_service *service, size_t bytes);

/* service_worker.c */
int l5_worker_init(struct l5_worker *worker, struct l5_service *service, uint32_t index);
void l5_worker_close(struct l5_worker *worker);
void *l5_worker_main(void *worker);
void l5_worker_activate(struct l5_worker *worker, struct l5_connection *connection);
int l5_worker_idle(struct l5_worker *worker, struct l5_connection *connection);
void l5_worker_release(struct l5_worker *worker, struct l5_connection *connection);
void l5_worker_listen(struct l5_worker *worker, int timeout_ms);

/* service_wait.c */
uint32_t l5_worker_scan(struct l5_worker *worker);
void l5_worker_wait(struct l5_worker *worker);

/* A counter that one thread writes. */
static inline void l5_bump(l5_word *counter, uint64_t by)
{
    l5_store_relaxed(counter, l5_load_relaxed(counter) + by);
}

/* A clock of unknown but constant rate, for shares: a third of the cost of l5_now_ns. */
static inline uint64_t l5_ticks(void)
{
#if defined(L5_TICKS) /* a model in which time stands still */
    return L5_TICKS;
#elif defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;

    __asm__ __volatile__("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return l5_now_ns();
#endif
}

#endif
