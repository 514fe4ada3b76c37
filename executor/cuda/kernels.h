/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernel launchers, which host code in C calls.
 *
 * All take device memory, queue work on `stream` and return the status of the launch. None
 * allocates or waits. Sums have a fixed order, so results repeat. Elements are fp32 or bf16 where a
 * struct tdm_array is given; arithmetic is in fp32. All matrices are row-major. Scratch is device
 * memory that nothing else may use until the kernels of the call have ended.
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

/* Maximum sizes that the kernels support. Head dims are even. */
#define TDM_CUDA_MOST_HIDDEN 16384u
#define TDM_CUDA_MOST_HEAD_DIM 512u
#define TDM_CUDA_MOST_RANKS 16u /* of one computer */

/* An array of elements in device memory; fp32 or bf16. */
struct tdm_array {
    void *data;
    enum tdm_dtype dtype;
};

/* Documents of a sequence. `starts` is in device memory; NULL: one document. */
struct tdm_documents {
    const uint64_t *starts;
    uint32_t count;
};

/* A token outside the vocabulary that a kernel found. If there are several, any one of them. */
struct tdm_fault {
    uint64_t row; /* row of the chunk, counted from 1; 0: no fault */
    int32_t token;
};

/* ---- arenas: pattern.cu ---- */

/* Writes the arena's pattern to its words [first, end). */
enum tdm_status tdm_cuda_pattern_fill(uint64_t *words, uint64_t first, uint64_t end,
                                      cudaStream_t stream, struct tdm_error *err);

/* found[0]: the number of words that no longer hold the pattern. found[1]: the end of the highest
 * such word. */
enum tdm_status tdm_cuda_pattern_scan(const uint64_t *words, uint64_t count, uint64_t found[2],
                                      cudaStream_t stream, struct tdm_error *err);

/* ---- several ranks: shares.cu ---- */

/* Shares of a sum, of `count` ranks in their order, each in the memory of any GPU that this one may
 * read. */
struct tdm_cuda_shares {
    const void *of[TDM_CUDA_MOST_RANKS];
    uint32_t count; /* at least 1 */
};

/* sum[i] = the sum of all shares' [i], for `count` elements. `sum` may be one of the shares. All
 * are of sum.dtype; it is fastest if all are aligned to 16 bytes. */
enum tdm_status tdm_cuda_sum_shares(const struct tdm_cuda_shares *shares, uint64_t count,
                                    struct tdm_array sum, cudaStream_t stream,
                                    struct tdm_error *err);

/* ---- norm_grad.cu ---- */

/* Gradients of RMSNorm (norm.h). With s = 1 / sqrt(mean(x^2) + epsilon) of each row: dx (+)= s w dy
 * - x s^3 / hidden * sum(w dy x), dw (+)= sum over rows of dy x s. */
struct tdm_norm_grad {
    uint64_t rows;
    uint32_t hidden;
    float epsilon;
    struct tdm_array x, dy; /* [rows, hidden] */
    struct tdm_array weight;
    struct tdm_array dx; /* may alias x or dy */
    struct tdm_array dw;
    bool add_input, add_weight; /* dx, dw are added to */
    float *partial;             /* scratch [TDM_NORM_SLICES, hidden] */
};

enum tdm_status tdm_cuda_rms_norm_grad(const struct tdm_norm_grad *norm, cudaStream_t stream,
                                       struct tdm_error *err);

/* ---- sums.cu ---- */

/* sums[column] (+)= sum over rows of x[row * stride + column]. Scratch: fp32 [TDM_BIAS_SLICES,
 * columns]. */
enum tdm_status tdm_cuda_column_sums(struct tdm_array x, uint64_t rows, uint64_t stride,
                                     uint64_t columns, bool add, struct tdm_array sums,
                                     void *scratch, cudaStream_t stream, struct tdm_error *err);

/* sums[column] (+)= sum over slices of partial[slice * columns + column], in slice order. */
enum tdm_status tdm_cuda_sum_slices(const float *partial, uint32_t slices, uint64_t columns,
                                    bool add, struct tdm_array sums, cudaStream_t stream,
                                    struct tdm_error *err);

/* *sum (+)= factor * sum of `count` values. */
enum tdm_status tdm_cuda_sum_values(const double *values, uint64_t count, double factor, bool add,
                                    double *sum, cudaStream_t stream, struct tdm_error *err);

/* ---- rope.cu ---- */

