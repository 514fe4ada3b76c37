/* SPDX-License-Identifier: Apache-2.0 */
/* Rates: their names, their tables, and reading them from a description. */
#include "machines/rates.h"

#include <math.h>
#include <string.h>

#define LARGEST_SIZE 1e21
#define LARGEST_RATE 1e21
/* Sizes and rates pass through decimal text, so a time that is shorter by this share is
 * accepted. */
#define TOLERANCE 1e-6

struct kind {
    const char *key;
    enum tdm_rate substitute;
    const char *size; /* the meaning of the points' sizes; NULL: the rate is a number */
    bool share;
};

static const struct kind kinds[TDM_RATES] = {
#define RATE(name, key, substitute, size) [name] = {key, substitute, size, false}
#define SHARE(name, key, substitute) [name] = {key, substitute, "tokens", true}
    RATE(TDM_RATE_PRODUCT, "product_flops_per_second", TDM_RATE_PRODUCT, "FLOPs"),
    RATE(TDM_RATE_ATTENTION_FORWARD, "attention_forward_flops_per_second",
         TDM_RATE_ATTENTION_FORWARD, "keys"),
    RATE(TDM_RATE_ATTENTION_BACKWARD, "attention_backward_flops_per_second",
         TDM_RATE_ATTENTION_BACKWARD, "keys"),
    RATE(TDM_RATE_ELEMENTWISE, "elementwise_bytes_per_second", TDM_RATE_ELEMENTWISE, "bytes"),
    RATE(TDM_RATE_H2D, "h2d_bytes_per_second", TDM_RATE_H2D, NULL),
    RATE(TDM_RATE_D2H, "d2h_bytes_per_second", TDM_RATE_D2H, NULL),
    RATE(TDM_RATE_BOTH_WAYS, "both_ways_bytes_per_second", TDM_RATE_BOTH_WAYS, NULL),
    RATE(TDM_RATE_PRODUCT_GRAD_INPUT, "product_grad_input_flops_per_second", TDM_RATE_PRODUCT,
         "FLOPs"),
    RATE(TDM_RATE_PRODUCT_GRAD_WEIGHT, "product_grad_weight_flops_per_second", TDM_RATE_PRODUCT,
         "FLOPs a token"),
    RATE(TDM_RATE_HEAD, "head_flops_per_second", TDM_RATE_PRODUCT, "FLOPs"),
    SHARE(TDM_RATE_ATTENTION_FORWARD_SHARE, "attention_forward_share",
          TDM_RATE_ATTENTION_FORWARD_SHARE),
    SHARE(TDM_RATE_ATTENTION_BACKWARD_SHARE, "attention_backward_share",
          TDM_RATE_ATTENTION_BACKWARD_SHARE),
    SHARE(TDM_RATE_ATTENTION_FORWARD_LISTS_SHARE, "attention_forward_lists_share",
          TDM_RATE_ATTENTION_FORWARD_LISTS_SHARE),
    SHARE(TDM_RATE_ATTENTION_BACKWARD_LISTS_SHARE, "attention_backward_lists_share",
          TDM_RATE_ATTENTION_BACKWARD_LISTS_SHARE),
    SHARE(TDM_RATE_ATTENTION_FORWARD_VISITS_SHARE, "attention_forward_visits_share",
          TDM_RATE_ATTENTION_FORWARD_VISITS_SHARE),
    SHARE(TDM_RATE_ATTENTION_BACKWARD_VISITS_SHARE, "attention_backward_visits_share",
          TDM_RATE_ATTENTION_BACKWARD_VISITS_SHARE),
    RATE(TDM_RATE_NARROW_ATTENTION_FORWARD, "narrow_attention_forward_flops_per_second",
         TDM_RATE_ATTENTION_FORWARD, "keys"),
    RATE(TDM_RATE_NARROW_ATTENTION_BACKWARD, "narrow_attention_backward_flops_per_second",
         TDM_RATE_ATTENTION_BACKWARD, "keys"),
    SHARE(TDM_RATE_NARROW_ATTENTION_FORWARD_SHARE, "narrow_attention_forward_share",
          TDM_RATE_ATTENTION_FORWARD_SHARE),
    SHARE(TDM_RATE_NARROW_ATTENTION_BACKWARD_SHARE, "narrow_attention_backward_share",
          TDM_RATE_ATTENTION_BACKWARD_SHARE),
    SHARE(TDM_RATE_NARROW_ATTENTION_FORWARD_VISITS_SHARE, "narrow_attention_forward_visits_share",
          TDM_RATE_ATTENTION_FORWARD_VISITS_SHARE),
    SHARE(TDM_RATE_NARROW_ATTENTION_BACKWARD_VISITS_SHARE, "narrow_attention_backward_visits_share",
          TDM_RATE_ATTENTION_BACKWARD_VISITS_SHARE),
    SHARE(TDM_RATE_PRODUCT_GRAD_WEIGHT_SHARE, "product_grad_weight_share",
          TDM_RATE_PRODUCT_GRAD_WEIGHT_SHARE),
    SHARE(TDM_RATE_NORM_GRAD_SHARE, "norm_grad_share", TDM_RATE_NORM_GRAD_SHARE),
    RATE(TDM_RATE_PRODUCT_Q, "product_q_flops_per_second", TDM_RATE_PRODUCT, "FLOPs a token"),
    RATE(TDM_RATE_PRODUCT_KV, "product_kv_flops_per_second", TDM_RATE_PRODUCT, "FLOPs a token"),
    RATE(TDM_RATE_PRODUCT_O, "product_o_flops_per_second", TDM_RATE_PRODUCT, "FLOPs a token"),
    RATE(TDM_RATE_PRODUCT_GATE_UP, "product_gate_up_flops_per_second", TDM_RATE_PRODUCT,
         "FLOPs a token"),
    RATE(TDM_RATE_PRODUCT_DOWN, "product_down_flops_per_second", TDM_RATE_PRODUCT, "FLOPs a token"),
    RATE(TDM_RATE_PRODUCT_GRAD_INPUT_Q, "product_grad_input_q_flops_per_second",
         TDM_RATE_PRODUCT_GRAD_INPUT, "FLOPs a token"),
    RATE(TDM_RATE_PRODUCT_GRAD_INPUT_KV, "product_grad_input_kv_flops_per_second",
         TDM_RATE_PRODUCT_GRAD_INPUT, "FLOPs a token"),
    RATE(TDM_RATE_PRODUCT_GRAD_INPUT_O, "product_grad_input_o_flops_per_second",
         TDM_RATE_PRODUCT_GRAD_INPUT, "FLOPs a token"),
    RATE(TDM_RATE_PRODUCT_GRAD_INPUT_GATE_UP, "product_grad_input_gate_up_flops_per_second",
         TDM_RATE_PRODUCT_GRAD_INPUT, "FLOPs a token"),
    RATE(TDM_RATE_PRODUCT_GRAD_INPUT_DOWN, "product_grad_input_down_flops_per_second",
         TDM_RATE_PRODUCT_GRAD_INPUT, "FLOPs a token"),
    RATE(TDM_RATE_PRODUCT_GRAD_WEIGHT_Q, "product_grad_weight_q_flops_per_second",
         TDM_RATE_PRODUCT_GRAD_WEIGHT, "FLOPs a token"),
    RATE(TDM_RATE_PRODUCT_GRAD_WEIGHT_KV, "product_grad_weight_kv_flops_per_second",
         TDM_RATE_PRODUCT_GRAD_WEIGHT, "FLOPs a token"),
    RATE(TDM_RATE_PRODUCT_GRAD_WEIGHT_O, "product_grad_weight_o_flops_per_second",
         TDM_RATE_PRODUCT_GRAD_WEIGHT, "FLOPs a token"),
    RATE(TDM_RATE_PRODUCT_GRAD_WEIGHT_GATE_UP, "product_grad_weight_gate_up_flops_per_second",
         TDM_RATE_PRODUCT_GRAD_WEIGHT, "FLOPs a token"),
    RATE(TDM_RATE_PRODUCT_GRAD_WEIGHT_DOWN, "product_grad_weight_down_flops_per_second",
         TDM_RATE_PRODUCT_GRAD_WEIGHT, "FLOPs a token"),
    RATE(TDM_RATE_ATTENTION_FORWARD_FIRST, "attention_forward_first_flops_per_second",
         TDM_RATE_ATTENTION_FORWARD, "keys"),
    RATE(TDM_RATE_ATTENTION_FORWARD_LATER, "attention_forward_later_flops_per_second",
         TDM_RATE_ATTENTION_FORWARD, "keys"),
    RATE(TDM_RATE_ATTENTION_BACKWARD_FIRST, "attention_backward_first_flops_per_second",
         TDM_RATE_ATTENTION_BACKWARD, "keys"),
    RATE(TDM_RATE_ATTENTION_BACKWARD_LATER, "attention_backward_later_flops_per_second",
         TDM_RATE_ATTENTION_BACKWARD, "keys"),
    RATE(TDM_RATE_NARROW_ATTENTION_FORWARD_FIRST, "narrow_attention_forward_first_flops_per_second",
         TDM_RATE_NARROW_ATTENTION_FORWARD, "keys"),
    RATE(TDM_RATE_NARROW_ATTENTION_FORWARD_LATER, "narrow_attention_forward_later_flops_per_second",
         TDM_RATE_NARROW_ATTENTION_FORWARD, "keys"),
    RATE(TDM_RATE_NARROW_ATTENTION_BACKWARD_FIRST,
         "narrow_attention_backward_first_flops_per_second", TDM_RATE_NARROW_ATTENTION_BACKWARD,
         "keys"),
    RATE(TDM_RATE_NARROW_ATTENTION_BACKWARD_LATER,
         "narrow_attention_backward_later_flops_per_second", TDM_RATE_NARROW_ATTENTION_BACKWARD,
         "keys"),
    RATE(TDM_RATE_HEAD_TILE, "head_tile_flops_per_second", TDM_RATE_HEAD, "FLOPs a token"),
    SHARE(TDM_RATE_PRODUCT_Q_SHARE, "product_q_share", TDM_RATE_PRODUCT_Q_SHARE),
    SHARE(TDM_RATE_PRODUCT_KV_SHARE, "product_kv_share", TDM_RATE_PRODUCT_KV_SHARE),
    SHARE(TDM_RATE_PRODUCT_O_SHARE, "product_o_share", TDM_RATE_PRODUCT_O_SHARE),
    SHARE(TDM_RATE_PRODUCT_GATE_UP_SHARE, "product_gate_up_share", TDM_RATE_PRODUCT_GATE_UP_SHARE),
    SHARE(TDM_RATE_PRODUCT_DOWN_SHARE, "product_down_share", TDM_RATE_PRODUCT_DOWN_SHARE),
    SHARE(TDM_RATE_PRODUCT_GRAD_INPUT_Q_SHARE, "product_grad_input_q_share",
          TDM_RATE_PRODUCT_GRAD_INPUT_Q_SHARE),
    SHARE(TDM_RATE_PRODUCT_GRAD_INPUT_KV_SHARE, "product_grad_input_kv_share",
          TDM_RATE_PRODUCT_GRAD_INPUT_KV_SHARE),
    SHARE(TDM_RATE_PRODUCT_GRAD_INPUT_O_SHARE, "product_grad_input_o_share",
          TDM_RATE_PRODUCT_GRAD_INPUT_O_SHARE),
    SHARE(TDM_RATE_PRODUCT_GRAD_INPUT_GATE_UP_SHARE, "product_grad_input_gate_up_share",
          TDM_RATE_PRODUCT_GRAD_INPUT_GATE_UP_SHARE),
    SHARE(TDM_RATE_PRODUCT_GRAD_INPUT_DOWN_SHARE, "product_grad_input_down_share",
          TDM_RATE_PRODUCT_GRAD_INPUT_DOWN_SHARE),
    SHARE(TDM_RATE_PRODUCT_GRAD_WEIGHT_Q_SHARE, "product_grad_weight_q_share",
          TDM_RATE_PRODUCT_GRAD_WEIGHT_Q_SHARE),
    SHARE(TDM_RATE_PRODUCT_GRAD_WEIGHT_KV_SHARE, "product_grad_weight_kv_share",
          TDM_RATE_PRODUCT_GRAD_WEIGHT_KV_SHARE),
    SHARE(TDM_RATE_PRODUCT_GRAD_WEIGHT_O_SHARE, "product_grad_weight_o_share",
          TDM_RATE_PRODUCT_GRAD_WEIGHT_O_SHARE),
    SHARE(TDM_RATE_PRODUCT_GRAD_WEIGHT_GATE_UP_SHARE, "product_grad_weight_gate_up_share",
          TDM_RATE_PRODUCT_GRAD_WEIGHT_GATE_UP_SHARE),
    SHARE(TDM_RATE_PRODUCT_GRAD_WEIGHT_DOWN_SHARE, "product_grad_weight_down_share",
          TDM_RATE_PRODUCT_GRAD_WEIGHT_DOWN_SHARE),
    SHARE(TDM_RATE_ATTENTION_FORWARD_LATER_SHARE, "attention_forward_later_share",
          TDM_RATE_ATTENTION_FORWARD_LATER_SHARE),
    SHARE(TDM_RATE_ATTENTION_BACKWARD_LATER_SHARE, "attention_backward_later_share",
          TDM_RATE_ATTENTION_BACKWARD_LATER_SHARE),
    SHARE(TDM_RATE_NARROW_ATTENTION_FORWARD_LATER_SHARE, "narrow_attention_forward_later_share",
          TDM_RATE_NARROW_ATTENTION_FORWARD_LATER_SHARE),
    SHARE(TDM_RATE_NARROW_ATTENTION_BACKWARD_LATER_SHARE, "narrow_attention_backward_later_share",
          TDM_RATE_NARROW_ATTENTION_BACKWARD_LATER_SHARE),
    SHARE(TDM_RATE_HEAD_TILE_SHARE, "head_tile_share", TDM_RATE_HEAD_TILE_SHARE),
    RATE(TDM_RATE_FP32_PRODUCT, "fp32_product_flops_per_second", TDM_RATE_PRODUCT, "FLOPs"),
    RATE(TDM_RATE_FP32_PRODUCT_GRAD_INPUT, "fp32_product_grad_input_flops_per_second",
         TDM_RATE_FP32_PRODUCT, "FLOPs"),
    RATE(TDM_RATE_FP32_PRODUCT_GRAD_WEIGHT, "fp32_product_grad_weight_flops_per_second",
         TDM_RATE_FP32_PRODUCT, "FLOPs"),
    RATE(TDM_RATE_FP32_HEAD, "fp32_head_flops_per_second", TDM_RATE_FP32_PRODUCT, "FLOPs"),
    RATE(TDM_RATE_FP32_ATTENTION_FORWARD, "fp32_attention_forward_flops_per_second",
         TDM_RATE_ATTENTION_FORWARD, "keys"),
    RATE(TDM_RATE_FP32_ATTENTION_BACKWARD, "fp32_attention_backward_flops_per_second",
         TDM_RATE_ATTENTION_BACKWARD, "keys"),
    RATE(TDM_RATE_ZERO, "zero_bytes_per_second", TDM_RATE_ELEMENTWISE, "bytes"),
    RATE(TDM_RATE_EMBED, "embed_bytes_per_second", TDM_RATE_ELEMENTWISE, "bytes"),
    RATE(TDM_RATE_SORT_TOKENS, "sort_tokens_bytes_per_second", TDM_RATE_ELEMENTWISE, "bytes"),
    RATE(TDM_RATE_EMBED_GRAD, "embed_grad_bytes_per_second", TDM_RATE_ELEMENTWISE, "bytes"),
    RATE(TDM_RATE_NORM, "norm_bytes_per_second", TDM_RATE_ELEMENTWISE, "bytes"),
    RATE(TDM_RATE_NORM_GRAD, "norm_grad_bytes_per_second", TDM_RATE_ELEMENTWISE, "bytes a token"),
    RATE(TDM_RATE_ROPE, "rope_bytes_per_second", TDM_RATE_ELEMENTWISE, "bytes"),
    RATE(TDM_RATE_ROPE_GRAD, "rope_grad_bytes_per_second", TDM_RATE_ELEMENTWISE, "bytes"),
    RATE(TDM_RATE_PAGE_MEANS, "page_means_bytes_per_second", TDM_RATE_ELEMENTWISE, "bytes"),
    RATE(TDM_RATE_SELECT, "select_flops_per_second", TDM_RATE_ATTENTION_FORWARD, "FLOPs"),
    RATE(TDM_RATE_KV_WRITE, "kv_write_bytes_per_second", TDM_RATE_ELEMENTWISE, "bytes"),
    RATE(TDM_RATE_KV_GRAD_READ, "kv_grad_read_bytes_per_second", TDM_RATE_ELEMENTWISE, "bytes"),
    RATE(TDM_RATE_SWIGLU, "swiglu_bytes_per_second", TDM_RATE_ELEMENTWISE, "bytes"),
    RATE(TDM_RATE_SWIGLU_GRAD, "swiglu_grad_bytes_per_second", TDM_RATE_ELEMENTWISE, "bytes"),
    RATE(TDM_RATE_GRADIENT_NORM, "gradient_norm_bytes_per_second", TDM_RATE_ELEMENTWISE, "bytes"),
    RATE(TDM_RATE_OPTIMIZER, "optimizer_bytes_per_second", TDM_RATE_ELEMENTWISE, "bytes"),
    RATE(TDM_RATE_OPTIMIZER_ROUNDED, "optimizer_rounded_bytes_per_second", TDM_RATE_OPTIMIZER,
         "bytes"),
    RATE(TDM_RATE_HOST_OPTIMIZER, "host_optimizer_bytes_per_second", TDM_RATE_BOTH_WAYS, "bytes"),
    RATE(TDM_RATE_HOST_OPTIMIZER_ROUNDED, "host_optimizer_rounded_bytes_per_second",
         TDM_RATE_HOST_OPTIMIZER, "bytes"),
#undef RATE
#undef SHARE
};

