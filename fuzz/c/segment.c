/* Memory that a hostile client offers, and what it does to it before, between and after our checks.
 *
 * If all checks pass, then nothing that the client can do to the file harms us: every byte of the
 * mapping can be read and written, and keeps what we wrote there. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "channel.h"
#include "input.h"

enum { PAGE = 4096, RING = 4096, BYTES = PAGE + 2 * RING };

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

static uint8_t *theirs; /* the client's own mapping, or NULL */

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    CHECK(sysconf(_SC_PAGESIZE) == PAGE);
    return 0;
}

static int offered(uint8_t kind)
{
    int pipes[2];

    switch (kind % 16) {
    case 0:
        return memfd_create("fuzz", MFD_CLOEXEC); /* nobody can seal it */
    case 1:
        CHECK(!pipe2(pipes, O_CLOEXEC));
        close(pipes[1]);
        return pipes[0];
    case 2:
        return eventfd(0, EFD_CLOEXEC);
    case 3:
        return open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    case 4:
        return open("/dev/zero", O_RDWR | O_CLOEXEC);
    case 5:
        return -1;
    case 6: case 7:
        return l5_segment_create(RING);
    default:
        return memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    }
}

static off_t somewhere(struct input *input)
{
    return (off_t)(take8(input) % 8) * (PAGE / 2);
}

/* One thing that a client can do to its file; what is no memfd is the machine's, and left alone. */
static void tamper(struct input *input, int fd)
{
    static const int seals[] = {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_WRITE,
                                F_SEAL_FUTURE_WRITE, F_SEAL_SEAL, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL};
    const int keep = FALLOC_FL_KEEP_SIZE;
    off_t at;
    int done;

    if (fcntl(fd, F_GET_SEALS) < 0)
        return;
    switch (take8(input) % 12) {
    case 0: done = ftruncate(fd, BYTES); break;
    case 1: done = ftruncate(fd, somewhere(input) + (take8(input) & 1)); break;
    case 2: done = fallocate(fd, 0, 0, BYTES); break;
    case 3: at = somewhere(input); done = fallocate(fd, keep, at, PAGE * (1 + take8(input) % 8)); break;
    case 4: at = somewhere(input); done = fallocate(fd, FALLOC_FL_PUNCH_HOLE | keep, at, PAGE); break;
    case 5: done = fallocate(fd, FALLOC_FL_ZERO_RANGE | keep, somewhere(input), PAGE); break;
    case 6: case 7: done = fcntl(fd, F_ADD_SEALS, seals[take8(input) % 7]); break;
    case 8: at = somewhere(input); done = pwrite(fd, "hostile", 7, at) == 7; break;
    case 9:
        if (!theirs)
            theirs = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (theirs == MAP_FAILED)
            theirs = NULL;
        done = 1;
        break;
    case 10: done = theirs ? madvise(theirs + somewhere(input) % BYTES / PAGE * PAGE, PAGE, MADV_REMOVE) : 0; break;
    default: done = fchmod(fd, take8(input) & 1 ? 0 : 0700); break;
    }
    (void)done; /* it may be refused: that is the point */
}

static void tamper_some(struct input *input, int fd)
{
    for (int steps = take8(input) % 6; fd >= 0 && steps > 0; steps--)
        tamper(input, fd);
}

/* What is believed now must hold for ever. */
static void use(struct input *input, int fd, struct l5_channel *channel)
{
    uint8_t *base = (uint8_t *)channel->control;

    for (int round = 0; round < 2; round++) {
        for (size_t at = 0; at < channel->map_bytes; at += PAGE / 2)
            base[at + 9] = (uint8_t)(at / PAGE + (size_t)round); /* SIGBUS, if a page can be missing */
        tamper_some(input, fd);
        for (size_t at = 0; at < channel->map_bytes; at += PAGE / 2) {
            size_t page = at / PAGE; /* control, ring, mirror, ring, mirror: the mirror was written last */

            page += page == 1 || page == 3;
            CHECK(base[at + 9] == (uint8_t)(page + (size_t)round));
        }
    }
    CHECK(lseek(fd, 0, SEEK_END) == BYTES);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    struct l5_channel channel;
    const char *why = NULL;
    int fd = offered(take8(&input)), rc;

    tamper_some(&input, fd);
    rc = l5_segment_verify(fd, RING, &why);
    CHECK(rc == 0 || (rc == -EPERM && why && *why));
    tamper_some(&input, fd);
    if (!rc && !l5_channel_map(&channel, fd, RING, take8(&input) & 1)) {
        tamper_some(&input, fd);
        why = NULL;
        rc = l5_segment_lock(fd, RING, &why);
        CHECK(rc == 0 || (rc == -EPERM && why && *why));
        if (!rc)
            use(&input, fd, &channel);
        l5_channel_unmap(&channel);
    }
    if (theirs)
        munmap(theirs, BYTES);
    theirs = NULL;
    if (fd >= 0)
        close(fd);
    return 0;
}
