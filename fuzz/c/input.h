/* What every fuzz target needs: the input, read piece by piece, and a check that ends the program.
 *
 * An input is a program: each target reads one byte that names a step, then the step's operands.
 * What is missing at the end reads as zero, so every sequence of bytes is a valid input. */
#ifndef FUZZ_INPUT_H
#define FUZZ_INPUT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s: failed: %s\n", __FILE__, __LINE__, __func__, #condition); \
            abort();                                                                              \
        }                                                                                         \
    } while (0)

struct input {
    const uint8_t *at;
    size_t left;
};

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Copy up to `bytes` bytes; the rest is zero. */
static inline void take_bytes(struct input *input, void *to, size_t bytes)
{
    size_t have = bytes < input->left ? bytes : input->left;

    memset(to, 0, bytes);
    if (have)
        memcpy(to, input->at, have);
    input->at += have;
    input->left -= have;
}

static inline uint8_t take8(struct input *input)
{
    uint8_t value;

    take_bytes(input, &value, sizeof(value));
    return value;
}

static inline uint16_t take16(struct input *input)
{
    uint16_t value;

    take_bytes(input, &value, sizeof(value));
    return value;
}

static inline uint32_t take32(struct input *input)
{
    uint32_t value;

    take_bytes(input, &value, sizeof(value));
    return value;
}

static inline uint64_t take64(struct input *input)
{
    uint64_t value;

    take_bytes(input, &value, sizeof(value));
    return value;
}

#endif
