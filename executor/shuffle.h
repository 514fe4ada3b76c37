/* SPDX-License-Identifier: Apache-2.0 */
/* A shuffled order that follows from counters alone, as random numbers do (random.h): nothing is
 * stored, so a run can go on at any step. */
#ifndef TDM_EXECUTOR_SHUFFLE_H
#define TDM_EXECUTOR_SHUFFLE_H

#include <stdint.h>

/* The element at place `number` of the permutation of [0, count) that (seed, epoch) chooses: four
 * rounds of a Feistel network over the next power of four, repeated until the result is below
 * `count` (Black and Rogaway, CT-RSA 2002, "cycle walking"). number < count. */
uint64_t tdm_shuffle(uint64_t number, uint64_t count, uint64_t seed, uint64_t epoch);

#endif
