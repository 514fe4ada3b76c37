/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule/slices.h"

#include "base/size.h"
#include "schedule/layout.h"

/* Elements of a unit's slices, the last one apart. */
static uint64_t slice_elements(const struct tdm_model *model, uint32_t unit)
{
    uint64_t layer = 0, elements = model->units[unit].elements;
    if (unit < model->layers)
        return elements;
    for (uint32_t i = 0; i < model->layers; i++)
        layer = tdm_most(layer, model->units[i].elements);
    if (elements <= layer)
        return elements;
    uint64_t most = tdm_most(layer / TDM_SLICE_ALIGN, 1) * TDM_SLICE_ALIGN;
    uint64_t each = tdm_size_ceil_div(elements, tdm_size_ceil_div(elements, most));
    return tdm_size_align(each, TDM_SLICE_ALIGN);
}

uint32_t tdm_slice_count(const struct tdm_model *model, uint32_t unit)
{
    return (uint32_t)tdm_size_ceil_div(model->units[unit].elements, slice_elements(model, unit));
}

struct tdm_slice tdm_slice_at(const struct tdm_model *model, uint32_t unit, uint32_t slice)
{
    uint64_t each = slice_elements(model, unit), first = slice * each;
    return (struct tdm_slice){first, tdm_least(each, model->units[unit].elements - first)};
}

uint64_t tdm_slice_slot_bytes(const struct tdm_model *model, uint32_t unit, enum tdm_dtype dtype)
{
    uint64_t elements = tdm_slice_at(model, unit, 0).elements;
    return tdm_size_align(tdm_size_mul(elements, tdm_dtype_bytes(dtype)), TDM_SLOT_ALIGN);
}

bool tdm_is_sliced(const struct tdm_model *model, enum tdm_content content, uint32_t unit)
{
    return (content == TDM_UNIT_MASTER || content == TDM_UNIT_MOMENT1 ||
            content == TDM_UNIT_MOMENT2) &&
           tdm_slice_count(model, unit) > 1;
}
