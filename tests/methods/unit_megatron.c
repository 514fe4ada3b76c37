/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of Megatron-LM's steps: published peaks of ranks that bench/accuracy does not have (its
 * rows are in tests/data/published_runs_recipes.csv), LoRA's sizes by hand, orders that must hold,
 * what is refused, and what is sent. */
#include "methods/prediction.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB 1048576.0
#define MOST_PAIRS 40u

#define SIMUMAX                                                               \
    "sequence_parallel=yes use_distributed_optimizer=yes num_microbatches=4 " \
    "cross_entropy_loss_fusion=yes cross_entropy_fusion_impl=te cp_comm_type=a2a "
#define LEGACY                                                                            \
    "use_distributed_optimizer=yes normalization=LayerNorm bias_swiglu_fusion=old "       \
    "disable_bias_linear=no position_embedding_type=learned_absolute hidden_dropout=0.1 " \
    "attention_backend=flash "
static const struct row {
    const char *machine, *model;
    uint64_t context, batch, tensor, pipeline, parallel;
    const char *pairs;
    double allocated_mib, bound;
} rows[] = {
    /* SimuMax's files (docs/b200) give peaks of every rank in MiB; these are not the highest. */
    {"b200", "llama-3-70b-12-layers", 4096, 1, 1, 2, 1, SIMUMAX "rank=last", 64478.5, 2e-4},
    {"b200", "llama-3-405b-4-layers", 4096, 1, 1, 2, 1, SIMUMAX, 88688.8, 2e-4},
    /* Megatron-LM d98e8a64, the last rank of gpt3_weekly_mcore_tp4_cp2_current_scaling_native_fp8
     * on H100: 425,122,816 bytes from the second step on. */
    {"h100", "gpt-small", 1024, 2, 4, 1, 2,
     "normalization=RMSNorm disable_bias_linear=no gradient_accumulation_fusion=no "
     "position_embedding_type=learned_absolute swiglu=no hidden_dropout=0.1 "
     "use_distributed_optimizer=yes sequence_parallel=yes CUBLAS_WORKSPACE_CONFIG=:4096:8 "
     "rank=last fp8_recipe=tensorwise fp8_param_gather=yes",
     425122816 / MIB, 1e-3},
    /* Megatron-LM pull request 482, tools/get_training_info/README.md: GiB with one digit. */
    {"h800", "gpt-7b-swiglu", 2048, 2, 1, 1, 1, LEGACY "num_microbatches=128", 69.1 * 1024, 6e-3},
    {"h800", "gpt-7b-swiglu", 2048, 4, 8, 1, 1, LEGACY "num_microbatches=32", 28.8 * 1024, 6e-3},
};

#define ROWS (sizeof(rows) / sizeof(rows[0]))

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

static void load(const char *model_name, const char *machine_name, struct tdm_model **model,
                 struct tdm_machine **machine)
{
    char path[4096];
    const char *sources = getenv("TDM_SRCDIR");
    struct tdm_error err;
    sources = sources != NULL ? sources : ".";
    snprintf(path, sizeof(path), "%s/tests/data/configs/%s.json", sources, model_name);
    if (tdm_model_load(path, model, &err) != TDM_OK) /* a shipped model */
        must(tdm_model_load(model_name, model, &err), &err);
    snprintf(path, sizeof(path), "%s/tests/data/machines/%s.json", sources, machine_name);
    must(tdm_machine_load(strcmp(machine_name, "b200") == 0 ? path : machine_name, machine, &err),
         &err);
}

/* Reads settings for 8 GPUs, or as many as tensor ranks, with the row's tensor, context and
 * pipeline ranks. Spaces separate its `pairs`. */
static enum tdm_status settle(const struct tdm_model *model, const struct row *row,
                              struct tdm_method_settings *settings, struct tdm_error *err)
{
    static char text[1024], sizes[3][64];
    const struct tdm_method *method;
    struct tdm_method_choices choices;
    const char *pairs[MOST_PAIRS];
    size_t count = 0;
    snprintf(text, sizeof(text), "%s", row->pairs);
    for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " "))
        pairs[count++] = word;
    static const char *const names[] = {"tensor_model_parallel_size",
                                        "pipeline_model_parallel_size", "context_parallel_size"};
    const uint64_t values[] = {row->tensor, row->pipeline, row->parallel};
    for (unsigned i = 0; i < 3; i++) {
        snprintf(sizes[i], sizeof(sizes[i]), "%s=%u", names[i], (unsigned)values[i]);
        pairs[count++] = sizes[i];
    }
    *settings = (struct tdm_method_settings){.torch = {.tokens = row->context,
                                                       .batch = row->batch,
                                                       .ranks = row->tensor > 8 ? row->tensor : 8}};
    must(tdm_method_find(row->parallel > 1 ? "megatron-cp" : "tensor-parallel", &method, err), err);
    enum tdm_status status = tdm_method_apply(method, pairs, count, settings, &choices, err);
    return status != TDM_OK ? status : tdm_method_check(model, settings, err);
}

static struct tdm_torch_step last_step(const struct row *row)
{
    struct tdm_method_settings settings;
    struct tdm_method_prediction p;
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_error err;
    load(row->model, row->machine, &model, &machine);
    must(settle(model, row, &settings, &err), &err);
    must(tdm_method_predict(model, machine, &settings, 0, &p, &err), &err);
    tdm_model_free(model);
    tdm_machine_free(machine);
    assert_int_equal(p.count, TDM_TORCH_STEPS);
    return p.steps[p.count - 1].torch;
}

static void peaks_are_as_published(void **state)
{
    (void)state;
    for (size_t i = 0; i < ROWS; i++) {
        double mib = (double)last_step(&rows[i]).peak.allocated / MIB;
        double error = mib / rows[i].allocated_mib - 1;
        if (fabs(error) > rows[i].bound)
            fail_msg("row %zu, %s: %.1f MiB, published are %.1f (%+.2f%%)", i, rows[i].model, mib,
                     rows[i].allocated_mib, 100 * error);
    }
}

static uint64_t peak(const char *pairs, uint64_t tensor, uint64_t parallel)
{
    const struct row row = {
        "b200", "llama-3-70b-12-layers", 32768, 1, tensor, 1, parallel, pairs, 0, 0};
    return last_step(&row).peak.allocated;
}

/* More recomputation needs less memory, and so does more division. */
static void orders_hold(void **state)
{
    (void)state;
    uint64_t whole = peak("", 4, 1), mlp = peak("recompute_granularity=selective "
                                                "recompute_modules=mlp",
                                                4, 1);
    uint64_t half = peak("recompute_granularity=full recompute_method=block "
                         "recompute_num_layers=6",
                         4, 1);
    uint64_t full = peak("recompute_granularity=full", 4, 1);
    uint64_t divided = peak("recompute_granularity=full distribute_saved_activations=yes", 4, 1);
    assert_true(mlp < whole && half < whole && full < half && divided < full);
    assert_int_equal(whole, peak("recompute_granularity=full recompute_method=block "
                                 "recompute_num_layers=0",
                                 4, 1));
    assert_int_equal(whole,
                     peak("recompute_granularity=selective recompute_modules=layernorm", 4, 1));
    assert_true(peak("sequence_parallel=yes", 4, 1) < whole);
    static const char *const kinds[] = {"use_distributed_optimizer=yes cp_comm_type=p2p",
                                        "use_distributed_optimizer=yes cp_comm_type=all_gather",
                                        "use_distributed_optimizer=yes cp_comm_type=a2a",
                                        "use_distributed_optimizer=yes cp_comm_type=a2a+p2p"};
    for (unsigned i = 0; i < 4; i++)
        assert_true(peak(kinds[i], 2, 4) < peak(kinds[i], 2, 2));
}

