/* SPDX-License-Identifier: Apache-2.0 */
/* The table of changes that take memory off a GPU, and sets of such changes. */
#include "methods/remedy_parts.h"

#include "base/units.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ACCUMULATION "gradient_accumulation_steps" /* where that is a key */
#define LARGER "larger"                            /* applies only to a larger number */

/* Ordered by effect; for the same effect, ordered by the time they cost, the cheapest first. */
static const struct row {
    const char *key, *value;
    const char *from; /* values that it replaces, "a|b"; LARGER; NULL: any other value */
    const char
        *words; /* as Hugging Face's TrainingArguments, PyTorch or DeepSpeed's config write it.
                   --set accepts that (tdm_method_read_pair), up to a bracket or a second option */
    const char *also, *also_value; /* another key to change with it, unless the user set that key */
    enum tdm_effect effect;
    enum tdm_host_use host;
} rows[] = {
    {"attention", "sdpa", "eager|materialized", .words = "attn_implementation: sdpa"},
    {"optimizer", "adamw-fused", "adamw-foreach", .words = "optim: adamw_torch_fused"},
    {"optimizer", "AdamW", "torch_adam", .words = "optimizer: AdamW (without torch_adam)"},
    {"use_cache", "no", "yes", .words = "use_cache: false"},
    {"logits", "hf", "hf-held|bf16-held|fp32-held",
     .words = "logits=hf (the model's output is dropped before the backward)"},
    {"logits", "fused", "hf|hf-held|bf16-held|fp32-held",
     .words = "liger_fused_linear_cross_entropy: true (logits=fused)"},
    {"allocator_conf", "expandable_segments:True", NULL,
     .words = "PYTORCH_ALLOC_CONF=expandable_segments:True"},
    {"gradient_as_bucket_view", "yes", NULL, .words = "gradient_as_bucket_view=True"},
    {"reduce_bucket_size", "5e7", LARGER, .words = "\"reduce_bucket_size\": 5e7"},
    {"sub_group_size", "1e8", LARGER, .words = "\"sub_group_size\": 1e8"},
    {"zero_hpz_partition_size", "1", LARGER, .words = "\"zero_hpz_partition_size\": 1"},
    {"stage3_max_live_parameters", "1e8", LARGER, .words = "\"stage3_max_live_parameters\": 1e8"},
    {"stage3_max_reuse_distance", "1e8", LARGER, .words = "\"stage3_max_reuse_distance\": 1e8"},
    {"overlap_comm", "false", NULL, .words = "\"overlap_comm\": false"},
    {"use_distributed_optimizer", "yes", NULL, .words = "--use-distributed-optimizer"},
    {"sequence_parallel", "yes", NULL, .words = "--sequence-parallel"},
    {"sl_loss", "on", NULL, .words = "sl_loss=on (--sp burst_sl_loss)"},
    {"sharding", "fsdp", NULL, .words = "sharding=fsdp (fully_shard over all ranks)"},
    {"reshard_after_forward", "yes", NULL, .words = "reshard_after_forward=True"},
    {"units", "layers+ends", NULL,
     .words = "units=layers+ends (fully_shard of embed_tokens and of [norm, lm_head])"},
    {"spzero", "on", NULL, .words = "--spzero"},
    {"grad_ckpt", "seq-wise", "full", .words = "grad_ckpt=seq-wise (--sp burst_sl_ckpt)"},
    {"grad_ckpt", "none", NULL, .words = "grad_ckpt=none (--sp burst)"},
    {"recompute_granularity", "selective", "none", .words = "--recompute-granularity selective"},
    {"recompute_granularity", "selective", "none",
     .words = "--recompute-granularity selective --recompute-modules mlp",
     .also = "recompute_modules", .also_value = "mlp"},
    {"recompute_granularity", "full", NULL,
     .words = "--recompute-granularity full (--recompute-method uniform --recompute-num-layers 1)"},
    {"tensor_model_parallel_size", "2", "1",
     .words = "--tensor-model-parallel-size 2 --sequence-parallel", .also = "sequence_parallel",
     .also_value = "yes"},
    {"tensor_model_parallel_size", "4", "1|2",
     .words = "--tensor-model-parallel-size 4 --sequence-parallel", .also = "sequence_parallel",
     .also_value = "yes"},
    {"tensor_model_parallel_size", "8", "1|2|4",
     .words = "--tensor-model-parallel-size 8 --sequence-parallel", .also = "sequence_parallel",
     .also_value = "yes"},
    {"use_checkpoint", "on", NULL, .words = "use_checkpoint=True"},
    {"checkpointing", "on", "off", .words = "gradient_checkpointing: true"},
    {"checkpointing", "on", "on-reentrant",
     .words = "checkpointing=on (gradient_checkpointing_kwargs: {use_reentrant: false})"},
    {"tiled_mlp_compute", "auto", "0", .words = "tiled_mlp_compute: true"},
    {"tiled_logits", "auto", "0", .words = "tiled_logits=auto (TiledFusedLogitsLoss)"},
    {"checkpoint_every", "1", LARGER, .words = "checkpoint_every=1"},
    {"layer_checkpoint", "yes", NULL, .words = "grad_ckpt: true"},
    {"chunk", "1K", LARGER, .words = "chunk=1K"},
    {"ds_sequence_parallel_fpdt_chunk_size", "16384", LARGER,
     .words = "--ds-sequence-parallel-fpdt-chunk-size 16384"},
    {"pin_memory", "false", "true", .words = "\"pin_memory\": false", .host = TDM_HOST_GIVES},
    {"offload", "on", NULL, .words = "--offload", .host = TDM_HOST_TAKES},
    {"offload", "off", "on", .words = "offload=off", .host = TDM_HOST_GIVES},
    {"offload_optimizer", "cpu", "none", .words = "\"offload_optimizer\": {\"device\": \"cpu\"}",
     .host = TDM_HOST_TAKES},
    {"offload_optimizer", "none", "cpu", .words = "\"offload_optimizer\": {\"device\": \"none\"}",
     .host = TDM_HOST_GIVES},
    {"offload_param", "cpu", "none", .words = "\"offload_param\": {\"device\": \"cpu\"}",
     .host = TDM_HOST_TAKES},
    {"offload_param", "none", "cpu", .words = "\"offload_param\": {\"device\": \"none\"}",
     .host = TDM_HOST_GIVES},
    {"checkpoint_offload", "alst", "no", .words = "activation_checkpoint_cpu_offload: true",
     .host = TDM_HOST_TAKES},
    {"checkpoint_offload", "no", NULL, .words = "activation_checkpoint_cpu_offload: false",
     .host = TDM_HOST_GIVES},
    {"kv_offload", "yes", "no", .words = "cpu_offload: 2", .host = TDM_HOST_TAKES},
    {"kv_offload", "no", "yes", .words = "cpu_offload: 0", .host = TDM_HOST_GIVES},
    {"kv_grad_dtype", "bf16", NULL, .words = "kv_grad_dtype=bf16", .effect = TDM_EFFECT_NUMERICS},
    {"grad_accum_dtype", "bf16", NULL, .words = "\"data_types\": {\"grad_accum_dtype\": \"bf16\"}",
     .effect = TDM_EFFECT_NUMERICS},
    {"weights_dtype", "bf16", NULL, .words = "weights_dtype=bf16", .effect = TDM_EFFECT_NUMERICS},
    /* its words depend on the new batch */
    {"batch", "1", NULL, .words = "", .effect = TDM_EFFECT_MACHINE},
    {"budget", "8K", "dense", .words = "budget=8K (page_budget: 64)",
     .effect = TDM_EFFECT_TRAINING},
    {"lora_rank", "16", "0", .words = "lora_rank=16", .effect = TDM_EFFECT_TRAINING},
};

