/* A Lane: the short way of small requests over a plain socket.  See stream.h for the frames.
 *
 *            reads, parses, handles, encodes, writes                    the usual frames
 *   socket <------------------------------------------ Lane -------+
 *      ^                                                |          | session.feed(bytes, error)
 *      |     reads, parses, writes                      | aside,   v
 *      +------------------------------ StreamChannel <--+ held   l5._session   everything else
 *
 * The socket belongs to a `StreamChannel` in Python, which can do everything.  The Lane does what a
 * request is made of while nothing is in the way: it reads only while the channel holds no bytes
 * (`held`), writes only while the channel has none to write (`unsent`) and nobody waits for room
 * (`queued`), and stands back altogether while a tap or a watch wants to see each frame (`aside`).
 * Bytes that it has read and are no usual frame, and bytes that the socket did not take, it gives to
 * the channel, which goes on from there; so the order of the stream is never in doubt.
 *
 * A client's answer is one read by `collect`.  A server's requests: `Poller.glance` asks the hub's
 * epoll descriptor once and puts the lanes that are readable into a queue; `Poller.serve` goes through
 * the queue, a turn for each lane: read, handle, answer.  What came behind the first request of a read
 * is kept (`rest`) until it has been handled: at most one read's worth a connection.
 *
 * A heartbeat does not go alone where an answer is going out anyway: it is kept (`carried`) and put in
 * front of the next frame, from here or from the channel.
 *
 * The GIL is kept: no call here waits.
 */
#ifndef L5_LANE_H
#define L5_LANE_H

#include "_fast.h"
#include "stream.h"

struct Lane {
    PyObject_HEAD
    int fd;             /* the channel's; -1 once closed */
    Poller *poller;     /* strong, while added */
    PyObject *session;  /* strong, while added: whose frames these are */
    PyObject *server;   /* strong: who takes requests from here, or NULL */
    Lane *next;         /* in the poller's queue */
    int hot;            /* it is in that queue */
    PyObject *rest;     /* strong: bytes that were read behind a request, or NULL */
    size_t rest_at;     /* how many of them have been handled */
    int more;           /* the last read was full: there may be more */
    unsigned long thread;
    size_t take;        /* bytes of one read: what the channel has room for */
    uint32_t send_limit, receive_limit;
    int held, unsent, aside;
    uint32_t carried_bytes; /* of a frame that goes in front of the next one, or 0 */
    uint8_t carried[L5_CARRIED_BYTES];
    uint64_t next_id;
    uint64_t in_flight, in_flight_max, handling, handling_max;
    uint64_t data_sent, data_allowed, data_arrived, data_taken, data_told, data_window, peer_window;
    unsigned int queued, partials;
    int credit_owed;
    uint64_t frames_sent, frames_received, requests, answered, calls;
};

extern PyTypeObject l5_LaneType;

/* _lane_hot.c */
int l5_lane_give(Lane *self, int kind, uint64_t id, PyObject *payload);
int l5_lane_next(Lane *self, uint64_t *id, PyObject **payload);
PyObject *l5_lane_request(Lane *self, PyObject *payload);
PyObject *l5_lane_collect(Lane *self, PyObject *id);
PyObject *l5_lane_rest(Lane *self, PyObject *ignored);
PyObject *l5_lane_rested(Lane *self, PyObject *id);

/* _lanes.c */
void l5_poller_drop_lane(Poller *self, Lane *lane);

/* Tell whether requests may be read here for a server. */
static inline int l5_lane_serves(const Lane *self)
{
    return self->fd >= 0 && self->server && !self->held && !self->unsent && !self->aside && !self->queued;
}

#endif