/* Micro-batches beyond those that fill the pipeline change nothing. They are not all run. */
static void steady_state_repeats(void **state)
{
    static const char *const pairs[][2] = {
        {"num_microbatches=5 rank=first", "num_microbatches=512 rank=first"},
        {"num_microbatches=2 rank=last", "num_microbatches=512 rank=last"},
        {"num_microbatches=8 num_layers_per_virtual_pipeline_stage=1",
         "num_microbatches=512 num_layers_per_virtual_pipeline_stage=1"}};
    (void)state;
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        struct row few = {"b200", "llama-3-70b-12-layers", 4096, 1, 2, 4, 1, pairs[i][0], 0, 0};
        struct row many = few;
        many.pairs = pairs[i][1];
        assert_int_equal(last_step(&few).peak.allocated, last_step(&many).peak.allocated);
    }
}

/* A pipeline needs what its first or its last stage needs. A short pipeline of few layers has its
 * peak at the head; one of many micro-batches and checkpoints at the first stage. */
static void the_higher_end_is_predicted(void **state)
{
    static const struct {
        const char *model;
        uint64_t context, stages;
        const char *pairs;
        bool last;
    } cases[] = {
        {"deepseek-v2-4-layers", 4096, 2, "expert_model_parallel_size=4", true},
        {"llama-3-70b-12-layers", 4096, 2, "", false},
        {"llama-3-70b-12-layers", 4096, 4, "num_layers_per_virtual_pipeline_stage=1", false},
        {"llama-3-70b-12-layers", 1024, 4, "recompute_granularity=full", true}};
    struct tdm_error err;
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        static const char *const ranks[] = {"first", "last", "highest"};
        uint64_t used[3], needs[3];
        for (unsigned k = 0; k < 3; k++) {
            char pairs[128];
            struct row row = {
                "b200", cases[i].model, cases[i].context, 1, 1, cases[i].stages, 1, pairs, 0, 0};
            struct tdm_method_settings settings;
            struct tdm_method_prediction p;
            struct tdm_model *model;
            struct tdm_machine *machine;
            snprintf(pairs, sizeof(pairs), "%s rank=%s", cases[i].pairs, ranks[k]);
            load(row.model, row.machine, &model, &machine);
            must(settle(model, &row, &settings, &err), &err);
            must(tdm_method_predict(model, machine, &settings, 0, &p, &err), &err);
            assert_int_equal(p.run == TDM_RUN_LAST, k == 1 || (k == 2 && cases[i].last));
            used[k] = tdm_method_peak_bytes(&p);
            p.fits_device = false; /* as on a smaller device */
            must(tdm_method_need(model, machine, &settings, &p, &err), &err);
            needs[k] = tdm_method_peak_bytes(&p);
            tdm_model_free(model);
            tdm_machine_free(machine);
        }
        assert_true(used[0] != used[1]);
        assert_int_equal(used[2], used[0] > used[1] ? used[0] : used[1]);
        assert_int_equal(needs[2], needs[0] > needs[1] ? needs[0] : needs[1]);
    }
}

/* Micro-batches that a chunk takes in a row are in flight at once (schedules.py
 * get_pp_rank_microbatches): the last of four stages of three chunks of a layer warms up with two
 * of three chunks of each group, so one more in a row is two layers more. */
static void groups_of_microbatches_may_be_larger(void **state)
{
    static const char *const pairs[] = {
        "rank=last num_layers_per_virtual_pipeline_stage=1 num_microbatches=40",
        "rank=last num_layers_per_virtual_pipeline_stage=1 num_microbatches=40 "
        "microbatch_group_size_per_vp_stage=4",
        "rank=last num_layers_per_virtual_pipeline_stage=1 num_microbatches=40 "
        "microbatch_group_size_per_vp_stage=5"};
    uint64_t bytes[3], one;
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct row row = {"b200", "llama-3-70b-12-layers", 4096, 1, 1, 4, 1, pairs[i], 0, 0};
        bytes[i] = last_step(&row).peak.allocated;
    }
    assert_int_equal(bytes[0], bytes[1]);
    struct row full = {"b200", "llama-3-70b-12-layers",         4096, 1, 1, 4,
                       1,      "rank=first num_microbatches=1", 0,    0};
    one = last_step(&full).categories[TDM_METHOD_RESIDUALS] / 3; /* of a layer */
    /* its input and output, which are messages, come to it */
    assert_in_range(bytes[2] - bytes[1], 2 * one, 2 * one + one / 4);
}

/* Of 64 heads and 8 KV heads of 128 and an MLP of 28,672, 16 ranks have half of what 8 have, of
 * each token and layer: q and the output, of 8,192 numbers each, 64 log-sum-exps in fp32, 57,344
 * inputs of SwiGLU and 28,672 outputs; but each has one K and one V of 128. */
static void ranks_share_kv_heads(void **state)
{
    const uint64_t halved = 2 * 8192 * 2 + 64 * 4 + 57344 * 2 + 28672 * 2, tokens = 32768;
    uint64_t residuals[2], weights[2];
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        const struct row row = {"b200", "llama-3-70b-12-layers", tokens, 1, 8u << i, 1, 1, "", 0,
                                0};
        const struct tdm_torch_step step = last_step(&row);
        residuals[i] = step.categories[TDM_METHOD_RESIDUALS];
        weights[i] = step.categories[TDM_METHOD_WEIGHTS];
    }
    assert_int_equal(residuals[0] - residuals[1], 12 * tokens * halved / 16);
    /* All but norms is divided, q, k and v too: 10,240 x 8,192, o, gate, up and down. */
    const uint64_t layer = 8192 * (10240 + 8192 + 3 * UINT64_C(28672));
    assert_true(weights[0] - weights[1] >= 2 * 12 * layer / 16);
}

