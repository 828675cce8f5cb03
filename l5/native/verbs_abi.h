/* What we use of libibverbs.so.1, in our own declarations.
 *
 * The library is opened when RDMA is first asked for (verbs.c), so that neither building nor
 * importing l5 needs it. Its interface is the kernel's and has been frozen since the library's
 * symbols got the version IBVERBS_1.1: fields are only ever added behind those that stand here.
 * tests/rdma/test_verbs_abi.py compares every size, offset and number with the library's own header
 * where that is installed.
 *
 * Three calls of the hot path and the arming of a queue are no functions of the library: they are
 * found in the context's table (`ops`), which a device's driver fills.
 *
 *   l5v_context ── ops ── poll_cq, req_notify_cq, post_send, post_recv
 *       ^  ^
 *       |  +── l5v_cq
 *       +───── l5v_qp
 */
#ifndef L5_VERBS_ABI_H
#define L5_VERBS_ABI_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct l5v_device; /* opaque */
struct l5v_cq;
struct l5v_qp;
struct l5v_send_wr;
struct l5v_recv_wr;
struct l5v_wc;

struct l5v_context_ops {
    void *old_setup[7]; /* entries that the library keeps for programs older than 1.1 */
    void *memory_windows[3];
    void *old_create_cq;
    int (*poll_cq)(struct l5v_cq *cq, int count, struct l5v_wc *wc);
    int (*req_notify_cq)(struct l5v_cq *cq, int solicited_only);
    void *old_cq_srq[7];
    void *post_srq_recv;
    void *old_qp[4];
    int (*post_send)(struct l5v_qp *qp, struct l5v_send_wr *wr, struct l5v_send_wr **bad);
    int (*post_recv)(struct l5v_qp *qp, struct l5v_recv_wr *wr, struct l5v_recv_wr **bad);
    void *old_rest[5];
};

struct l5v_context {
    struct l5v_device *device;
    struct l5v_context_ops ops;
    int cmd_fd;
    int async_fd;
    int num_comp_vectors;
    pthread_mutex_t mutex;
    void *abi_compat;
};

struct l5v_pd {
    struct l5v_context *context;
    uint32_t handle;
};

struct l5v_mr {
    struct l5v_context *context;
    struct l5v_pd *pd;
    void *addr;
    size_t length;
    uint32_t handle;
    uint32_t lkey;
    uint32_t rkey;
};

struct l5v_comp_channel {
    struct l5v_context *context;
    int fd;
    int refcnt;
};

struct l5v_cq {
    struct l5v_context *context;
    struct l5v_comp_channel *channel;
    void *cq_context;
    uint32_t handle;
    int cqe;
    /* locks and counters follow */
};

struct l5v_qp {
    struct l5v_context *context;
    void *qp_context;
    struct l5v_pd *pd;
    struct l5v_cq *send_cq;
    struct l5v_cq *recv_cq;
    void *srq;
    uint32_t handle;
    uint32_t qp_num;
    int state;
    int qp_type;
    /* locks and counters follow */
};

struct l5v_sge {
    uint64_t addr;
    uint32_t length;
    uint32_t lkey;
};

struct l5v_send_wr {
    uint64_t wr_id;
    struct l5v_send_wr *next;
    struct l5v_sge *sg_list;
    int num_sge;
    int opcode;
    unsigned int send_flags;
    uint32_t imm_data; /* big-endian */
    union {
        struct {
            uint64_t remote_addr;
            uint32_t rkey;
        } rdma;
        struct {
            uint64_t remote_addr;
            uint64_t compare_add;
            uint64_t swap;
            uint32_t rkey;
        } atomic;
    } wr;
    uint32_t remote_srqn;
    uint64_t window_or_tso[6]; /* of requests that we do not make */
};

struct l5v_recv_wr {
    uint64_t wr_id;
    struct l5v_recv_wr *next;
    struct l5v_sge *sg_list;
    int num_sge;
};

struct l5v_wc {
    uint64_t wr_id;
    int status;
    int opcode;
    uint32_t vendor_err;
    uint32_t byte_len;
    uint32_t imm_data; /* big-endian */
    uint32_t qp_num;
    uint32_t src_qp;
    unsigned int wc_flags;
    uint16_t pkey_index;
    uint16_t slid;
    uint8_t sl;
    uint8_t dlid_path_bits;
};

struct l5v_qp_cap {
    uint32_t max_send_wr;
    uint32_t max_recv_wr;
    uint32_t max_send_sge;
    uint32_t max_recv_sge;
    uint32_t max_inline_data;
};

struct l5v_qp_init_attr {
    void *qp_context;
    struct l5v_cq *send_cq;
    struct l5v_cq *recv_cq;
    void *srq;
    struct l5v_qp_cap cap;
    int qp_type;
    int sq_sig_all;
};

struct l5v_global_route {
    uint64_t dgid[2]; /* 16 bytes, aligned as a union with 64-bit halves is */
    uint32_t flow_label;
    uint8_t sgid_index;
    uint8_t hop_limit;
    uint8_t traffic_class;
};

