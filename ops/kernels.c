/* SPDX-License-Identifier: Apache-2.0 */
/* The sets of op kinds that backends have kernels for. */
#include "ops/kernels.h"

#include <stdio.h>

_Static_assert(TDM_OP_KINDS <= 64, "a bit for each kind");

#define BIT(kind, kernel) | TDM_KIND(TDM_OP_##kind)

const struct tdm_kernels tdm_kernels[TDM_COMPUTING + 1] = {
    [TDM_COMPUTING_CPU] = {"cpu", 0 TDM_CPU_KERNELS(BIT)},
    [TDM_COMPUTING_CUDA] = {"cuda", 0 TDM_CUDA_KERNELS(BIT)},
};

const char *tdm_kinds_show(tdm_kinds kinds, char text[TDM_KINDS_TEXT])
{
    size_t end = 0;
    text[0] = '\0';
    for (int kind = 0; kind < TDM_OP_KINDS && end < TDM_KINDS_TEXT; kind++)
        if ((kinds & TDM_KIND(kind)) != 0)
            end += (size_t)snprintf(text + end, TDM_KINDS_TEXT - end, "%s%s", end > 0 ? ", " : "",
                                    tdm_op_kind_name((enum tdm_op_kind)kind));
    return text;
}

bool tdm_kernels_lack(const struct tdm_kernels *kernels, tdm_kinds kinds, char line[TDM_LACKS_TEXT])
{
    char text[TDM_KINDS_TEXT];
    if ((kinds & ~kernels->kinds) == 0)
        return false;
    snprintf(line, TDM_LACKS_TEXT, "the %s backend has no kernel for %s", kernels->backend,
             tdm_kinds_show(kinds & ~kernels->kinds, text));
    return true;
}
