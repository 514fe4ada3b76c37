/* SPDX-License-Identifier: Apache-2.0 */
/* Random models and schedules: a config.json in memory, then random values for all settings. */
#include "tests/support/random_schedule.h"

#include "ops/selector_fields.h"
#include "schedule/optimizer.h"
#include "schedule/schedule_check.h"
#include "schedule/slices.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- random numbers ---- */

static uint64_t splitmix64(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

void tdm_dice_seed(struct tdm_dice *dice, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        dice->state[i] = splitmix64(&seed);
}

static uint64_t rotated(uint64_t value, int bits)
{
    return (value << bits) | (value >> (64 - bits));
}

uint64_t tdm_dice_next(struct tdm_dice *dice)
{
    uint64_t *s = dice->state;
    uint64_t result = rotated(s[1] * 5, 7) * 9;
    uint64_t shifted = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= shifted;
    s[3] = rotated(s[3], 45);
    return result;
}

uint64_t tdm_dice_roll(struct tdm_dice *dice, uint64_t low, uint64_t high)
{
    return low + tdm_dice_next(dice) % (high - low + 1); /* the bias does not matter here */
}

bool tdm_dice_chance(struct tdm_dice *dice, unsigned percent)
{
    return tdm_dice_roll(dice, 0, 99) < percent;
}

/* ---- a model ---- */

/* RoPE's parameters with their kind under "rope_type", without theta. Dice are rolled one by one,
 * because C does not specify the order in which arguments are evaluated. */
static json_t *random_rope(struct tdm_dice *dice)
{
    uint64_t kind = tdm_dice_roll(dice, 0, 3);
    double factor = (double)tdm_dice_roll(dice, 1, 8);
    double high = (double)tdm_dice_roll(dice, 2, 6);
    json_int_t original = (json_int_t)tdm_dice_roll(dice, 8, 64);
    switch (kind) {
    case 0:
        return json_pack("{s:s}", "rope_type", "default");
    case 1:
        return json_pack("{s:s, s:f}", "rope_type", "linear", "factor", factor);
    case 2:
        return json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", factor,
                         "low_freq_factor", 1.0, "high_freq_factor", high,
                         "original_max_position_embeddings", original);
    default:
        return json_pack("{s:s, s:f, s:I}", "rope_type", "yarn", "factor", factor,
                         "original_max_position_embeddings", original);
    }
}

static void set_count(json_t *object, const char *key, uint64_t value)
{
    json_object_set_new(object, key, json_integer((json_int_t)value));
}

/* A sliding window in no layer, in all, in the later ones (Qwen) or in random ones. */
static void random_windows(struct tdm_dice *dice, bool mistral, uint64_t layers, json_t *config)
{
    uint64_t shape = tdm_dice_roll(dice, 0, 3), window = tdm_dice_roll(dice, 1, 24);
    uint64_t first = tdm_dice_roll(dice, 0, layers);
    json_object_set_new(config, "sliding_window",
                        shape == 0 ? json_null() : json_integer((json_int_t)window));
    if (shape == 0)
        return;
    json_object_set_new(config, "use_sliding_window", json_true());
    set_count(config, "max_window_layers", shape == 1 && !mistral ? first : 0);
    json_t *types = json_array();
    for (uint64_t i = 0; i < layers; i++)
        json_array_append_new(
            types, json_string(tdm_dice_chance(dice, 50) ? "sliding_attention" : "full_attention"));
    if (shape == 3)
        json_object_set(config, "layer_types", types);
    json_decref(types);
}

static json_t *random_config(struct tdm_dice *dice, bool for_ranks)
{
    static const char *const architectures[] = {"LlamaForCausalLM", "Qwen2ForCausalLM",
                                                "Qwen3ForCausalLM", "MistralForCausalLM"};
    uint64_t architecture = tdm_dice_roll(dice, 0, 3), layers = tdm_dice_roll(dice, 1, 6);
    bool tied = tdm_dice_chance(dice, 50);
    uint64_t kv_heads = tdm_dice_roll(dice, 1, 3);
    if (for_ranks && kv_heads == 3 && layers % 2 == 0)
        kv_heads = 4;
    json_t *config = json_pack("{s:[s], s:b}", "architectures", architectures[architecture],
                               "tie_word_embeddings", (int)tied);
    if (config == NULL)
        return NULL;
    set_count(config, "num_hidden_layers", layers);
    if (architecture > 0)
        random_windows(dice, architecture == 3, layers, config);
    /* the RMSNorm of very few elements is too ill-conditioned to compare in fp32 */
    uint64_t hidden = tdm_dice_roll(dice, 8, 37);
    set_count(config, "hidden_size", hidden);
    if (hidden % 3 == 0) /* without a roll, so that other cases do not change */
        json_object_set_new(config, "hidden_act", json_string("gelu_pytorch_tanh"));
    set_count(config, "intermediate_size", tdm_dice_roll(dice, 1, 45));
    set_count(config, "num_attention_heads", kv_heads * tdm_dice_roll(dice, 1, 3));
    set_count(config, "num_key_value_heads", kv_heads);
    /* Qwen3 applies a norm to every head */
    set_count(config, "head_dim", 2 * tdm_dice_roll(dice, architecture == 2 ? 4 : 1, 7));
    /* without another roll, some have an embedding that is larger than a layer */
    uint64_t vocabulary = tdm_dice_roll(dice, 2, 67);
    set_count(config, "vocab_size", vocabulary % 4 == 3 ? 12 * vocabulary : vocabulary);
    json_t *rope = random_rope(dice);
    double theta = tdm_dice_chance(dice, 50) ? 10000 : 500;
    if (tdm_dice_chance(dice, 50)) {
        json_object_set_new(rope, "rope_theta", json_real(theta));
        json_object_set_new(config, "rope_parameters", rope);
    } else {
        json_object_set_new(config, "rope_theta", json_real(theta));
        json_object_set_new(config, "rope_scaling", rope);
    }
    return config;
}

