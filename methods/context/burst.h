/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BurstEngine: context parallel training on BMTrain, whose blocks are gathered, checkpointed and
 * reduced as in ZeRO-3. It has its own model, not Hugging Face's. Sources: thunlp/BurstEngine
 * (BurstEngine/cpm, BMTrain, apps/llama), MayDomine/Burst-Attention, apple/ml-cross-entropy.
 */
#ifndef TDM_METHODS_CONTEXT_BURST_H
#define TDM_METHODS_CONTEXT_BURST_H

#include "methods/key.h"
#include "models/model.h"

#include <stdbool.h>

/* Which attention outputs of checkpointed layers are kept until the backward. */
enum tdm_burst_checkpoint {
    TDM_BURST_NOTHING,     /* none: they are recomputed */
    TDM_BURST_LATTER_HALF, /* outputs of the rank's second half of tokens */
    TDM_BURST_ALL,         /* all outputs */
};

/* Which pairs attention computes, and how tokens lie on ranks so that all ranks compute equally
 * many: `sp` of the program. */
enum tdm_burst_mask {
    TDM_BURST_CAUSAL,  /* burst: zigzag */
    TDM_BURST_STRIPED, /* causal, stripes of single tokens */
    TDM_BURST_SLIDING, /* sliding: stripes; the window counts tokens of a rank */
    TDM_BURST_BLOCK,   /* sparse: a mask of blocks of 128, the same for every two ranks */
    TDM_BURST_FULL,    /* full: all pairs */
};

struct tdm_burst {
    bool whole_layers; /* use_checkpoint is off: nothing is checkpointed */
    enum tdm_burst_checkpoint checkpoint;
    enum tdm_burst_mask mask;
    uint64_t window; /* of TDM_BURST_SLIDING, in tokens of a rank */
    uint64_t
        block_percent; /* of TDM_BURST_BLOCK: blocks that are computed, of all pairs of blocks */
    bool optimized;    /* the backward sends row sums of dO * O in place of O */
    bool single_ring;
    bool plain_loss; /* loss over the logits of all tokens */
    bool replicated; /* weights, gradients and states are not sharded */
    bool offload;    /* optimizer states are in host memory, and the step runs there */
};

enum tdm_status tdm_burst_check(const struct tdm_model *model, struct tdm_method_settings *settings,
                                struct tdm_error *err);
const char *tdm_burst_assumption(const struct tdm_model *model,
                                 const struct tdm_method_settings *settings);

#endif