const char *tdm_rate_key(enum tdm_rate rate)
{
    return kinds[rate].key;
}

const char *tdm_rate_size_name(enum tdm_rate rate)
{
    return kinds[rate].size;
}

bool tdm_rate_is_share(enum tdm_rate rate)
{
    return kinds[rate].share;
}

bool tdm_rate_is_refined(enum tdm_rate rate)
{
    return rate >= TDM_RATE_PRODUCT_Q && rate <= TDM_RATE_HEAD_TILE_SHARE;
}

bool tdm_rate_is_fp32(enum tdm_rate rate)
{
    return rate >= TDM_RATE_FP32_PRODUCT && rate <= TDM_RATE_FP32_ATTENTION_BACKWARD;
}

double tdm_rate_at(const struct tdm_rate_table *table, double size)
{
    uint32_t low = 0, high = table->count - 1;
    if (!(size > table->size[0]))
        return table->rate[0];
    if (size >= table->size[high])
        return table->rate[high];
    while (high - low > 1) { /* size[low] <= size < size[high] */
        uint32_t middle = low + (high - low) / 2;
        if (size < table->size[middle])
            high = middle;
        else
            low = middle;
    }
    return table->rate[low] * pow(size / table->size[low], table->slope[low]);
}

double tdm_rate_most(const struct tdm_rate_table *table)
{
    double most = 0;
    for (uint32_t i = 0; i < table->count; i++)
        most = fmax(most, table->rate[i]);
    return most;
}