static enum tdm_status random_model(struct tdm_dice *dice, uint64_t seed, bool for_ranks,
                                    struct tdm_model **model, struct tdm_error *err)
{
    char name[64];
    snprintf(name, sizeof(name), "random-%llu", (unsigned long long)seed);
    json_t *config = random_config(dice, for_ranks);
    if (config == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a random config");
    enum tdm_status status = tdm_model_from_config(name, name, config, model, err);
    json_decref(config);
    return status;
}

/* ---- a schedule ---- */

static enum tdm_place random_place(struct tdm_dice *dice)
{
    return tdm_dice_chance(dice, 50) ? TDM_HOST : TDM_DEVICE;
}

/* A split: at the first chunk, in the middle, or at a chunk that does not exist. */
static uint32_t random_split(struct tdm_dice *dice, uint64_t chunks)
{
    return tdm_dice_chance(dice, 40) ? 0 : (uint32_t)tdm_dice_roll(dice, 0, chunks + 1);
}

static uint64_t chunks_of(const struct tdm_schedule *schedule)
{
    uint64_t chunks = 0;
    for (uint32_t i = 0; i < schedule->sequence_count; i++)
        chunks +=
            (schedule->sequences[i].tokens + schedule->chunk_tokens - 1) / schedule->chunk_tokens;
    return chunks;
}

static enum tdm_set random_set(struct tdm_dice *dice)
{
    return tdm_dice_chance(dice, 40) ? TDM_SET_INPUT
                                     : (enum tdm_set)tdm_dice_roll(dice, 1, TDM_SETS - 1);
}

/* Everything on the device, everything on the host, or some of each. */
static void random_home(struct tdm_dice *dice, struct tdm_schedule *schedule, enum tdm_state state)
{
    uint64_t kind = tdm_dice_roll(dice, 0, 2);
    uint32_t layers = schedule->model->layers;
    struct tdm_home *home = &schedule->homes[state];
    *home = (struct tdm_home){layers, TDM_DEVICE, TDM_DEVICE};
    if (kind == 0)
        return;
    home->device_layers = kind == 1 ? 0 : (uint32_t)tdm_dice_roll(dice, 0, layers);
    home->embedding = kind == 1 ? TDM_HOST : random_place(dice);
    home->head = kind == 1 ? TDM_HOST : random_place(dice);
}

/* Updates on the host in some schedules, with all of a unit's state there. Separate dice keep the
 * other draws unchanged. */
static void random_update_place(const struct tdm_dice *drawn, struct tdm_schedule *schedule,
                                bool device_only)
{
    struct tdm_dice dice;
    tdm_dice_seed(&dice, drawn->state[0] ^ 0x0907);
    struct tdm_home *homes = schedule->homes, *weights = &homes[TDM_STATE_WEIGHTS];
    schedule->optimizer.on = TDM_DEVICE;
    if (device_only || schedule->optimizer.kind == TDM_OPTIMIZER_NONE ||
        !tdm_dice_chance(&dice, 35))
        return;
    schedule->optimizer.on = TDM_HOST;
    if (weights->device_layers == schedule->model->layers && weights->embedding == TDM_DEVICE &&
        weights->head == TDM_DEVICE)
        *weights = (struct tdm_home){0, TDM_HOST, TDM_HOST};
    homes[TDM_STATE_MASTER] = homes[TDM_STATE_MOMENTS] = *weights;
    /* in some, what is updated on the device has masters or moments at home on the host */
    for (int state = TDM_STATE_MASTER; state <= TDM_STATE_MOMENTS; state++) {
        struct tdm_home *home = &homes[state];
        if (!tdm_dice_chance(&dice, 40))
            continue;
        home->device_layers = 0;
        if (tdm_dice_chance(&dice, 50))
            home->embedding = home->head = TDM_HOST;
    }
}

void tdm_random_to_host(struct tdm_schedule *schedule)
{
    if (schedule->pass != TDM_TRAIN || tdm_gradients_stay(schedule))
        return;
    schedule->optimizer.on = TDM_HOST;
    schedule->sliced_weights = false;
    for (int state = 0; state <= TDM_STATE_MOMENTS; state++)
        tdm_schedule_set_home(schedule, (enum tdm_state)state, 0, TDM_HOST);
}

enum tdm_status tdm_random_make_ahead(struct tdm_schedule *schedule, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    if (schedule->pass != TDM_TRAIN || schedule->ranks > 1)
        return TDM_OK;
    if (schedule->sequence_count > 1)
        status = tdm_schedule_set_sequences(schedule, 1, schedule->sequences[0].tokens, err);
    if (status != TDM_OK)
        return status;
    tdm_schedule_set_order(schedule, TDM_LAYER_MAJOR);
    for (uint32_t g = 0; g < schedule->group_count; g++) {
        struct tdm_group *group = &schedule->groups[g];
        group->input_place = group->held_place = TDM_HOST;
        group->kv = TDM_KV_RECOMPUTE;
        if (tdm_set_has(group->kept, TDM_STORE_KV))
            group->kept = TDM_SET_ATTENTION_OUTPUT;
        if (tdm_set_has(group->held, TDM_STORE_KV))
            group->held = TDM_SET_ATTENTION_OUTPUT;
    }
    schedule->rings.weights += schedule->rings.weights == 1;
    schedule->rings.ahead = 1;
    return TDM_OK;
}

enum tdm_status tdm_random_favour(uint64_t seed, struct tdm_schedule *schedule,
                                  struct tdm_error *err)
{
    if (seed % 4 == 1)
        tdm_random_to_host(schedule);
    return seed % 4 == 3 ? tdm_random_make_ahead(schedule, err) : TDM_OK;
}

/* In some schedules the states that the rings pass are those of embedding and head alone: mostly
 * where they pass in slices, which few models have. Separate dice, as above. */
static void random_end_homes(const struct tdm_dice *drawn, struct tdm_schedule *schedule)
{
    struct tdm_dice dice;
    tdm_dice_seed(&dice, drawn->state[0] ^ 0x0908);
    bool sliced = tdm_slice_count(schedule, tdm_model_embedding_unit(schedule->model)) > 1;
    if (schedule->optimizer.on != TDM_DEVICE || !tdm_dice_chance(&dice, sliced ? 75 : 15))
        return;
    struct tdm_home ends = {schedule->model->layers, TDM_HOST, TDM_HOST};
    schedule->homes[TDM_STATE_MASTER] = schedule->homes[TDM_STATE_MOMENTS] = ends;
}

/* Slots for gradients of layers that are updated on the host. Separate dice, as above. */
static uint32_t random_host_gradients(const struct tdm_dice *drawn)
{
    struct tdm_dice dice;
    tdm_dice_seed(&dice, drawn->state[0] ^ 0x4057);
    return (uint32_t)tdm_dice_roll(&dice, 1, 4);
}

static void random_homes(struct tdm_dice *dice, struct tdm_schedule *schedule, bool device_only)
{
    for (int state = 0; state < TDM_STATES; state++) {
        tdm_schedule_set_home(schedule, (enum tdm_state)state, schedule->model->layers, TDM_DEVICE);
        if (!device_only && (state != TDM_STATE_GRADIENTS || tdm_gradients_stay(schedule)))
            random_home(dice, schedule, (enum tdm_state)state);
    }
    random_update_place(dice, schedule, device_only);
    if (!device_only)
        random_end_homes(dice, schedule);
    schedule->rings.weights = (uint32_t)tdm_dice_roll(dice, 1, 4);
    schedule->rings.optimizer = (uint32_t)tdm_dice_roll(dice, 1, 3);
    schedule->rings.host_gradients = random_host_gradients(dice);
    schedule->rings.stashed = (uint32_t)tdm_dice_roll(dice, 1, 4);
    schedule->rings.kv = (uint32_t)tdm_dice_roll(dice, 1, 3);
    /* without a draw of its own: schedules of one rank stay what they were */
    schedule->rings.gradients =
        schedule->ranks > 1 ? 1 + (schedule->rings.weights + schedule->rings.kv) % 2 : 1;
    schedule->splits_by_position =
        schedule->ranks == 1 && schedule->sequence_count > 1 && schedule->rings.kv != 2;
    schedule->rings.ahead = (schedule->rings.weights + schedule->rings.optimizer) % 2;
    schedule->sliced_weights = schedule->ranks > 1 && schedule->optimizer.on == TDM_DEVICE &&
                               (schedule->rings.weights + schedule->rings.stashed) % 2 == 0;
}

/* Draws order, groups, places, sets, homes, rings and prefetch, which never change a result. */
static enum tdm_status random_nest(struct tdm_dice *dice, struct tdm_schedule *schedule,
                                   struct tdm_error *err)
{
    uint32_t left = schedule->model->layers;
    uint32_t count = 0;
    uint32_t *sizes = calloc(left, sizeof(*sizes));
    if (sizes == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for random groups");
    bool ones = tdm_dice_chance(dice, 25), all = tdm_dice_chance(dice, 25);
    while (left > 0) {
        uint32_t size = (uint32_t)tdm_dice_roll(dice, 1, left);
        sizes[count] = ones ? 1 : all ? left : size;
        left -= sizes[count++];
    }
    enum tdm_status status = tdm_schedule_set_groups(schedule, count, sizes, err);
    free(sizes);
    if (status != TDM_OK)
        return status;

    uint64_t chunks = chunks_of(schedule);
    bool chunk_major = tdm_dice_chance(dice, 50) && schedule->ranks == 1;
    bool device_only = tdm_dice_chance(dice, 25);
    tdm_schedule_set_order(schedule, chunk_major ? TDM_CHUNK_MAJOR : TDM_LAYER_MAJOR);
    schedule->prefetch = (uint32_t)tdm_dice_roll(dice, 0, 5);
    random_homes(dice, schedule, device_only);
    for (uint32_t i = 0; i < schedule->group_count; i++) {
        struct tdm_group *group = &schedule->groups[i];
        group->kept = random_set(dice);
        group->held = random_set(dice);
        group->kept_from_chunk = random_split(dice, chunks);
        group->held_from_chunk = random_split(dice, chunks);
        group->input_place = random_place(dice);
        group->kept_place = random_place(dice);
        group->held_place = random_place(dice);
        /* chunk-major requires all K and V; kept sets may include them: tdm_schedule_check */
        if (!chunk_major && (tdm_set_has(group->kept, TDM_STORE_KV) || tdm_dice_chance(dice, 40))) {
            group->kv = TDM_KV_KEEP;
            group->kv_place = device_only ? TDM_DEVICE : random_place(dice);
        }
        if (device_only)
            group->input_place = group->kept_place = group->held_place = TDM_DEVICE;
        if (chunk_major && !device_only) {
            group->kv_place = random_place(dice);
            group->kv_gradients_place = random_place(dice);
        }
        if (chunk_major) /* held tensors live for one chunk there: tdm_schedule_check */
            group->held_place = TDM_DEVICE;
        struct tdm_dice own = *dice; /* what is drawn next does not depend on this */
        if (group->held_place != TDM_DEVICE && tdm_dice_chance(&own, 50))
            group->held_device_chunks = random_split(&own, chunks);
    }
    if (schedule->pass == TDM_EVALUATE)
        tdm_schedule_set_evaluate(schedule);
    return TDM_OK;
}

static enum tdm_status random_sequences(struct tdm_dice *dice, uint64_t max_tokens,
                                        struct tdm_schedule *schedule, struct tdm_error *err)
{
    uint64_t count = tdm_dice_chance(dice, 50) ? 1 : tdm_dice_roll(dice, 2, 3);
    if (count > max_tokens)
        count = max_tokens;
    enum tdm_status status = tdm_schedule_set_sequences(schedule, (uint32_t)count, 0, err);
    if (status != TDM_OK)
        return status;
    uint64_t longest = 1;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t tokens = tdm_dice_roll(dice, 1, max_tokens / count);
        schedule->sequences[i].tokens = tokens;
        longest = tokens > longest ? tokens : longest;
    }

