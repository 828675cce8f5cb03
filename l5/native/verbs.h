/* Setting up RDMA: the rare calls, for cffi. A handle is the library's pointer as a number; 0 is none.
 * All return 0 or -errno, unless they say otherwise. The hot calls are in _verbs.h. */
struct l5_verbs_limits {
    uint64_t region_bytes;
    int queue_depth, completion_depth, sges;
    int rd_atomic, init_rd_atomic; /* reads and atomics that it answers, and that it has outstanding */
    int atomics, ports, windows_type2;
};
struct l5_verbs_port {
    int state, active_mtu, link_layer, lid, gid_count;
};
struct l5_verbs_gid {
    uint8_t raw[16];
    uint32_t index, kind;
};
struct l5_verbs_region {
    uint64_t handle;
    uint32_t lkey, rkey;
};
struct l5_verbs_completions {
    uint64_t handle, channel; /* no channel: it cannot be awaited */
    int depth, fd;
};
struct l5_verbs_queue {
    uint64_t handle;
    uint32_t number, inline_bytes, send_depth, receive_depth, sges; /* asked for, then what it got */
};
struct l5_verbs_path {
    uint8_t gid[16]; /* the peer's */
    uint32_t number, own_psn, psn;
    int own_gid_index, routed, lid, port, mtu, access;
    int rd_atomic, dest_rd_atomic, timeout, retries, rnr_retries, rnr_timer, hop_limit;
};

/* Open the library: NULL, or why it cannot be used. It stays open. */
const char *l5_verbs_load(void);
/* The devices' names, each ended by a newline: how many, -ENOSPC, or another -errno. */
int l5_verbs_devices(char *names, int size);
int l5_verbs_open(const char *name, uint64_t *context);
int l5_verbs_close(uint64_t context);
int l5_verbs_limits(uint64_t context, struct l5_verbs_limits *limits);
int l5_verbs_port(uint64_t context, int number, struct l5_verbs_port *port);
/* The port's GIDs: how many, or -errno; -ENOSYS where the library is too old to tell their kinds. */
int l5_verbs_gids(uint64_t context, int port, struct l5_verbs_gid *gids, int count_max);
int l5_verbs_gid(uint64_t context, int port, int index, uint8_t *raw);
int l5_verbs_domain_create(uint64_t context, uint64_t *domain);
int l5_verbs_domain_destroy(uint64_t domain);
int l5_verbs_region_create(uint64_t domain, uint64_t address, uint64_t length, int access, struct l5_verbs_region *region);
int l5_verbs_region_destroy(uint64_t region);
int l5_verbs_completions_create(uint64_t context, int depth, int events, struct l5_verbs_completions *queue);
/* All its events must have been acknowledged (Completions.retire), or this never returns. */
int l5_verbs_completions_destroy(const struct l5_verbs_completions *queue);
int l5_verbs_queue_create(uint64_t domain, uint64_t send, uint64_t receive, struct l5_verbs_queue *queue);
/* From here on receives may be posted. */
int l5_verbs_queue_open(uint64_t queue, int port, int access);
int l5_verbs_queue_connect(uint64_t queue, const struct l5_verbs_path *path);
int l5_verbs_queue_fail(uint64_t queue);
int l5_verbs_queue_state(uint64_t queue);
int l5_verbs_queue_destroy(uint64_t queue);