void tdm_rate_add(struct tdm_rate_table *table, double size, double rate)
{
    uint32_t last = table->count - 1;
    if (table->count == TDM_RATE_POINTS)
        return;
    if (table->count > 0) {
        rate = fmin(rate, table->rate[last] * size / table->size[last]);
        table->slope[last] = log(rate / table->rate[last]) / log(size / table->size[last]);
    }
    table->size[table->count] = size;
    table->rate[table->count++] = rate;
}

/* Reads one point of the list. Returns false after a failure, which it reports. */
static bool read_point(struct tdm_json_reader *reader, const char *key, const json_t *point,
                       struct tdm_rate_table *table)
{
    double size = json_number_value(json_array_get(point, 0));
    double rate = json_number_value(json_array_get(point, 1));
    uint32_t count = table->count;
    if (!json_is_array(point) || json_array_size(point) != 2 || !(size > 0) || !(rate > 0) ||
        size > LARGEST_SIZE || rate > LARGEST_RATE)
        tdm_json_fail(reader, key,
                      "holds at %u no point; a point is [size, rate], both above 0 and at most %g",
                      count, LARGEST_RATE);
    else if (count > 0 && size <= table->size[count - 1])
        tdm_json_fail(reader, key, "has size %g after size %g; sizes must rise", size,
                      table->size[count - 1]);
    else if (count > 0 &&
             size / rate < (1 - TOLERANCE) * table->size[count - 1] / table->rate[count - 1])
        tdm_json_fail(reader, key,
                      "lets size %g take less time than size %g; lower the rate %g to at most %g",
                      size, table->size[count - 1], rate,
                      table->rate[count - 1] * size / table->size[count - 1]);
    else
        tdm_rate_add(table, size, rate);
    return tdm_json_status(reader) == TDM_OK;
}