static void impossible_is_refused(void **state)
{
    static const struct row bad[] = {
        {.tensor = 12, .pipeline = 1, .parallel = 1, .pairs = ""}, /* KV heads */
        {.tensor = 3, .pipeline = 1, .parallel = 1, .pairs = ""},
        {.tensor = 1, .pipeline = 8, .parallel = 1, .pairs = ""}, /* layers */
        {.tensor = 2, .pipeline = 1, .parallel = 1, .pairs = "distribute_saved_activations=yes"},
        {.tensor = 2,
         .pipeline = 1,
         .parallel = 1,
         .pairs = "recompute_granularity=full distribute_saved_activations=yes "
                  "sequence_parallel=yes"},
        {.tensor = 1, .pipeline = 1, .parallel = 1, .pairs = "recompute_modules=everything"},
        {.tensor = 1,
         .pipeline = 1,
         .parallel = 1,
         .pairs = "num_layers_per_virtual_pipeline_stage=1"},
        {.tensor = 1,
         .pipeline = 2,
         .parallel = 1,
         .pairs = "num_layers_per_virtual_pipeline_stage=1 num_microbatches=3"},
        {.tensor = 2, .pipeline = 1, .parallel = 4, .pairs = "", .context = 4100},
        {.tensor = 2,
         .pipeline = 1,
         .parallel = 1,
         .pairs = "recompute_granularity=full recompute_num_layers=0"},
        {.tensor = 4,
         .pipeline = 1,
         .parallel = 2,
         .pairs = "hierarchical_context_parallel_sizes=2"},
        {.tensor = 4, .pipeline = 1, .parallel = 1, .pairs = "lora_rank=6"},
        {.tensor = 4, .pipeline = 1, .parallel = 1, .pairs = "lora_rank=8 lora_targets=q_proj"},
        {.tensor = 4,
         .pipeline = 1,
         .parallel = 1,
         .pairs = "sequence_parallel=yes sequence_parallel_input_regather=yes"},
        {.tensor = 4,
         .pipeline = 1,
         .parallel = 1,
         .pairs = "optimizer=muon use_distributed_optimizer=yes"},
    };
    struct tdm_method_settings settings;
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_error err;
    (void)state;
    load("llama-3-70b-12-layers", "h100", &model, &machine);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct row row = bad[i];
        row.context = row.context > 0 ? row.context : 4096;
        row.batch = 1;
        if (settle(model, &row, &settings, &err) != TDM_USAGE)
            fail_msg("row %zu is not refused", i);
    }
    tdm_model_free(model);
    tdm_machine_free(machine);
}

/* Packed sequences are one row of tokens. Beside that, angles are those of the longest sequence,
 * 128 numbers of 4 bytes a token on every context rank. */
static void packed_sequences_are_one_row(void **state)
{
    (void)state;
    static const char common[] = "qkv_format=thd use_distributed_optimizer=yes ";
    char pairs[128];
    const struct row two = {"b200", "llama-3-70b-12-layers", 16384, 2, 1, 1, 4, common, 0, 0};
    struct row one = two;
    one.context = 32768;
    one.batch = 1;
    one.pairs = pairs;
    snprintf(pairs, sizeof(pairs), "%smax_seqlen_q=16K", common);
    uint64_t halves = last_step(&one).peak.allocated;
    assert_int_equal(last_step(&two).peak.allocated, halves);
    snprintf(pairs, sizeof(pairs), "%smax_seqlen_q=4K", common);
    assert_int_equal(halves - last_step(&one).peak.allocated, (16384 - 4096) * 128 * 4);
}

/* 32K tokens with at most 8K a rank: four of the eight ranks, which are packed; 20K: four too. */
static void hybrid_ranks_follow_the_length(void **state)
{
    (void)state;
    static const char hybrid[] = "use_distributed_optimizer=yes hybrid_context_parallel=yes "
                                 "max_seqlen_per_dp_cp_rank=8K";
    struct row by_length = {"b200", "llama-3-70b-12-layers", 32768, 1, 1, 1, 8, hybrid, 0, 0};
    struct row fixed = by_length;
    fixed.parallel = 4;
    fixed.pairs = "use_distributed_optimizer=yes qkv_format=thd";
    assert_int_equal(last_step(&by_length).peak.allocated, last_step(&fixed).peak.allocated);
    by_length.context = fixed.context = 20480;
    assert_int_equal(last_step(&by_length).peak.allocated, last_step(&fixed).peak.allocated);
}

/* Rows of experts: 4,096 tokens x 6 of 160 experts are 154 rows an expert, padded; twice that with
 * a factor of 2; a factor of a half drops rows. */
static void capacity_bounds_experts(void **state)
{
    (void)state;
    struct row row = {"b200", "deepseek-v2-4-layers", 4096, 1, 1, 1, 1, NULL, 0, 0};
    static const char *const pairs[] = {
        "expert_model_parallel_size=8 moe_expert_capacity_factor=0.5",
        "expert_model_parallel_size=8",
        "expert_model_parallel_size=8 moe_pad_expert_input_to_capacity=yes",
        "expert_model_parallel_size=8 moe_pad_expert_input_to_capacity=yes "
        "moe_expert_capacity_factor=1.0",
        "expert_model_parallel_size=8 moe_pad_expert_input_to_capacity=yes "
        "moe_expert_capacity_factor=2"};
    uint64_t peaks[5];
    for (unsigned i = 0; i < 5; i++) {
        row.pairs = pairs[i];
        peaks[i] = last_step(&row).peak.allocated;
    }
    assert_true(peaks[0] < peaks[1] && peaks[1] < peaks[2]);
    assert_int_equal(peaks[2], peaks[3]);
    assert_true(peaks[3] < peaks[4]);
}

struct counting {
    uint64_t bytes;
    uint32_t count; /* of step 2 */
};

static void count_size(void *context, const struct tdm_torch_event *event)
{
    struct counting *counting = context;
    counting->count += event->step == 2 && event->allocated && event->bytes == counting->bytes;
}

/* Allocations of that many bytes in a step of DeepSeek-V2's first 4 layers on two context ranks. */
static uint32_t latent_allocations(const char *exchange, uint64_t bytes)
{
    static const struct tdm_torch_device gpu = {
        {132, 2048, 32 << 20, 1 << 20, 100}, UINT64_C(1) << 42, UINT64_C(1) << 42, 0, false};
    const struct row row = {"b200", "deepseek-v2-4-layers", 8192, 1, 1, 1, 2, exchange, 0, 0};
    struct counting counting = {.bytes = bytes};
    const struct tdm_torch_observer observer = {.event = count_size, .context = &counting};
    struct tdm_method_settings settings;
    struct tdm_torch_run out;
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_error err;
    load(row.model, row.machine, &model, &machine);
    must(settle(model, &row, &settings, &err), &err);
    must(tdm_torch_run(model, &settings, &gpu, 2, &observer, &out, &err), &err);
    tdm_model_free(model);
    tdm_machine_free(machine);
    return counting.count;
}

/* 4,096 tokens a rank, 128 heads, keys of 192 numbers and values of 128. Of each of 4 layers the
 * ring has two buffers of both in the forward, and two for them and their gradients in the
 * backward. Gathered keys and values of 8,192 tokens come and are ordered, in both; gradients of
 * all of them are made and ordered again; the slice that sees all keys makes its own. */
static void latent_values_are_narrower(void **state)
{
    enum { LAYERS = 4, TOKENS = 4096, HEADS = 128 };
    static const char ring[] = "cp_comm_type=p2p expert_model_parallel_size=8 "
                               "use_distributed_optimizer=yes";
    static const char all[] = "cp_comm_type=all_gather expert_model_parallel_size=8 "
                              "use_distributed_optimizer=yes";
    const uint64_t both = UINT64_C(2) * TOKENS * HEADS * (192 + 128);
    (void)state;
    assert_int_equal(latent_allocations(ring, both), latent_allocations(all, both) + 2 * LAYERS);
    assert_int_equal(latent_allocations(ring, 2 * both), 2 * LAYERS);
    const uint64_t keys = UINT64_C(2) * 2 * TOKENS * HEADS * 192,
                   values = UINT64_C(2) * 2 * TOKENS * HEADS * 128;
    assert_int_equal(latent_allocations(all, keys),
                     latent_allocations(ring, keys) + (2 + 2 + 2 + 1) * LAYERS);
    assert_int_equal(latent_allocations(all, values),
                     latent_allocations(ring, values) + (2 + 2 + 2 + 1) * LAYERS);
}

