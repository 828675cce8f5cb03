/* Inside the part of the core that knows Python: `_fast.c`, `_ring.c`, `_ring_hot.c`, `_ring_{rest,sleep}.c`, `_slot.c`,
 * `_poller*.c`, `_serve.c`, `_members.c`, `_memory.c`, `_beat.c`, `_spot.c`, `_lane*.c`.
 *
 * Only these files include Python.h.  They are compiled into the module that cffi builds;
 * `l5_install_fast` (_fast.c), called once through cffi, puts a module `l5._fast` with these types
 * into sys.modules:
 *
 *   Ring    one channel over shared memory, with the counters that flow control needs
 *   Poller  all rings of one event loop: scanning, spinning, fairness
 *   Slot    a buffer exporter over a message in place (lease) or to be (reserve)
 *   Memory  a mapping of remote memory, or of one's own that others read (region.h)
 *   Lane    the short way of small requests over a plain socket (_lane.h)
 *   Beat    (not in the module) what the server at the other end says of its load; of Ring.heartbeat
 *
 * Why not plain cffi calls: a cffi call with a buffer costs about 200 ns and always releases the
 * GIL; with a computing thread in the process, getting it back costs up to the switch interval
 * (5 ms).  Here the GIL is kept for sends, polls and the first GIL_HOLD_NS of a spin, and released
 * for longer waits.
 *
 * Calls into C per message: a client's request is one (write, wake if armed, spin, copy out).  On
 * the server `Poller.serve` scans, calls the handler, answers and scans on: one call into C for as
 * many requests as the event loop may wait for.
 */
#ifndef L5_FAST_H
#define L5_FAST_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <structmember.h>

#include "_latency.h"
#include "channel.h"

enum {
    GIL_HOLD_NS = 20000,
    GIL_DEAR_NS = 200000,    /* ... while another thread computes (_poller_gil.c) */
    LOST_MIN_NS = 1000000,   /* who has the GIL back only then has met such a thread, */
    LOST_MAX_NS = 10000000,  /* and reckons with so long a time at most, */
    LOST_MEMORY_NS = 50000000, /* and after that one tries whether it is still there */
    LOOP_BACK_NS = 1000000,  /* having it back, before the event loop may run */
    PATIENCE_MAX_NS = 30000000, /* the event loop runs after so long, lost or not */
    GIL_BACK_NS = 1000000,   /* a wait that begins so soon after is a long one */
    GIL_TURN_NS = 100000,    /* without it, until a thread that wants it is up */
    TURNS_EVERY_MAX = 16,    /* waits without a turn after several that were in vain */
    KEEPS_PAUSE = 4,         /* waits that are not long after a long one in vain */
    SLEPT_MAX_NS = 40000000, /* a sleep that took longer was not only for the GIL */
    SLEEPS_JUDGED = 8,       /* shorter ones in a row, before they are judged */
    NEAR_WAITS = 4,          /* waits near a client before a server leaves the CPU */
    BATCH_MAX = 256,         /* requests that one call of request_many sends, however long they take */
    STREAK_MAX = 64,         /* messages before the event loop must run */
    TURN_MIN_NS = 50000,     /* handling requests, however many, before it must */
    TURN_MAX_NS = 500000,    /* the same, however few */
    SLOW_HANDLER_NS = 10000, /* from here on the clock is read for every request */
    CLOCK_EVERY_MAX = 16,    /* else for one in so many: reading it costs as much as a cache line */
    SPUN_MAX_NS = 100000,    /* spinning before the event loop must run */
    YIELDED_MAX_NS = 4000000, /* yielding: others have the CPU meanwhile, and caches to be filled again */
    YIELD_LONG_NS = 1200000, /* a yield that takes longer has let a stranger run, */
    YIELD_EACH_NS = 1200000, /* or others of the crowd, so much longer for each, */
    YIELD_PAUSE = 4,         /* and there is none for so many times what it took, */
    YIELD_PAUSE_MAX = 64,    /* or twice as many each time that it happens again */
    CROWD_NS = 4000,         /* a yield that takes longer has let others run */
    CROWD_TURN_NS = 1000000, /* a client of a crowd yields after so long */
    CROWD_WAITS = 4,         /* waits in vain, one after another, before the server of a crowd sleeps */
    MOVE_NS = 1000000,       /* between two moves to another CPU: the scheduler may move us back */
    TURN_SHARE = 2,          /* answers to each client on another CPU before those on ours have a turn */
    NEAR_SPIN_NS = 3000,     /* a spin while some peers are on our own CPU, before they have it */
    MIXED_SPIN_NS = 20000,   /* and in all, when they did not want it */
    FRAME_COST = 64,         /* what a data message costs of its window beside its payload */
    COLD_BYTES = 4 << 20,    /* a target filled further than that in a row is in no cache */
    RINGS_MAX = 65536,
    FILL_STEPS_MAX = 1024,   /* messages that `fill` counts */
    REST_ABOVE = 16,         /* with more rings than that, the silent ones are not scanned */
    REST_EVERY = 256,        /* turns of the event loop between two looks at who is silent */
};

