/* SPDX-License-Identifier: Apache-2.0 */
/* The names of categories, as in traces and reports. */
#include "schedule/category.h"

const char *tdm_category_name(enum tdm_category category)
{
    static const char *const names[TDM_CATEGORIES] = {
        "weights",   "gradients", "optimizer", "residuals",     "kv",      "kv_gradients",
        "workspace", "logits",    "staging",   "communication", "runtime", "allocator"};
    return names[category];
}
