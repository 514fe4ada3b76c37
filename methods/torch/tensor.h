/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor parallelism beneath fully_shard (tensor.c, tensor_plan.c). With one rank all of it does
 * nothing. */
#ifndef TDM_METHODS_TORCH_TENSOR_H
#define TDM_METHODS_TORCH_TENSOR_H

#include "base/status.h"
#include "methods/torch/adapter.h"

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
    uint64_t plan_ranks; /* tp_size, by transformers' plan; 0: as 1 */
    bool gathers_logits; /* disable_loss_parallel */
};

/* 1 without fully_shard. */
uint64_t tdm_tensor_ranks(const struct tdm_torch_settings *s);
/* The key that says how many there are. */
const char *tdm_tensor_key(const struct tdm_torch_settings *s);

/* Is it transformers' plan, by which all ranks have all tokens? */
bool tdm_tensor_is_planned(const struct tdm_torch_settings *s);

/* How a product is divided. */
enum tdm_tensor_style {
    TDM_STYLE_WHOLE,
    TDM_STYLE_COLUMNS,          /* a rank has some of its outputs */
    TDM_STYLE_COLUMNS_GATHERED, /* which are then gathered: colwise_gather_output */
    TDM_STYLE_ROWS,             /* of some inputs, whose results are summed */
    TDM_STYLE_ROWS_SPLIT,       /* which it first takes of all of them: rowwise_split_input */
    TDM_STYLE_JOINED,           /* whole, but cut and joined again: mla_kv_a_proj */
};
enum tdm_tensor_style tdm_tensor_style(const struct tdm_model *model,
                                       const struct tdm_torch_settings *s, enum tdm_projection p);

/* The part of a model that one of these ranks has: fewer heads, a narrower MLP, fewer words. It
 * borrows from the model; tdm_tensor_part_free() takes NULL too. NULL: out of memory. */
struct tdm_model *tdm_tensor_part(const struct tdm_model *model,
                                  const struct tdm_torch_settings *s);
void tdm_tensor_part_free(struct tdm_model *part);

/* Hidden states of all tokens, from a rank's tokens, if it has not all. x is borrowed. */
struct tdm_eager_value *tdm_tensor_gather(const struct tdm_torch_model *t,
                                          struct tdm_eager_value *x);
/* The same of what projections read, which may be cast to 8 bits first. */
struct tdm_eager_value *tdm_tensor_gather_input(const struct tdm_torch_model *t,
                                                struct tdm_eager_value *x);
/* A sum over ranks: a rank's tokens of it, or all. Takes x. */
struct tdm_eager_value *tdm_tensor_scatter(const struct tdm_torch_model *t,
                                           struct tdm_eager_value *x);
/* The look-up of all tokens, of which a rank gets its own. */
struct tdm_eager_value *tdm_tensor_embedding(const struct tdm_torch_model *t);
/* Logits of hidden states: of all words, if they are gathered, else of a rank's. x is borrowed. */
struct tdm_eager_value *tdm_tensor_head(const struct tdm_torch_model *t, struct tdm_eager_value *x);
/* Before and after a projection with its adapter: what it reads of x, which is borrowed, and what
 * ranks have of its result, which is taken. */
struct tdm_eager_value *tdm_tensor_enter(const struct tdm_torch_model *t, enum tdm_projection p,
                                         struct tdm_eager_value *x);
struct tdm_eager_value *tdm_tensor_leave(const struct tdm_torch_model *t, enum tdm_projection p,
                                         struct tdm_eager_value *y);
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
