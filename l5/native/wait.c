/* Spinning over a set of channels, CPU-aware.
 *
 * Waking a sleeping process costs tens of microseconds, a cache line between cores well under one,
 * so whoever expects an answer polls for a while.  But when the peer last ran on our own CPU,
 * polling only keeps it from answering: then two sched_yield and a sleep are right.  The two
 * yields matter: a runnable pair gets spread over the cores by the scheduler, a blocking pair
 * stays glued to one.  The peer's CPU number comes with every frame header.
 *
 * Why not a short sleep on the doorbell instead of the yields: it needs a timer, and setting one
 * costs a virtual machine 10 to 20 us (measured: 24 K round trips a second on one CPU, where a sleep
 * without a time limit gave 70 K and two yields 150 K).
 */
#define _GNU_SOURCE
#include <sched.h>
#include <string.h>
#include <time.h>

#include "channel.h"

/* Reading the clock costs as much as a cache line from another core, so the first polls do without:
 * an answer that comes within a few microseconds is never timed. */
enum { POLLS_UNTIMED = 64, POLLS_PER_CLOCK = 32 };

enum { WIDENINGS = 100 }; /* attempts to allow a thread its CPUs again: the kernel may lack memory */

uint64_t l5_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int l5_cpu(void)
{
#ifdef __linux__
    return sched_getcpu(); /* glibc reads it from the rseq area: no system call */
#else
    return -1;
#endif
}

int l5_channels_news(struct l5_channel *const *channels, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (l5_channel_ready(channels[i]) || l5_channel_has_room(channels[i]))
            return 1;
    return 0;
}

/* A channel that is still armed from our last sleep is not in use: where its peer was when it last
 * wrote says nothing. */
uint32_t l5_channels_near(struct l5_channel *const *channels, uint32_t count, uint32_t *far)
{
    int cpu = l5_cpu();
    uint32_t near = 0;

    *far = 0;
    for (uint32_t i = 0; cpu >= 0 && i < count; i++) {
        if (l5_channel_armed(channels[i]))
            continue;
        if (channels[i]->peer_cpu == cpu)
            near++;
        else
            ++*far;
    }
    return near;
}

/* Nothing is ordered by the number; a client that hears late waits a little less well. */
uint32_t l5_channels_tell(struct l5_channel *const *channels, uint32_t count)
{
    uint32_t crowd = 0;

    for (uint32_t i = 0; i < count; i++)
        crowd += channels[i]->role == L5_SERVER && !l5_channel_armed(channels[i]);
    for (uint32_t i = 0; i < count && crowd; i++)
        if (channels[i]->role == L5_SERVER && !l5_channel_armed(channels[i]))
            l5_channel_tell(channels[i], crowd);
    return crowd;
}

uint32_t l5_channels_told(struct l5_channel *const *channels, uint32_t count)
{
    uint64_t crowd = 0;

    for (uint32_t i = 0; i < count; i++) {
        uint64_t said;

        if (channels[i]->role != L5_CLIENT || l5_channel_armed(channels[i])) /* not in use: long ago */
            continue;
        said = l5_load_relaxed(&channels[i]->control->status.crowd);
        if (said > crowd)
            crowd = said;
    }
    return crowd < L5_CROWD_MAX ? (uint32_t)crowd : L5_CROWD_MAX;
}

#ifdef __linux__
/* Allow every CPU again, those too that a cpuset may bring later; but if meanwhile, we had no CPU,
 * somebody wished us to be elsewhere, then that.  When a cpuset was changed, what we find is what it
 * allows, without the CPU that was left. */
static int return_to_all(int cpu, const cpu_set_t *others)
{
    cpu_set_t all, now, allowed;
    int rc = -1;

    memset(&all, 0xff, sizeof(all));
    if (sched_getaffinity(0, sizeof(now), &now))
        now = *others;
    for (int i = 0; rc && i < WIDENINGS; i++)
        rc = sched_setaffinity(0, sizeof(all), &all);
    if (rc || CPU_EQUAL(&now, others) || sched_getaffinity(0, sizeof(allowed), &allowed))
        return rc;
    CPU_CLR(cpu, &allowed);
    return CPU_EQUAL(&now, &allowed) ? 0 : sched_setaffinity(0, sizeof(now), &now);
}
#endif

/* Only who may run on every CPU is moved: another wish is somebody's, and is left alone.  Nobody inherits
 * the narrow mask: only this thread could hand it on, and it is here. */
int l5_leave_cpu(int cpu, uint32_t cpus)
{
#ifdef __linux__
    cpu_set_t others;

    if (cpu < 0 || cpu >= CPU_SETSIZE || sched_getaffinity(0, sizeof(others), &others) || CPU_COUNT(&others) < 2 ||
        (uint32_t)CPU_COUNT(&others) != cpus)
        return 0;
    CPU_CLR(cpu, &others);
    return !sched_setaffinity(0, sizeof(others), &others) && !return_to_all(cpu, &others);
#else
    (void)cpu, (void)cpus;
    return 0;
#endif
}

static int poll_times(struct l5_channel *const *channels, uint32_t count, int times)
{
    for (int i = 0; i < times; i++) {
        if (l5_channels_news(channels, count))
            return 1;
        l5_relax();
    }
    return 0;
}

int l5_spin(struct l5_channel *const *channels, uint32_t count, uint64_t budget_ns, uint64_t *spent_ns)
{
    uint64_t start, spent;
    int found;

    if (poll_times(channels, count, POLLS_UNTIMED))
        return 1;
    start = l5_now_ns();
    do {
        found = poll_times(channels, count, POLLS_PER_CLOCK);
        spent = l5_now_ns() - start;
    } while (!found && spent < budget_ns);
    *spent_ns += spent;
    return found;
}

int l5_yield(struct l5_channel *const *channels, uint32_t count, int times)
{
    for (int i = 0; i < times; i++) {
        sched_yield();
        if (l5_channels_news(channels, count))
            return 1;
    }
    return 0;
}