static void read_points(struct tdm_json_reader *reader, enum tdm_rate rate,
                        struct tdm_rate_table *table)
{
    const char *key = kinds[rate].key;
    const json_t *points = json_object_get(reader->object, key);
    size_t count = json_array_size(points);
    if (kinds[rate].size == NULL)
        tdm_json_fail(reader, key, "is a list; it must be a number");
    else if (count == 0 || count > TDM_RATE_POINTS)
        tdm_json_fail(reader, key, "has %zu points; it must have 1 to %u", count, TDM_RATE_POINTS);
    for (size_t i = 0; i < count && tdm_json_status(reader) == TDM_OK; i++)
        if (!read_point(reader, key, json_array_get(points, i), table))
            return;
}

static void read_rate(struct tdm_json_reader *reader, enum tdm_rate rate,
                      struct tdm_rate_table *table)
{
    const char *key = kinds[rate].key;
    *table = (struct tdm_rate_table){.of = rate};
    if (json_is_array(json_object_get(reader->object, key)))
        read_points(reader, rate, table);
    else if (kinds[rate].share)
        tdm_rate_add(table, 1, tdm_json_number_or(reader, key, 1e-6, 1e6, 1));
    else if (rate < TDM_RATES_REQUIRED)
        tdm_rate_add(table, 1, tdm_json_number(reader, key, 1, LARGEST_RATE));
    else if (tdm_json_has(reader, key))
        tdm_rate_add(table, 1, tdm_json_number(reader, key, 1, LARGEST_RATE));
}

