/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the tests that compare backends. */
#include "tests/support/backend_cases.h"

#include "schedule/optimizer.h"
#include "schedule/schedule_check.h"
#include "tests/support/random_schedule.h"

#include <stdlib.h>
#include <string.h>

const char *tdm_case_name(enum tdm_case kind)
{
    static const char *const names[TDM_CASES] = {"small", "wide", "large"};
    return names[kind];
}

enum tdm_case tdm_case_of(uint64_t seed)
{
    const char *asked = getenv("TDM_CASE");
    for (int kind = 0; kind < TDM_CASES && asked != NULL; kind++)
        if (strcmp(asked, tdm_case_name((enum tdm_case)kind)) == 0)
            return (enum tdm_case)kind;
    return (enum tdm_case)(seed % TDM_CASES);
}

/* ---- models ---- */

/* The dimensions of a model. */
struct sizes {
    uint64_t layers, hidden, intermediate, kv_heads, ratio, head_dim, vocabulary;
    uint64_t window; /* of Mistral models */
    uint64_t architecture;
    bool tied;
};

enum { MISTRAL = 3, ARCHITECTURES };

#define MOST_RATIO 16u /* query heads per KV head */

static json_t *config_of(const struct sizes *x)
{
    static const char *const architectures[ARCHITECTURES] = {
        "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM"};
    json_t *config = json_pack(
        "{s:[s], s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "architectures",
        architectures[x->architecture], "tie_word_embeddings", (int)x->tied, "num_hidden_layers",
        (json_int_t)x->layers, "hidden_size", (json_int_t)x->hidden, "intermediate_size",
        (json_int_t)x->intermediate, "num_attention_heads", (json_int_t)(x->kv_heads * x->ratio),
        "num_key_value_heads", (json_int_t)x->kv_heads, "head_dim", (json_int_t)x->head_dim,
        "vocab_size", (json_int_t)x->vocabulary);
    if (config != NULL && x->architecture == MISTRAL)
        json_object_set_new(config, "sliding_window", json_integer((json_int_t)x->window));
    return config;
}

/* Makes the vocabulary larger, so that the embedding has more elements than a layer: its state, and
 * that of a head of its own, then pass in slices. */
static void enlarge_vocabulary(struct sizes *x)
{
    x->vocabulary += 2 * (x->ratio + 1) * x->kv_heads * x->head_dim + 3 * x->intermediate;
}

static struct sizes large_sizes(struct tdm_dice *dice)
{
    struct sizes x;
    x.kv_heads = tdm_dice_roll(dice, 1, 2);
    x.ratio = tdm_dice_roll(dice, 1, 4);
    x.hidden = 64 * tdm_dice_roll(dice, 1, 4);
    x.head_dim = tdm_dice_chance(dice, 70) ? 128 : 64;
    x.intermediate = 64 * tdm_dice_roll(dice, 1, 6);
    x.vocabulary = 8 * tdm_dice_roll(dice, 20, 90);
    x.layers = tdm_dice_roll(dice, 1, 3);
    x.architecture = tdm_dice_roll(dice, 0, ARCHITECTURES - 1);
    x.window = tdm_dice_roll(dice, 20, 300);
    x.tied = tdm_dice_chance(dice, 50);
    if (x.vocabulary % 16 == 0)
        enlarge_vocabulary(&x);
    return x;
}