struct l5v_ah_attr {
    struct l5v_global_route grh;
    uint16_t dlid;
    uint8_t sl;
    uint8_t src_path_bits;
    uint8_t static_rate;
    uint8_t is_global;
    uint8_t port_num;
};

struct l5v_qp_attr {
    int qp_state;
    int cur_qp_state;
    int path_mtu;
    int path_mig_state;
    uint32_t qkey;
    uint32_t rq_psn;
    uint32_t sq_psn;
    uint32_t dest_qp_num;
    unsigned int qp_access_flags;
    struct l5v_qp_cap cap;
    struct l5v_ah_attr ah_attr;
    struct l5v_ah_attr alt_ah_attr;
    uint16_t pkey_index;
    uint16_t alt_pkey_index;
    uint8_t en_sqd_async_notify;
    uint8_t sq_draining;
    uint8_t max_rd_atomic;
    uint8_t max_dest_rd_atomic;
    uint8_t min_rnr_timer;
    uint8_t port_num;
    uint8_t timeout;
    uint8_t retry_cnt;
    uint8_t rnr_retry;
    uint8_t alt_port_num;
    uint8_t alt_timeout;
    uint32_t rate_limit; /* newer than the rest: an older library does not look at it */
};

struct l5v_port_attr {
    int state;
    int max_mtu;
    int active_mtu;
    int gid_tbl_len;
    uint32_t port_cap_flags;
    uint32_t max_msg_sz;
    uint32_t bad_pkey_cntr;
    uint32_t qkey_viol_cntr;
    uint16_t pkey_tbl_len;
    uint16_t lid;
    uint16_t sm_lid;
    uint8_t lmc;
    uint8_t max_vl_num;
    uint8_t sm_sl;
    uint8_t subnet_timeout;
    uint8_t init_type_reply;
    uint8_t active_width;
    uint8_t active_speed;
    uint8_t phys_state;
    uint8_t link_layer;
    uint8_t flags;
    uint16_t port_cap_flags2;
};

struct l5v_device_attr {
    char fw_ver[64];
    uint64_t node_guid;
    uint64_t sys_image_guid;
    uint64_t max_mr_size;
    uint64_t page_size_cap;
    uint32_t vendor_id;
    uint32_t vendor_part_id;
    uint32_t hw_ver;
    int max_qp;
    int max_qp_wr;
    unsigned int device_cap_flags;
    int max_sge;
    int max_sge_rd;
    int max_cq;
    int max_cqe;
    int max_mr;
    int max_pd;
    int max_qp_rd_atom;
    int max_ee_rd_atom;
    int max_res_rd_atom;
    int max_qp_init_rd_atom;
    int max_ee_init_rd_atom;
    int atomic_cap;
    int counts[14]; /* of what we do not use: max_ee .. max_srq_sge */
    uint16_t max_pkeys;
    uint8_t local_ca_ack_delay;
    uint8_t phys_port_cnt;
};

struct l5v_gid_entry {
    uint64_t gid[2];
    uint32_t gid_index;
    uint32_t port_num;
    uint32_t gid_type; /* 0 InfiniBand, 1 RoCE v1, 2 RoCE v2 */
    uint32_t ndev_ifindex;
};

enum {
    L5V_QPT_RC = 2,
    L5V_QPS_RESET = 0,
    L5V_QPS_INIT = 1,
    L5V_QPS_RTR = 2,
    L5V_QPS_RTS = 3,
    L5V_QPS_ERR = 6,
    L5V_QP_STATE = 1 << 0,
    L5V_QP_ACCESS_FLAGS = 1 << 3,
    L5V_QP_PKEY_INDEX = 1 << 4,
    L5V_QP_PORT = 1 << 5,
    L5V_QP_AV = 1 << 7,
    L5V_QP_PATH_MTU = 1 << 8,
    L5V_QP_TIMEOUT = 1 << 9,
    L5V_QP_RETRY_CNT = 1 << 10,
    L5V_QP_RNR_RETRY = 1 << 11,
    L5V_QP_RQ_PSN = 1 << 12,
    L5V_QP_MAX_QP_RD_ATOMIC = 1 << 13,
    L5V_QP_MIN_RNR_TIMER = 1 << 15,
    L5V_QP_SQ_PSN = 1 << 16,
    L5V_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
    L5V_QP_DEST_QPN = 1 << 20,
    L5V_WR_RDMA_WRITE = 0,
    L5V_WR_RDMA_WRITE_WITH_IMM = 1,
    L5V_WR_SEND = 2,
    L5V_WR_SEND_WITH_IMM = 3,
    L5V_WR_RDMA_READ = 4,
    L5V_WR_ATOMIC_CMP_AND_SWP = 5,
    L5V_WR_ATOMIC_FETCH_AND_ADD = 6,
    L5V_SEND_FENCE = 1,
    L5V_SEND_SIGNALED = 2,
    L5V_SEND_SOLICITED = 4,
    L5V_SEND_INLINE = 8,
    L5V_WC_WITH_IMM = 2,
    L5V_WC_SUCCESS = 0,
    L5V_WC_RDMA_READ = 2, /* the first opcode whose completion has a length */
    L5V_DEVICE_MEM_WINDOW_TYPE_2A = 1 << 23,
    L5V_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24,
};

#endif
