/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of steps of two models: against those that PyTorch made with TRL's functions
 * (tests/data/second_models.csv, by bench/torch_second.py), and by hand. */
#include "methods/prediction.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS 64u
#define PATH_BYTES 1024u
#define PAIRS_MOST 16u
/* Blocks are multiples of 512 bytes, and tens of tensors are smaller. */
#define ROUNDING UINT64_C(8192)
/* Of trainers that make all logits, whose metrics are not predicted; of Gemma 2's checkpointed
 * layers 34 KB too many are. A copy of their logits is 256 KiB or more. */
#define LOGITS_ROUNDING UINT64_C(36864)
/* PPO gives masks to its models, of 16 KiB each on a CPU; other tensors of tokens are smaller. */
#define PPO_ROUNDING UINT64_C(49152)
#define CPU_RANDOM_STATE UINT64_C(5056)
#define COMMON "attention=eager", "optimizer=none", "grads=none", "step=3"

struct row {
    char config[32], name[32], checkpointing[16];
    uint64_t kept, peak;
};

struct step {
    struct tdm_torch_step torch;
    uint64_t weights, layers;
};

static bool read_row(FILE *file, struct row *row)
{
    char line[256];
    while (fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, "%31[^,],%31[^,],%15[^,],%" SCNu64 ",%" SCNu64, row->config, row->name,
                   row->checkpointing, &row->kept, &row->peak) == 5)
            return true;
    return false;
}

static const char *source(void)
{
    const char *folder = getenv("TDM_SRCDIR");
    return folder == NULL ? "." : folder;
}

/* Status of a prediction of a method on so many GPUs, whose last step is at *step. */
static enum tdm_status predict_on(const char *name, uint64_t ranks, const char *config,
                                  const char *const *pairs, size_t count, struct step *step,
                                  struct tdm_error *err)
{
    char path[PATH_BYTES];
    struct tdm_method_settings settings = {.torch = {.tokens = TOKENS, .batch = 2, .ranks = ranks}};
    const struct tdm_method *method;
    struct tdm_method_choices choices;
    struct tdm_method_prediction p;
    struct tdm_machine *machine = NULL;
    struct tdm_model *model = NULL;
    snprintf(path, sizeof(path), "%s/tests/data/configs/families/%s.json", source(), config);
    enum tdm_status status = tdm_method_find(name, &method, err);
    if (status == TDM_OK)
        status = tdm_method_apply(method, pairs, count, &settings, &choices, err);
    if (status == TDM_OK)
        status = tdm_model_load(path, &model, err);
    if (status == TDM_OK)
        status = tdm_machine_load("h200-published", &machine, err);
    if (status == TDM_OK)
        status = tdm_method_check(model, &settings, err);
    if (status == TDM_OK)
        status = tdm_method_predict(model, machine, &settings, 0, &p, err);
    if (status == TDM_OK)
        *step = (struct step){p.steps[p.count - 1].torch, 2 * model->parameters, model->layers};
    tdm_model_free(model);
    tdm_machine_free(machine);
    return status;
}

static enum tdm_status predict(const char *config, const char *const *pairs, size_t count,
                               struct step *step, struct tdm_error *err)
{
    return predict_on("parallel", 1, config, pairs, count, step, err);
}

#define ASK(step, config, ...)                                                                  \
    do {                                                                                        \
        const char *asked_[] = {COMMON, __VA_ARGS__};                                           \
        struct tdm_error err_ = {.message = ""};                                                \
        if (predict(config, asked_, sizeof(asked_) / sizeof(asked_[0]), step, &err_) != TDM_OK) \
            fail_msg("%s", err_.message);                                                       \
    } while (0)

#define REFUSES(part, ...)                                                               \
    do {                                                                                 \
        const char *asked_[] = {COMMON, __VA_ARGS__};                                    \
        struct step step_;                                                               \
        struct tdm_error err_ = {.message = ""};                                         \
        assert_int_equal(                                                                \
            predict("llama", asked_, sizeof(asked_) / sizeof(asked_[0]), &step_, &err_), \
            TDM_USAGE);                                                                  \
        if (strstr(err_.message, part) == NULL)                                          \
            fail_msg("%s", err_.message);                                                \
    } while (0)