/* Where heads lie. With page_tokens 0, head h of token t is at t * stride + h * head_dim. With
 * page_tokens > 0, heads are in pages (schedule/layout.h): K has `heads` heads, and head h >= heads
 * is head h - heads of V. */
struct tdm_heads {
    struct tdm_array array;
    uint64_t stride;
    uint64_t page_tokens;
};

struct tdm_turn {
    uint64_t tokens;
    uint64_t first_token; /* position of the chunk's first token in its sequence */
    struct tdm_documents documents;
    uint32_t heads;    /* heads that are rotated */
    uint32_t straight; /* heads after them that are only copied: V */
    uint32_t head_dim;
    bool back;
    const double *frequencies; /* [head_dim / 2], on the device */
    double factor;             /* multiplies cos and sin */
    struct tdm_heads from, to;
    /* QK-norm: weights of a head (data NULL: no QK-norm). For the backward also the input of the
     * norm and the destination of the weights' gradient. */
    struct tdm_array weight;
    float epsilon;
    struct tdm_heads raw;
    struct tdm_array dw;
    bool add_weight;
};

/* RoPE over heads. QK-norm is applied before it; on the way back, its gradient is taken after it,
 * as in executor/cpu/rope.c. Scratch: fp32 [TDM_HEAD_SLICES, head_dim], for the gradient of QK-
 * norm's weights. */
enum tdm_status tdm_cuda_turn(const struct tdm_turn *turn, void *scratch, cudaStream_t stream,
                              struct tdm_error *err);

/* ---- swiglu.cu ---- */

/* Applies the gate as ops/gate.h defines it; gate_up is [rows, gate then up]. */
enum tdm_status tdm_cuda_swiglu(struct tdm_array gate_up, uint64_t rows, uint32_t columns,
                                struct tdm_gate gate, struct tdm_array activated,
                                cudaStream_t stream, struct tdm_error *err);

/* Replaces gate and up by their gradients, and the gradient of the output by the output. */
enum tdm_status tdm_cuda_swiglu_grad(struct tdm_array gate_up, struct tdm_array d_activated,
                                     uint64_t rows, uint32_t columns, struct tdm_gate gate,
                                     cudaStream_t stream, struct tdm_error *err);

/* ---- embed.cu ---- */

/* x[t] = table[tokens[t]]; a token outside the vocabulary gives zeros and sets `fault`. */
enum tdm_status tdm_cuda_embed(const int32_t *tokens, struct tdm_array table, uint64_t rows,
                               uint32_t vocabulary, uint32_t hidden, struct tdm_array x,
                               struct tdm_fault *fault, cudaStream_t stream, struct tdm_error *err);

/* order: the rows sorted by token; rows of the same token keep their order. */
enum tdm_status tdm_cuda_sort_tokens(const int32_t *tokens, uint64_t rows, int32_t *order,
                                     cudaStream_t stream, struct tdm_error *err);

/* table[token] += dx of the rows with that token, in row order. */
enum tdm_status tdm_cuda_embed_grad(const int32_t *tokens, const int32_t *order,
                                    struct tdm_array dx, uint64_t rows, uint32_t vocabulary,
                                    uint32_t hidden, struct tdm_array table, cudaStream_t stream,
                                    struct tdm_error *err);

/* ---- softmax.cu ---- */

/* What a row's loss and gradient are computed from, over the part of the vocabulary seen so far
 * (TDM_HEAD_LSE). */
struct tdm_row_sums {
    double most;   /* the maximum logit, the target's included */
    double others; /* sum of exp(logit - most) over all but the target */
    double target; /* logit of the target; 0 until its entry was seen */
};

/* Rows of logits [rows, entries], for the entries of the vocabulary from `first_entry` on. */
struct tdm_cross_entropy {
    struct tdm_array logits;
    const int32_t *targets; /* [rows]; negative: no target */
    uint64_t rows;
    uint32_t first_entry, entries, vocabulary;
    double per_token;          /* factor of the gradients */
    struct tdm_row_sums *sums; /* [rows]; NULL: not needed */
    bool sums_are_there;       /* `sums` already cover the whole vocabulary */
    bool adds;                 /* add to the existing `sums` */
    bool backward;             /* logits become (softmax - one at the target) * per_token */
    double *losses;            /* [rows]: log sum exp(logits) - logit of the target */
    struct tdm_fault *fault;
};

enum tdm_status tdm_cuda_cross_entropy(const struct tdm_cross_entropy *x, cudaStream_t stream,
                                       struct tdm_error *err);

/* ---- sums.cu, too ---- */