#define ROWS (sizeof(rows) / sizeof(rows[0]))
_Static_assert(ROWS <= 64, "a set of rows is 64 bits");

size_t tdm_change_rows(void)
{
    return ROWS;
}

const char *tdm_effect_name(enum tdm_effect effect)
{
    static const char *const names[] = {"time", "numerics", "machine", "training"};
    return names[effect];
}

enum tdm_effect tdm_change_effect(size_t row)
{
    return rows[row].effect;
}

enum tdm_host_use tdm_change_host_use(size_t row)
{
    return rows[row].host;
}

bool tdm_change_is_batch(size_t row)
{
    return strcmp(rows[row].key, "batch") == 0;
}

size_t tdm_change_key(const struct tdm_method *method, const char *name)
{
    const struct tdm_method_key *key;
    for (size_t k = 0; (key = tdm_method_key(method, k)) != NULL; k++)
        if (strcmp(key->name, name) == 0)
            return k;
    return TDM_METHOD_MOST_KEYS;
}

/* The value of "1e8", "1K" or "1024". Other text counts as the smallest number. */
static double number(const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (*end == 'K' || *end == 'M')
        value *= *end == 'K' ? 1024 : 1024 * 1024;
    else if (*end != '\0')
        value = 0;
    return value;
}

static bool is_among(const char *values, const char *value)
{
    size_t length = strlen(value);
    for (; values != NULL; values = strchr(values, '|') ? strchr(values, '|') + 1 : NULL)
        if (strcspn(values, "|") == length && memcmp(values, value, length) == 0)
            return true;
    return false;
}

/* Does the method have the key, and did the user not set it? */
static bool is_unsaid(const struct tdm_variant *v, const char *name)
{
    size_t k = tdm_change_key(v->method, name);
    return k < TDM_METHOD_MOST_KEYS && v->choices.said[k] == NULL;
}