/* ---- what PyTorch made ---- */

static const struct {
    const char *name, *pairs[5];
} cases[] = {
    {"dpo", {"trainer=dpo"}},
    {"dpo-precomputed", {"trainer=dpo", "precompute_ref_log_probs=yes"}},
    {"dpo-lora", {"trainer=dpo", "lora_rank=8", "lora=peft", "autocast=bf16"}},
    {"grpo", {"trainer=grpo"}},
    {"grpo-beta", {"trainer=grpo", "beta=0.04"}},
    {"rloo", {"trainer=rloo"}},
    {"rloo-lora", {"trainer=rloo", "lora_rank=8", "lora=peft", "autocast=bf16"}},
    {"distillation", {"trainer=distillation"}},
    {"kto", {"trainer=kto"}},
    {"kto-precomputed", {"trainer=kto", "precompute_ref_log_probs=yes"}},
    {"kto-lora", {"trainer=kto", "lora_rank=8", "lora=peft", "autocast=bf16"}},
    {"cpo", {"trainer=cpo"}},
    {"cpo-lora", {"trainer=cpo", "lora_rank=8", "lora=peft", "autocast=bf16"}},
    {"simpo", {"trainer=cpo", "cpo_alpha=0"}},
    {"simpo-lora", {"trainer=cpo", "cpo_alpha=0", "lora_rank=8", "lora=peft", "autocast=bf16"}},
    {"orpo", {"trainer=orpo"}},
    {"orpo-lora", {"trainer=orpo", "lora_rank=8", "lora=peft", "autocast=bf16"}},
};

static void predict_row(const struct row *row, struct step *step)
{
    char checkpointing[32];
    const char *pairs[PAIRS_MOST] = {COMMON, checkpointing};
    struct tdm_error err = {.message = ""};
    size_t count = 5, i = 0;
    snprintf(checkpointing, sizeof(checkpointing), "checkpointing=%s", row->checkpointing);
    while (strcmp(cases[i].name, row->name) != 0)
        if (++i == sizeof(cases) / sizeof(cases[0]))
            fail_msg("%s is no case", row->name);
    for (size_t p = 0; p < 5 && cases[i].pairs[p] != NULL; p++)
        pairs[count++] = cases[i].pairs[p];
    if (predict(row->config, pairs, count, step, &err) != TDM_OK)
        fail_msg("%s, %s: %s", row->config, row->name, err.message);
}

static void check(const struct row *row, const char *what, uint64_t predicted, uint64_t measured)
{
    static const char *const whole[] = {"cpo", "simpo", "orpo"};
    uint64_t rounding = strncmp(row->name, "ppo", 3) == 0 ? PPO_ROUNDING : ROUNDING;
    for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++)
        if (strncmp(row->name, whole[i], strlen(whole[i])) == 0)
            rounding = LOGITS_ROUNDING;
    if (predicted + rounding < measured || predicted > measured + rounding)
        fail_msg("%s, %s, checkpointing=%s: %s %" PRIu64 ", PyTorch %" PRIu64, row->config,
                 row->name, row->checkpointing, what, predicted, measured);
}

static void steps_are_those_of_pytorch(void **state)
{
    char path[PATH_BYTES];
    struct row row;
    unsigned rows = 0;
    (void)state;
    snprintf(path, sizeof(path), "%s/tests/data/second_models.csv", source());
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (; read_row(file, &row); rows++) {
        struct step step;
        predict_row(&row, &step);
        uint64_t random = strcmp(row.checkpointing, "on") == 0 ? step.layers * CPU_RANDOM_STATE : 0;
        uint64_t before = step.torch.before_bytes;
        check(&row, "kept", step.torch.end_bytes[TDM_PHASE_FORWARD] - before, row.kept - random);
        /* What tensors ask for: of a block above 10 MiB the allocator leaves up to 1 MiB unsplit,
         * and a CPU does not. */
        check(&row, "peak", step.torch.peak.requested - before, row.peak - random);
    }
    fclose(file);
    assert_int_equal(rows, 102);
}

/* ---- PPO's, of another TRL (tests/data/ppo_steps.csv, by bench/torch_ppo.py) ---- */

