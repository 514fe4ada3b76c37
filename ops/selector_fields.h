/* SPDX-License-Identifier: Apache-2.0 */
/* Selectors by name: the table of their fields, for files, options and checks. */
#ifndef TDM_OPS_SELECTOR_FIELDS_H
#define TDM_OPS_SELECTOR_FIELDS_H

#include "base/status.h"
#include "ops/selector.h"

#include <stddef.h>

struct tdm_selector_field {
    const char *name; /* "window", ... */
    size_t offset;    /* of its uint64_t in struct tdm_selector */
    uint64_t low, high;
    unsigned kinds;    /* bits of the kinds that have it */
    unsigned in_pages; /* bits of the kinds for which it is whole pages, in tokens */
    bool counts;       /* a plain number, not tokens */
};

#define TDM_SELECTOR_NAMES "dense, window, block, longformer, bigbird, dilated or top-k"
#define TDM_SELECTOR_PATTERNS "dense, window, block, longformer, bigbird or dilated" /* no vote */

const char *tdm_selector_name(enum tdm_selector_kind kind); /* "dense", "top-k", ... */
bool tdm_selector_parse(const char *name, enum tdm_selector_kind *kind);

/* Fields by number, NULL after the last; whether a kind has one; its value. */
const struct tdm_selector_field *tdm_selector_field(size_t number);
bool tdm_selector_has(enum tdm_selector_kind kind, const struct tdm_selector_field *field);
uint64_t *tdm_selector_value(struct tdm_selector *selector, const struct tdm_selector_field *field);
uint64_t tdm_selector_get(const struct tdm_selector *selector,
                          const struct tdm_selector_field *field);

/* Checks the fields for pages of `page_tokens`; `what` names the selector in messages. TDM_INPUT
 * with the reason. */
enum tdm_status tdm_selector_check(const struct tdm_selector *selector, uint64_t page_tokens,
                                   const char *what, struct tdm_error *err);

#endif
