/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of context parallelism: how a sequence is divided, a rank's memory for attention in cases
 * counted by hand, times of rings, what cannot be run, and BurstEngine's published peaks. */
#include "methods/prediction.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS 256u
#define HEADS 2u
#define HEAD_DIM 64u
#define BLOCK (INT64_C(2) * TOKENS * HEADS * HEAD_DIM) /* bytes of a rank's Q, K or V */
#define SUMS (INT64_C(4) * TOKENS * HEADS)             /* bytes of one fp32 number per row */
#define MOST_EVENTS 64u

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err == NULL ? "no memory" : err->message);
}

/* ---- tokens ---- */

static void sequences_are_padded(void **state)
{
    struct tdm_context c = {&tdm_ring_divider, TDM_RING_ZIGZAG, false, 4, 4, 1, 8, 0};
    (void)state;
    assert_int_equal(tdm_context_padded_tokens(&c, 8), 8);
    assert_int_equal(tdm_context_padded_tokens(&c, 9), 16); /* two slices per rank */
    assert_int_equal(tdm_context_local_tokens(&c, 9), 4);
    c.balance = TDM_RING_STRIPED;
    assert_int_equal(tdm_context_padded_tokens(&c, 9), 12);
    c = (struct tdm_context){&tdm_usp_divider, TDM_RING_ZIGZAG, false, 4, 2, 2, 8, 0};
    assert_int_equal(tdm_context_padded_tokens(&c, 9), 12); /* slices are divided again */
    c = (struct tdm_context){&tdm_ulysses_divider, TDM_RING_ZIGZAG, false, 3, 1, 3, 8, 0};
    assert_int_equal(tdm_context_padded_tokens(&c, 10), 12);
}

/* ---- attention ---- */

struct machine {
    struct tdm_eager eager;
    struct tdm_torch_allocator *allocator;
    struct tdm_eager_value *inputs[3];
    int64_t events[MOST_EVENTS];
    size_t count;
};

static void note(void *context, const struct tdm_storage *storage, bool allocated, uint64_t bytes)
{
    (void)storage;
    struct machine *machine = context;
    assert_true(machine->count < MOST_EVENTS);
    machine->events[machine->count++] = allocated ? (int64_t)bytes : -(int64_t)bytes;
}

static void start(struct machine *machine, bool gradients)
{
    /* one multiprocessor: nothing is split by keys */
    static const struct tdm_gpu_facts gpu = {1, 2048, 1, 1, 90};
    memset(machine, 0, sizeof(*machine));
    must(tdm_torch_allocator_create(UINT64_C(1) << 30, false, &machine->allocator, NULL), NULL);
    tdm_eager_start(&machine->eager, machine->allocator, &gpu);
    for (unsigned i = 0; i < 3; i++) {
        machine->inputs[i] = tdm_value_new(&machine->eager, TOKENS * HEADS, HEAD_DIM, 2);
        machine->inputs[i]->swapped = true;
        if (gradients)
            tdm_value_require_grad(&machine->eager, machine->inputs[i]);
    }
    machine->eager.observe = note;
    machine->eager.observer = machine;
}

static struct tdm_eager_value *attend(struct machine *machine, const struct tdm_context *context)
{
    const struct tdm_attention_shape shape = {
        TDM_ATTENTION_FLASH, 1, HEADS, HEADS, TOKENS, HEAD_DIM, 0};
    return tdm_context_attention(&machine->eager, context, &shape, machine->inputs[0],
                                 machine->inputs[1], machine->inputs[2]);
}

static void end(struct machine *machine)
{
    tdm_eager_end(&machine->eager);
    tdm_torch_allocator_free(machine->allocator);
}

