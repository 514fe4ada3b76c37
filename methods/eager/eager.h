/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's eager mode without numbers: values with shapes and references, the graph that autograd
 * keeps, and the engine that walks it backward. Every value that is made and every one whose last
 * reference goes is an event of the caching allocator, in the order in which PyTorch has them.
 *
 * What is modelled, because memory depends on it: a storage lives as long as a value or a saved
 * tensor refers to it; nodes run by falling sequence number, gradients of leaves first; a node's
 * saved tensors go when it has run; two gradients of one value are added in place only if nobody
 * else has the first and it is no view; saved tensors of a checkpointed function are made again
 * when the first is asked for. Sources:
 * torch/csrc/autograd/{engine,input_buffer,saved_variable}.cpp, functions/accumulate_grad.h,
 * torch/utils/checkpoint.py.
 *
 * A machine keeps its first failure and goes on without allocating, so callers check status once.
 * It is TDM_INTERNAL if a node has more inputs, saved tensors or results than there is room for.
 */
#ifndef TDM_METHODS_EAGER_EAGER_H
#define TDM_METHODS_EAGER_EAGER_H

#include "base/status.h"
#include "methods/torch/allocator.h"

#include <stdbool.h>
#include <stdint.h>

/* What bytes are for: rows of what is printed. The words are those of a program's buffers. */
enum tdm_method_category {
    TDM_METHOD_WEIGHTS,
    TDM_METHOD_GRADIENTS,
    TDM_METHOD_OPTIMIZER,
    TDM_METHOD_RESIDUALS, /* saved for the backward */
    TDM_METHOD_KV,        /* K and V that outlive their chunk; their gradients */
    TDM_METHOD_KV_GRADIENTS,
    TDM_METHOD_LOGITS,        /* logits and all of their size */
    TDM_METHOD_WORKSPACE,     /* all that is neither; of cuBLAS too */
    TDM_METHOD_COMMUNICATION, /* buckets of gradients */
    TDM_METHOD_CATEGORIES
};

const char *tdm_method_category_name(enum tdm_method_category category);

enum tdm_made {
    TDM_MADE_FORWARD,  /* or outside of forward and backward */
    TDM_MADE_BACKWARD, /* by the backward of what the label names */
    TDM_MADE_GRADIENT, /* the gradient of the parameter that the label names */
};

#define TDM_NO_LAYER UINT32_MAX
#define TDM_MANY_LAYERS (UINT32_MAX - 1)

/* What a tensor is in the model: "mlp.gate_proj" of layer 12, "lm_head" of none. */
struct tdm_label {
    const char *name; /* static; NULL: nobody said */
    uint32_t layer;
    enum tdm_made made;
};

#define TDM_LABEL_BYTES 96u

/* "backward of model.layers.12.mlp.gate_proj"; returns `out`. */
const char *tdm_label_format(const struct tdm_label *label, char out[TDM_LABEL_BYTES]);

/* Tensors of one label, live at the peak. */
struct tdm_tensor_group {
    struct tdm_label label; /* its layer is TDM_MANY_LAYERS if they are of several */
    enum tdm_method_category category;
    uint32_t count;
    uint64_t bytes; /* of all */
};

struct tdm_node;
struct tdm_frame;

struct tdm_storage {
    uint32_t references;
    enum tdm_method_category category;
    bool shared; /* with another stream, which its block waits for once it is freed */
    struct tdm_torch_block *block; /* NULL if nothing was allocated: after a failure */
    struct tdm_label label;
    uint32_t
        count; /* tensors that it stands for: tdm_value_extend; of these so many of a second kind */
    uint32_t second_count;
    enum tdm_method_category second_category;
    struct tdm_label second_label;
    uint64_t second_bytes;
    /* Of those that have a block, by their moments (peak.c). */
    struct tdm_storage *older, *newer;
    uint64_t taken, changed;                  /* when the block was, and the category */
    enum tdm_method_category category_before; /* that change */
};

