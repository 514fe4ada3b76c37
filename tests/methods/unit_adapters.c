/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of quantized weights under adapters, of trained copies of modules, of dropout, and of
 * optimizers with states of their own dtype: bytes counted by hand. */
#include "methods/prediction.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <inttypes.h>
#include <string.h>

/* llama-3.1-8b: untied, no biases. */
#define LAYERS UINT64_C(32)
#define HIDDEN UINT64_C(4096)
#define KV UINT64_C(1024)
#define INTERMEDIATE UINT64_C(14336)
#define VOCABULARY UINT64_C(128256)
#define RANK UINT64_C(8)
#define TOKENS UINT64_C(512)

/* Most that a block of more than 1 MiB has beyond its tensor: what is not split. */
#define UNSPLIT UINT64_C(1048576)

#define MOST_PAIRS 12u

static const struct {
    uint64_t rows, columns;
} projections[] = {{HIDDEN, HIDDEN},      {KV, HIDDEN},           {KV, HIDDEN},
                   {HIDDEN, HIDDEN},      {INTERMEDIATE, HIDDEN}, {INTERMEDIATE, HIDDEN},
                   {HIDDEN, INTERMEDIATE}};
enum { PROJECTIONS = sizeof(projections) / sizeof(projections[0]) };

static enum tdm_status try_predict(const char *config, const char *name, uint64_t gpus,
                                   const char *const *pairs, struct tdm_method_prediction *p,
                                   struct tdm_error *err)
{
    struct tdm_method_settings settings = {.torch = {.tokens = TOKENS, .batch = 1, .ranks = gpus}};
    const struct tdm_method *method;
    struct tdm_method_choices choices;
    struct tdm_machine *machine = NULL;
    struct tdm_model *model = NULL;
    size_t count = 0;
    while (pairs[count] != NULL)
        count++;
    enum tdm_status status = tdm_method_find(name, &method, err);
    if (status == TDM_OK)
        status = tdm_method_apply(method, pairs, count, &settings, &choices, err);
    if (status == TDM_OK)
        status = tdm_model_load(config, &model, err);
    if (status == TDM_OK)
        status = tdm_machine_load("h200-published", &machine, err);
    if (status == TDM_OK)
        status = tdm_method_check(model, &settings, err);
    if (status == TDM_OK)
        status = tdm_method_predict(model, machine, &settings, 0, p, err);
    tdm_model_free(model);
    tdm_machine_free(machine);
    return status;
}

static struct tdm_method_prediction predict_by(const char *method, uint64_t gpus,
                                               const char *config, const char *const *pairs)
{
    struct tdm_method_prediction p;
    struct tdm_error err = {.message = ""};
    if (try_predict(config, method, gpus, pairs, &p, &err) != TDM_OK)
        fail_msg("%s: %s", method, err.message);
    assert_true(p.runs);
    return p;
}

static struct tdm_method_prediction predict_of(const char *config, const char *const *pairs)
{
    return predict_by("parallel", 1, config, pairs);
}

static struct tdm_method_prediction predict(const char *const *pairs)
{
    return predict_of("llama-3.1-8b", pairs);
}

/* All that is there before the first step: blocks are multiples of 512 bytes. */
static uint64_t rounded(uint64_t bytes)
{
    return (bytes + 511) / 512 * 512;
}

/* ---- trained copies of embedding and head, DoRA and a tower, among ranks ---- */

#define RANKS 8u
#define MIB_BYTES (UINT64_C(1) << 20)

/* Bytes of weights before the first step that a setting adds, but for blocks that are larger than
 * what they hold. */
static void adds(const char *method, const char *config, const char *without, const char *with,
                 uint64_t bytes)
{
    const char *const less[] = {"lora_rank=8", "checkpointing=on", "step=1", without, NULL},
                      *const more[] = {"lora_rank=8", "checkpointing=on", "step=1", with, NULL};
    const uint64_t before = predict_by(method, RANKS, config, less).steps[0].torch.before_bytes,
                   after = predict_by(method, RANKS, config, more).steps[0].torch.before_bytes;
    if (after - before + 2 * MIB_BYTES < bytes || after - before > bytes + 2 * MIB_BYTES)
        fail_msg("%s, %s: %" PRIu64 " more, expected %" PRIu64, method, with, after - before,
                 bytes);
}

/* Of Llama 3.1 8B an embedding or a head has 128,256 x 4,096 weights of bf16. Shards of ZeRO have a
 * master beside them in fp32, and of stage 3 a gradient in bf16. */
static void copies_of_modules_by_hand(void **state)
{
    const uint64_t copy = UINT64_C(128256) * 4096;
    (void)state;
    adds("fsdp", "llama-3.1-8b", "modules_to_save=none", "modules_to_save=embed_tokens,lm_head",
         2 * copy * 2 / RANKS);
    adds("zero2", "llama-3.1-8b", "modules_to_save=none", "modules_to_save=lm_head",
         copy * 2 + copy * 4 / RANKS);
    adds("zero3", "llama-3.1-8b", "modules_to_save=none", "modules_to_save=embed_tokens,lm_head",
         2 * copy * (2 + 2 + 4) / RANKS);
}

/* ZeRO-3 gathers copies, and not what they stand for. */
static void originals_are_not_gathered(void **state)
{
    static const char *const none[] = {"lora_rank=8", "step=2", NULL},
                             *const both[] = {"lora_rank=8", "step=2",
                                              "modules_to_save=embed_tokens,lm_head", NULL};
    struct tdm_method_prediction plain = predict_by("zero3", RANKS, "llama-3.1-8b", none),
                                 saved = predict_by("zero3", RANKS, "llama-3.1-8b", both);
    const uint64_t a = plain.steps[0].torch.phases[TDM_PHASE_FORWARD].allocated -
                       plain.steps[0].torch.before_bytes,
                   b = saved.steps[0].torch.phases[TDM_PHASE_FORWARD].allocated -
                       saved.steps[0].torch.before_bytes;
    (void)state;
    assert_true(b < a + 64 * MIB_BYTES && a < b + 64 * MIB_BYTES);
}

