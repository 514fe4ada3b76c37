/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark models`: lists the shipped models, or shows the tensors of one. */
#include "commands/cmd.h"

#include "base/json.h"
#include "base/units.h"
#include "models/model.h"
#include "commands/answers.h"
#include "commands/common_options.h"
#include "commands/print.h"
#include "commands/weights_report.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define BF16_BYTES 2u

static void print_row(const struct tdm_model *model)
{
    char parameters[TDM_DIGITS_SIZE], context[TDM_FORMAT_SIZE];
    printf("%-16s %15s %6u %6u %5u/%-3u %8u %10u %7s\n", model->name,
           tdm_format_digits(model->parameters, parameters), model->layers, model->hidden,
           model->query_heads, model->kv_heads, model->head_dim, model->vocabulary,
           tdm_format_tokens(model->max_context, context));
}

/* Counts the layers with a sliding window. They all have the same window. 0 and 0: none. */
static uint32_t count_windows(const struct tdm_model *model, uint64_t *window)
{
    uint32_t count = 0;
    *window = 0;
    for (uint32_t i = model->layers; i-- > 0;)
        if (model->layer_kinds[i].window > 0) {
            *window = model->layer_kinds[i].window;
            count++;
        }
    return count;
}

static json_t *model_json(const struct tdm_model *model)
{
    uint64_t window;
    uint32_t window_layers = count_windows(model, &window);
    char unknown[TDM_MODEL_UNKNOWN];
    return json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b,"
        " s:I, s:I, s:I, s:b}",
        "name", model->name, "architecture", model->architecture, "digest", model->digest,
        "parameters", (json_int_t)model->parameters, "layers", (json_int_t)model->layers, "hidden",
        (json_int_t)model->hidden, "intermediate", (json_int_t)model->intermediate, "query_heads",
        (json_int_t)model->query_heads, "kv_heads", (json_int_t)model->kv_heads, "head_dim",
        (json_int_t)model->head_dim, "vocabulary", (json_int_t)model->vocabulary, "max_context",
        (json_int_t)model->max_context, "sliding_window", (json_int_t)window,
        "sliding_window_layers", (json_int_t)window_layers, "tied", model->tied,
        "matmul_parameters", (json_int_t)tdm_model_matmul_parameters(model),
        "active_matmul_parameters", (json_int_t)tdm_model_active_matmul_parameters(model),
        "bf16_weight_bytes", (json_int_t)(model->parameters * BF16_BYTES), "runs",
        tdm_model_unknown(model, unknown)[0] == '\0');
}

static const char *rope_name(enum tdm_rope_kind kind)
{
    static const char *const names[] = {"plain", "linear", "llama3", "yarn"};
    return names[kind];
}

static void print_unit(const struct tdm_model *model, uint32_t number, const char *title)
{
    const struct tdm_unit *unit = &model->units[number];
    char digits[TDM_DIGITS_SIZE], bytes[TDM_FORMAT_SIZE], name[128];
    printf("\n%s: %s parameters, %s in bf16\n", title, tdm_format_digits(unit->parameters, digits),
           tdm_format_bytes(unit->parameters * BF16_BYTES, bytes));
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        const struct tdm_tensor *tensor = &model->tensors[unit->first_tensor + i];
        char shape[48];
        tdm_tensor_name(model, tensor, name, sizeof(name));
        if (tensor->rows == 1)
            snprintf(shape, sizeof(shape), "[%" PRIu64 "]", tensor->columns);
        else
            snprintf(shape, sizeof(shape), "[%" PRIu64 ", %" PRIu64 "]", tensor->rows,
                     tensor->columns);
        printf("  %-46s %-18s %s\n", name, shape,
               tdm_format_bytes(tensor->elements * BF16_BYTES, bytes));
    }
}

static void print_attention(const struct tdm_model *model)
{
    char text[TDM_FORMAT_SIZE];
    uint64_t window;
    uint32_t count = count_windows(model, &window);
    if (count == 0)
        return;
    printf("%-14s sliding window of %s tokens in %u of %u layers\n", "attention",
           tdm_format_tokens(window, text), count, model->layers);
}

static void print_details(const struct tdm_model *model, const struct tdm_weights *weights)
{
    char digits[TDM_DIGITS_SIZE], text[TDM_FORMAT_SIZE], unknown[TDM_MODEL_UNKNOWN];
    printf("%-14s %s, %s parameters\n", model->name, model->architecture,
           tdm_format_digits(model->parameters, digits));
    printf("%-14s %u, hidden %u, intermediate %u\n", "layers", model->layers, model->hidden,
           model->intermediate);
    printf("%-14s %u query, %u KV, of %u\n", "heads", model->query_heads, model->kv_heads,
           model->head_dim);
    print_attention(model);
    printf("%-14s %u, %s\n", "vocabulary", model->vocabulary,
           model->tied ? "tied embeddings" : "separate output weights");
    printf("%-14s %s, RoPE %s, theta %g\n", "context", tdm_format_tokens(model->max_context, text),
           rope_name(model->rope.kind), model->rope.theta);
    printf("%-14s %s in bf16\n", "weights", tdm_format_bytes(model->parameters * BF16_BYTES, text));
    if (tdm_model_unknown(model, unknown)[0] != '\0')
        printf("%-14s for predictions alone: not implemented are %s\n", "runs", unknown);
    tdm_weights_line(stdout, "files          ", weights);
    print_unit(model, 0, "a layer");
    print_unit(model, tdm_model_embedding_unit(model), "embedding");
    print_unit(model, tdm_model_head_unit(model), "head");
}

static json_t *tensors_json(const struct tdm_model *model)
{
    json_t *list = json_array();
    char name[128];
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct tdm_tensor *tensor = &model->tensors[i];
        tdm_tensor_name(model, tensor, name, sizeof(name));
        tdm_json_add(&list, json_pack("{s:s, s:I, s:I, s:I, s:I}", "name", name, "unit",
                                      (json_int_t)tensor->unit, "rows", (json_int_t)tensor->rows,
                                      "columns", (json_int_t)tensor->columns, "elements",
                                      (json_int_t)tensor->elements));
    }
    return list;
}

static enum tdm_status load(const char *name, struct tdm_model **model,
                            struct tdm_weights **weights, struct tdm_error *err)
{
    enum tdm_status status = tdm_model_load(name, model, err);
    if (status != TDM_OK)
        return status;
    status = tdm_weights_beside(name, *model, weights, err);
    if (status != TDM_OK)
        tdm_model_free(*model);
    return status;
}

static enum tdm_status show_one(const char *name, struct tdm_error *err)
{
    struct tdm_model *model;
    struct tdm_weights *weights = NULL;
    enum tdm_status status = load(name, &model, &weights, err);
    if (status != TDM_OK)
        return status;
    print_details(model, weights);
    tdm_weights_close(weights);
    tdm_model_free(model);
    return TDM_OK;
}

static enum tdm_status one_answer(const char *name, json_t **answer, struct tdm_error *err)
{
    struct tdm_model *model;
    struct tdm_weights *weights = NULL;
    enum tdm_status status = load(name, &model, &weights, err);
    if (status != TDM_OK)
        return status;
    *answer = model_json(model);
    tdm_json_set(answer, "tensors", tensors_json(model));
    tdm_json_set(answer, "weights", tdm_weights_json(weights));
    tdm_weights_close(weights);
    tdm_model_free(model);
    return TDM_OK;
}

/* Calls `each` with all shipped models. */
static enum tdm_status visit_all(void (*each)(const struct tdm_model *model, void *self),
                                 void *self, struct tdm_error *err)
{
    char **names;
    enum tdm_status status = tdm_model_names(&names, err);
    if (status != TDM_OK)
        return status;
    for (size_t i = 0; names[i] != NULL && status == TDM_OK; i++) {
        struct tdm_model *model;
        status = tdm_model_load(names[i], &model, err);
        if (status == TDM_OK) {
            each(model, self);
            tdm_model_free(model);
        }
    }
    free(names);
    return status;
}

static void add_model(const struct tdm_model *model, void *self)
{
    tdm_json_add(self, model_json(model));
}

static void show_row(const struct tdm_model *model, void *self)
{
    (void)self;
    print_row(model);
}

static enum tdm_status show_all(struct tdm_error *err)
{
    printf("%-16s %15s %6s %6s %9s %8s %10s %7s\n", "model", "parameters", "layers", "hidden",
           "heads/KV", "head dim", "vocabulary", "context");
    return visit_all(show_row, NULL, err);
}

enum tdm_status tdm_models_answer(const char *name, json_t **answer, struct tdm_error *err)
{
    if (name != NULL)
        return one_answer(name, answer, err);
    json_t *list = json_array();
    enum tdm_status status = visit_all(add_model, &list, err);
    if (status == TDM_OK)
        *answer = json_pack("{s:o}", "models", list);
    else
        json_decref(list);
    return status;
}

static const struct tdm_option options[] = {{.as = &tdm_option_json}, {.name = NULL}};

static enum tdm_status run(int argc, char **argv, struct tdm_error *err)
{
    bool as_json = false, help;
    int first;
    enum tdm_status status =
        tdm_options_read(&tdm_cmd_models, argc, argv, &as_json, &first, &help, err);
    if (status != TDM_OK || help)
        return status;
    if (argc - first > 1)
        return tdm_fail(err, TDM_USAGE, "models: takes one model only");
    const char *name = first < argc ? argv[first] : NULL;
    json_t *answer;
    if (!as_json)
        return name != NULL ? show_one(name, err) : show_all(err);
    status = tdm_models_answer(name, &answer, err);
    return status == TDM_OK ? tdm_print_json(answer, err) : status;
}

const struct tdm_command tdm_cmd_models = {
    .name = "models",
    .usage = "models [MODEL] [--json]",
    .summary = "list the shipped models, or explain one",
    .options = options,
    .notes = "MODEL is a shipped name, in any case or as the Hub has it (Qwen/Qwen2.5-7B), a "
             "config.json of Hugging Face, or a directory that holds one; the headers of weights "
             "in that directory are checked against it. Bytes are 1024-based; context is what the "
             "model was trained for, not a limit.\n"
             "\n"
             "Examples:\n"
             "  tidemark models\n"
             "  tidemark models qwen2.5-7b\n",
    .arguments = TDM_VALUES_MODELS,
    .run = run,
};
