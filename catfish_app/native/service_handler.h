/* The R-tree as a native service of l5; this file is also a cffi cdef, hence plain declarations.
 *
 * rt_service_handle answers the requests of catfish_app/_wire.py and may be called by any number of threads at a
 * time, each with its own request->worker (see l5_handler.h). A service borrows its tree. */
#ifndef CATFISH_SERVICE_HANDLER_H
#define CATFISH_SERVICE_HANDLER_H

#include "rtree.h"

/* Operations are numbered from 1; what is counted under 0 is requests that are none of them. */
#define RT_SERVICE_OPERATIONS 16
/* After so long without a part, a load makes room for another one. */
#define RT_SERVICE_LOAD_IDLE_S 30

struct l5_request;
struct l5_reply;
struct rt_service;

/* Create the service of a tree for so many worker threads (and the event loop). 0, -ENOMEM, or -ENOTSUP where numbers
 * are not stored as they travel (big-endian processors). */
int rt_service_create(struct rt_service **out, struct rtree *tree, uint32_t workers);

/* Free the service, and a load that was not ended; not the tree. No handler may be running. */
void rt_service_destroy(struct rt_service *service);

/* Tell how many requests there were of each operation; any thread. */
void rt_service_counts(const struct rt_service *service, uint64_t counts[RT_SERVICE_OPERATIONS]);

/* Set what the statistics tell of the server; any thread. */
void rt_service_report(struct rt_service *service, uint32_t connections, uint32_t busy_millionths);

/* The handler: an l5_handler whose state is the service. */
int rt_service_handle(void *service, const struct l5_request *request, struct l5_reply *reply);

#endif