static void expect_events(const struct machine *machine, const int64_t *events, size_t count)
{
    assert_int_equal(machine->count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(machine->events[i], events[i]);
}

/* Two ranks. K and V arrive while the first block is computed; both outputs are joined in fp32. */
static void ring_forward_by_hand(void **state)
{
    static const int64_t events[] = {BLOCK,      BLOCK,                 /* K, V that arrive */
                                     BLOCK,      SUMS,       2 * BLOCK, /* a block, in fp32 */
                                     BLOCK,      SUMS,       -BLOCK,    /* the next */
                                     2 * BLOCK,  SUMS,                  /* both */
                                     -2 * BLOCK, -SUMS,                 /* freed */
                                     BLOCK,      -2 * BLOCK, -BLOCK,    -SUMS,
                                     -BLOCK,     -BLOCK,     -SUMS};
    struct tdm_context context = {&tdm_ring_divider, TDM_RING_ZIGZAG, false, 2, 2, 1, 8, 0};
    struct machine machine;
    (void)state;
    start(&machine, false);
    struct tdm_eager_value *output = attend(&machine, &context);
    expect_events(&machine, events, sizeof(events) / sizeof(events[0]));
    tdm_drop(&machine.eager, output);
    end(&machine);
}

static int64_t backward_peak(const struct tdm_context *context)
{
    struct machine machine;
    start(&machine, true);
    machine.eager.observe = NULL;
    struct tdm_eager_value *output = attend(&machine, context);
    struct tdm_eager_value *grad = tdm_value_like(&machine.eager, output);
    tdm_eager_reset_peak(&machine.eager);
    tdm_backward(&machine.eager, output, grad);
    int64_t peak = (int64_t)tdm_torch_peak(machine.allocator).allocated;
    end(&machine);
    return peak;
}

/* The peak holds Q, K, V, the output, its gradient and sums. It also holds the blocks' gradients, K
 * and V that arrived, dQ and two pairs of dK, dV in fp32, and finally the results in bf16. */
static void ring_backward_by_hand(void **state)
{
    struct tdm_context context = {&tdm_ring_divider, TDM_RING_ZIGZAG, false, 2, 2, 1, 8, 0};
    const int64_t held = 5 * BLOCK + SUMS;
    const int64_t came = 3 * BLOCK + 2 * BLOCK, sums = 2 * BLOCK + 4 * BLOCK + 4 * BLOCK;
    (void)state;
    assert_int_equal(backward_peak(&context), held + SUMS / 2 + came + sums + 3 * BLOCK);
    /* Contiguous has no second half. Gradients that arrived are added to new ones while both
     * exist. */
    context.balance = TDM_RING_CONTIGUOUS;
    assert_int_equal(backward_peak(&context), held + came + sums + 4 * BLOCK);
    context.balance = TDM_RING_STRIPED;
    assert_int_equal(backward_peak(&context), held + came + sums + 4 * BLOCK);
    /* With more ranks other K and V are always arriving, but there are no results yet. */
    context = (struct tdm_context){&tdm_ring_divider, TDM_RING_ZIGZAG, false, 8, 8, 1, 8, 0};
    assert_int_equal(backward_peak(&context),
                     held + SUMS / 2 + came + 2 * BLOCK + sums + 2 * BLOCK + SUMS);
}

/* Q, K and V are exchanged, then the output, whose heads must be reordered. */
static void ulysses_by_hand(void **state)
{
    static const int64_t events[] = {BLOCK,  BLOCK,  -BLOCK, BLOCK, BLOCK, -BLOCK, BLOCK,
                                     BLOCK,  -BLOCK, BLOCK,  SUMS,  16,    8,      -16,
                                     -8,     -SUMS,  BLOCK,  BLOCK, BLOCK, -BLOCK, -BLOCK,
                                     -BLOCK, -BLOCK, -BLOCK, -BLOCK};
    struct tdm_context context = {&tdm_ulysses_divider, TDM_RING_ZIGZAG, false, 2, 1, 2, 8, 0};
    struct machine machine;
    (void)state;
    start(&machine, false);
    struct tdm_eager_value *output = attend(&machine, &context);
    expect_events(&machine, events, sizeof(events) / sizeof(events[0]));
    tdm_drop(&machine.eager, output);
    end(&machine);
}

/* A freed block that another stream uses does not count, and waits for that stream. */
static void shared_blocks_wait(void **state)
{
    struct tdm_torch_allocator *allocator;
    struct tdm_torch_block *first, *second;
    const uint64_t bytes = UINT64_C(32) << 20;
    (void)state;
    must(tdm_torch_allocator_create(3 * bytes, false, &allocator, NULL), NULL);
    assert_int_equal(tdm_torch_malloc(allocator, 0, bytes, &first), TDM_OK);
    tdm_torch_free_later(allocator, first);
    assert_int_equal(tdm_torch_current(allocator).allocated, 0);
    assert_int_equal(tdm_torch_malloc(allocator, 0, bytes, &second), TDM_OK);
    assert_int_equal(tdm_torch_current(allocator).reserved, 2 * bytes);
    tdm_torch_settle(allocator);
    assert_int_equal(tdm_torch_malloc(allocator, 0, bytes, &first), TDM_OK);
    assert_int_equal(tdm_torch_current(allocator).reserved, 2 * bytes);
    /* if memory is short, the allocator waits for the stream */
    tdm_torch_free_later(allocator, first);
    assert_int_equal(tdm_torch_malloc(allocator, 0, 2 * bytes, &first), TDM_OK);
    tdm_torch_allocator_free(allocator);
}

/* ---- times ---- */

static double both_seconds(const struct tdm_ring_turn *turn, const struct tdm_links *links)
{
    return tdm_ring_forward_seconds(turn, links) + tdm_ring_backward_seconds(turn, links);
}

static void times_follow_the_equations(void **state)
{
    const struct tdm_links links = {0, 400e9, 0, 25e9, 8};
    const double tensor = 1e8, inside = tensor / 400e9, between = tensor / 25e9;
    struct tdm_ring_turn turn = {32, 4, false, 2 * tensor, 2 * tensor, 2 * tensor, 2 * tensor};
    (void)state;
    assert_true(fabs(both_seconds(&turn, &links) - 6 * 32 * between) < 1e-9);
    turn.double_ring = true;
    assert_true(fabs(both_seconds(&turn, &links) -
                     (4 * 4 * between + 2 * (28 * inside + 4 * between))) < 1e-9);
    turn.backward_bytes = 3 * tensor;
    turn.gradient_bytes = turn.node_gradient_bytes = 0;
    assert_true(fabs(both_seconds(&turn, &links) - 5 * 4 * between) < 1e-9);
    turn.nodes = 1; /* all links are equal */
    assert_true(fabs(both_seconds(&turn, &links) - 5 * 32 * inside) < 1e-9);
    turn.ranks = 1;
    assert_true(both_seconds(&turn, &links) <= 0 && tdm_ring_backward_sent(&turn) <= 0);
}

/* Which link a group waits for, and how many nodes its ring spans. */
static void groups_span_nodes(void **state)
{
    static const struct {
        struct tdm_gpu_group group;
        uint64_t nodes;
        double leaving; /* share of the exchange that leaves a node */
    } groups[] = {
        {{8, 1, 8}, 1, 0}, {{16, 1, 8}, 2, 8.0 / 15}, {{4, 2, 8}, 1, 0},  {{8, 2, 8}, 2, 4.0 / 7},
        {{4, 8, 8}, 4, 1}, {{4, 64, 8}, 4, 1},        {{64, 1, 0}, 1, 0}, {{6, 1, 4}, 2, 2.0 / 5},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        struct tdm_traffic round = {0, 0}, exchange = {0, 0};
        bool spans = groups[i].nodes > 1;
        tdm_traffic_add(&round, groups[i].group, 1e9);
        tdm_traffic_add_exchange(&exchange, groups[i].group, 1e9);
        assert_int_equal(tdm_ring_of(groups[i].group).nodes, groups[i].nodes);
        assert_true(fabs((spans ? round.network : round.node) - 1e9) < 1);
        assert_true(fabs(exchange.network - groups[i].leaving * 1e9) < 1);
        assert_true(fabs(tdm_traffic_bytes(&exchange) - 1e9) < 1);
    }
}

static enum tdm_status settle(const char *model_name, const char *name, uint64_t gpus,
                              const char *const *pairs, struct tdm_method_settings *settings)
{
    const struct tdm_method *method;
    struct tdm_method_choices choices;
    struct tdm_model *model;
    struct tdm_error err;
    size_t count = 0;
    while (pairs != NULL && pairs[count] != NULL)
        count++;
    memset(settings, 0, sizeof(*settings));
    settings->torch.tokens = UINT64_C(1) << 20;
    settings->torch.batch = 1;
    settings->torch.ranks = gpus;
    must(tdm_method_find(name, &method, &err), &err);
    must(tdm_method_apply(method, pairs, count, settings, &choices, &err), &err);
    must(tdm_model_load(model_name, &model, &err), &err);
    enum tdm_status status = tdm_method_check(model, settings, &err);
    tdm_model_free(model);
    return status;
}

#define GPUS_PER_NODE 8u

/* The cost of a method on `gpus` GPUs, with the nodes that compare uses for all methods. */
static struct tdm_method_cost cost_on(const char *name, uint64_t gpus, uint64_t tokens,
                                      const char *const *pairs, double *seconds)
{
    struct tdm_method_settings settings;
    struct tdm_method_cost cost;
    struct tdm_machine *machine;
    struct tdm_model *model;
    struct tdm_error err;
    assert_int_equal(settle("burst-7b", name, gpus, pairs, &settings), TDM_OK);
    settings.torch.tokens = tokens;
    settings.torch.context.gpus_per_node = GPUS_PER_NODE;
    must(tdm_model_load("burst-7b", &model, &err), &err);
    must(tdm_machine_load("a100-80", &machine, &err), &err);
    settings.method->cost(model, &settings, &cost);
    *seconds = tdm_method_seconds(&cost, model, machine);
    tdm_model_free(model);
    tdm_machine_free(machine);
    return cost;
}

static struct tdm_method_cost cost_of(const char *name, const char *const *pairs)
{
    double seconds;
    return cost_on(name, 8, UINT64_C(1) << 20, pairs, &seconds);
}

static double exchanged(const char *const *pairs)
{
    const struct tdm_method_cost cost = cost_of("ulysses", pairs);
    return tdm_traffic_bytes(&cost.exposed);
}

static double seconds_of(const char *name, uint64_t gpus, uint64_t tokens, const char *pair)
{
    const char *gathered = strcmp(name, "burst") == 0 ? NULL : "reshard_after_forward=yes";
    const char *const pairs[] = {pair, gathered, NULL}; /* gathered as often as by ZeRO-3 */
    double seconds;
    cost_on(name, gpus, tokens, pairs, &seconds);
    return seconds;
}

/* A backward that sends Q, dO and dQ in place of K, V and their gradients in fp32 sends less.
 * Attention that is kept is not recomputed. */
static void costs_are_ordered(void **state)
{
    static const char *const on[] = {"checkpointing=on-reentrant", NULL};
    static const char *const sends_output[] = {"optimize_bwd_comm=off", NULL},
                             *const half[] = {"grad_ckpt=seq-wise", NULL},
                             *const all[] = {"grad_ckpt=full", NULL};
    (void)state;
    struct tdm_method_cost ring = cost_of("ring", on), burst = cost_of("burst", NULL);
    assert_true(tdm_method_sent_bytes(&burst) < tdm_method_sent_bytes(&ring));
    assert_true(fabs(burst.attention_flops / ring.attention_flops - 1) < 1e-12);
    struct tdm_method_cost output = cost_of("burst", sends_output);
    assert_true(tdm_method_sent_bytes(&burst) < tdm_method_sent_bytes(&output));
    double later = cost_of("burst", half).attention_flops,
           kept = cost_of("burst", all).attention_flops;
    assert_true(fabs(later / burst.attention_flops - 3.75 / 4.5) < 1e-12);
    assert_true(fabs(kept / burst.attention_flops - 3.5 / 4.5) < 1e-12);
    assert_true(exchanged(NULL) > 0);
}

/* Of 1M tokens on 8 ranks, each rank has 128K. A window of 16K of its tokens has 2/8 - 1/64 of the
 * causal pairs, and of the first half 2 (2/8 - 1/32) / 4. */
static void masks_change_the_pairs(void **state)
{
    static const char *const full[] = {"attention_mask=full", NULL},
                             *const blocks[] = {"attention_mask=block", "block_percent=25", NULL},
                             *const striped[] = {"attention_mask=striped", NULL},
                             *const window[] = {"attention_mask=sliding", "sliding_window=16K",
                                                "grad_ckpt=full", NULL},
                             *const half[] = {"attention_mask=sliding", "sliding_window=16K",
                                              "grad_ckpt=seq-wise", NULL};
    (void)state;
    double causal = cost_of("burst", NULL).attention_flops, share = 2 / 8.0 - 1 / 64.0,
           first = (2 / 4.0 - 1 / 16.0) / 4 / share;
    assert_true(fabs(cost_of("burst", full).attention_flops / causal - 2) < 1e-5);
    assert_true(fabs(cost_of("burst", blocks).attention_flops / causal - 0.5) < 1e-5);
    assert_true(cost_of("burst", striped).attention_flops == causal);
    assert_true(fabs(cost_of("burst", window).attention_flops / causal - share * 3.5 / 4.5) < 1e-5);
    assert_true(
        fabs(cost_of("burst", half).attention_flops / causal - share * (3.5 + first) / 4.5) < 1e-5);
}

/* Attention does not hide what short sequences send. Over several nodes a ring is slower than a
 * double ring, which is slower than Burst's. Inside a node the two rings take the same time, and
 * Burst is faster by what it does not send. Attention hides what long sequences send: all take the
 * same time. */
static void rings_are_ranked(void **state)
{
    static const char *const kept = "checkpointing=on";
    const uint64_t shorter = UINT64_C(8) << 10, longer = UINT64_C(4) << 20;
    (void)state;
    for (uint64_t gpus = 16; gpus <= 64; gpus *= 2) {
        double ring = seconds_of("ring", gpus, shorter, kept),
               rings = seconds_of("double-ring", gpus, shorter, kept),
               burst = seconds_of("burst", gpus, shorter, "use_checkpoint=on"),
               single = seconds_of("burst", gpus, shorter, "double_ring=off");
        assert_true(ring > 1.05 * rings && rings > 1.01 * burst && single > 1.05 * burst);
    }
    double ring = seconds_of("ring", 8, shorter, kept),
           rings = seconds_of("double-ring", 8, shorter, kept),
           burst = seconds_of("burst", 8, shorter, "use_checkpoint=on");
    assert_true(fabs(ring / rings - 1) < 1e-12 && burst < ring);
    ring = seconds_of("ring", 8, longer, kept);
    assert_true(fabs(ring / seconds_of("burst", 8, longer, "use_checkpoint=on") - 1) < 0.01);
    /* Groups inside a node are faster than groups that span nodes. */
    assert_true(seconds_of("ulysses", 16, shorter, kept) > seconds_of("ulysses", 8, shorter, kept));
    assert_true(seconds_of("usp", 64, shorter, "ulysses_degree=8") <
                seconds_of("usp", 64, shorter, "ulysses_degree=1"));
}

/* Layers that are not recomputed have no second ring. */
static void fewer_checkpoints_send_less(void **state)
{
    static const char *const every[] = {"checkpointing=on", "checkpoint_every=1", NULL},
                             *const fourth[] = {"checkpointing=on", "checkpoint_every=4", NULL},
                             *const none[] = {"checkpointing=off", NULL};
    (void)state;
    double again = cost_of("ring", every).ring_forwards, off = cost_of("ring", none).ring_forwards;
    assert_true(fabs(again / off - 2) < 1e-12);
    assert_true(fabs(cost_of("ring", fourth).ring_forwards / off - 1.25) < 1e-12);
    assert_true(fabs(exchanged(fourth) / exchanged(every) - 2.25 / 3) < 1e-12);
}

/* ---- what cannot be run ---- */

static void divisions_are_checked(void **state)
{
    static const char *const uneven[] = {"ulysses_degree=3", "ring_degree=2", NULL},
                             *const nodes[] = {"gpus_per_node=8", NULL},
                             *const kept[] = {"use_checkpoint=off", "grad_ckpt=full", NULL},
                             *const ring[] = {"ring_degree=4", NULL},
                             *const adapters[] = {"lora_rank=8", "units=layers+ends", NULL},
                             *const wide[] = {"lora_rank=8", "lora=peft", NULL};
    struct tdm_method_settings s;
    (void)state;
    assert_int_equal(settle("llama-3.1-8b", "ulysses", 16, NULL, &s), TDM_USAGE); /* 8 KV heads */
    assert_int_equal(settle("llama-3.1-8b", "ulysses", 8, NULL, &s), TDM_OK);
    assert_int_equal(settle("llama-3.1-8b", "usp", 8, uneven, &s), TDM_USAGE);
    assert_int_equal(settle("llama-3.1-8b", "usp", 64, NULL, &s), TDM_OK);
    assert_int_equal(s.torch.context.ulysses_degree, 8);
    assert_int_equal(s.torch.context.ring_degree, 8);
    assert_int_equal(settle("llama-3.1-8b", "usp", 16, ring, &s), TDM_OK);
    assert_int_equal(s.torch.context.ulysses_degree, 4);
    assert_int_equal(settle("llama-3.1-8b", "double-ring", 12, nodes, &s), TDM_USAGE);
    assert_int_equal(settle("llama-3.1-8b", "ring", 4, adapters, &s), TDM_OK);
    assert_int_equal(settle("llama-3.1-8b", "ring", 4, wide, &s),
                     TDM_OK); /* shards of two dtypes */
    assert_int_equal(settle("qwen2.5-7b", "burst", 8, NULL, &s), TDM_USAGE); /* it has biases */
    assert_int_equal(settle("burst-7b", "burst", 8, kept, &s), TDM_USAGE);
}

/* Windows and capped scores need kernels that see the whole sequence. A window as long as the
 * sequence hides nothing. */
static void windows_need_whole_sequences(void **state)
{
    static const char *const names[] = {"ring", "double-ring", "usp", "burst"};
    static const char *const exchanged[] = {"ulysses_degree=4", NULL};
    struct tdm_method_settings s;
    struct tdm_model *model;
    struct tdm_error err;
    (void)state;
    must(tdm_model_load("mistral-7b-v0.1", &model, &err), &err);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_int_equal(settle("mistral-7b-v0.1", names[i], 16, NULL, &s), TDM_USAGE);
        s.torch.tokens = 4097;
        assert_int_equal(tdm_method_check(model, &s, &err), TDM_USAGE);
        assert_non_null(strstr(err.message, "\"sliding_window\" of mistral-7b-v0.1 is 4096"));
        s.torch.tokens = 4096;
        must(tdm_method_check(model, &s, &err), &err);
        assert_null(tdm_method_assumption(model, &s));
    }
    tdm_model_free(model);
    assert_int_equal(settle("mistral-7b-v0.1", "ulysses", 8, NULL, &s), TDM_OK);
    assert_int_equal(settle("gemma-2-2b", "ulysses", 4, NULL, &s), TDM_OK);
    assert_int_equal(settle("gemma-2-2b", "usp", 4, exchanged, &s), TDM_OK); /* no ring */
    assert_int_equal(settle("gemma-2-2b", "usp", 8, exchanged, &s), TDM_USAGE);
    assert_int_equal(settle("gemma-2-2b", "ring", 4, NULL, &s), TDM_USAGE);
}