static void check_ppo(const char *config, const char *name, unsigned response,
                      const char *checkpointing, uint64_t kept, uint64_t peak)
{
    char on[32], scored[48];
    const bool casts = strcmp(name, "ppo-autocast") == 0, adapts = strcmp(name, "ppo-lora") == 0;
    const char *pairs[PAIRS_MOST] = {COMMON, "trainer=ppo", on, scored};
    size_t count = 7;
    struct step step;
    struct tdm_error err = {.message = ""};
    struct row row = {.kept = kept, .peak = peak};
    snprintf(on, sizeof(on), "checkpointing=%s", checkpointing);
    snprintf(scored, sizeof(scored), "max_completion_length=%u", response);
    snprintf(row.config, sizeof(row.config), "%s", config);
    snprintf(row.name, sizeof(row.name), "%s", name);
    snprintf(row.checkpointing, sizeof(row.checkpointing), "%s", checkpointing);
    if (casts || adapts)
        pairs[count++] = "autocast=bf16";
    if (adapts) {
        pairs[count++] = "lora_rank=8";
        pairs[count++] = "lora=peft";
    }
    if (predict(config, pairs, count, &step, &err) != TDM_OK)
        fail_msg("%s, %s: %s", config, name, err.message);
    const uint64_t random = strcmp(checkpointing, "on") == 0 ? step.layers * CPU_RANDOM_STATE : 0;
    const uint64_t before = step.torch.before_bytes;
    check(&row, "kept", step.torch.end_bytes[TDM_PHASE_FORWARD] - before, kept - random);
    check(&row, "peak", step.torch.phases[TDM_PHASE_BACKWARD].requested - before, peak - random);
}

static void ppo_steps_are_those_of_pytorch(void **state)
{
    char path[PATH_BYTES], line[256], config[32], name[32], checkpointing[16];
    unsigned response, rows = 0;
    uint64_t kept, peak;
    (void)state;
    snprintf(path, sizeof(path), "%s/tests/data/ppo_steps.csv", source());
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, "%31[^,],%31[^,],%u,%15[^,],%" SCNu64 ",%" SCNu64, config, name, &response,
                   checkpointing, &kept, &peak) == 6) {
            check_ppo(config, name, response, checkpointing, kept, peak);
            rows++;
        }
    fclose(file);
    assert_int_equal(rows, 24);
}

/* ---- by hand ---- */

/* Of a second model: its weights and two buffers of rotary frequencies. */
#define BUFFERS_BYTES 1024u

static void references_add_their_weights(void **state)
{
    struct step without, copy, base, asked;
    (void)state;
    ASK(&without, "llama", "trainer=dpo", "precompute_ref_log_probs=yes");
    ASK(&copy, "llama", "trainer=dpo");
    assert_int_equal(copy.torch.before_bytes - without.torch.before_bytes,
                     copy.weights + BUFFERS_BYTES);
    ASK(&without, "llama", "trainer=grpo");
    ASK(&copy, "llama", "trainer=grpo", "beta=0.1");
    assert_int_equal(copy.torch.before_bytes - without.torch.before_bytes,
                     copy.weights + BUFFERS_BYTES);
    /* Under adapters the base is the reference, unless a copy is asked for. */
    ASK(&without, "llama", "trainer=dpo", "lora_rank=8", "precompute_ref_log_probs=yes");
    ASK(&base, "llama", "trainer=dpo", "lora_rank=8");
    ASK(&asked, "llama", "trainer=dpo", "lora_rank=8", "ref_model=copy");
    assert_int_equal(base.torch.before_bytes, without.torch.before_bytes);
    assert_true(asked.torch.before_bytes > base.torch.before_bytes);
}

static void teachers_add_their_weights(void **state)
{
    char teacher[PATH_BYTES];
    struct step same, named;
    (void)state;
    snprintf(teacher, sizeof(teacher), "teacher_model=%s/tests/data/configs/families/llama.json",
             source());
    ASK(&same, "llama", "trainer=distillation");
    ASK(&named, "llama", "trainer=distillation", teacher);
    assert_int_equal(named.torch.peak.requested, same.torch.peak.requested);
    assert_true(same.torch.before_bytes >= 2 * same.weights);
}

