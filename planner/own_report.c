/* SPDX-License-Identifier: Apache-2.0 */
/* tidemark's own schedule in the rows of predict. */
#include "planner/own_report.h"

#include "base/units.h"
#include "planner/prediction.h"
#include "planner/shortage.h"

static void print_row(FILE *out, const char *name, int indent, uint64_t bytes)
{
    char text[TDM_FORMAT_SIZE];
    if (bytes > 0)
        fprintf(out, "%*s%-*s %12s\n", indent, "", 24 - indent, name,
                tdm_format_bytes(bytes, text));
}

void tdm_own_table(FILE *out, const struct tdm_objective_found *found)
{
    const struct tdm_simulation *s = &found->search.simulation;
    const uint64_t *categories = s->peak_categories[TDM_DEVICE];
    char text[TDM_FORMAT_SIZE];
    fprintf(out, "%-24s %12s\n", "peak of a GPU", "every step");
    print_row(out, "used", 2, s->used_peak_bytes[TDM_DEVICE]);
    print_row(out, "reserved", 4, s->arena_bytes[TDM_DEVICE]);
    print_row(out, "allocated", 6, s->live_peak_bytes[TDM_DEVICE]);
    for (unsigned c = 0; c < TDM_CATEGORIES; c++)
        if (c != TDM_RUNTIME && c != TDM_ALLOCATOR)
            print_row(out, tdm_category_name((enum tdm_category)c), 8, categories[c]);
    print_row(out, "allocator", 6, s->arena_bytes[TDM_DEVICE] - s->live_peak_bytes[TDM_DEVICE]);
    print_row(out, "runtime", 4, categories[TDM_RUNTIME]);
    print_row(out, "host memory", 2, s->used_peak_bytes[TDM_HOST]);
    fprintf(out, "%-24s %12s\n\n", "step", tdm_format_seconds(s->step_seconds, text));
}

json_t *tdm_own_json(const struct tdm_objective_found *found)
{
    const struct tdm_simulation *s = &found->search.simulation;
    json_t *root = tdm_prediction_json(found->schedule, s);
    if (root == NULL)
        return NULL;
    json_t *step = json_pack("{s:I, s:I, s:I, s:I, s:I, s:O, s:b}", "step", (json_int_t)1,
                             "peak_bytes", (json_int_t)s->used_peak_bytes[TDM_DEVICE],
                             "peak_reserved_bytes", (json_int_t)s->arena_bytes[TDM_DEVICE],
                             "peak_allocated_bytes", (json_int_t)s->live_peak_bytes[TDM_DEVICE],
                             "host_bytes", (json_int_t)s->used_peak_bytes[TDM_HOST], "categories",
                             json_object_get(root, "categories"), "runs", 1);
    json_object_set_new(root, "steps", json_pack("[o]", step));
    return root;
}

enum tdm_status tdm_own_fail(struct tdm_objective_found *found, struct tdm_error *err)
{
    struct tdm_shortage shortage;
    if (found->schedule == NULL)
        return TDM_INFEASIBLE;
    enum tdm_status status = tdm_shortage_find(found->schedule, &found->pins, &shortage, err);
    return status == TDM_OK ? tdm_shortage_fail(&shortage, found->schedule, err) : status;
}