/* The window of a kernel takes no memory: the prediction is the same without it. */
static void windows_take_no_memory(void **state)
{
    struct tdm_method_settings settings;
    struct tdm_method_prediction with, without;
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_error err;
    (void)state;
    assert_int_equal(settle("mistral-7b-v0.1", "ulysses", 8, NULL, &settings), TDM_OK);
    settings.torch.tokens = 65536;
    must(tdm_model_load("mistral-7b-v0.1", &model, &err), &err);
    must(tdm_machine_load("h200-published", &machine, &err), &err);
    must(tdm_method_predict(model, machine, &settings, 0, &with, &err), &err);
    assert_non_null(tdm_method_assumption(model, &settings));
    for (uint32_t i = 0; i < model->layers; i++)
        model->layer_kinds[i].window = 0;
    must(tdm_method_predict(model, machine, &settings, 0, &without, &err), &err);
    assert_int_equal(with.steps[2].torch.peak.allocated, without.steps[2].torch.peak.allocated);
    assert_int_equal(with.steps[2].used_bytes, without.steps[2].used_bytes);
    tdm_model_free(model);
    tdm_machine_free(machine);
}

/* ---- LoRA of BurstEngine ---- */

#define LORA_TOKENS 32768u
#define LORA_RANKS 16u
#define LORA_ALL UINT64_C(39976960) /* of 7B: 16 (8 x 4,096 + 3 (4,096 + 11,008)) in 32 layers */

