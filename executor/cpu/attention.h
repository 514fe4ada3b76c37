/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by attention forward and backward: tiles of query rows and blocks of keys.
 *
 * The query heads that read one KV head are processed together. A row of a tile is one token and
 * one of these heads; the heads of a token are adjacent. All tokens of a tile are of one query
 * page. Keys come in blocks of a page or part of one: all in a range, or those of the pages in a
 * query page's list. Both ways use the same blocks and so give the same bits.
 */
#ifndef TDM_EXECUTOR_CPU_ATTENTION_H
#define TDM_EXECUTOR_CPU_ATTENTION_H

#include "executor/cpu/cpu.h"
#include "executor/cpu/gemm.h"

enum {
    TDM_TILE_ROWS = 128, /* rows of queries, unless one token has more */
    TDM_TILE_KEYS = 128,
    TDM_LANES_OF_ROW = 16 /* rows of scores are padded to a multiple */
};

/* Pages before the chunk that were gathered from the host for a batch of query pages
 * (schedule/gather.h), in the program's scratch. Page i of a list's buffer is page
 * table[list][i] of the sequence; page numbers rise. */
struct tdm_gathered {
    uint64_t buffer_pages; /* per list; 0: nothing is gathered */
    uint64_t chunk_page;   /* first page of the chunk; later pages are not gathered */
    uint32_t *table, *count;
    unsigned char *kv, *dkv;
};

struct tdm_attention {
    const struct tdm_launch *launch;
    const struct tdm_pages_params *pages;
    uint64_t tokens, first_token; /* of the queries' chunk */
    uint64_t query_heads, kv_heads, head_dim;
    uint64_t ratio;       /* query heads a KV head */
    uint64_t tile_tokens; /* of a tile of queries */
    uint64_t page_tiles;  /* tiles of a query page */
    float scale;          /* 1 / sqrt(head_dim) */
    struct tdm_page_rule rule;
    const struct tdm_operand *lists; /* page lists, or NULL: all keys of a range */
    uint64_t list_count;             /* lists per query page: one per KV head, or one */
    uint64_t list_words;
    uint64_t first_page;           /* of slot 0 of the pages, in the sequence */
    uint64_t begin_page, end_page; /* current query pages: all, or a batch */
    struct tdm_gathered gathered;
};

struct tdm_gathered tdm_gather_begin(const struct tdm_launch *launch);
struct tdm_attention tdm_attention_begin(const struct tdm_launch *launch);

/* Advances to the first or next batch of query pages and gathers its K and V. If nothing is
 * gathered there is one batch of all. Starts from tdm_attention_begin(). False if there are no
 * more. */
bool tdm_attention_next(struct tdm_executor *executor, struct tdm_attention *attention);

/* Backward: zeroes the sums that this op adds to first; gathers the sums of a batch; sends them
 * back. */
void tdm_gather_open_sums(struct tdm_executor *executor, const struct tdm_attention *attention);
void tdm_gather_sums(struct tdm_executor *executor, const struct tdm_attention *attention);
void tdm_send_sums(struct tdm_executor *executor, const struct tdm_attention *attention);

/* The slot (*place) that holds a gathered page for a KV head's list; false if it is not gathered.
 * */
bool tdm_gathered_page(const struct tdm_attention *attention, uint64_t page, uint64_t kv_head,
                       uint64_t *place);

/* Rows of the largest tile of queries. */
uint64_t tdm_tile_rows(const struct tdm_params *params);

/* Number of tiles of the chunk's queries; and the tokens of one: [first, first + tokens) of the
 * chunk. */
struct tdm_tile {
    uint64_t page, first, tokens;
};

uint64_t tdm_attention_tiles(const struct tdm_attention *attention);
struct tdm_tile tdm_attention_tile(const struct tdm_attention *attention, uint64_t number);

/* The list of a query page and KV head: the number of pages, then their entries (selector.h). */
const uint32_t *tdm_attention_list(const struct tdm_attention *attention, uint64_t page,
                                   uint64_t kv_head);

/* The entry of a page in a list, or NULL. */
const uint32_t *tdm_list_find(const uint32_t *list, uint64_t page);

/* A block of keys: `count` tokens from position `first` of the sequence. Their K (first KV head)
 * and V start at elements `k` and `v` of slot `slot`. */
struct tdm_keys {
    uint32_t slot;
    uint64_t first, count;
    uint64_t k, v;
    uint64_t page; /* of the sequence */
    bool whole;    /* fully visible, by the list of the cursor */
};

/* Iterates over the blocks of the slots of K and V, in rising position: all, or those in a list.
 * Starts as {0}, or with its list. */
struct tdm_key_cursor {
    const uint32_t *list;
    uint32_t entry; /* of the list */
    uint32_t slot;
    uint64_t token; /* in the slot; with a list, in the page */
};

bool tdm_keys_next(const struct tdm_attention *attention, struct tdm_key_cursor *cursor,
                   struct tdm_keys *keys);

/* K or V (from element `first` of slot `slot`) of one KV head, [count, head_dim]: in place, or
 * converted into `scratch`, [TDM_TILE_KEYS, head_dim]. */
struct tdm_factor tdm_keys_view(const struct tdm_attention *attention,
                                const struct tdm_operand *pages, const struct tdm_keys *keys,
                                uint64_t first, uint64_t kv_head, float *scratch);

/* The log-sum-exps stored after an attention output, [tokens, query_heads]. */
float *tdm_attention_lse(const struct tdm_attention *attention, const struct tdm_operand *out);

/* The dot product of two rows. */
static inline float tdm_cpu_dot(const float *a, const float *b, uint64_t count)
{
    double sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += (double)a[i] * (double)b[i];
    return (float)sum;
}

/* Keys that a token sees: positions from `near` on, and in fully visible pages from `start` on. */
struct tdm_from {
    uint64_t near, start;
};

struct tdm_from tdm_attention_from(const struct tdm_attention *attention, uint64_t t);

/* Keys of a block that a query sees: [low, high). */
struct tdm_seen {
    uint64_t low, high;
};

static inline struct tdm_seen tdm_keys_seen(const struct tdm_keys *keys, struct tdm_from sees,
                                            uint64_t position)
{
    struct tdm_seen seen = {0, 0};
    uint64_t from = keys->whole ? sees.start : sees.near;
    if (position >= keys->first && from < keys->first + keys->count) {
        seen.low = from > keys->first ? from - keys->first : 0;
        seen.high = tdm_least(keys->count, position - keys->first + 1);
    }
    return seen;
}

/* Pads a row of `count` scores to whole vectors: scores not seen become -infinity up to the end of
 * the last vector, and 0 after it. Returns the padded length, 0 if nothing is seen. */
static inline uint64_t tdm_row_pad(float *row, struct tdm_seen seen, uint64_t count)
{
    uint64_t padded = (seen.high + TDM_LANES_OF_ROW - 1) / TDM_LANES_OF_ROW * TDM_LANES_OF_ROW;
    for (uint64_t i = 0; i < seen.low; i++)
        row[i] = -__builtin_inff();
    for (uint64_t i = seen.high; i < padded; i++)
        row[i] = -__builtin_inff();
    for (uint64_t i = padded; i < count; i++)
        row[i] = 0.0f;
    return padded;
}

#endif
