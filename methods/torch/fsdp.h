/* SPDX-License-Identifier: Apache-2.0 */
/* fully_shard (FSDP2): its settings, and the collectives and memory of its groups (fsdp.c), which
 * units call (fsdp_units.c). */
#ifndef TDM_METHODS_TORCH_FSDP_H
#define TDM_METHODS_TORCH_FSDP_H

#include <stdbool.h>
#include <stdint.h>

struct tdm_eager_value;
struct tdm_torch_model;

/* Which units give their parameters back after their forward. */
enum tdm_reshard {
    TDM_RESHARD_NO,
    TDM_RESHARD_YES,
    TDM_RESHARD_DEFAULT, /* all but the last: the whole, or what has the head */
};

/* In which gradients are reduced; what is reduced becomes the dtype of the shards. */
enum tdm_reduce_dtype { TDM_REDUCE_AS_SHARDS, TDM_REDUCE_BF16, TDM_REDUCE_FP32 };

struct tdm_fsdp_settings {
    enum tdm_reshard reshard;           /* reshard_after_forward */
    enum tdm_reduce_dtype reduce_dtype; /* of MixedPrecisionPolicy */
    bool units_of_ends; /* fully_shard of embedding, and of last norm and head, too */
    bool shards_on_gpu; /* of a model that is not on the meta device */
};

#define TDM_FSDP_NO_GROUP UINT32_MAX

/* One group a layer; after them one of all else, or of last norm and head (and the embedding, where
 * weights are tied), and then one of the embedding. */
struct torch_fsdp {
    struct tdm_eager_value *
        *wholes;        /* gathered parameters, with memory only while they are gathered */
    uint32_t *group_of; /* of every parameter */
    bool *whole;        /* of every group: it is gathered */
    uint32_t gathering;
    struct tdm_eager_value *gathered, *kept, *reducing; /* buffers of collectives */
};

struct torch_fsdp *tdm_fsdp_of(const struct tdm_torch_model *t);
struct tdm_eager_value *tdm_fsdp_shard_new(struct tdm_torch_model *t, uint32_t group, uint64_t rows,
                                           uint64_t columns, uint16_t element_bytes, bool trained);
void tdm_fsdp_move(struct tdm_torch_model *t, uint32_t group, struct tdm_eager_value **whole);
void tdm_fsdp_gather(struct tdm_torch_model *t, uint32_t group);
void tdm_fsdp_unshard(struct tdm_torch_model *t, uint32_t group, bool forward);
void tdm_fsdp_reshard(struct tdm_torch_model *t, uint32_t group);
void tdm_fsdp_post_backward(struct tdm_torch_model *t, uint32_t group);
bool tdm_fsdp_is_pending(const struct tdm_torch_model *t, uint32_t group);

#endif