static struct tdm_method_prediction predict_burst(const char *const *pairs)
{
    struct tdm_method_settings settings;
    struct tdm_method_prediction prediction;
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_error err;
    assert_int_equal(settle("burst-7b", "burst", LORA_RANKS, pairs, &settings), TDM_OK);
    settings.torch.tokens = LORA_TOKENS;
    must(tdm_model_load("burst-7b", &model, &err), &err);
    must(tdm_machine_load("h200-published", &machine, &err), &err);
    must(tdm_method_predict(model, machine, &settings, 0, &prediction, &err), &err);
    tdm_model_free(model);
    tdm_machine_free(machine);
    return prediction;
}

/* The rest of a large block that is not split off counts with it. */
static void assert_is_about(uint64_t bytes, uint64_t expected)
{
    assert_in_range(bytes, expected, expected + (expected == 0 ? 0 : UINT64_C(4) << 20));
}

/* Tries every option with and without adapters. Frozen weights have no gradients or states. */
static void burst_adapters_alone_are_trained(void **state)
{
    static const char *const options[][2] = {{"optimize_bwd_comm=on", "optimize_bwd_comm=off"},
                                             {"double_ring=on", "double_ring=off"},
                                             {"sl_loss=on", "sl_loss=off"},
                                             {"spzero=on", "spzero=off"},
                                             {"offload=off", "offload=on"}};
    static const char *const kept[] = {"grad_ckpt=none", "grad_ckpt=seq-wise", "grad_ckpt=full",
                                       "use_checkpoint=off"};
    (void)state;
    for (unsigned set = 0; set < 4u << 5; set++) {
        const char *pairs[8] = {kept[set >> 5]};
        for (unsigned i = 0; i < 5; i++)
            pairs[1 + i] = options[i][set >> i & 1];
        struct tdm_method_prediction all = predict_burst(pairs);
        pairs[6] = "lora_rank=16";
        struct tdm_method_prediction lora = predict_burst(pairs);
        const struct tdm_torch_step *step = &lora.steps[2].torch;
        uint64_t trained = LORA_ALL / ((set >> 3 & 1) != 0 ? 1 : LORA_RANKS);
        bool offloaded = (set >> 4 & 1) != 0;
        assert_int_equal(lora.parameters_bytes - all.parameters_bytes, 2 * trained);
        assert_true(step->peak.allocated < all.steps[2].torch.peak.allocated);
        assert_true(lora.steps[2].used_bytes < all.steps[2].used_bytes);
        assert_is_about(step->categories[TDM_METHOD_GRADIENTS], 2 * trained);
        assert_is_about(step->categories[TDM_METHOD_OPTIMIZER], offloaded ? 0 : 12 * trained);
        assert_int_equal(step->host_bytes, offloaded ? 16 * trained : 0);
    }
}