static void refuses_dora_of_zero3(void **state)
{
    static const char *const dora[] = {"lora_rank=8", "use_dora=yes", NULL};
    struct tdm_method_prediction p;
    struct tdm_error err = {.message = ""};
    (void)state;
    assert_int_equal(try_predict("llama-3.1-8b", "zero3", RANKS, dora, &p, &err), TDM_USAGE);
    assert_non_null(strstr(err.message, "ZeRO-3 has given it back"));
    predict_by("zero2", RANKS, "llama-3.1-8b", dora);
    predict_by("fsdp", RANKS, "llama-3.1-8b", dora);
}

static void quantized_weights_by_hand(void **state)
{
    static const char *const none[] = {"lora_rank=8", NULL},
                             *const nf4[] = {"lora_rank=8", "load_in_4bit=true", NULL},
                             *const two[] = {"lora_rank=8", "quantization=nf4",
                                             "bnb_4bit_use_double_quant=true", NULL},
                             *const int8[] = {"lora_rank=8", "load_in_8bit: true", NULL},
                             *const gptq[] = {"lora_rank=8", "quantization=gptq", NULL},
                             *const awq[] = {"lora_rank=8", "quantization=awq", NULL};
    const char *const *cases[] = {nf4, two, int8, gptq, awq};
    struct tdm_method_prediction plain = predict(none);
    (void)state;
    for (unsigned c = 0; c < 5; c++) {
        uint64_t exact = 0, blocks = 0, all = 0;
        for (unsigned i = 0; i < PROJECTIONS; i++) {
            uint64_t out = projections[i].rows, in = projections[i].columns, n = out * in;
            const uint64_t parts[5][6] = {
                {n / 2, n / 64 * 4, 16 * 4},                             /* nf4 */
                {n / 2, n / 64, n / 64 / 256 * 4, 256 * 4, 16 * 4, 4},   /* double */
                {n, out * 4},                                            /* int8 */
                {n / 2, in / 128 * out / 2, in / 128 * out * 2, in * 4}, /* gptq */
                {n / 2, in / 128 * out / 2, in / 128 * out * 2},         /* awq */
            };
            all += n;
            for (unsigned part = 0; part < 6; part++) {
                exact += parts[c][part];
                blocks += rounded(parts[c][part]);
            }
        }
        struct tdm_method_prediction p = predict(cases[c]);
        assert_int_equal(plain.parameters_bytes - p.parameters_bytes, LAYERS * (2 * all - exact));
        uint64_t less = plain.steps[0].torch.before_bytes - p.steps[0].torch.before_bytes;
        assert_in_range(less, LAYERS * (2 * all - blocks - PROJECTIONS * 2 * UNSPLIT),
                        LAYERS * (2 * all - blocks));
    }
}

/* Dropout gives every adapter an input and a mask of its own. Without it q, k and v save one input
 * together, as gate and up do; the attention saves o's input itself. Products under ZeRO-3 save
 * their inputs also of frozen weights, so that all of it is there in addition. */
static void dropout_by_hand(void **state)
{
    static const char *const without[] = {"lora_rank=8", "step=1", "logits=base", NULL},
                             *const with[] = {"lora_rank=8", "step=1", "logits=base",
                                              "lora_dropout=0.1", NULL};
    const uint64_t inputs = 6 * HIDDEN + INTERMEDIATE, shared = 2 * HIDDEN + INTERMEDIATE;
    const struct {
        const char *method;
        uint64_t gpus, freed; /* elements of a token that nothing saves any more */
    } cases[] = {{"parallel", 1, shared}, {"ddp", 2, shared}, {"fsdp", 2, shared},
                 {"zero2", 2, shared},    {"zero3", 2, 0},    {"zero3-offload", 2, 0}};
    (void)state;
    for (unsigned c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        uint64_t kept[2];
        for (unsigned i = 0; i < 2; i++) {
            struct tdm_method_prediction p =
                predict_by(cases[c].method, cases[c].gpus, "llama-3.1-8b", i == 0 ? without : with);
            kept[i] = p.steps[0].torch.end_bytes[TDM_PHASE_FORWARD] - p.steps[0].torch.before_bytes;
        }
        /* The first layer's input needs no gradient, yet its adapters save theirs. */
        const uint64_t more = LAYERS * TOKENS * (3 * inputs - 2 * cases[c].freed);
        assert_in_range(kept[1] - kept[0], more, more + LAYERS * UNSPLIT);
    }
}

/* A parameter that is stepped in the backward leaves no gradient behind. */
static void gradients_go_at_once(void **state)
{
    static const char *const without[] = {"optimizer=sgd", "checkpointing=on", NULL},
                             *const with[] = {"optimizer=sgd", "checkpointing=on",
                                              "optimizer_in_bwd=yes", NULL};
    struct tdm_method_prediction p = predict(without), q = predict(with);
    const struct tdm_torch_step *kept = &p.steps[2].torch, *gone = &q.steps[2].torch;
    (void)state;
    assert_int_equal(kept->end_bytes[TDM_PHASE_BACKWARD] - gone->end_bytes[TDM_PHASE_BACKWARD],
                     p.parameters_bytes);
    assert_true(gone->peak.allocated < kept->peak.allocated);
}

/* Without autocast all that a forward keeps is in fp32, twice what bf16 keeps. */
static void fp32_throughout(void **state)
{
    static const char *const narrow[] = {"optimizer=none", "checkpointing=on", "logits=base", NULL},
                             *const wide[] = {"optimizer=none", "checkpointing=on",
                                              "logits=base",    "weights_dtype=fp32",
                                              "autocast=no",    NULL};
    struct tdm_method_prediction p = predict(narrow), q = predict(wide);
    const uint64_t workspace = UINT64_C(32) << 20; /* cuBLAS's, of the first product */
    uint64_t kept = p.steps[0].torch.end_bytes[TDM_PHASE_FORWARD] - p.steps[0].torch.before_bytes;
    (void)state;
    assert_int_equal(q.parameters_bytes, 2 * p.parameters_bytes);
    assert_in_range(q.steps[0].torch.end_bytes[TDM_PHASE_FORWARD] - q.steps[0].torch.before_bytes,
                    2 * kept - workspace - (LAYERS + 4) * UNSPLIT, 2 * kept + UNSPLIT);
}

