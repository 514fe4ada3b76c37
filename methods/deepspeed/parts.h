/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of ZeRO share. Not for use outside methods/deepspeed/. */
#ifndef TDM_METHODS_DEEPSPEED_PARTS_H
#define TDM_METHODS_DEEPSPEED_PARTS_H

#include "methods/deepspeed/deepspeed.h"
#include "methods/torch/parts.h"

/* With overlap_comm gathers and reductions have their own streams, whose free memory other streams
 * cannot use. */
enum { ZERO_COMPUTE, ZERO_GATHER, ZERO_REDUCE };

/* Of a module at most; that of an MLP with experts has ten: router, experts, their biases and the
 * shared expert's. */
#define ZERO_MODULE_PARAMETERS 16u
#define ZERO_NONE UINT32_MAX

struct zero_module {
    uint32_t first, end; /* its parameters are among these; others may be, too */
    uint32_t parameters[ZERO_MODULE_PARAMETERS], count; /* in stage 3 */
    uint32_t inputs_waiting; /* inputs whose gradients have not arrived: ds_grads_remaining */
};

enum zero_status { ZERO_AWAY, ZERO_IN_FLIGHT, ZERO_HERE };

struct zero_gather; /* an all-gather of several parameters, or one in 8 bits */

struct zero_parameter {
    /* `offset`: position of its first element among the trained ones; in stages 1 and 2, of its
     * group. */
    uint64_t offset, elements;
    uint64_t shape[2]; /* its first two dimensions; of a vector `shape`[1] is 0 */
    bool trained, persists;
    bool expert;    /* of deepspeed.moe: fewer ranks have it */
    uint32_t group; /* of a trained parameter: its sub-group, or in stages 1 and 2 its group */
    /* Stage 3 only. */
    struct tdm_eager_value
        *partition; /* this rank's partition; NULL: in the flat buffer, or in host memory */
    enum zero_status status;
    uint32_t users; /* one bit for each kind of module that is using it */
    uint32_t
        owner; /* the module whose backward recomputes the layer that gathered it, or ZERO_NONE */
    int64_t fetched_for; /* the last trace step for which it was fetched */
    struct zero_gather *gather;
    struct tdm_eager_value *sent;    /* the copy from host memory that a gather of it alone sends */
    bool on_disk, in_buffer;         /* its partition is on NVMe, and now in a swap buffer */
    bool has_second;                 /* hpZ: the group of this GPU has its own copy */
    struct tdm_eager_value *second;  /* this rank's part of that; NULL: it is in host memory */
    struct tdm_eager_value *reduced; /* qgZ: this rank's part of the gradient */
    /* NVMe: this rank's part of the gradient in fp32, which is to be written, or of which some is
     * too short for that and stays until the step. */
    struct tdm_eager_value *wide, *unwritten;
    /* For the digest of tiles: what the sum over parameters has of this one; the next of those that
     * changed since, if it is one. */
    uint64_t in_sum;
    uint32_t next_changed;
    bool changed;
};

/* What a gather in 8 bits has besides its buffer. */
struct zero_quantized {
    struct tdm_eager_value *part, *part_scales; /* of this rank, until they have been sent */
    struct tdm_eager_value *scales;             /* of all ranks */
    struct tdm_eager_value *wide;               /* what arrived, in fp16 */
};

/* A use of a parameter in the trace of a step. */
struct zero_use {
    uint32_t parameter, step;
};

/* The order in which modules run, as ZeRO-3 records it. */
struct zero_trace {
    bool recording, complete;
    uint32_t *modules, length, capacity; /* one entry for each trace step */
    struct zero_use *uses;
    uint32_t use_count, next_use, step;
    int64_t here;                       /* gathered elements: __n_available_params */
    uint32_t *backward, backward_count; /* modules whose backward has begun, the latest last */
    uint32_t strays;                    /* deviations from the trace, which then is invalid */
    uint32_t tile_end, tile_steps;      /* the step after the latest tile, and its steps */
};