/* Counts by hand what an adapter of k adds to the live bytes after the forward: its parts, and the
 * output of its A in every layer but the first, which keeps only its input. The input of A is that
 * of the product. */
static void burst_adapters_by_hand(void **state)
{
    static const char *const one[] = {"use_checkpoint=off", "lora_rank=64", "lora_targets=q_proj",
                                      NULL},
                             *const two[] = {"use_checkpoint=off", "lora_rank=64",
                                             "lora_targets=q_proj,k_proj", NULL};
    const uint64_t parts = 2 * 64 * (4096 + 4096) / LORA_RANKS,
                   made = 2 * 64 * (LORA_TOKENS / LORA_RANKS);
    (void)state;
    struct tdm_method_prediction q = predict_burst(one), qk = predict_burst(two);
    assert_int_equal(qk.steps[0].torch.end_bytes[TDM_PHASE_FORWARD] -
                         q.steps[0].torch.end_bytes[TDM_PHASE_FORWARD],
                     32 * parts + 31 * made);
}

/* Tables of blocks of 128 tokens, for 32 heads: four of numbers, four of indices. */
static void burst_block_masks_by_hand(void **state)
{
    static const char *const full[] = {"attention_mask=full", "optimize_bwd_comm=off", NULL},
                             *const block[] = {"attention_mask=block", NULL},
                             *const half[] = {"attention_mask=block", "grad_ckpt=seq-wise", NULL};
    const uint64_t blocks = LORA_TOKENS / LORA_RANKS / 128;
    struct tdm_method_settings settings;
    (void)state;
    struct tdm_method_prediction all = predict_burst(full), some = predict_burst(block);
    assert_is_about(some.steps[0].torch.end_bytes[TDM_PHASE_FORWARD] -
                        all.steps[0].torch.end_bytes[TDM_PHASE_FORWARD],
                    4 * 32 * blocks * (1 + blocks) * 4);
    assert_int_equal(settle("burst-7b", "burst", LORA_RANKS, half, &settings), TDM_USAGE);
}

