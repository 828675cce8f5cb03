/* Remote memory: files, mappings, copies.  Theory: region.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/magic.h>
#include <sys/statfs.h>
#endif

#include "channel.h"
#include "region.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

#define HUGE_PAGE ((uint64_t)2 << 20)

uint64_t l5_region_map_bytes(uint64_t size_bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    return (size_bytes + page - 1) & ~(page - 1);
}

/* Of huge pages, those that lie whole in so much memory. */
static uint64_t huge_bytes(uint64_t bytes)
{
    return bytes & ~(HUGE_PAGE - 1);
}

/* Map where huge pages can be: on a boundary of theirs, found in more room than is wanted. */
static void *map_aligned(int fd, uint64_t bytes, int rights)
{
    uint8_t *room, *at;
    void *mapped;

    if (!huge_bytes(bytes))
        return mmap(NULL, bytes, rights, MAP_SHARED, fd, 0);
    room = mmap(NULL, bytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        return MAP_FAILED;
    at = room + (-(uintptr_t)room & (HUGE_PAGE - 1));
    mapped = mmap(at, bytes, rights, MAP_SHARED | MAP_FIXED, fd, 0);
    if (mapped == MAP_FAILED) {
        munmap(room, bytes + HUGE_PAGE);
        return MAP_FAILED;
    }
    if (at > room)
        munmap(room, (size_t)(at - room));
    if (at < room + HUGE_PAGE)
        munmap(at + bytes, (size_t)(room + HUGE_PAGE - at));
    return mapped;
}

/* ---- the file -------------------------------------------------------------------------------- */

#ifdef __linux__

/* Fill the file with huge pages, as far as whole ones fit and the kernel has some. Its setting for shared memory is mostly
 * `never`, which MADV_COLLAPSE overrides and `deny` does not; it takes what has one page at least, and is quickest so. */
static void fill_with_huge_pages(int fd, uint64_t bytes)
{
    uint64_t huge = huge_bytes(bytes);
    void *at;

    if (!huge)
        return;
    at = map_aligned(fd, huge, PROT_READ | PROT_WRITE);
    if (at == MAP_FAILED)
        return;
    if (fallocate(fd, 0, 0, 1) == 0 && madvise(at, HUGE_PAGE, MADV_COLLAPSE) == 0) {
        for (uint64_t offset = HUGE_PAGE; offset < huge; offset += HUGE_PAGE)
            if (fallocate(fd, 0, (off_t)offset, 1) < 0)
                break;
        madvise(at, huge, MADV_COLLAPSE);
    }
    munmap(at, huge);
}

int l5_region_create(uint64_t size_bytes)
{
    uint64_t bytes = l5_region_map_bytes(size_bytes);
    int fd, rc = 0;

    if (!size_bytes || size_bytes > L5_REGION_BYTES_MAX)
        return -EINVAL;
    fd = l5_memfd_create();
    if (fd < 0)
        return fd;
    /* All of it now: a lack of memory is an error here and not a signal later. */
    if (ftruncate(fd, (off_t)bytes) < 0)
        rc = -errno;
    if (!rc) {
        fill_with_huge_pages(fd, bytes);
        rc = fallocate(fd, 0, 0, (off_t)bytes) < 0 ? -errno : 0;
    }
    if (rc)
        close(fd);
    return rc ? rc : fd;
}

int l5_region_seal(int fd, int writable)
{
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

    return fcntl(fd, F_ADD_SEALS, writable ? seals : seals | F_SEAL_FUTURE_WRITE) < 0 ? -errno : 0;
}

static int refuse(const char **why, const char *text)
{
    *why = text;
    return -EPERM;
}

/* First of all: see check_seals in segment.c. */
static int check_seals(int fd, int writable, const char **why)
{
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0)
        return refuse(why, "the descriptor cannot be sealed: it is no memfd");
    if (!(seals & F_SEAL_SHRINK) || !(seals & F_SEAL_GROW))
        return refuse(why, "the region is not sealed against shrinking and growing");
    if (writable && (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)))
        return refuse(why, "the region is said to be writable, and is sealed against writing");
    if (!writable && !(seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)))
        return refuse(why, "the region is said to be read-only, and is not sealed against writing");
    return 0;
}