/* ZeRO-3 divides packed weights, half a byte each; their scales are whole on every GPU. Up to
 * 0.19.3 layers that run again give their frozen weights back, so that they are not all there. */
static void shards_of_4_bits(void **state)
{
    static const char *const whole[] = {"lora_rank=8", NULL},
                             *const packed[] = {"lora_rank=8", "quantization=nf4", NULL},
                             *const now[] = {"lora_rank=8", "checkpointing=on-reentrant", NULL},
                             *const old[] = {"lora_rank=8", "checkpointing=on-reentrant",
                                             "deepspeed=0.14.2", NULL};
    struct tdm_method_prediction p = predict_by("zero3", 2, "llama-3.1-8b", whole),
                                 q = predict_by("zero3", 2, "llama-3.1-8b", packed);
    uint64_t weights = 0, scales;
    (void)state;
    for (unsigned i = 0; i < PROJECTIONS; i++)
        weights += LAYERS * projections[i].rows * projections[i].columns;
    scales = 4 * weights / 64;
    assert_in_range(p.steps[0].torch.before_bytes - q.steps[0].torch.before_bytes + scales,
                    weights * 3 / 4 - LAYERS * PROJECTIONS * 2 * UNSPLIT,
                    weights * 3 / 4 + LAYERS * PROJECTIONS * 2 * UNSPLIT);
    p = predict_by("zero3", 2, "llama-3.1-8b", now);
    q = predict_by("zero3", 2, "llama-3.1-8b", old);
    assert_true(p.steps[2].torch.peak.allocated > q.steps[2].torch.peak.allocated + weights / 2);
}

static void copies_are_trained(void **state)
{
    static const char *const without[] = {"lora_rank=8", "optimizer=adamw-fused", NULL},
                             *const with[] = {"lora_rank=8", "optimizer=adamw-fused",
                                              "modules_to_save=embed_tokens,lm_head", NULL};
    struct tdm_method_prediction p = predict(without), more = predict(with);
    uint64_t copies = 2 * 2 * VOCABULARY * HIDDEN;
    (void)state;
    assert_int_equal(more.parameters_bytes - p.parameters_bytes, copies);
    assert_int_equal(more.steps[2].torch.before_bytes - p.steps[2].torch.before_bytes,
                     3 * copies + 2 * 512); /* two moments each, and step counts */
}

/* States of 8 bits and a scale for 256 of them; norms stay in fp32. Paged ones are in managed
 * memory. */
static void states_of_8_bits_by_hand(void **state)
{
    static const char *const none[] = {"optimizer=sgd", "checkpointing=on", NULL},
                             *const eight[] = {"optim=adamw_bnb_8bit", "checkpointing=on", NULL},
                             *const paged[] = {"optim=paged_adamw_8bit", "checkpointing=on", NULL},
                             *const wide[] = {"optim=paged_adamw_32bit", "checkpointing=on", NULL};
    struct tdm_method_prediction p = predict(none), e = predict(eight), g = predict(paged),
                                 w = predict(wide);
    uint64_t matrices = 2 * VOCABULARY * HIDDEN, norms = (2 * LAYERS + 1) * HIDDEN, tables = 1024;
    (void)state;
    for (unsigned i = 0; i < PROJECTIONS; i++)
        matrices += LAYERS * projections[i].rows * projections[i].columns;
    /* A norm of 4,096 elements has states of 8 bits too; its scales take a block. */
    uint64_t states = 2 * (matrices + norms), scales = 2 * matrices / 256 * 4,
             norm_scales = 2 * (2 * LAYERS + 1) * 512;
    uint64_t base = p.steps[2].torch.before_bytes, small = scales + norm_scales + 2 * tables;
    assert_in_range(e.steps[2].torch.before_bytes - base, states + small,
                    states + small + 2 * PROJECTIONS * UNSPLIT);
    assert_in_range(g.steps[2].torch.before_bytes - base, 2 * norms + small,
                    2 * norms + small + 2 * UNSPLIT);
    assert_int_equal(g.steps[2].torch.host_bytes, 2 * matrices);
    assert_int_equal(w.steps[2].torch.host_bytes, 4 * 2 * matrices);
}

/* torchao's states of 4 bits: half a byte an element and a scale for 128; of fp8 a byte and a scale
 * for 256. Norms of 4,096 elements have them too. Tables take a block each. */
static void states_of_torchao_by_hand(void **state)
{
    static const char *const none[] = {"optimizer=sgd", "checkpointing=on", NULL},
                             *const four[] = {"optim=adamw_torch_4bit", "checkpointing=on", NULL},
                             *const fp8[] = {"optimizer=adamw-fp8", "checkpointing=on", NULL};
    const struct tdm_method_prediction p = predict(none), f = predict(four), e = predict(fp8);
    const uint64_t base = p.steps[2].torch.before_bytes, parameters = p.parameters_bytes / 2,
                   tensors = 2 + LAYERS * (PROJECTIONS + 2) + 1, blocks = 2 * tensors * 3 * 512;
    (void)state;
    assert_in_range(
        f.steps[2].torch.before_bytes - base, 2 * (parameters / 2 + parameters / 128 * 4),
        2 * (parameters / 2 + parameters / 128 * 4) + blocks + 2 * LAYERS * PROJECTIONS * UNSPLIT);
    assert_in_range(e.steps[2].torch.before_bytes - base, 2 * (parameters + parameters / 256 * 4),
                    2 * (parameters + parameters / 256 * 4) + blocks +
                        2 * LAYERS * PROJECTIONS * UNSPLIT);
}

/* CPUOffloadOptimizer leaves no state on the GPU; with offload_gradients no gradient waits for the
 * step. On the host are two pinned copies, rounded up, and two states of the dtype of weights. */
