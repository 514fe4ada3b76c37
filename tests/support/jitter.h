/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cpu backend that rounds otherwise: what ops sum differs in last bits, at random, by somewhat
 * more than the lockstep test sees on a GPU. Two runs with different seeds show how far right
 * results of whole steps can be apart: a last bit of an activation moves all that follows from it.
 */
#ifndef TDM_TESTS_JITTER_H
#define TDM_TESTS_JITTER_H

#include "executor/backend.h"

/* The backend. Its random numbers follow from the last call of tdm_jitter_seed(), which all runs
 * share. */
struct tdm_backend tdm_jitter_backend(void);
void tdm_jitter_seed(uint64_t seed);

/* Does the op only move values, or compute in one order that is the same everywhere? Then nothing
 * of it differs. */
bool tdm_jitter_spares(enum tdm_op_kind kind);

#endif
