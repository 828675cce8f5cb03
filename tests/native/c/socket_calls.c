/* Preloaded: counts the system calls that a request over a socket is made of, by their names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>

enum name { RECV, SEND, SENDMSG, EPOLL_WAIT, EPOLL_CTL, READ, WRITE, NAMES };

static uint64_t counts[NAMES];

uint64_t calls_of(int name);
uint64_t calls_of(int name)
{
    return counts[name];
}

static void *next(enum name name, const char *symbol)
{
    static void *found[NAMES];

    counts[name]++;
    if (!found[name])
        found[name] = dlsym(RTLD_NEXT, symbol);
    if (!found[name])
        abort();
    return found[name];
}

ssize_t recv(int fd, void *room, size_t bytes, int flags)
{
    return ((ssize_t(*)(int, void *, size_t, int))next(RECV, "recv"))(fd, room, bytes, flags);
}

ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
    return ((ssize_t(*)(int, const void *, size_t, int))next(SEND, "send"))(fd, data, bytes, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    return ((ssize_t(*)(int, const struct msghdr *, int))next(SENDMSG, "sendmsg"))(fd, message, flags);
}

int epoll_wait(int fd, struct epoll_event *events, int room, int milliseconds)
{
    return ((int (*)(int, struct epoll_event *, int, int))next(EPOLL_WAIT, "epoll_wait"))(fd, events, room,
                                                                                     milliseconds);
}

int epoll_ctl(int fd, int what, int other, struct epoll_event *event)
{
    return ((int (*)(int, int, int, struct epoll_event *))next(EPOLL_CTL, "epoll_ctl"))(fd, what, other, event);
}

ssize_t read(int fd, void *room, size_t bytes)
{
    return ((ssize_t(*)(int, void *, size_t))next(READ, "read"))(fd, room, bytes);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    return ((ssize_t(*)(int, const void *, size_t))next(WRITE, "write"))(fd, data, bytes);
}