static void offloaded_optimizer_by_hand(void **state)
{
    static const char *const none[] = {"optimizer=sgd", "checkpointing=on", NULL},
                             *const states[] = {"optimizer=adamw-fused", "checkpointing=on",
                                                "cpu_offload_optimizer=states", NULL},
                             *const gradients[] = {"optimizer=adamw-fused", "checkpointing=on",
                                                   "cpu_offload_optimizer=gradients", NULL},
                             *const detached[] = {"optimizer=adamw-fused",
                                                  "checkpointing=on-reentrant",
                                                  "cpu_offload_optimizer=gradients", NULL};
    const struct tdm_method_prediction p = predict(none), s = predict(states),
                                       g = predict(gradients), d = predict(detached);
    const struct tdm_torch_step *last = &s.steps[2].torch, *freed = &g.steps[2].torch;
    (void)state;
    assert_int_equal(last->before_bytes, p.steps[2].torch.before_bytes);
    assert_in_range(last->host_bytes, 4 * p.parameters_bytes, 6 * p.parameters_bytes);
    assert_int_equal(freed->host_bytes, last->host_bytes);
    /* gradients of inputs that a reentrant checkpoint detached are no parameters' */
    assert_in_range(d.steps[2].torch.end_bytes[TDM_PHASE_BACKWARD],
                    freed->end_bytes[TDM_PHASE_BACKWARD],
                    freed->end_bytes[TDM_PHASE_BACKWARD] + (UINT64_C(1) << 20));
    assert_true(last->end_bytes[TDM_PHASE_BACKWARD] - freed->end_bytes[TDM_PHASE_BACKWARD] >
                p.parameters_bytes / 10 * 9);
}

/* GaLore in 8 bits: moments of R rows or columns of a matrix of a layer, and its projection in
 * bf16; of all else those of 8 bits. One matrix more is there while it moves to its copy. By hooks
 * no gradients are left for the step. */
static void galore_of_8_bits_by_hand(void **state)
{
    static const char *const none[] = {"optimizer=sgd", "checkpointing=on", NULL},
                             *const eight[] = {"optim=galore_adamw_8bit", "galore_rank=128",
                                               "checkpointing=on", NULL},
                             *const hooks[] = {"optim=galore_adamw_8bit", "galore_rank=128",
                                               "checkpointing=on", "optimizer_in_bwd=yes", NULL};
    const struct tdm_method_prediction p = predict(none), e = predict(eight), h = predict(hooks);
    const uint64_t ends = 2 * VOCABULARY * HIDDEN, norms = (2 * LAYERS + 1) * HIDDEN, r = 128;
    uint64_t states = 2 * (ends + norms) + 2 * ends / 256 * 4 + 2 * (2 * LAYERS + 1) * 512 + 2048;
    (void)state;
    for (unsigned i = 0; i < PROJECTIONS; i++) {
        const bool wide = projections[i].rows < projections[i].columns;
        const uint64_t longer = wide ? projections[i].columns : projections[i].rows,
                       shorter = wide ? projections[i].rows : projections[i].columns;
        states += LAYERS * (2 * r * longer + 2 * r * longer / 256 * 4 + r * shorter * 2);
    }
    const uint64_t base = p.steps[2].torch.before_bytes;
    assert_in_range(e.steps[2].torch.before_bytes - base, states,
                    states + 6 * LAYERS * PROJECTIONS * UNSPLIT);
    const uint64_t gradients = h.parameters_bytes;
    assert_true(e.steps[2].torch.end_bytes[TDM_PHASE_BACKWARD] -
                    h.steps[2].torch.end_bytes[TDM_PHASE_BACKWARD] >
                gradients / 10 * 9);
}

/* Products of 8 bits with scales of blocks keep what products of bf16 keep: inputs and weights.
 * What they cast lives until both gradients are there. The largest is the MLP's: 8-bit copies of a
 * gradient twice, of a weight and of an input, less what the attention's backward has. */
static void blocks_of_8_bits_by_hand(void **state)
{
    static const char *const plain[] = {"optimizer=none", "logits=base", NULL},
                             *const blocks[] = {"optimizer=none", "logits=base",
                                                "float8_recipe=blockwise", NULL};
    const struct tdm_method_prediction p = predict(plain), b = predict(blocks);
    const struct tdm_torch_step *without = &p.steps[2].torch, *with = &b.steps[2].torch;
    const uint64_t casts = 2 * TOKENS * INTERMEDIATE + INTERMEDIATE * HIDDEN + TOKENS * HIDDEN,
                   scales = (2 * TOKENS * INTERMEDIATE + TOKENS * HIDDEN) / 128 * 4 +
                            INTERMEDIATE * HIDDEN / (128 * 128) * 4;
    (void)state;
    assert_int_equal(with->end_bytes[TDM_PHASE_FORWARD] - with->before_bytes,
                     without->end_bytes[TDM_PHASE_FORWARD] - without->before_bytes);
    const uint64_t more =
        with->highest_bytes[TDM_PHASE_BACKWARD] - without->highest_bytes[TDM_PHASE_BACKWARD];
    assert_in_range(more, casts / 2, casts + scales + 8 * UNSPLIT);
}

/* Adafactor keeps a row and a column of sums. While it steps a parameter in bf16, it has gradient,
 * parameter and two tensors of that size in fp32, and the update of the parameter before. */
static void adafactor_by_hand(void **state)
{
    static const char *const pairs[] = {"optimizer=adafactor", "checkpointing=on", NULL};
    struct tdm_method_prediction p = predict(pairs);
    const struct tdm_torch_step *step = &p.steps[2].torch;
    uint64_t head = VOCABULARY * HIDDEN * 4,
             above = step->highest_bytes[TDM_PHASE_OPTIMIZER] - step->end_bytes[TDM_PHASE_BACKWARD];
    (void)state;
    assert_int_equal(step->peak_phase, TDM_PHASE_OPTIMIZER);
    assert_in_range(above, 4 * head, 4 * head + 5 * 1024 * 1024);
    assert_true(step->before_bytes - p.steps[0].torch.before_bytes < 100 * 1024 * 1024);
}

/* Inputs of products of 8 bits are attributes of ctx, which no checkpoint makes again. */
static void inputs_of_8_bits_stay(void **state)
{
    static const char *const again[] = {"lora_rank=8", "quantization=int8", "checkpointing=on",
                                        "step=1", NULL},
                             *const reentrant[] = {"lora_rank=8", "quantization=int8",
                                                   "checkpointing=on-reentrant", "step=1", NULL};
    struct tdm_method_prediction a = predict(again), r = predict(reentrant);
    /* inputs of q, k, v together, of o, of gate and up together, of down */
    uint64_t held = LAYERS * TOKENS * 2 * (3 * HIDDEN + INTERMEDIATE);
    (void)state;
    assert_int_equal(a.steps[0].torch.end_bytes[TDM_PHASE_FORWARD] -
                         r.steps[0].torch.end_bytes[TDM_PHASE_FORWARD],
                     held);
}

