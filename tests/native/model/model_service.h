/* What service*.c needs of the kernel and the C library beyond model.h: bells in place of descriptors
 * and mutexes, a clock that stands still, memory that is forgotten with the schedule. */
#ifndef L5_MODEL_SERVICE_H
#define L5_MODEL_SERVICE_H

#include "model.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

int model_eventfd(void);
int model_epoll_ctl(int operation, int fd, void *pointer);
int model_epoll_wait(struct epoll_event *events, int timeout_ms);
ssize_t model_recv(int fd);
void model_lock(const void *mutex);
void model_unlock(const void *mutex);
void *model_allocate(void *old, size_t bytes);

#define eventfd(value, flags) model_eventfd()
#define eventfd_write(fd, value) bell_ring(fd, HERE)
#define eventfd_read(fd, value) ((void)(value), bell_hear(fd))
#define epoll_create1(flags) 0
#define epoll_ctl(epoll, operation, fd, event) model_epoll_ctl(operation, fd, model_pointer(event))
#define epoll_wait(epoll, events, room, timeout_ms) model_epoll_wait(events, timeout_ms)
#define recv(fd, data, bytes, flags) ((void)(data), model_recv(fd))
#define pthread_create(thread, attributes, body, argument) ((void)(argument), 0)
#define pthread_setname_np(thread, name) ((void)(name))
#define pthread_mutex_lock(mutex) model_lock(mutex)
#define pthread_mutex_unlock(mutex) model_unlock(mutex)
#define malloc(bytes) model_allocate(NULL, bytes)
#define calloc(count, bytes) model_allocate(NULL, (count) * (bytes))
#define realloc(old, bytes) model_allocate(old, bytes)
#define free(pointer) ((void)(pointer))
#define clock_gettime(clock, now) ((void)(clock), (void)(*(now) = (struct timespec){1, 0}))
#define L5_TICKS 1u

static inline void *model_pointer(const struct epoll_event *event)
{
    return event ? event->data.ptr : NULL;
}

#endif
