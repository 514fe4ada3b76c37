/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of work in the attention gradient on Hopper (attention_grad_hopper.cu): the plan of its
 * items, and the kernels that find, for lists of pages, the ranks of pages in the sums of dQ, the
 * order in which pages are handed out, and the pairs of a page and a query page that lists it.
 */
#ifndef TDM_EXECUTOR_CUDA_ATTENTION_GRAD_PAGES_CUH
#define TDM_EXECUTOR_CUDA_ATTENTION_GRAD_PAGES_CUH

#include "executor/cuda/gradients.cuh"
#include "executor/cuda/hopper_maps.h"
#include "executor/cuda/hopper_tiles.cuh"

/* Pages before the chunk that some but not all query pages list, "pages of some", are ranked
 * separately. Their ranks have this bit. */
#define RANK_OF_SOME 0x8000u

/* An entry of `pairs`: (page, with PAIR_SHARED if other query pages list it too); then how many of
 * these add to its dK and dV before this one, and the rank of the pair among the sums of dQ, of 16
 * bits each. */
#define PAIR_SHARED 0x80000000u
#define NO_PAIR UINT32_MAX

/* Indices in `order`: number of part entries; how many of these come before the pages of some;
 * number of items of the pages of some. */
enum { ORDER_PARTS, ORDER_BEFORE, ORDER_OF_SOME, ORDER_NUMBERS };

/* An entry of `order`: (page, list), and the number of a part of its query heads. */
#define ENTRY_PART_BITS 6u
#define ENTRY_PART ((1u << ENTRY_PART_BITS) - 1)
#define ENTRY_WHOLE ENTRY_PART /* instead of a part number: the page is not split */

/* How tiles of keys are divided into items. */
struct plan {
    uint32_t row_tiles, key_tiles;
    uint32_t parts, part_heads; /* parts of a split tile, and query heads of a part */
    uint32_t part_lag;          /* how many tiles a part lags behind the part before it */
    uint32_t parts_at_once;     /* so many parts begin together, without a lag */
    uint32_t half_lag_rows;     /* if no document has more rows in the chunk, it lags by half of the
                                 * chunk's tiles instead; 0: never */
    uint32_t whole_tiles;       /* leading tiles of keys that are not split by query heads, but for
                                 * the last of them (handed_out) */
    /* Over lists: number of query pages, and of words for a bit each; the rank of a page in the
     * list of each query page, [page, list, query page], with or without RANK_OF_SOME; and for each
     * list the number of its pages of all and of its pages of some, [query page, list, 2] */
    uint32_t query_pages, words;
    uint16_t *ranks, *list_pages;
    uint2 *pairs;        /* the pages of some, [place in the list, query page, list] */
    uint32_t *order;     /* ORDER_NUMBERS counts, then entries */
    const float *facts;  /* [query head, row tile, 2, STEP]: LSE in base 2, rowsum(dO * O); see
                          * fact_at */
    float *dq;           /* [query head, row tile, half, HALF_FLOATS] */
    uint32_t *dq_turns;  /* [query head, row tile, half] */
    uint32_t *key_turns; /* [key tile, KV head] */
    uint32_t *ticket, tickets; /* the next one, and how many there are at most */
};

static __device__ __forceinline__ const uint16_t *ranks_of(const tdm_attend &a, const plan &x,
                                                           uint32_t page, uint32_t list)
{
    return x.ranks + (uint64_t)(page * a.lists.lists + list) * x.query_pages;
}

/* The part and tile of item `number`, for `tiles` split tiles. Each part iterates over rising
 * tiles, `lag` tiles behind the part before it; the first `at_once` parts begin together. */
static __device__ __forceinline__ void find_part(uint32_t lag, uint32_t at_once, uint32_t parts,
                                                 uint32_t tiles, uint32_t number, uint32_t &part,
                                                 uint32_t &tile)
{
    const auto delay = [&](uint32_t p) { return p < at_once ? 0 : lag * (p + 1 - at_once); };
    /* number of items with a smaller tile + delay(part) */
    const auto handed_before = [&](uint32_t sum) {
        uint32_t n = 0;
        for (uint32_t p = 0; p < parts && delay(p) < sum; p++)
            n += min(sum - delay(p), tiles);
        return n;
    };
    uint32_t low = 0, high = tiles + delay(parts - 1) - 1;
    while (low < high) {
        const uint32_t middle = (low + high + 1) / 2;
        if (handed_before(middle) <= number)
            low = middle;
        else
            high = middle - 1;
    }
    part = number - handed_before(low) + (low < tiles ? 0 : (low - tiles) / lag + at_once);
    tile = low - delay(part);
}

/* Number of query pages that list a page. */
static __device__ __forceinline__ uint32_t count_readers(const tdm_attend &a, const plan &x,
                                                         uint32_t page, uint32_t list)
{
    const uint2 *readers = tdm_readers_of(a, page, list);
    uint32_t read = 0;
    for (uint32_t i = 0; i < x.words; i++)
        read += (uint32_t)__popc(readers[i].x);
    return read;
}

