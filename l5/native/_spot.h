/* A Spot: memory (or a function) that a Poller looks at beside its rings.  See mailbox.h.
 *
 *   FLAGS  any byte of an array of flags is set       SCAN takes them, fairly
 *   RING   the message at the read position is whole  TAKE copies it out
 *   CALL   a function of two words says so            of a completion queue, say
 *
 * A poller has few spots: all the flags of an event loop are one.
 */
#ifndef L5_SPOT_H
#define L5_SPOT_H

#include "_fast.h"

enum spot_kind { SPOT_FLAGS = 0, SPOT_RING = 1, SPOT_CALL = 2 };

typedef int (*l5_spot_call)(void *argument);

struct Spot {
    PyObject_HEAD
    int kind;
    uint8_t *base;       /* of the flags, or of the ring */
    uint64_t bytes;      /* of them */
    uint64_t read;       /* RING: position of the next message; FLAGS: where the next scan starts */
    uint64_t limit;      /* RING: longest payload */
    l5_spot_call call;
    void *argument;
    Poller *poller;      /* strong, while added */
    uint32_t at;         /* its place there */
    PyObject *session;   /* strong, while added: whose `on_ready` is called */
};

extern PyTypeObject l5_SpotType;

#endif