/* A ring of K and V cannot apply a window. Whole sequences of some heads and one GPU can. */
static void windows_meet_no_ring(void **state)
{
    static const struct {
        uint64_t parallel, context;
        const char *pairs;
        enum tdm_status due;
    } cases[] = {
        {4, 8192, "", TDM_USAGE},
        {4, 4096, "", TDM_OK},
        {4, 8192, "cp_comm_type=all_gather", TDM_OK},
        {4, 8192, "cp_comm_type=a2a", TDM_OK},
        {4, 8192, "cp_comm_type=a2a+p2p", TDM_USAGE},
        {4, 8192, "cp_comm_type=a2a+p2p hierarchical_context_parallel_sizes=4,1", TDM_OK},
        {1, 8192, "", TDM_OK},
    };
    struct tdm_method_settings settings;
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_error err;
    (void)state;
    load("mistral-7b-v0.1", "h100", &model, &machine);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct row row = {.tensor = 2,
                                .pipeline = 1,
                                .parallel = cases[i].parallel,
                                .context = cases[i].context,
                                .batch = 1,
                                .pairs = cases[i].pairs};
        if (settle(model, &row, &settings, &err) != cases[i].due)
            fail_msg("case %zu is not as due: %s", i, err.message);
    }
    tdm_model_free(model);
    tdm_machine_free(machine);
}

/* Elements of adapters of rank 16 on one of 4 ranks, by hand: 12 layers of hidden size 8,192, 64
 * and 8 heads of 128, MLP 28,672. A rank has a quarter of both factors. The first factor is divided
 * by its 16 rows, or by its inputs if the module divides them. */
static uint64_t adapter_elements(unsigned modules)
{
    static const uint64_t elements[] = {
        16 / 4 * 8192 + (64 + 16) * 128 / 4 * 16, /* linear_qkv */
        16 * 8192 / 4 + 8192 / 4 * 16,            /* linear_proj */
        16 / 4 * 8192 + 2 * 28672 / 4 * 16,       /* linear_fc1 */
        16 * 28672 / 4 + 8192 / 4 * 16,           /* linear_fc2 */
    };
    uint64_t sum = 0;
    for (unsigned i = 0; i < 4; i++)
        sum += (modules >> i & 1) * elements[i];
    return 12 * sum;
}

/* Frozen weights have no gradient buffer, main parameters or moments. Adapters have all three. */
static void only_adapters_have_states(void **state)
{
    static const struct {
        const char *targets;
        unsigned modules;
    } cases[] = {{"all", 15},
                 {"linear_qkv,linear_proj", 3},
                 {"linear_fc1", 4},
                 {"linear_fc2", 8},
                 {"linear_fc2,linear_proj", 10}};
    /* 12 layers of four products and two norms, embedding and head of 128,512 rows, a norm. */
    const uint64_t layer = (2 * 8192 + 2048) * 8192 / 4 + 3 * 8192 * 28672 / 4 + 2 * 8192;
    const uint64_t frozen = 12 * layer + 2 * 128512 / 4 * 8192 + 8192;
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char pairs[128];
        uint64_t trained = adapter_elements(cases[i].modules);
        snprintf(pairs, sizeof(pairs), "lora_rank=16 sequence_parallel=yes lora_targets=%s",
                 cases[i].targets);
        struct row row = {"b200", "llama-3-70b-12-layers", 4096, 1, 4, 1, 1, pairs, 0, 0};
        struct tdm_torch_step step = last_step(&row);
        assert_int_equal(step.categories[TDM_METHOD_WEIGHTS], 2 * (frozen + trained));
        assert_int_equal(step.categories[TDM_METHOD_OPTIMIZER], 3 * 4 * trained);
        /* The first step creates placeholder gradients of every shape. The rest of a segment stays
         * with its block if it is smaller than 1 MiB. */
        uint64_t gradients = step.categories[TDM_METHOD_GRADIENTS];
        if (gradients < 4 * trained || gradients > 4 * trained + 2 * trained / 12 + (1u << 20))
            fail_msg("%s: %.0f bytes of gradients of %.0f elements", cases[i].targets,
                     (double)gradients, (double)trained);
    }
}

/* Muon has one state of the matrices of layers, where Adam has two; of embedding, head and norms it
 * is Adam. Rank 0 of four has a quarter of each matrix. */
static void muon_has_one_state(void **state)
{
    const uint64_t matrices =
        12 * ((2 * UINT64_C(8192) + 2048) * 8192 / 4 + 3 * UINT64_C(8192) * 28672 / 4);
    const struct row adam = {"b200", "llama-3-70b-12-layers", 4096, 1, 4, 1,
                             1,      "sequence_parallel=yes", 0,    0},
                     muon = {"b200", "llama-3-70b-12-layers",
                             4096,   1,
                             4,      1,
                             1,      "sequence_parallel=yes optimizer=muon",
                             0,      0};
    const struct tdm_torch_step a = last_step(&adam), m = last_step(&muon);
    (void)state;
    assert_int_equal(a.before_bytes - m.before_bytes, 4 * matrices);
    /* The matrix of all ranks twice in fp32 and once in bf16. */
    assert_true(m.highest_bytes[TDM_PHASE_OPTIMIZER] - m.end_bytes[TDM_PHASE_BACKWARD] >=
                (4 + 4 + 2) * UINT64_C(2) * 8192 * 28672);
}

/* Inputs of column-parallel adapters are kept whole, beside the part that the norm's function
 * saved. If they are gathered again, only that part is kept. Megatron-Bridge measured the
 * difference on Qwen3-8B with two GPUs and 8,192 tokens: 4.731 GB. This is 72 times 64 MiB, less
 * the buffer of 64 MiB into which they are gathered, less 32 MiB. */
static void gathered_inputs_go(void **state)
{
    static const char with[] = "lora_rank=32 sequence_parallel=yes use_distributed_optimizer=yes "
                               "cross_entropy_loss_fusion=yes";
    static const char again[] = "lora_rank=32 sequence_parallel=yes use_distributed_optimizer=yes "
                                "cross_entropy_loss_fusion=yes "
                                "sequence_parallel_input_regather=yes";
    uint64_t peaks[2];
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct row row = {"h100", "qwen3-8b", 8192, 1, 2, 1, 1, i == 0 ? with : again, 0, 0};
        peaks[i] = last_step(&row).peak.allocated;
    }
    assert_true(fabs((double)(peaks[0] - peaks[1]) - 4.731e9) < 0.5e6);
    /* Inputs of layers that are recomputed whole are not gathered again beside that. */
    assert_int_equal(peak("lora_rank=16 sequence_parallel=yes recompute_granularity=full", 4, 1),
                     peak("lora_rank=16 sequence_parallel=yes recompute_granularity=full "
                          "sequence_parallel_input_regather=yes",
                          4, 1));
}

/* Adapters need less memory than training everything. Full recomputation reaches them although the
 * embedding is frozen. */
