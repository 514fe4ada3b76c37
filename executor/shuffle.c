/* SPDX-License-Identifier: Apache-2.0 */
/* Permutations by counters. */
#include "executor/shuffle.h"

#include "executor/random.h"

/* A stream of random numbers beyond those of tensors, positions and tokens (batch.c). */
#define SHUFFLE_STREAM (UINT64_C(1) << 33)
#define ROUNDS 4

static uint64_t encrypt(uint64_t number, unsigned half_bits, uint64_t seed, uint64_t epoch)
{
    const uint64_t mask = (UINT64_C(1) << half_bits) - 1;
    uint64_t left = number >> half_bits, right = number & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t bits = tdm_random_bits(seed, epoch, SHUFFLE_STREAM + round, right);
        uint64_t mixed = (left ^ bits) & mask;
        left = right;
        right = mixed;
    }
    return left << half_bits | right;
}

uint64_t tdm_shuffle(uint64_t number, uint64_t count, uint64_t seed, uint64_t epoch)
{
    unsigned half_bits = 1;
    while (half_bits < 31 && UINT64_C(1) << 2 * half_bits < count)
        half_bits++;
    do {
        number = encrypt(number, half_bits, seed, epoch);
    } while (number >= count);
    return number;
}
