/* What the files of the service share. Internal. */
#ifndef CATFISH_SERVICE_INTERNAL_H
#define CATFISH_SERVICE_INTERNAL_H

#include <pthread.h>
#include <time.h>

#include "l5_handler.h"
#include "service_handler.h"

#define RECT_BYTES ((size_t)32)
#define ID_BYTES ((size_t)8)
#define ROW_BYTES (RECT_BYTES + ID_BYTES)

/* One request being answered: what came behind its head, and where the answer goes. */
struct call {
    struct rt_service *service;
    struct rtree *tree;
    struct l5_reply *reply;
    const uint8_t *body; /* aligned to 8 bytes */
    size_t size;
    uint32_t argument;
};

/* Rows that have come for a bulk load; protected by the mutex of the service. */
struct load {
    uint64_t token; /* 0: there is none */
    uint64_t total;
    uint64_t count;
    uint64_t used_ns;
    double *rects;
    uint64_t *ids;
};

/* The counts of one thread, alone on its cache lines. */
struct counts {
    _Alignas(64) uint64_t of[RT_SERVICE_OPERATIONS];
};

struct rt_service {
    struct rtree *tree;
    uint32_t workers;
    uint32_t capacity_nodes;
    uint64_t started_ns;
    uint64_t loads;
    pthread_mutex_t mutex;
    struct load load;
    uint32_t connections;
    uint32_t busy_millionths;
    struct counts counts[];
};

static inline uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The rectangles that a body begins with. */
static inline const double *doubles(const struct call *call)
{
    return (const double *)(const void *)call->body;
}

static inline uint64_t number_at(const struct call *call, size_t offset)
{
    uint64_t number;

    memcpy(&number, call->body + offset, sizeof number);
    return number;
}

/* Answer with a ValueError, a TreeFull...: what rt_service_handle returns then. */
int service_refuse(struct call *call, const char *type, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
int service_bad_size(struct call *call);
int service_bad_rect(struct call *call, const double rect[4], int query);
int service_bad_row(struct call *call, const double *rects, size_t row, size_t first, int query);
int service_full_row(struct call *call, size_t row);

int service_answer_number(struct call *call, uint64_t number);

int service_search(struct call *call);
int service_count(struct call *call);
int service_nearest(struct call *call);
int service_search_many(struct call *call);
int service_level_rects(struct call *call);

int service_load_begin(struct call *call);
int service_load_part(struct call *call);
int service_load_end(struct call *call);
int service_load_abort(struct call *call);

#endif