static void adapters_are_recomputed(void **state)
{
    (void)state;
    uint64_t whole = peak("lora_rank=16", 4, 1), all = peak("", 4, 1);
    uint64_t full = peak("lora_rank=16 recompute_granularity=full", 4, 1);
    uint64_t mlp = peak("lora_rank=16 recompute_granularity=selective recompute_modules=mlp", 4, 1);
    assert_true(whole < all && mlp < whole && full < mlp);
    assert_true(peak("lora_rank=16 lora_targets=linear_fc2", 4, 1) < whole);
    /* At its backward a recomputed layer is in memory, beside its inputs. */
    struct row row = {"b200", "llama-3-70b-12-layers",
                      32768,  1,
                      4,      1,
                      1,      "lora_rank=16 recompute_granularity=full recompute_num_layers=12",
                      0,      0};
    struct tdm_torch_step step = last_step(&row);
    assert_true(step.categories[TDM_METHOD_RESIDUALS] > 10 * UINT64_C(32768) * 8192 * 2);
}

/* Elements of the products of a layer on one of 4 ranks: q, k, v and their output of 8,192, 64 and
 * 8 heads of 128, and three matrices of the MLP. */
static const uint64_t product_elements =
    (2 * 8192 + 2 * 1024) * UINT64_C(8192) / 4 + 3 * UINT64_C(8192) * 28672 / 4;

/* Blocks may keep a rest of up to 1 MiB, and scales take 512 bytes each. */
static void about(uint64_t found, uint64_t due, unsigned tensors)
{
    if (found < due || found > due + tensors * UINT64_C(512) + (4u << 20))
        fail_msg("%.0f bytes, due are %.0f", (double)found, (double)due);
}

/* Beside its bf16 weight a module keeps one of 8 bits, and on Hopper its transpose. Without a bf16
 * one they are as much on Hopper, and half on Blackwell. Two layers of 12 may stay in bf16. */
static void weights_have_copies_of_8_bits(void **state)
{
    static const char recipe[] = "use_distributed_optimizer=yes fp8_recipe=tensorwise ";
    static const struct {
        const char *machine, *pairs;
        unsigned layers, bytes; /* with products of 8 bits; bytes an element of these products */
    } cases[] = {
        {"h100", "", 12, 4},
        {"b200", "", 12, 3},
        {"h100", "fp8_param_gather=yes", 12, 2},
        {"b200", "fp8_param_gather=yes", 12, 1},
        {"b200", "fp8_param_gather=yes first_last_layers_bf16=yes", 10, 1},
        {"h100", "first_last_layers_bf16=yes num_layers_at_end_in_bf16=3", 8, 4},
    };
    /* Embedding and head of 128,512 rows, and norms. */
    const uint64_t others = 2 * 128512 / 4 * UINT64_C(8192) + (2 * 12 + 1) * 8192;
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char pairs[256];
        snprintf(pairs, sizeof(pairs), "%s%s", recipe, cases[i].pairs);
        const struct row row = {
            cases[i].machine, "llama-3-70b-12-layers", 1024, 1, 4, 1, 1, pairs, 0, 0};
        const struct tdm_torch_step step = last_step(&row);
        uint64_t due = 2 * others + product_elements * (cases[i].bytes * cases[i].layers +
                                                        2 * (12 - cases[i].layers));
        about(step.categories[TDM_METHOD_WEIGHTS], due, 4 * 12);
    }
}

/* What a forward keeps: the inputs of qkv, fc1 and fc2 have 8 bits in place of 16. The input of the
 * output projection is the output that attention keeps: current scaling quantizes it again in the
 * backward, delayed scaling keeps 8 bits beside it. */
static void inputs_are_kept_in_8_bits(void **state)
{
    const uint64_t rows = 2048;
    const struct {
        const char *pairs, *recipe;
        uint64_t saved; /* bytes of a layer on one of 4 ranks */
    } cases[] = {
        {"", " fp8_recipe=tensorwise", rows * (8192 + 8192 + 28672 / 4)},
        {"", " fp8_recipe=delayed", rows * (8192 + 8192 + 28672 / 4 - 8192 / 4)},
        /* Ranks keep their rows of what norms make. */
        {"sequence_parallel=yes", " fp8_recipe=tensorwise",
         rows / 4 * (8192 + 8192) + rows * (28672 / 4)},
    };
    (void)state;
    for (unsigned m = 0; m < 2; m++)
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            char pairs[128];
            struct row row = {m == 0 ? "h100" : "b200",
                              "llama-3-70b-12-layers",
                              rows,
                              1,
                              4,
                              1,
                              1,
                              cases[i].pairs,
                              0,
                              0};
            const struct tdm_torch_step a = last_step(&row);
            snprintf(pairs, sizeof(pairs), "%s%s", cases[i].pairs, cases[i].recipe);
            row.pairs = pairs;
            const struct tdm_torch_step b = last_step(&row);
            uint64_t kept = a.end_bytes[0] - a.before_bytes, less = b.end_bytes[0] - b.before_bytes;
            about(less, kept - 12 * cases[i].saved, 4 * 12);
        }
}

/* Scales of blocks lie beside rows and columns, which are both there: of weights fp32
 * for 128 x 128 numbers, of inputs, of which columns are kept, fp32 for 128; with mxfp8 a byte for
 * 32 numbers of either. */
static void blocks_have_scales(void **state)
{
    static const char *const cards[] = {"h100", "b200"}, *const recipes[] = {"blockwise", "mxfp8"};
    const uint64_t rows = 2048;
    (void)state;
    for (unsigned c = 0; c < 4; c++)
        for (unsigned r = 0; r < 2; r++) {
            const unsigned card = c / 2;
            if (card == 0 && r == 1)
                continue;                    /* a Hopper GPU has no mxfp8 */
            const bool divided = c % 2 != 0; /* ranks keep their rows of what norms make */
            const uint64_t saved = rows * ((8192 + 8192) / (divided ? 4 : 1) + 28672 / 4);
            const char *with = divided ? "sequence_parallel=yes" : "";
            char pairs[128];
            struct row row = {cards[card], "llama-3-70b-12-layers", rows, 1, 4, 1, 1, with, 0, 0};
            const struct tdm_torch_step a = last_step(&row);
            snprintf(pairs, sizeof(pairs), "%s fp8_recipe=%s", with, recipes[r]);
            row.pairs = pairs;
            const struct tdm_torch_step b = last_step(&row);
            const uint64_t scales = r == 0 ? saved / 128 * 4 : saved / 32,
                           of_weights = r == 0 ? product_elements / 128 / 128 * 4 * 2
                                               : product_elements / 32 * 2;
            about(b.end_bytes[0] - b.before_bytes,
                  a.end_bytes[0] - a.before_bytes - 12 * (saved - scales), 8 * 12);
            const uint64_t due = 12 * (2 * product_elements + of_weights),
                           more =
                               b.categories[TDM_METHOD_WEIGHTS] - a.categories[TDM_METHOD_WEIGHTS];
            assert_in_range(more, due, due + 12 * (2u << 20)); /* scales are of some MiB */
        }
}

