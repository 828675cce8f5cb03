/* What `_adaptive.c` knows of one way, the server's or the client's own: `l5/_adaptive_way.py`. */
#ifndef L5_ADAPTIVE_WAY_H
#define L5_ADAPTIVE_WAY_H

#include <math.h>

enum { KNOWN = 8, TRIED_AFTER = 32 };

static const double AVERAGED = 32.0, GAP_S = 1.0, OUTLIER = 4.0;
static const double FLOOR_FALL = 0.125, FLOOR_RISE = 0.00390625, FLOOR_RISE_S = 1.0;

typedef struct {
    long long outstanding, passed_by;
    int count; /* of latencies, up to KNOWN */
    double mean, floor, seen_at, moved_at;
    double load;                  /* under way when one was answered, on average */
    double whole;                 /* what all took on average, in the last window */
    double window_at, sum_s;      /* of this one */
    long long answers;
} Way;

static inline void way_forget(Way *self)
{
    self->count = 0;
    self->mean = self->floor = 0.0;
    self->load = 1.0;
    self->seen_at = self->window_at = -INFINITY;
    self->sum_s = self->whole = 0.0;
    self->answers = 0;
}

/* Add a latency to its window, which is over with the first one that comes late enough. */
static inline void way_add(Way *self, double latency_s, double now, double window_s)
{
    if (self->window_at == -INFINITY)
        self->window_at = now;
    self->sum_s += latency_s;
    self->answers++;
    if (now - self->window_at >= window_s) {
        self->whole = self->sum_s / (double)self->answers;
        self->window_at = now;
        self->sum_s = 0.0;
        self->answers = 0;
    }
}

/* What requests take, those too that waited for the end of a period. */
static inline double way_takes_s(const Way *self)
{
    return self->mean > self->whole ? self->mean : self->whole;
}

/* Take a latency into the average, as at most so many averages, and into the floor. */
static inline void way_note(Way *self, double latency_s, double now, double most, double load)
{
    double weight, gap = now - self->seen_at;

    if (self->count < KNOWN) {
        if (++self->count == 1 || latency_s < self->floor)
            self->floor = latency_s;
    } else {
        if (latency_s < self->floor) {
            self->floor += (latency_s - self->floor) * FLOOR_FALL;
        } else if (gap > 0.0) {
            double part = gap / FLOOR_RISE_S, raised = self->floor * (1.0 + (part < FLOOR_RISE ? part : FLOOR_RISE));

            self->floor = latency_s < raised ? latency_s : raised;
        }
        if (latency_s > self->mean * most)
            latency_s = self->mean * most;
    }
    weight = 1.0 / (self->count == KNOWN ? AVERAGED : (double)self->count);
    if (gap > 0.0 && gap < INFINITY) {
        double since = gap / (gap + GAP_S);

        if (since > weight)
            weight = since;
    }
    self->seen_at = now;
    self->mean += (latency_s - self->mean) * weight;
    self->load += (load - self->load) * weight;
}

/* What one more request will take, where those under way wait for each other. */
static inline double way_next_s(const Way *self)
{
    return way_takes_s(self) * (double)(self->outstanding + 1) / self->load;
}

static inline int way_is_due(const Way *self, double now, double explore)
{
    double takes = self->mean;
    int after = TRIED_AFTER;

    if (self->count < KNOWN) {
        takes /= (double)KNOWN;
        after /= KNOWN;
    }
    return self->passed_by >= after && self->outstanding == 0 && (now - self->seen_at) * explore > takes;
}

/* Who never says what became of requests is forgiven. */
static inline void way_forgive(Way *self, double now, double stale_s)
{
    if (self->outstanding && now - self->moved_at > stale_s)
        self->outstanding = 0;
}

#endif
