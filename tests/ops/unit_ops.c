/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the records of ops with the ops of random programs. An operand must be present unless
 * its record says that it may be absent, and it must have a mode of its record. Conversely, the
 * programs must have every kind, every mode that a record allows, and every operand that may be
 * absent both ways, so that no record allows what never happens. Also tests the tensors that ops
 * find for their parts. */
#include "ops/ops.h"
#include "schedule/cost.h"
#include "schedule/program.h"
#include "tests/support/random_schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <inttypes.h>

#define PROGRAMS 150
#define BASE_SEED 7100

static const enum tdm_mode modes[] = {TDM_READ, TDM_WRITE, TDM_ACCUMULATE};
static const char *const mode_names[] = {"read", "written", "changed"};
#define MODES (sizeof(modes) / sizeof(modes[0]))

/* How often the programs had an operand in each mode, and how often it was absent. */
struct seen {
    uint64_t with[MODES];
    uint64_t absent;
};

struct count {
    uint64_t ops, operands; /* compared */
    struct seen operand[TDM_OPERANDS];
};

static struct count counts[TDM_OP_KINDS];

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

static const struct tdm_op_type *type_of(int kind)
{
    return tdm_op_type((enum tdm_op_kind)kind);
}

static void check_operand(const struct tdm_op *op, uint32_t i)
{
    const struct tdm_op_type *type = tdm_op_type(op->kind);
    bool there = i < op->access_count && op->access[i].buffer != TDM_NONE;
    struct seen *seen = &counts[op->kind].operand[i];
    if (i >= type->operands) {
        if (there)
            fail_msg("op %" PRIu64 " (%s): operand %u is not in its record", op->number, type->name,
                     i);
        return;
    }
    const struct tdm_operand_type *operand = &type->operand[i];
    counts[op->kind].operands++;
    if (!there) {
        seen->absent++;
        if (!operand->may_be_absent)
            fail_msg("op %" PRIu64 " (%s): no %s", op->number, type->name, operand->name);
        return;
    }
    seen->with[op->access[i].mode]++;
    if ((operand->modes & 1u << op->access[i].mode) == 0)
        fail_msg("op %" PRIu64 " (%s): %s is %s", op->number, type->name, operand->name,
                 mode_names[op->access[i].mode]);
}

static enum tdm_status check_item(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    (void)self;
    (void)err;
    if (item->kind != TDM_RUN)
        return TDM_OK;
    assert_int_equal(item->op->access_count, type_of(item->op->kind)->operands);
    counts[item->op->kind].ops++;
    for (uint32_t i = 0; i < TDM_OPERANDS; i++)
        check_operand(item->op, i);
    return TDM_OK;
}

/* Checks that everything that a record allows has occurred. */
static void all_came(const struct tdm_op_type *type, const struct count *count)
{
    if (count->ops == 0)
        fail_msg("no program had %s", type->name);
    for (uint32_t i = 0; i < type->operands; i++) {
        const struct tdm_operand_type *operand = &type->operand[i];
        const struct seen *seen = &count->operand[i];
        for (size_t m = 0; m < MODES; m++)
            if ((operand->modes & 1u << modes[m]) != 0 && seen->with[modes[m]] == 0)
                fail_msg("%s: %s was never %s", type->name, operand->name, mode_names[modes[m]]);
        if (operand->may_be_absent && seen->absent == 0)
            fail_msg("%s: %s was never absent", type->name, operand->name);
    }
}

