/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's eager mode without numbers: values with shapes and references, the graph of autograd,
 * and the engine that runs it backward. Every allocation of a value, and every drop of its last
 * reference, is an event of the caching allocator, in PyTorch's order.
 *
 * The model includes what memory depends on. A storage lives as long as a value or a saved tensor
 * refers to it. Nodes run by descending sequence number, gradients of leaves first. A node's saved
 * tensors are freed when it has run. Two gradients of one value are added in place only if the
 * first has no other reference and is no view. Saved tensors of a checkpointed function are
 * recomputed when the first of them is needed. Sources:
 * torch/csrc/autograd/{engine,input_buffer,saved_variable}.cpp, functions/accumulate_grad.h,
 * torch/utils/checkpoint.py.
 *
 * A machine keeps its first failure and goes on without allocating, so callers check status once.
 * It is TDM_INTERNAL if a node has too few slots for inputs, saved tensors or results.
 */
#ifndef TDM_METHODS_EAGER_EAGER_H
#define TDM_METHODS_EAGER_EAGER_H

#include "base/status.h"
#include "methods/torch/allocator.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What bytes are for: rows of printed tables. The names are those of a program's buffers. */
enum tdm_method_category {
    TDM_METHOD_WEIGHTS,
    TDM_METHOD_GRADIENTS,
    TDM_METHOD_OPTIMIZER,
    TDM_METHOD_RESIDUALS, /* saved for the backward */
    TDM_METHOD_KV,        /* K and V that outlive their chunk */
    TDM_METHOD_KV_GRADIENTS,
    TDM_METHOD_LOGITS,        /* logits, and other tensors of their size */
    TDM_METHOD_WORKSPACE,     /* everything else, including the workspaces of cuBLAS */
    TDM_METHOD_COMMUNICATION, /* buffers to send and receive, buckets of gradients */
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

/* What a tensor is in the model: "mlp.gate_proj" of layer 12, or "lm_head" of no layer. */
struct tdm_label {
    const char *name; /* static; NULL: not set */
    uint32_t layer;
    enum tdm_made made;
};

#define TDM_LABEL_BYTES 96u

/* Writes a text like "backward of model.layers.12.mlp.gate_proj" to `out` and returns it. */
const char *tdm_label_format(const struct tdm_label *label, char out[TDM_LABEL_BYTES]);

/* Tensors with the same label that were live at the peak. */
struct tdm_tensor_group {
    struct tdm_label label; /* its layer is TDM_MANY_LAYERS if they are in several */
    enum tdm_method_category category;
    uint32_t count;
    uint64_t bytes; /* of all */
};

struct tdm_node;
struct tdm_frame;
struct tdm_quantized;

struct tdm_storage {
    uint32_t references;
    enum tdm_method_category category;
    bool shared; /* with another stream: the block waits for it once it is freed */
    struct tdm_torch_block *block; /* NULL: vacated, or not allocated after a failure */
    uint64_t bytes;                /* of its blocks */
    struct tdm_label label;
    /* Tensors that it stands for (tdm_value_extend, tdm_value_append), and how many of them are of
     * a second kind. */
    uint32_t count;
    uint32_t second_count;
    enum tdm_method_category second_category;
    struct tdm_label second_label;
    uint64_t second_bytes;
    uint64_t blocks; /* linked, from `block` on */
    /* The list of storages that have a block, by moment of allocation (peak.c). */
    struct tdm_storage *older, *newer;
    uint64_t taken, changed; /* moments when the block was allocated and the category changed */
    enum tdm_method_category category_before; /* that change */
};

/* A tensor of rows x columns elements. The columns are its last dimension. */
struct tdm_eager_value {
    uint32_t references;
    uint16_t element_bytes;
    bool requires_grad;
    bool view;    /* shares its storage with the value it was made from */
    bool swapped; /* [batch, heads, tokens, head_dim], but in memory by token, then head */
    bool leaf;
    uint8_t float8;  /* a weight whose products are of 8 bits: enum tdm_float8 */
    bool is_float8;  /* its memory has 8 bits an element, whatever element_bytes says */
    uint32_t output; /* which result of its node it is */
    uint32_t module; /* of a leaf: number of the module that owns it */
    uint64_t rows, columns;
    struct tdm_storage *storage;
    struct tdm_node *node;        /* that made it, or that accumulates a leaf's gradient, or NULL */
    struct tdm_eager_value *grad; /* of a leaf, or NULL */
    struct tdm_eager_value *cast; /* its bf16 copy in autocast's cache, or NULL */
    struct tdm_quantized *quantized; /* a quantized weight: what it is made of, or NULL */
};

struct tdm_eager;

#define TDM_MOST_INPUTS 8u
#define TDM_MOST_SAVED 8u
#define TDM_MOST_OUTPUTS 4u

/* A kind of operation, as autograd knows it. */
struct tdm_eager_op {
    const char *name; /* as PyTorch names the node: "MulBackward0" */
    /* In PyTorch, nodes of views surround this one. So its leaves accumulate their gradients before
     * its other results are passed on. */
    bool between_views;
    /* Sets results[input], each to a new reference or NULL, from grads[output], which stay the
     * caller's. */
    void (*backward)(struct tdm_eager *m, struct tdm_node *node,
                     struct tdm_eager_value *const *grads, struct tdm_eager_value **results);
};

struct tdm_edge {
    struct tdm_node *node; /* NULL: no gradient is needed */
    uint32_t output;
    uint16_t element_bytes;
    uint64_t rows, columns;
};

/* A tensor that a node saved: `value` itself, or number `index` of a checkpointed function. */
struct tdm_saved {
    struct tdm_eager_value *value;
    struct tdm_frame *frame;
    uint32_t index;
};

struct tdm_node {
    const struct tdm_eager_op *op;
    uint32_t references, inputs, saved_count, dependencies, task;
    bool of_leaf; /* it has no room for `edges` and `saved` */
    uint64_t sequence;
    struct tdm_eager_value *grads[TDM_MOST_OUTPUTS];
    struct tdm_eager_value *leaf; /* whose gradient it accumulates; not a reference */
    struct tdm_label label;
    uint64_t facts[6];            /* what the op's backward needs besides values */
    void *context;                /* belongs to the code that made the node */
    struct tdm_eager_value *held; /* an attribute of a Python function's ctx: freed with the node */
    void *function;               /* frame of a reentrant checkpoint */
    struct tdm_node *next_heap;   /* in the list of nodes to free */
    struct tdm_edge edges[TDM_MOST_INPUTS]; /* only the first `inputs` are set */
    struct tdm_saved saved[TDM_MOST_SAVED]; /* only the first saved_count are set */
};

#define TDM_MOST_HELD 5u

/* A function that checkpointing can run again. It returns an output for an input. */
struct tdm_function {
    struct tdm_eager_value *(*run)(struct tdm_eager *m, const void *model, uint32_t layer,
                                   struct tdm_eager_value *input);
    const void *model;
    uint32_t layer;
    /* What it uses besides its input and leaves. Entries may be NULL. */
    struct tdm_eager_value *held[TDM_MOST_HELD];
};

/* One run of a checkpointed function and what its nodes saved. */
struct tdm_frame {
    uint32_t references, saved_count, made_again, made_capacity;
    struct tdm_function function;
    struct tdm_eager_value *input;
    struct tdm_eager_value **made; /* the saved tensors, once recomputed */
    bool has_run_again;
    bool autocast;
    /* The input is in host memory until then; these are what it is made again from. */
    bool offloaded;
    /* Selective checkpoints: results that are kept, in the order of the operations; how many of
     * them were used again; products so far. */
    bool selective;
    struct tdm_eager_value **selected;
    uint32_t selected_count, selected_capacity, selected_again, products;
    uint64_t rows, columns;
    uint16_t element_bytes;
};

struct tdm_heap {
    struct tdm_node **nodes;
    uint32_t count, capacity;
};

/* Facts of the GPU that determine the scratch of kernels. */
struct tdm_gpu_facts {
    uint32_t multiprocessors, threads_per_multiprocessor;
    uint64_t cublas_workspace_bytes, cublaslt_workspace_bytes;
    uint32_t capability; /* of CUDA, times 10: 90 for Hopper */
};

/* Code beside the machine that acts on the modules and gradients of tiles, and remembers what it
 * did. Without it, every tile is run where gradients are waited for. */
struct tdm_follower {
    /* Called at the end of tiles that may be like the next one: a digest of all that decides what
     * it does in that. 0: it cannot say. */
    uint64_t (*digest)(void *context);
    /* Called after the second of two tiles with the same digest: does what `tiles` more would do to
     * it, or fewer of them; returns their number. Another one, at least, follows. */
    uint64_t (*skip)(void *context, uint64_t tiles);
    void *context;
};

/* Equal items: those that were given back, and those of the latest pool that were never taken. */
struct tdm_items {
    void *spares; /* each begins with the address of the next one */
    char *fresh, *end;
};

#define TDM_THREADS 2u /* the calling thread and autograd's */
#define TDM_CAST_MOST 4096u
#define TDM_MOST_GROUPS 256u

struct tdm_eager {
    struct tdm_torch_allocator *allocator;
    const struct tdm_torch_bytes *bytes; /* that the allocator now has */
    struct tdm_gpu_facts gpu;
    enum tdm_status status;
    const char *lacks; /* what a failed run has too few of, if that is not the device's memory */
    bool grad_enabled, autocast;
    bool selective; /* new checkpoints keep some results */
    bool fuses;     /* casts to 8 bits are one compiled kernel each */
    bool passing;   /* a result that is only passed on: selective checkpoints do not keep it */
    /* Products are a Function that saves both operands, as in DeepSpeed and BMTrain. */
    bool linear_function;
    bool means_save;             /* a mean saves its input, as in torch 2.0 and 2.1 */
    bool partial_gradients;      /* later tiles will add to the gradients */
    uint64_t skipped;            /* nodes and moments that were counted without a run */
    bool totals_only;            /* the tensors that were live at the peak are not asked for */
    bool runs_all_tiles;         /* also those that do what the ones before them did */
    bool stopped;                /* a checkpointed function has recomputed all that was saved */
    bool in_backward;            /* autograd's thread runs */
    struct tdm_frame *saving;    /* nodes save into this frame, or NULL */
    struct tdm_frame *repeating; /* the frame that is being recomputed, or NULL */
    uint32_t stream;             /* of new allocations */
    uint32_t streams_made;       /* by tdm_eager_next_stream */
    enum tdm_method_category category; /* of new allocations */
    struct tdm_label label;            /* of new allocations; in a backward, that of the node */
    uint64_t sequence;
    uint32_t task;
    uint64_t live[TDM_METHOD_CATEGORIES], at_peak[TDM_METHOD_CATEGORIES], peak;
    uint64_t host_live, host_peak; /* bytes of host memory */
    uint64_t moment, peak_moment;  /* allocations and frees so far, and at the peak */
    uint64_t most_moments; /* from this moment on, allocations fail as on a full device; 0: never */
    struct tdm_storage *newest;                    /* of the storages with a block */
    struct tdm_tensor_group gone[TDM_MOST_GROUPS]; /* live at the peak and freed since */
    uint32_t gone_count, gone_last; /* gone_last: to which of them a tensor was added last */
    struct tdm_eager_value *cublas[TDM_THREADS], *cublaslt[TDM_THREADS], *te_workspace;
    struct tdm_eager_value *casts[TDM_CAST_MOST]; /* leaves with a copy in autocast's cache */
    uint32_t cast_count;
    /* Called after every allocation and free with the requested bytes; or NULL. */
    void (*observe)(void *context, const struct tdm_storage *storage, bool allocated,
                    uint64_t bytes);
    void *observer;
    /* Called when a leaf has accumulated a gradient; or NULL. */
    void (*gradient_ready)(void *context, struct tdm_eager_value *leaf);
    void *gradient_context;
    struct tdm_follower follower; /* its functions may be NULL */
    struct tdm_pool *pools;       /* where values, storages and nodes come from */
    struct tdm_node *dropped;     /* nodes to free */
    bool dropping;
    struct tdm_items values, storages, nodes, leaf_nodes;
    jmp_buf no_memory; /* where to go if the process has no memory for another item, */
    bool can_leave;    /* once this is set */
};

/* `allocator` is borrowed. */
void tdm_eager_start(struct tdm_eager *m, struct tdm_torch_allocator *allocator,
                     const struct tdm_gpu_facts *gpu);
void tdm_eager_end(struct tdm_eager *m);

/* The process has no memory: leaves to m->no_memory, as nothing that follows could be right. */
void tdm_eager_no_memory(struct tdm_eager *m) __attribute__((noreturn));

/* Must every tile and chunk be run, also those that do what the ones before them did? */
static inline bool tdm_eager_runs_all(const struct tdm_eager *m)
{
    return m->observe != NULL || m->runs_all_tiles;
}

/* torch.cuda.Stream(): one of a pool of 32, in turn, of which DeepSpeed has the first two
 * (c10/cuda/CUDAStream.cpp, kStreamsPerPool). */
uint32_t tdm_eager_next_stream(struct tdm_eager *m);

/* ---- values ---- */

/* A new value with memory of its own and one reference. */
struct tdm_eager_value *tdm_value_new(struct tdm_eager *m, uint64_t rows, uint64_t columns,
                                      uint16_t element_bytes);
/* Makes a value stand for one more tensor, of the current category and label, if that would lie
 * right behind `block`, which is one of its blocks. Both are freed together and count as two
 * tensors. A value stands for tensors of at most two kinds. False, without a change: that is
 * impossible, or `observe` is set. */
bool tdm_value_extend(struct tdm_eager *m, struct tdm_eager_value *value,
                      struct tdm_torch_block *block, uint64_t bytes);
/* The same for a tensor that has a block of its own, linked behind `last`, which is the value's
 * last block. The tensor must be of the value's layer. *made: the new block; NULL: there is no
 * memory for it. */
bool tdm_value_append(struct tdm_eager *m, struct tdm_eager_value *value,
                      struct tdm_torch_block *last, uint64_t bytes, struct tdm_torch_block **made);
/* The same for up to `count` equal tensors that fill whole segments (tdm_torch_fill): as many calls
 * of both functions for one tensor would do the same. *last becomes the value's last block. Returns
 * the number of tensors; 0, without a change: the next one has to be added by itself. */
uint64_t tdm_value_append_many(struct tdm_eager *m, struct tdm_eager_value *value,
                               struct tdm_torch_block **last, uint64_t bytes, uint64_t count);
/* Makes a value, which is alone with its memory, stand for those too that so many further rounds
 * would leave (tdm_torch_repeats). Returns how many of them are not counted when it is freed. */
uint64_t tdm_value_repeat(struct tdm_eager *m, struct tdm_eager_value *value, uint64_t rounds);
/* A new value with the shape, dtype and memory order of another one. */
struct tdm_eager_value *tdm_value_like(struct tdm_eager *m, const struct tdm_eager_value *like);
/* Another value with the same storage, without a node. */
struct tdm_eager_value *tdm_value_view(struct tdm_eager *m, struct tdm_eager_value *of);
/* A parameter. */
struct tdm_eager_value *tdm_value_leaf(struct tdm_eager *m, uint64_t rows, uint64_t columns,
                                       uint16_t element_bytes, bool trained);
/* value.data = from: drops its own storage and shares that of `from`. */
void tdm_value_set_data(struct tdm_eager *m, struct tdm_eager_value *value,
                        struct tdm_eager_value *from);
/* Frees the memory of a value's storage, and allocates it again: storage.resize_. */
void tdm_value_vacate(struct tdm_eager *m, struct tdm_eager_value *value);
void tdm_value_occupy(struct tdm_eager *m, struct tdm_eager_value *value);
/* value.requires_grad_(True) for a value without a node. It must outlive the nodes that read it. */
void tdm_value_require_grad(struct tdm_eager *m, struct tdm_eager_value *value);
/* One reference more, and one less. NULL is allowed. */
struct tdm_eager_value *tdm_take(struct tdm_eager_value *value);
void tdm_drop(struct tdm_eager *m, struct tdm_eager_value *value);
/* For x = f(x): drops `old`, from which `made` may have been computed, and returns `made`. */
struct tdm_eager_value *tdm_replace(struct tdm_eager *m, struct tdm_eager_value *old,
                                    struct tdm_eager_value *made);
uint64_t tdm_value_elements(const struct tdm_eager_value *value);
/* value.record_stream(): once freed, its block waits for another stream until the allocator
 * settles. */
void tdm_value_share(struct tdm_eager_value *value);
void tdm_value_set_category(struct tdm_eager *m, struct tdm_eager_value *value,
                            enum tdm_method_category category);

/* ---- the graph ---- */

/* A new node if any input needs a gradient and gradients are enabled, else NULL. Inputs may be
 * NULL. The reference is the caller's until tdm_node_done or tdm_node_finish. */
struct tdm_node *tdm_node_new(struct tdm_eager *m, const struct tdm_eager_op *op,
                              struct tdm_eager_value *const *inputs, uint32_t count);
bool tdm_node_needs(const struct tdm_node *node, uint32_t input);
void tdm_node_save(struct tdm_eager *m, struct tdm_node *node, struct tdm_eager_value *value);
/* ctx.tensors = value of a Python function: no checkpoint makes it again, and it is not freed
 * before the node is. At most one value a node. */
void tdm_node_hold(struct tdm_eager *m, struct tdm_node *node, struct tdm_eager_value *value);
/* Makes the value result number `output` of the node. A NULL node: of none. */
void tdm_node_output(struct tdm_eager *m, struct tdm_node *node, uint32_t output,
                     struct tdm_eager_value *value);
/* Call it after the outputs are set: it drops the reference of tdm_node_new. */
void tdm_node_done(struct tdm_eager *m, struct tdm_node *node);
/* Does both for the node's only result, and returns that. */
struct tdm_eager_value *tdm_node_finish(struct tdm_eager *m, struct tdm_node *node,
                                        struct tdm_eager_value *value);
/* For hooks of backwards: a new reference to the same memory, with a node of the op whose facts[0]
 * is `fact`; or to x itself if it has no gradient. */
struct tdm_eager_value *tdm_mark(struct tdm_eager *m, const struct tdm_eager_op *op, uint64_t fact,
                                 void *context, struct tdm_eager_value *x);
/* A new reference to saved tensor number i. A checkpointed function first runs again, once. */
struct tdm_eager_value *tdm_node_saved(struct tdm_eager *m, struct tdm_node *node, uint32_t i);

/* The same, where the backward lets go of the tensor before it ends, as of an attribute of a Python
 * function's ctx. The node has it no more. */
struct tdm_eager_value *tdm_node_release(struct tdm_eager *m, struct tdm_node *node, uint32_t i);

/* loss.backward(grad). NULL: ones. */
void tdm_backward(struct tdm_eager *m, struct tdm_eager_value *loss, struct tdm_eager_value *grad);

/* AccumulateGrad of a leaf. `grad` stays the caller's. */
void tdm_leaf_accumulate(struct tdm_eager *m, struct tdm_eager_value *leaf,
                         struct tdm_eager_value *grad);

/* torch.utils.checkpoint with use_reentrant False and True. The result is a new reference. */
struct tdm_eager_value *tdm_checkpoint(struct tdm_eager *m, const struct tdm_function *function,
                                       struct tdm_eager_value *input);
/* A result of a product, or of another operation that selective checkpoints keep: in a checkpointed
 * function its memory is kept, of products that of every second one, and the function that runs
 * again gets the same memory. Source: torch/utils/checkpoint.py
 * create_selective_checkpoint_contexts; torchtitan/distributed/activation_checkpoint.py. */
struct tdm_eager_value *tdm_value_selected(struct tdm_eager *m, uint64_t rows, uint64_t columns,
                                           uint16_t element_bytes, bool product);
/* Frees the memory of values that nodes saved, and makes it again before the backward of y, which
 * it takes. Returns y. At most TDM_MOST_SAVED values. */
struct tdm_eager_value *tdm_discard(struct tdm_eager *m, struct tdm_eager_value *y,
                                    struct tdm_eager_value *const *values, uint32_t count);
/* The same with use_reentrant=False and the input in host memory until the function runs again
 * (transformers' gradient_checkpointing_kwargs offload, accelerate's
 * activation_checkpointing_offload). */
struct tdm_eager_value *tdm_checkpoint_away(struct tdm_eager *m,
                                            const struct tdm_function *function,
                                            struct tdm_eager_value *input);
struct tdm_eager_value *tdm_checkpoint_reentrant(struct tdm_eager *m,
                                                 const struct tdm_function *function,
                                                 struct tdm_eager_value *input);

/* The same with use_reentrant True; the input is in host memory until the backward. */
struct tdm_eager_value *tdm_checkpoint_offloaded(struct tdm_eager *m,
                                                 const struct tdm_function *function,
                                                 struct tdm_eager_value *input);

/* Empties autocast's cache of casts. */
void tdm_autocast_clear(struct tdm_eager *m);

/* Host memory of offloaded tensors. It is only counted. */
void tdm_host_take(struct tdm_eager *m, uint64_t bytes);
void tdm_host_give(struct tdm_eager *m, uint64_t bytes);
/* The same of pinned memory from torch's CachingHostAllocator, which rounds up to a power of two.
 */
void tdm_host_take_pinned(struct tdm_eager *m, uint64_t bytes);

/* Resets the peaks of the allocator, of the categories and of the host. */
void tdm_eager_reset_peak(struct tdm_eager *m);

/* Names all later allocations. The layer of m->label stays. */
void tdm_label(struct tdm_eager *m, const char *name);

/* Writes the largest groups of tensors that were live at the peak, the largest first, and returns
 * their number, at most `most`. Groups beyond the first TDM_MOST_GROUPS are left out. */
uint32_t tdm_eager_largest(const struct tdm_eager *m, struct tdm_tensor_group *groups,
                           uint32_t most);

/* Sums over rows or columns to this shape, with the kernel's scratch. Takes over `value`. */
struct tdm_eager_value *tdm_sum_to(struct tdm_eager *m, struct tdm_eager_value *value,
                                   uint64_t rows, uint64_t columns);

#endif
