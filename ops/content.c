/* SPDX-License-Identifier: Apache-2.0 */
/* Names of contents and parts, and the part that each tensor belongs to. */
#include "ops/content.h"

const char *tdm_part_name(enum tdm_part part)
{
    static const char *const names[TDM_PARTS] = {
        "attention_norm", "q",       "kv",   "q_norm",    "k_norm",     "o",
        "mlp_norm",       "gate_up", "down", "embedding", "final_norm", "head"};
    return part < TDM_PARTS ? names[part] : "all";
}

enum tdm_part tdm_part_of(enum tdm_role role)
{
    static const enum tdm_part parts[TDM_ROLES] = {
        [TDM_ROLE_ATTENTION_NORM] = TDM_PART_ATTENTION_NORM,
        [TDM_ROLE_Q] = TDM_PART_Q,
        [TDM_ROLE_Q_BIAS] = TDM_PART_Q,
        [TDM_ROLE_K] = TDM_PART_KV,
        [TDM_ROLE_V] = TDM_PART_KV,
        [TDM_ROLE_K_BIAS] = TDM_PART_KV,
        [TDM_ROLE_V_BIAS] = TDM_PART_KV,
        [TDM_ROLE_Q_NORM] = TDM_PART_Q_NORM,
        [TDM_ROLE_K_NORM] = TDM_PART_K_NORM,
        [TDM_ROLE_O] = TDM_PART_O,
        [TDM_ROLE_MLP_NORM] = TDM_PART_MLP_NORM,
        [TDM_ROLE_GATE] = TDM_PART_GATE_UP,
        [TDM_ROLE_UP] = TDM_PART_GATE_UP,
        [TDM_ROLE_DOWN] = TDM_PART_DOWN,
        [TDM_ROLE_EMBEDDING] = TDM_PART_EMBEDDING,
        [TDM_ROLE_FINAL_NORM] = TDM_PART_FINAL_NORM,
        [TDM_ROLE_HEAD] = TDM_PART_HEAD,
    };
    return parts[role];
}

const char *tdm_content_name(enum tdm_content content)
{
    static const char *const names[TDM_CONTENTS] = {
        [TDM_EMPTY] = "nothing",
        [TDM_TOKENS] = "tokens",
        [TDM_TOKEN_ORDER] = "token order",
        [TDM_UNIT_WEIGHTS] = "weights",
        [TDM_UNIT_MASTER] = "master",
        [TDM_UNIT_MOMENT1] = "moment 1",
        [TDM_UNIT_MOMENT2] = "moment 2",
        [TDM_UNIT_GRADIENT] = "gradient",
        [TDM_X] = "x",
        [TDM_DX] = "dx",
        [TDM_NORMED] = "normed",
        [TDM_Q] = "q",
        [TDM_QRAW] = "raw q",
        [TDM_KVRAW] = "raw k, v",
        [TDM_KVPAGES] = "k, v pages",
        [TDM_PAGE_MEANS] = "page means",
        [TDM_PAGE_LISTS] = "page lists",
        [TDM_ATTENTION_OUT] = "attention output",
        [TDM_Y] = "y",
        [TDM_MLP_NORMED] = "mlp normed",
        [TDM_GATE_UP] = "gate and up",
        [TDM_ACTIVATED] = "activated",
        [TDM_DACTIVATED] = "d activated",
        [TDM_DGATE_UP] = "d gate and up",
        [TDM_DMLP_NORMED] = "d mlp normed",
        [TDM_DY] = "dy",
        [TDM_DATTENTION] = "d attention",
        [TDM_DQ] = "dq",
        [TDM_DQRAW] = "raw dq",
        [TDM_DKVPAGES] = "dk, dv pages",
        [TDM_DKVRAW] = "raw dk, dv",
        [TDM_DNORMED] = "d normed",
        [TDM_TIED_GRADIENT] = "tied gradient",
        [TDM_FINAL_NORMED] = "final normed",
        [TDM_DFINAL_NORMED] = "d final normed",
        [TDM_LOGIT_TILE] = "logits tile",
        [TDM_HEAD_LSE] = "logits' LSE",
        [TDM_HEAD_SUM] = "sum of d final normed",
        [TDM_LOSS] = "loss",
        [TDM_GRADIENT_NORM] = "gradient norm",
        [TDM_OWN_KVPAGES] = "own k, v pages",
        [TDM_OWN_DKVPAGES] = "own dk, dv pages",
        [TDM_HEADS_Q] = "heads of q",
        [TDM_HEADS_OUT] = "heads of attention output",
        [TDM_HEADS_DOUT] = "heads of d attention",
        [TDM_HEADS_DQ] = "heads of dq",
        [TDM_PARTED] = "heads on their way",
        [TDM_OUT_PART] = "part of attention output",
        [TDM_DQ_PART] = "part of dq",
        [TDM_OUT_SUM] = "attention output so far",
        [TDM_DQ_SUM] = "dq so far",
        [TDM_PASSING_DKV] = "dk, dv pages on their way",
        [TDM_QUERIES] = "queries on their way",
        [TDM_PASSING_DQ] = "dq on its way",
        [TDM_SCRATCH] = "scratch",
    };
    return names[content];
}