bool tdm_change_applies(const struct tdm_variant *v, size_t row)
{
    const struct row *r = &rows[row];
    if (tdm_change_is_batch(row))
        return v->batch > 1;
    const char *now = tdm_method_value(v->method, &v->choices, r->key);
    if (r->also != NULL && !is_unsaid(v, r->also))
        return false;
    if (now == NULL || strcmp(now, r->value) == 0)
        return false;
    if (r->from != NULL && strcmp(r->from, LARGER) == 0)
        return number(now) > number(r->value);
    return r->from == NULL || is_among(r->from, now);
}

void tdm_change_add(struct tdm_change_set *set, size_t row)
{
    for (size_t r = 0; r < ROWS; r++)
        if (strcmp(rows[r].key, rows[row].key) == 0)
            set->rows &= ~(UINT64_C(1) << r);
    set->rows |= UINT64_C(1) << row;
}

size_t tdm_change_lesser(const struct tdm_variant *v, size_t row)
{
    for (size_t r = row; r-- > 0;)
        if (strcmp(rows[r].key, rows[row].key) == 0 && tdm_change_applies(v, r))
            return r;
    return row;
}

/* With a smaller batch, are gradients held from one micro-batch to the next? */
static bool holds_gradients(const struct tdm_variant *v)
{
    return is_unsaid(v, "grads");
}

void tdm_change_apply(const struct tdm_variant *base, const struct tdm_change_set *set,
                      struct tdm_variant *changed)
{
    *changed = *base;
    changed->gpus = set->gpus;
    changed->any_host = set->any_host;
    for (size_t r = 0; r < ROWS; r++) {
        if ((set->rows >> r & 1) == 0)
            continue;
        if (!tdm_change_is_batch(r)) {
            changed->choices.said[tdm_change_key(base->method, rows[r].key)] = rows[r].value;
            if (rows[r].also != NULL)
                changed->choices.said[tdm_change_key(base->method, rows[r].also)] =
                    rows[r].also_value;
            continue;
        }
        changed->batch = set->batch;
        if (is_unsaid(base, ACCUMULATION)) {
            snprintf(changed->accumulation, sizeof(changed->accumulation), "%" PRIu64,
                     base->batch / set->batch);
            changed->choices.said[tdm_change_key(base->method, ACCUMULATION)] =
                changed->accumulation;
        }
        if (holds_gradients(base))
            changed->choices.said[tdm_change_key(base->method, "grads")] = "held";
    }
    if (set->pipeline > 0) {
        snprintf(changed->pipeline, sizeof(changed->pipeline), "%" PRIu64, set->pipeline);
        changed->choices.said[tdm_change_key(base->method, "pipeline_model_parallel_size")] =
            changed->pipeline;
    }
}

static struct tdm_remedy_change *append(struct tdm_remedy *remedy, const char *key,
                                        const char *value)
{
    static _Thread_local struct tdm_remedy_change beyond;
    struct tdm_remedy_change *change =
        remedy->count < TDM_REMEDY_CHANGES ? &remedy->changes[remedy->count++] : &beyond;
    change->key = key;
    change->words[0] = '\0';
    snprintf(change->value, sizeof(change->value), "%s", value);
    return change;
}

static void list_number(struct tdm_remedy *remedy, const char *key, uint64_t value,
                        const char *format)
{
    char text[24];
    snprintf(text, sizeof(text), "%" PRIu64, value);
    struct tdm_remedy_change *change = append(remedy, key, text);
    snprintf(change->words, sizeof(change->words), "%s %s", format, text);
}

static void list_batch(const struct tdm_variant *base, uint64_t batch, struct tdm_remedy *remedy)
{
    list_number(remedy, "batch", batch, "--batch");
    char *words = remedy->changes[remedy->count - 1].words;
    size_t used = strlen(words);
    bool by_microbatches = tdm_change_key(base->method, "num_microbatches") < TDM_METHOD_MOST_KEYS;
    snprintf(words + used, sizeof(remedy->changes[0].words) - used, " (%s %" PRIu64 " with %s)",
             by_microbatches ? "--micro-batch-size" : "per_device_train_batch_size", batch,
             by_microbatches ? "more micro-batches" : "gradient_accumulation_steps");
    if (is_unsaid(base, ACCUMULATION)) {
        char steps[24];
        snprintf(steps, sizeof(steps), "%" PRIu64, base->batch / batch);
        append(remedy, ACCUMULATION, steps);
    }
    if (holds_gradients(base))
        append(remedy, "grads", "held");
}