static __device__ __forceinline__ bool is_of_all(const plan &x, uint32_t read)
{
    return read == x.query_pages;
}

/* Computes the rank of each page in the list of each query page. One block per list. Pages of the
 * chunk have the last ranks. `separate`: pages of some are treated separately. */
static __global__ void __launch_bounds__(128)
    find_ranks(const tdm_attend a, const plan x, bool separate)
{
    __shared__ uint32_t of_warp[128 / TDM_WARP];
    const uint32_t list = blockIdx.x % a.lists.lists, query_page = blockIdx.x / a.lists.lists;
    const uint32_t *entries = tdm_list_of(a, query_page, list * (a.kv_heads / a.lists.lists));
    const uint32_t first = tdm_first_page(a), warp = threadIdx.x / TDM_WARP;
    const uint32_t own = (uint32_t)tdm_attend_key_pages(&a) - x.query_pages;
    uint32_t of_all = 0, of_some = 0; /* counts over the entries so far */
    for (uint32_t begin = 0; begin < entries[0]; begin += 128) {
        const uint32_t i = begin + threadIdx.x;
        const uint32_t page = i < entries[0] ? (entries[1 + i] & TDM_PAGE_NUMBER) - first : own;
        const bool some = separate && page < own && !is_of_all(x, count_readers(a, x, page, list));
        const uint32_t bits = __ballot_sync(TDM_FULL_WARP, some);
        if (threadIdx.x % TDM_WARP == 0)
            of_warp[warp] = (uint32_t)__popc(bits);
        __syncthreads();
        uint32_t before = of_some + (uint32_t)__popc(bits & ((1u << threadIdx.x % TDM_WARP) - 1));
        for (uint32_t k = 0; k < 128 / TDM_WARP; k++) {
            before += k < warp ? of_warp[k] : 0;
            of_some += of_warp[k];
        }
        const uint32_t all = page < own && !some;
        of_all += (uint32_t)__syncthreads_count((int)all);
        const uint32_t rank = some ? RANK_OF_SOME | before : page < own ? i - before : i;
        if (i < entries[0])
            x.ranks[(uint64_t)(page * a.lists.lists + list) * x.query_pages + query_page] =
                (uint16_t)rank;
    }
    if (threadIdx.x == 0) {
        x.list_pages[2 * blockIdx.x] = (uint16_t)of_all;
        x.list_pages[2 * blockIdx.x + 1] = (uint16_t)of_some;
    }
}

/* Computes the order in which the parts of (page, list) are processed: pages of all before the
 * chunk by rising position, then the pages of some, then the pages of the chunk in find_part's
 * order. One block, after find_ranks. `parts`: number of parts of a split page. */
#define ORDER_THREADS 1024u

static __global__ void __launch_bounds__(ORDER_THREADS)
    order_pages(const tdm_attend a, const plan x, uint32_t items, uint32_t parts, bool separate)
{
    __shared__ uint32_t of_warp[ORDER_THREADS / TDM_WARP], most_of_some;
    const uint32_t lane = threadIdx.x % TDM_WARP, warp = threadIdx.x / TDM_WARP;
    const uint32_t lists = a.lists.lists;
    const uint32_t own = items - x.query_pages * lists; /* first item of the chunk's own pages */
    uint32_t count = 0;                                 /* entries so far */
    const auto readers_of = [&](uint32_t item) {
        return count_readers(a, x, item / lists, item % lists);
    };
    /* The sum of `mine` over the threads before this one, and over all. */
    const auto sum_before = [&](uint32_t mine, uint32_t &all) {
        uint32_t sum = mine;
        for (uint32_t offset = 1; offset < TDM_WARP; offset *= 2) {
            const uint32_t other = __shfl_up_sync(TDM_FULL_WARP, sum, offset);
            sum += lane >= offset ? other : 0;
        }
        __syncthreads();
        if (lane == TDM_WARP - 1)
            of_warp[warp] = sum;
        __syncthreads();
        all = 0;
        for (uint32_t i = 0; i < ORDER_THREADS / TDM_WARP; i++) {
            sum += i < warp ? of_warp[i] : 0;
            all += of_warp[i];
        }
        return sum - mine;
    };
    /* Appends `mine` entries for each thread. Returns where the thread's first entry is. */
    const auto append = [&](uint32_t mine) {
        uint32_t all;
        uint32_t *to = x.order + ORDER_NUMBERS + count + sum_before(mine, all);
        count += all;
        return to;
    };

    if (threadIdx.x == 0)
        most_of_some = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < x.query_pages * lists; i += ORDER_THREADS)
        atomicMax(&most_of_some, (uint32_t)x.list_pages[2 * i + 1]);
    /* each thread has consecutive items before the chunk's own */
    const uint32_t each = (own + ORDER_THREADS - 1) / ORDER_THREADS;
    const uint32_t first = min(threadIdx.x * each, own), end = min(first + each, own);
    uint32_t of_all = 0, of_some = 0, popular;
