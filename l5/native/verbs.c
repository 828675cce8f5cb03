/* Setting up RDMA: devices, ports, memory, completion queues. See verbs.h and verbs_library.h. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "verbs.h"
#include "verbs_library.h"

enum { GIDS_MAX = 1024 };

int l5_verbs_devices(char *names, int size)
{
    int count = 0, used = 0, rc;
    struct l5v_device **list = l5v.get_device_list(&count);

    if (!list)
        return errno == ENOSYS ? 0 : l5v_no_pointer();
    rc = count;
    for (int index = 0; index < count; index++) {
        int length = snprintf(names + used, (size_t)(size - used), "%s\n", l5v.get_device_name(list[index]));

        if (length < 0 || length >= size - used) {
            rc = -ENOSPC;
            break;
        }
        used += length;
    }
    l5v.free_device_list(list);
    return rc;
}

int l5_verbs_open(const char *name, uint64_t *context)
{
    int count = 0, rc = -ENODEV;
    struct l5v_device **list = l5v.get_device_list(&count);

    if (!list)
        return errno == ENOSYS ? -ENODEV : l5v_no_pointer();
    for (int index = 0; index < count; index++) {
        if (strcmp(l5v.get_device_name(list[index]), name) == 0) {
            struct l5v_context *opened = l5v.open_device(list[index]);

            *context = l5v_handle(opened);
            rc = opened ? 0 : l5v_no_pointer();
            break;
        }
    }
    l5v.free_device_list(list);
    return rc;
}

int l5_verbs_close(uint64_t context)
{
    return l5v_failed(l5v.close_device(l5v_pointer(context)));
}

int l5_verbs_limits(uint64_t context, struct l5_verbs_limits *limits)
{
    struct l5v_device_attr attr;
    int rc;

    memset(&attr, 0, sizeof attr);
    rc = l5v_failed(l5v.query_device(l5v_pointer(context), &attr));
    if (rc < 0)
        return rc;
    *limits = (struct l5_verbs_limits){
        .region_bytes = attr.max_mr_size,
        .queue_depth = attr.max_qp_wr,
        .completion_depth = attr.max_cqe,
        .sges = attr.max_sge,
        .rd_atomic = attr.max_qp_rd_atom,
        .init_rd_atomic = attr.max_qp_init_rd_atom,
        .atomics = attr.atomic_cap,
        .ports = attr.phys_port_cnt,
        .windows_type2 = !!(attr.device_cap_flags & (L5V_DEVICE_MEM_WINDOW_TYPE_2A | L5V_DEVICE_MEM_WINDOW_TYPE_2B)),
    };
    return 0;
}

int l5_verbs_port(uint64_t context, int number, struct l5_verbs_port *port)
{
    /* A newer library may know of fields behind those that we do. */
    union {
        struct l5v_port_attr attr;
        char room[256];
    } port_attr;
    int rc;

    memset(&port_attr, 0, sizeof port_attr);
    rc = l5v_failed(l5v.query_port(l5v_pointer(context), (uint8_t)number, &port_attr.attr));
    if (rc < 0)
        return rc;
    *port = (struct l5_verbs_port){port_attr.attr.state, port_attr.attr.active_mtu, port_attr.attr.link_layer,
                                   port_attr.attr.lid, port_attr.attr.gid_tbl_len};
    return 0;
}

int l5_verbs_gids(uint64_t context, int port, struct l5_verbs_gid *gids, int count_max)
{
    struct l5v_gid_entry entries[GIDS_MAX];
    ssize_t found;
    int count = 0;

    if (!l5v.query_gid_table)
        return -ENOSYS;
    found = l5v.query_gid_table(l5v_pointer(context), entries, GIDS_MAX, 0, sizeof entries[0]);
    if (found < 0)
        return (int)found;
    for (ssize_t index = 0; index < found && count < count_max; index++) {
        if (entries[index].port_num != (uint32_t)port)
            continue;
        memcpy(gids[count].raw, entries[index].gid, sizeof gids[count].raw);
        gids[count].index = entries[index].gid_index;
        gids[count++].kind = entries[index].gid_type;
    }
    return count;
}

int l5_verbs_gid(uint64_t context, int port, int index, uint8_t *raw)
{
    return l5v_failed(l5v.query_gid(l5v_pointer(context), (uint8_t)port, index, raw));
}

int l5_verbs_domain_create(uint64_t context, uint64_t *domain)
{
    struct l5v_pd *pd = l5v.alloc_pd(l5v_pointer(context));

    *domain = l5v_handle(pd);
    return pd ? 0 : l5v_no_pointer();
}

int l5_verbs_domain_destroy(uint64_t domain)
{
    return l5v_failed(l5v.dealloc_pd(l5v_pointer(domain)));
}

int l5_verbs_region_create(uint64_t domain, uint64_t address, uint64_t length, int access,
                           struct l5_verbs_region *region)
{
    struct l5v_mr *mr = l5v.reg_mr(l5v_pointer(domain), l5v_pointer(address), (size_t)length, access);

    if (!mr)
        return l5v_no_pointer();
    *region = (struct l5_verbs_region){l5v_handle(mr), mr->lkey, mr->rkey};
    return 0;
}

int l5_verbs_region_destroy(uint64_t region)
{
    return l5v_failed(l5v.dereg_mr(l5v_pointer(region)));
}

int l5_verbs_completions_create(uint64_t context, int depth, int events, struct l5_verbs_completions *queue)
{
    struct l5v_comp_channel *channel = NULL;
    struct l5v_cq *cq;
    int rc;

    if (events) {
        channel = l5v.create_comp_channel(l5v_pointer(context));
        if (!channel)
            return l5v_no_pointer();
        /* Taking an event from a blocking one would stop the process. */
        if (fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) < 0) {
            rc = l5v_no_pointer();
            l5v.destroy_comp_channel(channel);
            return rc;
        }
    }
    cq = l5v.create_cq(l5v_pointer(context), depth, NULL, channel, 0);
    if (!cq) {
        rc = l5v_no_pointer();
        if (channel)
            l5v.destroy_comp_channel(channel);
        return rc;
    }
    *queue = (struct l5_verbs_completions){l5v_handle(cq), l5v_handle(channel), cq->cqe, channel ? channel->fd : -1};
    return 0;
}

int l5_verbs_completions_destroy(const struct l5_verbs_completions *queue)
{
    int rc = l5v_failed(l5v.destroy_cq(l5v_pointer(queue->handle)));

    if (rc == 0 && queue->channel)
        rc = l5v_failed(l5v.destroy_comp_channel(l5v_pointer(queue->channel)));
    return rc;
}
