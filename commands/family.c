/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the schedule family: checks every combination, and lowers and simulates the allowed
 * ones. */
#include "commands/family.h"

#include "base/json.h"
#include "planner/nest_cost.h"
#include "commands/print.h"
#include "schedule/legality.h"
#include "schedule/program.h"

#include <stdio.h>

#define MODEL "qwen2.5-7b"
#define CONTEXT 131072u
#define CHUNK 4096u

/* One combination. */
struct member {
    enum tdm_order order;
    uint32_t layers; /* per group */
    enum tdm_set set;
    bool held;
    enum tdm_kv kv;
};

struct table {
    struct tdm_schedule *schedule;
    bool as_json; /* else rows are printed as they are found */
    json_t *rows;
    int last_order;
    struct tdm_error *err;
};

static void describe(const struct member *member, char *text, size_t bytes)
{
    if (member->set == TDM_SET_INPUT)
        snprintf(text, bytes, "input");
    else
        snprintf(text, bytes, "%s %s", tdm_set_name(member->set), member->held ? "held" : "kept");
}

/* The number of a reason in the list below the table. */
static unsigned reason_number(const char *reason)
{
    unsigned number = 0;
    while (tdm_refusal(number) != reason)
        number++;
    return number + 1;
}

static void print_row(struct table *table, const struct member *member, const char *refusal,
                      const struct tdm_nest_cost *cost)
{
    char stores[48];
    describe(member, stores, sizeof(stores));
    if (table->last_order != (int)member->order)
        printf("\n%s\n", tdm_order_name(member->order));
    table->last_order = (int)member->order;
    printf("  %6u  %-22s %-10s", member->layers, stores, tdm_kv_name(member->kv));
    if (refusal != NULL)
        printf("   refused (%u)\n", reason_number(refusal));
    else
        printf(" %9.0f %10.3f %7.2f\n", cost->stored_bytes_per_token / 1024, cost->attention,
               cost->linear);
}

static void append_row(struct table *table, const struct member *member, const char *refusal,
                       const struct tdm_nest_cost *cost)
{
    json_t *row =
        json_pack("{s:s, s:I, s:s, s:b, s:s, s:b, s:s?}", "order", tdm_order_name(member->order),
                  "group_layers", (json_int_t)member->layers, "set", tdm_set_name(member->set),
                  "held", (int)member->held, "kv", tdm_kv_name(member->kv), "allowed",
                  (int)(refusal == NULL), "reason", refusal);
    if (refusal == NULL) {
        tdm_json_set(&row, "stored_bytes_per_token", json_real(cost->stored_bytes_per_token));
        tdm_json_set(&row, "attention_forwards", json_real(cost->attention));
        tdm_json_set(&row, "linear_units", json_real(cost->linear));
    }
    tdm_json_add(&table->rows, row);
}

static enum tdm_status set_member(struct tdm_schedule *schedule, const struct member *member,
                                  struct tdm_error *err)
{
    uint32_t sizes[128] = {0}, layers = schedule->model->layers, count = 0;
    for (uint32_t left = layers; left > 0; left -= sizes[count++])
        sizes[count] = left < member->layers ? left : member->layers;
    enum tdm_status status = tdm_schedule_set_groups(schedule, count, sizes, err);
    if (status != TDM_OK)
        return status;
    tdm_schedule_set_order(schedule, member->order);
    for (uint32_t i = 0; i < count; i++) {
        struct tdm_group *group = &schedule->groups[i];
        group->kv = member->kv;
        *(member->held ? &group->held : &group->kept) = member->set;
    }
    return TDM_OK;
}

static enum tdm_status add_member(struct table *table, const struct member *member)
{
    struct tdm_schedule *schedule = table->schedule;
    struct tdm_program *program = NULL;
    struct tdm_simulation simulation;
    struct tdm_nest_cost cost = {0};
    enum tdm_status status = set_member(schedule, member, table->err);
    if (status != TDM_OK || tdm_group_remark(member->order, &schedule->groups[0]) != NULL)
        return status;
    const char *refusal = tdm_group_refusal(member->order, &schedule->groups[0]);
    if (refusal == NULL) {
        status = tdm_program_lower(schedule, &program, table->err);
        if (status == TDM_OK)
            status = tdm_simulate(program, NULL, NULL, &simulation, table->err);
        tdm_program_free(program);
        if (status != TDM_OK)
            return status;
        cost = tdm_nest_cost(schedule, &simulation);
    }
    (table->as_json ? append_row : print_row)(table, member, refusal, &cost);
    return TDM_OK;
}

static enum tdm_status add_sets(struct table *table, enum tdm_order order, uint32_t layers)
{
    enum tdm_status status = TDM_OK;
    for (int held = 0; held < 2; held++)
        for (int set = held ? TDM_SET_ATTENTION_OUTPUT : TDM_SET_INPUT; set < TDM_SETS; set++)
            for (int kv = 0; kv < TDM_KVS && status == TDM_OK; kv++) {
                const struct member member = {order, layers, (enum tdm_set)set, held == 1,
                                              (enum tdm_kv)kv};
                status = add_member(table, &member);
            }
    return status;
}

static enum tdm_status add_orders(struct table *table)
{
    const uint32_t sizes[TDM_ORDERS][2] = {{1, 4}, {4, table->schedule->model->layers}};
    enum tdm_status status = TDM_OK;
    for (int order = 0; order < TDM_ORDERS; order++)
        for (int size = 0; size < 2 && status == TDM_OK; size++)
            status = add_sets(table, (enum tdm_order)order, sizes[order][size]);
    return status;
}

enum tdm_status tdm_family_print(bool as_json, struct tdm_error *err)
{
    struct tdm_model *model = NULL;
    struct tdm_machine *machine = NULL;
    struct table table = {.last_order = -1, .as_json = as_json, .err = err};
    enum tdm_status status = tdm_model_load(MODEL, &model, err);
    if (status == TDM_OK)
        status = tdm_machine_load("h200", &machine, err);
    if (status == TDM_OK)
        status = tdm_schedule_new(model, machine, CONTEXT, &table.schedule, err);
    if (status != TDM_OK) {
        tdm_model_free(model);
        tdm_machine_free(machine);
        return status;
    }
    table.schedule->chunk_tokens = CHUNK;
    table.rows = as_json ? json_array() : NULL;
    if (!as_json)
        printf(
            "What a loop order can keep and hold, and what it costs: " MODEL
            ", 128K tokens, chunks of 4K.\n"
            "KiB stored a token; attention forwards; products in units of which a forward is 2.\n"
            "\n  layers  stores                 kv               KiB  attention  linear\n");
    status = add_orders(&table);
    tdm_schedule_free(table.schedule);
    if (status == TDM_OK && !as_json) {
        printf("\nRefused: a group that\n");
        for (unsigned i = 0; tdm_refusal(i) != NULL; i++)
            printf("(%u) %s\n", i + 1, tdm_refusal(i));
    }
    if (status == TDM_OK && as_json)
        return tdm_print_json(json_pack("{s:s, s:I, s:I, s:o}", "model", MODEL, "context",
                                        (json_int_t)CONTEXT, "chunk_tokens", (json_int_t)CHUNK,
                                        "combinations", table.rows),
                              err);
    json_decref(table.rows);
    return status;
}