/* Of checkpointed layers their inputs stay. Granite multiplies what the embedding gives; that stays
 * too, as it was made to require a gradient. */
static void multiplied_inputs_stay(void **state)
{
    static const char *const pairs[] = {"lora_rank=8", "checkpointing=on", "logits=base", "step=1",
                                        NULL};
    static const char *const configs[] = {"llama-3.1-8b", "granite-3.1-8b"}; /* 32, 40 layers */
    uint64_t kept[2];
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct tdm_method_prediction p = predict_of(configs[i], pairs);
        kept[i] = p.steps[0].torch.end_bytes[TDM_PHASE_FORWARD] - p.steps[0].torch.before_bytes;
    }
    assert_int_equal(kept[1] - kept[0], (40 - LAYERS + 1) * TOKENS * HIDDEN * 2);
}

/* Blocks are split down to 512 bytes. */
#define EXACT "allocator_conf=expandable_segments:True"

/* A row of a prefix has K and V of all layers in fp32. Of each virtual token the backward of a
 * layer needs K and V repeated for all heads, and a column of the mask's numbers; the embedding
 * keeps an index. The cache has K and V as they are, until the output object goes. With an encoder
 * rows are as wide as K, and two products make the rest. */
static void prefixes_by_hand(void **state)
{
    static const char *const few[] =
        {"peft_type=PREFIX_TUNING", "num_virtual_tokens=128", "logits=base", "step=1", EXACT, NULL},
                             *const many[] = {"peft_type=PREFIX_TUNING",
                                              "num_virtual_tokens=256",
                                              "logits=base",
                                              "step=1",
                                              EXACT,
                                              NULL},
                             *const encoded[] = {"peft_type=PREFIX_TUNING",
                                                 "num_virtual_tokens=128",
                                                 "prefix_projection=yes",
                                                 "encoder_hidden_size=512",
                                                 "logits=base",
                                                 "step=1",
                                                 EXACT,
                                                 NULL};
    const uint64_t width = 1024, all = 2 * LAYERS * width, more = 128;
    struct tdm_method_prediction a = predict(few), b = predict(many), e = predict(encoded);
    (void)state;
    assert_int_equal(b.parameters_bytes - a.parameters_bytes, more * all * 4);
    assert_int_equal(e.parameters_bytes - (a.parameters_bytes - 128 * all * 4),
                     4 * (128 * width + 512 * width + 512 + all * 512 + all));
    const uint64_t kept[] = {
        a.steps[0].torch.end_bytes[TDM_PHASE_FORWARD] - a.steps[0].torch.before_bytes,
        b.steps[0].torch.end_bytes[TDM_PHASE_FORWARD] - b.steps[0].torch.before_bytes};
    const uint64_t due = LAYERS * more * (2 * HIDDEN * 2 + TOKENS * 2) + more * 8;
    assert_in_range(kept[1] - kept[0], due, due + 4096);
}

/* LitGPT: a norm keeps its input and its scale in fp32, of 2023 in bf16, but for the first one,
 * whose input needs no gradient. An adapter of q and v alone keeps its result before it is padded,
 * one of all three the products of one rank more. The head is never the embedding, and is quantized
 * too, from fp16, so a product of it takes its weight twice; q, k and v have one table of values.
 */
static void litgpt_by_hand(void **state)
{
#define OF_LITGPT "lora_rank=8", "step=1", EXACT
    static const char *const
        now[] = {OF_LITGPT, "model_code=litgpt", "lora_targets=q_proj,v_proj", NULL},
        *const before[] = {OF_LITGPT, "model_code=lit-gpt", "lora_targets=q_proj,v_proj", NULL},
        *const three[] = {OF_LITGPT, "model_code=litgpt", "lora_targets=q_proj,k_proj,v_proj",
                          NULL},
        *const nf4[] = {OF_LITGPT, "model_code=litgpt", "quantization=nf4", NULL},
        *const theirs[] = {OF_LITGPT, "quantization=nf4", NULL}, *const tied[] = {OF_LITGPT, NULL},
        *const own[] = {OF_LITGPT, "model_code=litgpt", NULL};
    const char *const *cases[] = {now, before, three};
    const uint64_t head = VOCABULARY * HIDDEN;
    uint64_t kept[3];
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct tdm_method_prediction p = predict(cases[i]);
        kept[i] = p.steps[0].torch.end_bytes[TDM_PHASE_FORWARD] - p.steps[0].torch.before_bytes;
    }
    assert_int_equal(kept[0] - kept[1], 2 * LAYERS * TOKENS * (HIDDEN + 1) * 2);
    assert_int_equal(kept[0] - kept[2], LAYERS * TOKENS * 2 * (HIDDEN + KV - RANK));
    struct tdm_method_prediction q = predict(nf4), t = predict(theirs);
    assert_int_equal(t.parameters_bytes - q.parameters_bytes,
                     2 * head - (head / 2 + head / 64 * 4 + 16 * 4) + LAYERS * 2 * 16 * 4);
    assert_int_equal(predict_of("qwen2.5-0.5b", own).parameters_bytes -
                         predict_of("qwen2.5-0.5b", tied).parameters_bytes,
                     UINT64_C(151936) * 896 * 2);
    const struct tdm_torch_step *step = &q.steps[0].torch;
    assert_true(step->highest_bytes[TDM_PHASE_FORWARD] >
                step->end_bytes[TDM_PHASE_FORWARD] + 2 * 2 * head - 2 * TOKENS * VOCABULARY * 4);
}

/* LitGPT's layers keep three hidden states more than transformers', also of shards and compiled:
 * all of q, k and v beside what is made of them. */
