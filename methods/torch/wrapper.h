/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a model is wrapped in to be trained on several GPUs: DistributedDataParallel, fully_shard,
 * DeepSpeed's engine. A wrapper is a table of functions that the model calls at its parameters,
 * modules, gradients and steps. NULL: nothing is done there. To add one, fill a table and name it
 * in a row of methods/methods.c or in the list of wrapper.c.
 */
#ifndef TDM_METHODS_TORCH_WRAPPER_H
#define TDM_METHODS_TORCH_WRAPPER_H

#include "methods/eager/eager.h"
#include "methods/key.h"

struct tdm_method_cost;
struct tdm_torch_model;

/* Modules of a model: these, and TDM_MODULES_A_LAYER for each layer. */
enum tdm_module {
    TDM_MODULE_WHOLE, /* ...ForCausalLM */
    TDM_MODULE_BASE,  /* its model */
    TDM_MODULE_EMBEDDING,
    TDM_MODULE_ROTARY,
    TDM_MODULE_NORM,
    TDM_MODULE_HEAD,
    TDM_MODULE_FIRST_LAYER = 8,
};
enum tdm_layer_module {
    TDM_MODULE_LAYER,
    TDM_MODULE_ATTENTION,
    TDM_MODULE_MLP,
    TDM_MODULE_ACTIVATION,
    TDM_MODULE_ROLES,        /* that of each role's weight */
    TDM_MODULE_ADAPTED = 32, /* a projection with adapters: the module around all three */
    TDM_MODULE_DOWN = 40,    /* A of each projection */
    TDM_MODULE_UP = 48,      /* B */
    TDM_MODULES_A_LAYER = 64,
};

static inline uint32_t tdm_layer_module(uint32_t layer, uint32_t module)
{
    return TDM_MODULE_FIRST_LAYER + layer * TDM_MODULES_A_LAYER + module;
}

struct tdm_wrapper {
    const char *name;                         /* "fsdp": what the key "sharding" calls it */
    const struct tdm_method_key *const *keys; /* tables, ended by NULL; NULL: it has none */
    const char *const *without; /* names of keys that a method with this wrapper cannot have, ended
                                   by NULL, or NULL */
    uint32_t communicators;     /* that NCCL makes for it, beside the first */
    bool mixes_precision; /* it casts parameters to bf16 itself: the forward needs no autocast */
    /* What cannot be run together, after the keys were read; TDM_USAGE says why. */
    enum tdm_status (*check)(const struct tdm_model *model, struct tdm_method_settings *settings,
                             struct tdm_error *err);
    /* Adds what is sent, and what else it takes, to the FLOPs of a step with one backward. */
    void (*cost)(const struct tdm_model *model, const struct tdm_method_settings *settings,
                 struct tdm_method_cost *cost);

    /* Its state, which becomes t->wrapped, before parameters are made; NULL: out of memory. */
    void *(*create)(struct tdm_torch_model *t, uint32_t most_parameters);
    void (*free)(void *state);
    /* Makes a parameter of a module and returns what the module computes with. NULL:
     * tdm_torch_parameter. */
    struct tdm_eager_value *(*parameter)(struct tdm_torch_model *t, uint32_t module, uint64_t rows,
                                         uint64_t columns, uint16_t element_bytes, bool trained);
    void (*start)(struct tdm_torch_model *t); /* all parameters have been made */

    void (*before_forward)(struct tdm_torch_model *t);
    void (*after_forward)(struct tdm_torch_model *t);
    void (*before_backward)(struct tdm_torch_model *t);
    void (*after_backward)(struct tdm_torch_model *t);
    /* Around the embedding (TDM_MODULE_EMBEDDING), each layer with its checkpoint (TDM_MODULE_LAYER
     * of it), and last norm and head together (TDM_MODULE_HEAD; left only where a module makes
     * logits). What goes in is taken and comes back, or the same value with a node whose backward
     * the wrapper sees. `x` is NULL before the embedding. */
    struct tdm_eager_value *(*enter_unit)(struct tdm_torch_model *t, uint32_t module,
                                          struct tdm_eager_value *x);
    struct tdm_eager_value *(*leave_unit)(struct tdm_torch_model *t, uint32_t module,
                                          struct tdm_eager_value *y);
    /* Around every module, also where a checkpoint runs it again: tdm_module_enter,
     * tdm_module_leave. */
    struct tdm_eager_value *(*enter_module)(const struct tdm_torch_model *t, uint32_t module,
                                            struct tdm_eager_value *x);
    struct tdm_eager_value *(*leave_module)(const struct tdm_torch_model *t, uint32_t module,
                                            struct tdm_eager_value *y);
    void (*gradient)(
        void *model,
        struct tdm_eager_value *leaf); /* a leaf has its gradient; `model` is a tdm_torch_model */

    bool (*accumulates)(const struct tdm_torch_model *t); /* several backwards before a step */
    bool (*owns_states)(const struct tdm_torch_model *t, uint32_t parameter); /* NULL: of all */
    void (*step)(struct tdm_torch_model *t); /* in place of optimizer.step() and zero_grad() */
    uint64_t (*weight_bytes)(const struct tdm_torch_model *t); /* on this rank; NULL: the sum */
};

extern const struct tdm_wrapper tdm_no_wrapper, tdm_ddp_wrapper, tdm_zero1_wrapper,
    tdm_fsdp_wrapper;

/* Reads the key "sharding": the name of a wrapper. */
enum tdm_status tdm_key_read_wrapper(const struct tdm_method_key *key, const char *value,
                                     struct tdm_method_settings *settings, struct tdm_error *err);

/* Around a module's forward. `x` is its input, or NULL if it has none by position; enter gives a
 * new reference to what the module sees; leave takes `y` and gives what its caller sees. */
struct tdm_eager_value *tdm_module_enter(const struct tdm_torch_model *t, uint32_t module,
                                         struct tdm_eager_value *x);
struct tdm_eager_value *tdm_module_leave(const struct tdm_torch_model *t, uint32_t module,
                                         struct tdm_eager_value *y);

/* Around a unit; both take what they are given. */
struct tdm_eager_value *tdm_unit_enter(struct tdm_torch_model *t, uint32_t module,
                                       struct tdm_eager_value *x);
struct tdm_eager_value *tdm_unit_leave(struct tdm_torch_model *t, uint32_t module,
                                       struct tdm_eager_value *y);

#endif
