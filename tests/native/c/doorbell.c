/* Whoever takes the armed word of a sleeper must ring, whatever the sleeper armed for meanwhile.
 *
 * The publisher of space looks at the word (data and space) and then takes it.  Between the two the
 * sleeper, which gave up sending, arms again for data only.  If the publisher took that without
 * ringing, no message would ever wake the sleeper.  The moment between the two steps is made here
 * by a swap that lets the sleeper go first. */
#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>

#include "_atomic.h"
#include "channel.h"

static uint64_t swap_late(l5_word *word, uint64_t value);

#define l5_swap swap_late
#include "channel.c"
#undef l5_swap

enum { RING = 65536 };

static struct l5_channel sleeper, publisher;
static int arms_again;

static uint64_t swap_late(l5_word *word, uint64_t value)
{
    if (arms_again && l5_channel_arm(&sleeper, L5_ARM_DATA))
        return 0;
    return l5_swap(word, value);
}

static int publish_space(void)
{
    sleeper.tx_write += L5_ALIGN; /* as if it had sent what the publisher now gives back */
    publisher.rx_read += L5_ALIGN;
    return l5_channel_publish(&publisher);
}

int main(void)
{
    int fd = l5_segment_create(RING);

    if (fd < 0 || l5_channel_map(&sleeper, fd, RING, L5_SERVER) || l5_channel_map(&publisher, fd, RING, L5_CLIENT))
        return 2;
    for (arms_again = 0; arms_again < 2; arms_again++) {
        uint64_t rung = publisher.bells_rung;

        if (l5_channel_arm(&sleeper, L5_ARM_DATA | L5_ARM_SPACE) || !publish_space())
            return 2;
        if (!l5_load_seq(sleeper.own_armed) && publisher.bells_rung == rung) {
            fprintf(stderr, "the armed word was taken and no bell was rung\n");
            return 1;
        }
    }
    l5_channel_unmap(&sleeper);
    l5_channel_unmap(&publisher);
    close(fd);
    puts("ok");
    return 0;
}
