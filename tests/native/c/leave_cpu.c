/* l5_leave_cpu on a kernel that plays tricks: what a thread may use afterwards.  Prints "ok". */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cpu_set_t mask, wished; /* as the kernel has it: what is allowed here, and what was asked for */
static cpu_set_t cpuset;
static int calls, refusals;
static void (*meanwhile)(void); /* after the first narrowing */

static void wish(const cpu_set_t *set)
{
    wished = *set;
    CPU_AND(&mask, &wished, &cpuset);
}

static int played_get(pid_t thread, size_t bytes, cpu_set_t *set)
{
    (void)thread;
    memcpy(set, &mask, bytes);
    return 0;
}

static int played_set(pid_t thread, size_t bytes, const cpu_set_t *set)
{
    (void)thread, (void)bytes;
    if (calls++ && refusals) {
        refusals--;
        errno = ENOMEM;
        return -1;
    }
    wish(set);
    if (calls == 1 && meanwhile)
        meanwhile();
    return 0;
}

#define sched_getaffinity played_get
#define sched_setaffinity played_set
#include "wait.c"

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "line %d: %s\n", __LINE__, #what); \
            exit(1); \
        } \
    } while (0)

static cpu_set_t cpus(int first, int count)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    for (int i = first; i < first + count; i++)
        CPU_SET(i, &set);
    return set;
}

static void begin(int allowed, void (*then)(void), int refused)
{
    cpu_set_t all = cpus(0, CPU_SETSIZE);

    cpuset = cpus(0, allowed);
    wish(&all);
    meanwhile = then;
    refusals = refused;
    calls = 0;
}

static int is(const cpu_set_t *set, int first, int count)
{
    cpu_set_t wanted = cpus(first, count);

    return CPU_EQUAL(set, &wanted);
}

static void user_pins(void)
{
    cpu_set_t set = cpus(1, 2);

    wish(&set);
}

static void user_pins_to_the_server(void)
{
    cpu_set_t set = cpus(0, 1);

    wish(&set);
}

static void cpuset_shrinks(void)
{
    cpuset = cpus(0, 4);
    wish(&wished);
}

int main(void)
{
    begin(8, NULL, 0);
    CHECK(l5_leave_cpu(0, 8) && calls == 2 && is(&wished, 0, CPU_SETSIZE));
    begin(8, NULL, 5); /* the kernel had no memory: asked until it has */
    CHECK(l5_leave_cpu(0, 8) && is(&wished, 0, CPU_SETSIZE));
    begin(8, user_pins, 0);
    (void)l5_leave_cpu(0, 8);
    CHECK(is(&wished, 1, 2));
    begin(8, user_pins_to_the_server, 0);
    (void)l5_leave_cpu(0, 8);
    CHECK(is(&wished, 0, 1));
    begin(8, cpuset_shrinks, 0); /* nobody wished anything: all of what a cpuset will bring later */
    CHECK(l5_leave_cpu(0, 8) && is(&wished, 0, CPU_SETSIZE));
    begin(4, NULL, 0); /* not all of the machine's */
    CHECK(!l5_leave_cpu(0, 8) && !calls);
    begin(1, NULL, 0); /* nowhere to go */
    CHECK(!l5_leave_cpu(0, 1) && !calls);
    CHECK(!l5_leave_cpu(-1, 8) && !l5_leave_cpu(CPU_SETSIZE, 8));
    puts("ok");
    return 0;
}