static void litgpt_shares_shards(void **state)
{
    static const char *const compile[] = {"compile=no", "compile=layers"};
    const uint64_t hidden = LAYERS * TOKENS * HIDDEN * 2;
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        const char *const theirs[] = {"logits=bf16", "step=1", compile[i], NULL},
                          *const own[] = {"logits=bf16", "step=1", compile[i], "model_code=litgpt",
                                          NULL};
        const struct tdm_torch_step t = predict_by("fsdp", 2, "llama-2-7b", theirs).steps[0].torch,
                                    o = predict_by("fsdp", 2, "llama-2-7b", own).steps[0].torch;
        const uint64_t more = (o.end_bytes[TDM_PHASE_FORWARD] - o.before_bytes) -
                              (t.end_bytes[TDM_PHASE_FORWARD] - t.before_bytes);
        assert_in_range(more, 298 * hidden / 100, 3 * hidden);
    }
    struct tdm_method_prediction p;
    struct tdm_error err = {.message = ""};
    const char *const groups[] = {"compile=layers", "model_code=litgpt", NULL},
                      *const tensor[] = {"tensor_parallel_degree=2", "model_code=litgpt", NULL};
    assert_int_equal(try_predict("llama-3-8b", "fsdp", 2, groups, &p, &err), TDM_USAGE);
    assert_int_equal(try_predict("llama-2-7b", "fsdp", 2, tensor, &p, &err), TDM_USAGE);
}

/* GaLore's moments by fully_shard on two GPUs: of matrices that are tall or square a shard of rows
 * x rank, of wide ones rank x columns, whole; AdamW's of the rest are shards. Besides the
 * projections are whole, of rank x the shorter side. */
static void galore_of_shards_by_hand(void **state)
{
    static const char *const pairs[] = {"optimizer=galore", "galore_rank=64", EXACT, NULL};
    const struct tdm_method_prediction p = predict_by("fsdp", 2, "llama-3.2-1b", pairs);
    /* q, o, k, v, gate, up, down: 2,048 x 2,048, 512 x 2,048, 8,192 x 2,048, 2,048 x 8,192 */
    const uint64_t rank = 64, side = 2048, kv = 512, inner = 8192,
                   tall = (2 * side + 2 * inner) * rank / 2, wide = (2 * side + inner) * rank,
                   projections = (2 * side + 2 * kv + 3 * side) * rank,
                   rest = (UINT64_C(128256) * side + side) / 2 + 16 * side,
                   bytes = 2 * (2 * (16 * (tall + wide) + rest) + 16 * projections);
    const uint64_t predicted = p.steps[p.count - 1].torch.categories[TDM_METHOD_OPTIMIZER];
    (void)state;
    assert_in_range(predicted, bytes - MIB_BYTES, bytes + MIB_BYTES);
}

/* Of adapters among weights of fp32 their moments take half as much in bf16. */
static void narrow_adapters_by_hand(void **state)
{
    static const char *const wide[] = {"lora_rank=8", "weights_dtype=fp32", EXACT, NULL},
                             *const narrow[] = {"lora_rank=8", "weights_dtype=fp32",
                                                "lora_dtype=bf16", EXACT, NULL};
    (void)state;
    for (uint64_t gpus = 1; gpus <= 2; gpus++) {
        const char *method = gpus == 1 ? "parallel" : "fsdp";
        const struct tdm_method_prediction w = predict_by(method, gpus, "qwen2.5-0.5b", wide),
                                           n = predict_by(method, gpus, "qwen2.5-0.5b", narrow);
        const uint64_t of_wide = w.steps[w.count - 1].torch.categories[TDM_METHOD_OPTIMIZER],
                       of_narrow = n.steps[n.count - 1].torch.categories[TDM_METHOD_OPTIMIZER];
        assert_true(of_narrow > 0);
        assert_in_range(of_wide, 18 * of_narrow / 10, 2 * of_narrow);
    }
}

/* Dropout of scores keeps a byte for each, beside the weights that it dropped some of. */
static void score_dropout_by_hand(void **state)
{
    static const char *const without[] = {"attention=eager", "step=1", EXACT, NULL},
                             *const with[] = {"attention=eager", "attention_dropout=0.1", "step=1",
                                              EXACT, NULL};
    const struct tdm_torch_step a = predict_of("qwen2.5-0.5b", without).steps[0].torch,
                                b = predict_of("qwen2.5-0.5b", with).steps[0].torch;
    (void)state;
    assert_int_equal((b.end_bytes[TDM_PHASE_FORWARD] - b.before_bytes) -
                         (a.end_bytes[TDM_PHASE_FORWARD] - a.before_bytes),
                     24 * UINT64_C(14) * TOKENS * TOKENS);
}

/* Fabric makes LitGPT's logits fp32, and so is what the loss keeps: 8 bytes a token and word, where
 * transformers' logits that are held take 2 and its loss 4. K and V of all query heads are little
 * beside that. */
static void litgpt_logits_are_fp32(void **state)
{
    static const char *const own[] = {"lora_rank=8", "step=1", EXACT, "model_code=litgpt", NULL},
                             *const held[] = {"lora_rank=8", "step=1", EXACT, "logits=hf-held",
                                              NULL};
    const uint64_t words = UINT64_C(151936) * TOKENS;
    uint64_t kept[2];
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct tdm_method_prediction p = predict_of("qwen2.5-0.5b", i == 0 ? own : held);
        kept[i] = p.steps[0].torch.end_bytes[TDM_PHASE_FORWARD] - p.steps[0].torch.before_bytes;
    }
    assert_in_range(kept[0] - kept[1], words * 2 - words / 2, words * 2 + words);
}

/* The loss keeps its log-softmax. Beside it a loop that holds its logits keeps them: 2 bytes a
 * token and word of bf16 ones, whose log-softmax is bf16 too, and 4 of fp32 ones. */
static void held_logits_stay(void **state)
{
    static const char *const logits[] = {"logits=bf16", "logits=bf16-held", "logits=fp32-held"};
    const uint64_t words = UINT64_C(151936) * TOKENS;
    uint64_t kept[3];
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        const char *const pairs[] = {"lora_rank=8", "step=1", EXACT, logits[i], NULL};
        struct tdm_method_prediction p = predict_of("qwen2.5-0.5b", pairs);
        kept[i] = p.steps[0].torch.end_bytes[TDM_PHASE_FORWARD] - p.steps[0].torch.before_bytes;
    }
    assert_int_equal(kept[1] - kept[0], 2 * words);
    assert_in_range(kept[2] - kept[0], (4 + 4 - 2) * words, (4 + 4 - 2) * words + 4096);
}