/* One GPU passes nothing round. With the optimizer on the host, the device has no states. */
static void burst_runs_on_one_gpu(void **state)
{
    static const char *const offload[] = {"offload=on", NULL};
    struct tdm_method_settings settings;
    (void)state;
    assert_int_equal(settle("burst-7b", "burst", 1, offload, &settings), TDM_OK);
    assert_int_equal(settings.communicators, 0);
}

/* PyTorch's ring: the backward has K and V of all 8 ranks at once, or those of one that came. */
static void torch_gathers_all_keys(void **state)
{
    static const char *const gather[] = {"rotate_method=allgather", "checkpointing=on",
                                         "logits=chunked", NULL},
                             *const pass[] = {"rotate_method=alltoall", "checkpointing=on",
                                              "logits=chunked", NULL};
    const uint64_t tokens = UINT64_C(1) << 20, kv = tokens / 8 * 2 * 1024 * 2;
    uint64_t peaks[2];
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct tdm_method_settings settings;
        struct tdm_method_prediction p;
        struct tdm_model *model;
        struct tdm_machine *machine;
        struct tdm_error err;
        assert_int_equal(settle("qwen3-0.6b", "torch-cp", 8, i == 0 ? gather : pass, &settings),
                         TDM_OK);
        settings.torch.tokens = tokens;
        must(tdm_model_load("qwen3-0.6b", &model, &err), &err);
        must(tdm_machine_load("h100", &machine, &err), &err);
        must(tdm_method_predict(model, machine, &settings, 0, &p, &err), &err);
        peaks[i] = p.steps[2].torch.peak.allocated;
        tdm_model_free(model);
        tdm_machine_free(machine);
    }
    assert_is_about(peaks[0] - peaks[1], 7 * kv);
}

