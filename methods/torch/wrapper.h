/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wrappers for training a model on several GPUs: DistributedDataParallel, fully_shard,
 * DeepSpeed's engine. A wrapper is a table of functions that the model calls for its parameters,
 * modules, gradients and steps. A NULL function does nothing. To add a wrapper, fill a table and
 * name it in a row of methods/methods.c or in the list of wrapper.c.
 */
#ifndef TDM_METHODS_TORCH_WRAPPER_H
#define TDM_METHODS_TORCH_WRAPPER_H

#include "methods/eager/eager.h"
#include "methods/key.h"

struct tdm_method_cost;
struct tdm_torch_model;
struct tdm_torch_settings;

/* Modules of a model: these, followed by TDM_MODULES_A_LAYER for each layer. */
enum tdm_module {
    TDM_MODULE_WHOLE, /* ...ForCausalLM */
    TDM_MODULE_BASE,  /* the base model, without the head */
    TDM_MODULE_EMBEDDING,
    TDM_MODULE_ROTARY,
    TDM_MODULE_NORM,
    TDM_MODULE_HEAD,
    TDM_MODULE_ORIGINAL, /* embedding or head that peft's modules_to_save has put aside */
    TDM_MODULE_FIRST_LAYER = 8,
};
enum tdm_layer_module {
    TDM_MODULE_LAYER,
    TDM_MODULE_ATTENTION,
    TDM_MODULE_MLP,
    TDM_MODULE_ACTIVATION,
    TDM_MODULE_MIXER, /* in place of attention, or beside it */
    TDM_MODULE_ROLES, /* the module of each role's weight */
    TDM_MODULE_ADAPTED =
        120, /* a projection with adapters: the module that contains its three products */
    TDM_MODULE_DOWN = 134,    /* LoRA's A of each projection */
    TDM_MODULE_UP = 148,      /* LoRA's B */
    TDM_MODULE_EXPERTS = 162, /* that ranks divide (experts_titan.c) */
    TDM_MODULES_A_LAYER = 163,
};

static inline uint32_t tdm_layer_module(uint32_t layer, uint32_t module)
{
    return TDM_MODULE_FIRST_LAYER + layer * TDM_MODULES_A_LAYER + module;
}

static inline uint32_t tdm_module_layer(uint32_t module)
{
    return (module - TDM_MODULE_FIRST_LAYER) / TDM_MODULES_A_LAYER;
}

struct tdm_wrapper {
    const char *name;                         /* "fsdp": the value of the key "sharding" */
    const struct tdm_method_key *const *keys; /* tables, ended by NULL; NULL: it has none */
    const char *const
        *without; /* names of keys that a method with this wrapper lacks, ended by NULL, or NULL */
    uint32_t communicators; /* communicators that NCCL creates for it, beyond the first */
    bool mixes_precision; /* it casts parameters to bf16 itself, so the forward needs no autocast */
    bool shards_quantized; /* quantized weights are parameters that it shards; false: it leaves them
                            */
    /* Refuses invalid combinations after keys were read; TDM_USAGE says why. */
    enum tdm_status (*check)(const struct tdm_model *model, struct tdm_method_settings *settings,
                             struct tdm_error *err);
    /* What the method is under these settings, or NULL: as its row says. */
    const char *(*summary)(const struct tdm_method_settings *settings);
    /* One line of assumptions under these settings, or NULL. */
    const char *(*assumption)(const struct tdm_method_settings *settings);
    /* Adds the bytes sent and other work to a cost that has the FLOPs of a step with one backward.
     */
    void (*cost)(const struct tdm_model *model, const struct tdm_method_settings *settings,
                 struct tdm_method_cost *cost);

    /* Creates its state, which becomes t->wrapped, before parameters are made. NULL: out of memory.
     */
    void *(*create)(struct tdm_torch_model *t, uint32_t most_parameters);
    void (*free)(void *state);
    /* Makes a parameter of a module and returns the value that the module computes with. NULL:
     * tdm_torch_parameter. */
    struct tdm_eager_value *(*parameter)(struct tdm_torch_model *t, uint32_t module, uint64_t rows,
                                         uint64_t columns, uint16_t element_bytes, bool trained);
    void (*start)(struct tdm_torch_model *t); /* called when all parameters are made */

