/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the records of all kinds. */
#include "ops/ops.h"

#include "ops/attention.h"
#include "ops/embed.h"
#include "ops/head.h"
#include "ops/mlp.h"
#include "ops/move.h"
#include "ops/norm.h"
#include "ops/product.h"
#include "ops/rope.h"
#include "ops/select.h"
#include "ops/team.h"
#include "ops/update.h"

const struct tdm_op_type *tdm_op_type(enum tdm_op_kind kind)
{
#define RECORD(kind, record) [TDM_OP_##kind] = &tdm_##record##_type,
    static const struct tdm_op_type *const types[TDM_OP_KINDS] = {TDM_OPS(RECORD)};
#undef RECORD
    return types[kind];
}

uint64_t tdm_no_flops(const struct tdm_params *params, const struct tdm_work *work)
{
    (void)params;
    (void)work;
    return 0;
}

const char *tdm_op_kind_name(enum tdm_op_kind kind)
{
    return tdm_op_type(kind)->name;
}
