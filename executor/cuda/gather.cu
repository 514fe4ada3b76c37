/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gathers pages from the host: finds the pages that a batch of query pages lists and their places
 * on the device, and moves them (schedule/gather.h).
 *
 * A block for each list marks the pages as bits in shared memory. A page's place in the buffer is
 * the number of marked pages before it. So lists over the buffer keep their order, and sums keep
 * theirs. A copy reads and writes the host's memory itself, over the link: the columns of a list's
 * KV heads, row by row.
 */
#include "executor/cuda/device.cuh"
#include "executor/cuda/kernels.h"

#define THREADS 512u

static __device__ const uint32_t *list_of(const tdm_gather &g, uint64_t query_page, uint32_t list)
{
    return g.lists.pages + (query_page * g.lists.lists + list) * (1 + (uint64_t)g.lists.capacity);
}

static __device__ uint32_t query_pages_of(const tdm_gather &g)
{
    return (uint32_t)((g.tokens + g.lists.rule.page_tokens - 1) / g.lists.rule.page_tokens);
}

/* ---- which pages ---- */

/* The pages before the chunk, from the first one on the host on, as bits; and the number of set
 * bits before each word. */
struct marks {
    uint32_t *bits, *before;
    uint32_t words;
    uint32_t chunk_page; /* first page of the chunk, counted from the first page on the host */

    __device__ marks(const tdm_gather &g, uint32_t *shared)
    {
        chunk_page = (uint32_t)(tdm_page_of(&g.lists.rule, g.first_token) - g.first_page);
        words = (chunk_page + 31) / 32;
        bits = shared;
        before = shared + words;
        for (uint32_t i = threadIdx.x; i < words; i += THREADS)
            bits[i] = 0;
        __syncthreads();
    }

    __device__ bool has(uint32_t page) const
    {
        return bits[page / 32] >> page % 32 & 1;
    }

    __device__ uint32_t place(uint32_t page) const
    {
        return before[page / 32] + (uint32_t)__popc(bits[page / 32] & ((1u << page % 32) - 1));
    }

    /* Marks the pages before the chunk that a query page lists. Returns how many of them this
     * thread was the first to mark. */
    __device__ uint32_t mark(const tdm_gather &g, uint64_t query_page, uint32_t list)
    {
        const uint32_t *entries = list_of(g, query_page, list);
        uint32_t fresh = 0;
        for (uint32_t i = threadIdx.x; i < entries[0]; i += THREADS) {
            const uint32_t page = (entries[1 + i] & TDM_PAGE_NUMBER) - (uint32_t)g.first_page;
            const uint32_t bit = 1u << page % 32;
            if (page < chunk_page)
                fresh += (atomicOr(bits + page / 32, bit) & bit) == 0;
        }
        return fresh;
    }
};

/* One block for each list. Finds the query page at which the list's pages no longer fit, counted
 * from the batch's first query page. */
static __global__ void __launch_bounds__(THREADS) find_end(const tdm_gather g, uint32_t batch)
{
    extern __shared__ uint32_t shared[];
    __shared__ uint32_t total;
    const uint32_t list = blockIdx.x, query_pages = query_pages_of(g);
    uint32_t end = batch == 0 ? 0 : g.bounds[batch];
    marks m(g, shared);
    if (threadIdx.x == 0)
        total = 0;
    __syncthreads();
    for (; end < query_pages; end++) {
        const uint32_t fresh = m.mark(g, end, list);
        if (fresh > 0)
            atomicAdd(&total, fresh);
        __syncthreads();
        const bool full = total > g.buffer_pages;
        __syncthreads();
        if (full)
            break;
    }
    if (threadIdx.x == 0)
        g.ends[list] = end;
}

/* Sums the bits before each word. Returns the sum of all. */
static __device__ uint32_t sum_marks(marks &m)
{
    __shared__ uint32_t sums[THREADS];
    const uint32_t share = (m.words + THREADS - 1) / THREADS, first = threadIdx.x * share;
    uint32_t sum = 0;
    for (uint32_t i = first; i < first + share && i < m.words; i++)
        sum += (uint32_t)__popc(m.bits[i]);
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (uint32_t offset = 1; offset < THREADS; offset *= 2) {
        const uint32_t other = threadIdx.x >= offset ? sums[threadIdx.x - offset] : 0;
        __syncthreads();
        sums[threadIdx.x] += other;
        __syncthreads();
    }
    uint32_t before = sums[threadIdx.x] - sum;
    for (uint32_t i = first; i < first + share && i < m.words; i++) {
        m.before[i] = before;
        before += (uint32_t)__popc(m.bits[i]);
    }
    __syncthreads();
    return sums[THREADS - 1];
}