/* AdamW (foreach) of torch 2.0 makes denominators beside the roots: of bf16 parameters while those
 * of fp32 ones are there. */
static void denominators_by_hand(void **state)
{
#define COPIES "lora_rank=8", "lora=peft", "modules_to_save=embed_tokens,lm_head", EXACT
    static const char *const now[] = {COPIES, NULL}, *const before[] = {COPIES, "torch=2.0", NULL};
    uint64_t most[2];
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct tdm_method_prediction p = predict(i == 0 ? now : before);
        most[i] = p.steps[2].torch.phases[TDM_PHASE_OPTIMIZER].allocated;
    }
    assert_int_equal(most[1] - most[0], 2 * 2 * VOCABULARY * HIDDEN);
}

/* In torch 2.0 and 2.1 the mean in a norm saves its input, squares in fp32. Under adapters the
 * first norm has no gradient; with all weights trained it has. What is made again saves nothing. */
static void means_by_hand(void **state)
{
#define STEP "step=1", "optimizer=none"
    static const struct {
        const char *now[MOST_PAIRS], *before[MOST_PAIRS];
        uint64_t norms;
    } cases[] = {
        {{"lora_rank=8", STEP}, {"lora_rank=8", STEP, "torch=2.1"}, 2 * LAYERS},
        {{STEP}, {STEP, "torch=2.1"}, 2 * LAYERS + 1},
        {{STEP}, {STEP, "torch=2.0"}, 2 * LAYERS + 1},
        {{STEP, "checkpointing=on"}, {STEP, "checkpointing=on", "torch=2.1"}, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t kept[2];
        for (unsigned before = 0; before < 2; before++) {
            struct tdm_method_prediction p = predict(before ? cases[i].before : cases[i].now);
            kept[before] = p.steps[0].torch.end_bytes[TDM_PHASE_FORWARD];
        }
        assert_int_equal(kept[1] - kept[0], cases[i].norms * TOKENS * HIDDEN * 4);
    }
}

static void what_cannot_be_is_refused(void **state)
{
    static const struct {
        const char *method;
        uint64_t gpus;
        const char *pairs[MOST_PAIRS], *says;
    } cases[] = {
        {"parallel", 1, {"quantization=nf4"}, "nothing would be trained"},
        {"parallel", 1, {"lora_rank=8", "lora_dropout=1"}, "not a share"},
        {"parallel", 1, {"lora_rank=8", "modules_to_save=norm"}, "not known"},
        {"parallel", 1, {"load_in_4bit=true", "load_in_8bit=true"}, "given twice"},
        {"fsdp", 2, {"lora_rank=8", "quantization=int8"}, "fully_shard fails"},
        {"fsdp", 2, {"optimizer=adamw-8bit"}, "bitsandbytes refuses"},
        {"torch-cp", 2, {"optimizer=lion-32bit"}, "bitsandbytes refuses"},
        {"fsdp", 2, {"optimizer=adafactor"}, "Adafactor of transformers fails"},
        {"fsdp", 2, {"optimizer=galore", "fsdp_version=1"}, "flat"},
        {"fsdp", 2, {"optimizer=galore-8bit"}, "bitsandbytes refuses"},
        {"fsdp", 16, {"optimizer=adam-mini"}, "by heads"},
        {"fsdp", 4, {"optimizer=muon", "dp_replicate_size=2"}, "dp_replicate_size"},
        {"fsdp", 2, {"optimizer=muon", "fsdp_version=1"}, "flat"},
        {"fsdp", 2, {"optimizer=muon", "offload_policy=cpu"}, "offloaded shards"},
        {"ring", 2, {"lora_rank=8", "quantization=int8", "sharding=fsdp"}, "fully_shard"},
        {"zero3", 2, {"lora_rank=8", "quantization=int8"}, "int8 weights"},
        {"parallel", 1, {"peft_type=LOHA", "lora_rank=0"}, "no rank of LOHA"},
        {"parallel", 1, {"peft_type=lora", "lora_rank=0"}, "no rank of lora"},
        {"parallel", 1, {"peft_type=OFT", "lora_rank=16"}, "oft_block_size=32, not both"},
        {"parallel", 1, {"peft_type=OFT", "r=16", "oft_block_size=64"}, "=64, not both"},
        {"parallel", 1, {"peft_type=OFT", "r=0", "oft_block_size=0"}, "both are 0"},
        {"parallel", 1, {"peft_type=LOKR", "decompose_factor=65537"}, "expected -1, or 1 to"},
        {"parallel", 1, {"peft_type=PREFIX_TUNING", "checkpointing=on"}, "peft refuses"},
        {"parallel", 1, {"peft_type=PREFIX_TUNING", "compile=layers"}, "torch.compile is not"},
        {"parallel", 1, {"peft_type=LOKR", "decompose_factor=0"}, "expected -1, or 1 to"},
        {"parallel", 1, {"model_code=litgpt", "liger=all"}, "LitGPT with liger"},
        {"ddp", 2, {"model_code=litgpt"}, "no key"},
    };
    (void)state;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tdm_method_prediction p;
        struct tdm_error err = {.message = ""};
        assert_int_equal(
            try_predict("llama-3.1-8b", cases[i].method, cases[i].gpus, cases[i].pairs, &p, &err),
            TDM_USAGE);
        if (strstr(err.message, cases[i].says) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", err.message, cases[i].says);
    }
}

/* Qwen 1 has one product for q, k and v, so one adapter, whose input has R columns once; beside
 * that qwen1.5-7b has the same shapes. Its v is a view of all three, so rotated q and k are kept
 * beside those that were not. */
static void joint_products_by_hand(void **state)
{
    static const char *const adapted[] = {"lora_rank=8", NULL}, *const whole[] = {
                                                                    "optimizer=none", "logits=base",
                                                                    "checkpointing=off",
                                                                    "attention=sdpa-flash", NULL};
    (void)state;
    struct tdm_method_prediction joint = predict_of("qwen-7b", adapted),
                                 apart = predict_of("qwen1.5-7b", adapted);
    assert_int_equal(apart.parameters_bytes - joint.parameters_bytes,
                     LAYERS * 2 * RANK * HIDDEN * 2);
    uint64_t kept[2];
    const char *const configs[] = {"qwen-7b", "qwen1.5-7b"};
    for (unsigned i = 0; i < 2; i++) {
        struct tdm_method_prediction p = predict_of(configs[i], whole);
        kept[i] = p.steps[1].torch.end_bytes[TDM_PHASE_FORWARD] - p.steps[1].torch.before_bytes;
    }
    const uint64_t more = LAYERS * TOKENS * 2 * HIDDEN * 2;
    assert_true(kept[0] - kept[1] >= more && kept[0] - kept[1] < more + 4 * UNSPLIT);
}

/* Targets in the words of the model's own code; peft refuses those that it has none of. */
static void targets_in_own_words(void **state)
{
    static const struct {
        const char *model, *own, *ours;
    } same[] = {{"qwen-7b", "lora_targets=c_attn", "lora_targets=qkv_proj"},
                {"qwen-7b", "lora_targets=c_attn,attn.c_proj,mlp.c_proj",
                 "lora_targets=qkv_proj,o_proj,down_proj"},
                {"pythia-1.4b", "target_modules=query_key_value,dense,dense_h_to_4h,dense_4h_to_h",
                 "lora_targets=all"},
                {"opt-1.3b", "target_modules=q_proj,out_proj", "lora_targets=q_proj,o_proj"},
                {"phi-2", "target_modules=fc1,fc2", "lora_targets=up_proj,down_proj"}};
    (void)state;
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        const char *const own[] = {"lora_rank=8", same[i].own, NULL}, *const ours[] = {
                                                                          "lora_rank=8",
                                                                          same[i].ours, NULL};
        const struct tdm_method_prediction read = predict_of(same[i].model, own),
                                           said = predict_of(same[i].model, ours);
        assert_int_equal(read.steps[read.highest].torch.peak.allocated,
                         said.steps[said.highest].torch.peak.allocated);
    }
    static const struct {
        const char *model, *target, *has;
    } none[] = {{"qwen-7b", "lora_targets=q_proj,v_proj",
                 "it has o_proj,qkv_proj,gate_proj,up_proj,down_proj"},
                {"qwen2.5-7b", "lora_targets=c_attn",
                 "it has q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"}};
    static const char *const types[] = {"peft_type=LORA", "peft_type=IA3", "peft_type=VERA",
                                        "peft_type=LOHA", "peft_type=BOFT"};
    struct tdm_method_prediction p;
    struct tdm_error err = {.message = ""};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        for (size_t k = 0; k < sizeof(types) / sizeof(types[0]); k++) {
            const char *const pairs[] = {"lora_rank=8", types[k], none[i].target, NULL};
            assert_int_equal(try_predict(none[i].model, "parallel", 1, pairs, &p, &err), TDM_USAGE);
            assert_string_equal(err.hint, none[i].has);
        }
    const char *const norms[] = {"peft_type=LN_TUNING", NULL};
    assert_int_equal(try_predict("olmo-1b", "parallel", 1, norms, &p, &err), TDM_USAGE);
    assert_non_null(strstr(err.message, "norms of olmo-1b have no weights"));
}

