/* What our loop and its peer share: the same files, the same commands, the same clock.
 *
 *   search NAME COUNT   search the first COUNT rectangles of q_NAME.f64, one after another
 *   many NAME COUNT     the same in one call, where there is one
 *   insert NAME COUNT   insert the next COUNT rectangles of i_NAME.f64
 *   mix NAME COUNT      COUNT operations: nine searches and an insertion in turn
 *
 * Each is answered by "SECONDS HITS". The first line tells how long building took.
 */
#ifndef LOOP_H
#define LOOP_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct loop {
    void *tree;
    size_t next_id;
    double build_seconds;
    size_t (*search)(void *tree, const double *query);
    void (*insert)(void *tree, const double *rect, size_t id);
    size_t (*search_many)(void *tree, const double *queries, size_t n);
} loop;

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double *read_rects(const char *folder, const char *name, size_t *count)
{
    char path[1000];
    snprintf(path, sizeof path, "%s/%s.f64", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) {
        perror(path);
        exit(1);
    }
    size_t bytes = (size_t)ftell(file);
    rewind(file);
    double *rects = (double *)malloc(bytes);
    if (!rects || fread(rects, 1, bytes, file) != bytes) {
        perror(path);
        exit(1);
    }
    fclose(file);
    *count = bytes / 32;
    return rects;
}

/* Files are read once; insertions go on where the last ones ended. */
typedef struct rects_file {
    char name[64];
    double *rects;
    size_t count, used;
} rects_file;

static rects_file *file_named(const char *folder, char kind, const char *name)
{
    static rects_file files[16];
    char full[64];
    snprintf(full, sizeof full, "%c_%s", kind, name);
    for (int i = 0; i < 16; i++) {
        if (files[i].rects == NULL) {
            memcpy(files[i].name, full, sizeof full);
            files[i].rects = read_rects(folder, full, &files[i].count);
        }
        if (!strcmp(files[i].name, full))
            return &files[i];
    }
    fprintf(stderr, "too many files\n");
    exit(1);
}

static void insert_next(loop *l, rects_file *file)
{
    l->insert(l->tree, file->rects + 4 * (file->used++ % file->count), l->next_id++);
}

static size_t run_command(loop *l, const char *what, rects_file *queries, rects_file *inserts, size_t count)
{
    size_t hits = 0;
    if (!strcmp(what, "many"))
        return l->search_many(l->tree, queries->rects, count);
    for (size_t i = 0; i < count; i++) {
        if (!strcmp(what, "insert") || (!strcmp(what, "mix") && i % 10 == 9))
            insert_next(l, inserts);
        else
            hits += l->search(l->tree, queries->rects + 4 * (i % queries->count));
    }
    return hits;
}

static int obey(loop *l, const char *folder)
{
    char what[16], name[32];
    size_t count;
    printf("%.9f\n", l->build_seconds);
    fflush(stdout);
    while (scanf("%15s %31s %zu", what, name, &count) == 3) {
        rects_file *queries = file_named(folder, 'q', name), *inserts = file_named(folder, 'i', name);
        double start = seconds();
        size_t hits = run_command(l, what, queries, inserts, count);
        printf("%.9f %zu\n", seconds() - start, hits);
        fflush(stdout);
    }
    return 0;
}

#endif
