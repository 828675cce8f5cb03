/* Queue pairs: made, connected, put into error, destroyed. */
#include <stdint.h>
#include <string.h>

#include "verbs.h"
#include "verbs_library.h"

int l5_verbs_queue_create(uint64_t domain, uint64_t send, uint64_t receive, struct l5_verbs_queue *queue)
{
    struct l5v_qp_init_attr attr = {
        .send_cq = l5v_pointer(send),
        .recv_cq = l5v_pointer(receive),
        .cap = {queue->send_depth, queue->receive_depth, queue->sges, queue->sges, queue->inline_bytes},
        .qp_type = L5V_QPT_RC,
    };
    struct l5v_qp *qp = l5v.create_qp(l5v_pointer(domain), &attr);

    if (!qp)
        return l5v_no_pointer();
    *queue = (struct l5_verbs_queue){l5v_handle(qp),          qp->qp_num,
                                     attr.cap.max_inline_data, attr.cap.max_send_wr,
                                     attr.cap.max_recv_wr,     attr.cap.max_send_sge};
    return 0;
}

int l5_verbs_queue_open(uint64_t queue, int port, int access)
{
    struct l5v_qp_attr attr = {
        .qp_state = L5V_QPS_INIT,
        .port_num = (uint8_t)port,
        .qp_access_flags = (unsigned int)access,
    };
    int mask = L5V_QP_STATE | L5V_QP_PKEY_INDEX | L5V_QP_PORT | L5V_QP_ACCESS_FLAGS;

    return l5v_failed(l5v.modify_qp(l5v_pointer(queue), &attr, mask));
}

static int to_ready_to_receive(struct l5v_qp *qp, const struct l5_verbs_path *path)
{
    struct l5v_qp_attr attr = {
        .qp_state = L5V_QPS_RTR,
        .path_mtu = path->mtu,
        .dest_qp_num = path->number,
        .rq_psn = path->psn,
        .max_dest_rd_atomic = (uint8_t)path->dest_rd_atomic,
        .min_rnr_timer = (uint8_t)path->rnr_timer,
        .ah_attr = {.is_global = (uint8_t)path->routed, .dlid = (uint16_t)path->lid, .port_num = (uint8_t)path->port},
    };

    memcpy(attr.ah_attr.grh.dgid, path->gid, sizeof path->gid);
    attr.ah_attr.grh.sgid_index = (uint8_t)path->own_gid_index;
    attr.ah_attr.grh.hop_limit = (uint8_t)path->hop_limit;
    return l5v_failed(l5v.modify_qp(qp, &attr,
                                L5V_QP_STATE | L5V_QP_AV | L5V_QP_PATH_MTU | L5V_QP_DEST_QPN | L5V_QP_RQ_PSN |
                                    L5V_QP_MAX_DEST_RD_ATOMIC | L5V_QP_MIN_RNR_TIMER));
}

static int to_ready_to_send(struct l5v_qp *qp, const struct l5_verbs_path *path)
{
    struct l5v_qp_attr attr = {
        .qp_state = L5V_QPS_RTS,
        .sq_psn = path->own_psn,
        .timeout = (uint8_t)path->timeout,
        .retry_cnt = (uint8_t)path->retries,
        .rnr_retry = (uint8_t)path->rnr_retries,
        .max_rd_atomic = (uint8_t)path->rd_atomic,
    };

    return l5v_failed(l5v.modify_qp(qp, &attr,
                                L5V_QP_STATE | L5V_QP_TIMEOUT | L5V_QP_RETRY_CNT | L5V_QP_RNR_RETRY |
                                    L5V_QP_SQ_PSN | L5V_QP_MAX_QP_RD_ATOMIC));
}

int l5_verbs_queue_connect(uint64_t queue, const struct l5_verbs_path *path)
{
    struct l5v_qp *qp = l5v_pointer(queue);
    int rc = l5_verbs_queue_open(queue, path->port, path->access);

    if (rc == 0)
        rc = to_ready_to_receive(qp, path);
    return rc == 0 ? to_ready_to_send(qp, path) : rc;
}

int l5_verbs_queue_fail(uint64_t queue)
{
    struct l5v_qp_attr attr = {.qp_state = L5V_QPS_ERR};

    return l5v_failed(l5v.modify_qp(l5v_pointer(queue), &attr, L5V_QP_STATE));
}

int l5_verbs_queue_state(uint64_t queue)
{
    struct l5v_qp_attr attr;
    struct l5v_qp_init_attr init;
    int rc;

    memset(&attr, 0, sizeof attr);
    rc = l5v_failed(l5v.query_qp(l5v_pointer(queue), &attr, L5V_QP_STATE, &init));
    return rc < 0 ? rc : attr.qp_state;
}

int l5_verbs_queue_destroy(uint64_t queue)
{
    return l5v_failed(l5v.destroy_qp(l5v_pointer(queue)));
}
