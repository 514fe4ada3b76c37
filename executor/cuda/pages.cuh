/* SPDX-License-Identifier: Apache-2.0 */
/* Where K, V and their gradients lie in slots of pages: see schedule/layout.h. */
#ifndef TDM_EXECUTOR_CUDA_PAGES_CUH
#define TDM_EXECUTOR_CUDA_PAGES_CUH

#include "executor/cuda/kernels.h"

/* Elements from a K to its V. */
static __device__ __forceinline__ uint64_t tdm_plane_of(const tdm_attend &a)
{
    return a.page_tokens * a.kv_heads * a.head_dim;
}

/* First element of a key's K: `key` counts tokens from the first of slot 0. */
static __device__ __forceinline__ uint64_t tdm_key_at(const tdm_attend &a, uint32_t key,
                                                      uint32_t kv_head, uint64_t slot_elements)
{
    const uint32_t slot = key / (uint32_t)a.chunk_tokens;
    const uint32_t in_slot = key - slot * (uint32_t)a.chunk_tokens;
    const uint32_t page = in_slot / (uint32_t)a.page_tokens;
    const uint32_t in_page = in_slot - page * (uint32_t)a.page_tokens;
    return slot * slot_elements + page * 2 * tdm_plane_of(a) +
           ((uint64_t)in_page * a.kv_heads + kv_head) * a.head_dim;
}

/* A key's place in the gradients' pages, and whether it is added to or overwritten. */
struct tdm_gradient_key {
    void *data;
    uint64_t element;
    bool add;
};

static __device__ __forceinline__ tdm_gradient_key tdm_gradient_at(const tdm_attend &a,
                                                                   uint32_t key, uint32_t kv_head)
{
    const uint32_t slot = key / (uint32_t)a.chunk_tokens;
    tdm_gradient_key at;
    at.add = slot >= a.written_slots;
    at.data = at.add ? a.added.data : a.written.data;
    at.element = tdm_key_at(a, key, kv_head, a.gradient_slot_elements);
    if (at.add)
        at.element -= a.written_slots * a.gradient_slot_elements;
    return at;
}

#endif