/* Each case takes the next head dim and query heads per KV head, so that a few cases cover all. */
static struct sizes wide_sizes(struct tdm_dice *dice, uint64_t turn)
{
    static const uint64_t dims[] = {64, 96, 128, 256, 80, 34};
    struct sizes x;
    bool odd = tdm_dice_chance(dice, 30);
    x.head_dim = dims[turn % (sizeof(dims) / sizeof(dims[0]))];
    x.ratio = turn % MOST_RATIO + 1;
    x.kv_heads = x.ratio * x.head_dim > 1024 ? 1 : tdm_dice_roll(dice, 1, 3);
    x.hidden = odd ? tdm_dice_roll(dice, 17, 150) : 8 * tdm_dice_roll(dice, 4, 24);
    x.intermediate = odd ? tdm_dice_roll(dice, 5, 200) : 8 * tdm_dice_roll(dice, 2, 30);
    x.vocabulary = tdm_dice_roll(dice, 50, 400);
    x.layers = tdm_dice_roll(dice, 1, 2);
    x.architecture = tdm_dice_roll(dice, 0, ARCHITECTURES - 1);
    x.window = tdm_dice_roll(dice, 1, 120);
    x.tied = tdm_dice_chance(dice, 50);
    if (x.vocabulary % 2 == 0)
        enlarge_vocabulary(&x);
    return x;
}

/* ---- schedules ---- */

