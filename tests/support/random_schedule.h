/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random schedules for property tests: small models, ragged sequences, any loop nest that
 * tdm_schedule_check allows. A 64-bit seed determines everything, on every machine. cases.h says
 * which seeds a test uses.
 */
#ifndef TDM_TESTS_RANDOM_SCHEDULE_H
#define TDM_TESTS_RANDOM_SCHEDULE_H

#include "base/status.h"
#include "schedule/schedule.h"
#include "tests/support/cases.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A source of random numbers: xoshiro256** (Blackman and Vigna, arXiv 1805.01407), seeded by
 * splitmix64. */
struct tdm_dice {
    uint64_t state[4];
};

void tdm_dice_seed(struct tdm_dice *dice, uint64_t seed);
uint64_t tdm_dice_next(struct tdm_dice *dice);

/* A whole number in [low, high], both included. */
uint64_t tdm_dice_roll(struct tdm_dice *dice, uint64_t low, uint64_t high);

/* True with a probability of `percent` / 100. */
bool tdm_dice_chance(struct tdm_dice *dice, unsigned percent);

/* Requirements of a random schedule. All zero: any schedule that trains, with at most 64 tokens. */
struct tdm_random_options {
    enum {
        TDM_RANDOM_ANY_DTYPES,
        TDM_RANDOM_FP32,             /* all, as far as the optimizer allows */
        TDM_RANDOM_FP32_ACTIVATIONS, /* all but weights and the optimizer's state */
        TDM_RANDOM_MIXED
    } dtypes;
    enum {
        TDM_RANDOM_ANY_OPTIMIZER,
        TDM_RANDOM_NO_OPTIMIZER,
        TDM_RANDOM_UPDATES /* any but none */
    } optimizer;
    enum { TDM_RANDOM_TRAIN, TDM_RANDOM_EVALUATE, TDM_RANDOM_ANY_PASS } pass;
    uint64_t max_tokens; /* of all sequences together; 0: 64 */
    uint32_t ranks;      /* 2 to this many, if there are as many chunks; 0: one */
};

/* A random model (1 to 6 layers, all architectures, tied or not, all kinds of RoPE) on the shipped
 * machine h200-published, with a random schedule: 1 to 3 sequences, some packed from documents,
 * both orders, any groups, chunks from one token to more than the context, pages and LM-head tiles
 * that need not divide chunks, places, kept and held sets with splits that may be beyond the last
 * chunk, homes, rings, prefetch 0 to 5. The same seed and options give the same schedule. The
 * caller owns *schedule (tdm_schedule_free), which has passed tdm_schedule_check; a refusal is
 * returned, and is a bug here or in the check. */
enum tdm_status tdm_random_schedule(uint64_t seed, const struct tdm_random_options *options,
                                    struct tdm_schedule **schedule, struct tdm_error *err);

/* Gives a schedule a selector: dense in 45% of cases. The lengths in other selectors are up to the
 * length of the first sequence, or a few pages. */
void tdm_random_selector(struct tdm_dice *dice, struct tdm_schedule *schedule);

/* Moves all of a unit's state to the host, where it is updated, if units are updated in the
 * backward. Then rows of the embedding may be updated apart (schedule/optimizer.h), which few
 * schedules do. */
void tdm_random_to_host(struct tdm_schedule *schedule);

/* Leaves the first sequence alone, moves all inputs to the host in layer-major order, stores no K
 * and V, and asks for K and V that are made ahead (schedule/nest.h): in half of the schedules of
 * one rank they are then. TDM_NO_MEMORY. */
enum tdm_status tdm_random_make_ahead(struct tdm_schedule *schedule, struct tdm_error *err);

/* Does the one or the other with a seed of four. TDM_NO_MEMORY. */
enum tdm_status tdm_random_favour(uint64_t seed, struct tdm_schedule *schedule,
                                  struct tdm_error *err);

/* Another schedule for the same model, sequences, chunks, pages, tiles, dtypes and optimizer. It
 * differs only in order, groups, places, sets with their splits, homes, rings, prefetch, where
 * updates run, and, if clipping allows, when. Both give bit-identical losses, gradients and
 * weights. The caller owns *variant. */
enum tdm_status tdm_random_variant(const struct tdm_schedule *schedule, uint64_t seed,
                                   struct tdm_schedule **variant, struct tdm_error *err);

/* A schedule that evaluates the weights that `schedule` trains. It has the same model, dtypes,
 * optimizer and homes of state, but its own sequences of at most `max_tokens` in total, chunks and
 * nest. The caller owns *evaluation. */
enum tdm_status tdm_random_evaluation(const struct tdm_schedule *schedule, uint64_t seed,
                                      uint64_t max_tokens, struct tdm_schedule **evaluation,
                                      struct tdm_error *err);

/* Describes a schedule in one line, for the report of a failure. Returns `text`. */
const char *tdm_schedule_describe(const struct tdm_schedule *schedule, char *text,
                                  size_t text_bytes);

#endif