/* Who may use a ring: the thread that made it; or any thread that holds the connection's lock, and
 * then the hot methods stand back while its holder is in the middle of something (a signal handler
 * may come in there, in the same thread). */
enum sharing { ONE_THREAD = 0, LOCKED = 1, LOCKED_INSIDE = 2 };

typedef struct Poller Poller;
typedef struct Spot Spot; /* _spot.h */
typedef struct Lane Lane; /* _lane.h */
typedef struct Ring Ring;

struct Ring {
    PyObject_HEAD
    struct l5_channel channel;
    Poller *poller;       /* strong, while added */
    uint32_t at;          /* its place in the poller */
    uint64_t frames_seen; /* frames_received when the poller last looked who is silent */
    PyObject *session;    /* strong, while added: whose frames these are */
    PyObject *server;     /* strong: who takes requests from this ring, or NULL */
    PyObject *last;       /* strong, when shared: what receive (or receive_into) returned last, or NULL */
    unsigned long thread; /* ident of the owner: one thread uses a connection */
    int shared;           /* see enum sharing */
    int open;
    int strict;
    uint64_t file;        /* what tells its memory from any other of this system */
    Ring *other_end;      /* of the same connection and in the same poller, or NULL */
    Py_ssize_t exports;   /* live slots: the mapping must stay */
    uint64_t next_id;
    uint64_t in_flight, in_flight_max;     /* our requests without an answer */
    uint64_t handling, handling_max;       /* the peer's requests without an answer */
    uint64_t data_sent, data_allowed;      /* flow control of DATA, cumulative cost */
    uint64_t data_arrived, data_taken, data_told, data_window;
    uint64_t peer_window;  /* the peer's data window */
    uint64_t spin_ns;      /* budget of this connection's own waits */
    unsigned int queued;   /* tasks that wait for room: the hot path does not push in before them */
    unsigned int partials; /* half-received messages: a frame without MORE may be the end of one */
    int sends_on;          /* (serving) its next request was there before it could have had our answer */
    int credit_owed;       /* a CREDIT found no room: the generic path sends it */
    uint64_t frames_sent, frames_received, bytes_sent, bytes_received, calls;
    const char *target_end; /* behind what receive_into wrote last; */
    uint64_t target_run;    /* bytes that it wrote in a row before */
    uint64_t requests;     /* sent */
    uint64_t answered;     /* requests answered by Poller.serve */
    uint64_t *latencies;   /* while somebody watches: a histogram; else NULL */
    uint64_t begun_ns;     /* (watched) when the last request was sent, or taken to be handled */
    uint64_t taken;        /* id of the answer that await_answer took last */
    uint64_t slept_ns;     /* how long the last of _ring_sleep.c's calls slept */
};

