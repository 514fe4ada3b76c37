/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of DeepSpeed's ZeRO: what a rank keeps between steps, the copies of an optimizer step,
 * bucket sizes, the trace of modules, and what is left if parameters or states are offloaded. Also
 * tests LoRA under fully_shard. */
#include "methods/deepspeed/parts.h"
#include "methods/prediction.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define MOST_PAIRS 8u

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

struct setting {
    const char *model, *method;
    uint64_t gpus, context;
    const char *pairs[MOST_PAIRS]; /* up to the first NULL */
};

static void read_setting(const struct setting *setting, struct tdm_model **model,
                         struct tdm_method_settings *settings)
{
    const struct tdm_method *method;
    struct tdm_method_choices choices;
    struct tdm_error err;
    size_t count = 0;
    while (count < MOST_PAIRS && setting->pairs[count] != NULL)
        count++;
    memset(settings, 0, sizeof(*settings));
    settings->torch.tokens = setting->context;
    settings->torch.batch = 1;
    settings->torch.ranks = setting->gpus;
    must(tdm_model_load(setting->model, model, &err), &err);
    must(tdm_method_find(setting->method, &method, &err), &err);
    must(tdm_method_apply(method, setting->pairs, count, settings, &choices, &err), &err);
    must(tdm_method_check(*model, settings, &err), &err);
}

struct counting {
    uint64_t bytes; /* of what is counted */
    uint32_t count; /* allocations of that size in step 2 */
};

static void count_size(void *context, const struct tdm_torch_event *event)
{
    struct counting *counting = context;
    counting->count += event->step == 2 && event->allocated && event->bytes == counting->bytes;
}

static const struct tdm_torch_device gpu = {
    {132, 2048, 32 * MIB, MIB, 90}, UINT64_C(1) << 42, UINT64_C(1) << 42, 0, false};

static struct tdm_torch_run run(const struct setting *setting, struct counting *counting)
{
    struct tdm_model *model = NULL;
    struct tdm_method_settings settings;
    struct tdm_torch_observer observer = {.event = count_size, .context = counting};
    struct tdm_torch_run out;
    struct tdm_error err;
    read_setting(setting, &model, &settings);
    must(tdm_torch_run(model, &settings, &gpu, 3, counting != NULL ? &observer : NULL, &out, &err),
         &err);
    assert_int_equal(out.steps, 3);
    assert_false(out.step[2].failed);
    tdm_model_free(model);
    return out;
}

static void assert_near(uint64_t value, uint64_t expected, uint64_t slack)
{
    if (value + slack < expected || value > expected + slack)
        fail_msg("%llu is not near %llu", (unsigned long long)value, (unsigned long long)expected);
}

#define PARAMETERS UINT64_C(7615616512) /* of qwen2.5-7b */

/* ZeRO-2 keeps 2 P bytes of weights and 12 P / N of masters and moments. ZeRO-3 keeps 16 P / N, a
 * bucket, and small parameters. */
static void states_are_shared(void **state)
{
    (void)state;
    for (uint64_t gpus = 1; gpus <= 8; gpus *= 2) {
        struct setting one = {"qwen2.5-7b", "deepspeed-zero1", gpus, 1024, {NULL}};
        struct setting two = {"qwen2.5-7b", "zero2", gpus, 1024, {NULL}};
        struct setting three = {"qwen2.5-7b", "zero3", gpus, 1024, {"reduce_bucket_size=1e6"}};
        struct setting offload = {"qwen2.5-7b", "zero3-offload", gpus, 1024, {NULL}};
        assert_near(run(&two, NULL).step[2].before_bytes, 2 * PARAMETERS + 12 * PARAMETERS / gpus,
                    100 * MIB);
        assert_near(run(&one, NULL).step[2].before_bytes, run(&two, NULL).step[2].before_bytes,
                    MIB);
        assert_near(run(&three, NULL).step[2].before_bytes, 16 * PARAMETERS / gpus, 100 * MIB);
        struct tdm_torch_run out = run(&offload, NULL);
        assert_near(out.step[2].before_bytes, 1000000000, 100 * MIB); /* the bucket */
        assert_true(out.step[2].host_bytes > 18 * (PARAMETERS / gpus));
        assert_true(out.step[2].host_bytes < 30 * (PARAMETERS / gpus));
    }
}

static void nothing_is_left(void **state)
{
    static const char *const checkpointing[] = {"checkpointing=off", "checkpointing=on",
                                                "checkpointing=on-reentrant"};
    static const char *const methods[] = {"deepspeed-zero1", "zero2", "zero3", "zero3-offload",
                                          "fsdp"};
    (void)state;
    for (size_t m = 0; m < 5; m++)
        for (size_t c = 0; c < 3; c++) {
            struct setting setting = {"qwen2.5-1.5b", methods[m], 2, 1024, {checkpointing[c]}};
            struct tdm_torch_run out = run(&setting, NULL);
            assert_int_equal(out.step[1].end_bytes[2], out.step[2].end_bytes[2]);
            setting.pairs[1] = "lora_rank=8";
            out = run(&setting, NULL);
            assert_int_equal(out.step[1].end_bytes[2], out.step[2].end_bytes[2]);
        }
}

/* A step flattens a sub-group's bf16 gradients and converts them to fp32: 6 bytes per element. */
static void sub_groups_are_stepped(void **state)
{
    struct setting setting = {"qwen2.5-7b",
                              "zero3",
                              2,
                              128,
                              {"sub_group_size=1e9", "checkpointing=on", "reduce_bucket_size=1e6",
                               "stage3_max_live_parameters=0", "stage3_max_reuse_distance=0"}};
    (void)state;
    struct tdm_torch_run whole = run(&setting, NULL);
    uint64_t copies = whole.step[2].highest_bytes[2] - whole.step[2].before_bytes;
    assert_near(copies, 6000000000, 400 * MIB); /* the last parameter may exceed the size */
    setting.pairs[0] = "sub_group_size=1e8";
    struct tdm_torch_run parts = run(&setting, NULL);
    assert_true(parts.step[2].highest_bytes[2] < whole.step[2].highest_bytes[2]);
}

