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
    bool any_host;                       /* host memory is not limited */
    char pipeline[24], accumulation[24]; /* values among the choices */
};

/* Changes of a variant. */
struct tdm_change_set {
    uint64_t rows;  /* bit of each row of the table, at most one of a key */
    uint64_t batch; /* of the row "batch" */
    uint64_t gpus;
    uint64_t pipeline; /* stages; 0: as it is */
    bool any_host;     /* as much host memory as it takes */
};

/* What a row does to the host. */
enum tdm_host_use { TDM_HOST_AS_IT_IS, TDM_HOST_TAKES, TDM_HOST_GIVES };

size_t tdm_change_rows(void);
/* Does the method have the key, and is it now what the row can change? */
bool tdm_change_applies(const struct tdm_variant *v, size_t row);
bool tdm_change_is_batch(size_t row);
enum tdm_effect tdm_change_effect(size_t row);
enum tdm_host_use tdm_change_host_use(size_t row);
/* Adds a row, in place of another of its key. */
void tdm_change_add(struct tdm_change_set *set, size_t row);
/* The row before it that changes the same key less and applies; `row` if there is none. */
size_t tdm_change_lesser(const struct tdm_variant *v, size_t row);

/* Number of a key, or TDM_METHOD_MOST_KEYS. */
size_t tdm_change_key(const struct tdm_method *method, const char *name);

/* `base` with the changes. */
void tdm_change_apply(const struct tdm_variant *base, const struct tdm_change_set *set,
                      struct tdm_variant *changed);
/* What they are; `asked`: what the user had asked for; its host memory is remedy->host_peak_bytes
 * if the set takes any. */
void tdm_change_list(const struct tdm_variant *asked, const struct tdm_variant *base,
                     const struct tdm_change_set *set, struct tdm_remedy *remedy);

#endif
