/* SPDX-License-Identifier: Apache-2.0 */
/* Selectors: their names, the fields of each, and the allowed values. */
#include "ops/selector_fields.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const char *const kind_names[TDM_SELECTORS] = {
    [TDM_SELECT_DENSE] = "dense",     [TDM_SELECT_WINDOW] = "window",
    [TDM_SELECT_BLOCK] = "block",     [TDM_SELECT_LONGFORMER] = "longformer",
    [TDM_SELECT_BIGBIRD] = "bigbird", [TDM_SELECT_DILATED] = "dilated",
    [TDM_SELECT_TOP_K] = "top-k",
};

#define WITH(kind) (1u << (kind))
#define FIELD(member) offsetof(struct tdm_selector, member)

static const struct tdm_selector_field fields[] = {
    {"window", FIELD(window), 1, UINT64_C(1) << 40,
     WITH(TDM_SELECT_WINDOW) | WITH(TDM_SELECT_LONGFORMER) | WITH(TDM_SELECT_BIGBIRD) |
         WITH(TDM_SELECT_DILATED),
     WITH(TDM_SELECT_DILATED), false},
    {"block", FIELD(block), 1, UINT64_C(1) << 40, WITH(TDM_SELECT_BLOCK), 0, false},
    {"global", FIELD(global), 1, UINT64_C(1) << 40,
     WITH(TDM_SELECT_LONGFORMER) | WITH(TDM_SELECT_BIGBIRD), 0, false},
    {"random", FIELD(random), 1, 4096, WITH(TDM_SELECT_BIGBIRD), 0, true},
    {"seed", FIELD(seed), 0, UINT64_C(1) << 48, WITH(TDM_SELECT_BIGBIRD), 0, true},
    {"dilation", FIELD(dilation), 1, UINT64_C(1) << 22, WITH(TDM_SELECT_DILATED), 0, true},
    {"budget", FIELD(budget), 1, UINT64_C(1) << 40, WITH(TDM_SELECT_TOP_K), WITH(TDM_SELECT_TOP_K),
     false},
};

const char *tdm_selector_name(enum tdm_selector_kind kind)
{
    return kind_names[kind];
}

bool tdm_selector_parse(const char *name, enum tdm_selector_kind *kind)
{
    for (int i = 0; i < TDM_SELECTORS; i++)
        if (strcmp(kind_names[i], name) == 0) {
            *kind = (enum tdm_selector_kind)i;
            return true;
        }
    return false;
}

const struct tdm_selector_field *tdm_selector_field(size_t number)
{
    return number < sizeof(fields) / sizeof(fields[0]) ? &fields[number] : NULL;
}

bool tdm_selector_has(enum tdm_selector_kind kind, const struct tdm_selector_field *field)
{
    return (field->kinds & WITH(kind)) != 0;
}

uint64_t *tdm_selector_value(struct tdm_selector *selector, const struct tdm_selector_field *field)
{
    return (uint64_t *)(void *)((char *)selector + field->offset);
}

uint64_t tdm_selector_get(const struct tdm_selector *selector,
                          const struct tdm_selector_field *field)
{
    return *(const uint64_t *)(const void *)((const char *)selector + field->offset);
}

#define LIST_BYTES 128u

/* "window, longformer": the selectors that have a field. */
static const char *those_with(const struct tdm_selector_field *field, char list[LIST_BYTES])
{
    size_t used = 0;
    list[0] = '\0';
    for (int kind = 0; kind < TDM_SELECTORS; kind++)
        if (tdm_selector_has((enum tdm_selector_kind)kind, field) && used < LIST_BYTES)
            used += (size_t)snprintf(list + used, LIST_BYTES - used, "%s%s", used == 0 ? "" : ", ",
                                     kind_names[kind]);
    return list;
}

enum tdm_status tdm_selector_check(const struct tdm_selector *selector, uint64_t page_tokens,
                                   const char *what, struct tdm_error *err)
{
    const struct tdm_selector_field *field;
    if ((unsigned)selector->kind >= TDM_SELECTORS)
        return tdm_fail(err, TDM_INPUT, "%s.kind is %d, which is not a selector", what,
                        (int)selector->kind);
    const char *kind = tdm_selector_name(selector->kind);
    char list[LIST_BYTES];
    for (size_t i = 0; (field = tdm_selector_field(i)) != NULL; i++) {
        uint64_t value = tdm_selector_get(selector, field);
        if (!tdm_selector_has(selector->kind, field)) {
            if (value == 0)
                continue;
            tdm_fail(err, TDM_INPUT, "%s.%s is for other selectors than %s", what, field->name,
                     kind);
            return tdm_hint(err, "selectors that have it: %s", those_with(field, list));
        }
        if (value == 0 && field->low > 0) {
            tdm_fail(err, TDM_INPUT, "%s.%s is missing or 0, which selector %s needs", what,
                     field->name, kind);
            return tdm_hint(err, "give it %llu to %llu", (unsigned long long)field->low,
                            (unsigned long long)field->high);
        }
        if (value < field->low || value > field->high)
            return tdm_fail(err, TDM_INPUT, "%s.%s of selector %s is %llu; expected %llu to %llu",
                            what, field->name, kind, (unsigned long long)value,
                            (unsigned long long)field->low, (unsigned long long)field->high);
        if ((field->in_pages & WITH(selector->kind)) != 0 && value % page_tokens != 0) {
            tdm_fail(err, TDM_INPUT,
                     "%s.%s of selector %s is %llu tokens, no multiple of a page of %llu", what,
                     field->name, kind, (unsigned long long)value, (unsigned long long)page_tokens);
            return tdm_hint(err, "use %llu",
                            (unsigned long long)((value / page_tokens + 1) * page_tokens));
        }
    }
    return TDM_OK;
}