    uint64_t shape = tdm_dice_roll(dice, 0, 99);
    if (shape < 10)
        schedule->chunk_tokens = 1;
    else if (shape < 20) /* one chunk, full or partly filled */
        schedule->chunk_tokens = longest + tdm_dice_roll(dice, 0, 9);
    else
        schedule->chunk_tokens = tdm_dice_roll(dice, 1, longest / 2 + 1);
    schedule->page_tokens = tdm_dice_roll(dice, 1, tdm_dice_chance(dice, 50) ? 8 : 40);
    while ((schedule->chunk_tokens ^ longest) % 2 == 0 && /* often: pages that fill chunks */
           schedule->chunk_tokens % schedule->page_tokens != 0)
        schedule->page_tokens--;
    schedule->head_tile_tokens = tdm_dice_chance(dice, 30)
                                     ? schedule->chunk_tokens
                                     : tdm_dice_roll(dice, 1, schedule->chunk_tokens + 2);
    uint64_t vocabulary = schedule->model->vocabulary;
    if (tdm_dice_chance(dice, 40)) /* several tiles, mostly of unequal sizes */
        schedule->head_tile_vocabulary = tdm_dice_roll(dice, vocabulary / 8 + 1, vocabulary);
    return TDM_OK;
}

/* Divides a sequence into documents: only one, several of one length, or random ones, some of which
 * begin with a chunk. */
static enum tdm_status random_documents(struct tdm_dice *dice, uint64_t chunk_tokens,
                                        struct tdm_sequence *sequence, struct tdm_error *err)
{
    uint64_t shape = tdm_dice_roll(dice, 0, 99), tokens = sequence->tokens;
    if (shape < 50)
        return TDM_OK;
    if (shape < 65)
        return tdm_sequence_divide(sequence, "random", tdm_dice_roll(dice, 1, tokens), err);
    uint64_t *starts = calloc(tokens, sizeof(*starts));
    if (starts == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for random documents");
    uint32_t count = 1;
    unsigned percent = (unsigned)tdm_dice_roll(dice, 1, tdm_dice_chance(dice, 50) ? 20 : 80);
    for (uint64_t token = 1; token < tokens; token++)
        if (tdm_dice_chance(dice, token % chunk_tokens == 0 ? 50 : percent))
            starts[count++] = token;
    enum tdm_status status = tdm_sequence_pack(sequence, "random", count, starts, err);
    free(starts);
    return status;
}

static enum tdm_dtype wide_or_narrow(struct tdm_dice *dice)
{
    return tdm_dice_chance(dice, 50) ? TDM_DTYPE_FP32 : TDM_DTYPE_BF16;
}

static void random_dtypes(struct tdm_dice *dice, const struct tdm_random_options *options,
                          struct tdm_dtypes *dtypes)
{
    bool mixed = options->dtypes == TDM_RANDOM_MIXED ||
                 (options->dtypes == TDM_RANDOM_ANY_DTYPES && tdm_dice_chance(dice, 50));
    *dtypes = (struct tdm_dtypes){.weights = TDM_DTYPE_FP32,
                                  .activations = TDM_DTYPE_FP32,
                                  .kv = TDM_DTYPE_FP32,
                                  .kv_gradients = TDM_DTYPE_FP32,
                                  .gradients = TDM_DTYPE_FP32,
                                  .logits = TDM_DTYPE_FP32};
    if (mixed || options->dtypes == TDM_RANDOM_FP32_ACTIVATIONS)
        dtypes->weights = wide_or_narrow(dice);
    if (!mixed)
        return;
    enum tdm_dtype *some[] = {&dtypes->activations, &dtypes->kv, &dtypes->kv_gradients,
                              &dtypes->gradients, &dtypes->logits};
    for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++)
        *some[i] = wide_or_narrow(dice);
}

/* Draws when updates run, unless the clipping decides it. */
static void random_when(struct tdm_dice *dice, struct tdm_schedule *schedule)
{
    if (schedule->optimizer.clip != TDM_CLIP_GLOBAL)
        schedule->optimizer.when = tdm_dice_chance(dice, 50) ? TDM_WHEN_END : TDM_WHEN_LAYER;
}

/* To norms around those of random models, in most schedules. */
static void random_clip(struct tdm_dice *dice, struct tdm_schedule *schedule)
{
    static const double norms[] = {0.03, 0.1, 0.3, 1, 3};
    if (tdm_dice_chance(dice, 80)) {
        bool global = tdm_dice_chance(dice, 50);
        tdm_schedule_set_clip(schedule, global ? TDM_CLIP_GLOBAL : TDM_CLIP_LAYER);
        schedule->optimizer.clip_norm = norms[tdm_dice_roll(dice, 0, 4)];
    }
    random_when(dice, schedule);
}

/* Draws the optimizer's kind and settings, and either master dtype if bf16 weights may have one. */
static void random_optimizer(struct tdm_dice *dice, const struct tdm_random_options *options,
                             struct tdm_schedule *schedule)
{
    struct tdm_dtypes *dtypes = &schedule->dtypes;
    enum tdm_optimizer kind = TDM_OPTIMIZER_NONE;
    if (options->optimizer == TDM_RANDOM_UPDATES ||
        (options->optimizer == TDM_RANDOM_ANY_OPTIMIZER && tdm_dice_chance(dice, 70)))
        kind = (enum tdm_optimizer)tdm_dice_roll(dice, TDM_OPTIMIZER_NONE + 1, TDM_OPTIMIZERS - 1);
    if (kind == TDM_OPTIMIZER_ADAMW_BF16)
        dtypes->weights = TDM_DTYPE_BF16;
    tdm_schedule_set_optimizer(schedule, kind);
    bool asked =
        kind == TDM_OPTIMIZER_SGD && dtypes->weights == TDM_DTYPE_BF16 && tdm_dice_chance(dice, 50);
    if (dtypes->master != TDM_DTYPE_NONE || asked)
        dtypes->master = tdm_dice_chance(dice, 50) ? TDM_DTYPE_FP32 : TDM_DTYPE_REMAINDER16;
    struct tdm_dice aside = *dice; /* so that the rest of the schedule does not depend on it */
    if (kind != TDM_OPTIMIZER_NONE && tdm_dice_chance(&aside, 50))
        schedule->optimizer.decayed =
            (uint32_t)tdm_dice_roll(&aside, 0, (1 << TDM_TENSOR_KINDS) - 1);
    if (kind != TDM_OPTIMIZER_NONE)
        random_clip(dice, schedule);
    schedule->optimizer.warmup_steps = tdm_dice_roll(dice, 0, 3);
    schedule->optimizer.rate_schedule =
        (enum tdm_rate_schedule)tdm_dice_roll(dice, 0, TDM_RATE_SCHEDULES - 1);
    if (schedule->optimizer.rate_schedule != TDM_RATE_CONSTANT) {
        schedule->optimizer.decay_steps = tdm_dice_roll(dice, 1, 4);
        schedule->optimizer.final_learning_rate = tdm_dice_chance(dice, 50) ? 0 : 1e-4;
    }
}

void tdm_random_selector(struct tdm_dice *dice, struct tdm_schedule *schedule)
{
    struct tdm_selector *s = &schedule->selector;
    const struct tdm_selector_field *field;
    uint64_t page = schedule->page_tokens, tokens = schedule->sequences[0].tokens;
    if (tdm_dice_chance(dice, 45))
        return;
    s->kind = tdm_dice_chance(dice, 40)
                  ? TDM_SELECT_TOP_K
                  : (enum tdm_selector_kind)tdm_dice_roll(dice, 1, TDM_SELECTORS - 1);
    for (size_t i = 0; (field = tdm_selector_field(i)) != NULL; i++) {
        if (!tdm_selector_has(s->kind, field))
            continue;
        uint64_t pages = tdm_dice_roll(dice, 1, 4);
        bool of_pages = field->in_pages >> s->kind & 1;
        bool few = strcmp(field->name, "random") == 0 || strcmp(field->name, "dilation") == 0;
        *tdm_selector_value(s, field) = of_pages ? pages * page
                                        : few    ? pages
                                                 : tdm_dice_roll(dice, 1, tokens);
    }
}

/* If pages fill chunks, attention may gather the pages of its lists from the host. It has space for
 * all, because each further batch rounds the sums once more. */
static void random_gather(struct tdm_dice *dice, struct tdm_schedule *schedule)
{
    bool fills = schedule->chunk_tokens % schedule->page_tokens == 0;
    schedule->rings.gather = fills && tdm_dice_chance(dice, 60) ? TDM_MAX_GATHER : 0;
}

/* In one schedule in four, tokens see so few of so many chunks that in layer-major order K and V
 * move in their rows. Separate dice keep the other draws unchanged. */
static bool is_shortsighted(uint64_t seed, struct tdm_dice *dice)
{
    tdm_dice_seed(dice, seed ^ 0x5117);
    return tdm_dice_chance(dice, 25);
}

static void shorten_chunks(struct tdm_dice *dice, struct tdm_schedule *schedule)
{
    uint64_t longest = 1, chunks = tdm_dice_roll(dice, 8, 16);
    for (uint32_t i = 0; i < schedule->sequence_count; i++)
        if (schedule->sequences[i].tokens > longest)
            longest = schedule->sequences[i].tokens;
    schedule->chunk_tokens = longest < chunks ? 1 : longest / chunks;
}

static void shorten_sight(struct tdm_dice *dice, struct tdm_schedule *schedule)
{
    bool window = tdm_dice_chance(dice, 70);
    uint64_t tokens = tdm_dice_roll(dice, 1, schedule->chunk_tokens + 2);
    schedule->selector =
        (struct tdm_selector){.kind = window ? TDM_SELECT_WINDOW : TDM_SELECT_BLOCK};
    *(window ? &schedule->selector.window : &schedule->selector.block) = tokens;
}

/* Chunks of the longest sequence. */
static uint64_t most_chunks(const struct tdm_schedule *schedule)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < schedule->sequence_count; i++)
        if (schedule->sequences[i].tokens > most)
            most = schedule->sequences[i].tokens;
    return (most + schedule->chunk_tokens - 1) / schedule->chunk_tokens;
}

