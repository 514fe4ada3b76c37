/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launchers of the kernels: what host code in C calls.
 *
 * All take device memory, queue on `stream` and return what CUDA said of the launch. None allocates
 * or waits. Sums have a fixed order, so results repeat. Elements are fp32 or bf16 where an array is
 * given; arithmetic is in fp32. Row-major everywhere. Scratch is device memory that nobody else
 * uses until the kernels of the call have ended.
 */
#ifndef TDM_EXECUTOR_CUDA_KERNELS_H
#define TDM_EXECUTOR_CUDA_KERNELS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "base/dtype.h"
#include "base/status.h"
#include "ops/gate.h"
#include "ops/scratch.h"
#include "ops/selector.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

/* Sizes that the kernels take at most; head dims are even. */
#define TDM_CUDA_MOST_HIDDEN 16384u
#define TDM_CUDA_MOST_HEAD_DIM 512u

/* Elements on the device; fp32 or bf16. */
struct tdm_array {
    void *data;
    enum tdm_dtype dtype;
};

/* Documents of a sequence; starts on the device, NULL: one document. */
struct tdm_documents {
    const uint64_t *starts;
    uint32_t count;
};

/* A token that is not in the vocabulary, as a kernel found it: any of them where there are
 * several. */
struct tdm_fault {
    uint64_t row; /* of the chunk, from 1; 0: none */
    int32_t token;
};

/* ---- arenas: pattern.cu ---- */

/* Writes the pattern of an arena to its words from `first` to before `end`. */
enum tdm_status tdm_cuda_pattern_fill(uint64_t *words, uint64_t first, uint64_t end,
                                      cudaStream_t stream, struct tdm_error *err);

/* Counts words that do not hold it, and finds the end of the highest one: found[0], found[1]. */
enum tdm_status tdm_cuda_pattern_scan(const uint64_t *words, uint64_t count, uint64_t found[2],
                                      cudaStream_t stream, struct tdm_error *err);

/* ---- norm_grad.cu ---- */

/* Gradients of RMSNorm (norm.h): with s = 1 / sqrt(mean(x^2) + epsilon) of each row,
 * dx (+)= s w dy - x s^3 / hidden * sum(w dy x), dw (+)= sum over rows of dy x s. `add_input` and
 * `add_weight` say what is added to. dx may be x or dy. Scratch: fp32 [TDM_NORM_SLICES, hidden]. */
enum tdm_status tdm_cuda_rms_norm_grad(struct tdm_array x, struct tdm_array weight,
                                       struct tdm_array dy, uint64_t rows, uint32_t hidden,
                                       float epsilon, bool add_input, struct tdm_array dx,
                                       bool add_weight, struct tdm_array dw, void *scratch,
                                       cudaStream_t stream, struct tdm_error *err);

/* ---- sums.cu ---- */

/* sums[column] (+)= sum over rows of x[row * stride + column]. Scratch: fp32 [TDM_BIAS_SLICES,
 * columns]. */
enum tdm_status tdm_cuda_column_sums(struct tdm_array x, uint64_t rows, uint64_t stride,
                                     uint64_t columns, bool add, struct tdm_array sums,
                                     void *scratch, cudaStream_t stream, struct tdm_error *err);

/* sums[column] (+)= sum over slices of partial[slice * columns + column], slices in their order. */
enum tdm_status tdm_cuda_sum_slices(const float *partial, uint32_t slices, uint64_t columns,
                                    bool add, struct tdm_array sums, cudaStream_t stream,
                                    struct tdm_error *err);

/* *sum (+)= factor * sum of `count` values. */
enum tdm_status tdm_cuda_sum_values(const double *values, uint64_t count, double factor, bool add,
                                    double *sum, cudaStream_t stream, struct tdm_error *err);

/* ---- rope.cu ---- */

/* Heads of rows: head h of token t is at t * stride + h * head_dim, or, with page_tokens > 0, in
 * pages (schedule/layout.h) of which K has `heads` heads, and head h >= heads is V's h - heads. */
