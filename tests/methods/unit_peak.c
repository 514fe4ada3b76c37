/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the peak of a step. The tensors listed as live must be all that is live, by category.
 * Also tests names of tensors, limits of host memory, that a node keeps all that an operation
 * saves, and the peaks of a loss by version. */
#include "methods/eager/eager.h"
#include "methods/prediction.h"
#include "methods/torch/parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

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

/* ---- what is live at the peak ---- */

/* Checks that all groups add up, by category, to the bytes at the peak of every step. */
static void check_groups(const char *name, const char *const *pairs, size_t count, uint64_t gpus)
{
    const struct tdm_gpu_facts hopper = {132, 2048, UINT64_C(32) << 20, UINT64_C(1) << 20, 90};
    static struct tdm_tensor_group groups[TDM_MOST_GROUPS];
    struct tdm_method_settings settings;
    struct tdm_torch_allocator *allocator;
    struct tdm_eager *m = calloc(1, sizeof(*m));
    struct tdm_model *model;
    struct tdm_error err;
    void *state;
    assert_non_null(m);
    read_settings(name, pairs, count, 2048, gpus, &settings);
    must(tdm_model_load("qwen2.5-0.5b", &model, &err), &err);
    must(tdm_torch_allocator_create(UINT64_C(1) << 40, false, &allocator, &err), &err);
    tdm_eager_start(m, allocator, &hopper);
    const struct tdm_torch_system *system = settings.method->system;
    must(system->create(m, model, &settings, &state, &err), &err);
    for (unsigned step = 0; step < 2; step++) {
        tdm_eager_reset_peak(m);
        for (unsigned p = 0; p < TDM_TORCH_PHASES; p++)
            system->phases[p](state);
        uint64_t categories[TDM_METHOD_CATEGORIES] = {0};
        uint32_t found = tdm_eager_largest(m, groups, TDM_MOST_GROUPS);
        assert_in_range(found, 1, TDM_MOST_GROUPS - 1);
        for (uint32_t i = 0; i < found; i++) {
            categories[groups[i].category] += groups[i].bytes;
            assert_non_null(groups[i].label.name);
            if (i > 0)
                assert_true(groups[i].bytes <= groups[i - 1].bytes);
        }
        for (unsigned c = 0; c < TDM_METHOD_CATEGORIES; c++)
            assert_int_equal(categories[c], m->at_peak[c]);
        system->end_step(state);
    }
    system->free(state);
    tdm_eager_end(m);
    tdm_torch_allocator_free(allocator);
    tdm_model_free(model);
    free(m);
}

static void groups_are_the_peak(void **state)
{
    static const char *const kept[] = {"checkpointing=off"};
    static const char *const again[] = {"checkpointing=on", "optimizer=adamw-fused"};
    static const char *const reentrant[] = {"checkpointing=on-reentrant", "weights_dtype=fp32",
                                            "lora_rank=8"};
    (void)state;
    check_groups("parallel", kept, 1, 1);
    check_groups("parallel", again, 2, 1);
    check_groups("parallel", reentrant, 3, 1);
    check_groups("ddp", again, 2, 2);
    check_groups("fsdp", again, 2, 4);
}

static void labels_are_names(void **state)
{
    struct tdm_label label = {.name = "mlp.gate_proj", .layer = 12};
    char text[TDM_LABEL_BYTES];
    (void)state;
    assert_string_equal(tdm_label_format(&label, text), "model.layers.12.mlp.gate_proj");
    label.made = TDM_MADE_BACKWARD;
    assert_string_equal(tdm_label_format(&label, text),
                        "backward of model.layers.12.mlp.gate_proj");
    label = (struct tdm_label){
        .name = "mlp.gate_proj.weight", .layer = TDM_MANY_LAYERS, .made = TDM_MADE_GRADIENT};
    assert_string_equal(tdm_label_format(&label, text),
                        "gradient of model.layers.*.mlp.gate_proj.weight");
    label = (struct tdm_label){.name = "lm_head", .layer = TDM_NO_LAYER};
    assert_string_equal(tdm_label_format(&label, text), "lm_head");
}

/* ---- host memory ---- */

static struct tdm_method_prediction predict(const struct tdm_model *model,
                                            const struct tdm_machine *machine,
                                            const struct tdm_method_settings *settings)
{
    struct tdm_method_prediction prediction;
    struct tdm_error err;
    must(tdm_method_predict(model, machine, settings, 0.03, &prediction, &err), &err);
    return prediction;
}