int l5_region_verify(int fd, uint64_t size_bytes, int writable, const char **why)
{
    struct stat status;
    struct statfs system;

    if (!size_bytes || size_bytes > L5_REGION_BYTES_MAX)
        return refuse(why, "the region is empty, or larger than any can be");
    if (check_seals(fd, writable, why))
        return -EPERM;
    if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode))
        return refuse(why, "the descriptor is not a file");
    if (fstatfs(fd, &system) < 0 || system.f_type != TMPFS_MAGIC)
        return refuse(why, "the region has no ordinary pages");
    if ((uint64_t)status.st_size != l5_region_map_bytes(size_bytes))
        return refuse(why, "the region has not the size that was announced");
    if ((uint64_t)status.st_blocks * 512 < (uint64_t)status.st_size)
        return refuse(why, "the region has holes");
    return 0;
}

#else

int l5_region_create(uint64_t size_bytes)
{
    (void)size_bytes;
    return -ENOSYS;
}

int l5_region_seal(int fd, int writable)
{
    (void)fd;
    (void)writable;
    return -ENOSYS;
}

int l5_region_verify(int fd, uint64_t size_bytes, int writable, const char **why)
{
    (void)fd;
    (void)size_bytes;
    (void)writable;
    *why = "shared memory needs Linux";
    return -ENOSYS;
}

#endif

/* ---- mappings -------------------------------------------------------------------------------- */

int l5_region_map(int fd, uint64_t size_bytes, int writable, int alien, uint8_t **base)
{
    uint64_t bytes = l5_region_map_bytes(size_bytes);
    void *at = map_aligned(fd, bytes, PROT_READ | (writable ? PROT_WRITE : 0));

    if (at == MAP_FAILED)
        return -errno;
#ifdef MADV_DONTFORK
    if (alien)
        madvise(at, bytes, MADV_DONTFORK); /* a forked child must not keep the peer's memory */
#else
    (void)alien;
#endif
    *base = at;
    return 0;
}

void l5_region_unmap(uint8_t *base, uint64_t map_bytes)
{
    munmap(base, map_bytes);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* The word around an address: mappings are whole pages, so it is there whole. */
static const l5_word *word_around(const uint8_t *there)
{
    return (const l5_word *)(const void *)(there - ((uintptr_t)there & 7));
}

/* Copy what an aligned word has of [there, there + bytes); return how much that is. */
static size_t read_part(uint8_t *here, const uint8_t *there, size_t bytes)
{
    size_t skip = (uintptr_t)there & 7, count = 8 - skip;
    uint64_t value = l5_load_acquire(word_around(there));

    if (count > bytes)
        count = bytes;
    memcpy(here, (const uint8_t *)&value + skip, count);
    return count;
}

void l5_region_read(void *to, const uint8_t *there, size_t bytes)
{
    uint8_t *here = to;
    size_t done = 0;

    if (bytes && ((uintptr_t)there & 7))
        done = read_part(here, there, bytes);
    for (; bytes - done >= 8; done += 8) {
        uint64_t value = l5_load_acquire((const l5_word *)(const void *)(there + done)); /* pairs with: FORWARD */

        memcpy(here + done, &value, 8);
    }
    if (bytes - done)
        read_part(here + done, there + done, bytes - done);
}

void l5_region_write(uint8_t *there, const void *from, size_t bytes)
{
    const uint8_t *here = from;
    size_t done = 0;

    for (; done < bytes && ((uintptr_t)(there + done) & 7); done++)
        l5_store_byte(there + done, here[done]);
    for (; bytes - done >= 8; done += 8) {
        uint64_t value;

        memcpy(&value, here + done, 8);
        l5_store_release((l5_word *)(void *)(there + done), value); /* pairs with: FORWARD */
    }
    for (; done < bytes; done++)
        l5_store_byte(there + done, here[done]);
}