/* As many ranks, of `most`, as divide the KV heads; 1: none do. */
static uint32_t ranks_of_heads(const struct tdm_schedule *schedule, uint64_t most)
{
    uint32_t heads = schedule->model->kv_heads, ranks = heads;
    while (ranks > 1 && (heads % ranks != 0 || ranks > most))
        ranks--;
    return ranks;
}

/* Makes rows of `row` ranks divide the heads, if several rows have chunks that lie side by side. */
static bool random_rows(struct tdm_dice *dice, uint32_t most, uint32_t row,
                        enum tdm_exchange_kind exchange, struct tdm_schedule *schedule)
{
    const uint64_t chunks = most_chunks(schedule);
    if (row == 1 || most < 2 * row || chunks < 2 * row || schedule->deal == TDM_DEAL_GREEDY)
        return false;
    schedule->ranks = row * (uint32_t)tdm_dice_roll(dice, 2, most / row);
    if (schedule->ranks > chunks)
        schedule->ranks = 2 * row;
    schedule->exchange = exchange;
    schedule->head_ranks = row;
    return true;
}

/* Draws a number of ranks, each of which has a chunk of the longest sequence. */
static void random_ranks(uint64_t seed, uint32_t most, struct tdm_schedule *schedule)
{
    struct tdm_dice dice;
    uint64_t chunks = most_chunks(schedule);
    tdm_dice_seed(&dice, seed ^ 0x7a4b5);
    if (most > 1 && chunks > 1)
        schedule->ranks = (uint32_t)tdm_dice_roll(&dice, 2, chunks < most ? chunks : most);
    if (schedule->ranks > 1 && tdm_dice_chance(&dice, 60))
        schedule->deal = (enum tdm_deal)tdm_dice_roll(&dice, 1, TDM_DEALS - 1);
    if (schedule->ranks == 1)
        return;
    bool gathers = tdm_dice_chance(&dice, 40);
    const uint32_t row = ranks_of_heads(schedule, chunks < most ? chunks / 2 : most / 2);
    if (tdm_dice_chance(&dice, row > 1 ? 65 : 40) && schedule->deal != TDM_DEAL_CONTIGUOUS) {
        const bool queries = tdm_dice_chance(&dice, 50);
        schedule->exchange = queries ? TDM_EXCHANGE_QUERIES : TDM_EXCHANGE_RING;
        if (tdm_dice_chance(&dice, 85)) /* in the ring are rows that divide the heads */
            random_rows(&dice, most, row,
                        queries ? TDM_EXCHANGE_HEADS_QUERIES : TDM_EXCHANGE_HEADS_RING, schedule);
        return;
    }
    const uint32_t ranks = ranks_of_heads(schedule, chunks < most ? chunks : most);
    if (gathers || ranks == 1 ||
        random_rows(&dice, most, ranks, TDM_EXCHANGE_HEADS_GATHER, schedule))
        return;
    schedule->ranks = ranks;
    schedule->exchange = TDM_EXCHANGE_HEADS;
}