/* The key of a token in the buffer or, if it is not there, of the first later token that is. */
static __device__ uint32_t key_of(const tdm_gather &g, const marks &m, uint64_t token)
{
    const tdm_page_rule *rule = &g.lists.rule;
    const uint64_t page = tdm_page_of(rule, token);
    if (token >= g.first_token)
        return (uint32_t)(g.buffer_pages * rule->page_tokens + (token - g.first_token));
    if (page < g.first_page)
        return 0;
    const uint32_t number = (uint32_t)(page - g.first_page);
    const uint32_t in_page = (uint32_t)(token - tdm_page_token(rule, page));
    return m.place(number) * (uint32_t)rule->page_tokens + (m.has(number) ? in_page : 0);
}

/* One block for each list. Finds the batch's pages, its lists, and the first keys that its tokens
 * see. */
static __global__ void __launch_bounds__(THREADS) find_pages(const tdm_gather g, uint32_t batch)
{
    extern __shared__ uint32_t shared[];
    const uint32_t list = blockIdx.x, query_pages = query_pages_of(g);
    const uint32_t begin = batch == 0 ? 0 : g.bounds[batch];
    uint32_t end = query_pages;
    for (uint32_t i = 0; i < g.lists.lists; i++)
        end = g.ends[i] < end ? g.ends[i] : end;
    marks m(g, shared);
    for (uint32_t i = begin; i < end; i++)
        m.mark(g, i, list);
    __syncthreads();
    const uint32_t count = sum_marks(m);
    if (threadIdx.x == 0) {
        g.count[list] = count;
        g.total[list] = (batch == 0 ? 0 : g.total[list]) + count;
        if (list == 0)
            g.bounds[batch + 1] = end;
    }
    for (uint32_t page = threadIdx.x; page < m.chunk_page; page += THREADS)
        if (m.has(page))
            g.table[list * g.buffer_pages + m.place(page)] = page;

    for (uint32_t number = 0; number < query_pages; number++) {
        const uint32_t *entries = list_of(g, number, list);
        uint32_t *listed =
            g.listed + ((uint64_t)number * g.lists.lists + list) * (1 + (uint64_t)g.lists.capacity);
        const uint32_t entry_count = number >= begin && number < end ? entries[0] : 0;
        for (uint32_t i = threadIdx.x; i < entry_count; i += THREADS) {
            const uint32_t entry = entries[1 + i];
            const uint32_t page = (entry & TDM_PAGE_NUMBER) - (uint32_t)g.first_page;
            listed[1 + i] = (entry & TDM_PAGE_WHOLE) |
                            (page < m.chunk_page ? m.place(page)
                                                 : (uint32_t)g.buffer_pages + page - m.chunk_page);
        }
        if (threadIdx.x == 0)
            listed[0] = entry_count;
    }

    const uint64_t page_tokens = g.lists.rule.page_tokens;
    const uint64_t last = end * page_tokens < g.tokens ? end * page_tokens : g.tokens;
    for (uint64_t t = begin * page_tokens + threadIdx.x; t < last; t += THREADS) {
        const uint64_t token = g.first_token + t, start = tdm_start_of(g.documents, token);
        g.from[list * g.tokens + t] = key_of(g, m, tdm_near_token(&g.lists.rule, start, token));
        g.start[list * g.tokens + t] = key_of(g, m, start);
    }
}