static void products_of_8_bits_are_refused(void **state)
{
    static const struct row bad[] = {
        {.context = 4096, .tensor = 4, .pairs = "fp8_recipe=delayed first_last_layers_bf16=yes"},
        {.context = 4096, .tensor = 4, .pairs = "fp8_recipe=delayed fp8_param_gather=yes"},
        {.context = 4096, .tensor = 4, .pairs = "fp8_recipe=tensorwise lora_rank=8"},
        {.context = 4100, .tensor = 4, .pairs = "fp8_recipe=tensorwise"},
        {.context = 4112, .tensor = 4, .pairs = "fp8_recipe=mxfp8"},
        {.context = 4160, .tensor = 4, .pairs = "fp8_recipe=blockwise sequence_parallel=yes"},
        {.context = 4096,
         .tensor = 4,
         .pairs = "fp8_recipe=blockwise use_distributed_optimizer=yes fp8_param_gather=yes"},
    };
    struct tdm_method_settings settings;
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_error err;
    (void)state;
    load("llama-3-70b-12-layers", "h100", &model, &machine);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct row row = bad[i];
        row.batch = row.pipeline = row.parallel = 1;
        if (settle(model, &row, &settings, &err) != TDM_USAGE)
            fail_msg("row %zu is not refused", i);
    }
    tdm_model_free(model);
    tdm_machine_free(machine);
}

/* Counts by hand the bytes that context parallelism sends, for 12 layers of 8 KV and 64 query heads
 * of 128 in bf16, with 8,192 tokens per rank and four ranks. */
static void sent_bytes_are_counted(void **state)
{
    const double kv = 2.0 * 8192 * 8 * 128 * 2, qo = 2.0 * 8192 * 64 * 128 * 2;
    const struct {
        const char *pairs;
        double sent, exposed;
    } kinds[] = {{"cp_comm_type=p2p", 12 * 3 * 3 * kv, 0},
                 {"cp_comm_type=all_gather", 0, 12 * 3 * 3 * kv},
                 {"cp_comm_type=a2a", 0, 12 * 0.75 * 2 * (qo + kv)},
                 {"cp_comm_type=a2a+p2p", 12 * 3 * kv, 12 * 0.5 * 2 * (qo + kv)}};
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_method_settings settings;
    struct tdm_method_cost cost, base;
    struct tdm_error err;
    (void)state;
    load("llama-3-70b-12-layers", "h100", &model, &machine);
    /* Gradients are reduced over data and context ranks, which are 8 in both cases. */
    struct row row = {.tensor = 1, .pipeline = 1, .parallel = 1, .context = 8192, .batch = 1};
    row.pairs = "";
    must(settle(model, &row, &settings, &err), &err);
    settings.method->cost(model, &settings, &base);
    row.parallel = 4;
    row.context = 32768;
    for (unsigned i = 0; i < 4; i++) {
        row.pairs = kinds[i].pairs;
        must(settle(model, &row, &settings, &err), &err);
        settings.method->cost(model, &settings, &cost);
        double sent = tdm_method_sent_bytes(&cost), exposed = tdm_traffic_bytes(&cost.exposed);
        assert_true(fabs(sent - exposed - kinds[i].sent) < 1);
        assert_true(fabs(exposed - tdm_traffic_bytes(&base.exposed) - kinds[i].exposed) < 1e3);
        assert_true(fabs(cost.product_flops / base.product_flops - 1) < 1e-9);
    }
    tdm_model_free(model);
    tdm_machine_free(machine);
}

/* Layers of the first and of the last stage of 28 layers, as get_num_layers_to_build counts them:
 * those that are not said share what the others leave. 0: refused. */
static void stages_may_be_uneven(void **state)
{
    static const struct {
        uint64_t stages, first, last;
        const char *pairs[2];
    } cases[] = {
        {4, 7, 7, {NULL}},
        {4, 8, 4, {"decoder_last_pipeline_num_layers=4"}}, /* (28 - 4) / 3 */
        {4, 1, 9, {"decoder_first_pipeline_num_layers=1"}},
        {4, 0, 0, {"decoder_first_pipeline_num_layers=3"}},
        {4, 4, 8, {"decoder_first_pipeline_num_layers=4", "decoder_last_pipeline_num_layers=8"}},
        {2,
         10,
         18,
         {"decoder_first_pipeline_num_layers=10", "decoder_last_pipeline_num_layers=18"}},
        {2, 0, 0, {"decoder_first_pipeline_num_layers=10", "decoder_last_pipeline_num_layers=17"}},
        {1, 28, 28, {"decoder_first_pipeline_num_layers=10"}}, /* without a pipeline */
        {5, 0, 0, {NULL}},
        {4,
         0,
         0,
         {"decoder_last_pipeline_num_layers=4", "num_layers_per_virtual_pipeline_stage=2"}},
    };
    const struct tdm_method *method;
    struct tdm_model *model;
    struct tdm_error err;
    (void)state;
    must(tdm_method_find("tensor-parallel", &method, &err), &err);
    must(tdm_model_load("qwen2.5-7b", &model, &err), &err);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (unsigned last = 0; last < 2; last++) {
            char stages[48];
            const char *pairs[5] = {stages, "tensor_model_parallel_size=1",
                                    last ? "rank=last" : "rank=first"};
            size_t count = 3;
            for (unsigned k = 0; k < 2 && cases[i].pairs[k] != NULL; k++)
                pairs[count++] = cases[i].pairs[k];
            snprintf(stages, sizeof(stages), "pipeline_model_parallel_size=%d",
                     (int)cases[i].stages);
            struct tdm_method_settings settings = {
                .torch = {.tokens = 1024, .batch = 1, .ranks = cases[i].stages}};
            struct tdm_method_choices choices;
            struct tdm_megatron_layout layout;
            uint64_t layers = last ? cases[i].last : cases[i].first;
            must(tdm_method_apply(method, pairs, count, &settings, &choices, &err), &err);
            enum tdm_status status = tdm_megatron_layout(model, &settings, &layout, &err);
            assert_int_equal(status, layers > 0 ? TDM_OK : TDM_USAGE);
            if (layers > 0)
                assert_int_equal(layout.layers[0], layers);
        }
    tdm_model_free(model);
}

/* Experts with products of 8 bits have a byte more for each weight, on a GPU that takes operands in
 * either order, as attention has, and keep less of a forward. */
static void experts_take_8_bits(void **state)
{
    struct row row = {"b200", "qwen3-30b-a3b", 4096, 1, 1, 1, 1, "expert_model_parallel_size=8", 0,
                      0};
    const struct tdm_torch_step wide = last_step(&row);
    const double attention = 2048. * 128 * (32 + 2 * 4) + 4096. * 2048,
                 experts = 128. / 8 * 3 * 2048 * 768, weights = 48 * (attention + experts);
    (void)state;
    row.pairs = "expert_model_parallel_size=8 fp8_recipe=tensorwise";
    const struct tdm_torch_step narrow = last_step(&row);
    const double more = (double)narrow.before_bytes - (double)wide.before_bytes;
    assert_true(more >= weights && more < 1.12 * weights); /* blocks that are not split */
    assert_true(narrow.end_bytes[TDM_PHASE_FORWARD] - narrow.before_bytes <
                wide.end_bytes[TDM_PHASE_FORWARD] - wide.before_bytes);
    /* Latent attention beside them. */
    row.model = "deepseek-v2-lite";
    const struct tdm_torch_step latent = last_step(&row);
    row.pairs = "expert_model_parallel_size=8";
    const struct tdm_torch_step plain = last_step(&row);
    /* 64 experts in 26 layers; and all else of 2.0e9 parameters, but head and embedding */
    const double bytes = (double)latent.before_bytes - (double)plain.before_bytes;
    const double own = 26. * 64 / 8 * 3 * 2048 * 1408;
    assert_true(bytes > own + 0.6e9 && bytes < 1.15 * (own + 1.2e9));
    assert_true(latent.end_bytes[TDM_PHASE_FORWARD] - latent.before_bytes <
                plain.end_bytes[TDM_PHASE_FORWARD] - plain.before_bytes);
}