static void buckets_are_made(void **state)
{
    struct counting counting = {.bytes = 2 * 12345678};
    struct setting two = {"qwen2.5-1.5b", "zero2", 2, 512, {"reduce_bucket_size=12345678"}};
    (void)state;
    run(&two, &counting);
    assert_int_equal(counting.count, 1);
    two.pairs[1] = "overlap_comm=true";
    counting.count = 0;
    run(&two, &counting);
    assert_int_equal(counting.count, 2);
    two.pairs[2] = "contiguous_gradients=false";
    counting.count = 0;
    run(&two, &counting);
    assert_int_equal(counting.count, 0);
    counting = (struct counting){.bytes = 12345678 * 4};
    struct setting three = {"qwen2.5-1.5b",
                            "zero3",
                            2,
                            512,
                            {"reduce_bucket_size=12345678", "communication_data_type=fp32"}};
    run(&three, &counting); /* it exists from the beginning */
    assert_int_equal(counting.count, 0);
}

/* Where they are made before the backward they lie beside the gradient of the logits, which with
 * few layers and many words is the peak: a quarter of a GiB each. */
static void buckets_were_made_early(void **state)
{
    struct setting two = {
        "qwen2.5-0.5b",
        "zero2",
        2,
        4096,
        {"checkpointing=on", "reduce_bucket_size=134217728", "overlap_comm=true"}};
    (void)state;
    const uint64_t late = run(&two, NULL).step[2].phases[TDM_PHASE_BACKWARD].allocated;
    two.pairs[3] = "deepspeed=0.18.2";
    assert_int_equal(run(&two, NULL).step[2].phases[TDM_PHASE_BACKWARD].allocated,
                     late + 2 * 256 * MIB);
}

/* Stage 1 has gradients of all parameters, 2 P bytes, and a bucket when the backward ends. Then it
 * collects those of its partition, 2 P / N; those that were copied to the bucket go. With
 * overlap_comm it reduces as stage 2 does, and takes as much. */
static void gradients_are_whole(void **state)
{
    struct setting one = {
        "qwen2.5-7b", "deepspeed-zero1", 8, 128, {"checkpointing=on", "reduce_bucket_size=1e8"}};
    struct setting two = one;
    (void)state;
    two.method = "zero2";
    struct tdm_torch_run whole = run(&one, NULL), shared = run(&two, NULL);
    assert_near(whole.step[2].phases[TDM_PHASE_BACKWARD].allocated - whole.step[2].before_bytes,
                2 * PARAMETERS + 2 * PARAMETERS / 8 + 200000000, 400 * MIB);
    assert_int_equal(whole.step[2].end_bytes[TDM_PHASE_BACKWARD],
                     shared.step[2].end_bytes[TDM_PHASE_BACKWARD]);
    one.pairs[2] = two.pairs[2] = "overlap_comm=true";
    whole = run(&one, NULL);
    shared = run(&two, NULL);
    assert_near(whole.step[2].peak.allocated, shared.step[2].peak.allocated, 2300 * MIB);
    /* Until the last backward nothing is reduced. */
    one.pairs[2] = "gradient_accumulation_steps=2";
    whole = run(&one, NULL);
    assert_near(whole.step[2].end_bytes[TDM_PHASE_FORWARD] - whole.step[2].before_bytes,
                2 * PARAMETERS + 200000000, 400 * MIB);
}

/* ALST is Ulysses over ZeRO-3 with what its recipes switch on: with the same settings it takes what
 * ZeRO-3 takes on as many tokens a GPU, but for the attention of all tokens of some heads. */
static void alst_divides_sequences(void **state)
{
    struct setting alst = {"llama-3.1-8b", "alst", 8, 65536, {NULL}};
    struct setting zero3 = {"llama-3.1-8b",
                            "zero3",
                            8,
                            8192,
                            {"offload_optimizer=cpu", "checkpointing=on",
                             "activation_checkpoint_cpu_offload=true", "tiled_mlp_compute=auto",
                             "tiled_logits=auto", "allocator_conf=expandable_segments:True"}};
    (void)state;
    struct tdm_torch_run divided = run(&alst, NULL), whole = run(&zero3, NULL);
    assert_near(divided.step[2].before_bytes, whole.step[2].before_bytes, 64 * MIB);
    assert_near(divided.step[2].host_bytes, whole.step[2].host_bytes, 64 * MIB);
    assert_near(divided.step[2].peak.allocated, whole.step[2].peak.allocated, 1024 * MIB);
}

/* The number of elements gathered now. */
static uint64_t gathered(const struct tdm_torch_model *t)
{
    uint64_t elements = 0;
    for (uint32_t i = 0; i < t->parameter_count; i++)
        if (t->parameters[i]->storage->block != NULL)
            elements += tdm_zero_of(t)->parameters[i].elements;
    return elements;
}

static void trace_is_complete(const struct tdm_torch_model *t)
{
    assert_true(tdm_zero_of(t)->trace.complete);
    assert_true(tdm_zero_of(t)->trace.length > 300);
    assert_int_equal(tdm_zero_of(t)->trace.strays, 0);
    assert_int_equal(tdm_zero_of(t)->trace.next_use, tdm_zero_of(t)->trace.use_count);
    for (uint32_t k = 0; k < t->parameter_count; k++)
        assert_int_equal(t->parameters[k]->storage->block != NULL,
                         tdm_zero_of(t)->parameters[k].persists);
}

