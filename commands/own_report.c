/* SPDX-License-Identifier: Apache-2.0 */
/* Output for tidemark's own schedule: figures, rows of predict, JSON, and why nothing fits. */
#include "commands/own_parts.h"

#include "base/json.h"
#include "base/units.h"
#include "commands/prediction.h"
#include "planner/shortage.h"

#include <string.h>

void tdm_own_step(const struct tdm_own_schedule *own, struct tdm_own_step *step)
{
    const struct tdm_simulation *s = &own->found.search.simulation;
    const struct tdm_schedule *schedule = own->found.schedule;
    *step = (struct tdm_own_step){.context = schedule->sequences[0].tokens,
                                  .sequences = schedule->sequence_count,
                                  .used_bytes = s->used_peak_bytes[TDM_DEVICE],
                                  .reserved_bytes = s->arena_bytes[TDM_DEVICE],
                                  .allocated_bytes = s->live_peak_bytes[TDM_DEVICE],
                                  .host_bytes = s->used_peak_bytes[schedule->machine->topology.far],
                                  .device_limit_bytes = schedule->memory_bytes,
                                  .host_limit_bytes = schedule->host_memory_bytes,
                                  .product_flops = s->product_flops,
                                  .attention_flops = s->flops - s->product_flops,
                                  .step_seconds = s->step_seconds};
    const struct tdm_topology *topology = &schedule->machine->topology;
    for (uint32_t lane = 0; lane < topology->lane_count; lane++)
        if (!topology->lanes[lane].computes && lane != TDM_LANE_PEER)
            step->moved_bytes += (double)s->copied_bytes[lane];
    if (s->team.ranks > 1)
        step->sent_bytes = (double)s->team.of[0].sent_bytes;
    memcpy(step->categories, s->peak_categories[TDM_DEVICE], sizeof(step->categories));
    step->categories[TDM_ALLOCATOR] += step->reserved_bytes - step->allocated_bytes;
}

static void print_row(FILE *out, const char *name, int indent, uint64_t bytes)
{
    char text[TDM_FORMAT_SIZE];
    if (bytes > 0)
        fprintf(out, "%*s%-*s %12s\n", indent, "", 24 - indent, name,
                tdm_format_bytes(bytes, text));
}

void tdm_own_table(FILE *out, const struct tdm_own_schedule *own)
{
    struct tdm_own_step step;
    char text[TDM_FORMAT_SIZE];
    tdm_own_step(own, &step);
    fprintf(out, "%-24s %12s\n", "peak of a GPU", "every step");
    print_row(out, "used", 2, step.used_bytes);
    print_row(out, "reserved", 4, step.reserved_bytes);
    print_row(out, "allocated", 6, step.allocated_bytes);
    for (unsigned c = 0; c < TDM_CATEGORIES; c++)
        if (c != TDM_RUNTIME && c != TDM_ALLOCATOR)
            print_row(out, tdm_category_name((enum tdm_category)c), 8, step.categories[c]);
    print_row(out, "allocator", 6, step.categories[TDM_ALLOCATOR]);
    print_row(out, "runtime", 4, step.categories[TDM_RUNTIME]);
    print_row(out, own->found.schedule->ranks > 1 ? "host memory of all" : "host memory", 2,
              step.host_bytes);
    fprintf(out, "%-24s %12s\n\n", "step", tdm_format_seconds(step.step_seconds, text));
    if (own->brief)
        fprintf(out, "%-10s %s\n", "note",
                "a brief search: plan and --verbose search longer, and may find a faster step");
}

json_t *tdm_own_json(const struct tdm_own_schedule *own)
{
    struct tdm_own_step step;
    json_t *root = tdm_prediction_json(own->found.schedule, &own->found.search.simulation);
    tdm_own_step(own, &step);
    json_t *first = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:O, s:b}", "step", (json_int_t)1, "peak_bytes",
        (json_int_t)step.used_bytes, "peak_reserved_bytes", (json_int_t)step.reserved_bytes,
        "peak_allocated_bytes", (json_int_t)step.allocated_bytes, "host_bytes",
        (json_int_t)step.host_bytes, "categories", json_object_get(root, "categories"), "runs", 1);
    tdm_json_set(&root, "steps", json_pack("[o]", first));
    tdm_json_set(&root, "fits", json_true());
    tdm_json_set(&root, "binding", json_null());
    tdm_json_set(&root, "brief_search", json_boolean(own->brief));
    tdm_json_set(&root, "host_memory_bytes",
                 json_integer((json_int_t)own->found.schedule->host_memory_bytes));
    return root;
}

enum tdm_status tdm_own_fail(struct tdm_own_schedule *own, struct tdm_own_miss *miss,
                             struct tdm_error *err)
{
    struct tdm_shortage shortage;
    struct tdm_objective_found *found = &own->found;
    *miss = (struct tdm_own_miss){.binding = NULL};
    if (found->schedule == NULL)
        return TDM_INFEASIBLE;
    enum tdm_status status =
        tdm_shortage_find(found->schedule, &found->pins, own->refused_briefly, &shortage, err);
    if (status != TDM_OK)
        return status;
    enum tdm_place far = found->schedule->machine->topology.far;
    miss->binding = tdm_binding_name(shortage.binding);
    miss->device_bytes = shortage.limit_bytes[TDM_DEVICE];
    miss->host_bytes = shortage.limit_bytes[far];
    miss->needed_device_bytes = shortage.needed_bytes[TDM_DEVICE];
    miss->needed_host_bytes = shortage.needed_bytes[far];
    miss->longest_context = shortage.longest_context;
    miss->brief = own->refused_briefly;
    miss->host_memory_bytes = found->schedule->host_memory_bytes;
    miss->way_count = tdm_shortage_ways(&shortage, found->schedule, miss->ways);
    return tdm_shortage_fail(&shortage, found->schedule, err);
}
