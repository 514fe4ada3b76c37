/* SPDX-License-Identifier: Apache-2.0 */
/* fully_shard (FSDP2): its settings, and the collectives and memory of its groups (fsdp.c), which
 * its units call (fsdp_units.c). And FullyShardedDataParallel (FSDP 1), whose units are the same
 * and have flat parameters (fsdp1.c). */
#ifndef TDM_METHODS_TORCH_FSDP_H
#define TDM_METHODS_TORCH_FSDP_H

#include <stdbool.h>
#include <stdint.h>

struct tdm_eager_value;
struct tdm_torch_model;
struct tdm_torch_settings;

/* Which units reshard their parameters after the forward. */
enum tdm_reshard {
    TDM_RESHARD_NO,
    TDM_RESHARD_YES,
    TDM_RESHARD_DEFAULT, /* all but the last unit: the root module, or the unit of the head */
};

/* The dtype in which gradients are reduced. Reduced gradients are cast to the dtype of the shards.
 */
enum tdm_reduce_dtype { TDM_REDUCE_AS_SHARDS, TDM_REDUCE_BF16, TDM_REDUCE_FP32 };

struct tdm_fsdp_settings {
    enum tdm_reshard reshard;           /* reshard_after_forward */
    enum tdm_reduce_dtype reduce_dtype; /* of MixedPrecisionPolicy */
    bool units_of_ends;  /* fully_shard also wraps the embedding, and last norm with head */
    bool shards_on_gpu;  /* the model is not created on the meta device */
    bool offload;        /* CPUOffloadPolicy: shards, their gradients and states in host memory */
    bool gathers_float8; /* enable_fsdp_float8_all_gather: of weights with products of 8 bits */
    bool version_1;      /* FullyShardedDataParallel */
    bool leaves_nf4;     /* bnb_4bit_quant_storage=uint8: weights of 4 bits are whole everywhere */
    bool moves_units;    /* FSDP 1: each comes from host memory whole, and is divided on the GPU */
    bool one_unit;       /* fully_shard on the whole alone; of a second model */
    bool checkpoints_units; /* FSDP 1: a reentrant checkpoint runs the unit, not the layer in it */
    uint64_t
        expert_ranks; /* that divide experts: expert_parallel_degree; 0: the method has no key */
    uint64_t expert_parts; /* the same of transformers' ep_size, whose ranks share a batch; 0 */
    uint64_t replicas; /* HSDP: groups of ranks, each with all shards; 0: the method has no key */
};

static inline uint64_t tdm_fsdp_replicas(const struct tdm_fsdp_settings *s)
{
    return s->replicas > 0 ? s->replicas : 1;
}

/* Does a checkpoint run the unit of a layer again, with its gathers? */
bool tdm_fsdp_checkpoints_units(const struct tdm_torch_settings *s);
/* Have adapters shards of fp32 among those of bf16? */
bool tdm_fsdp_widens_adapters(const struct tdm_torch_settings *s);

#define TDM_FSDP_NO_GROUP UINT32_MAX

/* The group of a layer's experts under expert parallelism. */
static inline uint32_t tdm_fsdp_experts_group(uint32_t layers, uint32_t number)
{
    return layers + 2 + number;
}

/* FSDP 1: the parameters of a group that are trained, or those that are not. */
struct torch_flat {
    struct tdm_eager_value *whole; /* has memory only while gathered; NULL: there are none */
    uint64_t elements, share;      /* share: of a rank, padded */
    uint16_t shard_bytes, bytes;   /* of an element of a shard, and gathered */
    uint32_t number;               /* of the parameter that is the shard of all */
};

/* One group for each layer. After them comes a group of everything else, or of last norm and head
 * (with the embedding if weights are tied) followed by one of the embedding. Under expert
 * parallelism the experts of each layer are a group of their own, behind all these. */
struct torch_fsdp {
    struct tdm_eager_value *
        *wholes;        /* unsharded parameters; they have memory only while gathered */
    uint32_t *group_of; /* for each parameter */
    struct tdm_fsdp_span {
        uint32_t first, end;
    } * spans;   /* for each group: its parameters are among these */
    bool *whole; /* for each group: it is gathered */
    uint32_t groups;
    struct tdm_eager_value **gathered; /* for each group: the buffer of an all-gather under way */
    struct tdm_eager_value *kept, *reducing; /* buffers of collectives */
    struct tdm_eager_value **all_reduced; /* for each group: the input of its all-reduce, until the
                                             backward ends */
    bool gradients_on_host, states_on_host; /* what is offloaded was allocated */
    struct torch_flat *flats; /* two of each group: of frozen and of trained parameters */
    uint32_t flat_count;
    struct tdm_eager_value **inputs; /* for each group: what hooks keep until the backward ends */
    bool initialized;                /* before the first forward */
};

struct torch_fsdp *tdm_fsdp_of(const struct tdm_torch_model *t);
struct tdm_eager_value *tdm_fsdp_shard_new(struct tdm_torch_model *t, uint32_t group, uint64_t rows,
                                           uint64_t columns, uint16_t element_bytes, bool trained);
/* Puts a parameter in a group. */
void tdm_fsdp_join(struct torch_fsdp *f, uint32_t number, uint32_t group);
void tdm_fsdp_move(struct tdm_torch_model *t, uint32_t group, struct tdm_eager_value **whole);
void tdm_fsdp_gather(struct tdm_torch_model *t, uint32_t group);
void tdm_fsdp_unshard(struct tdm_torch_model *t, uint32_t group, bool forward);
void tdm_fsdp_reshard(struct tdm_torch_model *t, uint32_t group);
void tdm_fsdp_post_backward(struct tdm_torch_model *t, uint32_t group);
bool tdm_fsdp_is_pending(const struct tdm_torch_model *t, uint32_t group);
/* ---- FSDP 1 (fsdp1.c) ---- */
struct tdm_eager_value *tdm_fsdp1_parameter(struct tdm_torch_model *t, uint32_t group,
                                            uint64_t rows, uint64_t columns, uint16_t element_bytes,
                                            bool trained);
void tdm_fsdp1_start(struct tdm_torch_model *t);
void tdm_fsdp1_init(struct tdm_torch_model *t);
void tdm_fsdp1_gather(struct tdm_torch_model *t, uint32_t group);
void tdm_fsdp1_reshard(struct tdm_torch_model *t, uint32_t group);
void tdm_fsdp1_post_backward(struct tdm_torch_model *t, uint32_t group);
/* Does the group have gradients that wait? */
bool tdm_fsdp1_is_reduced(const struct tdm_torch_model *t, uint32_t group);
/* Takes note of a unit's input, a leaf of a checkpoint that runs again. With a frozen flat
 * parameter a hook on it keeps it, and so its gradient, until the backward ends. */
void tdm_fsdp1_hold_input(struct tdm_torch_model *t, uint32_t group, struct tdm_eager_value *x);
/* After the backward all streams are done, and hooks go. */
void tdm_fsdp1_finish(struct tdm_torch_model *t, uint32_t groups);

/* The step of an optimizer whose parameters are in host memory, with `states` tensors for each. */
void tdm_fsdp_step_on_host(struct tdm_torch_model *t, uint32_t states);

#endif
