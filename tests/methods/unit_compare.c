/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of comparisons of methods. Points are those of predict and of the planner, the longest
 * context is the longest, and seconds are those of the formula. Timelines reach the peak. */
#include "methods/timeline.h"
#include "commands/compare_methods.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

/* The settings of a method: its defaults with these pairs. */
static void read_settings(const char *name, const char *const *pairs, size_t count, uint64_t tokens,
                          uint64_t gpus, struct tdm_method_settings *settings)
{
    const struct tdm_method *method;
    struct tdm_method_choices choices;
    struct tdm_error err;
    *settings =
        (struct tdm_method_settings){.torch = {.tokens = tokens, .batch = 1, .ranks = gpus}};
    must(tdm_method_find(name, &method, &err), &err);
    must(tdm_method_apply(method, pairs, count, settings, &choices, &err), &err);
}

/* ---- timelines ---- */

static void timelines_reach_the_peak(void **state)
{
    static const char *const pairs[] = {"checkpointing=off"};
    struct tdm_method_settings settings;
    struct tdm_method_prediction prediction;
    struct tdm_method_timeline *timeline;
    struct tdm_machine *machine;
    struct tdm_model *model;
    struct tdm_error err;
    (void)state;
    read_settings("parallel", pairs, 1, 4096, 1, &settings);
    must(tdm_model_load("qwen2.5-0.5b", &model, &err), &err);
    must(tdm_machine_load("h200-published", &machine, &err), &err);
    must(tdm_method_predict(model, machine, &settings, 0, &prediction, &err), &err);
    must(tdm_method_timeline(model, machine, &settings, 2, false, false, &timeline, &err), &err);
    uint64_t most = 0, events = 0;
    for (uint32_t i = 0; i < timeline->count; i++) {
        uint64_t sum = 0;
        for (unsigned c = 0; c < TDM_METHOD_CATEGORIES; c++)
            sum += timeline->points[i].live_bytes[c];
        most = sum > most ? sum : most;
        assert_true(sum <= timeline->points[i].reserved_bytes);
        if (i > 0)
            assert_true(timeline->points[i].event > timeline->points[i - 1].event);
    }
    for (unsigned p = 0; p < TDM_TORCH_PHASES; p++)
        events += timeline->phase_events[p];
    assert_int_equal(most, prediction.steps[1].torch.peak.allocated);
    assert_int_equal(events, timeline->events);
    assert_true(timeline->stretch > 1 && timeline->count > TDM_TIMELINE_POINTS / 2 - 1);
    assert_true(timeline->events > (timeline->count - 1) * timeline->stretch);
    free(timeline);
    tdm_machine_free(machine);
    tdm_model_free(model);
}

/* ---- costs ---- */

/* LFM2 1.2B has attention in 6 of 16 layers, with 32 heads of 64: of 1,024 tokens these have
 * 1,024 x 1,025 / 2 pairs, four FLOPs a pair and number, and the backward 2.5 times as many. */
static void attention_costs_where_it_is(void **state)
{
    struct tdm_method_settings settings;
    struct tdm_method_cost cost;
    struct tdm_model *model;
    struct tdm_error err;
    (void)state;
    read_settings("parallel", NULL, 0, 1024, 1, &settings);
    must(tdm_model_load("lfm2-1.2b", &model, &err), &err);
    tdm_torch_cost(model, &settings, &cost);
    assert_true(fabs(cost.attention_flops - 3.5 * 6 * 4 * 32 * 64 * (1024.0 * 1025 / 2)) < 1);
    tdm_model_free(model);
}

/* FLOPs of a step of Llama 3.2 1B whose adapters are of o alone, 16 layers of 2,048 x 2,048, above
 * those of the frozen model. */
static double adapter_flops(const char *type, const char *more)
{
    const char *const pairs[] = {type, "lora_targets=o_proj", more};
    struct tdm_method_settings settings;
    struct tdm_method_cost with, without;
    struct tdm_model *model;
    struct tdm_error err;
    must(tdm_model_load("llama-3.2-1b", &model, &err), &err);
    read_settings("parallel", pairs, 3, 1024, 1, &settings);
    tdm_torch_cost(model, &settings, &with);
    settings.torch.adapter = TDM_ADAPTER_NORMS; /* no products */
    tdm_torch_cost(model, &settings, &without);
    tdm_model_free(model);
    return with.product_flops - without.product_flops;
}