/* A frozen reference and reward model, and a value model that is trained: each of its own; of the
 * reward and the value model the head is one row. Adapters leave the reference out. */
static void ppo_has_four_models(void **state)
{
    struct step policy, four, three, named;
    char scorer[PATH_BYTES];
    (void)state;
    ASK(&policy, "llama", "trainer=dpo", "precompute_ref_log_probs=yes", "lora_rank=8");
    ASK(&three, "llama", "trainer=ppo", "lora_rank=8", "max_completion_length=1");
    ASK(&policy, "llama", "trainer=grpo");
    ASK(&four, "llama", "trainer=ppo", "max_completion_length=1");
    const uint64_t head = UINT64_C(2) * (1024 - 1) * 256;
    const uint64_t scores = UINT64_C(2) * 1024 * 4; /* of what was generated */
    assert_int_equal(four.torch.before_bytes - policy.torch.before_bytes,
                     3 * (four.weights + BUFFERS_BYTES) - 2 * head + scores -
                         512); /* and no loss */
    assert_true(four.torch.before_bytes > three.torch.before_bytes + four.weights / 2);
    snprintf(scorer, sizeof(scorer), "reward_model=%s/tests/data/configs/families/llama.json",
             source());
    ASK(&named, "llama", "trainer=ppo", "max_completion_length=1", scorer);
    assert_int_equal(named.torch.peak.requested, four.torch.peak.requested);
    REFUSES("four models", "trainer=ppo", "compile=layers");
}

static void vllm_takes_its_share(void **state)
{
    struct step without, awake, asleep;
    const uint64_t share = UINT64_C(150093103104) / 10 * 3; /* of the machine */
    (void)state;
    ASK(&without, "llama", "trainer=grpo");
    ASK(&awake, "llama", "trainer=grpo", "use_vllm=yes");
    ASK(&asleep, "llama", "trainer=grpo", "use_vllm=yes", "vllm_enable_sleep_mode=yes");
    uint64_t most = awake.torch.before_bytes - without.torch.before_bytes;
    assert_true(most > share / 10 * 9 && most < share / 10 * 11);
    /* Asleep it keeps its CUDA graphs, a part of a percent of that. */
    assert_true(asleep.torch.before_bytes - without.torch.before_bytes < share / 10);
    /* While it generates, it is awake. */
    assert_true(asleep.torch.peak.requested > share / 10 * 9);
}

/* Unsloth's vLLM has the weights that are trained on. Its cache is as large, or, where these have 4
 * bits, larger by what they are smaller. */
static void unsloth_shares_weights(void **state)
{
    struct step own, shared, asleep, narrow, without;
    (void)state;
    ASK(&without, "llama", "trainer=grpo", "lora_rank=8");
    ASK(&own, "llama", "trainer=grpo", "lora_rank=8", "use_vllm=yes");
    ASK(&shared, "llama", "trainer=grpo", "lora_rank=8", "use_vllm=yes", "fast_inference=yes");
    const uint64_t once = own.torch.before_bytes - shared.torch.before_bytes;
    assert_true(once >= shared.weights && once < shared.weights + (UINT64_C(4) << 20));
    ASK(&asleep, "llama", "trainer=grpo", "lora_rank=8", "use_vllm=yes", "fast_inference=yes",
        "vllm_enable_sleep_mode=yes", "lora_kernels=unsloth");
    assert_true(asleep.torch.before_bytes < shared.torch.before_bytes / 10);
    assert_true(asleep.torch.before_bytes > without.torch.before_bytes);
    ASK(&narrow, "llama", "trainer=grpo", "lora_rank=8", "use_vllm=yes", "fast_inference=yes",
        "quantization=nf4");
    /* what the training has less, the cache has more */
    const int64_t more = (int64_t)narrow.torch.before_bytes - (int64_t)shared.torch.before_bytes;
    assert_true(more > -(INT64_C(1) << 20) && more < (INT64_C(1) << 20));
    REFUSES("Unsloth's functions with trainer", "trainer=dpo", "lora_rank=8",
            "lora_kernels=unsloth");
}