struct tdm_heads {
    struct tdm_array array;
    uint64_t stride;
    uint64_t page_tokens;
};

struct tdm_turn {
    uint64_t tokens;
    uint64_t first_token; /* of the chunk in its sequence */
    struct tdm_documents documents;
    uint32_t heads;    /* that turn */
    uint32_t straight; /* that are only copied, behind them: V */
    uint32_t head_dim;
    bool back;
    const double *frequencies; /* [head_dim / 2], on the device */
    double factor;             /* of cos and sin */
    struct tdm_heads from, to;
    /* QK-norm: weights of a head (data NULL: none); backward also what was normed, and where the
     * weights' gradient goes. */
    struct tdm_array weight;
    float epsilon;
    struct tdm_heads raw;
    struct tdm_array dw;
    bool add_weight;
};

/* RoPE over heads, with QK-norm before it or behind it on the way back, as executor/cpu/rope.c.
 * Scratch: fp32 [TDM_HEAD_SLICES, head_dim], of the gradient of QK-norm's weights. */
enum tdm_status tdm_cuda_turn(const struct tdm_turn *turn, void *scratch, cudaStream_t stream,
                              struct tdm_error *err);

/* ---- swiglu.cu ---- */

/* What ops/gate.h says of a gate; gate_up is [rows, gate then up]. */
enum tdm_status tdm_cuda_swiglu(struct tdm_array gate_up, uint64_t rows, uint32_t columns,
                                struct tdm_gate gate, struct tdm_array activated,
                                cudaStream_t stream, struct tdm_error *err);

/* Gate and up become their gradients. */
enum tdm_status tdm_cuda_swiglu_grad(struct tdm_array gate_up, struct tdm_array d_activated,
                                     uint64_t rows, uint32_t columns, struct tdm_gate gate,
                                     cudaStream_t stream, struct tdm_error *err);

/* ---- embed.cu ---- */

/* x[t] = table[tokens[t]]; a token that is none gives zeros and a fault. */
enum tdm_status tdm_cuda_embed(const int32_t *tokens, struct tdm_array table, uint64_t rows,
                               uint32_t vocabulary, uint32_t hidden, struct tdm_array x,
                               struct tdm_fault *fault, cudaStream_t stream, struct tdm_error *err);

/* order: the rows by rising token, those of a token in their order. */
enum tdm_status tdm_cuda_sort_tokens(const int32_t *tokens, uint64_t rows, int32_t *order,
                                     cudaStream_t stream, struct tdm_error *err);

/* table[token] += dx of its rows, in their order. */
enum tdm_status tdm_cuda_embed_grad(const int32_t *tokens, const int32_t *order,
                                    struct tdm_array dx, uint64_t rows, uint32_t vocabulary,
                                    uint32_t hidden, struct tdm_array table, cudaStream_t stream,
                                    struct tdm_error *err);

/* ---- softmax.cu ---- */

/* What makes a row's loss and gradient, of the vocabulary so far (TDM_HEAD_LSE). */
struct tdm_row_sums {
    double most;   /* the largest logit, the target's too */
    double others; /* sum of exp(logit - most) over all but the target */
    double target; /* logit of the target; 0 while that is to come */
};

/* Rows of logits [rows, entries] of the entries of the vocabulary from `first_entry` on. */
struct tdm_cross_entropy {
    struct tdm_array logits;
    const int32_t *targets; /* [rows]; negative: none */
    uint64_t rows;
    uint32_t first_entry, entries, vocabulary;
    double per_token;          /* what gradients are multiplied by */
    struct tdm_row_sums *sums; /* [rows]; NULL: nobody needs them */
    bool sums_are_there;       /* of the whole vocabulary */
    bool adds;                 /* to the sums that are there */
    bool backward;             /* logits become (softmax - one at the target) * per_token */
    double *losses;            /* [rows]: log sum exp(logits) - logit of the target */
    struct tdm_fault *fault;
};