enum tdm_status tdm_random_schedule(uint64_t seed, const struct tdm_random_options *options,
                                    struct tdm_schedule **out, struct tdm_error *err)
{
    struct tdm_model *model = NULL;
    struct tdm_machine *machine = NULL;
    struct tdm_schedule *schedule = NULL;
    struct tdm_dice dice, sight;
    tdm_dice_seed(&dice, seed);
    bool shortsighted = is_shortsighted(seed, &sight);

    enum tdm_status status = random_model(&dice, seed, options->ranks > 1, &model, err);
    if (status != TDM_OK)
        return status;
    status = tdm_machine_load("h200-published", &machine, err);
    if (status == TDM_OK)
        status = tdm_schedule_new(model, machine, 1, &schedule, err);
    if (status != TDM_OK) {
        tdm_machine_free(machine);
        tdm_model_free(model);
        return status;
    }

    status =
        random_sequences(&dice, options->max_tokens == 0 ? 64 : options->max_tokens, schedule, err);
    if (shortsighted)
        shorten_chunks(&sight, schedule);
    random_dtypes(&dice, options, &schedule->dtypes);
    random_optimizer(&dice, options, schedule);
    if (options->pass == TDM_RANDOM_EVALUATE ||
        (options->pass == TDM_RANDOM_ANY_PASS && seed % 5 == 0))
        schedule->pass = TDM_EVALUATE;
    random_ranks(seed, options->ranks, schedule);
    if (status == TDM_OK)
        status = random_nest(&dice, schedule, err);
    for (uint32_t i = 0; i < schedule->sequence_count && status == TDM_OK; i++)
        status = random_documents(&dice, schedule->chunk_tokens, &schedule->sequences[i], err);
    tdm_random_selector(&dice, schedule);
    if (schedule->exchange != TDM_EXCHANGE_GATHER && tdm_selector_lists(schedule->selector.kind))
        schedule->selector = (struct tdm_selector){0};
    random_gather(&dice, schedule);
    if (shortsighted)
        shorten_sight(&sight, schedule);
    if (status == TDM_OK)
        status = tdm_schedule_check(schedule, model->name, err);
    if (status != TDM_OK) {
        tdm_schedule_free(schedule);
        return status;
    }
    *out = schedule;
    return TDM_OK;
}

