/* How busy a server is: one line of the control page that it overwrites and its client reads when it likes.
 *
 * Not a part of the ring's protocol: nobody sleeps on it, and nobody is woken.  The three words are no
 * unit.  The sequence number is stored last and loaded first, so the words beside it are never older
 * than it; they may be newer, and then the client takes the share of the next interval for this one's.
 * Without that order it could take the last one's instead: as harmless, but then a share could be seen
 * that the server had already said to be over. */
#ifndef L5_STATUS_H
#define L5_STATUS_H

#include "channel.h"

struct l5_status {
    uint64_t sequence, busy_millionths, written_ns;
};

/* (Server) What its client finds; wakes nobody. */
static inline void l5_status_write(struct l5_control *control, uint64_t sequence, uint64_t busy_millionths,
                                   uint64_t now_ns)
{
    l5_store_relaxed(&control->status.busy_millionths, busy_millionths);
    l5_store_relaxed(&control->status.written_ns, now_ns);
    l5_store_release(&control->status.sequence, sequence); /* pairs with: STATUS in l5_status_read */
}

/* (Client) Whatever the server wrote: any numbers at all. */
static inline void l5_status_read(const struct l5_control *control, struct l5_status *status)
{
    status->sequence = l5_load_acquire(&control->status.sequence); /* pairs with: STATUS in l5_status_write */
    status->busy_millionths = l5_load_relaxed(&control->status.busy_millionths);
    status->written_ns = l5_load_relaxed(&control->status.written_ns);
}

#endif