enum tdm_status tdm_cuda_cross_entropy(const struct tdm_cross_entropy *x, cudaStream_t stream,
                                       struct tdm_error *err);

/* ---- sums.cu, too ---- */

/* to[i] = from[i], from fp32. */
enum tdm_status tdm_cuda_store(const float *from, uint64_t count, struct tdm_array to,
                               cudaStream_t stream, struct tdm_error *err);

/* ---- optimizer.cu ---- */

/* One tensor's update: executor/cpu/optimizer.c. An absent array has data NULL. */
struct tdm_update {
    uint64_t elements;
    struct tdm_array weights, gradient, second_gradient, master, moment1, moment2;
    bool adamw; /* else SGD */
    float beta1, beta2, rest1, rest2, step_rate, root_scale, epsilon, rate, decay;
    uint64_t random_stream; /* random.h: of (seed, step, tensor) */
    /* the gradient is clipped by clip_norm / norm; norm is the root of the sum of `norm_count` sums
     * of squares, `norm_stride` apart; 0: it is not */
    const double *norms;
    uint32_t norm_count;
    uint64_t norm_stride;
    double clip_norm;
};

enum tdm_status tdm_cuda_update(const struct tdm_update *update, cudaStream_t stream,
                                struct tdm_error *err);

/* Sums of squares of a gradient, of which tdm_cuda_square_blocks() come out, at most
 * TDM_SQUARE_BLOCKS. */
uint32_t tdm_cuda_square_blocks(uint64_t elements);
enum tdm_status tdm_cuda_squares(struct tdm_array gradient, struct tdm_array second_gradient,
                                 uint64_t elements, double *squares, cudaStream_t stream,
                                 struct tdm_error *err);

/* ---- attention ---- */

/* Means of the K of each page of a chunk: of `tokens` tokens in pages (layout.h) to [pages,
 * kv_heads, head_dim]. */
struct tdm_means {
    uint64_t tokens, page_tokens;
    uint32_t kv_heads, head_dim;
    struct tdm_array pages, means;
};
enum tdm_status tdm_cuda_page_means(const struct tdm_means *means, cudaStream_t stream,
                                    struct tdm_error *err);

/* Lists of pages that a chunk's query pages see: layout.h. */
struct tdm_lists {
    struct tdm_page_rule rule;
    uint32_t *pages; /* [query pages, lists, 1 + capacity]; NULL: none, what is seen is a range */
    uint32_t lists, capacity;
};

/* Making them, for the `tokens` tokens of a chunk from `first_token` of their sequence on. For
 * selectors that vote: q, and the page means of the chunks before this one from page `first_page`
 * of the sequence on, those of a chunk `slot_elements` behind the last one's. */
struct tdm_select {
    uint64_t tokens, first_token;
    struct tdm_documents documents;
    uint32_t query_heads, kv_heads, head_dim;
    struct tdm_array q, means;
    uint64_t first_page, slot_elements;
    struct tdm_lists lists;
    /* scratch: */
    float *votes; /* [query pages, kv_heads, pages before the chunk] */
    float *lse;   /* [2, tokens, query_heads] */
};
enum tdm_status tdm_cuda_select(const struct tdm_select *select, cudaStream_t stream,
                                struct tdm_error *err);

/* Votes of all query pages on the pages before the chunk, as far as there is something to vote on:
 * on Hopper's tensor cores, bf16, head dim 128, pages of 128 tokens; on others, bf16, head dim 64
 * or 128; on CUDA cores. */
bool tdm_cuda_votes_hopper_suit(const struct tdm_select *select);
enum tdm_status tdm_cuda_votes_hopper(const struct tdm_select *select, cudaStream_t stream,
                                      struct tdm_error *err);
bool tdm_cuda_votes_suit(const struct tdm_select *select);
enum tdm_status tdm_cuda_votes(const struct tdm_select *select, cudaStream_t stream,
                               struct tdm_error *err);