static enum tdm_status copy_schedule(const struct tdm_schedule *schedule, const char *name,
                                     struct tdm_schedule **copy, struct tdm_error *err)
{
    json_t *root = NULL;
    enum tdm_status status = tdm_schedule_to_json(schedule, NULL, &root, err);
    if (status != TDM_OK)
        return status;
    status = tdm_schedule_from_json(name, root, copy, err);
    json_decref(root);
    return status;
}

enum tdm_status tdm_random_variant(const struct tdm_schedule *schedule, uint64_t seed,
                                   struct tdm_schedule **out, struct tdm_error *err)
{
    struct tdm_schedule *variant = NULL;
    struct tdm_dice dice;
    tdm_dice_seed(&dice, seed);
    enum tdm_status status = copy_schedule(schedule, "variant", &variant, err);
    if (status != TDM_OK)
        return status;
    random_when(&dice, variant);
    status = random_nest(&dice, variant, err);
    random_gather(&dice, variant);
    if (status == TDM_OK)
        status = tdm_schedule_check(variant, "variant", err);
    if (status != TDM_OK) {
        tdm_schedule_free(variant);
        return status;
    }
    *out = variant;
    return TDM_OK;
}

enum tdm_status tdm_random_evaluation(const struct tdm_schedule *schedule, uint64_t seed,
                                      uint64_t max_tokens, struct tdm_schedule **out,
                                      struct tdm_error *err)
{
    struct tdm_schedule *evaluation = NULL;
    struct tdm_dice dice;
    tdm_dice_seed(&dice, seed ^ 0xe7a1);
    enum tdm_status status = copy_schedule(schedule, "evaluation", &evaluation, err);
    if (status != TDM_OK)
        return status;
    evaluation->pass = TDM_EVALUATE;
    status = random_sequences(&dice, max_tokens, evaluation, err);
    if (status == TDM_OK)
        status = random_nest(&dice, evaluation, err);
    evaluation->selector = (struct tdm_selector){0};
    tdm_random_selector(&dice, evaluation);
    random_gather(&dice, evaluation);
    memcpy(evaluation->homes, schedule->homes, sizeof(evaluation->homes)); /* the same state */
    evaluation->optimizer.on = schedule->optimizer.on;
    if (status == TDM_OK)
        status = tdm_schedule_check(evaluation, "evaluation", err);
    if (status != TDM_OK) {
        tdm_schedule_free(evaluation);
        return status;
    }
    *out = evaluation;
    return TDM_OK;
}

