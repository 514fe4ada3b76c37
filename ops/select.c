/* SPDX-License-Identifier: Apache-2.0 */
/* Records of the selection. */
#include "ops/select.h"

const struct tdm_op_type tdm_page_means_type = {
    .name = "page_means",
    .operands = TDM_PAGE_MEANS_OPERANDS,
    .operand =
        {
            [TDM_PAGE_MEANS_PAGES] = {"k, v pages", TDM_READS, false},
            [TDM_PAGE_MEANS_OUT] = {"page means", TDM_WRITES, false},
        },
};

const struct tdm_op_type tdm_select_type = {
    .name = "select",
    .operands = TDM_SELECT_OPERANDS,
    .operand =
        {
            [TDM_SELECT_Q] = {"q", TDM_READS, true},
            [TDM_SELECT_MEANS] = {"page means", TDM_READS, true},
            [TDM_SELECT_LISTS] = {"page lists", TDM_WRITES, false},
        },
};
