/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of changes: the interface between the table of changes (remedy_changes.c) and the search
 * (remedy.c). */
#ifndef TDM_METHODS_REMEDY_PARTS_H
#define TDM_METHODS_REMEDY_PARTS_H

#include "methods/remedy.h"

/* A method with settings to predict. */
struct tdm_variant {
    const struct tdm_method *method;
    struct tdm_method_choices choices;
    uint64_t tokens, batch, gpus;
    bool any_host;                       /* host memory is not limited */
    char pipeline[24], accumulation[24]; /* storage of values that `choices` points to */
};

/* Changes of a variant. */
struct tdm_change_set {
    uint64_t rows;  /* one bit for each row of the table; at most one row for a key */
    uint64_t batch; /* of the row "batch" */
    uint64_t gpus;
    uint64_t pipeline; /* stages; 0: unchanged */
    bool any_host;     /* host memory without a limit */
};

/* Whether a row needs more host memory, or less. */
enum tdm_host_use { TDM_HOST_AS_IT_IS, TDM_HOST_TAKES, TDM_HOST_GIVES };

size_t tdm_change_rows(void);
/* Does the method have the key, with a value that the row can change? */
bool tdm_change_applies(const struct tdm_variant *v, size_t row);
bool tdm_change_is_batch(size_t row);
enum tdm_effect tdm_change_effect(size_t row);
enum tdm_host_use tdm_change_host_use(size_t row);
/* Adds a row. It replaces a row with the same key. */
void tdm_change_add(struct tdm_change_set *set, size_t row);
/* The row above it that applies and changes the same key less; `row` if there is none. */
size_t tdm_change_lesser(const struct tdm_variant *v, size_t row);

/* Number of a key; TDM_METHOD_MOST_KEYS if the method lacks it. */
size_t tdm_change_key(const struct tdm_method *method, const char *name);

/* Writes `base` with the changes to *changed. */
void tdm_change_apply(const struct tdm_variant *base, const struct tdm_change_set *set,
                      struct tdm_variant *changed);
/* Lists the changes from `asked`, which is what the user asked for. If the set takes host memory,
 * its amount is remedy->host_peak_bytes. */
void tdm_change_list(const struct tdm_variant *asked, const struct tdm_variant *base,
                     const struct tdm_change_set *set, struct tdm_remedy *remedy);

#endif
