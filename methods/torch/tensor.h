/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor and sequence parallelism beneath fully_shard (tensor.c). With one rank all of it does
 * nothing. */
#ifndef TDM_METHODS_TORCH_TENSOR_H
#define TDM_METHODS_TORCH_TENSOR_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct tdm_eager_value;
struct tdm_method_cost;
struct tdm_method_settings;
struct tdm_model;
struct tdm_torch_model;
struct tdm_torch_settings;

struct tdm_tensor_settings {
    uint64_t ranks;      /* tensor_parallel_degree; 0: the method has no key */
    bool gathers_logits; /* disable_loss_parallel */
};

/* 1 without fully_shard. */
uint64_t tdm_tensor_ranks(const struct tdm_torch_settings *s);

/* The part of a model that one of `ranks` has: fewer heads, a narrower MLP, fewer words. It borrows
 * from the model; tdm_tensor_part_free() takes NULL too. NULL: out of memory. */
struct tdm_model *tdm_tensor_part(const struct tdm_model *model, uint64_t ranks);
void tdm_tensor_part_free(struct tdm_model *part);

/* Hidden states of all tokens, from a rank's tokens. x is borrowed. */
struct tdm_eager_value *tdm_tensor_gather(const struct tdm_torch_model *t,
                                          struct tdm_eager_value *x);
/* A rank's tokens of a sum over ranks. Takes x. */
struct tdm_eager_value *tdm_tensor_scatter(const struct tdm_torch_model *t,
                                           struct tdm_eager_value *x);
/* The look-up of all tokens, of which a rank gets its own. */
struct tdm_eager_value *tdm_tensor_embedding(const struct tdm_torch_model *t);
/* Logits of all words, if they are gathered. Takes them. */
struct tdm_eager_value *tdm_tensor_logits(const struct tdm_torch_model *t,
                                          struct tdm_eager_value *logits);
/* tdm_cross_entropy(), of logits that may be divided by words. */
struct tdm_eager_value *tdm_tensor_cross_entropy(const struct tdm_torch_model *t,
                                                 struct tdm_eager_value *logits,
                                                 struct tdm_eager_value *labels);

/* For fully_shard: limits, and what is computed and sent less and more. */
enum tdm_status tdm_tensor_check(const struct tdm_model *model,
                                 const struct tdm_method_settings *settings, struct tdm_error *err);
void tdm_tensor_cost(const struct tdm_model *model, const struct tdm_method_settings *settings,
                     struct tdm_method_cost *cost);

#endif