/* to[i] = from[i], converted from fp32. */
enum tdm_status tdm_cuda_store(const float *from, uint64_t count, struct tdm_array to,
                               cudaStream_t stream, struct tdm_error *err);

/* ---- optimizer.cu ---- */

/* The update of one tensor, as in executor/cpu/optimizer.c. An absent array has data NULL. */
struct tdm_update {
    uint64_t elements;
    struct tdm_array weights, gradient, second_gradient, master, moment1, moment2;
    bool adamw; /* else SGD */
    float beta1, beta2, rest1, rest2, step_rate, root_scale, epsilon, rate, decay;
    uint64_t random_stream; /* random.h: stream of (seed, step, tensor) */
    uint64_t first;         /* number of the first element in its tensor */
    /* The gradient is clipped by clip_norm / norm. The norm is the square root of the sum of
     * `norm_count` sums of squares, which are `norm_stride` apart. norm_count 0: no clipping */
    const double *norms;
    uint32_t norm_count;
    uint64_t norm_stride;
    double clip_norm;
};

enum tdm_status tdm_cuda_update(const struct tdm_update *update, cudaStream_t stream,
                                struct tdm_error *err);

/* Sums of squares of a gradient. Writes tdm_cuda_square_blocks() of them, at most
 * TDM_SQUARE_BLOCKS. */
uint32_t tdm_cuda_square_blocks(uint64_t elements);
enum tdm_status tdm_cuda_squares(struct tdm_array gradient, struct tdm_array second_gradient,
                                 uint64_t elements, double *squares, cudaStream_t stream,
                                 struct tdm_error *err);

/* ---- attention ---- */

/* Means of K over each page of a chunk: `tokens` tokens in pages (layout.h) become [pages,
 * kv_heads, head_dim]. */
struct tdm_means {
    uint64_t tokens, page_tokens;
    uint32_t kv_heads, head_dim;
    struct tdm_array pages, means;
};
enum tdm_status tdm_cuda_page_means(const struct tdm_means *means, cudaStream_t stream,
                                    struct tdm_error *err);

/* Lists of the pages that each query page of a chunk sees: layout.h. */
struct tdm_lists {
    struct tdm_page_rule rule;
    uint32_t *pages; /* [query pages, lists, 1 + capacity]; NULL: no lists, tokens see a range */
    uint32_t lists, capacity;
};

/* Inputs to make the lists, for the `tokens` tokens of a chunk that begins at `first_token` of its
 * sequence. Selectors that vote also need q and the page means of the earlier chunks, from page
 * `first_page` of the sequence on. The means of consecutive chunks are `slot_elements` apart. */
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

/* Votes of all query pages on the pages before the chunk, where a vote is needed. Three versions:
 * Hopper's tensor cores (bf16, head dim 128, pages of 128 tokens); other tensor cores (bf16, head
 * dim 64 or 128); CUDA cores. */
bool tdm_cuda_votes_hopper_suit(const struct tdm_select *select);
enum tdm_status tdm_cuda_votes_hopper(const struct tdm_select *select, cudaStream_t stream,
                                      struct tdm_error *err);
bool tdm_cuda_votes_suit(const struct tdm_select *select);
enum tdm_status tdm_cuda_votes(const struct tdm_select *select, cudaStream_t stream,
                               struct tdm_error *err);
enum tdm_status tdm_cuda_votes_plain(const struct tdm_select *select, cudaStream_t stream,
                                     struct tdm_error *err);

/* All kernels, fastest first. The last one suits every case. */
struct tdm_votes_kind {
    const char *name;
    bool (*suits)(const struct tdm_select *select); /* NULL: always */
    enum tdm_status (*count)(const struct tdm_select *select, cudaStream_t stream,
                             struct tdm_error *err);
};
extern const struct tdm_votes_kind tdm_cuda_votes_kinds[];

/* A chunk's queries and the keys that they may see. The keys are in slots of pages. A slot holds
 * `chunk_tokens` tokens. The slots cover the sequence from `key_token` on: up to the last query,
 * or, in a ring of ranks, a chunk before the first query. */