/* A tensor: rows x columns elements, of which the last dimension is the columns. */
struct tdm_eager_value {
    uint32_t references;
    uint16_t element_bytes;
    bool requires_grad;
    bool view;    /* shares its storage with what it was made from */
    bool swapped; /* [batch, heads, tokens, head_dim] that lies in memory by token, then head */
    bool leaf;
    uint32_t output; /* which result of its node it is */
    uint32_t module; /* of a leaf, whose it is, to those who ask */
    uint64_t rows, columns;
    struct tdm_storage *storage;
    struct tdm_node *node; /* that made it (a leaf's: that accumulates its gradient), or NULL */
    struct tdm_eager_value *grad; /* of a leaf, or NULL */
    struct tdm_eager_value *cast; /* its bf16 copy in autocast's cache, or NULL */
};

struct tdm_eager;

#define TDM_MOST_INPUTS 6u
#define TDM_MOST_SAVED 8u
#define TDM_MOST_OUTPUTS 4u

/* A kind of operation, as autograd knows it. */
struct tdm_eager_op {
    const char *name; /* as PyTorch names the node: "MulBackward0" */
    /* It stands for a node between nodes of views: gradients of its leaves are taken up before
     * others wait. */
    bool between_views;
    /* Fills results[input], each a new reference or NULL, from grads[output], which stay the
     * caller's. */
    void (*backward)(struct tdm_eager *m, struct tdm_node *node,
                     struct tdm_eager_value *const *grads, struct tdm_eager_value **results);
};

struct tdm_edge {
    struct tdm_node *node; /* NULL: no gradient is wanted */
    uint32_t output;
    uint16_t element_bytes;
    uint64_t rows, columns;
};

/* A tensor that a node saved: itself, or number `index` of a checkpointed function. */
struct tdm_saved {
    struct tdm_eager_value *value;
    struct tdm_frame *frame;
    uint32_t index;
};

struct tdm_node {
    const struct tdm_eager_op *op;
    uint32_t references, inputs, saved_count, dependencies, task;
    uint64_t sequence;
    struct tdm_edge edges[TDM_MOST_INPUTS];
    struct tdm_saved saved[TDM_MOST_SAVED];
    struct tdm_eager_value *grads[TDM_MOST_OUTPUTS];
    struct tdm_eager_value *leaf; /* whose gradient it accumulates; not a reference */
    struct tdm_label label;
    uint64_t facts[6];          /* what the op's backward needs to know beside its values */
    void *context;              /* of those who made it */
    void *function;             /* of a reentrant checkpoint */
    struct tdm_node *next_heap; /* of nodes that wait to go */
};

#define TDM_MOST_HELD 5u

/* A function that checkpointing runs again: makes output from input. */
struct tdm_function {
    struct tdm_eager_value *(*run)(struct tdm_eager *m, const void *model, uint32_t layer,
                                   struct tdm_eager_value *input);
    const void *model;
    uint32_t layer;
    struct tdm_eager_value
        *held[TDM_MOST_HELD]; /* what it uses beside its input and leaves, NULL or not */
};

/* One run of a checkpointed function and what its nodes saved. */
struct tdm_frame {
    uint32_t references, saved_count, made_again, room;
    struct tdm_function function;
    struct tdm_eager_value *input;
    struct tdm_eager_value **made; /* what was saved, once it is made again */
    bool has_run_again;
    bool autocast;
};

struct tdm_heap {
    struct tdm_node **nodes;
    uint32_t count, room;
};

/* Facts of the GPU that kernels size their scratch by. */
struct tdm_gpu_facts {
    uint32_t multiprocessors, threads_per_multiprocessor;
    uint64_t cublas_workspace_bytes, cublaslt_workspace_bytes;
};

#define TDM_THREADS 2u /* the one that calls, and autograd's */
#define TDM_CAST_MOST 4096u
#define TDM_MOST_GROUPS 256u

