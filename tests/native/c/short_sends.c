/* Preloaded: a socket takes a few bytes of what is sent, one more each time, so that in the end every
 * frame has been cut at every place. */
#define _GNU_SOURCE
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum { MOST = 61 }; /* no multiple of a frame's length: the cuts wander */

static size_t limit(void)
{
    static unsigned int turn;

    return 1 + turn++ % MOST;
}

ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
    size_t most = limit();

    return syscall(SYS_sendto, fd, data, bytes < most ? bytes : most, flags, NULL, 0);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    size_t left = limit();
    struct msghdr less = *message;
    struct iovec parts[2];

    if (message->msg_controllen || message->msg_iovlen > 2)
        return syscall(SYS_sendmsg, fd, message, flags);
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        parts[i] = message->msg_iov[i];
        if (parts[i].iov_len > left)
            parts[i].iov_len = left;
        left -= parts[i].iov_len;
    }
    less.msg_iov = parts;
    return syscall(SYS_sendmsg, fd, &less, flags);
}
