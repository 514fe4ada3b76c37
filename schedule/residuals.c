/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of stores and of residual sets, and their lookup. */
#include "schedule/residuals.h"

#include <stdio.h>
#include <string.h>

const struct tdm_store_type tdm_store_types[TDM_STORES] = {
    [TDM_STORE_ATTENTION] = {TDM_ATTENTION_OUT, "attention", TDM_STORE_ATTENTION},
    [TDM_STORE_Q] = {TDM_Q, "q", TDM_STORE_ATTENTION},
    [TDM_STORE_GATE_UP] = {TDM_GATE_UP, "gate_up", TDM_STORE_GATE_UP},
    [TDM_STORE_NORMED] = {TDM_NORMED, "normed", TDM_STORE_ATTENTION},
};

#define BIT(store) (1u << TDM_STORE_##store)

const unsigned tdm_set_stores[TDM_SETS] = {
    [TDM_SET_INPUT] = 0,
    [TDM_SET_ATTENTION_OUTPUT] = BIT(ATTENTION),
    [TDM_SET_QKV] = BIT(ATTENTION) | BIT(Q) | BIT(KV),
    [TDM_SET_ALL] = BIT(ATTENTION) | BIT(Q) | BIT(KV) | BIT(GATE_UP),
    [TDM_SET_NORMED] = BIT(ATTENTION) | BIT(Q) | BIT(KV) | BIT(GATE_UP) | BIT(NORMED),
};

static const struct {
    const char *name, *short_name, *beside;
} sets[TDM_SETS] = {
    [TDM_SET_INPUT] = {"input", "inputs", NULL},
    [TDM_SET_ATTENTION_OUTPUT] = {"attention_output", "attention", NULL},
    [TDM_SET_QKV] = {"qkv", "q, K, V", "q, K, V"},
    [TDM_SET_ALL] = {"all", "all", "q, K, V, gate and up"},
    [TDM_SET_NORMED] = {"normed", "all, normed input", "q, K, V, gate and up, normed input"},
};

enum tdm_store tdm_store_of(enum tdm_content content)
{
    int store = 0;
    while (store < TDM_STORES && tdm_store_types[store].content != content)
        store++;
    return (enum tdm_store)store;
}

bool tdm_set_covers(enum tdm_set set, enum tdm_set other)
{
    return (tdm_set_stores[other] & ~tdm_set_stores[set]) == 0;
}

enum tdm_set tdm_set_with(enum tdm_store store)
{
    enum tdm_set set = TDM_SET_INPUT;
    while (!tdm_set_has(set, store))
        set++;
    return set;
}

enum tdm_set tdm_set_richer(enum tdm_set set)
{
    return set + 1 < TDM_SETS ? set + 1 : set;
}

enum tdm_set tdm_set_poorer(enum tdm_set set)
{
    return set > 0 ? set - 1 : set;
}

const char *tdm_set_name(enum tdm_set set)
{
    return sets[set].name;
}

bool tdm_set_parse(const char *name, enum tdm_set *set)
{
    for (int i = 0; i < TDM_SETS; i++)
        if (strcmp(sets[i].name, name) == 0) {
            *set = (enum tdm_set)i;
            return true;
        }
    return false;
}

const char *tdm_set_short_name(enum tdm_set set)
{
    return sets[set].short_name;
}

const char *tdm_set_beside(enum tdm_set set)
{
    return sets[set].beside;
}

const char *tdm_set_list(enum tdm_set from, char *text, size_t bytes)
{
    size_t used = 0;
    for (int set = (int)from; set < TDM_SETS && used < bytes; set++) {
        const char *between = set == (int)from ? "" : set + 1 < TDM_SETS ? ", " : " or ";
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", between, sets[set].name);
    }
    return text;
}