struct tdm_eager {
    struct tdm_torch_allocator *allocator;
    struct tdm_gpu_facts gpu;
    enum tdm_status status;
    bool grad_enabled, autocast;
    bool linear_function;        /* products are a Function that saves both operands: DeepSpeed's,
                                    BMTrain's */
    bool partial_gradients;      /* more is added to gradients before they are whole: tiles */
    bool stopped;                /* a checkpointed function has made again all that was saved */
    bool in_backward;            /* which thread runs */
    struct tdm_frame *saving;    /* nodes save into this frame, or NULL */
    struct tdm_frame *repeating; /* or it is being run again */
    uint32_t stream;             /* in which it is allocated */
    enum tdm_method_category category; /* of what is allocated */
    struct tdm_label label;            /* the same; a node's holds in its backward */
    uint64_t sequence;
    uint32_t task;
    uint64_t live[TDM_METHOD_CATEGORIES], at_peak[TDM_METHOD_CATEGORIES], peak;
    uint64_t host_live, host_peak; /* bytes of host memory */
    uint64_t moment, peak_moment;  /* allocations and frees so far, and at the peak */
    uint64_t most_moments;      /* from here on an allocation fails as on a full device; 0: never */
    struct tdm_storage *newest; /* of those with a block */
    struct tdm_tensor_group gone[TDM_MOST_GROUPS]; /* live at the peak, and freed since */
    uint32_t gone_count;
    struct tdm_eager_value *cublas[TDM_THREADS], *cublaslt[TDM_THREADS];
    struct tdm_eager_value *casts[TDM_CAST_MOST]; /* leaves with a copy in autocast's cache */
    uint32_t cast_count;
    /* Called after every allocation and free with the bytes that were asked for, or NULL. */
    void (*observe)(void *context, const struct tdm_storage *storage, bool allocated,
                    uint64_t bytes);
    void *observer;
    /* Called when a leaf has its gradient, or NULL. */
    void (*gradient_ready)(void *context, struct tdm_eager_value *leaf);
    void *gradient_context;
    struct tdm_pool *pools;   /* where values, storages and nodes come from */
    struct tdm_node *dropped; /* nodes that wait to go */
    bool dropping;
    void *spare_values, *spare_storages, *spare_nodes;
    union {
        struct tdm_eager_value value;
        struct tdm_storage storage;
        struct tdm_node node;
    } nothing[3]; /* stand in when memory ran out */
};

/* `allocator` is borrowed. */
void tdm_eager_start(struct tdm_eager *m, struct tdm_torch_allocator *allocator,
                     const struct tdm_gpu_facts *gpu);
void tdm_eager_end(struct tdm_eager *m);

/* ---- values ---- */

/* A new value with memory of its own, one reference. */
struct tdm_eager_value *tdm_value_new(struct tdm_eager *m, uint64_t rows, uint64_t columns,
                                      uint16_t element_bytes);
/* Makes a value stand for one more tensor, of the category and label that are set, which goes when
 * it does, where that lies right behind it: all counts as if there were two. False, and nothing is
 * changed: it does not, or somebody observes. Tensors of at most two kinds are one. */
bool tdm_value_extend(struct tdm_eager *m, struct tdm_eager_value *value, uint64_t bytes);
/* Like another one in shape, dtype and order in memory. */
struct tdm_eager_value *tdm_value_like(struct tdm_eager *m, const struct tdm_eager_value *like);
/* Another value of the same storage, without a node. */
struct tdm_eager_value *tdm_value_view(struct tdm_eager *m, struct tdm_eager_value *of);
/* A parameter. */
struct tdm_eager_value *tdm_value_leaf(struct tdm_eager *m, uint64_t rows, uint64_t columns,
                                       uint16_t element_bytes, bool trained);
/* value.data = from: its own storage goes, it shares the other's. */
void tdm_value_set_data(struct tdm_eager *m, struct tdm_eager_value *value,
                        struct tdm_eager_value *from);
/* Gives the memory of a value's storage back, and takes it anew: storage.resize_. */
void tdm_value_vacate(struct tdm_eager *m, struct tdm_eager_value *value);
void tdm_value_occupy(struct tdm_eager *m, struct tdm_eager_value *value);
/* value.requires_grad_(True) of a value without a node; it must outlive the nodes that read it. */
void tdm_value_require_grad(struct tdm_eager *m, struct tdm_eager_value *value);
struct tdm_eager_value *
tdm_take(struct tdm_eager_value *value); /* one more reference; NULL stays NULL */
void tdm_drop(struct tdm_eager *m, struct tdm_eager_value *value); /* one less; NULL is fine */
/* For x = f(x): drops `old`, which may have been read to make `made`, and returns `made`. */
struct tdm_eager_value *tdm_replace(struct tdm_eager *m, struct tdm_eager_value *old,
                                    struct tdm_eager_value *made);
