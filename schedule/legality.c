/* SPDX-License-Identifier: Apache-2.0 */
/* Legality: the table of settings that are refused together, and its lookup. */
#include "schedule/legality.h"

#define ANY (-1)

/* A row refuses the groups that match all of its fields. */
struct rule {
    int order;
    int kept; /* a store in the kept set */
    int kv;
    bool far_kv_gradients, far_held; /* if set: at another place than the device */
    const char *reason;
};

static const struct rule refusals[] = {
    {TDM_CHUNK_MAJOR, ANY, TDM_KV_RECOMPUTE, false, false,
     "is chunk-major: a chunk's backward reads K and V of all chunks before it, which a sweep would "
     "have to make again for every chunk: \"kv\" must be keep"},
    {TDM_LAYER_MAJOR, ANY, ANY, true, false,
     "is layer-major, where gradients of K and V live for the sweep over one layer; "
     "\"kv_gradients_place\" must be device"},
    {TDM_CHUNK_MAJOR, ANY, ANY, false, true,
     "holds on the host in chunk-major order, where what is held lives for one chunk; "
     "\"held_place\" must be device"},
    {ANY, TDM_STORE_KV, TDM_KV_RECOMPUTE, false, false,
     "keeps a set that has K and V: \"kv\" must be keep"},
};

static bool agrees(int due, int found)
{
    return due == ANY || due == found;
}

const char *tdm_group_refusal(enum tdm_order order, const struct tdm_group *group)
{
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        const struct rule *rule = &refusals[i];
        bool keeps = rule->kept == ANY || tdm_set_has(group->kept, (enum tdm_store)rule->kept);
        if (agrees(rule->order, (int)order) && keeps && agrees(rule->kv, (int)group->kv) &&
            (!rule->far_kv_gradients || group->kv_gradients_place != TDM_DEVICE) &&
            (!rule->far_held || group->held_place != TDM_DEVICE))
            return rule->reason;
    }
    return NULL;
}

const char *tdm_refusal(size_t number)
{
    return number < sizeof(refusals) / sizeof(refusals[0]) ? refusals[number].reason : NULL;
}

const char *tdm_group_remark(enum tdm_order order, const struct tdm_group *group)
{
    if (order == TDM_LAYER_MAJOR && group->layers == 1 && group->held != TDM_SET_INPUT)
        return "a group of one layer does not run forward again: nothing is held";
    return NULL;
}
