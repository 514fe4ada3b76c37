/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of K, V and their gradients in slots of pages (schedule/layout.h), and access to lists
 * of pages. Keys are counted in tokens from the first token of slot 0, key pages from the first
 * page of slot 0. */
#ifndef TDM_EXECUTOR_CUDA_PAGES_CUH
#define TDM_EXECUTOR_CUDA_PAGES_CUH

#include "executor/cuda/kernels.h"

/* Offset in elements from a key's K to its V. */
static __device__ __forceinline__ uint64_t tdm_plane_of(const tdm_attend &a)
{
    return a.page_tokens * a.kv_heads * a.head_dim;
}

/* First element of a key's K. */
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

/* The address of a key in the gradients' pages, and whether to add there or overwrite. */
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

/* ---- lists ---- */

/* The list of a query page of the chunk: the number of pages, then the pages. */
static __device__ __forceinline__ const uint32_t *tdm_list_of(const tdm_attend &a, uint64_t page,
                                                              uint32_t kv_head)
{
    const uint32_t list = kv_head / (a.kv_heads / a.lists.lists);
    return a.lists.pages + (page * a.lists.lists + list) * (1 + (uint64_t)a.lists.capacity);
}

/* Page number in the sequence of key page 0. */
static __device__ __forceinline__ uint32_t tdm_first_page(const tdm_attend &a)
{
    return (uint32_t)tdm_page_of(&a.lists.rule, a.key_token);
}

/* Keys [first, end) of a key page. */
struct tdm_keys {
    uint32_t first, end;
};

static __device__ __forceinline__ tdm_keys tdm_keys_of_page(const tdm_attend &a, uint32_t page)
{
    const uint32_t chunk_tokens = (uint32_t)a.chunk_tokens, page_tokens = (uint32_t)a.page_tokens;
    const uint32_t pages = (chunk_tokens + page_tokens - 1) / page_tokens, slot = page / pages;
    tdm_keys keys;
    keys.first = slot * chunk_tokens + (page - slot * pages) * page_tokens;
    keys.end = keys.first + page_tokens;
    if (keys.end > (slot + 1) * chunk_tokens)
        keys.end = (slot + 1) * chunk_tokens;
    return keys;
}

/* For each token the first key that it sees, in pages that it sees whole or by the near rule. */
static __device__ __forceinline__ const uint32_t *tdm_seen_from(const tdm_attend &a, bool whole,
                                                                uint32_t kv_head)
{
    return (whole ? a.start : a.from) + kv_head * a.sight_stride;
}

/* The query pages that list a key page, as bits in pairs of words: listed, seen whole. */
static __device__ __forceinline__ const uint2 *tdm_readers_of(const tdm_attend &a, uint32_t page,
                                                              uint32_t list)
{
    return (const uint2 *)a.readers +
           ((uint64_t)page * a.lists.lists + list) * tdm_attend_words(&a);
}

#endif
