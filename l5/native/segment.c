/* The memory under a channel: a memfd that the client makes and the server verifies.
 *
 * The client allocates (its memory, its limits), fills every page by fallocate, seals the file
 * against shrinking and growing, maps it.  The server checks kind, size and seals, maps it, adds
 * FUTURE_WRITE and SEAL (existing mappings stay writable; from then on nobody can punch holes,
 * which would charge the server and let it read zeros) and only then checks that every block is
 * there.  After that nothing that the client does to the file can raise SIGBUS in the server.
 */
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

#include "_steps.h"
#include "channel.h"

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif
#ifndef MAP_FIXED_NOREPLACE
#ifdef __linux__
#define MAP_FIXED_NOREPLACE 0x100000
#else
#define MAP_FIXED_NOREPLACE 0
#endif
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

static uint64_t page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t file_bytes(uint64_t ring_bytes)
{
    return page_bytes() + 2 * ring_bytes;
}

/* The ring must be a power of two of whole pages: positions are masked, mirrors are mapped. */
static int geometry_ok(uint64_t ring_bytes)
{
    return ring_bytes >= page_bytes() && ring_bytes <= (1ull << 30) && !(ring_bytes & (ring_bytes - 1));
}

#ifdef __linux__

int l5_memfd_create(void)
{
    int fd = memfd_create("l5", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

    if (fd < 0 && errno == EINVAL) /* older kernels do not know NOEXEC_SEAL */
        fd = memfd_create("l5", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return fd < 0 ? -errno : fd;
}

static int fill(int fd, uint64_t ring_bytes)
{
    struct l5_control control = {
        .magic = L5_MAGIC, .page_bytes = page_bytes(), .ring_bytes = ring_bytes};
    uint64_t bytes = file_bytes(ring_bytes);

    if (ftruncate(fd, (off_t)bytes) < 0)
        return -errno;
    /* All of it now: a lack of memory is an error here and not a signal later. */
    if (fallocate(fd, 0, 0, (off_t)bytes) < 0)
        return -errno;
    if (pwrite(fd, &control, sizeof(control), 0) != (ssize_t)sizeof(control))
        return -EIO;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
        return -errno;
    return 0;
}

int l5_segment_create(uint64_t ring_bytes)
{
    int fd, rc;

    if (!geometry_ok(ring_bytes))
        return -EINVAL;
    fd = l5_memfd_create();
    if (fd < 0)
        return fd;
    L5_STEP(41); /* (client, shm): the file is made, and empty */
    rc = fill(fd, ring_bytes);
    if (rc) {
        close(fd);
        return rc;
    }
    L5_STEP(42); /* (client, shm): the file is filled and sealed */
    return fd;
}

static int refuse(const char **why, const char *text)
{
    *why = text;
    return -EPERM;
}

/* Only memfds and their like have seals, and asking for them is the one question that a file system of
 * the client's own making cannot leave unanswered: so it comes before all others. */
static int check_seals(int fd, const char **why)
{
    const int needed = F_SEAL_SHRINK | F_SEAL_GROW;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0)
        return refuse(why, "the descriptor cannot be sealed: it is no memfd");
    if ((seals & needed) != needed)
        return refuse(why, "the memory is not sealed against shrinking and growing");
    if (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))
        return refuse(why, "the memory is sealed against writing");
    if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR)
        return refuse(why, "the descriptor is not open for reading and writing");
    return 0;
}

/* The client wrote down what it made; nothing that is read here is ever used. */
static int check_mark(int fd, uint64_t ring_bytes, const char **why)
{
    struct l5_control control;

    if (pread(fd, &control, sizeof(control), 0) != (ssize_t)sizeof(control) || control.magic != L5_MAGIC)
        return refuse(why, "the memory does not begin with the mark of a pair of rings");
    if (control.page_bytes != page_bytes() || control.ring_bytes != ring_bytes)
        return refuse(why, "the memory was made for rings or pages of another size");
    return 0;
}

int l5_segment_verify(int fd, uint64_t ring_bytes, const char **why)
{
    struct stat status;
    struct statfs system;

    if (!geometry_ok(ring_bytes))
        return refuse(why, "the ring size is not a power of two of whole pages up to 1 GiB");
    if (check_seals(fd, why))
        return -EPERM;
    if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode))
        return refuse(why, "the descriptor is not a file");
    if (fstatfs(fd, &system) < 0 || system.f_type != TMPFS_MAGIC)
        return refuse(why, "the memory has no ordinary pages: huge ones cannot be mapped as rings");
    if ((uint64_t)status.st_size != file_bytes(ring_bytes))
        return refuse(why, "the memory has not the size that was announced");
    return check_mark(fd, ring_bytes, why);
}