struct tdm_deepspeed {
    struct tdm_torch_model *model;
    struct tdm_deepspeed_settings s;
    uint64_t ranks;
    uint32_t most_parameters;
    struct zero_parameter *parameters; /* in the order of tdm_torch_model.parameters */
    struct zero_module *modules;
    uint32_t module_count;
    uint64_t trained;            /* elements */
    uint64_t partition_elements; /* of a rank, padded; stage 3 */
    struct tdm_eager_value
        *flat; /* bf16: this rank's partition of all trained parameters; stage 3 */
    struct tdm_eager_value **flats; /* bf16: a group's trained parameters; stages 1 and 2 */
    /* For each group or sub-group: its masters in fp32; gradients of zeros, which are there while
     * ZeRO makes the optimizer's states; whether these are made; elements of this rank, padded. */
    struct tdm_eager_value **masters, **zeros;
    bool *has_states;
    uint64_t *group_elements;
    uint32_t group_count;
    /* deepspeed.moe: weights of the local experts, layer by layer; of one layer, outputs of its
     * experts, and gradients of their inputs. */
    struct tdm_eager_value **moe, **moe_parts, **moe_gradients;
    /* Gradients that are being reduced. */
    struct tdm_eager_value *buckets[2];
    uint32_t bucket, *waiting, waiting_count, *ahead,
        *alike; /* numbers of parameters: to be reduced, and for gathers */
    uint64_t bucket_elements;
    bool ready;           /* the buckets are allocated */
    bool states_made;     /* the optimizer states in host memory are allocated */
    bool keeps_gradients; /* stage 1: gradients are whole until the last backward of a step */
    uint32_t backwards;   /* so far */
    struct tdm_eager_value
        *collected; /* reduced gradients of this rank's partition, from the current backward */
    struct tdm_eager_value *gradients; /* the same, summed over the backwards since the last step */
    struct tdm_eager_value *offload_buffer;
    uint64_t free_buffers; /* swap buffers of parameters that are on NVMe */
    uint64_t sum;          /* over what all parameters have in the digest of tiles, */
    uint32_t changed;      /* but for these, which changed since; ZERO_NONE: none did */
    struct zero_trace trace;
};

static inline struct tdm_deepspeed *tdm_zero_of(const struct tdm_torch_model *t)
{
    return t->wrapped;
}

/* To be called where one of the fields of stage 3 changes that the digest of tiles has (gather.c).
 */
static inline void tdm_zero_changes(struct tdm_deepspeed *d, uint32_t number)
{
    struct zero_parameter *p = &d->parameters[number];
    if (p->changed)
        return;
    p->changed = true;
    p->next_changed = d->changed;
    d->changed = number;
}

/* ---- functions of a wrapper that both stages share (deepspeed.c) ---- */
void *tdm_zero_create(struct tdm_torch_model *t, uint32_t most_parameters);
void tdm_zero_free(void *state);
struct tdm_eager_value *tdm_zero_parameter(struct tdm_torch_model *t, uint32_t module,
                                           uint64_t rows, uint64_t columns, uint16_t element_bytes,
                                           bool trained);
bool tdm_zero_accumulates(const struct tdm_torch_model *t);

/* Adds a number to a digest. */
static inline uint64_t tdm_zero_mix(uint64_t digest, uint64_t with)
{
    uint64_t x = (digest ^ with) * UINT64_C(0x9e3779b97f4a7c15);
    return x ^ x >> 29;
}

/* A digest of the gradients that are waiting to be reduced. */
uint64_t tdm_zero_digest(const struct tdm_deepspeed *d);

/* The number of the parameter of a leaf. */
uint32_t tdm_zero_number(const struct tdm_torch_model *t, const struct tdm_eager_value *leaf);

struct tdm_eager_value *tdm_zero_new(struct tdm_torch_model *t, uint32_t stream,
                                     enum tdm_method_category category, uint64_t elements,
                                     uint16_t bytes);