struct tdm_attend {
    uint64_t tokens;      /* queries */
    uint64_t first_token; /* position of the first query in its sequence */
    uint64_t key_token;   /* position of the first key */
    uint64_t keys;        /* number of keys */
    uint64_t chunk_tokens, page_tokens;
    struct tdm_lists lists; /* also has the rule of which tokens see which */
    struct tdm_documents documents;
    uint32_t query_heads, kv_heads, head_dim;
    struct tdm_array q, pages;
    uint64_t slot_elements; /* from one slot of pages to the next */
    struct tdm_array out;
    float *lse; /* [tokens, query_heads] */
    /* backward: */
    struct tdm_array d_out, dq;
    const float
        *dots; /* rowsum(d_out * out), [tokens, query_heads]; NULL: they follow from `out` */
    /* dK and dV are written for the first `written_slots` slots, and added to the existing values
     * for the others */
    struct tdm_array written, added;
    uint64_t written_slots, gradient_slot_elements;
    /* scratch: */
    uint32_t *from; /* [tokens] first key that the token sees by the near rule, counted from
                     * key_token; at least 0 */
    /* backward, with tdm_attend_rows(tokens) rows. d: rowsum(d_out * out) and the other fact of a
     * row, [2, rows, query_heads]. Kernels that sum dQ in scratch also use dq_sums, [rows,
     * query_heads, head_dim], and tdm_attend_turns() counters */
    float *d, *dq_sums;
    uint32_t *turns;
    /* forward: results of parts of the keys, [tdm_attend_part_tiles(), TDM_ATTEND_TILE, head_dim],
     * whose LSEs are in d. NULL: keys are not divided */
    float *parts;
    /* with lists: */
    uint32_t *start; /* [tokens] first token of its document, counted from key_token, at least 0 */
    /* offset in both arrays from one KV head to the next; 0 if all KV heads see the same */
    uint64_t sight_stride;
    bool sight_is_there; /* `from` and `start` are filled */
    /* backward: the query pages that list a key page, [key pages, lists, words, 2]. Each query page
     * has one bit in both words: listed, seen whole. `order` has tdm_attend_order() words: the
     * order in which each (key page, list) is processed */
    uint32_t *readers, *order;
};

/* The last key that a token may see, counted from key_token: its own, or the last one. */
TDM_ANYWHERE uint32_t tdm_attend_last_key(const struct tdm_attend *a, uint64_t token)
{
    const uint32_t own = (uint32_t)(a->first_token - a->key_token + token);
    const uint32_t last = (uint32_t)a->keys - 1;
    return own < last ? own : last;
}

/* Are all keys before the first query? */
TDM_ANYWHERE bool tdm_attend_visits(const struct tdm_attend *a)
{
    return a->key_token + a->keys <= a->first_token;
}

/* Number of key pages of a chunk's attention, and number of 32-bit words for a bit per query page.
 * */
TDM_ANYWHERE uint64_t tdm_attend_key_pages(const struct tdm_attend *a)
{
    const struct tdm_page_rule *rule = &a->lists.rule;
    return tdm_page_of(rule, a->first_token + a->tokens - 1) - tdm_page_of(rule, a->key_token) + 1;
}

TDM_ANYWHERE uint64_t tdm_attend_words(const struct tdm_attend *a)
{
    return (a->tokens + 32 * a->page_tokens - 1) / (32 * a->page_tokens);
}

/* Fills `from`, and with lists also `start`, unless they are filled already. Also fills what the
 * backward needs, if there is memory for it. */
enum tdm_status tdm_cuda_attend_from(const struct tdm_attend *attend, cudaStream_t stream,
                                     struct tdm_error *err);

/* Pages stored on the host, which are gathered for a chunk's query pages in batches
 * (schedule/gather.h). For one batch, all pages that a list's query pages see are in a device
 * buffer of `buffer_pages` pages, sorted by page number. The chunk's own pages follow them. */
struct tdm_gather {
    struct tdm_lists lists; /* of all query pages; page numbers are those of the sequence */
    uint64_t tokens, first_token;
    uint64_t first_page; /* page number in the sequence of the first slot on the host */
    struct tdm_documents documents;
    uint32_t kv_heads, head_dim;
    uint64_t buffer_pages;
    /* scratch: */
    uint32_t *bounds; /* [batches + 1] first query page of each batch */
    uint32_t *ends;   /* [lists] query page at which the list's pages no longer fit in the buffer */
    uint32_t *count;  /* [lists] number of pages in the batch */
    uint32_t *total;  /* [lists] number of pages in all batches so far */
    uint32_t *table;  /* [lists, buffer_pages] numbers of the batch's pages */
    uint32_t *listed; /* lists of the batch, with page numbers in the buffer, laid out as `lists`;
                       * empty for query pages of other batches */
    uint32_t *from, *start; /* [lists, tokens] as in tdm_attend, but counted in the buffer */
};