static void is_close(double found, double expected)
{
    if (fabs(found - expected) > 1e-9 * expected + 1e3)
        fail_msg("%.17g in place of %.17g", found, expected);
}

/* Checkpoints run layers again, and never the head: without it Llama 3.2 1B saves its three
 * products of 2,048 x 128,256, with checkpoints as without. */
static void layers_alone_are_run_again(void **state)
{
    const double tokens = 1024, head = 2.0 * 2048 * 128256 * tokens;
    const char *const words[] = {"checkpointing=off", "checkpointing=on"};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        const char *const pairs[] = {words[i], "logits=base"};
        struct tdm_method_settings settings;
        struct tdm_method_cost with, without;
        struct tdm_model *model;
        struct tdm_error err;
        must(tdm_model_load("llama-3.2-1b", &model, &err), &err);
        read_settings("parallel", pairs, 1, 1024, 1, &settings);
        tdm_torch_cost(model, &settings, &with);
        read_settings("parallel", pairs, 2, 1024, 1, &settings);
        tdm_torch_cost(model, &settings, &without);
        is_close(with.product_flops - without.product_flops, 3 * head);
        tdm_model_free(model);
    }
}

static void adapters_cost_their_products(void **state)
{
    const double layers = 16, n = 2048, tokens = 1024, weight = n * n, r = 8;
    (void)state;
    is_close(adapter_flops("peft_type=LORA", "lora_rank=8"), layers * tokens * 3 * 2 * 2 * r * n);
    is_close(adapter_flops("peft_type=IA3", "lora_rank=1"), 0);
    /* the change of a weight: two products of rank 8, made twice, and four of their gradients */
    is_close(adapter_flops("peft_type=LOHA", "lora_rank=8"),
             layers * (tokens * 3 * 2 * weight + 4 * 2 * 2 * r * weight));
    /* 64 blocks of 32 columns, and three powers of each */
    is_close(adapter_flops("peft_type=OFT", "oft_block_size=32"),
             layers * (tokens * 3 * 2 * n * 32 + 3 * 3 * 2 * n * 32 * 32));
    is_close(adapter_flops("peft_type=BOFT", "boft_block_size=4"),
             layers * (tokens * 3 * 2 * weight + 2 * 3 * 2 * weight * n));
    /* 2,048 is 32 x 64, twice: the second matrix, of 64 x 64, is a product of rank 8 */
    is_close(adapter_flops("peft_type=LOKR", "lora_rank=8"),
             layers * (tokens * 3 * 2 * weight + 3 * 2 * 64 * 8 * 64));
    is_close(adapter_flops("peft_type=PROMPT_TUNING", "num_virtual_tokens=8"), 0);
    is_close(adapter_flops("peft_type=P_TUNING", "num_virtual_tokens=8"), 3 * 2 * 8 * 3 * weight);
}

/* ---- seconds ---- */

static void seconds_are_the_formula(void **state)
{
    struct tdm_method_cost cost = {.product_flops = 1e15, .attention_flops = 1e14};
    struct tdm_machine *machine;
    struct tdm_model *model;
    struct tdm_error err;
    (void)state;
    must(tdm_model_load("qwen2.5-7b", &model, &err), &err);
    must(tdm_machine_load("h200-published", &machine, &err), &err);
    const double *rate = machine->rate;
    double computing = 1e15 / rate[TDM_RATE_PRODUCT] + 4e13 / rate[TDM_RATE_ATTENTION_FORWARD] +
                       6e13 / rate[TDM_RATE_ATTENTION_BACKWARD];
    assert_true(fabs(tdm_method_seconds(&cost, model, machine) / computing - 1) < 1e-9);
    cost.exposed.node = 450e9;
    assert_true(fabs(tdm_method_seconds(&cost, model, machine) - computing - 1) < 1e-9);
    cost.sent.node = 4500e9; /* takes longer than the computation */
    assert_true(fabs(tdm_method_seconds(&cost, model, machine) - 11) < 1e-9);
    cost.sent.network = 50e9; /* the slower link */
    assert_true(fabs(tdm_method_seconds(&cost, model, machine) - 12) < 1e-9);
    machine->network_rate = machine->peer_rate = 0;
    machine->gpus_per_node = 0;
    const struct tdm_links assumed = tdm_links_of(machine);
    assert_true(assumed.node_bytes_per_second <= rate[TDM_RATE_H2D]);
    assert_true(assumed.network_bytes_per_second < assumed.node_bytes_per_second);
    assert_int_equal(assumed.gpus_per_node, 8);
    tdm_machine_free(machine);
    tdm_model_free(model);
}