/* The same with a label of its own. */
struct tdm_eager_value *tdm_zero_named(struct tdm_torch_model *t, uint32_t stream,
                                       enum tdm_method_category category, const char *name,
                                       uint64_t elements, uint16_t bytes);
/* Scratch of a gradient's norm: a copy in double. */
void tdm_zero_norm(struct tdm_torch_model *t, uint32_t stream, uint64_t elements);
/* Scratch of _has_inf_or_nan on bf16 gradients. */
void tdm_zero_overflow(struct tdm_torch_model *t, uint32_t stream, uint64_t elements);
/* Takes host memory for transfers, which is pinned unless pin_memory is off. */
void tdm_zero_host(struct tdm_torch_model *t, uint64_t elements, uint64_t bytes);
/* The optimizer's step on one sub-group whose gradient is ready. */
void tdm_zero_update(struct tdm_torch_model *t, uint32_t group);

/* ---- deepspeed.moe, of stages 1 and 2 (moe.c), where ep_size is more than 0 ---- */

/* Makes the lists of `d`, if there are experts. False: out of memory. */
bool tdm_moe_create(const struct tdm_torch_model *t, struct tdm_deepspeed *d);
/* Modules of a rank's experts and of what runs beside them, which come after those of all layers;
 * is it one of an expert? */
uint32_t tdm_moe_modules(const struct tdm_torch_model *t);
bool tdm_moe_is_expert(const struct tdm_torch_model *t, uint32_t module);
/* Places that each expert has for the rows of a rank: its capacity. */
uint64_t tdm_moe_capacity(const struct tdm_model *model, const struct tdm_deepspeed_settings *s,
                          uint64_t rows);
/* Elements of the experts that a rank has, and of all else. */
double tdm_moe_expert_elements(const struct tdm_model *model,
                               const struct tdm_deepspeed_settings *s);
double tdm_moe_dense_elements(const struct tdm_model *model,
                              const struct tdm_deepspeed_settings *s);

/* ---- stages 1 and 2 (zero2.c) ---- */
void tdm_zero2_start(struct tdm_torch_model *t);
void tdm_zero2_before_backward(struct tdm_torch_model *t);
void tdm_zero2_gradient(void *context, struct tdm_eager_value *leaf);
void tdm_zero2_after_backward(struct tdm_torch_model *t);
void tdm_zero2_step(struct tdm_torch_model *t);

/* ---- stage 3: partitions, reduction, step (zero3.c) ---- */
struct tdm_eager_value *tdm_zero3_parameter(struct tdm_torch_model *t, uint32_t module,
                                            uint64_t rows, uint64_t columns, uint16_t element_bytes,
                                            bool trained);
void tdm_zero3_start(struct tdm_torch_model *t);
void tdm_zero3_gradient(void *context, struct tdm_eager_value *leaf);
void tdm_zero3_after_backward(struct tdm_torch_model *t);
void tdm_zero3_step(struct tdm_torch_model *t);
uint64_t tdm_zero3_weight_bytes(const struct tdm_torch_model *t);
uint64_t tdm_zero3_share(const struct tdm_deepspeed *d, uint32_t number); /* elements of a rank */

/* ---- stage 3: ZeRO++ (zeropp.c) ---- */

static inline bool tdm_zeropp_has_second(const struct tdm_deepspeed_settings *s)
{
    return s->hpz_partition_size > 1;
}

/* Ranks that share a second copy of the parameters. */
static inline uint64_t tdm_zeropp_second_ranks(const struct tdm_deepspeed_settings *s,
                                               uint64_t ranks)
{
    return s->hpz_partition_size < ranks ? s->hpz_partition_size : ranks;
}

/* Are gradients exchanged in 4 bits? Only between nodes; on one node DeepSpeed reduces them as
 * ever. */
static inline bool tdm_zeropp_exchanges(const struct tdm_deepspeed_settings *s, uint64_t ranks,
                                        uint64_t gpus_per_node)
{
    return s->quantized_gradients && ranks > gpus_per_node;
}

