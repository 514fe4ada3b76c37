/* SPDX-License-Identifier: Apache-2.0 */
/* The records of team ops. */
#include "ops/team.h"

const struct tdm_op_type tdm_gather_type = {
    .name = "gather",
    .operands = TDM_GATHER_OPERANDS,
    .operand =
        {
            [TDM_GATHER_OWN] = {"own pages", TDM_READS, true},
            [TDM_GATHER_BELOW] = {"pages of earlier chunks", TDM_WRITES, true},
            [TDM_GATHER_ABOVE] = {"pages of later chunks", TDM_WRITES, true},
            [TDM_GATHER_OWN_MEANS] = {"own page means", TDM_READS, true},
            [TDM_GATHER_BELOW_MEANS] = {"page means of earlier chunks", TDM_WRITES, true},
            [TDM_GATHER_ABOVE_MEANS] = {"page means of later chunks", TDM_WRITES, true},
        },
    .rate = TDM_RATE_ELEMENTWISE, /* of the sums; schedule/cost.c has the way between ranks */
    .flops = tdm_no_flops,
};

const struct tdm_op_type tdm_reduce_type = {
    .name = "reduce",
    .operands = TDM_REDUCE_OPERANDS,
    .operand =
        {
            [TDM_REDUCE_OWN] = {"own sums", TDM_CHANGES, true},
            [TDM_REDUCE_BELOW] = {"shares of earlier chunks", TDM_READS, true},
            [TDM_REDUCE_ABOVE] = {"shares of later chunks", TDM_READS, true},
        },
    .rate = TDM_RATE_ELEMENTWISE, /* of the sums; schedule/cost.c has the way between ranks */
    .flops = tdm_no_flops,
};

const struct tdm_op_type tdm_reduce_all_type = {
    .name = "reduce_all",
    .operands = TDM_REDUCE_ALL_OPERANDS,
    .operand =
        {
            [TDM_REDUCE_ALL_SUM] = {"gradient", TDM_CHANGES, false},
        },
    .rate = TDM_RATE_ELEMENTWISE, /* of the sums; schedule/cost.c has the way between ranks */
    .flops = tdm_no_flops,
};

const struct tdm_op_type tdm_reduce_scatter_type = {
    .name = "reduce_scatter",
    .operands = TDM_REDUCE_SCATTER_OPERANDS,
    .operand =
        {
            [TDM_REDUCE_SCATTER_SUM] = {"gradient", TDM_CHANGES, false},
        },
    .rate = TDM_RATE_ELEMENTWISE, /* of the sums; schedule/cost.c has the way between ranks */
    .flops = tdm_no_flops,
};

const struct tdm_op_type tdm_gather_all_type = {
    .name = "gather_all",
    .operands = TDM_GATHER_ALL_OPERANDS,
    .operand =
        {
            [TDM_GATHER_ALL_WEIGHTS] = {"weights", TDM_CHANGES, false},
        },
    .rate = TDM_RATE_ELEMENTWISE, /* schedule/cost.c has the way between ranks */
    .flops = tdm_no_flops,
};

const struct tdm_op_type tdm_all_to_all_type = {
    .name = "all_to_all",
    .operands = TDM_ALL_TO_ALL_OPERANDS,
    .operand =
        {
            [TDM_ALL_TO_ALL_CHUNK] = {"own chunk", TDM_READS | TDM_WRITES, true},
            [TDM_ALL_TO_ALL_HEADS] = {"own heads", TDM_READS | TDM_WRITES, true},
            [TDM_ALL_TO_ALL_PARTED] = {"heads on their way", TDM_WRITES, true},
        },
    .rate = TDM_RATE_ELEMENTWISE, /* schedule/cost.c has the way between ranks */
    .flops = tdm_no_flops,
};

const struct tdm_op_type tdm_hop_type = {
    .name = "hop",
    .operands = TDM_HOP_OPERANDS,
    .operand =
        {
            [TDM_HOP_SENT] = {"pages or queries for the next rank", TDM_READS, true},
            [TDM_HOP_RECEIVED] = {"pages or queries of the rank before", TDM_WRITES, true},
        },
    .rate = TDM_RATE_ELEMENTWISE, /* schedule/cost.c has the way between ranks */
    .flops = tdm_no_flops,
};

const struct tdm_op_type tdm_hop_sum_type = {
    .name = "hop_sum",
    .operands = TDM_HOP_SUM_OPERANDS,
    .operand =
        {
            [TDM_HOP_SUM_SENT] = {"sums for the next rank", TDM_READS, true},
            [TDM_HOP_SUM_RECEIVED] = {"sums of the rank before", TDM_WRITES | TDM_CHANGES, true},
        },
    .rate = TDM_RATE_ELEMENTWISE, /* of the sums; schedule/cost.c has the way between ranks */
    .flops = tdm_no_flops,
};