#define MOST_PAIRS 4u

/* Published peaks are max_memory_reserved / 2^30, as the program of BurstEngine prints it. */
static void burst_peaks_are_near(void **state)
{
    static const struct {
        double published;
        const char *pairs[MOST_PAIRS];
    } rows[] = {{48.47, {"sl_loss=off", "double_ring=off", "optimize_bwd_comm=off", NULL}},
                {41.45, {NULL}},
                {53.91, {"grad_ckpt=full", NULL}}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct tdm_method_settings settings;
        struct tdm_method_prediction prediction;
        struct tdm_model *model;
        struct tdm_machine *machine;
        struct tdm_error err;
        assert_int_equal(settle("burst-14b", "burst", 32, rows[i].pairs, &settings), TDM_OK);
        must(tdm_model_load("burst-14b", &model, &err), &err);
        must(tdm_machine_load("a100-80", &machine, &err), &err);
        must(tdm_method_predict(model, machine, &settings, 0, &prediction, &err), &err);
        double gib = (double)prediction.steps[2].torch.peak.reserved / 1073741824.0;
        if (fabs(gib / rows[i].published - 1) > 0.04)
            fail_msg("row %zu: %.2f GiB for %.2f", i, gib, rows[i].published);
        tdm_model_free(model);
        tdm_machine_free(machine);
    }
}

/* ---- combinations ---- */

/* The default settings of a row. */
static void settle_row(const struct tdm_method *row, uint64_t tokens, uint64_t gpus,
                       const struct tdm_model *model, struct tdm_method_settings *settings)
{
    struct tdm_method_choices choices;
    struct tdm_error err;
    memset(settings, 0, sizeof(*settings));
    settings->torch.tokens = tokens;
    settings->torch.batch = 1;
    settings->torch.ranks = gpus;
    must(tdm_method_apply(row, NULL, 0, settings, &choices, &err), &err);
    must(tdm_method_check(model, settings, &err), &err);
}

static uint64_t third_peak(const struct tdm_method *row, uint64_t tokens,
                           const struct tdm_model *model, const struct tdm_machine *machine)
{
    struct tdm_method_settings settings;
    struct tdm_method_prediction prediction;
    struct tdm_error err;
    settle_row(row, tokens, 4, model, &settings);
    must(tdm_method_predict(model, machine, &settings, 0, &prediction, &err), &err);
    return prediction.steps[2].torch.peak.allocated;
}

static bool has_key(const struct tdm_method *row, const char *name)
{
    const struct tdm_method_key *key;
    for (size_t k = 0; (key = tdm_method_key(row, k)) != NULL; k++)
        if (strcmp(key->name, name) == 0)
            return true;
    return false;
}

/* A row for DeepSpeed's engine around a model whose attention Ulysses divides. Keys, limits, costs
 * and memory are those of both. The combination needed no code of its own. */