/* Layers of Mamba-2 on several context ranks scan some heads of all tokens; their products may have
 * 8 bits, of which each weight has one more byte. */
static void hybrids_are_divided(void **state)
{
    struct row row = {"b200", "nemotron-h-8b", 4096, 1, 1, 1, 1, "", 0, 0};
    const struct tdm_torch_step one = last_step(&row);
    struct tdm_torch_step other;
    (void)state;
    row.pairs = "fp8_recipe=tensorwise";
    other = last_step(&row);
    const double bytes = (double)other.before_bytes - (double)one.before_bytes;
    assert_true(bytes > 6e9 && bytes < 8.2e9); /* 8.1e9 parameters, ends among them */
    uint64_t kept = one.end_bytes[TDM_PHASE_FORWARD] - one.before_bytes;
    row.pairs = "";
    for (row.parallel = 2; row.parallel <= 8; row.parallel *= 2) {
        other = last_step(&row);
        assert_true(other.end_bytes[TDM_PHASE_FORWARD] - other.before_bytes < kept);
        kept = other.end_bytes[TDM_PHASE_FORWARD] - other.before_bytes;
    }
}

/* Families whose norms, biases, activation and positions are settings of Megatron-Core have the
 * weights that transformers gives them, and what differs from a Llama takes what it should. */
static void families_have_their_weights(void **state)
{
    static const char *const names[] = {"gpt2-xl",    "starcoder2-7b",    "gemma-7b",
                                        "gemma-3-4b", "nemotron-mini-4b", "internlm2.5-7b",
                                        "phi-4",      "glm-4-9b",         "ernie-4.5-0.3b",
                                        "qwen3-4b",   "olmo-7b"};
    unsigned known = 0;
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const struct row row = {
            "b200", names[i], 1024, 1, 1, 1, 1, "make_vocab_size_divisible_by=1", 0, 0};
        struct tdm_method_settings settings;
        struct tdm_method_prediction p;
        struct tdm_model *model;
        struct tdm_machine *machine;
        struct tdm_error err;
        load(row.model, row.machine, &model, &machine);
        if (settle(model, &row, &settings, &err) == TDM_OK) {
            must(tdm_method_predict(model, machine, &settings, 0, &p, &err), &err);
            assert_int_equal(p.parameters_bytes, 2 * model->parameters);
            known++;
        } else {
            assert_string_equal(names[i], "olmo-7b"); /* whose norms have no weights */
        }
        tdm_model_free(model);
        tdm_machine_free(machine);
    }
    assert_int_equal(known, sizeof(names) / sizeof(names[0]) - 1);
}

/* A mixture that runs again keeps its normed input alone, shared experts by themselves less. */
static void mixtures_run_again(void **state)
{
    struct row row = {"b200", "deepseek-v2-4-layers",         4096, 1, 1, 1,
                      1,      "expert_model_parallel_size=8", 0,    0};
    static const char *const modules[] = {"shared_experts", "layernorm", "moe_act", "moe"};
    uint64_t before = last_step(&row).end_bytes[TDM_PHASE_FORWARD];
    (void)state;
    for (size_t i = 0; i < sizeof(modules) / sizeof(modules[0]); i++) {
        char pairs[160];
        snprintf(pairs, sizeof(pairs),
                 "expert_model_parallel_size=8 recompute_granularity=selective "
                 "recompute_modules=%s",
                 modules[i]);
        row.pairs = pairs;
        const uint64_t kept = last_step(&row).end_bytes[TDM_PHASE_FORWARD];
        assert_true(kept < before);
        before = i < 2 ? before : kept; /* the first two keep less than others do */
    }
}

/* Of 28 layers in four stages. get_num_layers_to_build divides 28 layers and the ends that count;
 * a layout names them stage by stage, virtual ones in turn. */
