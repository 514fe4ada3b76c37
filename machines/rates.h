/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rates: how fast a machine does each kind of work, by the size of the work.
 *
 * A rate is a table of points (size, rate), or one point if it is the same for all sizes. Between
 * two points log(rate) is linear in log(size). Outside them the rate is that of the nearest point.
 * Work of a larger size never takes less time: size / rate does not fall from one point to the
 * next, which is checked on reading.
 */
#ifndef TDM_MACHINES_RATES_H
#define TDM_MACHINES_RATES_H

#include "base/json.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* What a rate is for. Every machine has the first ones. If a description lacks another one, one of
 * the others is its substitute. */
enum tdm_rate {
    TDM_RATE_PRODUCT,            /* FLOP/s, by FLOPs */
    TDM_RATE_ATTENTION_FORWARD,  /* FLOP/s, by the keys that a chunk sees */
    TDM_RATE_ATTENTION_BACKWARD, /* by keys, too */
    TDM_RATE_ELEMENTWISE,        /* bytes/s read and written by memory-bound kernels, by bytes */
    TDM_RATE_H2D,                /* bytes/s while the other direction is idle */
    TDM_RATE_D2H,
    TDM_RATE_BOTH_WAYS, /* h2d and d2h at once; bytes of both together */
    TDM_RATES_REQUIRED,
    TDM_RATE_PRODUCT_GRAD_INPUT = TDM_RATES_REQUIRED,
    TDM_RATE_PRODUCT_GRAD_WEIGHT, /* by FLOPs a token */
    TDM_RATE_HEAD,                /* LM head and loss */
    /* The fraction of another rate that chunks reach, by the chunk's tokens. */
    TDM_RATE_ATTENTION_FORWARD_SHARE,
    TDM_RATE_ATTENTION_BACKWARD_SHARE,
    /* The fraction of the rate of dense attention over as many keys that top-k lists reach: query
     * pages choose different pages. By the chunk's tokens, on top of the other share. */
    TDM_RATE_ATTENTION_FORWARD_LISTS_SHARE,
    TDM_RATE_ATTENTION_BACKWARD_LISTS_SHARE,
    /* The same of attention between chunks of which one visits the other's rank in a ring: a card
     * may have no kernels for it that are as fast. */
    TDM_RATE_ATTENTION_FORWARD_VISITS_SHARE,
    TDM_RATE_ATTENTION_BACKWARD_VISITS_SHARE,
    /* Heads of at most TDM_NARROW_HEAD_DIM elements. */
    TDM_RATE_NARROW_ATTENTION_FORWARD,
    TDM_RATE_NARROW_ATTENTION_BACKWARD,
    TDM_RATE_NARROW_ATTENTION_FORWARD_SHARE,
    TDM_RATE_NARROW_ATTENTION_BACKWARD_SHARE,
    TDM_RATE_NARROW_ATTENTION_FORWARD_VISITS_SHARE,
    TDM_RATE_NARROW_ATTENTION_BACKWARD_VISITS_SHARE,
    TDM_RATE_PRODUCT_GRAD_WEIGHT_SHARE,
    TDM_RATE_NORM_GRAD_SHARE,
    /* Refined rates. If one of these is described, it is used, with its share, instead of its
     * substitute. Products have a rate for each part, by FLOPs a token: shapes with equal FLOPs
     * differ, and so does the work that comes with them, such as a bias. */
    TDM_RATE_PRODUCT_Q,
    TDM_RATE_PRODUCT_KV,
    TDM_RATE_PRODUCT_O,
    TDM_RATE_PRODUCT_GATE_UP,
    TDM_RATE_PRODUCT_DOWN,
    TDM_RATE_PRODUCT_GRAD_INPUT_Q,
    TDM_RATE_PRODUCT_GRAD_INPUT_KV,
    TDM_RATE_PRODUCT_GRAD_INPUT_O,
    TDM_RATE_PRODUCT_GRAD_INPUT_GATE_UP,
    TDM_RATE_PRODUCT_GRAD_INPUT_DOWN,
    TDM_RATE_PRODUCT_GRAD_WEIGHT_Q,
    TDM_RATE_PRODUCT_GRAD_WEIGHT_KV,
    TDM_RATE_PRODUCT_GRAD_WEIGHT_O,
    TDM_RATE_PRODUCT_GRAD_WEIGHT_GATE_UP,
    TDM_RATE_PRODUCT_GRAD_WEIGHT_DOWN,
    /* Attention of chunks that see nothing before themselves, a triangle (FIRST), and of chunks
     * that do, nearly a rectangle, whose work is spread more evenly (LATER). */
    TDM_RATE_ATTENTION_FORWARD_FIRST,
    TDM_RATE_ATTENTION_FORWARD_LATER,
    TDM_RATE_ATTENTION_BACKWARD_FIRST,
    TDM_RATE_ATTENTION_BACKWARD_LATER,
    TDM_RATE_NARROW_ATTENTION_FORWARD_FIRST,
    TDM_RATE_NARROW_ATTENTION_FORWARD_LATER,
    TDM_RATE_NARROW_ATTENTION_BACKWARD_FIRST,
    TDM_RATE_NARROW_ATTENTION_BACKWARD_LATER,
    TDM_RATE_HEAD_TILE, /* LM head and loss, by FLOPs a token */
    /* Shares of the refined rates: of the products in their order, and of later chunks. */
    TDM_RATE_PRODUCT_Q_SHARE,
    TDM_RATE_PRODUCT_KV_SHARE,
    TDM_RATE_PRODUCT_O_SHARE,
    TDM_RATE_PRODUCT_GATE_UP_SHARE,
    TDM_RATE_PRODUCT_DOWN_SHARE,
    TDM_RATE_PRODUCT_GRAD_INPUT_Q_SHARE,
    TDM_RATE_PRODUCT_GRAD_INPUT_KV_SHARE,
    TDM_RATE_PRODUCT_GRAD_INPUT_O_SHARE,
    TDM_RATE_PRODUCT_GRAD_INPUT_GATE_UP_SHARE,
    TDM_RATE_PRODUCT_GRAD_INPUT_DOWN_SHARE,
    TDM_RATE_PRODUCT_GRAD_WEIGHT_Q_SHARE,
    TDM_RATE_PRODUCT_GRAD_WEIGHT_KV_SHARE,
    TDM_RATE_PRODUCT_GRAD_WEIGHT_O_SHARE,
    TDM_RATE_PRODUCT_GRAD_WEIGHT_GATE_UP_SHARE,
    TDM_RATE_PRODUCT_GRAD_WEIGHT_DOWN_SHARE,
    TDM_RATE_ATTENTION_FORWARD_LATER_SHARE,
    TDM_RATE_ATTENTION_BACKWARD_LATER_SHARE,
    TDM_RATE_NARROW_ATTENTION_FORWARD_LATER_SHARE,
    TDM_RATE_NARROW_ATTENTION_BACKWARD_LATER_SHARE,
    TDM_RATE_HEAD_TILE_SHARE, /* by the tokens of a tile; never falls with them */
    /* Products, attention and LM head of fp32 values, which other kernels of a card compute. */
    TDM_RATE_FP32_PRODUCT,
    TDM_RATE_FP32_PRODUCT_GRAD_INPUT,
    TDM_RATE_FP32_PRODUCT_GRAD_WEIGHT,
    TDM_RATE_FP32_HEAD,
    TDM_RATE_FP32_ATTENTION_FORWARD, /* by keys */
    TDM_RATE_FP32_ATTENTION_BACKWARD,
    /* Memory-bound ops, by bytes. */
    TDM_RATE_ZERO,
    TDM_RATE_EMBED,
    TDM_RATE_SORT_TOKENS,
    TDM_RATE_EMBED_GRAD,
    TDM_RATE_NORM,
    TDM_RATE_NORM_GRAD, /* by bytes a token */
    TDM_RATE_ROPE,
    TDM_RATE_ROPE_GRAD,
    TDM_RATE_PAGE_MEANS,
    TDM_RATE_SELECT, /* FLOP/s of the votes' products, by FLOPs */
    TDM_RATE_KV_WRITE,
    TDM_RATE_KV_GRAD_READ,
    TDM_RATE_SWIGLU,
    TDM_RATE_SWIGLU_GRAD,
    TDM_RATE_GRADIENT_NORM,
    TDM_RATE_OPTIMIZER,
    TDM_RATE_OPTIMIZER_ROUNDED, /* weights without master, rounded at random: bound by arithmetic */
    TDM_RATE_HOST_OPTIMIZER,    /* on the host's cores; the substitute is TDM_RATE_BOTH_WAYS */
    TDM_RATE_HOST_OPTIMIZER_ROUNDED,
    TDM_RATES
};