static void combination_is_a_row(void **state)
{
    static const struct tdm_method_key *const tables[] = {tdm_keys_torch, NULL};
    static const struct tdm_method both = {.name = "zero3-ulysses",
                                           .divides_sequence = true,
                                           .least_gpus = 2,
                                           .most_gpus = 8,
                                           .wrapper = &tdm_zero3_wrapper,
                                           .divider = &tdm_ulysses_divider,
                                           .keys = tables,
                                           .system = &tdm_torch_system,
                                           .cost = tdm_torch_cost};
    const uint64_t tokens = 8192;
    const struct tdm_method *alone;
    struct tdm_method_settings settings;
    struct tdm_method_cost divided, whole;
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_error err = {0};
    (void)state;
    must(tdm_model_load("qwen2.5-7b", &model, &err), &err);
    must(tdm_machine_load("h200", &machine, &err), &err);
    must(tdm_method_find("zero3", &alone, &err), &err);
    assert_true(has_key(&both, "stage3_max_live_parameters") && has_key(&both, "tiled_logits") &&
                has_key(&both, "sequence_parallel_size") && has_key(&both, "lora_rank"));
    assert_false(has_key(&both, "sharding") || has_key(&both, "weights_dtype"));

    settle_row(alone, tokens, 4, model, &settings);
    settings.method->cost(model, &settings, &whole);
    settle_row(&both, tokens, 4, model, &settings);
    settings.method->cost(model, &settings, &divided);
    assert_int_equal(settings.communicators, 2);
    assert_int_equal(settings.torch.context.ulysses_degree, 4);
    assert_true(fabs(4 * divided.product_flops / whole.product_flops - 1) < 1e-12);
    /* Ulysses' four exchanges of a rank's tokens in bf16: 28 query and 4 KV heads, forward and
     * backward. */
    double exchanged_bytes = 28 * 2 * 2.0 * (28 + 4) * 128 * 2 * (double)(tokens / 4) * 3 / 4;
    assert_true(fabs((tdm_traffic_bytes(&divided.exposed) - tdm_traffic_bytes(&whole.exposed)) /
                         exchanged_bytes -
                     1) < 1e-12);

    uint64_t peak = third_peak(&both, tokens, model, machine);
    uint64_t short_peak = third_peak(alone, tokens / 4, model, machine);
    assert_true(peak < third_peak(alone, tokens, model, machine));
    assert_true(fabs((double)peak / (double)short_peak - 1) < 0.02);

    settings.torch.ranks = 3; /* 3 does not divide the heads */
    settings.torch.context.ranks = 0;
    assert_int_equal(tdm_method_check(model, &settings, &err), TDM_USAGE);
    assert_non_null(strstr(err.message, "3 ranks do not divide 28 query heads"));
    tdm_model_free(model);
    tdm_machine_free(machine);
}

/* A ring over fully_shard whose checkpoints are in host memory: 32,768 tokens a GPU, 4,096 numbers
 * of each in bf16, 32 layers. What stays on the GPU is less by as much, but for the layer that
 * runs. Parts of the parameters are as without. */
static void rings_offload_checkpoints(void **state)
{
    enum { OF_A_GPU = 32768, NUMBERS = 4096, KEPT_LAYERS = 32 };
    static const char *const names[] = {"ring", "torch-cp", "usp"};
    struct tdm_machine *machine;
    struct tdm_model *model;
    struct tdm_error err;
    (void)state;
    must(tdm_model_load("llama-3.1-8b", &model, &err), &err);
    must(tdm_machine_load("h200", &machine, &err), &err);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct tdm_method_prediction p[2];
        for (unsigned away = 0; away < 2; away++) {
            const char *const pairs[] = {"sharding=fsdp", "checkpointing=on",
                                         away == 1 ? "checkpoint_offload=yes" : NULL, NULL};
            struct tdm_method_settings settings;
            assert_int_equal(settle("llama-3.1-8b", names[i], 8, pairs, &settings), TDM_OK);
            settings.torch.tokens = UINT64_C(8) * OF_A_GPU;
            must(tdm_method_predict(model, machine, &settings, 0, &p[away], &err), &err);
        }
        const uint64_t kept = UINT64_C(2) * OF_A_GPU * NUMBERS * KEPT_LAYERS;
        const struct tdm_torch_step *with = &p[1].steps[2].torch, *without = &p[0].steps[2].torch;
        assert_int_equal(without->host_bytes, 0);
        assert_int_equal(with->host_bytes, kept);
        assert_is_about(without->end_bytes[TDM_PHASE_FORWARD] - with->end_bytes[TDM_PHASE_FORWARD],
                        kept);
        assert_int_equal(without->before_bytes, with->before_bytes);
    }
    tdm_model_free(model);
    tdm_machine_free(machine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_are_padded),
        cmocka_unit_test(ring_forward_by_hand),
        cmocka_unit_test(ring_backward_by_hand),
        cmocka_unit_test(ulysses_by_hand),
        cmocka_unit_test(shared_blocks_wait),
        cmocka_unit_test(times_follow_the_equations),
        cmocka_unit_test(groups_span_nodes),
        cmocka_unit_test(costs_are_ordered),
        cmocka_unit_test(rings_are_ranked),
        cmocka_unit_test(fewer_checkpoints_send_less),
        cmocka_unit_test(divisions_are_checked),
        cmocka_unit_test(burst_peaks_are_near),
        cmocka_unit_test(windows_need_whole_sequences),
        cmocka_unit_test(windows_take_no_memory),
        cmocka_unit_test(burst_adapters_alone_are_trained),
        cmocka_unit_test(burst_adapters_by_hand),
        cmocka_unit_test(torch_gathers_all_keys),
        cmocka_unit_test(burst_block_masks_by_hand),
        cmocka_unit_test(burst_runs_on_one_gpu),
        cmocka_unit_test(masks_change_the_pairs),
        cmocka_unit_test(combination_is_a_row),
        cmocka_unit_test(rings_offload_checkpoints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