static void virtual_stages_have_their_layers(void **state)
{
    static const struct {
        const char *pairs, *rank;
        uint32_t chunks, layers[3], offsets[3];
    } cases[] = {
        {"account_for_embedding_in_pipeline_split=yes account_for_loss_in_pipeline_split=yes",
         "first",
         0,
         {0},
         {0}}, /* 30 layers are not divided */
        {"decoder_first_pipeline_num_layers=4 decoder_last_pipeline_num_layers=8 "
         "num_virtual_stages_per_pipeline_rank=2",
         "first",
         2,
         {2, 2},
         {0, 14}}, /* 2 + 4 + 4 + 4 */
        {"decoder_first_pipeline_num_layers=4 decoder_last_pipeline_num_layers=8 "
         "num_virtual_stages_per_pipeline_rank=2",
         "last",
         2,
         {4, 4},
         {10, 24}},
        {"decoder_first_pipeline_num_layers=4 decoder_last_pipeline_num_layers=8 "
         "num_virtual_stages_per_pipeline_rank=2",
         "between",
         2,
         {4, 4},
         {2, 16}},
        {"decoder_first_pipeline_num_layers=4 num_virtual_stages_per_pipeline_rank=3",
         "first",
         0,
         {0},
         {0}},
        {"pipeline_model_parallel_layout=Et*5|(t*8|)*2,t*7,L", "first", 1, {5}, {0}},
        {"pipeline_model_parallel_layout=Et*5|(t*8|)*2,t*7,L", "between", 1, {8}, {5}},
        {"pipeline_model_parallel_layout=Et*5|(t*8|)*2,t*7,L", "last", 1, {7}, {21}},
        {"pipeline_model_parallel_layout=Et|(ttt|)*9|L", "last", 3, {3, 3, 0}, {7, 19, 28}},
        {"pipeline_model_parallel_layout=Et|(ttt|)*9|L", "first", 3, {1, 3, 3}, {0, 10, 22}},
        {"pipeline_model_parallel_layout=Et|(ttt|)*9L", "first", 0, {0}, {0}}, /* 11 stages */
        {"pipeline_model_parallel_layout=t*28|||L", "first", 0, {0}, {0}},
        {"pipeline_model_parallel_layout=Et*28|||mL", "first", 0, {0}, {0}},
        {"pipeline_model_parallel_layout=Et*28|||L "
         "num_virtual_stages_per_pipeline_rank=2",
         "first",
         0,
         {0},
         {0}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char pairs[256];
        const struct row row = {"b200", "qwen2.5-7b", 1024, 1, 1, 4, 1, pairs, 0, 0};
        struct tdm_method_settings settings;
        struct tdm_megatron_layout layout;
        struct tdm_model *model;
        struct tdm_machine *machine;
        struct tdm_error err;
        snprintf(pairs, sizeof(pairs), "%s rank=%s", cases[i].pairs, cases[i].rank);
        load(row.model, row.machine, &model, &machine);
        enum tdm_status status = settle(model, &row, &settings, &err);
        if (status == TDM_OK)
            status = tdm_megatron_layout(model, &settings, &layout, &err);
        assert_int_equal(status, cases[i].chunks > 0 ? TDM_OK : TDM_USAGE);
        for (uint32_t c = 0; c < cases[i].chunks; c++) {
            assert_int_equal(layout.chunks, cases[i].chunks);
            assert_int_equal(layout.layers[c], cases[i].layers[c]);
            assert_int_equal(layout.offsets[c], cases[i].offsets[c]);
        }
        tdm_model_free(model);
        tdm_machine_free(machine);
    }
}

/* An even layout is what Megatron-LM does without one, and a middle stage with more layers than the
 * first has the highest peak. */
static void layouts_are_run(void **state)
{
    const struct row even = {"b200", "llama-3-70b-12-layers",
                             4096,   1,
                             1,      4,
                             1,      "num_layers_per_virtual_pipeline_stage=1 rank=first",
                             0,      0};
    struct row other = even;
    (void)state;
    other.pairs = "pipeline_model_parallel_layout=E(t|)*11tL rank=first";
    const uint64_t said = last_step(&other).peak.allocated;
    assert_int_equal(said, last_step(&even).peak.allocated);
    other.pairs = "pipeline_model_parallel_layout=Et|ttttt|ttttt|tL";
    const uint64_t highest = last_step(&other).peak.allocated;
    other.pairs = "pipeline_model_parallel_layout=Et|ttttt|ttttt|tL rank=between";
    assert_int_equal(highest, last_step(&other).peak.allocated);
    other.pairs = "pipeline_model_parallel_layout=Et|ttttt|ttttt|tL rank=first";
    assert_true(highest > last_step(&other).peak.allocated);
    /* Of stages between the one with more layers decides here, though another has more of them
     * times micro-batches in flight: what is recomputed is not kept. */
    other.pairs =
        "pipeline_model_parallel_layout=Et|t*4|t*5|t*2L recompute_granularity=full rank=between";
    const uint64_t later = last_step(&other).peak.allocated;
    other.pairs =
        "pipeline_model_parallel_layout=Et|t*2|t*5|t*4L recompute_granularity=full rank=between";
    assert_int_equal(later, last_step(&other).peak.allocated);
    /* Stages of the embedding and of the loss alone. */
    other.pairs = "pipeline_model_parallel_layout=E|t*6|t*6|L rank=first";
    assert_true(last_step(&other).peak.allocated < highest);
}

/* Of what the hybrid optimizer offloads no state is on the GPU: on the host there are 16 bytes an
 * element, of which the copies of parameters and gradients are rounded up as pinned memory is. The
 * one that is aware of precision has 10 bytes an element in place of 12. */
static void offloaded_states_are_on_the_host(void **state)
{
    static const struct {
        const char *pairs;
        double device, host; /* bytes of an element */
    } cases[] = {
        {"", 12, 0},
        {"use_precision_aware_optimizer=yes", 10, 0},
        {"use_precision_aware_optimizer=yes exp_avg_dtype=bf16 exp_avg_sq_dtype=bf16", 6, 0},
        {"optimizer_cpu_offload=yes", 12, 0},
        {"optimizer_cpu_offload=yes optimizer_offload_fraction=0.5", 6, 8},
        {"optimizer_cpu_offload=yes optimizer_offload_fraction=1", 0, 16},
    };
    /* Two data-parallel ranks share the states. */
    const double elements =
        (12 * ((2 * 8192. + 2048) * 8192 / 4 + 3 * 8192. * 28672 / 4 + 2 * 8192) +
         2 * 128512. / 4 * 8192 + 8192) /
        2;
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char pairs[192];
        snprintf(pairs, sizeof(pairs), "sequence_parallel=yes use_distributed_optimizer=yes %s",
                 cases[i].pairs);
        const struct row row = {"b200", "llama-3-70b-12-layers", 4096, 1, 4, 1, 1, pairs, 0, 0};
        const struct tdm_torch_step step = last_step(&row);
        const double device = (double)step.categories[TDM_METHOD_OPTIMIZER] / elements,
                     host = (double)step.host_bytes / elements;
        if (fabs(device - cases[i].device) > 0.8 || host < cases[i].host - 0.4 ||
            host > 1.6 * cases[i].host)
            fail_msg("%s: %.2f and %.2f bytes of an element", cases[i].pairs, device, host);
    }
}

/* Without its kernel SwiGLU keeps the activated half too, and since Megatron-Core 0.14 another copy
 * of the other half: of each layer as many bytes as its product has. */
static void unfused_activations_are_kept(void **state)
{
    static const char *const pairs[] = {"bias_swiglu_fusion=yes", "bias_swiglu_fusion=old",
                                        "bias_swiglu_fusion=no"};
    double mib[3];
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct row row = {"h100", "gpt-small-swiglu", 1024, 4, 1, 1, 1, pairs[i], 0, 0};
        mib[i] = (double)last_step(&row).peak.allocated / MIB;
    }
    const double kept = 12 * 4096.0 * 1344 * 2 / MIB; /* layers, tokens, columns */
    assert_true(fabs(mib[1] - mib[0] - kept) < 0.1 * kept);
    assert_true(fabs(mib[2] - mib[1] - kept) < 0.1 * kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peaks_are_as_published),
        cmocka_unit_test(unfused_activations_are_kept),
        cmocka_unit_test(orders_hold),
        cmocka_unit_test(virtual_stages_have_their_layers),
        cmocka_unit_test(layouts_are_run),
        cmocka_unit_test(mixtures_run_again),
        cmocka_unit_test(families_have_their_weights),
        cmocka_unit_test(experts_take_8_bits),
        cmocka_unit_test(hybrids_are_divided),
        cmocka_unit_test(steady_state_repeats),
        cmocka_unit_test(the_higher_end_is_predicted),
        cmocka_unit_test(groups_of_microbatches_may_be_larger),
        cmocka_unit_test(ranks_share_kv_heads),
        cmocka_unit_test(impossible_is_refused),
        cmocka_unit_test(sent_bytes_are_counted),
        cmocka_unit_test(only_adapters_have_states),
        cmocka_unit_test(gathered_inputs_go),
        cmocka_unit_test(weights_have_copies_of_8_bits),
        cmocka_unit_test(inputs_are_kept_in_8_bits),
        cmocka_unit_test(blocks_have_scales),
        cmocka_unit_test(products_of_8_bits_are_refused),
        cmocka_unit_test(adapters_are_recomputed),
        cmocka_unit_test(packed_sequences_are_one_row),
        cmocka_unit_test(hybrid_ranks_follow_the_length),
        cmocka_unit_test(capacity_bounds_experts),
        cmocka_unit_test(latent_values_are_narrower),
        cmocka_unit_test(windows_meet_no_ring),
        cmocka_unit_test(stages_may_be_uneven),
        cmocka_unit_test(muon_has_one_state),
        cmocka_unit_test(offloaded_states_are_on_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