/* In place: all logits, a chunk's log-softmax and two gradients of it. DPO to TRL 1.10: log-softmax
 * of all and two gradients. */
static void losses_of_all_logits_by_hand(void **state)
{
    const char *const chunk[] = {"logits=in-place", "logits_chunk=128", "lora_rank=8", NULL},
                      *const bf16[] = {"logits=bf16", "lora_rank=8", NULL};
    const uint64_t logits = TOKENS * VOCABULARY * 2;
    (void)state;
    const struct tdm_method_prediction p = predict(chunk), plain = predict(bf16);
    const uint64_t own = p.steps[0].torch.categories[TDM_METHOD_LOGITS],
                   of_bf16 = plain.steps[0].torch.categories[TDM_METHOD_LOGITS];
    assert_in_range(own, logits + 3 * logits / 4, logits + 3 * logits / 4 + 4 * UNSPLIT);
    const char *const pairs[] = {"trainer=dpo", "trl=1.9.0", "precompute_ref_log_probs=yes",
                                 "lora_rank=8", NULL};
    const struct tdm_method_prediction of_pairs = predict(pairs);
    assert_in_range(of_pairs.steps[0].torch.categories[TDM_METHOD_LOGITS], 6 * logits,
                    6 * logits + 6 * UNSPLIT);                      /* the same of two sequences */
    assert_in_range(of_bf16, 3 * logits, 3 * logits + 4 * UNSPLIT); /* log-softmax, two gradients */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_of_modules_by_hand),
        cmocka_unit_test(originals_are_not_gathered),
        cmocka_unit_test(refuses_dora_of_zero3),
        cmocka_unit_test(quantized_weights_by_hand),
        cmocka_unit_test(dropout_by_hand),
        cmocka_unit_test(gradients_go_at_once),
        cmocka_unit_test(fp32_throughout),
        cmocka_unit_test(shards_of_4_bits),
        cmocka_unit_test(copies_are_trained),
        cmocka_unit_test(states_of_8_bits_by_hand),
        cmocka_unit_test(states_of_torchao_by_hand),
        cmocka_unit_test(offloaded_optimizer_by_hand),
        cmocka_unit_test(galore_of_8_bits_by_hand),
        cmocka_unit_test(blocks_of_8_bits_by_hand),
        cmocka_unit_test(adafactor_by_hand),
        cmocka_unit_test(inputs_of_8_bits_stay),
        cmocka_unit_test(multiplied_inputs_stay),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(prefixes_by_hand),
        cmocka_unit_test(litgpt_by_hand),
        cmocka_unit_test(galore_of_shards_by_hand),
        cmocka_unit_test(narrow_adapters_by_hand),
        cmocka_unit_test(score_dropout_by_hand),
        cmocka_unit_test(litgpt_logits_are_fp32),
        cmocka_unit_test(held_logits_stay),
        cmocka_unit_test(litgpt_shares_shards),
        cmocka_unit_test(denominators_by_hand),
        cmocka_unit_test(means_by_hand),
        cmocka_unit_test(joint_products_by_hand),
        cmocka_unit_test(targets_in_own_words),
        cmocka_unit_test(losses_of_all_logits_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