/* All micro-batches of a step are generated at once, so their K and V are there together. */
static void micro_batches_are_generated_together(void **state)
{
    struct step one, four, said;
    (void)state;
    ASK(&one, "llama", "trainer=grpo", "checkpointing=on", "max_completion_length=1",
        "steps_per_generation=64");
    ASK(&four, "llama", "trainer=grpo", "checkpointing=on", "max_completion_length=1",
        "steps_per_generation=64", "gradient_accumulation_steps=4");
    assert_true(four.torch.phases[TDM_PHASE_FORWARD].requested >=
                one.torch.phases[TDM_PHASE_FORWARD].requested);
    ASK(&four, "llama", "trainer=grpo", "gradient_accumulation_steps=4096");
    ASK(&said, "llama", "trainer=grpo", "gradient_accumulation_steps=4096",
        "steps_per_generation=4096");
    assert_int_equal(four.torch.peak.requested, said.torch.peak.requested);
    ASK(&one, "llama", "trainer=grpo", "gradient_accumulation_steps=4096",
        "steps_per_generation=1");
    assert_true(four.torch.peak.requested > one.torch.peak.requested);
}

/* ---- shared among ranks ---- */

#define RANKS 4u

#define ASK_SHARED(step, method, ...)                                                            \
    do {                                                                                         \
        const char *asked_[] = {"attention=eager", "step=3", __VA_ARGS__};                       \
        struct tdm_error err_ = {.message = ""};                                                 \
        if (predict_on(method, RANKS, "llama", asked_, sizeof(asked_) / sizeof(asked_[0]), step, \
                       &err_) != TDM_OK)                                                         \
            fail_msg("%s", err_.message);                                                        \
    } while (0)

/* A copy of the model as shards, whose norms of 256 elements take blocks of 512 bytes each. */
static uint64_t shards_of(const struct step *step, uint64_t element_bytes)
{
    const uint64_t norms = 2 * step->layers + 1;
    return step->weights / 2 * element_bytes / RANKS + norms * (512 - 256 * element_bytes / RANKS) +
           BUFFERS_BYTES;
}

static uint64_t forward_peak(const struct step *step)
{
    return step->torch.phases[TDM_PHASE_FORWARD].requested - step->torch.before_bytes;
}

/* The reference is a shard, but fully_shard gathers it as one: its buffer and all its parameters
 * are there while it scores, beside what the student's forward kept and scored with. */
static void fsdp_gathers_the_whole_reference(void **state)
{
    struct step without, copy, wide, base, none;
    (void)state;
    ASK_SHARED(&without, "fsdp", "trainer=dpo", "precompute_ref_log_probs=yes",
               "reshard_after_forward=yes");
    ASK_SHARED(&copy, "fsdp", "trainer=dpo", "reshard_after_forward=yes");
    assert_int_equal(copy.torch.before_bytes - without.torch.before_bytes, shards_of(&copy, 2));
    assert_true(forward_peak(&copy) > 2 * copy.weights);
    assert_true(forward_peak(&copy) < 2 * copy.weights + forward_peak(&without));
    /* Of fp32 the shards are twice as large, and gathered in bf16. */
    ASK_SHARED(&wide, "fsdp", "trainer=dpo", "reshard_after_forward=yes", "weights_dtype=fp32");
    ASK_SHARED(&none, "fsdp", "trainer=dpo", "precompute_ref_log_probs=yes",
               "reshard_after_forward=yes", "weights_dtype=fp32");
    assert_int_equal(wide.torch.before_bytes - none.torch.before_bytes, shards_of(&wide, 4));
    assert_true(forward_peak(&wide) < 2 * wide.weights + forward_peak(&none));
    /* Without resharding it stays gathered. */
    ASK_SHARED(&base, "fsdp", "trainer=dpo", "reshard_after_forward=no");
    ASK_SHARED(&none, "fsdp", "trainer=dpo", "precompute_ref_log_probs=yes",
               "reshard_after_forward=no");
    assert_int_equal(base.torch.before_bytes - none.torch.before_bytes,
                     shards_of(&base, 2) + base.weights);
    /* FSDP 1 wraps its layers, so it gathers less at a time. */
    ASK_SHARED(&none, "fsdp", "trainer=dpo", "fsdp_version=1");
    assert_true(forward_peak(&none) < forward_peak(&copy));
    /* Under adapters there is no copy. */
    ASK_SHARED(&base, "fsdp", "trainer=dpo", "lora_rank=8", "reshard_after_forward=yes");
    ASK_SHARED(&none, "fsdp", "trainer=dpo", "lora_rank=8", "precompute_ref_log_probs=yes",
               "reshard_after_forward=yes");
    assert_int_equal(base.torch.before_bytes, none.torch.before_bytes);
}

