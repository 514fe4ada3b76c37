/* SPDX-License-Identifier: Apache-2.0 */
/* What memory is used for: the rows of memory tables and plots. */
#ifndef TDM_SCHEDULE_CATEGORY_H
#define TDM_SCHEDULE_CATEGORY_H

enum tdm_category {
    TDM_WEIGHTS,
    TDM_GRADIENTS,
    TDM_OPTIMIZER,
    TDM_RESIDUALS,
    TDM_KV,
    TDM_KV_GRADIENTS,
    TDM_WORKSPACE,
    TDM_LOGITS,
    TDM_STAGING,
    TDM_COMMUNICATION,
    TDM_RUNTIME,
    TDM_ALLOCATOR,
    TDM_CATEGORIES
};

const char *tdm_category_name(enum tdm_category category);

#endif