#define TDM_NARROW_HEAD_DIM 64u
#define TDM_RATE_POINTS 64u

struct tdm_rate_table {
    enum tdm_rate of; /* whose rates and sizes these are: the rate itself or its substitute */
    uint32_t count;
    double size[TDM_RATE_POINTS]; /* rising */
    double rate[TDM_RATE_POINTS];
    double slope[TDM_RATE_POINTS]; /* slope of log(rate) over log(size), from point i to the next */
};

/* The rate for work of a size. */
double tdm_rate_at(const struct tdm_rate_table *table, double size);

/* The largest rate of a table. */
double tdm_rate_most(const struct tdm_rate_table *table);

/* Appends a point; sizes must rise. A point that would take less time than the one before gets the
 * rate at which it takes the same time. Does nothing if the table is full. */
void tdm_rate_add(struct tdm_rate_table *table, double size, double rate);

/* The rate's key in the description of a machine: "product_flops_per_second". */
const char *tdm_rate_key(enum tdm_rate rate);
/* The meaning of its sizes: "FLOPs", "keys", "tokens"; NULL: no sizes, the rate is a number. */
const char *tdm_rate_size_name(enum tdm_rate rate);
/* Is it a refinement of another rate, by part of the model or place in the sequence? */
bool tdm_rate_is_refined(enum tdm_rate rate);
/* Is it a share of another rate, without a unit? */
bool tdm_rate_is_share(enum tdm_rate rate);

/* Is it a rate of fp32 values? */
bool tdm_rate_is_fp32(enum tdm_rate rate);

/* Reads the member `rates` of a description; only rates with substitutes may be missing. A rate is
 * a number or a list of points [[size, rate], ...]. Errors go to the reader, with file and
 * field. */
void tdm_rates_read(struct tdm_json_reader *reader, struct tdm_rate_table tables[TDM_RATES]);

/* The JSON of a table in the form that is read: a number or a list of points. New reference. */
json_t *tdm_rate_json(const struct tdm_rate_table *table);

#endif
