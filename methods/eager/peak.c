/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the tensors that were live at the peak, without looking at all of them at every new peak.
 * Storages with a block are in a list. Tensors that were live at the peak and are freed later are
 * added up by label. A new peak clears these sums.
 */
#include "methods/eager/parts.h"

#include "base/sort.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *tdm_label_format(const struct tdm_label *label, char out[TDM_LABEL_BYTES])
{
    static const char *const made[] = {"", "backward of ", "gradient of "};
    const char *name = label->name == NULL ? "" : label->name;
    if (label->layer == TDM_NO_LAYER)
        snprintf(out, TDM_LABEL_BYTES, "%s%s", made[label->made],
                 name[0] == '\0' ? "unnamed" : name);
    else if (label->layer == TDM_MANY_LAYERS)
        snprintf(out, TDM_LABEL_BYTES, "%smodel.layers.*.%s", made[label->made], name);
    else
        snprintf(out, TDM_LABEL_BYTES, "%smodel.layers.%" PRIu32 ".%s", made[label->made],
                 label->layer, name);
    return out;
}

void tdm_label(struct tdm_eager *m, const char *name)
{
    m->label.name = name;
}

/* Names are constants, of which a file may have one of its own. */
static bool same_name(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static bool same_group(const struct tdm_tensor_group *group, const struct tdm_label *label,
                       enum tdm_method_category category)
{
    return group->label.made == label->made && group->category == category &&
           (group->label.layer == TDM_NO_LAYER) == (label->layer == TDM_NO_LAYER) &&
           same_name(group->label.name, label->name);
}

/* *last is the number of the group that a tensor was added to before: the next one is often alike.
 */
static void add_to_group(const struct tdm_label *label, enum tdm_method_category category,
                         uint32_t tensors, uint64_t bytes, struct tdm_tensor_group *groups,
                         uint32_t *count, uint32_t *last)
{
    uint32_t number = *last;
    if (number >= *count || !same_group(&groups[number], label, category))
        for (number = 0; number < *count; number++)
            if (same_group(&groups[number], label, category))
                break;
    if (number == TDM_MOST_GROUPS)
        return;
    if (number == *count)
        groups[(*count)++] = (struct tdm_tensor_group){.label = *label, .category = category};
    *last = number;
    struct tdm_tensor_group *group = &groups[number];
    if (group->label.layer != label->layer)
        group->label.layer = TDM_MANY_LAYERS;
    group->count += tensors;
    group->bytes += bytes;
}

/* Adds a storage to the groups of its labels, as it was at the peak. */
static void add(const struct tdm_eager *m, const struct tdm_storage *storage,
                struct tdm_tensor_group *groups, uint32_t *count, uint32_t *last)
{
    enum tdm_method_category category =
        storage->changed > m->peak_moment ? storage->category_before : storage->category;
    bool second_before = storage->second_category < category; /* fixes the order of equal groups */
    for (unsigned i = 0; i < 2; i++)
        if ((i == 0) != second_before)
            add_to_group(&storage->label, category, storage->count - storage->second_count,
                         storage->bytes - storage->second_bytes, groups, count, last);
        else if (storage->second_count > 0)
            add_to_group(&storage->second_label, storage->second_category, storage->second_count,
                         storage->second_bytes, groups, count, last);
}

void tdm_peak_note(struct tdm_eager *m)
{
    m->peak_moment = m->moment;
    m->gone_count = 0;
}

void tdm_peak_enter(struct tdm_eager *m, struct tdm_storage *storage)
{
    storage->taken = storage->changed = ++m->moment;
    storage->newer = NULL;
    storage->older = m->newest;
    if (m->newest != NULL)
        m->newest->newer = storage;
    m->newest = storage;
}

void tdm_peak_leave(struct tdm_eager *m, struct tdm_storage *storage)
{
    m->moment += storage->blocks;
    if (storage->taken <= m->peak_moment && !m->totals_only)
        add(m, storage, m->gone, &m->gone_count, &m->gone_last);
    if (storage->newer != NULL)
        storage->newer->older = storage->older;
    else
        m->newest = storage->older;
    if (storage->older != NULL)
        storage->older->newer = storage->newer;
}

void tdm_peak_change(struct tdm_eager *m, struct tdm_storage *storage)
{
    if (storage->changed > m->peak_moment)
        return; /* its category at the peak is known */
    storage->category_before = storage->category;
    storage->changed = ++m->moment;
}

static int larger_first(const void *a, const void *b)
{
    uint64_t x = ((const struct tdm_tensor_group *)a)->bytes,
             y = ((const struct tdm_tensor_group *)b)->bytes;
    return (x < y) - (x > y);
}

uint32_t tdm_eager_largest(const struct tdm_eager *m, struct tdm_tensor_group *groups,
                           uint32_t most)
{
    struct tdm_tensor_group all[TDM_MOST_GROUPS];
    uint32_t count = m->gone_count, last = 0;
    memcpy(all, m->gone, count * sizeof(all[0]));
    for (const struct tdm_storage *s = m->newest; s != NULL; s = s->older)
        if (s->taken <= m->peak_moment)
            add(m, s, all, &count, &last);
    tdm_sort_stable(all, count, sizeof(all[0]), larger_first);
    if (count > most)
        count = most;
    memcpy(groups, all, count * sizeof(all[0]));
    return count;
}
