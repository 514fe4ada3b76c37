/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BurstEngine: context parallel training on BMTrain, whose blocks are gathered, checkpointed and
 * reduced as ZeRO-3 does. It has a model of its own, not that of Hugging Face.
 * Sources: thunlp/BurstEngine (BurstEngine/cpm, BMTrain, apps/llama), MayDomine/Burst-Attention,
 * apple/ml-cross-entropy.
 */
#ifndef TDM_METHODS_CONTEXT_BURST_H
#define TDM_METHODS_CONTEXT_BURST_H

#include "methods/key.h"
#include "models/model.h"

#include <stdbool.h>

/* What of attention is kept until the backward, of checkpointed layers. */
enum tdm_burst_checkpoint {
    TDM_BURST_NOTHING,     /* it is computed again */
    TDM_BURST_LATTER_HALF, /* outputs of the rank's second half of tokens */
    TDM_BURST_ALL,         /* all outputs */
};

struct tdm_burst {
    bool whole_layers; /* nothing is checkpointed: use_checkpoint is off */
    enum tdm_burst_checkpoint checkpoint;
    bool optimized; /* the backward sends row sums of dO * O, and not O */
    bool single_ring;
    bool plain_loss; /* logits of all tokens */
    bool replicated; /* weights, gradients and states are whole on every rank */
    bool offload;    /* optimizer states, and the step, in host memory */
};

enum tdm_status tdm_burst_check(const struct tdm_model *model, struct tdm_method_settings *settings,
                                struct tdm_error *err);
const char *tdm_burst_assumption(const struct tdm_model *model,
                                 const struct tdm_method_settings *settings);

#endif
