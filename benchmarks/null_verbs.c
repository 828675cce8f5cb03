/* A libibverbs without a device: what a post costs, apart from what a card does with it.
 *
 * It takes the library's place, by LD_PRELOAD for pyverbs and as libibverbs.so.1 on the search path for
 * our own binding (benchmarks/rdma_posts.py does both). One device, null0, whose posts count. Queue
 * pairs of one process that were connected to each other also move the bytes, in the post itself, so
 * that a benchmark can be seen to do what it says.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/types.h>
#include <unistd.h>

#include "verbs_abi.h"

enum { DEPTH = 1024, PAIRS = 256 };

struct null_cq {
    struct l5v_cq cq;
    char locks[256];
    int armed;
    uint32_t head, tail;
    struct l5v_wc wc[DEPTH];
};

struct null_qp {
    struct l5v_qp qp;
    char locks[256];
    uint32_t peer, head, tail;
    int depth;
    struct l5v_recv_wr receives[DEPTH];
    struct l5v_sge places[DEPTH];
};

/* As much of a device as the library's callers look into. */
static struct {
    void *ops[2];
    int node_type, transport_type;
    char name[64], dev_name[64], dev_path[256], ibdev_path[256];
} device = {.node_type = 1, .name = "null0", .dev_name = "uverbs0"};

static struct null_qp *pairs[PAIRS];
static uint64_t posts;

uint64_t null_posts(void);
uint64_t null_posts(void)
{
    return posts;
}

static void complete(struct l5v_cq *to, const struct l5v_wc *wc)
{
    struct null_cq *cq = (struct null_cq *)to;

    cq->wc[cq->tail++ % DEPTH] = *wc;
    if (cq->armed && to->channel)
        eventfd_write(to->channel->fd, 1);
    cq->armed = 0;
}

static void receive(struct null_qp *peer, const struct l5v_send_wr *wr)
{
    const struct l5v_recv_wr *taken;
    struct l5v_wc wc = {.opcode = 128, .qp_num = peer->qp.qp_num};

    if (peer->head == peer->tail)
        return;
    taken = &peer->receives[peer->head++ % DEPTH];
    wc.wr_id = taken->wr_id;
    if (wr->num_sge) {
        wc.byte_len = wr->sg_list->length;
        if (taken->num_sge && wr->opcode >= L5V_WR_SEND)
            memcpy((void *)(uintptr_t)taken->sg_list->addr, (void *)(uintptr_t)wr->sg_list->addr, wc.byte_len);
    }
    if (wr->opcode == L5V_WR_RDMA_WRITE_WITH_IMM)
        wc.opcode = 129;
    if (wr->opcode == L5V_WR_RDMA_WRITE_WITH_IMM || wr->opcode == L5V_WR_SEND_WITH_IMM) {
        wc.wc_flags = L5V_WC_WITH_IMM;
        wc.imm_data = wr->imm_data;
    }
    complete(peer->qp.recv_cq, &wc);
}

static void move(struct null_qp *qp, const struct l5v_send_wr *wr)
{
    struct null_qp *peer = pairs[qp->peer % PAIRS];
    void *here = wr->num_sge ? (void *)(uintptr_t)wr->sg_list->addr : NULL;
    void *there = (void *)(uintptr_t)wr->wr.rdma.remote_addr;
    uint64_t *word = there, old;

    switch (wr->opcode) {
    case L5V_WR_RDMA_WRITE:
    case L5V_WR_RDMA_WRITE_WITH_IMM:
        if (here)
            memcpy(there, here, wr->sg_list->length);
        break;
    case L5V_WR_RDMA_READ:
        if (here)
            memcpy(here, there, wr->sg_list->length);
        break;
    case L5V_WR_ATOMIC_CMP_AND_SWP:
        old = *word;
        *word = old == wr->wr.atomic.compare_add ? wr->wr.atomic.swap : old;
        memcpy(here, &old, sizeof old);
        break;
    case L5V_WR_ATOMIC_FETCH_AND_ADD:
        old = *word;
        *word = old + wr->wr.atomic.compare_add;
        memcpy(here, &old, sizeof old);
        break;
    default:
        break;
    }
    if (peer && wr->opcode >= L5V_WR_RDMA_WRITE_WITH_IMM && wr->opcode <= L5V_WR_SEND_WITH_IMM)
        receive(peer, wr);
}