#define TDM_ZEROPP_MULTIPLE 8u /* CUDAQuantizer quantizes multiples of that many elements */
/* Groups of `elements` that have a scale each: CUDAQuantizer.quantize. */
uint64_t tdm_zeropp_groups(uint64_t elements);
/* Elements of a rank in the second copy. */
uint64_t tdm_zeropp_second_share(const struct tdm_deepspeed *d, uint32_t number);
/* A parameter is given back, or has been made: its second copy is made unless it is there. */
void tdm_zeropp_keep_second(struct tdm_torch_model *t, uint32_t number);
/* The optimizer has stepped: the second copies of what is trained are invalid. */
void tdm_zeropp_drop_seconds(struct tdm_torch_model *t);
/* Quantizes `share` elements and sends them to `ranks` ranks. `several`: parts of several
 * parameters, which are joined first; `on_host`: they are in host memory. */
void tdm_zeropp_send(struct tdm_torch_model *t, struct zero_quantized *q, uint64_t share,
                     uint64_t ranks, bool several, bool on_host);
/* Waits for a gather, and makes `elements` in fp16 of it. */
void tdm_zeropp_arrive(struct tdm_torch_model *t, struct zero_quantized *q, uint64_t elements);
/* Reduces the gradients that are waiting, by exchanges in 4 bits. */
void tdm_zeropp_reduce(struct tdm_torch_model *t);

/* ---- stage 3: states and parameters on NVMe (nvme.c) ---- */

/* AdamW's: master, gradient, two moments. */
#define TDM_NVME_LEAST_BUFFERS 4u

/* Are the states of a sub-group of so many elements swapped? Short ones stay in host memory. */
bool tdm_nvme_swaps(const struct tdm_deepspeed *d, uint64_t elements);
/* Takes the swap buffers, of which each holds the largest sub-group. */
void tdm_nvme_start(struct tdm_torch_model *t);
/* Writes the gradient that `wide` of the parameter is, if there is one. */
void tdm_nvme_write_gradient(struct tdm_torch_model *t, uint32_t number);
/* The optimizer's step on a sub-group that is swapped. */
void tdm_nvme_step(struct tdm_torch_model *t, uint32_t group);
/* Is a part of so many elements of a parameter written? */
bool tdm_nvme_writes_part(const struct tdm_deepspeed_settings *s, uint64_t elements);
/* The parts of trained parameters that host memory has room for are moved there; takes buffers for
 * the others. */
void tdm_nvme_place(struct tdm_torch_model *t);
/* Reads a part into a swap buffer, unless it is there or not on NVMe; and gives the buffer back. */
void tdm_nvme_read(struct tdm_torch_model *t, uint32_t number);
void tdm_nvme_forget(struct tdm_torch_model *t, uint32_t number);
/* Reads parts that are used after those that are being gathered. */
void tdm_nvme_read_ahead(struct tdm_torch_model *t);

/* ---- stage 3: gathers (gather.c) ---- */
void tdm_zero3_begin_trace(struct tdm_torch_model *t); /* before a forward: reset_step */
struct tdm_eager_value *tdm_zero3_enter(const struct tdm_torch_model *t, uint32_t module,
                                        struct tdm_eager_value *x);
struct tdm_eager_value *tdm_zero3_leave(const struct tdm_torch_model *t, uint32_t module,
                                        struct tdm_eager_value *y);
/* deepspeed.zero.GatheredParameters of one parameter: wrapper.h. */
bool tdm_zero3_gather_weight(struct tdm_torch_model *t, const struct tdm_eager_value *weight);
void tdm_zero3_return_weight(struct tdm_torch_model *t, const struct tdm_eager_value *weight);
/* The machine may skip tiles, of which the trace is told. */
void tdm_zero3_follow(struct tdm_torch_model *t);
void tdm_zero3_leftovers(struct tdm_torch_model *t); /* modules that no backward has released */
void tdm_zero3_release_all(struct tdm_torch_model *t);
void tdm_zero3_gather_persistent(struct tdm_torch_model *t);
void tdm_zero3_free_gathers(struct tdm_deepspeed *d);

#endif
