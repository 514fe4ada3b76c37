/* SPDX-License-Identifier: Apache-2.0 */
/* Parts and slices of units. */
#include "schedule/slices.h"

#include "base/size.h"
#include "schedule/layout.h"

/* Elements of the largest part of a unit. */
static uint64_t part_elements(const struct tdm_schedule *schedule, uint32_t unit)
{
    uint64_t elements = schedule->model->units[unit].elements;
    return schedule->ranks == 1
               ? elements
               : tdm_size_align(tdm_size_ceil_div(elements, schedule->ranks), TDM_SLICE_ALIGN);
}

struct tdm_slice tdm_rank_part(const struct tdm_schedule *schedule, uint32_t unit, uint32_t rank)
{
    uint64_t all = schedule->model->units[unit].elements;
    uint64_t each = part_elements(schedule, unit), first = tdm_least(rank * each, all);
    return (struct tdm_slice){first, tdm_least(each, all - first)};
}

struct tdm_slice tdm_rank_part_of(const struct tdm_schedule *schedule,
                                  const struct tdm_tensor *tensor, uint32_t rank)
{
    const struct tdm_slice part = tdm_rank_part(schedule, tensor->unit, rank);
    const uint64_t begin = tdm_most(part.first, tensor->offset);
    const uint64_t end = tdm_least(part.first + part.elements, tensor->offset + tensor->elements);
    return end <= begin ? (struct tdm_slice){0, 0}
                        : (struct tdm_slice){begin - tensor->offset, end - begin};
}

struct tdm_slice tdm_tensors_range(const struct tdm_model *model, uint32_t unit, enum tdm_part part)
{
    const struct tdm_unit *of = &model->units[unit];
    uint64_t first = of->elements, end = 0;
    for (uint32_t i = 0; i < of->tensor_count; i++) {
        const struct tdm_tensor *tensor = &model->tensors[of->first_tensor + i];
        if (part != TDM_PART_ALL && tdm_part_of(tensor->role) != part)
            continue;
        first = tdm_least(first, tensor->offset);
        end = tdm_most(end, tensor->offset + tensor->elements);
    }
    return (struct tdm_slice){first, end > first ? end - first : 0};
}

struct tdm_slice tdm_rank_range(const struct tdm_schedule *schedule, uint32_t unit,
                                enum tdm_part part, uint32_t rank)
{
    const struct tdm_slice all = tdm_tensors_range(schedule->model, unit, part);
    const struct tdm_slice own = tdm_rank_part(schedule, unit, rank);
    uint64_t first = tdm_most(all.first, own.first);
    uint64_t end = tdm_least(all.first + all.elements, own.first + own.elements);
    return (struct tdm_slice){first, end > first ? end - first : 0};
}

bool tdm_weights_sliced(const struct tdm_schedule *schedule)
{
    return schedule->ranks > 1 && schedule->sliced_weights;
}

bool tdm_sums_by_part(const struct tdm_schedule *schedule)
{
    return schedule->ranks > 1 && schedule->optimizer.kind != TDM_OPTIMIZER_NONE;
}

/* Elements of the slices of a unit's part, the last one apart. */
static uint64_t slice_elements(const struct tdm_schedule *schedule, uint32_t unit)
{
    const struct tdm_model *model = schedule->model;
    uint64_t layer = 0, elements = part_elements(schedule, unit);
    if (unit < model->layers)
        return elements;
    for (uint32_t i = 0; i < model->layers; i++)
        layer = tdm_most(layer, part_elements(schedule, i));
    if (elements <= layer)
        return elements;
    uint64_t most = tdm_most(layer / TDM_SLICE_ALIGN, 1) * TDM_SLICE_ALIGN;
    uint64_t each = tdm_size_ceil_div(elements, tdm_size_ceil_div(elements, most));
    return tdm_size_align(each, TDM_SLICE_ALIGN);
}

uint32_t tdm_slice_count(const struct tdm_schedule *schedule, uint32_t unit)
{
    return (uint32_t)tdm_size_ceil_div(part_elements(schedule, unit),
                                       slice_elements(schedule, unit));
}

struct tdm_slice tdm_slice_at(const struct tdm_schedule *schedule, uint32_t unit, uint32_t slice)
{
    uint64_t each = slice_elements(schedule, unit), first = slice * each;
    return (struct tdm_slice){first, tdm_least(each, part_elements(schedule, unit) - first)};
}

struct tdm_slice tdm_update_range(const struct tdm_schedule *schedule, uint32_t unit, uint32_t rank,
                                  uint32_t slice, uint32_t slices)
{
    const struct tdm_slice part = tdm_rank_part(schedule, unit, rank);
    if (slices == 1)
        return part;
    struct tdm_slice range = tdm_slice_at(schedule, unit, slice);
    range.first = tdm_least(range.first, part.elements);
    range.elements = tdm_least(range.elements, part.elements - range.first);
    range.first += part.first;
    return range;
}

uint64_t tdm_slice_slot_bytes(const struct tdm_schedule *schedule, uint32_t unit,
                              enum tdm_dtype dtype)
{
    uint64_t elements = tdm_slice_at(schedule, unit, 0).elements;
    return tdm_size_align(tdm_size_mul(elements, tdm_dtype_bytes(dtype)), TDM_SLOT_ALIGN);
}

bool tdm_is_of_state(enum tdm_content content)
{
    return content == TDM_UNIT_MASTER || content == TDM_UNIT_MOMENT1 || content == TDM_UNIT_MOMENT2;
}

bool tdm_is_sliced(const struct tdm_schedule *schedule, enum tdm_content content, uint32_t unit)
{
    return tdm_is_of_state(content) && tdm_slice_count(schedule, unit) > 1;
}
