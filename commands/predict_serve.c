/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark predict --mode serve`: the answer, its JSON, its picture. */
#include "commands/predict_parts.h"

#include "base/json.h"
#include "base/size.h"
#include "base/units.h"
#include "commands/print.h"
#include "plots/serving_plot.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* No context longer than this is looked for. */
#define MOST_CONTEXT (UINT64_C(1) << 30)

static const char *const dtype_names[TDM_KV_DTYPES] = {[TDM_KV_AUTO] = "bf16",
                                                       [TDM_KV_FP8] = "fp8",
                                                       [TDM_KV_INT8] = "int8",
                                                       [TDM_KV_INT4] = "int4",
                                                       [TDM_KV_NVFP4] = "nvfp4"};

/* A point at a context; false: no dtype holds one sequence. */
static bool point_at(const struct tdm_predict_answer *a, uint64_t context,
                     struct tdm_serve_point *point)
{
    bool any = false;
    point->context = context;
    for (unsigned d = 0; d < TDM_KV_DTYPES; d++) {
        struct tdm_serving serving = a->settings.serving;
        struct tdm_serving_answer answer;
        serving.kv_dtype = (enum tdm_kv_dtype)d;
        if (d != a->settings.serving.kv_dtype)
            serving.kv_group = TDM_AUTO;
        tdm_serving_answer(a->model, a->machine, &serving, context, &answer);
        point->sequences[d] = answer.held_sequences;
        any |= answer.held_sequences > 0;
    }
    return any;
}

static void find_points(const struct tdm_predict_answer *a, struct tdm_serve_report *report)
{
    uint64_t context = 1024, path = 0;
    for (uint32_t i = 0; i < a->settings.serving.prefix_levels; i++)
        path += a->settings.serving.prefix[i].tokens;
    while (context < path)
        context *= 2;
    for (; context <= MOST_CONTEXT && report->count < TDM_SERVE_POINTS; context *= 2)
        if (point_at(a, context, &report->points[report->count]))
            report->count++;
}

static void find(const struct tdm_predict_request *r, const struct tdm_predict_answer *a,
                 struct tdm_serve_report *report)
{
    *report = (struct tdm_serve_report){.count = 0};
    tdm_serving_answer(a->model, a->machine, &a->settings.serving, r->context, &report->serving);
    report->longest_tokens =
        tdm_serving_longest(a->model, a->machine, &a->settings.serving, r->batch, MOST_CONTEXT);
    report->fits = report->serving.held_sequences >= r->batch;
    find_points(a, report);
}

/* ---- why it does not fit ---- */

static enum tdm_status refuse(const struct tdm_predict_request *r,
                              const struct tdm_predict_answer *a,
                              const struct tdm_serve_report *report, struct tdm_error *err)
{
    const struct tdm_serving_rank *rank = &report->serving.rank;
    const struct tdm_serving *serving = &a->settings.serving;
    char has[TDM_FORMAT_SIZE], need[TDM_FORMAT_SIZE], text[TDM_FORMAT_SIZE];
    uint64_t activations = tdm_most(rank->forward_bytes, rank->sampler_bytes);
    uint64_t taken =
        rank->weights_bytes + rank->non_torch_bytes + (serving->sglang ? 0 : activations);
    if (report->fits)
        return TDM_OK;
    if (rank->blocks == 0 && serving->kv_memory_bytes == 0) {
        tdm_fail(err, TDM_INFEASIBLE, "no room for the cache: weights%s take %s of %s",
                 serving->sglang ? "" : ", activations and what is not torch's",
                 tdm_format_bytes(taken, need),
                 tdm_format_bytes(report->serving.budget_bytes, has));
        if (serving->sglang)
            return tdm_hint(err, "more GPUs (--set tp_size=N), quantization, or a higher "
                                 "mem_fraction_static");
        return tdm_hint(err, "more GPUs (--set tensor_parallel_size=N), quantization, a lower "
                             "max_num_seqs or max_num_batched_tokens, or a higher "
                             "gpu_memory_utilization");
    }
    if (report->serving.blocks < rank->blocks) {
        tdm_fail(err, TDM_INFEASIBLE,
                 "does not fit: %" PRIu64 " sequence%s of %s tokens are more than the %" PRIu64
                 " tokens that max_total_tokens leaves",
                 r->batch, r->batch == 1 ? "" : "s", tdm_format_tokens(r->context, text),
                 report->serving.cache_tokens);
        return tdm_hint(err, "set a larger max_total_tokens, or none");
    }
    uint64_t bytes =
        tdm_serving_needed_bytes(a->model, serving, &report->serving, r->context, r->batch);
    tdm_fail(err, TDM_INFEASIBLE,
             "does not fit: %" PRIu64 " sequence%s of %s tokens take %s of cache, which has %s",
             r->batch, r->batch == 1 ? "" : "s", tdm_format_tokens(r->context, text),
             tdm_format_bytes(bytes, need), tdm_format_bytes(rank->cache_bytes, has));
    char shorter[48] = "";
    if (report->longest_tokens > 0)
        snprintf(shorter, sizeof(shorter), "--context %" PRIu64 ", ", report->longest_tokens);
    return tdm_hint(err, "%sa smaller --batch, more GPUs (--set %s=N)%s", shorter,
                    serving->sglang ? "tp_size" : "tensor_parallel_size",
                    serving->kv_dtype == TDM_KV_AUTO ? ", or kv_cache_dtype=fp8" : "");
}

/* ---- as JSON ---- */

static json_t *number(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *points_json(const struct tdm_serve_report *report)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < report->count; i++) {
        json_t *held = json_object();
        for (unsigned d = 0; d < TDM_KV_DTYPES; d++)
            tdm_json_set(&held, dtype_names[d], number(report->points[i].sequences[d]));
        tdm_json_add(&list, json_pack("{s:I, s:o}", "context",
                                      (json_int_t)report->points[i].context, "sequences", held));
    }
    return list;
}

/* `why`: NULL if it fits. */
static json_t *serve_json(const struct tdm_predict_request *r, const struct tdm_predict_answer *a,
                          const struct tdm_serve_report *report, const struct tdm_error *why)
{
    const struct tdm_serving_answer *s = &report->serving;
    const struct tdm_serving_rank *rank = &s->rank;
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"budget_bytes", s->budget_bytes},
        {"weights_bytes", rank->weights_bytes},
        {"rope_bytes", rank->rope_bytes},
        {"forward_peak_bytes", rank->forward_bytes},
        {"sampler_peak_bytes", rank->sampler_bytes},
        {"activation_peak_bytes", tdm_most(rank->forward_bytes, rank->sampler_bytes)},
        {"non_torch_bytes", rank->non_torch_bytes},
        {"cache_bytes", rank->cache_bytes},
        {"cuda_graph_bytes", rank->graph_bytes},
        {"block_bytes", rank->block_bytes},
        {"blocks", s->blocks},
        {"block_tokens", tdm_serving_block_tokens(a->model, &a->settings.serving)},
        {"groups", s->groups},
        {"stage", s->stage},
        {"cache_tokens", s->cache_tokens},
        {"blocks_of_a_sequence", s->blocks_of_a_sequence},
        {"held_sequences", s->held_sequences},
        {"longest_context_tokens", report->longest_tokens},
        {"max_num_batched_tokens", s->batched_tokens},
        {"max_num_seqs", s->sequences},
    };
    json_t *root = json_pack("{s:s, s:b, s:f, s:b}", "mode", r->mode, "fits", (int)report->fits,
                             "concurrency", s->concurrency, "chunked_prefill", (int)s->chunked);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        tdm_json_set(&root, numbers[i].name, number(numbers[i].value));
    tdm_json_set(&root, "held_by_context", points_json(report));
    if (why != NULL)
        tdm_json_set(&root, "message", json_string(why->message));
    return tdm_predict_json(r, a, root);
}

/* ---- the picture ---- */

static enum tdm_status draw(const struct tdm_predict_request *r, const struct tdm_predict_answer *a,
                            const struct tdm_serve_report *report, struct tdm_error *err)
{
    struct tdm_serving_dot dots[TDM_KV_DTYPES][TDM_SERVE_POINTS];
    struct tdm_serving_line lines[TDM_KV_DTYPES];
    struct tdm_serving_plot plot = {
        .context = r->context, .batch = r->batch, .lines = lines, .count = TDM_KV_DTYPES};
    char text[TDM_FORMAT_SIZE];
    for (unsigned d = 0; d < TDM_KV_DTYPES; d++) {
        lines[d] = (struct tdm_serving_line){.name = dtype_names[d],
                                             .asked = d == a->settings.serving.kv_dtype,
                                             .dots = dots[d],
                                             .count = report->count};
        for (uint32_t i = 0; i < report->count; i++)
            dots[d][i] = (struct tdm_serving_dot){.context = report->points[i].context,
                                                  .sequences = report->points[i].sequences[d]};
    }
    snprintf(plot.title, sizeof(plot.title), "%s served by %s", a->model->name,
             a->settings.serving.sglang ? "SGLang" : "vLLM");
    snprintf(plot.subtitle, sizeof(plot.subtitle), "%s; %s for the cache of a GPU, predicted",
             a->machine->title, tdm_format_bytes(report->serving.rank.cache_bytes, text));
    return tdm_serving_plot_draw(&plot, &r->timeline, err);
}

enum tdm_status tdm_predict_serve(const struct tdm_predict_request *r,
                                  const struct tdm_predict_answer *a, struct tdm_error *err)
{
    struct tdm_serve_report report;
    enum tdm_status status = TDM_OK;
    find(r, a, &report);
    enum tdm_status judged = refuse(r, a, &report, err);
    if (r->as_json)
        status = tdm_print_json(serve_json(r, a, &report, judged == TDM_OK ? NULL : err), err);
    else
        tdm_serve_print(r, a, &report);
    if (status == TDM_OK && r->timeline.path != NULL && strcmp(r->timeline.path, "-") != 0) {
        struct tdm_error drawing;
        status = draw(r, a, &report, &drawing);
        if (status != TDM_OK)
            *err = drawing;
    }
    return status == TDM_OK ? judged : status;
}

enum tdm_status tdm_predict_serve_answer(const struct tdm_predict_request *r,
                                         const struct tdm_predict_answer *a, json_t **answer,
                                         struct tdm_error *err)
{
    struct tdm_serve_report report;
    find(r, a, &report);
    enum tdm_status judged = refuse(r, a, &report, err);
    *answer = serve_json(r, a, &report, judged == TDM_OK ? NULL : err);
    return judged;
}
