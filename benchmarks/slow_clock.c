/* Preloaded: a monotonic clock that runs SLOWER times slower than the machine's.
 *
 * A process under valgrind is slower by about as much, and so nothing that goes by the clock (how
 * long to spin, when the event loop must run) happens more often a request than it does at full speed.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SLOWER = 100 };

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int64_t ns;
    int rc = (int)syscall(SYS_clock_gettime, clock, now);

    if (rc || clock != CLOCK_MONOTONIC)
        return rc;
    ns = ((int64_t)now->tv_sec * 1000000000 + now->tv_nsec) / SLOWER;
    now->tv_sec = ns / 1000000000;
    now->tv_nsec = ns % 1000000000;
    return 0;
}