/* No tile is larger than the weights, and no module keeps its own. */
#define LITTLE                                                                                 \
    "max_completion_length=1", "stage3_max_reuse_distance=0", "stage3_prefetch_bucket_size=0", \
        "checkpointing=on"
#define NONE_PERSISTS "stage3_param_persistence_threshold=0"

static void zero_shards_the_reference_at_stage_3(void **state)
{
    static const char *const whole[] = {"deepspeed-zero1", "zero2"};
    struct step without, copy;
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        ASK_SHARED(&without, whole[i], "trainer=dpo", "precompute_ref_log_probs=yes");
        ASK_SHARED(&copy, whole[i], "trainer=dpo");
        assert_int_equal(copy.torch.before_bytes - without.torch.before_bytes,
                         copy.weights + BUFFERS_BYTES);
    }
    ASK_SHARED(&without, "zero3", "trainer=dpo", "precompute_ref_log_probs=yes", NONE_PERSISTS);
    ASK_SHARED(&copy, "zero3", "trainer=dpo", NONE_PERSISTS);
    assert_int_equal(copy.torch.before_bytes - without.torch.before_bytes, shards_of(&copy, 2));
    ASK_SHARED(&without, "zero3", "trainer=grpo", NONE_PERSISTS);
    ASK_SHARED(&copy, "zero3", "trainer=distillation", NONE_PERSISTS);
    assert_int_equal(copy.torch.before_bytes - without.torch.before_bytes, shards_of(&copy, 2));
}

/* transformers generates with all parameters gathered; vLLM gets them one by one, but with
 * adapters, which are merged first, all at once. */
static void generation_gathers_what_zero3_shards(void **state)
{
    struct step whole, sent, merged;
    (void)state;
    ASK_SHARED(&whole, "zero3", "trainer=grpo", NONE_PERSISTS, LITTLE);
    ASK_SHARED(&sent, "zero3", "trainer=grpo", NONE_PERSISTS, LITTLE, "use_vllm=yes",
               "vllm_mode=server");
    ASK_SHARED(&merged, "zero3", "trainer=grpo", NONE_PERSISTS, LITTLE, "use_vllm=yes",
               "vllm_mode=server", "lora_rank=8");
    const uint64_t part = whole.weights / 5 * 4; /* as blocks are larger than what they hold */
    assert_true(forward_peak(&whole) >= part);
    assert_true(forward_peak(&sent) < part);
    assert_true(forward_peak(&merged) >= part);
}

/* Of 63 scored words of 1,024, hidden size 256. A tile has two rows of words in fp32, hidden states
 * twice and the head three times, and until 0.7.0 there are logits and their gradient in bf16 and
 * the head once; all else is the same. */
static void ligers_loss_of_grpo(void **state)
{
    struct step whole, now, old;
    const uint64_t words = 63, logits = words * 1024, head = UINT64_C(1024) * 256;
    (void)state;
    ASK(&whole, "llama", "trainer=grpo");
    ASK(&now, "llama", "trainer=grpo", "logits=fused");
    ASK(&old, "llama", "trainer=grpo", "logits=fused", "liger_version=0.7.0");
    const uint64_t tile = 4 * (2 * logits + 2 * words * 256 + 3 * head),
                   sequence = 2 * (2 * logits + head);
    assert_true(now.torch.peak.requested + sequence - old.torch.peak.requested - tile + ROUNDING <=
                2 * ROUNDING);
    assert_true(whole.torch.peak.requested > now.torch.peak.requested);
}