extern "C" enum tdm_status tdm_cuda_gather_batch(const struct tdm_gather *g, uint32_t batch,
                                                 cudaStream_t stream, struct tdm_error *err)
{
    const uint64_t before = tdm_page_of(&g->lists.rule, g->first_token) - g->first_page;
    const uint64_t bytes = (before + 31) / 32 * 2 * sizeof(uint32_t);
    if (bytes > INT32_MAX)
        return tdm_fail(err, TDM_INPUT, "a chunk has too many pages before it to gather some");
    enum tdm_status status =
        TDM_CUDA(cudaFuncSetAttribute((const void *)find_pages,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                 err);
    if (status == TDM_OK)
        status =
            TDM_CUDA(cudaFuncSetAttribute((const void *)find_end,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                     err);
    if (status != TDM_OK)
        return status;
    find_end<<<g->lists.lists, THREADS, bytes, stream>>>(*g, batch);
    find_pages<<<g->lists.lists, THREADS, bytes, stream>>>(*g, batch);
    return tdm_cuda_status(cudaGetLastError(), "gather launch", err);
}

/* ---- moving them ---- */

#define MOVE_THREADS 256u
#define MOVE_BLOCKS 528u /* the link is full with far fewer */
#define AT_ONCE 4u       /* words that a thread moves at once */

/* A page of a list: its columns on the host and in the buffer, and its number of tokens. */
struct page_move {
    unsigned char *home, *buffer;
    uint32_t row_bytes, tokens;
};

/* Tokens of page `number` of a chunk. */
static __device__ uint32_t tokens_of(uint64_t tokens, uint64_t page_tokens, uint64_t number)
{
    const uint64_t left = tokens - number * page_tokens;
    return (uint32_t)(left < page_tokens ? left : page_tokens);
}

/* Finds item `number` of the pages of all lists, then of the chunk's own pages. Returns false after
 * the last. */
static __device__ bool find_move(const tdm_gather &g, const tdm_page_home &h, uint32_t size,
                                 bool own, uint32_t number, page_move *move)
{
    const tdm_page_rule *rule = &g.lists.rule;
    const uint64_t pages = tdm_pages_of_chunk(rule);
    const uint64_t page_bytes = 2 * rule->page_tokens * g.kv_heads * (uint64_t)g.head_dim * size;
    const uint64_t chunk_page = tdm_page_of(rule, g.first_token) - g.first_page;
    uint32_t list = 0;
    uint64_t place, page;
    while (list < g.lists.lists && number >= g.count[list])
        number -= g.count[list++];
    move->row_bytes = g.kv_heads * g.head_dim * size;
    move->tokens = (uint32_t)rule->page_tokens;
    uint64_t column = 0;
    if (list < g.lists.lists) {
        place = number;
        page = g.table[list * g.buffer_pages + number];
        move->row_bytes /= g.lists.lists;
        column = list * move->row_bytes;
    } else if (own && number < query_pages_of(g)) {
        place = g.buffer_pages + number;
        page = chunk_page + number;
        move->tokens = tokens_of(g.tokens, rule->page_tokens, number);
    } else {
        return false;
    }
    uint64_t slot = page / pages;
    unsigned char *home = (unsigned char *)h.opened.data;
    if (slot >= h.opened_slots) {
        slot -= h.opened_slots;
        home = (unsigned char *)h.pages.data;
    }
    move->home = home + slot * h.slot_elements * size + page % pages * page_bytes + column;
    move->buffer = (unsigned char *)h.buffer.data + place / pages * h.buffer_slot_elements * size +
                   place % pages * page_bytes + column;
    return true;
}

/* Words of a page's K, then of its V: rows of some columns. */
template <typename Word> struct page_words {
    uint32_t in_row, half, stride, plane;

    __device__ page_words(const tdm_gather &g, uint32_t size, uint32_t row_bytes, uint32_t tokens)
    {
        in_row = row_bytes / sizeof(Word);
        half = tokens * in_row;
        stride = g.kv_heads * g.head_dim * size;
        plane = (uint32_t)g.lists.rule.page_tokens * stride;
    }

    __device__ Word *at(unsigned char *page, uint32_t word) const
    {
        const uint32_t of_plane = word < half ? word : word - half;
        page += (word < half ? 0 : plane) + of_plane / in_row * stride;
        return (Word *)page + of_plane % in_row;
    }
};

template <typename Word>
static __global__ void __launch_bounds__(MOVE_THREADS)
    move_pages(const tdm_gather g, const tdm_page_home h, uint32_t size, bool own, bool back)
{
    page_move move;
    for (uint32_t item = blockIdx.x; find_move(g, h, size, own, item, &move); item += gridDim.x) {
        const page_words<Word> words(g, size, move.row_bytes, move.tokens);
        unsigned char *from = back ? move.buffer : move.home, *to = back ? move.home : move.buffer;
        for (uint32_t first = threadIdx.x; first < 2 * words.half;
             first += AT_ONCE * MOVE_THREADS) {
            Word word[AT_ONCE];
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++)
                if (first + i * MOVE_THREADS < 2 * words.half)
                    word[i] = *words.at(from, first + i * MOVE_THREADS);
#pragma unroll
            for (uint32_t i = 0; i < AT_ONCE; i++)
                if (first + i * MOVE_THREADS < 2 * words.half)
                    *words.at(to, first + i * MOVE_THREADS) = word[i];
        }
    }
}

/* Zeroes the opened slots, one block for each page. In the chunk's own slot it zeroes only the
 * chunk's tokens. */
template <typename Word>
static __global__ void __launch_bounds__(MOVE_THREADS)
    open_pages(const tdm_gather g, const tdm_page_home h, uint32_t size)
{
    const tdm_page_rule *rule = &g.lists.rule;
    const uint64_t pages = tdm_pages_of_chunk(rule), slot = blockIdx.x / pages;
    const uint64_t page = blockIdx.x % pages, line = (uint64_t)g.kv_heads * g.head_dim * size;
    const uint64_t own = (tdm_page_of(rule, g.first_token) - g.first_page) / pages;
    const uint64_t tokens = slot == own ? g.tokens : rule->chunk_tokens;
    if (page * rule->page_tokens >= tokens)
        return;
    unsigned char *data = (unsigned char *)h.opened.data + slot * h.slot_elements * size +
                          page * 2 * rule->page_tokens * line;
    const page_words<Word> words(g, size, (uint32_t)line,
                                 tokens_of(tokens, rule->page_tokens, page));
    for (uint32_t i = threadIdx.x; i < 2 * words.half; i += MOVE_THREADS)
        *words.at(data, i) = Word{};
}

static bool is_wide(const struct tdm_gather *g, uint32_t size)
{
    return g->head_dim * size % sizeof(uint4) == 0;
}

extern "C" enum tdm_status tdm_cuda_move_pages(const struct tdm_gather *g,
                                               const struct tdm_page_home *home, bool own,
                                               bool back, cudaStream_t stream,
                                               struct tdm_error *err)
{
    const uint32_t size = (uint32_t)tdm_dtype_bytes(home->buffer.dtype);
    if (is_wide(g, size))
        move_pages<uint4><<<MOVE_BLOCKS, MOVE_THREADS, 0, stream>>>(*g, *home, size, own, back);
    else
        move_pages<uint16_t><<<MOVE_BLOCKS, MOVE_THREADS, 0, stream>>>(*g, *home, size, own, back);
    return tdm_cuda_status(cudaGetLastError(), "page copy launch", err);
}

extern "C" enum tdm_status tdm_cuda_open_pages(const struct tdm_gather *g,
                                               const struct tdm_page_home *home,
                                               cudaStream_t stream, struct tdm_error *err)
{
    const uint32_t size = (uint32_t)tdm_dtype_bytes(home->buffer.dtype);
    const unsigned pages = (unsigned)(home->opened_slots * tdm_pages_of_chunk(&g->lists.rule));
    if (pages == 0)
        return TDM_OK;
    if (is_wide(g, size))
        open_pages<uint4><<<pages, MOVE_THREADS, 0, stream>>>(*g, *home, size);
    else
        open_pages<uint16_t><<<pages, MOVE_THREADS, 0, stream>>>(*g, *home, size);
    return tdm_cuda_status(cudaGetLastError(), "page opening launch", err);
}

static __global__ void count_pages(const tdm_gather g, tdm_page_bytes bytes, uint64_t *counted)
{
    uint64_t pages = 0;
    for (uint32_t list = 0; list < g.lists.lists; list++)
        pages += g.total[list];
    *counted = pages * bytes.each + bytes.beside;
}

extern "C" enum tdm_status tdm_cuda_count_pages(const struct tdm_gather *g,
                                                struct tdm_page_bytes bytes, uint64_t *counted,
                                                cudaStream_t stream, struct tdm_error *err)
{
    count_pages<<<1, 1, 0, stream>>>(*g, bytes, counted);
    return tdm_cuda_status(cudaGetLastError(), "page count launch", err);
}
