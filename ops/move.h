/* SPDX-License-Identifier: Apache-2.0 */
/* Ops that move bytes or numbers without arithmetic: copies, zeros, the order of tokens. */
#ifndef TDM_OPS_MOVE_H
#define TDM_OPS_MOVE_H

#include "ops/ops.h"

/* Copies content to another place, on lane h2d or d2h, or to another slot, on the compute lane. */
enum tdm_copy_operand {
    TDM_COPY_FROM, /* read: one slot, or several in a row */
    TDM_COPY_TO,   /* written: the same number of slots */
    TDM_COPY_OPERANDS
};
extern const struct tdm_op_type tdm_copy_type;

enum tdm_zero_operand {
    TDM_ZERO_SLOT, /* written: the bytes of the op's part become zero */
    TDM_ZERO_OPERANDS
};
extern const struct tdm_op_type tdm_zero_type;

enum tdm_sort_tokens_operand {
    TDM_SORT_TOKENS_TOKENS, /* read: int32 [tokens] */
    /* written: rows by rising token, equal ones in their order; int32 [2, tokens], the second half
     * for the sort */
    TDM_SORT_TOKENS_ORDER,
    TDM_SORT_TOKENS_OPERANDS
};
extern const struct tdm_op_type tdm_sort_tokens_type;

#endif
