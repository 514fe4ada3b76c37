/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of changes: between the table of them (remedy_changes.c) and the search (remedy.c). */
#ifndef TDM_METHODS_REMEDY_PARTS_H
#define TDM_METHODS_REMEDY_PARTS_H

#include "methods/remedy.h"

/* What would be run. */
struct tdm_variant {
    const struct tdm_method *method;
    struct tdm_method_choices choices;
    uint64_t tokens, batch, gpus;
    char pipeline[24], accumulation[24]; /* values among the choices */
};

/* Changes of a variant. */
struct tdm_change_set {
    uint64_t rows;  /* bit of each row of the table, at most one of a key */
    uint64_t batch; /* of the row "batch" */
    uint64_t gpus;
    uint64_t pipeline; /* stages; 0: as it is */
};

size_t tdm_change_rows(void);
/* Does the method have the key, and is it now what the row can change? */
bool tdm_change_applies(const struct tdm_variant *v, size_t row);
bool tdm_change_is_batch(size_t row);
/* Is something else learnt: LoRA, sparse attention? */
bool tdm_change_is_of_result(size_t row);
/* Adds a row, in place of another of its key. */
void tdm_change_add(struct tdm_change_set *set, size_t row);
/* The row before it that changes the same key less and applies; `row` if there is none. */
size_t tdm_change_lesser(const struct tdm_variant *v, size_t row);

/* Number of a key, or TDM_METHOD_MOST_KEYS. */
size_t tdm_change_key(const struct tdm_method *method, const char *name);

/* `base` with the changes. */
void tdm_change_apply(const struct tdm_variant *base, const struct tdm_change_set *set,
                      struct tdm_variant *changed);
/* What they are; `asked`: what the user had asked for. */
void tdm_change_list(const struct tdm_variant *asked, const struct tdm_variant *base,
                     const struct tdm_change_set *set, struct tdm_remedy *remedy);

#endif