#pragma unroll 4
    for (uint32_t item = first; item < end; item++) {
        const uint32_t read = readers_of(item);
        of_all += read > 0 && is_of_all(x, read);
        of_some += read > 0 && !is_of_all(x, read);
    }
    sum_before(of_all, popular);
    const bool splits = parts > 1 && popular <= TDM_ATTEND_FEW_PAGES * lists;
    const uint32_t pieces = splits ? parts : 1;
    uint32_t *to = append(of_all * pieces + (separate ? 0 : of_some));
    for (uint32_t item = first; item < end; item++) {
        const uint32_t read = readers_of(item);
        const bool all = read > 0 && is_of_all(x, read);
        if (read == 0 || (separate && !all))
            continue;
        for (uint32_t i = 0; i < (all ? pieces : 1); i++)
            *to++ = item << ENTRY_PART_BITS | (all && splits ? i : ENTRY_WHOLE);
    }
    if (threadIdx.x == 0) {
        x.order[ORDER_BEFORE] = count;
        x.order[ORDER_OF_SOME] = most_of_some * x.query_pages * a.kv_heads;
    }
    for (uint32_t first = 0; first < (items - own) * parts; first += ORDER_THREADS) {
        const uint32_t number = first + threadIdx.x;
        uint32_t item = items, part = 0;
        if (number < (items - own) * parts) {
            find_part(x.part_lag, x.parts_at_once, parts, x.query_pages, number / lists, part,
                      item);
            item = own + item * lists + number % lists;
        }
        const uint32_t mine = item < items && readers_of(item) > 0;
        uint32_t *to = append(mine);
        if (mine > 0)
            *to = item << ENTRY_PART_BITS | (parts > 1 ? part : ENTRY_WHOLE);
    }
    if (threadIdx.x == 0)
        x.order[ORDER_PARTS] = count;
}

/* Where a query page's list has the page of some number `number` among `of_some`. Query pages that
 * follow each other often list the same pages, and blocks that add to the same dK, dV wait for each
 * other. So each list begins at another of its pages. */
static __device__ __forceinline__ uint32_t place_of_some(const plan &x, uint32_t query_page,
                                                         uint32_t number, uint32_t of_some)
{
    const uint32_t place = number + query_page * of_some / x.query_pages;
    return place < of_some ? place : place - of_some;
}

/* Fills x.pairs. One block per list of a query page, after order_pages. */
static __global__ void __launch_bounds__(128) find_pairs(const tdm_attend a, const plan x)
{
    const uint32_t list = blockIdx.x % a.lists.lists, query_page = blockIdx.x / a.lists.lists;
    const uint32_t *entries = tdm_list_of(a, query_page, list * (a.kv_heads / a.lists.lists));
    const uint32_t of_all = x.list_pages[2 * blockIdx.x];
    const uint32_t of_some = x.list_pages[2 * blockIdx.x + 1];
    const uint32_t places = x.order[ORDER_OF_SOME] / (x.query_pages * a.kv_heads);
    const auto put = [&](uint32_t place, uint2 pair) {
        x.pairs[(place * x.query_pages + query_page) * a.lists.lists + list] = pair;
    };
    for (uint32_t place = of_some + threadIdx.x; place < places; place += 128)
        put(place, make_uint2(NO_PAIR, 0));
    for (uint32_t i = threadIdx.x; i < entries[0]; i += 128) {
        const uint32_t page = (entries[1 + i] & TDM_PAGE_NUMBER) - tdm_first_page(a);
        const uint16_t *ranks = ranks_of(a, x, page, list);
        const auto place_in = [&](uint32_t reader) {
            return place_of_some(x, reader, ranks[reader] & ~RANK_OF_SOME,
                                 x.list_pages[2 * (reader * a.lists.lists + list) + 1]);
        };
        if ((ranks[query_page] & RANK_OF_SOME) == 0)
            continue;
        /* dK and dV are summed in the order in which the items are handed out */
        const uint2 *readers = tdm_readers_of(a, page, list);
        const uint32_t place = place_in(query_page);
        uint32_t part = 0, others = 0;
        for (uint32_t word = 0; word < x.words; word++)
            for (uint32_t bits = readers[word].x; bits != 0; bits &= bits - 1) {
                const uint32_t other = word * 32 + (uint32_t)__ffs((int)bits) - 1;
                const uint32_t its = place_in(other);
                others += other != query_page;
                part += its < place || (its == place && other < query_page);
            }
        put(place,
            make_uint2(page | (others > 0 ? PAIR_SHARED : 0), part << 16 | (of_all + place)));
    }
}

#endif
