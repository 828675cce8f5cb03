/* Two coroutines under a scheduler that tries everything.
 *
 * A schedule is a list of choices: who goes on, which stores have landed, which value a load finds.
 * It is run from the start, taking the first option wherever nothing is prescribed; then the last
 * choice that has options left takes its next one, and all is run again (depth first, no states are
 * kept).  A switch while the side could go on is a forced one; a bound on those (and on stale loads)
 * keeps longer runs short, everything else is tried.
 *
 * Without a bound, orders that cannot differ are tried once (sleep sets): after "mine first" was
 * tried, "yours first" is only worth it if you do something that touches my next action, so I sleep
 * until you do; if you never do, the schedule is one that has been seen. */
#define MODEL_ITSELF
#include <stdarg.h>
#include <ucontext.h>

#include "model.h"

enum { CHOICES_MAX = 4096, STEPS_MAX = 4000, STACK_BYTES = 65536 };

struct side {
    ucontext_t context;
    struct action next;
    int dormant; /* in the sleep set */
    int done;
};

static struct choice {
    int taken, options;
} choices[CHOICES_MAX];
static int chosen, recorded;
static struct side sides[SIDES];
static char stacks[SIDES][STACK_BYTES];
static ucontext_t home;
static void (*body)(int);
static int switches, switches_limit, stale, stale_limit, steps, telling, redundant, ended;
static char failure[256];
static int rung, ended_bells; /* a bit for each bell */

int me;
const char *const side_names[SIDES] = {"client", "server"};

static _Noreturn void leave(void)
{
    setcontext(&home);
    abort();
}

void model_fail(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(failure, sizeof(failure), format, arguments);
    va_end(arguments);
    leave();
}

void impossible(void)
{
    redundant = 1;
    leave();
}

void tell(struct place place, const char *format, ...)
{
    char text[160];
    va_list arguments;

    if (!telling)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    printf("  %-7s %-52s %s:%d\n", side_names[me], text, place.function, place.line);
}

/* ---- choices --------------------------------------------------------------------------------- */

int choose(int options)
{
    if (options <= 1)
        return 0;
    if (chosen == CHOICES_MAX)
        model_fail("a schedule of more than %d choices", CHOICES_MAX);
    if (chosen == recorded)
        choices[recorded++] = (struct choice){0, options};
    else if (choices[chosen].options != options)
        model_fail("the model is not deterministic");
    return choices[chosen++].taken;
}

int choose_stale(int options)
{
    int taken = stale_limit && stale >= stale_limit ? 0 : choose(options);

    stale += taken != 0;
    return taken;
}

/* To the next schedule; 0 when there is none. */
static int backtrack(void)
{
    while (recorded && choices[recorded - 1].taken + 1 == choices[recorded - 1].options)
        recorded--;
    if (!recorded)
        return 0;
    choices[recorded - 1].taken++;
    return 1;
}

/* ---- who runs -------------------------------------------------------------------------------- */

/* Does it matter which of the two comes first: `theirs`, of the other side, or `mine`? */
static int depend(const struct action *theirs, const struct action *mine)
{
    int overlap = theirs->cell < mine->cell + mine->count && mine->cell < theirs->cell + theirs->count;
    int stores = (theirs->kind != LOAD) + (mine->kind != LOAD);

    if (theirs->kind == BEGIN || mine->kind == BEGIN)
        return 1;
    if (theirs->kind == NOTHING || mine->kind == NOTHING || (theirs->kind > SWAP) != (mine->kind > SWAP))
        return 0;
    if (theirs->kind > SWAP)
        return (theirs->cell & mine->cell) != 0;
    if (theirs->kind != LOAD)
        overlap |= memory->lands(1 - me, mine->cell, mine->count);
    if (mine->kind != LOAD)
        overlap |= memory->lands(me, theirs->cell, theirs->count);
    return stores && overlap;
}

void noticed(struct action action)
{
    struct side *other = &sides[1 - me];

    if (other->dormant && depend(&other->next, &action))
        other->dormant = 0;
}

static int can_go(const struct side *side)
{
    return !side->done && (side->next.kind != SLEEP || ((rung | ended_bells) & side->next.cell));
}

static void hand_over(void)
{
    int from = me;

    me = 1 - me;
    swapcontext(&sides[from].context, &sides[me].context);
}