static int post_send(struct l5v_qp *to, struct l5v_send_wr *wr, struct l5v_send_wr **bad)
{
    static const int opcodes[] = {1, 1, 0, 0, 2, 3, 4};
    struct null_qp *qp = (struct null_qp *)to;

    (void)bad;
    for (; wr; wr = wr->next) {
        posts++;
        if (qp->peer)
            move(qp, wr);
        if (wr->send_flags & L5V_SEND_SIGNALED)
            complete(to->send_cq, &(struct l5v_wc){
                                      .wr_id = wr->wr_id,
                                      .opcode = opcodes[wr->opcode],
                                      .qp_num = to->qp_num,
                                      .byte_len = wr->num_sge ? wr->sg_list->length : 0,
                                  });
    }
    return 0;
}

static int post_recv(struct l5v_qp *to, struct l5v_recv_wr *wr, struct l5v_recv_wr **bad)
{
    struct null_qp *qp = (struct null_qp *)to;

    for (; wr; wr = wr->next) {
        uint32_t at = qp->tail % DEPTH;

        if (qp->tail - qp->head >= DEPTH) {
            *bad = wr;
            return ENOMEM;
        }
        posts++;
        qp->receives[at] = *wr;
        if (wr->num_sge)
            qp->places[at] = *wr->sg_list;
        qp->receives[at].sg_list = &qp->places[at];
        qp->tail++;
    }
    return 0;
}

static int poll_cq(struct l5v_cq *from, int count, struct l5v_wc *wc)
{
    struct null_cq *cq = (struct null_cq *)from;
    int taken = 0;

    while (taken < count && cq->head != cq->tail)
        wc[taken++] = cq->wc[cq->head++ % DEPTH];
    return taken;
}

static int req_notify_cq(struct l5v_cq *of, int solicited_only)
{
    (void)solicited_only;
    ((struct null_cq *)of)->armed = 1;
    return 0;
}

#define EXPORTED(result, name, ...)                                                                 \
    result name(__VA_ARGS__);                                                                       \
    result name(__VA_ARGS__)

EXPORTED(void **, ibv_get_device_list, int *count)
{
    void **list = calloc(2, sizeof *list);

    if (list)
        list[0] = &device;
    if (count)
        *count = 1;
    return list;
}

EXPORTED(void, ibv_free_device_list, void **list)
{
    free(list);
}

EXPORTED(const char *, ibv_get_device_name, void *of)
{
    (void)of;
    return device.name;
}

EXPORTED(struct l5v_context *, ibv_open_device, void *of)
{
    struct l5v_context *context = calloc(1, sizeof *context);

    if (!context)
        return NULL;
    context->device = of;
    context->ops.post_send = post_send;
    context->ops.post_recv = post_recv;
    context->ops.poll_cq = poll_cq;
    context->ops.req_notify_cq = req_notify_cq;
    context->cmd_fd = context->async_fd = -1;
    context->num_comp_vectors = 1;
    return context;
}

EXPORTED(int, ibv_close_device, struct l5v_context *context)
{
    free(context);
    return 0;
}

EXPORTED(int, ibv_query_device, struct l5v_context *context, struct l5v_device_attr *attr)
{
    (void)context;
    *attr = (struct l5v_device_attr){
        .max_mr_size = 1ull << 40, .max_qp_wr = DEPTH, .max_cqe = DEPTH, .max_sge = 1, .max_qp_rd_atom = 16,
        .max_qp_init_rd_atom = 16, .atomic_cap = 1, .phys_port_cnt = 1};
    return 0;
}

EXPORTED(int, ibv_query_port, struct l5v_context *context, uint8_t port, struct l5v_port_attr *attr)
{
    (void)context;
    if (port != 1)
        return EINVAL;
    *attr = (struct l5v_port_attr){.state = 4, .max_mtu = 5, .active_mtu = 5, .gid_tbl_len = 1, .link_layer = 2};
    return 0;
}

EXPORTED(int, ibv_query_gid, struct l5v_context *context, uint8_t port, int index, void *gid)
{
    static const uint8_t loopback[16] = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1};

    (void)context;
    if (port != 1 || index != 0)
        return EINVAL;
    memcpy(gid, loopback, sizeof loopback);
    return 0;
}

EXPORTED(ssize_t, _ibv_query_gid_table, struct l5v_context *context, struct l5v_gid_entry *entries, size_t most,
         uint32_t flags, size_t size)
{
    (void)flags, (void)size;
    if (!most)
        return 0;
    entries[0] = (struct l5v_gid_entry){.port_num = 1, .gid_type = 2};
    ibv_query_gid(context, 1, 0, entries[0].gid);
    return 1;
}

