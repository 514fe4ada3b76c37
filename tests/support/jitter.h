/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cpu backend that rounds differently: the last bits of what ops sum differ at random, by
 * somewhat more than the lockstep test sees on a GPU. Two runs with different seeds show how far
 * apart correct results of whole steps can be: one bit of an activation changes all that is
 * computed from it.
 */
#ifndef TDM_TESTS_JITTER_H
#define TDM_TESTS_JITTER_H

#include "executor/backend.h"

/* Returns the backend. Its random numbers start at the last call of tdm_jitter_seed(). All runs
 * share them. */
struct tdm_backend tdm_jitter_backend(void);
void tdm_jitter_seed(uint64_t seed);

/* Does the op only move values, or compute in an order that is the same on all backends? Then its
 * results are not changed. */
bool tdm_jitter_spares(enum tdm_op_kind kind);

#endif