/* The running side cannot go on. */
static void hand_over_or_end(void)
{
    struct side *other = &sides[1 - me];

    if (can_go(other) && !other->dormant)
        hand_over();
    else if (can_go(other))
        redundant = 1, leave();
    else if (sides[0].done && sides[1].done)
        leave();
    else
        model_fail("nobody will ever wake: %s %s, %s %s", side_names[0], sides[0].done ? "has finished" : "sleeps",
             side_names[1], sides[1].done ? "has finished" : "sleeps");
}

void step(struct action action)
{
    struct side *self = &sides[me], *other = &sides[1 - me];

    if (++steps > STEPS_MAX)
        model_fail("no end after %d steps", STEPS_MAX);
    self->next = action;
    if (!can_go(self)) {
        hand_over_or_end();
    } else if (can_go(other) && !other->dormant && (!switches_limit || switches < switches_limit)) {
        if (choose(2)) {
            switches++;
            self->dormant = !switches_limit;
            hand_over();
        }
    }
    noticed(action);
    self->next.kind = NOTHING;
}

static void side_main(int number)
{
    body(number);
    sides[number].done = 1;
    hand_over_or_end();
}

static void make_side(int number)
{
    struct side *side = &sides[number];

    side->next = (struct action){BEGIN, 0, 0};
    side->dormant = side->done = 0;
    getcontext(&side->context);
    side->context.uc_stack.ss_sp = stacks[number];
    side->context.uc_stack.ss_size = STACK_BYTES;
    side->context.uc_link = NULL;
    makecontext(&side->context, (void (*)(void))side_main, 1, number);
}

static void run_once(void (*begin)(void), void (*end)(void))
{
    chosen = switches = stale = steps = redundant = ended = 0;
    failure[0] = 0;
    rung = ended_bells = 0;
    memory->reset();
    begin();
    for (int i = 0; i < SIDES; i++)
        make_side(i);
    me = choose(2);
    swapcontext(&home, &sides[me].context);
    if (!failure[0] && !redundant && !ended++) /* a failure in end() comes back here */
        end();
}

int explore(void (*begin)(void), void (*side)(int), void (*end)(void), int switches_max, int stale_max)
{
    long schedules = 0, seen = 0, steps_all = 0;

    body = side;
    switches_limit = switches_max;
    stale_limit = stale_max;
    recorded = 0;
    do {
        run_once(begin, end);
        schedules++;
        seen += redundant;
        steps_all += steps;
        if (failure[0]) {
            printf("schedule %ld fails: %s\n", schedules, failure);
            recorded = chosen;
            telling = 1;
            run_once(begin, end);
            printf("  %s\n", failure);
            return 1;
        }
    } while (backtrack());
    printf("%ld schedules (%ld cut short), %ld steps\n", schedules, seen, steps_all);
    return 0;
}

/* ---- bells ------------------------------------------------------------------------------------- */

/* The bell of a ring carries no order: what was stored before it was rung may still be seen later. */
static int orders(int bell)
{
    return bell >= SIDES;
}

static int ring(int bell, struct place place)
{
    int full;

    step((struct action){RING, 1 << bell, 1});
    full = rung & 1 << bell;
    if (orders(bell))
        memory->give(bell);
    tell(place, "rings bell %d%s", bell, full ? ", that has been rung" : "");
    rung |= 1 << bell;
    return full;
}

void bell_ring(int bell, struct place place)
{
    ring(bell, place);
}

ssize_t model_send(int socket, struct place place)
{
    if (!ring(socket, place))
        return 1;
    errno = EAGAIN;
    return -1;
}

void bell_wait(int bells)
{
    tell(HERE, "sleeps");
    step((struct action){SLEEP, bells, 1});
    tell(HERE, "wakes");
}

int bell_take(int bells)
{
    step((struct action){HEAR, bells, 1});
    return (rung | ended_bells) & bells;
}

int bell_hear(int bell)
{
    int was;

    step((struct action){HEAR, 1 << bell, 1});
    was = (rung >> bell) & 1;
    rung &= ~(1 << bell);
    if (was && orders(bell))
        memory->obtain(bell);
    tell(HERE, "reads bell %d%s", bell, was ? "" : ": nothing");
    return was;
}

void start_ringing(int bells)
{
    rung = bells;
}

void bell_end(int bell)
{
    step((struct action){RING, 1 << bell, 1});
    ended_bells |= 1 << bell;
    tell(HERE, "closes its end of bell %d", bell);
}