static enum tdm_status new_schedule(const struct sizes *sizes, uint64_t tokens,
                                    struct tdm_schedule **schedule, struct tdm_error *err)
{
    struct tdm_model *model = NULL;
    struct tdm_machine *machine = NULL;
    json_t *config = config_of(sizes);
    if (config == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the config of a case");
    enum tdm_status status = tdm_model_from_config("case", "case", config, &model, err);
    json_decref(config);
    if (status == TDM_OK)
        status = tdm_machine_load("h200-published", &machine, err);
    if (status == TDM_OK)
        status = tdm_schedule_new(model, machine, tokens, schedule, err);
    if (status != TDM_OK) {
        tdm_machine_free(machine);
        tdm_model_free(model);
    }
    return status;
}

static const struct tdm_dtypes all_fp32 = {.weights = TDM_DTYPE_FP32,
                                           .activations = TDM_DTYPE_FP32,
                                           .kv = TDM_DTYPE_FP32,
                                           .kv_gradients = TDM_DTYPE_FP32,
                                           .gradients = TDM_DTYPE_FP32,
                                           .logits = TDM_DTYPE_FP32};

/* Sets chunks, pages, tiles and documents. */
static enum tdm_status cut_large(struct tdm_dice *dice, uint64_t tokens,
                                 struct tdm_schedule *schedule, struct tdm_error *err)
{
    static const uint64_t pages[] = {16, 64, 128, 100};
    schedule->page_tokens = pages[tdm_dice_roll(dice, 0, 3)];
    schedule->chunk_tokens = tdm_dice_roll(dice, 40, tokens);
    if (tdm_dice_chance(dice, 60))
        schedule->chunk_tokens = (schedule->chunk_tokens + 63) / 64 * 64;
    schedule->head_tile_tokens = tdm_dice_chance(dice, 50)
                                     ? schedule->chunk_tokens
                                     : tdm_dice_roll(dice, 16, schedule->chunk_tokens);
    if (!tdm_dice_chance(dice, 40))
        return TDM_OK;
    return tdm_sequence_divide(&schedule->sequences[0], "large", tdm_dice_roll(dice, 30, tokens),
                               err);
}

static enum tdm_status large_case(uint64_t seed, struct tdm_schedule **schedule,
                                  struct tdm_error *err)
{
    static const enum tdm_optimizer kinds[] = {TDM_OPTIMIZER_NONE, TDM_OPTIMIZER_NONE,
                                               TDM_OPTIMIZER_ADAMW, TDM_OPTIMIZER_ADAMW_BF16,
                                               TDM_OPTIMIZER_ADAMW_BF16_MOMENTS};
    struct tdm_schedule *plain = NULL;
    struct tdm_dice dice;
    tdm_dice_seed(&dice, seed);
    struct sizes sizes = large_sizes(&dice);
    uint64_t tokens = tdm_dice_roll(&dice, 100, 700);
    enum tdm_status status = new_schedule(&sizes, tokens, &plain, err);
    if (status == TDM_OK)
        status = cut_large(&dice, tokens, plain, err);
    if (status == TDM_OK) {
        tdm_random_selector(&dice, plain);
        enum tdm_optimizer kind = kinds[tdm_dice_roll(&dice, 0, 4)];
        tdm_schedule_set_optimizer(plain, kind);
        if (seed % 4 == 3 && kind == TDM_OPTIMIZER_NONE)
            plain->dtypes = all_fp32;
        status = tdm_schedule_check(plain, "large", err);
    }
    if (status == TDM_OK) /* with a random nest */
        status = tdm_random_variant(plain, seed, schedule, err);
    tdm_schedule_free(plain);
    return status;
}

/* Cuts tokens in any way, so that vectors and tiles of tensor cores end anywhere. */
static enum tdm_status cut_wide(struct tdm_dice *dice, uint64_t tokens,
                                struct tdm_schedule *schedule, struct tdm_error *err)
{
    static const uint64_t pages[] = {1, 7, 16, 32, 64, 128};
    uint64_t vocabulary = schedule->model->vocabulary;
    schedule->page_tokens = pages[tdm_dice_roll(dice, 0, 5)];
    schedule->chunk_tokens = tdm_dice_roll(dice, 20, tokens);
    if (tdm_dice_chance(dice, 30))
        schedule->chunk_tokens = (schedule->chunk_tokens + 63) / 64 * 64;
    schedule->head_tile_tokens = tdm_dice_roll(dice, 5, schedule->chunk_tokens);
    if (tdm_dice_chance(dice, 40))
        schedule->head_tile_vocabulary = tdm_dice_roll(dice, vocabulary / 5 + 1, vocabulary);
    if (!tdm_dice_chance(dice, 40))
        return TDM_OK;
    return tdm_sequence_divide(&schedule->sequences[0], "wide", tdm_dice_roll(dice, 10, tokens),
                               err);
}

/* The dtypes that a planner chooses for the optimizer, or fp32, or bf16 with some in fp32. */
static void choose_dtypes(struct tdm_dice *dice, struct tdm_dtypes *dtypes)
{
    uint64_t shape = tdm_dice_roll(dice, 0, 9);
    if (dtypes->master != TDM_DTYPE_NONE && tdm_dice_chance(dice, 40))
        dtypes->master = TDM_DTYPE_FP32;
    struct tdm_dtypes kept = *dtypes;
    if (shape < 2) {
        *dtypes = all_fp32;
        if (kept.master != TDM_DTYPE_NONE || kept.weights == TDM_DTYPE_BF16)
            dtypes->weights = kept.weights;
        dtypes->master = kept.master;
        dtypes->moments = kept.moments;
    } else if (shape < 4) {
        dtypes->logits = TDM_DTYPE_FP32;
        dtypes->kv_gradients = TDM_DTYPE_BF16;
        dtypes->gradients = TDM_DTYPE_BF16;
    }
}

static enum tdm_status wide_case(uint64_t seed, struct tdm_schedule **schedule,
                                 struct tdm_error *err)
{
    struct tdm_schedule *plain = NULL;
    struct tdm_dice dice;
    tdm_dice_seed(&dice, seed ^ 0x71de);
    struct sizes sizes = wide_sizes(&dice, seed / TDM_CASES);
    uint64_t tokens = tdm_dice_roll(&dice, 40, 350);
    enum tdm_status status = new_schedule(&sizes, tokens, &plain, err);
    if (status == TDM_OK)
        status = cut_wide(&dice, tokens, plain, err);
    if (status == TDM_OK)
        tdm_random_selector(&dice, plain);
    if (status == TDM_OK) {
        enum tdm_optimizer kind = (enum tdm_optimizer)tdm_dice_roll(&dice, 0, TDM_OPTIMIZERS - 1);
        tdm_schedule_set_optimizer(plain, kind);
        if (kind != TDM_OPTIMIZER_NONE && tdm_dice_chance(&dice, 50)) {
            bool global = tdm_dice_chance(&dice, 50);
            tdm_schedule_set_clip(plain, global ? TDM_CLIP_GLOBAL : TDM_CLIP_LAYER);
            plain->optimizer.clip_norm = 0.1;
        }
        choose_dtypes(&dice, &plain->dtypes);
        status = tdm_schedule_check(plain, "wide", err);
    }
    if (status == TDM_OK)
        status = tdm_random_variant(plain, seed, schedule, err);
    tdm_schedule_free(plain);
    return status;
}

/* Two rounds of chunks for all ranks, and a shorter chunk. */
static uint64_t cut_ring(struct tdm_dice *dice, uint32_t ranks, uint64_t *chunk)
{
    *chunk =
        tdm_dice_chance(dice, 70) ? 128 * tdm_dice_roll(dice, 1, 2) : tdm_dice_roll(dice, 60, 250);
    return 2 * ranks * *chunk + tdm_dice_roll(dice, 1, *chunk);
}

enum tdm_status tdm_ring_case(uint64_t seed, uint32_t most, struct tdm_schedule **schedule,
                              struct tdm_error *err)
{
    struct tdm_schedule *ring = NULL;
    struct tdm_dice dice;
    tdm_dice_seed(&dice, seed ^ 0x4196);
    struct sizes sizes = large_sizes(&dice);
    sizes.architecture %= MISTRAL;
    const uint32_t ranks = (uint32_t)tdm_dice_roll(&dice, 2, most);
    uint64_t chunk, tokens = cut_ring(&dice, ranks, &chunk);
    enum tdm_status status = new_schedule(&sizes, tokens, &ring, err);
    if (status != TDM_OK)
        return status;
    ring->page_tokens = 128;
    ring->chunk_tokens = ring->head_tile_tokens = chunk;
    ring->ranks = ranks;
    ring->exchange = seed % 2 == 0 ? TDM_EXCHANGE_RING : TDM_EXCHANGE_QUERIES;
    if (tdm_dice_chance(&dice, 30))
        ring->selector = (struct tdm_selector){.kind = TDM_SELECT_WINDOW,
                                               .window = tdm_dice_roll(&dice, 2, 3 * chunk)};
    if (tdm_dice_chance(&dice, 30))
        ring->dtypes.kv_gradients = TDM_DTYPE_BF16;
    if (tdm_dice_chance(&dice, 40))
        status = tdm_sequence_divide(&ring->sequences[0], "ring",
                                     tdm_dice_roll(&dice, chunk / 2, tokens), err);
    if (status == TDM_OK)
        status = tdm_schedule_check(ring, "ring", err);
    if (status == TDM_OK)
        *schedule = ring;
    else
        tdm_schedule_free(ring);
    return status;
}

enum tdm_status tdm_backend_case(enum tdm_case kind, uint64_t seed, struct tdm_schedule **schedule,
                                 struct tdm_error *err)
{
    uint64_t turn = seed / TDM_CASES; /* number of the case among the small ones */
    bool gradients = turn % 3 == 0;
    struct tdm_random_options options = {
        .dtypes = turn % 4 >= 2 ? TDM_RANDOM_MIXED
                  : gradients   ? TDM_RANDOM_FP32
                                : TDM_RANDOM_FP32_ACTIVATIONS,
        .optimizer = gradients ? TDM_RANDOM_NO_OPTIMIZER : TDM_RANDOM_UPDATES,
        .pass = turn % 5 == 4 ? TDM_RANDOM_EVALUATE : TDM_RANDOM_TRAIN,
        .max_tokens = turn % 8 == 5 ? 300 : 64};
    switch (kind) {
    case TDM_CASE_LARGE:
        return large_case(seed, schedule, err);
    case TDM_CASE_WIDE:
        return wide_case(seed, schedule, err);
    default:
        return tdm_random_schedule(seed, &options, schedule, err);
    }
}
