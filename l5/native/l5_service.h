/* Native services as Python sees them; this file is also a cffi cdef, hence plain declarations.
 *
 * All functions return 0 (or a count) or -errno.  Addresses travel as integers.  Every function
 * belongs to the thread of the event loop but l5_service_call, which any thread may use. */
struct l5_service_options {
    uint64_t handler; /* address of an l5_handler, see l5_handler.h */
    uint64_t state;
    uint32_t workers;
    uint32_t mode; /* 0 poll, 1 event, 2 adaptive */
    uint64_t spin_ns;
    uint64_t heartbeat_ns;
    uint64_t request_bytes_max;
    uint64_t stored_bytes_max; /* long requests and unsent answers of all connections together */
};

/* One connection: its channel and what its two ends agreed on. */
struct l5_service_peer {
    uint64_t channel; /* address of a struct l5_channel; must stay until the connection is done */
    int bell;
    uint32_t in_flight_max;
    uint32_t send_segment_bytes;
    uint64_t send_credit_bytes;
    uint64_t send_message_bytes;
    uint64_t receive_credit_bytes;
    uint64_t receive_message_bytes;
    uint64_t heartbeat_ns; /* how often it wants to know how busy its worker is; 0: never */
};

/* A connection that the service has let go of. */
struct l5_service_done {
    uint64_t connection;
    const char *fault; /* what the client did against the protocol, or NULL */
};

struct l5_service_answer {
    int failed; /* 1: data is the payload of an ERROR frame */
    uint8_t *data;
    uint64_t size;
    uint64_t capacity;
};

struct l5_service_statistics {
    uint64_t requests; /* answered, errors included */
    uint64_t errors;
    uint64_t connections;
    uint64_t accepted;
    uint64_t faults; /* connections ended because the client broke the protocol */
    uint64_t stored_bytes;
    uint64_t busy_millionths; /* mean over the workers */
    uint64_t spun_ns;
    uint64_t slept_ns;
    uint64_t sleeps;
    uint64_t bells_rung;  /* clients that had to be woken */
    uint64_t bells_heard;
};

/* struct l5_handler_entry of l5_handler.h, with its pointers as numbers. */
struct l5_service_entry {
    uint32_t struct_bytes;
    uint32_t reserved;
    uintptr_t handler;
    uintptr_t state;
};

struct l5_service;

int l5_service_new(const struct l5_service_options *options, struct l5_service **service);
int l5_service_start(struct l5_service *service);
int l5_service_attach(struct l5_service *service, const struct l5_service_peer *peer, uint64_t *connection);
int l5_service_done_fd(struct l5_service *service);
int l5_service_drain(struct l5_service *service, struct l5_service_done *done, uint32_t room);
int l5_service_call(struct l5_service *service, const uint8_t *data, uint64_t size, uint64_t deadline_ns,
                    uint64_t limit, struct l5_service_answer *answer);
void l5_service_hang_up(int bell);
void l5_service_answer_free(struct l5_service_answer *answer);
void l5_service_stop(struct l5_service *service, uint64_t grace_ns);
int l5_service_ended_fd(struct l5_service *service);
int l5_service_ended(struct l5_service *service);
void l5_service_free(struct l5_service *service);
/* How many processors a quota of this process is worth, in millionths (0: none), and the file in which
 * the kernel counts its periods ("": not known). */
void l5_service_set_quota(struct l5_service *service, uint64_t millionths, const char *stat);
void l5_service_count(struct l5_service *service, struct l5_service_statistics *statistics);