/* ---- descriptions ---- */

struct text {
    char *out;
    size_t used, capacity;
};

static void add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(struct text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int written = vsnprintf(text->out + text->used, text->capacity - text->used, format, args);
    va_end(args);
    text->used += written > 0 ? (size_t)written : 0;
    if (text->used >= text->capacity)
        text->used = text->capacity - 1;
}

const char *tdm_schedule_describe(const struct tdm_schedule *schedule, char *out, size_t out_bytes)
{
    const struct tdm_model *model = schedule->model;
    const struct tdm_dtypes *dtypes = &schedule->dtypes;
    struct text text = {out, 0, out_bytes};
    uint32_t windows = 0;
    for (uint32_t i = 0; i < model->layers; i++)
        windows += model->layer_kinds[i].window > 0;
    add(&text, "%s%s %u (%u with windows) x %u, heads %u/%u x %u, mlp %u, vocabulary %u; tokens",
        model->architecture, model->tied ? " tied" : "", model->layers, windows, model->hidden,
        model->query_heads, model->kv_heads, model->head_dim, model->intermediate,
        model->vocabulary);
    for (uint32_t i = 0; i < schedule->sequence_count; i++)
        add(&text, " %llu(%u)", (unsigned long long)schedule->sequences[i].tokens,
            schedule->sequences[i].document_count);
    if (schedule->selector.kind != TDM_SELECT_DENSE)
        add(&text, " %s", tdm_selector_name(schedule->selector.kind));
    for (size_t i = 0; tdm_selector_field(i) != NULL; i++)
        if (tdm_selector_has(schedule->selector.kind, tdm_selector_field(i)))
            add(&text, " %s %llu", tdm_selector_field(i)->name,
                (unsigned long long)tdm_selector_get(&schedule->selector, tdm_selector_field(i)));
    add(&text, " chunk %llu page %llu tile %llu x %llu prefetch %u %s %s",
        (unsigned long long)schedule->chunk_tokens, (unsigned long long)schedule->page_tokens,
        (unsigned long long)schedule->head_tile_tokens,
        (unsigned long long)schedule->head_tile_vocabulary, schedule->prefetch,
        tdm_purpose_name(schedule->pass), tdm_order_name(schedule->order));
    if (schedule->ranks > 1)
        add(&text, " over %u ranks, %s, %s", schedule->ranks, tdm_deal_name(schedule->deal),
            tdm_exchange_kind_name(schedule->exchange));
    add(&text, "; groups");
    for (uint32_t i = 0; i < schedule->group_count; i++) {
        const struct tdm_group *group = &schedule->groups[i];
        add(&text, " %u(input %c", group->layers,
            tdm_place_name(&schedule->machine->topology, group->input_place)[0]);
        if (group->kept != TDM_SET_INPUT)
            add(&text, ", kept %s %u+ %c", tdm_set_name(group->kept), group->kept_from_chunk,
                tdm_place_name(&schedule->machine->topology, group->kept_place)[0]);
        add(&text, ", held %c", tdm_place_name(&schedule->machine->topology, group->held_place)[0]);
        if (group->held_device_chunks > 0)
            add(&text, " (%u near)", group->held_device_chunks);
        if (group->held != TDM_SET_INPUT)
            add(&text, " %s %u+", tdm_set_name(group->held), group->held_from_chunk);
        if (group->kv == TDM_KV_KEEP)
            add(&text, ", kv %c%c",
                tdm_place_name(&schedule->machine->topology, group->kv_place)[0],
                tdm_place_name(&schedule->machine->topology, group->kv_gradients_place)[0]);
        add(&text, ")");
    }
    add(&text, "; homes");
    for (int state = 0; state < TDM_STATES; state++)
        add(&text, " %s %u%c%c", tdm_state_name((enum tdm_state)state),
            schedule->homes[state].device_layers,
            tdm_place_name(&schedule->machine->topology, schedule->homes[state].embedding)[0],
            tdm_place_name(&schedule->machine->topology, schedule->homes[state].head)[0]);
    add(&text, " rings %u %u %u %u gather %u ahead %u; %s at %s on %s", schedule->rings.weights,
        schedule->rings.optimizer, schedule->rings.host_gradients, schedule->rings.stashed,
        schedule->rings.gather, schedule->rings.ahead, tdm_optimizer_name(schedule->optimizer.kind),
        tdm_when_name(schedule->optimizer.when),
        tdm_place_name(&schedule->machine->topology, schedule->optimizer.on));
    if (schedule->splits_by_position)
        add(&text, ", splits by position");
    if (schedule->optimizer.clip != TDM_CLIP_NONE)
        add(&text, ", clip %s %g", tdm_clip_name(schedule->optimizer.clip),
            schedule->optimizer.clip_norm);
    add(&text, "; dtypes %s %s %s %s %s %s %s %s", tdm_dtype_name(dtypes->weights),
        tdm_dtype_name(dtypes->master), tdm_dtype_name(dtypes->activations),
        tdm_dtype_name(dtypes->kv), tdm_dtype_name(dtypes->kv_gradients),
        tdm_dtype_name(dtypes->gradients), tdm_dtype_name(dtypes->moments),
        tdm_dtype_name(dtypes->logits));
    return out;
}