    void (*before_forward)(struct tdm_torch_model *t);
    void (*after_forward)(struct tdm_torch_model *t);
    void (*before_backward)(struct tdm_torch_model *t);
    void (*after_backward)(struct tdm_torch_model *t);
    /* Called before and after a unit: the embedding (TDM_MODULE_EMBEDDING), each layer with its
     * checkpoint (its TDM_MODULE_LAYER), experts inside of it that ranks divide (its
     * TDM_MODULE_EXPERTS), and the last norm and head together (TDM_MODULE_HEAD,
     * which is left only if a module computes logits). They take the input and return it, or return
     * the same value with a node whose backward the wrapper handles. `x` is NULL before the
     * embedding. */
    struct tdm_eager_value *(*enter_unit)(struct tdm_torch_model *t, uint32_t module,
                                          struct tdm_eager_value *x);
    struct tdm_eager_value *(*leave_unit)(struct tdm_torch_model *t, uint32_t module,
                                          struct tdm_eager_value *y);
    /* Called around every module, also when a checkpoint recomputes it: tdm_module_enter,
     * tdm_module_leave. */
    struct tdm_eager_value *(*enter_module)(const struct tdm_torch_model *t, uint32_t module,
                                            struct tdm_eager_value *x);
    struct tdm_eager_value *(*leave_module)(const struct tdm_torch_model *t, uint32_t module,
                                            struct tdm_eager_value *y);
    /* Gathers a weight that is read outside of its module, unless it is whole, and gives it back.
     * gather returns true if it did. NULL: such weights are whole. */
    bool (*gather_weight)(struct tdm_torch_model *t, const struct tdm_eager_value *weight);
    void (*return_weight)(struct tdm_torch_model *t, const struct tdm_eager_value *weight);
    /* How it shards a second model, which is frozen. NULL: every rank has all of it. */
    void (*share_second)(const struct tdm_torch_settings *first, struct tdm_torch_settings *second);
    void (*gradient)(void *model,
                     struct tdm_eager_value *
                         leaf); /* a leaf has received its gradient; `model` is a tdm_torch_model */

    bool (*accumulates)(const struct tdm_torch_model *t); /* several backwards a step */
    bool (*owns_states)(const struct tdm_torch_model *t,
                        uint32_t parameter); /* NULL: of all parameters */
    void (*step)(struct tdm_torch_model *t); /* replaces optimizer.step() and zero_grad() */
    uint64_t (*weight_bytes)(
        const struct tdm_torch_model *t); /* on this rank; NULL: the sum over all parameters */
};

extern const struct tdm_wrapper tdm_no_wrapper, tdm_ddp_wrapper, tdm_zero1_wrapper,
    tdm_fsdp_wrapper;

/* Reads the key "sharding", whose value is the name of a wrapper. */
enum tdm_status tdm_key_read_wrapper(const struct tdm_method_key *key, const char *value,
                                     struct tdm_method_settings *settings, struct tdm_error *err);

/* Called around a module's forward. `x` is its positional input, or NULL if it has none. enter
 * returns a new reference to the input that the module gets. leave takes `y` and returns the output
 * that the caller gets. */
struct tdm_eager_value *tdm_module_enter(const struct tdm_torch_model *t, uint32_t module,
                                         struct tdm_eager_value *x);
struct tdm_eager_value *tdm_module_leave(const struct tdm_torch_model *t, uint32_t module,
                                         struct tdm_eager_value *y);

/* Called around a unit. Both take their argument. */
struct tdm_eager_value *tdm_unit_enter(struct tdm_torch_model *t, uint32_t module,
                                       struct tdm_eager_value *x);
struct tdm_eager_value *tdm_unit_leave(struct tdm_torch_model *t, uint32_t module,
                                       struct tdm_eager_value *y);

/* Around what reads a weight outside of its module: gather_weight, return_weight. */
bool tdm_weight_gather(struct tdm_torch_model *t, const struct tdm_eager_value *weight);
void tdm_weight_return(struct tdm_torch_model *t, const struct tdm_eager_value *weight,
                       bool gathered);

#endif