/* ---- comparisons ---- */

static const struct tdm_compared *find_row(const struct tdm_methods_comparison *c, const char *name)
{
    for (size_t i = 0; i < c->count; i++)
        if (strcmp(c->rows[i]->method->name, name) == 0)
            return c->rows[i];
    fail_msg("%s is not compared", name);
    return NULL;
}

static bool fits(const struct tdm_methods_comparison *c, const struct tdm_compared *row,
                 uint64_t context, double margin)
{
    struct tdm_method_settings settings = row->settings;
    struct tdm_method_prediction prediction;
    struct tdm_error err;
    settings.torch.tokens = context;
    must(tdm_method_check(c->model, &settings, &err), &err);
    must(tdm_method_predict(c->model, c->machine, &settings, margin, &prediction, &err), &err);
    return prediction.fits;
}

/* Compares every method on `gpus` GPUs, at a small context and at one that no PyTorch system
 * reaches. */
static void check_comparison(uint64_t gpus)
{
    const struct tdm_compare_request request = {.model = "byte-1m",
                                                .machine = "rtx-4090",
                                                .batch = 1,
                                                .gpus = gpus,
                                                .margin = 0.03,
                                                .contexts = {2048, 1 << 20},
                                                .context_count = 2,
                                                .set = {.pairs = {"optimizer=none"}, .count = 1}};
    struct tdm_methods_comparison c;
    struct tdm_error err = {0};
    must(tdm_compare_methods(&request, &c, &err), &err);
    for (size_t i = 0; i < c.count; i++) {
        const struct tdm_compared *row = c.rows[i];
        bool own = tdm_method_is_own(row->method);
        assert_true(own || (row->method->least_gpus <= gpus && gpus <= row->method->most_gpus));
        const char *optimizer = tdm_method_value(row->method, &row->choices, "optimizer");
        const struct tdm_wrapper *wrapper = row->method->wrapper;
        /* Other methods lack this value. */
        if (own || (row->method->system == &tdm_torch_system &&
                    (wrapper == NULL || wrapper->step == NULL)))
            assert_string_equal(optimizer, "none");
        if (i > 0 && row->refused[0] == '\0')
            assert_true(row->longest.context <= c.rows[i - 1]->longest.context);
        if (own || row->refused[0] != '\0' || !row->longest.fits)
            continue;
        assert_true(row->longest.context % 1024 == 0);
        assert_true(fits(&c, row, row->longest.context, request.margin));
        /* Segments that are freed in time sometimes let a little more fit. */
        uint64_t step = 1024 * (1 + row->longest.context / 1024 / 8);
        assert_false(fits(&c, row, row->longest.context + step, request.margin));
        uint64_t sum = 0;
        for (unsigned k = 0; k < TDM_CATEGORIES; k++)
            sum += row->points[0].categories[k];
        assert_int_equal(sum, row->points[0].used_bytes);
        assert_true(row->points[0].step_seconds > 0);
    }
    const struct tdm_compared *own = find_row(&c, "tidemark");
    uint64_t sum = 0;
    for (unsigned k = 0; k < TDM_CATEGORIES; k++)
        sum += own->points[0].categories[k];
    assert_int_equal(sum, own->points[0].used_bytes);
    assert_true(own->longest.context > 1 << 16);
    tdm_methods_comparison_free(&c);
}

static void methods_of_one_gpu(void **state)
{
    (void)state;
    check_comparison(1);
}

static void methods_of_two_gpus(void **state)
{
    (void)state;
    check_comparison(2);
}