static void test_programs(void **unused)
{
    (void)unused;
    for (uint64_t i = 0; i < PROGRAMS; i++) {
        const struct tdm_random_options options = {.pass = TDM_RANDOM_ANY_PASS,
                                                   .max_tokens = i % 3 == 0 ? 1000 : 64,
                                                   .ranks = i % 2 == 1 ? 4 : 0};
        struct tdm_schedule *schedule;
        struct tdm_program *program;
        struct tdm_error err;
        must(tdm_random_schedule(BASE_SEED + i, &options, &schedule, &err), &err);
        must(tdm_program_lower(schedule, &program, &err), &err);
        for (uint32_t rank = 0; rank < program->ranks; rank++) {
            const struct tdm_program view = tdm_program_of_rank(program, rank);
            must(tdm_program_emit(&view, check_item, NULL, &err), &err);
        }
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
    for (int kind = 0; kind < TDM_OP_KINDS; kind++) {
        print_message("# %-20s %7" PRIu64 " ops, %8" PRIu64 " operands\n", type_of(kind)->name,
                      counts[kind].ops, counts[kind].operands);
        all_came(type_of(kind), &counts[kind]);
    }
}

/* A record describes each of its operands, and kinds have different names. */
static void test_records(void **unused)
{
    (void)unused;
    for (int kind = 0; kind < TDM_OP_KINDS; kind++) {
        const struct tdm_op_type *type = type_of(kind);
        assert_non_null(type);
        assert_ptr_equal(type->name, tdm_op_kind_name((enum tdm_op_kind)kind));
        assert_in_range(type->operands, 1, TDM_OPERANDS);
        assert_non_null(type->flops);
        /* a record that names none would have the first rate */
        enum tdm_rate rate = tdm_op_rate(&(struct tdm_op){.kind = (enum tdm_op_kind)kind});
        assert_true((rate == 0) == (kind == TDM_OP_PRODUCT));
        for (uint32_t i = 0; i < TDM_OPERANDS; i++) {
            assert_true((type->operand[i].name != NULL) == (i < type->operands));
            assert_true((type->operand[i].modes != 0) == (i < type->operands));
        }
        for (int other = 0; other < kind; other++)
            assert_string_not_equal(type->name, type_of(other)->name);
    }
}

static void check_part(const struct tdm_model *model, enum tdm_part part, uint32_t unit,
                       const enum tdm_role matrix[2], const enum tdm_role bias[2])
{
    const struct tdm_weights_params weights = {.units = model->units,
                                               .tensors = model->tensors,
                                               .unit_count = model->unit_count,
                                               .embedding_unit = tdm_model_embedding_unit(model),
                                               .head_unit = tdm_model_head_unit(model),
                                               .tied = model->tied};
    uint32_t layer = unit < model->layers ? unit : 0, count = 0;
    uint64_t outputs = 0;
    struct tdm_part_tensors found = tdm_part_tensors(&weights, part, layer);
    for (int i = 0; i < 2; i++) {
        const struct tdm_tensor *of_part =
            matrix[i] == TDM_ROLES ? NULL : tdm_model_tensor(model, unit, matrix[i]);
        assert_ptr_equal(found.matrix[i], of_part);
        assert_ptr_equal(found.bias[i],
                         bias[i] == TDM_ROLES ? NULL : tdm_model_tensor(model, unit, bias[i]));
        count += of_part != NULL;
        outputs += of_part != NULL ? of_part->rows : 0;
    }
    assert_int_equal(found.count, count);
    assert_int_equal(found.outputs, outputs);
    if (count > 0)
        assert_int_equal(found.inputs, found.matrix[0]->columns);
}

/* A part has the tensors of its roles: with biases and a tied head, with QK-norm, with neither. */
static void test_part_tensors(void **unused)
{
    static const struct {
        enum tdm_part part;
        enum tdm_role matrix[2], bias[2];
    } of_layers[] = {
        {TDM_PART_ATTENTION_NORM, {TDM_ROLE_ATTENTION_NORM, TDM_ROLES}, {TDM_ROLES, TDM_ROLES}},
        {TDM_PART_Q, {TDM_ROLE_Q, TDM_ROLES}, {TDM_ROLE_Q_BIAS, TDM_ROLES}},
        {TDM_PART_KV, {TDM_ROLE_K, TDM_ROLE_V}, {TDM_ROLE_K_BIAS, TDM_ROLE_V_BIAS}},
        {TDM_PART_Q_NORM, {TDM_ROLE_Q_NORM, TDM_ROLES}, {TDM_ROLES, TDM_ROLES}},
        {TDM_PART_K_NORM, {TDM_ROLE_K_NORM, TDM_ROLES}, {TDM_ROLES, TDM_ROLES}},
        {TDM_PART_O, {TDM_ROLE_O, TDM_ROLES}, {TDM_ROLES, TDM_ROLES}},
        {TDM_PART_MLP_NORM, {TDM_ROLE_MLP_NORM, TDM_ROLES}, {TDM_ROLES, TDM_ROLES}},
        {TDM_PART_GATE_UP, {TDM_ROLE_GATE, TDM_ROLE_UP}, {TDM_ROLES, TDM_ROLES}},
        {TDM_PART_DOWN, {TDM_ROLE_DOWN, TDM_ROLES}, {TDM_ROLES, TDM_ROLES}},
    };
    static const char *const names[] = {"qwen2.5-0.5b", "qwen3-8b", "mistral-7b-v0.1"};
    static const enum tdm_role none[2] = {TDM_ROLES, TDM_ROLES};
    (void)unused;
    for (size_t m = 0; m < sizeof(names) / sizeof(names[0]); m++) {
        struct tdm_model *model;
        struct tdm_error err;
        must(tdm_model_load(names[m], &model, &err), &err);
        uint32_t head = model->tied ? tdm_model_embedding_unit(model) : tdm_model_head_unit(model);
        for (size_t i = 0; i < sizeof(of_layers) / sizeof(of_layers[0]); i++)
            for (uint32_t layer = 0; layer < model->layers; layer++)
                check_part(model, of_layers[i].part, layer, of_layers[i].matrix, of_layers[i].bias);
        check_part(model, TDM_PART_EMBEDDING, tdm_model_embedding_unit(model),
                   (enum tdm_role[2]){TDM_ROLE_EMBEDDING, TDM_ROLES}, none);
        check_part(model, TDM_PART_FINAL_NORM, tdm_model_head_unit(model),
                   (enum tdm_role[2]){TDM_ROLE_FINAL_NORM, TDM_ROLES}, none);
        check_part(model, TDM_PART_HEAD, head,
                   (enum tdm_role[2]){model->tied ? TDM_ROLE_EMBEDDING : TDM_ROLE_HEAD, TDM_ROLES},
                   none);
        tdm_model_free(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_records),
        cmocka_unit_test(test_part_tensors),
        cmocka_unit_test(test_programs),
    };
    return cmocka_run_group_tests_name("ops", tests, NULL, NULL);
}