/* After mapping: forbid hole punching, then make sure that there are no holes.  The client does the same
 * once the server has mapped: a server could have punched holes, for which the client would pay. */
int l5_segment_lock(int fd, uint64_t ring_bytes, const char **why)
{
    struct stat status;

    if (fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0) {
        int seals = fcntl(fd, F_GET_SEALS);

        if (seals < 0 || !(seals & F_SEAL_FUTURE_WRITE))
            return refuse(why, "the memory cannot be sealed against hole punching");
    }
    /* Blocks behind the end count as well and must not make up for holes: they are cut off, and the
     * seal against growing keeps them from coming back. */
    if (ftruncate(fd, (off_t)file_bytes(ring_bytes)) < 0 || fstat(fd, &status) < 0 ||
        (uint64_t)status.st_blocks * 512 < file_bytes(ring_bytes))
        return refuse(why, "the memory has holes");
    return 0;
}

#else

int l5_memfd_create(void)
{
    return -ENOSYS;
}

int l5_segment_create(uint64_t ring_bytes)
{
    (void)ring_bytes;
    return -ENOSYS;
}

int l5_segment_verify(int fd, uint64_t ring_bytes, const char **why)
{
    (void)fd;
    (void)ring_bytes;
    *why = "shared memory needs Linux";
    return -ENOSYS;
}

int l5_segment_lock(int fd, uint64_t ring_bytes, const char **why)
{
    return l5_segment_verify(fd, ring_bytes, why);
}

#endif

static int map_twice(uint8_t *at, int fd, uint64_t offset, uint64_t bytes)
{
    for (int i = 0; i < 2; i++)
        if (mmap(at + i * bytes, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                 (off_t)offset) == MAP_FAILED)
            return -errno;
    return 0;
}

static int map_all(uint8_t *base, int fd, uint64_t ring_bytes)
{
    uint64_t page = page_bytes();
    int rc;

    if (mmap(base, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        return -errno;
    rc = map_twice(base + page, fd, page, ring_bytes);
    if (!rc)
        rc = map_twice(base + page + 2 * ring_bytes, fd, page + ring_bytes, ring_bytes);
    return rc;
}

/* Wire the two rings to the role: what the client sends on the server receives on. */
static void wire(struct l5_channel *channel, uint8_t *base, int role)
{
    uint64_t page = page_bytes(), ring = channel->ring_bytes;
    struct l5_control *control = (struct l5_control *)(void *)base;
    uint8_t *rings[2] = {base + page, base + page + 2 * ring};

    channel->control = control;
    channel->tx_base = rings[role == L5_CLIENT ? 0 : 1];
    channel->rx_base = rings[role == L5_CLIENT ? 1 : 0];
    channel->tx_read = &control->read[role == L5_CLIENT ? 0 : 1].word;
    channel->rx_position = &control->read[role == L5_CLIENT ? 1 : 0].word;
    channel->own_armed = &control->armed[role].word;
    channel->peer_armed = &control->armed[1 - role].word;
}

int l5_channel_map(struct l5_channel *channel, int fd, uint64_t ring_bytes, int role)
{
    size_t bytes = page_bytes() + 4 * ring_bytes;
    uint8_t *base;
    int rc;

    if (!geometry_ok(ring_bytes))
        return -EINVAL;
    base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return -errno;
    rc = map_all(base, fd, ring_bytes);
    if (rc) {
        munmap(base, bytes);
        return rc;
    }
#ifdef MADV_DONTFORK
    madvise(base, bytes, MADV_DONTFORK); /* a forked child must not keep the peer's memory */
#endif
    L5_STEP(43); /* (both, shm): the memory is mapped; at the server, holes can still be punched */
    memset(channel, 0, sizeof(*channel));
    channel->ring_bytes = ring_bytes;
    channel->map_bytes = bytes;
    channel->role = role;
    channel->bell = -1;
    channel->cpu = channel->peer_cpu = -1;
    channel->rx_hold = UINT64_MAX;
    wire(channel, base, role);
    return 0;
}

void l5_channel_unmap(struct l5_channel *channel)
{
    if (channel->control)
        munmap(channel->control, channel->map_bytes);
    channel->control = NULL;
}

int l5_mapping_blank(void *base, uint64_t map_bytes)
{
    void *at = mmap(base, map_bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

    if (at == MAP_FAILED)
        return -errno;
    if (at == base)
        return 0;
    munmap(at, map_bytes); /* an older kernel took the address for a hint */
    return -EEXIST;
}

int l5_channel_blank(struct l5_channel *channel)
{
    return l5_mapping_blank(channel->control, channel->map_bytes);
}