enum tdm_status tdm_cuda_votes_plain(const struct tdm_select *select, cudaStream_t stream,
                                     struct tdm_error *err);

/* The kernels that there are, the fastest first. Ends with the one that suits always. */
struct tdm_votes_kind {
    const char *name;
    bool (*suits)(const struct tdm_select *select); /* NULL: always */
    enum tdm_status (*count)(const struct tdm_select *select, cudaStream_t stream,
                             struct tdm_error *err);
};
extern const struct tdm_votes_kind tdm_cuda_votes_kinds[];

/* A chunk's queries and the keys that they may see: slots of pages that hold the tokens of the
 * sequence from `key_token` on, a slot `chunk_tokens` of them, up to the last query. */
struct tdm_attend {
    uint64_t tokens;      /* queries */
    uint64_t first_token; /* of the queries in their sequence */
    uint64_t key_token;   /* first key */
    uint64_t chunk_tokens, page_tokens;
    struct tdm_lists lists; /* and the rule by which tokens see */
    struct tdm_documents documents;
    uint32_t query_heads, kv_heads, head_dim;
    struct tdm_array q, pages;
    uint64_t slot_elements; /* from one slot of pages to the next */
    struct tdm_array out;
    float *lse; /* [tokens, query_heads] */
    /* backward: */
    struct tdm_array d_out, dq;
    /* of the first `written_slots` chunks dK, dV are written, of the others they are added to */
    struct tdm_array written, added;
    uint64_t written_slots, gradient_slot_elements;
    /* scratch: */
    uint32_t *from; /* [tokens] first near token of each, counted from key_token; at least 0 */
    /* backward, with tdm_attend_rows(tokens) rows: rowsum(d_out * out), and what else a row needs,
       [2, rows, query_heads]; and if it adds up dQ in scratch its sums, [rows, query_heads,
       head_dim], and tdm_attend_turns() counters */
    float *d, *dq_sums;
    uint32_t *turns;
    /* with lists: */
    uint32_t *start; /* [tokens] first token of its document, counted from key_token, at least 0 */
    /* what a token sees first of another KV head lies so many further in both: 0 where all see
     * alike */
    uint64_t sight_stride;
    bool sight_is_there; /* both are filled */
    /* and backward: which query pages list a key page, [key pages, lists, words, 2], a bit a query
       page: listed, seen whole; and tdm_attend_order() words of the order in which (key page, list)
       are worked on */
    uint32_t *readers, *order;
};

/* Key pages of a chunk's attention, and words of bits for its query pages. */
TDM_ANYWHERE uint64_t tdm_attend_key_pages(const struct tdm_attend *a)
{
    const struct tdm_page_rule *rule = &a->lists.rule;
    return tdm_page_of(rule, a->first_token + a->tokens - 1) - tdm_page_of(rule, a->key_token) + 1;
}

TDM_ANYWHERE uint64_t tdm_attend_words(const struct tdm_attend *a)
{
    return (a->tokens + 32 * a->page_tokens - 1) / (32 * a->page_tokens);
}

/* Fills `from`, with lists also `start`, unless they are there; and what the backward needs if
 * there is room for it. */
enum tdm_status tdm_cuda_attend_from(const struct tdm_attend *attend, cudaStream_t stream,
                                     struct tdm_error *err);

/* Pages at home on the host, of which a chunk's query pages come in batches (schedule/gather.h). Of
 * a batch: what each list has together lies in room for `room` pages by rising number, the chunk's
 * own pages behind. */
struct tdm_gather {
    struct tdm_lists lists; /* of all query pages, numbers in the sequence */
    uint64_t tokens, first_token;
    uint64_t first_page; /* in the sequence, of the first slot at home */
    struct tdm_documents documents;
    uint32_t kv_heads, head_dim;
    uint64_t room;
    /* scratch: */
    uint32_t *bounds; /* [batches + 1] first query page of each */
    uint32_t *ends;   /* [lists] where room for a list ends the batch */
    uint32_t *count;  /* [lists] pages of the batch */
    uint32_t *total;  /* [lists] of all batches so far */
    uint32_t *table;  /* [lists, room] their numbers */
    uint32_t
        *listed; /* lists of the batch over the room, as `lists`; empty ones of other query pages */
    uint32_t *from, *start; /* [lists, tokens] as in tdm_attend, over the room */
};

