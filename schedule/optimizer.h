/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizers: the state that each keeps besides the weights, and the dtypes that it allows.
 *
 *     kind                weights       master                       moments
 *     none                any           none                         none
 *     adamw               fp32          none (they are it)           fp32
 *                         bf16          remainder16 or fp32          fp32
 *     adamw-bf16-moments  as adamw      as adamw                     bf16
 *     adamw-bf16          bf16          none: rounded stochastically bf16
 *     sgd                 fp32          none                         none
 *                         bf16          none: rounded stochastically none
 *                         bf16          remainder16 or fp32          none
 *
 * A master or moments whose dtype is none have no buffer and take no bytes.
 */
#ifndef TDM_SCHEDULE_OPTIMIZER_H
#define TDM_SCHEDULE_OPTIMIZER_H

#include "schedule/schedule.h"

/* The names of all kinds, as a message or a help text lists them. */
#define TDM_OPTIMIZER_NAMES "adamw, adamw-bf16-moments, adamw-bf16, sgd or none"
#define TDM_WHEN_NAMES "layer or end"
#define TDM_CLIP_NAMES "layer, global or none"

#define TDM_DECAYED_NAMES "all, none, or some of matrices, embeddings, norms, biases, joined by +"

/* What decays where nothing else is said: all but vectors. */
#define TDM_DECAYED_DEFAULT ((1u << TDM_KIND_MATRICES) | (1u << TDM_KIND_EMBEDDINGS))
#define TDM_DECAYED_DEFAULT_TEXT "matrices+embeddings"

/* What decays as a text: "matrices+norms", "none"; returns `out`. */
#define TDM_DECAYED_TEXT 64
const char *tdm_decayed_text(uint32_t decayed, char out[TDM_DECAYED_TEXT]);
bool tdm_decayed_parse(const char *text, uint32_t *decayed);

const char *tdm_when_name(enum tdm_when when); /* "layer", "end" */
bool tdm_when_parse(const char *name, enum tdm_when *when);
const char *tdm_clip_name(enum tdm_clip clip); /* "none", "layer", "global" */
bool tdm_clip_parse(const char *name, enum tdm_clip *clip);

/* Sets the kind, and dtypes.master and dtypes.moments to match it and the schedule's weights. If
 * the kind leaves a choice, the first one in the table above is taken. With kind none there is
 * nothing to clip. */
void tdm_schedule_set_optimizer(struct tdm_schedule *schedule, enum tdm_optimizer kind);

/* Sets what is clipped, with norm 1, and the time of the update that this requires. */
void tdm_schedule_set_clip(struct tdm_schedule *schedule, enum tdm_clip clip);

/* Is a unit updated by the host's cores? With `optimizer.on` host, all units whose weights are at
 * home on the host are. */
bool tdm_updates_on_host(const struct tdm_schedule *schedule, uint32_t unit);

/* Are all units updated after the backward? */
bool tdm_updates_at_end(const struct tdm_schedule *schedule);

/* The most rows of the embedding that the tokens of a step can use. */
uint64_t tdm_used_rows(const struct tdm_schedule *schedule);

/* Are the rows of the embedding that no token of the step uses updated apart from the others, on
 * the host during the forward? Their gradient is zero. The others wait for it until the end of the
 * backward, when nothing else is left to do. */
bool tdm_updates_rows_apart(const struct tdm_schedule *schedule);

/* Do the gradients of all units exist at once, at the end of the backward? */
bool tdm_gradients_stay(const struct tdm_schedule *schedule);

/* Checks that the homes allow updates on the host. TDM_INPUT with the reason. */
enum tdm_status tdm_update_place_check(const struct tdm_schedule *schedule, const char *file,
                                       struct tdm_error *err);

/* Checks the ranges of the settings, and the table above. TDM_INPUT with the reason. */
enum tdm_status tdm_optimizer_check(const struct tdm_schedule *schedule, const char *file,
                                    struct tdm_error *err);

#endif
