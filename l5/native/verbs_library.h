/* The calls of libibverbs.so.1, found when RDMA is first asked for.
 *
 * Functions that return a pointer say why not in errno; those that return a number give the errno
 * itself, or -1 and errno. `l5v_failed` and `l5v_no_pointer` make -errno of both. A handle is a
 * pointer as a number, as Python keeps it.
 */
#ifndef L5_VERBS_LIBRARY_H
#define L5_VERBS_LIBRARY_H

#include <errno.h>
#include <sys/types.h>

#include "verbs_abi.h"

/* One that is optional may be absent in an old library. */
#define L5V_CALLS(REQUIRED, OPTIONAL)                                                               \
    REQUIRED(get_device_list, struct l5v_device **, (int *count))                                   \
    REQUIRED(free_device_list, void, (struct l5v_device **list))                                    \
    REQUIRED(get_device_name, const char *, (struct l5v_device *device))                            \
    REQUIRED(open_device, struct l5v_context *, (struct l5v_device *device))                        \
    REQUIRED(close_device, int, (struct l5v_context *context))                                      \
    REQUIRED(query_device, int, (struct l5v_context *context, struct l5v_device_attr *attr))        \
    REQUIRED(query_port, int, (struct l5v_context *context, uint8_t port, struct l5v_port_attr *attr)) \
    REQUIRED(query_gid, int, (struct l5v_context *context, uint8_t port, int index, void *gid))     \
    REQUIRED(alloc_pd, struct l5v_pd *, (struct l5v_context *context))                              \
    REQUIRED(dealloc_pd, int, (struct l5v_pd *pd))                                                  \
    REQUIRED(reg_mr, struct l5v_mr *, (struct l5v_pd *pd, void *address, size_t length, int access)) \
    REQUIRED(dereg_mr, int, (struct l5v_mr *mr))                                                    \
    REQUIRED(create_comp_channel, struct l5v_comp_channel *, (struct l5v_context *context))         \
    REQUIRED(destroy_comp_channel, int, (struct l5v_comp_channel *channel))                         \
    REQUIRED(create_cq, struct l5v_cq *,                                                            \
             (struct l5v_context *context, int depth, void *tag, struct l5v_comp_channel *channel,  \
              int vector))                                                                          \
    REQUIRED(destroy_cq, int, (struct l5v_cq *cq))                                                  \
    REQUIRED(get_cq_event, int, (struct l5v_comp_channel *channel, struct l5v_cq **cq, void **tag)) \
    REQUIRED(ack_cq_events, void, (struct l5v_cq *cq, unsigned int count))                          \
    REQUIRED(create_qp, struct l5v_qp *, (struct l5v_pd *pd, struct l5v_qp_init_attr *attr))        \
    REQUIRED(modify_qp, int, (struct l5v_qp *qp, struct l5v_qp_attr *attr, int mask))               \
    REQUIRED(query_qp, int,                                                                         \
             (struct l5v_qp *qp, struct l5v_qp_attr *attr, int mask, struct l5v_qp_init_attr *init)) \
    REQUIRED(destroy_qp, int, (struct l5v_qp *qp))                                                  \
    OPTIONAL(ibv_fork_init, fork_init, int, (void))                                                 \
    OPTIONAL(_ibv_query_gid_table, query_gid_table, ssize_t,                                        \
             (struct l5v_context *context, struct l5v_gid_entry *entries, size_t count_max,         \
              uint32_t flags, size_t entry_size))


struct l5v_calls {
#define L5V_REQUIRED(name, result, arguments) result (*name) arguments;
#define L5V_OPTIONAL(symbol, name, result, arguments) result (*name) arguments;
    L5V_CALLS(L5V_REQUIRED, L5V_OPTIONAL)
#undef L5V_REQUIRED
#undef L5V_OPTIONAL
};

extern struct l5v_calls l5v; /* empty until l5_verbs_load returned NULL */

static inline void *l5v_pointer(uint64_t handle)
{
    return (void *)(uintptr_t)handle;
}

static inline uint64_t l5v_handle(const void *pointer)
{
    return (uint64_t)(uintptr_t)pointer;
}

static inline int l5v_failed(int rc)
{
    if (rc > 0)
        return -rc;
    return rc < 0 && errno > 0 ? -errno : rc;
}

static inline int l5v_no_pointer(void)
{
    return errno > 0 ? -errno : -EIO;
}

#endif