/* Finds batch `batch`, from 0 up: all of the above. Batches behind the last are empty. */
enum tdm_status tdm_cuda_gather_batch(const struct tdm_gather *gather, uint32_t batch,
                                      cudaStream_t stream, struct tdm_error *err);

/* Slots of pages at home, the first `opened_slots` of them in an array of their own; and the room
 * for them. */
struct tdm_page_home {
    struct tdm_array opened, pages;
    uint64_t opened_slots, slot_elements;
    struct tdm_array room;
    uint64_t room_slot_elements;
};

/* Pages of the batch from home to the room, or back, `own` ones too. */
enum tdm_status tdm_cuda_move_pages(const struct tdm_gather *gather,
                                    const struct tdm_page_home *home, bool own, bool back,
                                    cudaStream_t stream, struct tdm_error *err);

/* Bytes moved: what a page of a list takes, what comes beside; of all batches `counted` has the
 * sum. */
struct tdm_page_bytes {
    uint64_t each, beside;
};
enum tdm_status tdm_cuda_count_pages(const struct tdm_gather *gather, struct tdm_page_bytes bytes,
                                     uint64_t *counted, cudaStream_t stream, struct tdm_error *err);

/* Makes the opened slots zero. */
enum tdm_status tdm_cuda_open_pages(const struct tdm_gather *gather,
                                    const struct tdm_page_home *home, cudaStream_t stream,
                                    struct tdm_error *err);

/* Do warpgroups' products serve it? Compute capability 9.0; bf16, head dim 64 or 128, pages of a
 * multiple of 128 tokens, and, where there are several, chunks of whole pages. */
bool tdm_cuda_attention_hopper_suits(const struct tdm_attend *attend);

/* Attention on Hopper's tensor cores, where they serve it. `from` must be filled. */
enum tdm_status tdm_cuda_attention_hopper(const struct tdm_attend *attend, cudaStream_t stream,
                                          struct tdm_error *err);
enum tdm_status tdm_cuda_attention_grad_hopper(const struct tdm_attend *attend, cudaStream_t stream,
                                               struct tdm_error *err);

/* Do the tensor cores serve it? bf16, head dim 64, 96 or 128. */
bool tdm_cuda_attention_suits(const struct tdm_attend *attend);

/* Attention on tensor cores, where they serve it. `from` must be filled. */
enum tdm_status tdm_cuda_attention(const struct tdm_attend *attend, cudaStream_t stream,
                                   struct tdm_error *err);
enum tdm_status tdm_cuda_attention_grad(const struct tdm_attend *attend, cudaStream_t stream,
                                        struct tdm_error *err);

/* Attention on CUDA cores, in fp32: any head dim up to 512, any dtypes. `from` must be filled. */
enum tdm_status tdm_cuda_attention_plain(const struct tdm_attend *attend, cudaStream_t stream,
                                         struct tdm_error *err);
enum tdm_status tdm_cuda_attention_grad_plain(const struct tdm_attend *attend, cudaStream_t stream,
                                              struct tdm_error *err);

/* The kernels that there are, the fastest first. Ends with the one that suits always. */
struct tdm_attention_kind {
    const char *name;
    bool (*suits)(const struct tdm_attend *attend); /* NULL: always */
    enum tdm_status (*forward)(const struct tdm_attend *attend, cudaStream_t stream,
                               struct tdm_error *err);
    enum tdm_status (*backward)(const struct tdm_attend *attend, cudaStream_t stream,
                                struct tdm_error *err);
};
extern const struct tdm_attention_kind tdm_cuda_attention_kinds[];

#ifdef __cplusplus
}
#endif

#endif
