/* Whether more gets done if the server has some of several requests, as windows of time tell: `_judge` and
 * `_choose_next` of `l5/_adaptive_model.py`. */
#ifndef L5_ADAPTIVE_WINDOWS_H
#define L5_ADAPTIVE_WINDOWS_H

enum { TRIED_EACH = 16, TRIED_FIRST = 4, TRIES_MAX = 16 };

typedef struct {
    int lends, offered; /* the server gets some of several requests; in this window, one could go either way */
    int better, tries;  /* the way that seemed better, and how often the other one has been tried since it did */
    double rates[2], at;
    long long requests, count; /* in this window; windows since the other way was tried */
} Windows;

static inline void windows_forget(Windows *self, double now)
{
    self->lends = self->better = 1;
    self->offered = self->tries = 0;
    self->rates[0] = self->rates[1] = 0.0;
    self->at = now;
    self->requests = self->count = 0;
}

/* Choose what the next window is for. */
static inline void windows_choose(Windows *self, double explore)
{
    double without = self->rates[0], with_some = self->rates[1], wait;
    int better = with_some > without;

    if (!(without > 0.0 && with_some > 0.0)) {
        self->lends = !self->lends;
        return;
    }
    if (better != self->better) {
        self->better = better;
        self->tries = 0;
    }
    self->count = self->lends == better ? self->count + 1 : 0;
    wait = (1.0 - (better ? without / with_some : with_some / without)) / explore;
    if (wait < TRIED_EACH)
        wait = TRIED_EACH;
    if (wait > (double)((long long)TRIED_FIRST << self->tries))
        wait = (double)((long long)TRIED_FIRST << self->tries);
    if ((double)self->count < wait) {
        self->lends = better;
        return;
    }
    self->lends = !better;
    self->tries += self->tries < TRIES_MAX;
}

/* (At the end of a window) find out whether more gets done if the server has some of ours. */
static inline void windows_judge(Windows *self, double now, double window_s, double explore)
{
    double taken_s = now - self->at;

    if (self->offered && taken_s < window_s * 2.0) {
        double rate = (double)self->requests / taken_s, known = self->rates[self->lends];

        self->rates[self->lends] = known > 0.0 ? known + (rate - known) * 0.5 : rate;
        windows_choose(self, explore);
    }
    self->at = now;
    self->requests = 0;
    self->offered = 0;
}

#endif
