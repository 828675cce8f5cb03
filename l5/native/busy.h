/* How busy a worker is that never spins, from clocks that are given: nothing here looks at one.
 *
 *     claimed = processor time used + time waited for a processor, over wall time
 *     quota   = processor time of the process over what its quota gave it, in QUOTA_WINDOW_NS;
 *               all of it, if the process was held back in half of the periods
 *
 * The larger one is told.  A worker that waits for others, or for its quota, wants more than it gets;
 * a process that has used up its quota is full, though its clients may be too few to keep it waiting.
 * Held back, it has used up less than the quota: what is left on one processor is lost to another. */
#ifndef L5_BUSY_H
#define L5_BUSY_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define QUOTA_WINDOW_NS 100000000u /* the kernel's usual period: within one, use comes in bursts */

struct l5_busy {
    uint64_t claimed_ns; /* at the last reading; 0: there was none */
    uint64_t window_ns, window_used_ns; /* when the window of the quota began, and the process's time then */
    uint64_t periods, held_back; /* until then */
    double quota_share; /* of the last full window */
};

struct l5_busy_reading {
    uint64_t now_ns;
    uint64_t thread_ns, waited_ns; /* this thread's processor time, and what it waited for a processor */
    uint64_t process_ns;           /* the process's processor time */
    uint64_t quota_millionths;     /* processors that its quota is worth; 0: none */
    uint64_t periods, held_back;   /* of the quota, and those in which it was used up; 0: not known */
};

/* Return what a thread waited for a processor, the second number in its schedstat file; 0 if unknown. */
static inline uint64_t l5_busy_waited(const char *schedstat)
{
    char *rest;

    strtoull(schedstat, &rest, 10);
    return *rest == ' ' ? strtoull(rest, NULL, 10) : 0;
}

/* Return the number behind a name in a file of the kernel's; 0 if it is not there. */
static inline uint64_t l5_busy_counted(const char *text, const char *name)
{
    const char *found = strstr(text, name);

    return found ? strtoull(found + strlen(name), NULL, 10) : 0;
}

static inline int l5_busy_window_over(const struct l5_busy *busy, uint64_t now_ns)
{
    return !busy->window_ns || now_ns - busy->window_ns >= QUOTA_WINDOW_NS;
}

static inline double l5_busy_quota_share(const struct l5_busy *busy, const struct l5_busy_reading *reading)
{
    double given_ns = (double)(reading->now_ns - busy->window_ns) * (double)reading->quota_millionths / 1e6;
    uint64_t periods = reading->periods - busy->periods;

    if (!busy->window_ns || given_ns <= 0)
        return 0;
    if (busy->periods && periods && 2 * (reading->held_back - busy->held_back) >= periods)
        return 1;
    return (double)(reading->process_ns - busy->window_used_ns) / given_ns;
}

/* Return the busy share since the last reading, `interval_ns` ago, from 0 to 1. */
static inline double l5_busy_share(struct l5_busy *busy, const struct l5_busy_reading *reading,
                                   uint64_t interval_ns)
{
    uint64_t claimed_ns = reading->thread_ns + reading->waited_ns;
    double share = 0;

    if (busy->claimed_ns && claimed_ns > busy->claimed_ns && interval_ns)
        share = (double)(claimed_ns - busy->claimed_ns) / (double)interval_ns;
    busy->claimed_ns = claimed_ns;
    if (l5_busy_window_over(busy, reading->now_ns)) {
        busy->quota_share = l5_busy_quota_share(busy, reading);
        busy->window_ns = reading->now_ns;
        busy->window_used_ns = reading->process_ns;
        busy->periods = reading->periods;
        busy->held_back = reading->held_back;
    }
    if (busy->quota_share > share)
        share = busy->quota_share;
    return share < 1 ? share : 1;
}

#endif