uint64_t tdm_value_elements(const struct tdm_eager_value *value);
/* value.record_stream(): once freed its block waits for another stream, until the allocator
 * settles. */
void tdm_value_share(struct tdm_eager_value *value);
void tdm_value_set_category(struct tdm_eager *m, struct tdm_eager_value *value,
                            enum tdm_method_category category);

/* ---- the graph ---- */

/* A node if any of the inputs (NULL: none) needs a gradient and gradients are on, else NULL;
 * borrowed, until tdm_node_output or tdm_node_forget. */
struct tdm_node *tdm_node_new(struct tdm_eager *m, const struct tdm_eager_op *op,
                              struct tdm_eager_value *const *inputs, uint32_t count);
bool tdm_node_needs(const struct tdm_node *node, uint32_t input);
void tdm_node_save(struct tdm_eager *m, struct tdm_node *node, struct tdm_eager_value *value);
/* The value is result number `output` of the node (NULL: of none). */
void tdm_node_output(struct tdm_eager *m, struct tdm_node *node, uint32_t output,
                     struct tdm_eager_value *value);
/* After the outputs were told: gives back the reference of tdm_node_new. */
void tdm_node_done(struct tdm_eager *m, struct tdm_node *node);
/* Both for the node's only result, which is returned. */
struct tdm_eager_value *tdm_node_finish(struct tdm_eager *m, struct tdm_node *node,
                                        struct tdm_eager_value *value);
/* For hooks of backwards: the same value, a new reference, with a node of the op in which facts[0]
 * is `fact`; x itself if it has no gradient. */
struct tdm_eager_value *tdm_mark(struct tdm_eager *m, const struct tdm_eager_op *op, uint64_t fact,
                                 void *context, struct tdm_eager_value *x);
/* Saved tensor number i, a new reference: a checkpointed function runs again if it has not yet. */
struct tdm_eager_value *tdm_node_saved(struct tdm_eager *m, struct tdm_node *node, uint32_t i);

/* loss.backward(). */
void tdm_backward(struct tdm_eager *m, struct tdm_eager_value *loss, struct tdm_eager_value *grad);

/* torch.utils.checkpoint with use_reentrant False and True; the result is a new reference. */
struct tdm_eager_value *tdm_checkpoint(struct tdm_eager *m, const struct tdm_function *function,
                                       struct tdm_eager_value *input);
struct tdm_eager_value *tdm_checkpoint_reentrant(struct tdm_eager *m,
                                                 const struct tdm_function *function,
                                                 struct tdm_eager_value *input);

/* The same with use_reentrant True, its input in host memory until the backward. */
struct tdm_eager_value *tdm_checkpoint_offloaded(struct tdm_eager *m,
                                                 const struct tdm_function *function,
                                                 struct tdm_eager_value *input);

/* Empties autocast's cache of casts. */
void tdm_autocast_clear(struct tdm_eager *m);

/* Memory of the host, for what is offloaded; it is counted, not laid out. */
void tdm_host_take(struct tdm_eager *m, uint64_t bytes);
void tdm_host_give(struct tdm_eager *m, uint64_t bytes);

/* Resets the peaks of the allocator, of the categories and of the host. */
void tdm_eager_reset_peak(struct tdm_eager *m);

/* What is allocated from here on is called so, in the layer that m->label says. */
void tdm_label(struct tdm_eager *m, const char *name);

/* The largest groups of tensors that were live at the peak, the largest first; returns how many of
 * at most `most` there are. Groups beyond the first TDM_MOST_GROUPS are left out. */
uint32_t tdm_eager_largest(const struct tdm_eager *m, struct tdm_tensor_group *groups,
                           uint32_t most);

/* Sum over rows or columns, with the scratch that the kernel takes, to that shape; `value` is
 * taken. */
struct tdm_eager_value *tdm_sum_to(struct tdm_eager *m, struct tdm_eager_value *value,
                                   uint64_t rows, uint64_t columns);

#endif