static void words_are_checked(void **state)
{
    struct tdm_compare_request request = {.model = "qwen2.5-0.5b",
                                          .machine = "h200-published",
                                          .batch = 1,
                                          .gpus = 1,
                                          .contexts = {2048},
                                          .context_count = 1,
                                          .set = {.pairs = {"colour=red"}, .count = 1},
                                          .names = {"parallel"},
                                          .name_count = 1};
    struct tdm_methods_comparison c;
    struct tdm_error err = {0};
    (void)state;
    assert_int_equal(tdm_compare_methods(&request, &c, &err), TDM_USAGE);
    tdm_methods_comparison_free(&c);
    request.set.pairs[0] = "checkpointing=maybe"; /* the message has the words of the methods */
    assert_int_equal(tdm_compare_methods(&request, &c, &err), TDM_USAGE);
    assert_non_null(strstr(err.message, "off|on|on-reentrant"));
    tdm_methods_comparison_free(&c);
    request.set.pairs[0] = "gpus_per_node=none";
    assert_int_equal(tdm_compare_methods(&request, &c, &err), TDM_USAGE);
    tdm_methods_comparison_free(&c);
    request.set.count = 0;
    request.names[0] = "serial";
    assert_int_equal(tdm_compare_methods(&request, &c, &err), TDM_USAGE);
    tdm_methods_comparison_free(&c);
    request.names[0] = "ddp"; /* it does not run on one GPU: reported, not an error */
    must(tdm_compare_methods(&request, &c, &err), &err);
    assert_int_equal(c.count, 1);
    assert_non_null(strstr(c.rows[0]->refused, "--gpus 2")); /* and what would work */
    tdm_methods_comparison_free(&c);
}

/* For every method, nodes are the machine's or those that the user sets. The same GPUs in more
 * nodes are slower. */
static void nodes_are_for_all(void **state)
{
    struct tdm_compare_request request = {.model = "qwen2.5-0.5b",
                                          .machine = "a100-80",
                                          .batch = 1,
                                          .gpus = 8,
                                          .contexts = {1024},
                                          .context_count = 1,
                                          .set = {.pairs = {"gpus_per_node=2"}},
                                          .names = {"fsdp", "ring", "tensor-parallel"},
                                          .name_count = 3};
    struct tdm_methods_comparison one, four;
    struct tdm_error err = {0};
    (void)state;
    must(tdm_compare_methods(&request, &one, &err), &err);
    request.set.count = 1;
    must(tdm_compare_methods(&request, &four, &err), &err);
    for (size_t i = 0; i < one.count; i++) {
        const struct tdm_compared *row = one.rows[i], *other = find_row(&four, row->method->name);
        const struct tdm_method_cost *a = &row->points[0].cost, *b = &other->points[0].cost;
        if (row->refused[0] != '\0') /* because of its KV heads */
            continue;
        assert_true(a->sent.network + a->exposed.network <= 0);
        assert_true(b->sent.network + b->exposed.network > 0);
        assert_true(other->points[0].step_seconds > row->points[0].step_seconds);
    }
    tdm_methods_comparison_free(&one);
    tdm_methods_comparison_free(&four);
}

/* GPT-2 has 1,024 learned positions. */
static void learned_positions_are_a_limit(void **state)
{
    const struct tdm_compare_request request = {.model = "gpt2",
                                                .machine = "h200-published",
                                                .batch = 1,
                                                .gpus = 1,
                                                .contexts = {512},
                                                .context_count = 1,
                                                .names = {"parallel"},
                                                .name_count = 1};
    struct tdm_method_settings settings;
    struct tdm_methods_comparison c;
    struct tdm_error err = {0};
    (void)state;
    must(tdm_compare_methods(&request, &c, &err), &err);
    assert_int_equal(c.rows[0]->longest.context, 1024);
    settings = c.rows[0]->settings;
    settings.torch.tokens = 1025;
    assert_int_equal(tdm_method_check(c.model, &settings, &err), TDM_USAGE);
    assert_non_null(strstr(err.message, "1024 learned positions of gpt2"));
    settings.torch.tokens = 1024;
    must(tdm_method_check(c.model, &settings, &err), &err);
    settings.torch.lora_rank = 1;
    settings.torch.adapter = TDM_ADAPTER_PROMPT;
    settings.torch.adapter_sizes.virtual_tokens = 20;
    assert_int_equal(tdm_method_check(c.model, &settings, &err), TDM_USAGE);
    assert_non_null(strstr(err.message, "a prompt of 20"));
    settings.torch.tokens = 1004;
    must(tdm_method_check(c.model, &settings, &err), &err);
    tdm_methods_comparison_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(timelines_reach_the_peak),
        cmocka_unit_test(attention_costs_where_it_is),
        cmocka_unit_test(seconds_are_the_formula),
        cmocka_unit_test(methods_of_one_gpu),
        cmocka_unit_test(methods_of_two_gpus),
        cmocka_unit_test(words_are_checked),
        cmocka_unit_test(nodes_are_for_all),
        cmocka_unit_test(adapters_cost_their_products),
        cmocka_unit_test(layers_alone_are_run_again),
        cmocka_unit_test(learned_positions_are_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