/* Host memory is a limit to the byte. Up to 8 GPUs share it. A method that uses none needs none. */
static void host_memory_is_a_limit(void **state)
{
    static const char *const on[] = {"checkpointing=on"};
    static const struct {
        const char *method;
        uint64_t gpus, sharing;
    } cases[] = {{"zero3-offload", 1, 1}, {"zero3-offload", 4, 4}, {"zero3-offload", 16, 8}};
    struct tdm_method_settings settings;
    struct tdm_machine *machine;
    struct tdm_model *model;
    struct tdm_error err;
    (void)state;
    must(tdm_model_load("qwen2.5-0.5b", &model, &err), &err);
    must(tdm_machine_load("h200-published", &machine, &err), &err);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        read_settings(cases[i].method, on, 1, 2048, cases[i].gpus, &settings);
        machine->topology.places[TDM_HOST].capacity_bytes = UINT64_C(1) << 50;
        struct tdm_method_prediction p = predict(model, machine, &settings);
        uint64_t of_gpu = 0;
        for (uint32_t s = 0; s < p.count; s++)
            if (p.steps[s].torch.host_bytes > of_gpu)
                of_gpu = p.steps[s].torch.host_bytes;
        assert_true(p.fits && p.fits_device && p.fits_host && of_gpu > 0);
        assert_int_equal(p.host_gpus, cases[i].sharing);
        assert_int_equal(p.host_peak_bytes, of_gpu * cases[i].sharing);
        machine->topology.places[TDM_HOST].capacity_bytes = p.host_peak_bytes;
        assert_true(predict(model, machine, &settings).fits);
        machine->topology.places[TDM_HOST].capacity_bytes--;
        p = predict(model, machine, &settings);
        assert_true(!p.fits && p.fits_device && !p.fits_host && p.runs);
    }
    machine->topology.places[TDM_HOST].capacity_bytes = 0;
    read_settings("parallel", on, 1, 2048, 1, &settings);
    assert_true(predict(model, machine, &settings).fits);
    tdm_machine_free(machine);
    tdm_model_free(model);
}

/* ---- limits of a node ---- */

/* TDM_MOST_SAVED saved tensors are kept, and one more fails the machine. */
static void no_saved_tensor_is_lost(void **unused)
{
    static const struct tdm_eager_op op = {"SavesBackward", false, NULL};
    const struct tdm_gpu_facts hopper = {132, 2048, UINT64_C(32) << 20, UINT64_C(1) << 20, 90};
    struct tdm_torch_allocator *allocator;
    struct tdm_eager *m = calloc(1, sizeof(*m));
    struct tdm_error err;
    (void)unused;
    assert_non_null(m);
    must(tdm_torch_allocator_create(UINT64_C(1) << 30, false, &allocator, &err), &err);
    tdm_eager_start(m, allocator, &hopper);
    m->grad_enabled = true;
    struct tdm_eager_value *leaf = tdm_value_leaf(m, 4, 4, 2, true);
    struct tdm_node *node = tdm_node_new(m, &op, &leaf, 1);
    assert_non_null(node);
    for (unsigned i = 0; i < TDM_MOST_SAVED; i++)
        tdm_node_save(m, node, leaf);
    assert_int_equal(m->status, TDM_OK);
    tdm_node_save(m, node, leaf);
    assert_int_equal(m->status, TDM_INTERNAL);
    tdm_node_done(m, node);
    tdm_drop(m, leaf);
    tdm_eager_end(m);
    tdm_torch_allocator_free(allocator);
    free(m);
}

/* ---- Liger's fused loss, by version ---- */

/* Peak of the loss of Liger's benchmark: 32 chunks. */
static uint64_t peak_of_fused_loss(enum tdm_liger_version version)
{
    const struct tdm_gpu_facts ampere = {108, 2048, 8519680, UINT64_C(1) << 20, 80};
    struct tdm_torch_allocator *allocator;
    struct tdm_eager *m = calloc(1, sizeof(*m));
    struct tdm_error err;
    assert_non_null(m);
    must(tdm_torch_allocator_create(UINT64_C(1) << 40, false, &allocator, &err), &err);
    tdm_eager_start(m, allocator, &ampere);
    m->grad_enabled = true;
    struct tdm_torch_model model = {
        .m = m,
        .head = tdm_value_leaf(m, 128256, 4096, 2, true),
        .settings = {.batch = 1, .tokens = 16384, .liger_version = version}};
    struct tdm_eager_value *hidden = tdm_value_leaf(m, 16384, 4096, 2, true);
    struct tdm_eager_value *loss = tdm_torch_fused_loss(&model, hidden);
    uint64_t peak = tdm_torch_peak(allocator).allocated;
    tdm_backward(m, loss, NULL);
    tdm_drop(m, loss);
    assert_int_equal(m->status, TDM_OK);
    tdm_eager_end(m);
    tdm_torch_allocator_free(allocator);
    free(m);
    return peak;
}

/* One buffer of a chunk's logits; two, as their name lasts; of 0.4.2 a product, or what was made of
 * it, in bf16, its fp32 copy and the scaled gradient of the chunk before. */
static void old_losses_hold_more(void **unused)
{
    const uint64_t chunk = UINT64_C(512) * 128256 * 2, now = peak_of_fused_loss(TDM_LIGER_NOW),
                   rest = UINT64_C(1) << 20; /* of a block, which is not cut */
    (void)unused;
    assert_in_range(peak_of_fused_loss(TDM_LIGER_0_6_0), now + chunk, now + chunk + rest);
    assert_in_range(peak_of_fused_loss(TDM_LIGER_0_4_2), now + 3 * chunk,
                    now + 3 * chunk + 3 * rest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_are_the_peak),    cmocka_unit_test(labels_are_names),
        cmocka_unit_test(host_memory_is_a_limit), cmocka_unit_test(no_saved_tensor_is_lost),
        cmocka_unit_test(old_losses_hold_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