EXPORTED(struct l5v_pd *, ibv_alloc_pd, struct l5v_context *context)
{
    struct l5v_pd *pd = calloc(1, sizeof *pd);

    if (pd)
        pd->context = context;
    return pd;
}

EXPORTED(int, ibv_dealloc_pd, struct l5v_pd *pd)
{
    free(pd);
    return 0;
}

EXPORTED(struct l5v_mr *, ibv_reg_mr, struct l5v_pd *pd, void *address, size_t length, int access)
{
    struct l5v_mr *mr = calloc(1, sizeof *mr);

    (void)access;
    if (mr)
        *mr = (struct l5v_mr){.context = pd->context, .pd = pd, .addr = address, .length = length, .lkey = 7, .rkey = 9};
    return mr;
}

EXPORTED(struct l5v_mr *, ibv_reg_mr_iova2, struct l5v_pd *pd, void *address, size_t length, uint64_t iova,
         unsigned int access)
{
    (void)iova;
    return ibv_reg_mr(pd, address, length, (int)access);
}

EXPORTED(int, ibv_dereg_mr, struct l5v_mr *mr)
{
    free(mr);
    return 0;
}

EXPORTED(struct l5v_comp_channel *, ibv_create_comp_channel, struct l5v_context *context)
{
    struct l5v_comp_channel *channel = calloc(1, sizeof *channel);

    if (channel)
        *channel = (struct l5v_comp_channel){context, eventfd(0, EFD_NONBLOCK | EFD_SEMAPHORE | EFD_CLOEXEC), 0};
    return channel;
}

EXPORTED(int, ibv_destroy_comp_channel, struct l5v_comp_channel *channel)
{
    close(channel->fd);
    free(channel);
    return 0;
}

EXPORTED(struct l5v_cq *, ibv_create_cq, struct l5v_context *context, int depth, void *tag,
         struct l5v_comp_channel *channel, int vector)
{
    struct null_cq *cq = calloc(1, sizeof *cq);

    (void)depth, (void)vector;
    if (!cq)
        return NULL;
    cq->cq = (struct l5v_cq){context, channel, tag, 0, DEPTH};
    return &cq->cq;
}

EXPORTED(int, ibv_destroy_cq, struct l5v_cq *cq)
{
    free(cq);
    return 0;
}

EXPORTED(int, ibv_get_cq_event, struct l5v_comp_channel *channel, struct l5v_cq **cq, void **tag)
{
    eventfd_t value;

    (void)cq, (void)tag;
    return eventfd_read(channel->fd, &value);
}

EXPORTED(void, ibv_ack_cq_events, struct l5v_cq *cq, unsigned int count)
{
    (void)cq, (void)count;
}

EXPORTED(struct l5v_qp *, ibv_create_qp, struct l5v_pd *pd, struct l5v_qp_init_attr *attr)
{
    struct null_qp *qp = calloc(1, sizeof *qp);
    uint32_t number = 2; /* 0 and 1 are those of a port itself */

    while (number < PAIRS && pairs[number])
        number++;
    if (!qp || number == PAIRS) {
        free(qp);
        errno = ENOMEM;
        return NULL;
    }
    qp->qp = (struct l5v_qp){.context = pd->context, .pd = pd, .send_cq = attr->send_cq, .recv_cq = attr->recv_cq,
                             .qp_num = number, .qp_type = attr->qp_type};
    pairs[number] = qp;
    return &qp->qp;
}

EXPORTED(int, ibv_modify_qp, struct l5v_qp *of, struct l5v_qp_attr *attr, int mask)
{
    if (mask & L5V_QP_STATE)
        of->state = attr->qp_state;
    if (mask & L5V_QP_DEST_QPN)
        ((struct null_qp *)of)->peer = attr->dest_qp_num;
    return 0;
}

EXPORTED(int, ibv_query_qp, struct l5v_qp *of, struct l5v_qp_attr *attr, int mask, struct l5v_qp_init_attr *init)
{
    (void)mask, (void)init;
    attr->qp_state = of->state;
    return 0;
}

EXPORTED(int, ibv_destroy_qp, struct l5v_qp *of)
{
    pairs[of->qp_num] = NULL;
    free(of);
    return 0;
}