/* Raises points that fall below those before. Planners take the largest tile of the LM head for the
 * fastest, so noise of a measurement must not make it slower. */
static void never_fall(struct tdm_rate_table *table)
{
    struct tdm_rate_table raised = {.of = table->of};
    for (uint32_t i = 0; i < table->count; i++)
        tdm_rate_add(&raised, table->size[i], fmax(table->rate[i], i > 0 ? raised.rate[i - 1] : 0));
    *table = raised;
}

void tdm_rates_read(struct tdm_json_reader *reader, struct tdm_rate_table tables[TDM_RATES])
{
    const char *keys[TDM_RATES + 1] = {NULL};
    struct tdm_json_reader inner = *reader;
    inner.prefix = "rates";
    inner.object = tdm_json_object(reader, "rates");
    inner.status = tdm_json_status(reader);
    for (unsigned i = 0; i < TDM_RATES; i++)
        keys[i] = kinds[i].key;
    tdm_json_only(&inner, keys);
    for (unsigned i = 0; i < TDM_RATES && tdm_json_status(&inner) == TDM_OK; i++) {
        enum tdm_rate substitute = kinds[i].substitute; /* it precedes this one */
        read_rate(&inner, (enum tdm_rate)i, &tables[i]);
        if (substitute != i && !tdm_json_has(&inner, kinds[i].key))
            tables[i] = tables[substitute];
    }
    if (tdm_json_status(&inner) == TDM_OK)
        never_fall(&tables[TDM_RATE_HEAD_TILE_SHARE]);
    double both_ways = tables[TDM_RATE_BOTH_WAYS].rate[0];
    if (tdm_json_status(&inner) == TDM_OK &&
        both_ways > (tables[TDM_RATE_H2D].rate[0] + tables[TDM_RATE_D2H].rate[0]) *
                        (1 + 1e-9)) /* files have 12 digits of each */
        tdm_json_fail(&inner, kinds[TDM_RATE_BOTH_WAYS].key,
                      "is %g, more than \"%s\" and \"%s\" together; it is the sum of both "
                      "directions when both are busy",
                      both_ways, kinds[TDM_RATE_H2D].key, kinds[TDM_RATE_D2H].key);
    reader->status = tdm_json_status(&inner);
}

json_t *tdm_rate_json(const struct tdm_rate_table *table)
{
    if (table->count == 1)
        return json_real(table->rate[0]);
    json_t *points = json_array();
    for (uint32_t i = 0; i < table->count; i++)
        tdm_json_add(&points, json_pack("[f, f]", table->size[i], table->rate[i]));
    return points;
}