/* Three steps, after which `check` looks at the model. */
static void run_steps(const struct setting *setting, void (*check)(const struct tdm_torch_model *t))
{
    struct tdm_model *model = NULL;
    struct tdm_method_settings chosen;
    struct tdm_torch_allocator *allocator;
    struct tdm_eager eager;
    struct tdm_error err;
    void *system = NULL;
    read_setting(setting, &model, &chosen);
    must(tdm_torch_allocator_create(UINT64_C(1) << 42, false, &allocator, &err), &err);
    tdm_eager_start(&eager, allocator, &gpu.gpu);
    must(chosen.method->system->create(&eager, model, &chosen, &system, &err), &err);
    assert_int_equal(gathered(system), 0);
    for (unsigned step = 0; step < 3; step++)
        for (unsigned p = 0; p < TDM_TORCH_PHASES; p++)
            chosen.method->system->phases[p](system);
    assert_int_equal(eager.status, TDM_OK);
    check(system);
    chosen.method->system->free(system);
    tdm_eager_end(&eager);
    tdm_torch_allocator_free(allocator);
    tdm_model_free(model);
}

/* Steps follow the recorded trace, and free all parameters that are not small. */
static void trace_holds(void **state)
{
    static const struct setting settings[] = {
        {"qwen2.5-7b", "zero3", 4, 1024, {NULL}},
        {"qwen2.5-7b", "zero3", 4, 1024, {"checkpointing=on"}},
        {"qwen2.5-7b", "zero3", 4, 1024, {"checkpointing=on-reentrant"}},
        {"qwen2.5-7b", "zero3", 4, 1024, {"checkpointing=on", "lora_rank=8"}},
        {"qwen2.5-7b", "zero3", 4, 1024, {"lora_rank=8", "lora_targets=q_proj v_proj"}},
        {"qwen2.5-0.5b", "zero3", 4, 1024, {"checkpointing=on"}},
        {"olmoe-1b-7b", "zero3", 4, 1024, {"checkpointing=on"}},
        {"gemma-2-2b", "zero3", 4, 1024, {"stage3_max_live_parameters=1e6"}},
        {"qwen2.5-1.5b",
         "zero3",
         4,
         4096,
         {"tiled_mlp_compute=4", "tiled_logits=4", "checkpointing=on",
          "activation_checkpoint_cpu_offload=true"}},
        {"qwen2.5-1.5b", "zero3", 4, 4096, {"tiled_mlp_compute=3", "checkpointing=on"}},
        {"qwen2.5-1.5b", "zero3", 4, 1024, {"zero_hpz_partition_size=2", "checkpointing=on"}},
        {"qwen2.5-7b",
         "zero3",
         4,
         1024,
         {"offload_optimizer=nvme", "offload_param=nvme", "max_in_cpu=0", "param_buffer_count=64",
          "param_buffer_size=2e8", "checkpointing=on"}},
        {"qwen2.5-1.5b",
         "zero3",
         4,
         1024,
         {"zero_hpz_partition_size=2", "zero_quantized_weights=true", "lora_rank=8"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
        run_steps(&settings[i], trace_is_complete);
}

static void trace_was_invalid(const struct tdm_torch_model *t)
{
    assert_false(tdm_zero_of(t)->trace.complete);
    assert_int_equal(tdm_zero_of(t)->trace.strays, 3); /* one in each step */
    assert_int_equal(tdm_zero_of(t)->trace.use_count, 0);
}

/* The reference of adapters is the same model without them: its forward meets another module than
 * the policy's recorded, and the rest of the step runs without a trace. A copy has a trace of its
 * own. */
static void forwards_of_other_modules_end_the_trace(void **state)
{
    const struct setting base = {
        "qwen2.5-0.5b", "zero3", 4, 256, {"trainer=dpo", "lora_rank=8", "checkpointing=on"}};
    const struct setting copy = {
        "qwen2.5-0.5b", "zero3", 4, 256, {"trainer=dpo", "checkpointing=on"}};
    const struct setting scored = {
        "qwen2.5-0.5b", "zero3", 4, 256, {"trainer=grpo", "beta=0.1", "lora_rank=8"}};
    (void)state;
    run_steps(&base, trace_was_invalid);
    run_steps(&scored, trace_was_invalid);
    run_steps(&copy, trace_is_complete);
}

/* Limits on what is gathered ahead or kept for later bound what is gathered. */
static void live_parameters_are_bounded(void **state)
{
    struct setting setting = {"qwen2.5-7b",
                              "zero3",
                              4,
                              256,
                              {"stage3_max_live_parameters=1e9", "stage3_max_reuse_distance=1e9",
                               "checkpointing=on", "reduce_bucket_size=1e6", "sub_group_size=1e7"}};
    (void)state;
    uint64_t much = run(&setting, NULL).step[2].peak.allocated;
    setting.pairs[0] = "stage3_max_live_parameters=1e8";
    setting.pairs[1] = "stage3_max_reuse_distance=1e8";
    uint64_t little = run(&setting, NULL).step[2].peak.allocated;
    assert_true(much > little + 500 * MIB);
}

/* The quantizer's groups, by hand: 3,584^2 / 8 elements are 200,704 = 2^12 * 7^2 eights, whose
 * largest divisor up to 1,000 is 896. 1,001 eights are 7 * 11 * 13; 1,009 is prime. */
static void scales_are_counted(void **state)
{
    (void)state;
    assert_int_equal(tdm_zeropp_groups(64), 1);
    assert_int_equal(tdm_zeropp_groups(8000), 1);
    assert_int_equal(tdm_zeropp_groups(8 * 1001), 7);
    assert_int_equal(tdm_zeropp_groups(8 * 1009), 1009);
    assert_int_equal(tdm_zeropp_groups(3584 * 3584 / 8), 224);
}

/* hpZ: when the forward ends, each of 8 GPUs has an eighth of all parameters besides its sixteenth;
 * when the step ends it has not. Frozen parameters keep theirs. In host memory it is there once.
 * Blocks of the allocator are up to 1 MiB larger than what is asked for. */
#define ROUNDED (32 * MIB)
static void second_copies_are_kept(void **state)
{
    struct setting setting = {"qwen2.5-7b",
                              "zero3",
                              16,
                              256,
                              {"checkpointing=on", "stage3_max_live_parameters=0",
                               "stage3_max_reuse_distance=0",
                               "stage3_param_persistence_threshold=0"}};
    (void)state;
    struct tdm_torch_run without = run(&setting, NULL);
    setting.pairs[4] = "zero_hpz_partition_size=8";
    struct tdm_torch_run with = run(&setting, NULL);
    assert_near(with.step[0].before_bytes, without.step[0].before_bytes + 2 * PARAMETERS / 8,
                ROUNDED);
    assert_near(with.step[2].end_bytes[TDM_PHASE_FORWARD],
                without.step[2].end_bytes[TDM_PHASE_FORWARD] + 2 * PARAMETERS / 8, ROUNDED);
    assert_int_equal(with.step[2].before_bytes, without.step[2].before_bytes);
    assert_int_equal(with.step[2].end_bytes[2], with.step[1].end_bytes[2]);
    setting.pairs[5] = "lora_rank=16";
    with = run(&setting, NULL);
    setting.pairs[4] = "zero_hpz_partition_size=1";
    without = run(&setting, NULL);
    assert_near(with.step[2].before_bytes, without.step[2].before_bytes + 2 * PARAMETERS / 8,
                ROUNDED);
    setting.pairs[5] = "offload_param=cpu";
    setting.pairs[6] = "pin_memory=false";
    without = run(&setting, NULL);
    setting.pairs[4] = "zero_hpz_partition_size=8";
    with = run(&setting, NULL);
    assert_near(with.step[2].host_bytes, without.step[2].host_bytes + 2 * PARAMETERS / 8, ROUNDED);
    assert_int_equal(with.step[2].before_bytes, without.step[2].before_bytes);
}

static uint32_t counted(const struct setting *setting, uint64_t bytes)
{
    struct counting counting = {.bytes = bytes};
    run(setting, &counting);
    return counting.count;
}

#define HEAD UINT64_C(544997376) /* elements of the head, and of the embedding, of qwen2.5-7b */

/* qwZ: the embedding and the head are gathered for the forward and for the backward, each time as
 * bytes, with scales of 8 GPUs: a part is 8,515,584 = 2^12 * 3^3 * 7 * 11 eights, whose largest
 * divisor up to 1,000 is 924. They become fp16 and from that bf16, of the same size. */
static void weights_are_sent_in_8_bits(void **state)
{
    struct setting plain = {"qwen2.5-7b",
                            "zero3",
                            8,
                            256,
                            {"stage3_prefetch_bucket_size=0", "stage3_max_reuse_distance=0"}};
    struct setting quantized = plain;
    (void)state;
    quantized.pairs[2] = "zero_quantized_weights=true";
    assert_int_equal(counted(&quantized, HEAD), counted(&plain, HEAD) + 4);
    assert_int_equal(counted(&quantized, 2 * HEAD), counted(&plain, 2 * HEAD) + 4);
    assert_int_equal(counted(&quantized, UINT64_C(8) * 9216 * 4), 4);
    struct tdm_torch_run out = run(&quantized, NULL), before = run(&plain, NULL);
    assert_int_equal(out.step[2].before_bytes, before.step[2].before_bytes);
    assert_int_equal(out.step[1].end_bytes[2], out.step[2].end_bytes[2]);
}

/* qgZ: gradients of embedding and head, which are larger than a bucket, in two nodes of 8 GPUs. A
 * row has a scale. Within one node nothing is quantized. */
static void gradients_are_sent_in_4_bits(void **state)
{
    struct setting plain = {"qwen2.5-7b", "zero3", 16, 256, {"checkpointing=on"}};
    struct setting quantized = plain;
    (void)state;
    quantized.pairs[1] = "zero_quantized_gradients=true";
    const struct {
        uint64_t bytes;
        uint32_t count;
    } made[] = {
        {HEAD / 2, 4},             /* sent and received in the node */
        {152064 * 4, 4},           /* their scales */
        {HEAD / 8 / 2, 4},         /* sent and received between nodes */
        {152064 / 8 * 4, 4},       /* their scales */
        {HEAD / 8 * 2, 2},         /* in fp16 */
        {HEAD / 8 / 2 * 2, 2 * 3}, /* two sums and a mean */
    };
    for (size_t i = 0; i < sizeof(made) / sizeof(made[0]); i++)
        assert_int_equal(counted(&quantized, made[i].bytes),
                         counted(&plain, made[i].bytes) + made[i].count);
    plain.gpus = quantized.gpus = 8;
    struct tdm_torch_run one = run(&plain, NULL), same = run(&quantized, NULL);
    assert_int_equal(one.step[2].peak.reserved, same.step[2].peak.reserved);
}

/* NVMe, 8 GPUs. In host memory are four buffers of the largest sub-group in fp32, bf16 gradients,
 * and all states of sub-groups below 1 MiB: here every parameter is one, and norms, biases, k and v
 * are short. The first step makes moments of one more. */
static void states_are_swapped(void **state)
{
    enum { SHORT = (28 * (2 * 3584 + 3584 + 2 * 512 + 2 * 512 * 3584) + 3584) / 8 };
    struct setting setting = {
        "qwen2.5-7b",
        "zero3",
        8,
        256,
        {"checkpointing=on", "pin_memory=false", "sub_group_size=1", "offload_optimizer=nvme"}};
    uint64_t kept = 4 * 4 * (HEAD / 8) + 2 * PARAMETERS / 8 + UINT64_C(16) * SHORT;
    (void)state;
    struct tdm_torch_run out = run(&setting, NULL);
    assert_int_equal(out.step[2].host_bytes, kept);
    assert_int_equal(out.step[0].host_bytes, kept + 8 * (HEAD / 8));
    setting.pairs[4] = "optimizer_buffer_count=8";
    out = run(&setting, NULL);
    assert_int_equal(out.step[2].host_bytes, kept + 4 * 4 * (HEAD / 8));
    /* One sub-group of 951,952,064 elements, 192 more than a multiple of 256. */
    setting.pairs[4] = "optimizer_buffer_count=4";
    setting.pairs[2] = "sub_group_size=1e9";
    out = run(&setting, NULL);
    assert_int_equal(out.step[2].host_bytes, 16 * (PARAMETERS / 8 + 64) + 2 * PARAMETERS / 8);
    /* Short gradients stay on the GPU, in fp32, until the step. */
    setting.pairs[3] = "offload_optimizer=cpu";
    setting.pairs[4] = NULL;
    struct tdm_torch_run on_host = run(&setting, NULL);
    assert_near(out.step[2].end_bytes[TDM_PHASE_BACKWARD],
                on_host.step[2].end_bytes[TDM_PHASE_BACKWARD] + UINT64_C(4) * SHORT, 2 * MIB);
    assert_int_equal(out.step[2].end_bytes[TDM_PHASE_OPTIMIZER],
                     on_host.step[2].end_bytes[TDM_PHASE_OPTIMIZER]);
    assert_int_equal(out.step[1].end_bytes[TDM_PHASE_OPTIMIZER],
                     out.step[2].end_bytes[TDM_PHASE_OPTIMIZER]);
    setting.pairs[3] = "offload_optimizer=nvme";
    setting.pairs[4] = "gradient_accumulation_steps=2"; /* only the last backward writes */
    out = run(&setting, NULL);
    setting.pairs[3] = "offload_optimizer=cpu";
    on_host = run(&setting, NULL);
    assert_int_equal(out.step[2].end_bytes[TDM_PHASE_FORWARD],
                     on_host.step[2].end_bytes[TDM_PHASE_FORWARD]);
}

/* Parameters on NVMe, none of which host memory keeps. There are five buffers of 1e8 elements, one
 * for what the step writes, each part in it to a multiple of 512 elements, and parts of k and v,
 * which are short; shorter ones persist on the GPU. The GPU has what it has with offload_param=cpu,
 * and these. */
static void parts_are_swapped(void **state)
{
    enum { K_AND_V = 28 * 2 * 512 * 3584 / 8, PADDING = 28 * (2 * 64 + 64 + 2 * 448) + 64 };
    struct setting setting = {"qwen2.5-7b",
                              "zero3",
                              8,
                              256,
                              {"checkpointing=on", "pin_memory=false", "offload_optimizer=nvme",
                               "stage3_max_reuse_distance=0", "stage3_prefetch_bucket_size=0",
                               "offload_param=nvme", "max_in_cpu=0"}};
    const uint64_t states = 16 * (PARAMETERS / 8 + 64) + 2 * PARAMETERS / 8;
    (void)state;
    struct tdm_torch_run out = run(&setting, NULL);
    assert_int_equal(out.step[2].host_bytes, states + UINT64_C(5) * 2 * 100000256 +
                                                 2 * (PARAMETERS / 8 + PADDING) +
                                                 UINT64_C(2) * K_AND_V);
    setting.pairs[5] = "offload_param=cpu";
    setting.pairs[6] = NULL;
    struct tdm_torch_run on_host = run(&setting, NULL);
    assert_near(out.step[2].peak.allocated, on_host.step[2].peak.allocated, 2 * MIB);
    /* Host memory has room for all of them: only the buffers are more. */
    setting.pairs[5] = "offload_param=nvme";
    out = run(&setting, NULL);
    assert_int_equal(out.step[2].peak.allocated, on_host.step[2].peak.allocated);
    assert_int_equal(out.step[1].end_bytes[2], out.step[2].end_bytes[2]);
}

/* Parameters that stay to be used again keep their buffers. If all of them stay, five are too few,
 * which the second step's forward finds: the first one gives all back. */
static void buffers_run_out(void **state)
{
    struct setting setting = {"qwen2.5-7b",
                              "zero3",
                              8,
                              256,
                              {"offload_optimizer=nvme", "offload_param=nvme", "max_in_cpu=0",
                               "stage3_max_reuse_distance=1e10"}};
    struct tdm_model *model = NULL;
    struct tdm_method_settings settings;
    struct tdm_torch_run out;
    struct tdm_error err;
    (void)state;
    read_setting(&setting, &model, &settings);
    must(tdm_torch_run(model, &settings, &gpu, 3, NULL, &out, &err), &err);
    assert_int_equal(out.steps, 2);
    assert_true(out.step[1].failed && out.step[1].lacks != NULL);
    assert_int_equal(out.step[1].failed_phase, TDM_PHASE_FORWARD);
    tdm_model_free(model);
    setting.pairs[4] = "param_buffer_count=400";
    run(&setting, NULL);
}

/* In the fifth, the head's part has 136,249,344 elements, more than a buffer. */
static void impossible_settings_are_refused(void **state)
{
    static const struct setting bad[] = {
        {"qwen2.5-7b", "zero3", 12, 256, {"zero_hpz_partition_size=8"}},
        {"qwen2.5-7b", "zero3", 512, 256, {"zero_quantized_weights=true"}}, /* norms: 7 elements */
        {"qwen2.5-7b", "zero3", 16, 256, {"zero_quantized_gradients=true", "reduce_scatter=false"}},
        {"qwen2.5-7b", "zero3", 12, 256, {"zero_quantized_gradients=true"}},
        {"qwen2.5-7b", "zero3", 4, 256, {"offload_optimizer=cpu", "offload_param=nvme"}},
        {"qwen2.5-7b", "zero3", 8, 256, {"offload_param=nvme"}},
        {"qwen2.5-7b", "zero2", 8, 256, {"ep_size=2"}},
        {"gpt-oss-20b", "zero2", 8, 256, {"ep_size=2"}}, /* biases */
        {"olmoe-1b-7b", "zero2", 12, 256, {"ep_size=3"}},
        {"olmoe-1b-7b", "zero2", 8, 256, {"ep_size=16"}},
        {"olmoe-1b-7b", "zero2", 8, 256, {"ep_size=2", "lora_rank=8"}},
        {"olmoe-1b-7b", "zero2", 8, 256, {"ep_size=2", "reduce_scatter=false"}}};
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const struct tdm_method *method;
        struct tdm_method_settings settings = {
            .torch = {.tokens = 256, .batch = 1, .ranks = bad[i].gpus}};
        struct tdm_method_choices choices;
        struct tdm_model *model;
        struct tdm_error err;
        size_t count = bad[i].pairs[1] != NULL ? 2 : 1;
        must(tdm_model_load(bad[i].model, &model, &err), &err);
        must(tdm_method_find(bad[i].method, &method, &err), &err);
        must(tdm_method_apply(method, bad[i].pairs, count, &settings, &choices, &err), &err);
        assert_int_equal(tdm_method_check(model, &settings, &err), TDM_USAGE);
        tdm_model_free(model);
    }
}

/* To 0.6.0 Liger's norms and rotations count elements in 32 bits. ArcticTraining's projects/
 * sequence-parallelism/run-h100-sp1-llama-8b.yml: 500,000 tokens are "ok", 555,000 "an illegal
 * memory access". A token of Qwen3-32B has 64 heads of 128, which are normed one by one. */
static void liger_counts_in_32_bits(void **state)
{
    static const struct {
        const char *model, *method, *pair;
        uint64_t gpus, tokens;
        enum tdm_status status;
    } cases[] = {
        {"llama-3.1-8b", "zero3-offload", "liger=all", 1, 500000, TDM_OK},
        {"llama-3.1-8b", "zero3-offload", "liger=all", 1, 524288, TDM_OK},
        {"llama-3.1-8b", "zero3-offload", "liger=all", 1, 524289, TDM_USAGE},
        {"llama-3.1-8b", "zero3-offload", "liger=all", 1, 555000, TDM_USAGE},
        {"llama-3.1-8b", "zero3-offload", "liger=swiglu", 1, 555000, TDM_OK},
        {"llama-3.1-8b", "alst", "liger=rope", 8, 4194304, TDM_OK},
        {"llama-3.1-8b", "alst", "liger=rope", 8, 4194312, TDM_USAGE},
        {"llama-3.1-70b", "alst", "liger=rms_norm", 8, 2097152, TDM_OK},
        {"llama-3.1-70b", "alst", "liger=rms_norm", 8, 2097160, TDM_USAGE},
        {"qwen3-32b", "alst", "liger=rms_norm", 8, 2097152, TDM_OK},
        {"qwen3-32b", "alst", "liger=rms_norm", 8, 2097160, TDM_USAGE},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (unsigned now = 0; now < 2; now++) {
            const char *const pairs[] = {cases[i].pair,
                                         now ? "liger_version=now" : "liger_version=0.6.0"};
            const struct tdm_method *method;
            struct tdm_method_settings settings = {
                .torch = {.tokens = cases[i].tokens, .batch = 1, .ranks = cases[i].gpus}};
            struct tdm_method_choices choices;
            struct tdm_model *model;
            struct tdm_error err;
            must(tdm_model_load(cases[i].model, &model, &err), &err);
            must(tdm_method_find(cases[i].method, &method, &err), &err);
            must(tdm_method_apply(method, pairs, 2, &settings, &choices, &err), &err);
            assert_int_equal(tdm_method_check(model, &settings, &err),
                             now ? TDM_OK : cases[i].status);
            tdm_model_free(model);
        }
}

#define EXPERT_PARAMETERS UINT64_C(176160768) /* of a layer of mixtral-8x7b */
#define MIXTRAL_PARAMETERS UINT64_C(46702792704)

/* With expert parallelism a rank keeps its experts, and divides their states among the ranks that
 * have the same ones; the rest is divided among all. A group of experts' parameters is an expert
 * here, whose half is stepped at a time, with gradients in fp32. */
static void experts_are_shared(void **state)
{
    enum { LAYERS = 32, EXPERTS = 8 };
    const uint64_t dense = MIXTRAL_PARAMETERS - LAYERS * EXPERTS * EXPERT_PARAMETERS;
    static const char *const methods[] = {"deepspeed-zero1", "zero2"};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct setting setting = {"mixtral-8x7b",
                                  methods[i],
                                  16,
                                  512,
                                  {"ep_size=8", "checkpointing=on", "reduce_bucket_size=1e8"}};
        uint64_t experts = LAYERS * EXPERT_PARAMETERS;
        struct counting counting = {4 * EXPERT_PARAMETERS / 2, 0};
        struct tdm_torch_run out = run(&setting, &counting);
        assert_int_equal(counting.count, LAYERS);
        assert_near(out.weight_bytes, 2 * (dense + experts), 0);
        assert_near(out.step[2].before_bytes,
                    2 * (dense + experts) + 12 * dense / 16 + 12 * experts / 2, 100 * MIB);
        assert_int_equal(out.step[1].end_bytes[2], out.step[2].end_bytes[2]);
        setting.pairs[3] = "use_residual=true";
        struct tdm_torch_run residual = run(&setting, NULL);
        uint64_t more = LAYERS * (EXPERT_PARAMETERS + 2 * 4096 + 2);
        assert_near(residual.weight_bytes - out.weight_bytes, 2 * more, 0);
        assert_near(residual.step[2].before_bytes - out.step[2].before_bytes,
                    2 * more + 12 * more / 16, 8 * MIB);
        setting.pairs[0] = "ep_size=4";
        setting.pairs[3] = NULL;
        experts *= 2;
        out = run(&setting, NULL);
        assert_near(out.step[2].before_bytes,
                    2 * (dense + experts) + 12 * dense / 16 + 12 * experts / 4, 100 * MIB);
    }
}

/* 64 experts with 640 places of 2,048 numbers each, in 16 layers. In the forward they are encoded,
 * sent, made by the experts and sent back; in the backward sent, joined and sent back. */
static void experts_have_places(void **state)
{
    static const struct {
        const char *pairs[MOST_PAIRS];
        uint64_t places;
        uint32_t of_layer;
    } cases[] = {
        {{"ep_size=4", "capacity_factor=1.25"}, 640, 7},
        {{"ep_size=1", "capacity_factor=1.25"}, 640, 3},
        {{"ep_size=4", "min_capacity=700"}, 700, 7},
        {{"ep_size=4", "capacity_factor=1.25", "checkpointing=on-reentrant"}, 640, 11},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct setting setting = {
            .model = "olmoe-1b-7b", .method = "zero2", .gpus = 4, .context = 4096};
        memcpy(setting.pairs, cases[i].pairs, sizeof(setting.pairs));
        struct counting counting = {64 * cases[i].places * 2048 * 2, 0};
        struct tdm_torch_run out = run(&setting, &counting);
        assert_int_equal(counting.count, 16 * cases[i].of_layer);
        assert_int_equal(out.step[1].end_bytes[2], out.step[2].end_bytes[2]);
    }
    /* Chunks of several ranks lie apart: gate and up get copies, which are both kept in their
     * place. */
    struct setting setting = {"olmoe-1b-7b", "zero2", 4, 4096, {"ep_size=1", "drop_tokens=false"}};
    struct tdm_torch_run together = run(&setting, NULL);
    setting.pairs[0] = "ep_size=64";
    setting.gpus = 64;
    struct tdm_torch_run alone = run(&setting, NULL);
    setting.pairs[0] = "ep_size=2";
    struct tdm_torch_run apart = run(&setting, NULL);
    uint64_t rows = UINT64_C(16) * 4096 * 8 * 2048 * 2;
    uint64_t kept = together.step[2].end_bytes[0] - together.step[2].before_bytes;
    assert_near(alone.step[2].end_bytes[0] - alone.step[2].before_bytes, kept, 100 * MIB);
    assert_near(apart.step[2].end_bytes[0] - apart.step[2].before_bytes - kept, rows, 100 * MIB);
}

/* With tiles, neither logits nor an MLP's activations of all tokens are in memory. Offloaded
 * checkpoints are in host memory. */
static void long_sequences_are_tiled(void **state)
{
    enum { TOKENS = 32768, HIDDEN = 1536, LAYERS = 28, VOCABULARY = 151936 };
    struct setting setting = {"qwen2.5-1.5b", "zero3", 2, TOKENS, {"checkpointing=on-reentrant"}};
    (void)state;
    struct tdm_torch_run whole = run(&setting, NULL);
    assert_true(whole.step[2].categories[TDM_METHOD_LOGITS] >= UINT64_C(12) * TOKENS * VOCABULARY);
    setting.pairs[1] = "tiled_logits=auto";
    struct tdm_torch_run tiled = run(&setting, NULL);
    assert_true(tiled.step[2].peak.allocated + UINT64_C(12) * TOKENS * VOCABULARY <
                whole.step[2].peak.allocated + (UINT64_C(12) << 30));
    assert_int_equal(tiled.step[1].end_bytes[2], tiled.step[2].end_bytes[2]);
    setting.pairs[2] = "tiled_mlp_compute=auto";
    struct tdm_torch_run both = run(&setting, NULL);
    assert_true(both.step[2].peak.allocated + 512 * MIB < tiled.step[2].peak.allocated);
    assert_int_equal(both.step[1].end_bytes[2], both.step[2].end_bytes[2]);
    assert_int_equal(both.step[2].host_bytes, 0);
    setting.pairs[3] = "activation_checkpoint_cpu_offload=true";
    struct tdm_torch_run offloaded = run(&setting, NULL);
    assert_int_equal(offloaded.step[2].host_bytes, UINT64_C(2) * TOKENS * HIDDEN * LAYERS);
    assert_true(offloaded.step[2].peak.allocated < both.step[2].peak.allocated);
    assert_int_equal(offloaded.step[1].end_bytes[2], offloaded.step[2].end_bytes[2]);
}

static void sizes_are_read(void **state)
{
    static const char *const bad[] = {"reduce_bucket_size=-3",
                                      "reduce_bucket_size=0.5",
                                      "reduce_bucket_size=1e99",
                                      "reduce_bucket_size=nan",
                                      "reduce_bucket_size=5e8x",
                                      "sub_group_size=auto",
                                      "offload_param=disk",
                                      "optimizer_buffer_count=3",
                                      "param_buffer_count=0",
                                      "gradient_accumulation_steps=0",
                                      "grads=held"};
    const struct tdm_method *method;
    struct tdm_method_settings settings = {.step = 0};
    struct tdm_method_choices choices;
    struct tdm_error err;
    (void)state;
    must(tdm_method_find("zero3", &method, &err), &err);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(tdm_method_apply(method, &bad[i], 1, &settings, &choices, &err),
                         TDM_USAGE);
    static const char *const good[] = {"reduce_bucket_size=5e6", "sub_group_size=123456",
                                       "stage3_prefetch_bucket_size=auto"};
    must(tdm_method_apply(method, good, 3, &settings, &choices, &err), &err);
    assert_int_equal(settings.torch.deepspeed.reduce_bucket_size, 5000000);
    assert_int_equal(settings.torch.deepspeed.sub_group_size, 123456);
    assert_true(settings.torch.deepspeed.prefetch_bucket_size == TDM_AUTO);
}

/* The frozen parameters of the 7B model have shards, but neither gradients nor states. */
static void frozen_parameters_have_no_gradients(void **state)
{
    struct setting setting = {
        "qwen2.5-7b", "fsdp", 2, 512, {"lora_rank=16", "optimizer=adamw-fused"}};
    uint64_t adapters = UINT64_C(40370176);
    (void)state;
    struct tdm_torch_run out = run(&setting, NULL);
    assert_near(out.weight_bytes, PARAMETERS + adapters, MIB);
    assert_near(out.step[2].before_bytes, PARAMETERS + 3 * adapters, 100 * MIB);
    assert_near(out.step[2].end_bytes[1] - out.step[2].before_bytes, adapters, 4 * MIB);
}

/* Measured on two H200s with torch 2.11, transformers 5.17, and peft 0.21 with bf16 adapters. The
 * prediction is right to the byte. */
static void lora_is_as_measured(void **state)
{
    static const struct {
        uint64_t before, peak;
    } measured[] = {{503072768, 13623931904}, {588999168, 13675254784}, {588999168, 13675254784}};
    struct setting setting = {
        "qwen2.5-0.5b", "fsdp", 2, 4096, {"lora_rank=16", "optimizer=adamw-fused"}};
    (void)state;
    struct tdm_torch_run out = run(&setting, NULL);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(out.step[i].before_bytes, measured[i].before);
        assert_int_equal(out.step[i].peak.allocated, measured[i].peak);
    }
}

/* What the third step begins with beyond SGD's: states of a flat fp32 partition of half of
 * qwen2.5-0.5b's parameters, of 4 bytes, or of one with a scale for 256. */
static void partitions_have_other_states(void **state)
{
    static const char *const methods[] = {"deepspeed-zero1", "zero2", "zero3"};
    const uint64_t part = UINT64_C(494032768) / 2, slack = UINT64_C(3) << 20;
    const struct {
        const char *optimizer;
        uint64_t bytes, host;
    } cases[] = {
        {"optimizer=AdamW", 8 * part, 0},
        {"optimizer=Lion", 4 * part, 0},
        {"optimizer=sgd-momentum", 4 * part, 0},
        {"optimizer=adafactor", 4 * part, 0},
        {"optimizer=lion-32bit", 4 * part, 0},
        {"optimizer=lion-8bit", part + part / 256 * 4, 0},
        {"optimizer=paged-adamw-32bit", 0, 8 * part},
    };
    (void)state;
    for (size_t m = 0; m < sizeof(methods) / sizeof(methods[0]); m++) {
        struct setting setting = {
            "qwen2.5-0.5b", methods[m], 2, 256, {"optimizer=sgd", "checkpointing=on"}};
        const struct tdm_torch_run none = run(&setting, NULL);
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            setting.pairs[0] = cases[i].optimizer;
            const struct tdm_torch_run out = run(&setting, NULL);
            assert_in_range(out.step[2].before_bytes - none.step[2].before_bytes, cases[i].bytes,
                            cases[i].bytes + slack);
            assert_in_range(out.step[2].host_bytes - none.step[2].host_bytes, cases[i].host,
                            cases[i].host + slack);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_are_shared),
        cmocka_unit_test(partitions_have_other_states),
        cmocka_unit_test(nothing_is_left),
        cmocka_unit_test(sub_groups_are_stepped),
        cmocka_unit_test(buckets_are_made),
        cmocka_unit_test(buckets_were_made_early),
        cmocka_unit_test(gradients_are_whole),
        cmocka_unit_test(alst_divides_sequences),
        cmocka_unit_test(trace_holds),
        cmocka_unit_test(forwards_of_other_modules_end_the_trace),
        cmocka_unit_test(live_parameters_are_bounded),
        cmocka_unit_test(scales_are_counted),
        cmocka_unit_test(second_copies_are_kept),
        cmocka_unit_test(weights_are_sent_in_8_bits),
        cmocka_unit_test(gradients_are_sent_in_4_bits),
        cmocka_unit_test(states_are_swapped),
        cmocka_unit_test(parts_are_swapped),
        cmocka_unit_test(buffers_run_out),
        cmocka_unit_test(impossible_settings_are_refused),
        cmocka_unit_test(liger_counts_in_32_bits),
        cmocka_unit_test(experts_are_shared),
        cmocka_unit_test(experts_have_places),
        cmocka_unit_test(long_sequences_are_tiled),
        cmocka_unit_test(sizes_are_read),
        cmocka_unit_test(frozen_parameters_have_no_gradients),
        cmocka_unit_test(lora_is_as_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