static void refuses(const char *method, const char *pair, const char *other, const char *part)
{
    const char *pairs[] = {pair, other};
    struct tdm_error err = {.message = ""};
    struct step step;
    assert_int_equal(predict_on(method, RANKS, "llama", pairs, 2, &step, &err), TDM_USAGE);
    if (strstr(err.message, part) == NULL)
        fail_msg("%s", err.message);
}

/* Rewards of pairs are those of twice as many sequences. */
static void rewards_score_both_of_a_pair(void **state)
{
    struct step pairs, sequences;
    (void)state;
    ASK(&sequences, "llama", "logits=score");
    ASK(&pairs, "llama", "trainer=reward");
    const uint64_t one =
        sequences.torch.end_bytes[TDM_PHASE_FORWARD] - sequences.torch.before_bytes;
    const uint64_t both = pairs.torch.end_bytes[TDM_PHASE_FORWARD] - pairs.torch.before_bytes;
    /* Positions, their sines and a mask are made once. */
    assert_in_range(both, 2 * one - 4 * ROUNDING, 2 * one);
}

/* To TRL 1.10 a log-softmax is kept beside what the cross entropy of the chosen keeps. */
static void earlier_versions_keep_logits_of_pairs(void **state)
{
    struct step now, earlier, kto, kto_earlier;
    (void)state;
    ASK(&now, "llama", "trainer=orpo");
    ASK(&earlier, "llama", "trainer=orpo", "trl=1.9");
    assert_in_range(earlier.torch.peak.requested, now.torch.peak.requested - ROUNDING, UINT64_MAX);
    ASK(&kto, "llama", "trainer=kto");
    ASK(&kto_earlier, "llama", "trainer=kto", "trl=1.9");
    assert_true(kto.torch.end_bytes[TDM_PHASE_FORWARD] <
                kto_earlier.torch.end_bytes[TDM_PHASE_FORWARD]);
}

static void wrong_settings_are_refused(void **state)
{
    char teacher[PATH_BYTES];
    (void)state;
    snprintf(teacher, sizeof(teacher), "teacher_model=%s/tests/data/configs/llama-2-13b.json",
             source());
    refuses("fsdp", "trainer=distillation", "step=3", "leaves the teacher on the CPU");
    refuses("fsdp", "trainer=dpo", "tensor_parallel_degree=2", "not modelled");
    refuses("zero3", "trainer=dpo", "tiled_logits=2", "not modelled");
    REFUSES("words, the student", "trainer=distillation", teacher);
    REFUSES("leave out use_cache, and logits", "trainer=dpo", "logits=fused");
    REFUSES("leave out use_cache, and logits", "trainer=grpo", "logits=chunked");
    REFUSES("not a share", "trainer=grpo", "beta=2");
    REFUSES("no weight", "trainer=cpo", "cpo_alpha=-1");
    REFUSES("head of logits=score", "trainer=reward", "logits=base");
    REFUSES("not a version", "trainer=dpo", "trl=old");
    REFUSES("not a version", "trainer=dpo", "trl=-1.9");
    REFUSES("not a version", "trainer=dpo", "trl=1.x");
    REFUSES("not a version", "transformers=4.x");
    REFUSES("not a share", "trainer=grpo", "use_vllm=yes", "vllm_gpu_memory_utilization=x");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_those_of_pytorch),
        cmocka_unit_test(ppo_steps_are_those_of_pytorch),
        cmocka_unit_test(references_add_their_weights),
        cmocka_unit_test(teachers_add_their_weights),
        cmocka_unit_test(ppo_has_four_models),
        cmocka_unit_test(vllm_takes_its_share),
        cmocka_unit_test(unsloth_shares_weights),
        cmocka_unit_test(micro_batches_are_generated_together),
        cmocka_unit_test(fsdp_gathers_the_whole_reference),
        cmocka_unit_test(zero_shards_the_reference_at_stage_3),
        cmocka_unit_test(generation_gathers_what_zero3_shards),
        cmocka_unit_test(ligers_loss_of_grpo),
        cmocka_unit_test(rewards_score_both_of_a_pair),
        cmocka_unit_test(earlier_versions_keep_logits_of_pairs),
        cmocka_unit_test(wrong_settings_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