/* Fills the scratch above for batch `batch`. Call it for 0, 1, ... in order. Batches after the last
 * are empty. */
enum tdm_status tdm_cuda_gather_batch(const struct tdm_gather *gather, uint32_t batch,
                                      cudaStream_t stream, struct tdm_error *err);

/* Slots of pages on the host, of which the first `opened_slots` are in a separate array, and the
 * device buffer for them. */
struct tdm_page_home {
    struct tdm_array opened, pages;
    uint64_t opened_slots, slot_elements;
    struct tdm_array buffer;
    uint64_t buffer_slot_elements;
};

/* Copies the batch's pages from the host to the buffer, or back; with `own` also the chunk's own
 * pages. */
enum tdm_status tdm_cuda_move_pages(const struct tdm_gather *gather,
                                    const struct tdm_page_home *home, bool own, bool back,
                                    cudaStream_t stream, struct tdm_error *err);

/* Bytes moved: `each` for every page of a list, and `beside` in addition. *counted is set to the
 * sum over all batches. */
struct tdm_page_bytes {
    uint64_t each, beside;
};
enum tdm_status tdm_cuda_count_pages(const struct tdm_gather *gather, struct tdm_page_bytes bytes,
                                     uint64_t *counted, cudaStream_t stream, struct tdm_error *err);

/* Zeroes the opened slots. */
enum tdm_status tdm_cuda_open_pages(const struct tdm_gather *gather,
                                    const struct tdm_page_home *home, cudaStream_t stream,
                                    struct tdm_error *err);

/* Does the Hopper kernel support it? Compute capability 9.0; bf16; head dim 64 or 128; pages of a
 * multiple of 128 tokens, with lists of exactly 128; if there are several chunks, chunks of whole
 * pages. */
bool tdm_cuda_attention_hopper_suits(const struct tdm_attend *attend);

/* Attention on Hopper's tensor cores, for supported cases only. `from` must be filled. */
enum tdm_status tdm_cuda_attention_hopper(const struct tdm_attend *attend, cudaStream_t stream,
                                          struct tdm_error *err);
enum tdm_status tdm_cuda_attention_grad_hopper(const struct tdm_attend *attend, cudaStream_t stream,
                                               struct tdm_error *err);

/* Does the mma.sync kernel support it? bf16, head dim 64, 96 or 128; with lists, pages of a
 * multiple of 128 tokens and chunks of whole pages. */
bool tdm_cuda_attention_suits(const struct tdm_attend *attend);

/* Attention on tensor cores, for supported cases only. `from` must be filled. */
enum tdm_status tdm_cuda_attention(const struct tdm_attend *attend, cudaStream_t stream,
                                   struct tdm_error *err);
enum tdm_status tdm_cuda_attention_grad(const struct tdm_attend *attend, cudaStream_t stream,
                                        struct tdm_error *err);

/* Attention on CUDA cores, in fp32: any head dim up to 512, any dtypes. `from` must be filled. */
enum tdm_status tdm_cuda_attention_plain(const struct tdm_attend *attend, cudaStream_t stream,
                                         struct tdm_error *err);
enum tdm_status tdm_cuda_attention_grad_plain(const struct tdm_attend *attend, cudaStream_t stream,
                                              struct tdm_error *err);

/* Merges a part of attention with those before: outputs by their LSEs (executor/cpu/merge.c), or
 * with `part_lse` NULL sums of dQ. A part whose LSE is not a number or below -1e29 has nothing.
 * `sum` is fp32; the last part leaves the result in `out`, where data is not NULL, and not in the
 * sum. */
struct tdm_merge {
    uint64_t rows; /* tokens * query heads */
    uint32_t head_dim;
    bool opens; /* the first part: the sum is written */
    struct tdm_array part, out;
    const float *part_lse;
    float *sum, *sum_lse, *out_lse;
};
enum tdm_status tdm_cuda_merge(const struct tdm_merge *merge, cudaStream_t stream,
                               struct tdm_error *err);

/* The facts of rows that are packed with queries (ops/attention.h). */
struct tdm_pack {
    uint64_t rows; /* tokens * query heads */
    uint32_t head_dim;
    struct tdm_array out, d_out;
    const float *lse;
    float *packed_lse, *dots; /* written */
};
enum tdm_status tdm_cuda_pack_facts(const struct tdm_pack *pack, cudaStream_t stream,
                                    struct tdm_error *err);

/* All kernels, fastest first. The last one suits every case. */
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