struct Poller {
    PyObject_HEAD
    struct l5_channel **channels; /* [ count: scanned, spun for | resting: armed, their bell stirs them | ] */
    Ring **rings;                 /*   the same order                                    total, room   */
    uint32_t count, total, room, cursor;
    uint32_t inner;        /* connections of which both ends are here */
    char spinning;         /* the GIL may be released: no one else may come in */
    uint32_t streak;
    uint32_t breaths;      /* how often the loop ran */
    uint64_t spun_ns, yielded_ns; /* since the loop last ran */
    uint64_t spun_total_ns, spins;     /* what waiting cost; counted where nothing was there yet */
    uint64_t yielded_total_ns, yields;
    uint64_t yield_after_ns; /* no yielding before */
    uint32_t yield_pause;  /* for how many times what the next long one takes; 0: the last was not long */
    int crowded;           /* others ran when we yielded last, and gave the CPU back */
    uint32_t crowd;        /* clients of our server, as it says, this one included */
    uint32_t serving;      /* our own clients in use */
    uint32_t movable;      /* CPUs of the machine, if we may leave one; 0: never */
    uint32_t waits;        /* in vain, since a message came */
    uint64_t moves, move_after_ns, turn_since_ns;
    int owes_turn;         /* a peer on our CPU is awake and has its answer, but not the CPU */
    uint32_t since_turn, turn_every; /* answers to peers elsewhere since such a one had it, and how many they get */
    uint64_t turn_ns;      /* when the clock was first read in this turn of the loop; 0: not yet */
    uint64_t clock_ns;     /* when it was last read */
    uint32_t clock_every, clock_in;
    int overdue;
    uint64_t patient_until_ns; /* the event loop may wait until then, whatever was handled: see _wait.py */
    uint64_t patient_since_ns; /* its patience began; it ends when the loop runs */
    uint64_t dear_until_ns;    /* another thread computes, as far as we know: _poller_gil.c */
    uint64_t lost_ns;          /* how long the GIL was gone when that was last measured */
    uint64_t here_ns, back_ns; /* when we last looked at the clock, and did so after having been away */
    uint32_t turns_in, turns_every; /* waits until the GIL may be given away again, and after the next in vain */
    int beside;                /* a peer was, or is, in this process: in a thread that wants the GIL, or in ours */
    uint32_t keeps_in;         /* waits until one may be long again */
    uint32_t near_waits;       /* since the last move */
    uint32_t long_sleeps;      /* in a row, */
    uint64_t kernel_waits;     /* and what was waited for before the first */
    uint64_t turns;            /* how often a spin let go of the GIL */
    uint64_t budget_ns;
    uint64_t rest_ns;      /* when its loop went to sleep over one ring: _ring_rest.c */
    uint64_t rests, rested_ns; /* how often it did, and for how long */
    int yield_only;        /* one CPU, or a small quota: spinning would take the peer's time */
    int shared;            /* see enum sharing */
    unsigned long thread;
    Spot **spots;          /* strong: what else is looked at */
    uint32_t spot_count, spot_room, spot_cursor;
    Lane **lanes;          /* strong, by descriptor: where sockets have a short way */
    Lane *hot, **hot_end;  /* a queue: those that have requests, or may have; served in turn */
    uint32_t lane_room, lane_count, hot_count;
    int lanes_wait;        /* a ring was handed to Python last time: their turn is first */
};

typedef struct {
    PyObject_HEAD
    Ring *ring;
    void *data;
    Py_ssize_t size;
    int writable;          /* a reservation; else a lease */
    int done;              /* sent, discarded or given back */
    int doomed;            /* left with live exports: give back when they die */
    Py_ssize_t exports;
    PyObject *freed;       /* strong: called when a doomed one is given back, or NULL */
} Slot;

/* _fast.c: the exceptions that the package has given us */
extern PyObject *l5_RemoteProtocolError, *l5_ClosedResourceError, *l5_BrokenResourceError, *l5_BusyResourceError;
extern PyObject *l5_RemoteAccessError;
extern PyTypeObject l5_RingType, l5_PollerType, l5_SlotType, l5_MemoryType, l5_BeatType;
extern PyTypeObject l5_LatenciesType;
extern PyTypeObject l5_AdaptiveType;

