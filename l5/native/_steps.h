/* Numbered steps, at which the process of a test build dies.  Elsewhere they are nothing at all.
 *
 * Compiled with -DL5_STEPS, L5_STEP(n) kills the process (SIGKILL) when the environment says
 * L5_STEP=n.  In Python the steps are comments, which the tests' importer turns into the same.
 * tests/attacks/test_steps.py reads the words behind each: who gets there, on which transports.
 */
#ifndef L5_STEPS_H
#define L5_STEPS_H

#ifdef L5_STEPS
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static inline void l5_step(int number)
{
    const char *wanted = getenv("L5_STEP");

    if (wanted && atoi(wanted) == number)
        kill(getpid(), SIGKILL);
}
#define L5_STEP(number) l5_step(number)
#else
#define L5_STEP(number) ((void)0)
#endif

#endif
