/* The busy share of a worker that never spins, from clocks that are made up. */
#include "busy.h"
#include "service_harness.h"

#define MS 1000000u

static struct l5_busy busy;
static struct l5_busy_reading reading;

/* Return the share, in thousandths, of an interval in which the clocks went on by so much. */
static int after(uint64_t wall_ms, uint64_t ran_us, uint64_t waited_us)
{
    reading.now_ns += wall_ms * MS;
    reading.thread_ns += ran_us * 1000;
    reading.process_ns += ran_us * 1000;
    reading.waited_ns += waited_us * 1000;
    return (int)(l5_busy_share(&busy, &reading, wall_ms * MS) * 1000 + 0.5);
}

static void begin(uint64_t quota_millionths)
{
    memset(&busy, 0, sizeof(busy));
    memset(&reading, 0, sizeof(reading));
    reading.now_ns = 5000 * MS;
    reading.thread_ns = 70 * MS; /* starting up is no work */
    reading.process_ns = 900 * MS;
    reading.quota_millionths = quota_millionths;
    CHECK(l5_busy_share(&busy, &reading, 10 * MS) == 0);
}

int main(void)
{
    CHECK(l5_busy_waited("8210 78716 12\n") == 78716);
    CHECK(l5_busy_waited("8210") == 0 && l5_busy_waited("") == 0 && l5_busy_waited("none") == 0);

    CHECK(l5_busy_counted("nr_periods 31\nnr_throttled 8\n", "nr_throttled ") == 8);
    CHECK(l5_busy_counted("", "nr_periods ") == 0);

    begin(0); /* what runs is busy, what waits for others is, and nothing is more than full */
    CHECK(after(10, 2500, 0) == 250);
    CHECK(after(10, 0, 0) == 0);
    CHECK(after(10, 1000, 8000) == 900);
    CHECK(after(10, 9000, 9000) == 1000);

    begin(100000); /* a tenth of a processor: held back for 90 of 100 ms, it waited */
    CHECK(after(100, 10000, 90000) == 1000);

    begin(100000); /* its quota is used up in each period, but nobody waits: full all the same */
    for (int i = 0; i < 9; i++)
        CHECK(after(10, 1000, 0) == 100); /* nothing is known before the window is over */
    CHECK(after(10, 1000, 0) == 1000);
    CHECK(after(10, 500, 0) == 1000);
    CHECK(after(90, 4500, 0) == 500); /* half of it */
    CHECK(after(1000, 0, 0) == 0);    /* it slept, and says so when it wakes */

    begin(100000); /* held back in half of the periods, though some of it was lost to other processors */
    reading.periods = 50, reading.held_back = 40;
    CHECK(after(100, 6000, 0) == 600); /* how often before, nobody knows */
    reading.periods += 10, reading.held_back += 5;
    CHECK(after(100, 6000, 0) == 1000);
    reading.periods += 10, reading.held_back += 4;
    CHECK(after(100, 6000, 0) == 600);

    begin(2000000); /* a burst within a large quota is no more than it is */
    CHECK(after(100, 50000, 0) == 500);
    puts("ok");
    return 0;
}