/* _policy_calls.c */
enum { L5_OBSERVE_MAX = 5 };
extern PyObject *l5_policy_paths[2];
PyObject *l5_policy_set_paths(PyObject *module, PyObject *args);
/* The arguments of `observe`, in their order, NULL where there is none; -1 with an error set. */
int l5_policy_observed(PyObject **all, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* _ring.c */
PyObject *l5_ring_raise(Ring *self, int rc);
int l5_ring_get_payload(Ring *self, PyObject *object, Py_buffer *view);
void l5_ring_unmap(Ring *self);

/* _ring_hot.c */
int l5_ring_peek(Ring *self, struct l5_frame *frame);
PyObject *l5_ring_take(Ring *self, const struct l5_frame *frame);
int l5_ring_send_frame(Ring *self, int kind, int flags, uint64_t id, const Py_buffer *view);
int l5_ring_send_bytes(Ring *self, int kind, int flags, uint64_t id, const void *bytes, Py_ssize_t size);
void l5_ring_data_taken(Ring *self, uint64_t size);
void l5_ring_data_arrived(Ring *self, uint64_t size);
int l5_ring_take_bell(Ring *self);
PyObject *l5_ring_hush(Ring *self, PyObject *ignored);
PyObject *l5_ring_collect(Ring *self, PyObject *id);
PyObject *l5_ring_answers(Ring *self, PyObject *limit);
PyObject *l5_ring_request(Ring *self, PyObject *payload);
PyObject *l5_ring_send(Ring *self, PyObject *payload);
PyObject *l5_ring_receive(Ring *self, PyObject *const *args, Py_ssize_t count);
PyObject *l5_ring_receive_into(Ring *self, PyObject *const *args, Py_ssize_t count);
PyObject *l5_ring_take_data(Ring *self, const struct l5_frame *frame);

/* _ring_rest.c */
void l5_poller_rested(Poller *self);
PyObject *l5_ring_rest(Ring *self, PyObject *ignored);
PyObject *l5_ring_rested(Ring *self, PyObject *id);

/* _ring_watch.c */
PyObject *l5_ring_watch(Ring *self, PyObject *on);
PyObject *l5_ring_latencies(Ring *self, PyObject *ignored);
PyObject *l5_ring_fill(Ring *self, PyObject *ignored);

/* _ring_sleep.c */
extern const char l5_await_answer_doc[], l5_await_data_doc[];
PyObject *l5_ring_await_answer(Ring *self, PyObject *const *args, Py_ssize_t count);
PyObject *l5_ring_await_data(Ring *self, PyObject *const *args, Py_ssize_t count);

/* _ring_many.c */
PyObject *l5_ring_request_many(Ring *self, PyObject *const *args, Py_ssize_t count);
PyObject *l5_ring_receive_many(Ring *self, PyObject *limit);
PyObject *l5_ring_longest(Ring *self, PyObject *payloads);

/* _beat.c */
PyObject *l5_ring_heartbeat(Ring *self, PyObject *interval);
PyObject *l5_ring_tell(Ring *self, PyObject *const *args, Py_ssize_t count);

/* _slot.c */
PyObject *l5_ring_reserve(Ring *self, PyObject *size);
PyObject *l5_ring_lease(Ring *self, PyObject *ignored);

/* _poller_gil.c */
int l5_peer_beside(int fd);
int l5_poller_patience_over(Poller *self);
void l5_poller_be_patient(Poller *self, uint64_t now, uint64_t for_ns);
int l5_poller_gil_dear(Poller *self);
void l5_poller_note_here(Poller *self, uint64_t now);
int l5_poller_look_without_gil(Poller *self, uint64_t budget, uint64_t *spent);
int l5_poller_spin_dear(Poller *self, uint64_t budget, uint64_t *spent);
void l5_poller_lost(Poller *self, uint64_t ns);
PyObject *l5_poller_note_lost(Poller *self, PyObject *ns);
PyObject *l5_poller_slept(Poller *self, PyObject *ns);
void l5_poller_note_slept(Poller *self, uint64_t ns);

/* _poller_wait.c */
int l5_poller_look(Poller *self, uint64_t budget, uint64_t *spent);
int l5_poller_wait(Poller *self, uint64_t budget);
void l5_poller_give_turn(Poller *self);
void l5_poller_look_around(Poller *self);

/* _spot.c */
int l5_spots_news(const Poller *self);
int l5_spots_spin(Poller *self, uint64_t budget_ns, uint64_t *spent_ns);
int l5_spots_append(Poller *self, PyObject *list);
PyObject *l5_spots_next(Poller *self);
PyObject *l5_poller_add_spot(Poller *self, PyObject *const *args, Py_ssize_t count);
PyObject *l5_poller_remove_spot(Poller *self, PyObject *spot);
void l5_poller_drop_spot(Poller *self, Spot *spot);

/* _poller.c */
void l5_note_handled(Poller *self);
void l5_poller_breathe(Poller *self);

/* _serve.c */
PyObject *l5_caught(void);
PyObject *l5_hand_up(const char *what, PyObject *source, uint64_t id, PyObject *first, PyObject *second);
int l5_handle(PyObject *source, uint64_t id, PyObject *payload, PyObject *handler, PyObject **up);

/* _lanes.c */
extern const char l5_glance_doc[];
PyObject *l5_lanes_turn(Poller *self, PyObject *server, PyObject *handler, int *progress);
PyObject *l5_poller_add_lane(Poller *self, PyObject *const *args, Py_ssize_t count);
PyObject *l5_poller_remove_lane(Poller *self, PyObject *lane);
PyObject *l5_poller_glance(Poller *self, PyObject *const *args, Py_ssize_t count);

/* _members.c */
int l5_poller_ok(Poller *self);
PyObject *l5_poller_add(Poller *self, PyObject *const *args, Py_ssize_t count);
PyObject *l5_poller_remove(Poller *self, PyObject *ring);
void l5_poller_drop(Poller *self, Ring *ring);
void l5_poller_stir(Ring *ring);
void l5_poller_rest(Poller *self);
uint64_t l5_file_number(int fd);
PyObject *l5_ring_get_server_here(Ring *self, void *closure);
int l5_poller_serves_itself(const Poller *self);

static inline int l5_ring_ready(Ring *self)
{
    if (!self->open) {
        PyErr_SetNone(l5_ClosedResourceError);
        return 0;
    }
    if ((!self->shared && self->thread != PyThread_get_thread_ident()) ||
        (self->poller && self->poller->spinning)) {
        PyErr_SetString(l5_BusyResourceError,
                        "using (in its event loop's thread, to which a connection belongs)");
        return 0;
    }
    self->calls++;
    return 1;
}

/* Latencies are measured while somebody watches, at the price of reading the clock twice. */
static inline void l5_ring_begin_latency(Ring *self)
{
    if (self->latencies)
        self->begun_ns = l5_now_ns();
}

static inline void l5_ring_end_latency(Ring *self)
{
    if (self->latencies)
        self->latencies[l5_latency_index(l5_now_ns() - self->begun_ns)]++;
}

/* What a data message costs of the window.  Half a window at most, so that a message larger than
 * the window can be sent at all: the receiver may owe credit for up to half a window. */
static inline uint64_t l5_data_cost(uint64_t size, uint64_t window)
{
    uint64_t cost = size + FRAME_COST;

    return cost < window / 2 ? cost : window / 2;
}

/* Tell whether the event loop must run before the next message. */
static inline int l5_poller_due(Poller *self)
{
    if (self->streak < STREAK_MAX && self->spun_ns < SPUN_MAX_NS && self->yielded_ns < YIELDED_MAX_NS)
        return self->overdue;
    return self->overdue || !self->patient_until_ns || l5_poller_patience_over(self);
}

#endif