void tdm_change_list(const struct tdm_variant *asked, const struct tdm_variant *base,
                     const struct tdm_change_set *set, struct tdm_remedy *remedy)
{
    char size[TDM_FORMAT_SIZE];
    remedy->count = 0;
    remedy->elsewhere = asked->method != base->method || set->gpus != asked->gpus || set->any_host;
    remedy->effect = remedy->elsewhere ? TDM_EFFECT_MACHINE : TDM_EFFECT_TIME;
    if (asked->method != base->method) {
        struct tdm_remedy_change *change = append(remedy, "method", base->method->name);
        snprintf(change->words, sizeof(change->words), "--method %s", base->method->name);
    }
    if (set->gpus != asked->gpus)
        list_number(remedy, "gpus", set->gpus, "--gpus");
    if (set->pipeline > 0)
        list_number(remedy, "pipeline_model_parallel_size", set->pipeline,
                    "--pipeline-model-parallel-size");
    if (set->any_host) {
        struct tdm_remedy_change *change =
            append(remedy, "host_memory", tdm_format_enough_bytes(remedy->host_peak_bytes, size));
        snprintf(change->words, sizeof(change->words), "--host-memory %s", size);
    }
    for (size_t r = 0; r < ROWS; r++) {
        if ((set->rows >> r & 1) == 0)
            continue;
        if (rows[r].effect > remedy->effect)
            remedy->effect = rows[r].effect;
        if (tdm_change_is_batch(r)) {
            list_batch(base, set->batch, remedy);
            continue;
        }
        struct tdm_remedy_change *change = append(remedy, rows[r].key, rows[r].value);
        snprintf(change->words, sizeof(change->words), "%s", rows[r].words);
        if (rows[r].also != NULL)
            append(remedy, rows[r].also, rows[r].also_value);
    }
}

/* ---- as text ---- */

__attribute__((format(printf, 2, 3))) static void put(char out[TDM_REMEDY_TEXT], const char *format,
                                                      ...)
{
    size_t used = strlen(out);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out + used, TDM_REMEDY_TEXT - used, format, arguments);
    va_end(arguments);
}

static const struct tdm_remedy *first_of(const struct tdm_remedies *remedies, bool of_training)
{
    for (size_t i = 0; i < remedies->count; i++)
        if ((remedies->list[i].effect == TDM_EFFECT_TRAINING) == of_training)
            return &remedies->list[i];
    return NULL;
}

/* Writes the text before the first remedy that does not change what is trained. */
static void put_opening(const struct tdm_remedies *remedies, char out[TDM_REMEDY_TEXT])
{
    const struct tdm_remedy *first = first_of(remedies, false);
    const char *alone = first_of(remedies, true) != NULL ? " and that trains the same" : "";
    if (first != NULL && !first->elsewhere) {
        put(out, "it fits with ");
        return;
    }
    bool tried_all = remedies->complete || remedies->count > 0;
    put(out, "nothing %s%s makes it fit on %" PRIu64 " GPU%s",
        tried_all ? "that this method has" : "tried so far", alone, remedies->gpus,
        remedies->gpus == 1 ? "" : "s");
    if (first != NULL)
        put(out, "; it fits with ");
}

static void put_remedy(const struct tdm_remedy *remedy, char out[TDM_REMEDY_TEXT])
{
    char text[TDM_FORMAT_SIZE];
    for (size_t c = 0; c < remedy->count; c++)
        if (remedy->changes[c].words[0] != '\0')
            put(out, "%s%s", c > 0 ? " and " : "", remedy->changes[c].words);
    put(out, " (%s%s", tdm_format_bytes(remedy->kept_bytes, text),
        remedy->gives_back ? " with cached memory given back" : "");
    if (remedy->host_peak_bytes > 0)
        put(out, ", %s of host memory", tdm_format_bytes(remedy->host_peak_bytes, text));
    put(out, ")");
}

const char *tdm_remedies_text(const struct tdm_remedies *remedies, char out[TDM_REMEDY_TEXT])
{
    char text[TDM_FORMAT_SIZE];
    bool of_training = false;
    out[0] = '\0';
    put_opening(remedies, out);
    for (size_t i = 0; i < remedies->count; i++) {
        const struct tdm_remedy *remedy = &remedies->list[i];
        if (!of_training && remedy->effect == TDM_EFFECT_TRAINING) {
            put(out, "; training otherwise, with ");
            of_training = true;
        } else if (i > 0) {
            put(out, ", with ");
        }
        put_remedy(remedy, out);
    }
    if (remedies->longest_tokens > 0)
        put(out, "; as it is, %s tokens fit", tdm_format_tokens(remedies->longest_tokens, text));
    else if (remedies->count == 0 && remedies->context_alone)
        put(out, ", not with any context");
    else if (remedies->count == 0 && !remedies->complete)
        put(out, ", and no context does");
    else if (remedies->count == 0)
        put(out, ", not with any batch or context, and no more GPUs or other method found does");
    return out;
}
