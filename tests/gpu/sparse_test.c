/* SPDX-License-Identifier: Apache-2.0 */
/* Compares attention by selectors, and its page lists, with loops on the host that apply the rules
 * of ops/selector.h to every pair of a query and a key. Shapes have ragged pages and chunks,
 * documents, and several chunks. dK and dV are written and added to.
 *
 * Lists must be exactly those of the rule. If pages are voted for, the host counts the votes in
 * fp64 from the same means; a page that won must have at least 1 - VOTE_BOUND of the votes of one
 * that lost. Attention on CUDA cores is compared with the host, and the other kernels with CUDA
 * cores. The error is the norm of the difference over the norm of the expected result. The bounds
 * are those of fp32 sums, or of bf16 probabilities and results.
 *
 * Lists and attention run TDM_REPEATS times more (1; in the large shapes at least 3), with copies
 * and other kernels under way and as if the GPU had fewer multiprocessors. All must give the same
 * bits. sparse_delays_test is the same with delays in random blocks (hopper.cuh).
 *
 * sparse_test N runs N random shapes of each selector, and none of the large ones. */
#include "base/dtype.h"
#include "executor/cuda/card.h"
#include "executor/cuda/cuda_error.h"
#include "executor/cuda/kernels.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/noise.h"

#include <math.h>
#include <string.h>

#define VOTE_BOUND 1e-3
#define MEAN_BOUND 4e-3
#define FP32_BOUND 2e-4
#define BF16_BOUND 8e-3
#define MOST_ON_HOST 1.5e8 /* multiplications for the scores of all pairs */

static const char *const names[] = {"dense",   "window",  "block", "longformer",
                                    "bigbird", "dilated", "top-k"};

struct shape {
    struct tdm_selector selector;
    uint32_t head_dim, kv_heads, ratio;
    uint64_t chunk_tokens, page_tokens;
    uint64_t slots, tokens; /* slots of keys; tokens of the last slot, the queries */
    uint32_t documents;
    enum tdm_dtype dtype, gradient_dtype;
    bool loose; /* there are gaps between the means of slots */
    bool steep; /* later keys are much larger; only the lists are tested */
};

/* A case, with its data on the host and on the device. */
struct sparse {
    const struct shape *shape;
    struct tdm_page_rule rule;
    uint64_t heads, rows, elements, slot, keys, key_token, first_token, query_pages, slot_pages;
    uint64_t first_page, mean_slot;
    uint64_t starts[16];
    uint32_t start_count;
    uint32_t lists, capacity;
    float *q, *kv, *d_out, *gradients; /* the values of the device in fp32 */
    float *means;
    uint32_t *pages;
    struct tdm_attend a;
    struct tdm_select s;
    cudaStream_t stream;
    struct noise noise;
    int repeats;
};

static void die(const struct tdm_error *err)
{
    printf("Bail out! %s\n", err->message);
    exit(1);
}

static void check_status(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        die(err);
}

static void *host(uint64_t bytes)
{
    void *memory = calloc(bytes + 1, 1);
    if (memory == NULL) {
        printf("Bail out! out of memory\n");
        exit(1);
    }
    return memory;
}

/* Device memory filled with NaN. */
static void *device(uint64_t bytes)
{
    struct tdm_error err = {0};
    void *memory = NULL;
    check_status(TDM_CUDA(cudaMalloc(&memory, bytes + 1), &err), &err);
    check_status(TDM_CUDA(cudaMemset(memory, 0xff, bytes + 1), &err), &err);
    return memory;
}

/* Device memory of elements of a dtype. `values` are rounded to it in place. */
static struct tdm_array upload(float *values, uint64_t count, enum tdm_dtype dtype)
{
    struct tdm_error err = {0};
    uint64_t size = tdm_dtype_bytes(dtype);
    unsigned char *bytes = host(count * size);
    struct tdm_array array = {device(count * size), dtype};
    for (uint64_t i = 0; i < count; i++) {
        if (dtype == TDM_DTYPE_FP32) {
            memcpy(bytes + i * size, &values[i], size);
        } else {
            uint16_t rounded = tdm_float_to_bf16(values[i]);
            memcpy(bytes + i * size, &rounded, size);
            values[i] = tdm_bf16_to_float(rounded);
        }
    }
    check_status(
        TDM_CUDA(cudaMemcpy(array.data, bytes, count * size, cudaMemcpyHostToDevice), &err), &err);
    free(bytes);
    return array;
}

static float *download(struct tdm_array array, uint64_t count)
{
    struct tdm_error err = {0};
    uint64_t size = tdm_dtype_bytes(array.dtype);
    unsigned char *bytes = host(count * size);
    float *values = host(count * sizeof(*values));
    check_status(
        TDM_CUDA(cudaMemcpy(bytes, array.data, count * size, cudaMemcpyDeviceToHost), &err), &err);
    for (uint64_t i = 0; i < count; i++) {
        if (array.dtype == TDM_DTYPE_FP32) {
            memcpy(&values[i], bytes + i * size, size);
        } else {
            uint16_t rounded;
            memcpy(&rounded, bytes + i * size, size);
            values[i] = tdm_bf16_to_float(rounded);
        }
    }
    free(bytes);
    return values;
}

static float *random_values(struct gpu_test *test, uint64_t count, float scale)
{
    float *values = host(count * sizeof(*values));
    for (uint64_t i = 0; i < count; i++)
        values[i] = gpu_test_float(test) * scale;
    return values;
}

static double difference(const float *due, const float *got, uint64_t count)
{
    double squares = 0, error = 0;
    for (uint64_t i = 0; i < count; i++) {
        squares += (double)due[i] * due[i];
        error += ((double)got[i] - due[i]) * ((double)got[i] - due[i]);
    }
    return sqrt(error / (squares + 1e-30));
}

/* ---- the rules ---- */

static uint64_t start_of(const struct sparse *c, uint64_t token)
{
    uint64_t start = 0;
    for (uint32_t i = 0; i < c->start_count; i++)
        if (c->starts[i] <= token)
            start = c->starts[i];
    return start;
}

static struct tdm_query_page query_page(const struct sparse *c, uint64_t number)
{
    struct tdm_query_page q = {.first = c->first_token + number * c->rule.page_tokens};
    uint64_t end = q.first + c->rule.page_tokens, stop = c->first_token + c->shape->tokens;
    q.last = (end < stop ? end : stop) - 1;
    q.page = tdm_page_of(&c->rule, q.first);
    q.start = start_of(c, q.first);
    q.opens = start_of(c, q.last) != q.start;
    return q;
}

/* The list of a query page for a KV head. */
static const uint32_t *list_of(const struct sparse *c, uint64_t number, uint64_t kv_head)
{
    uint64_t list = c->lists == 1 ? 0 : kv_head;
    return c->pages + (number * c->lists + list) * (1 + (uint64_t)c->capacity);
}

/* Whether the query page sees the whole page. If pages are voted for, the lists decide. */
static bool sees_whole(const struct sparse *c, uint64_t number, uint64_t kv_head, uint64_t page)
{
    struct tdm_query_page q = query_page(c, number);
    if (!tdm_selector_lists(c->rule.selector.kind))
        return false;
    if (c->rule.selector.kind != TDM_SELECT_TOP_K)
        return tdm_sees_whole(
            &c->rule, &q, tdm_page_of(&c->rule, tdm_near_token(&c->rule, q.start, q.first)), page);
    const uint32_t *list = list_of(c, number, kv_head);
    for (uint32_t i = 0; i < list[0]; i++)
        if (list[1 + i] == (page | TDM_PAGE_WHOLE))
            return true;
    return false;
}

/* The offset in the slots of a key, which is counted from the first slot, for a KV head. */
static uint64_t key_at(const struct sparse *c, uint64_t key, uint64_t kv_head)
{
    const struct shape *s = c->shape;
    uint64_t in_slot = key % s->chunk_tokens, plane = s->page_tokens * s->kv_heads * s->head_dim;
    return key / s->chunk_tokens * c->slot + in_slot / s->page_tokens * 2 * plane +
           (in_slot % s->page_tokens * s->kv_heads + kv_head) * s->head_dim;
}

/* ---- lists ---- */

static double dot(const float *a, const float *b, uint64_t count)
{
    double sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

/* Counts the votes of a query page and KV head for the candidates [first, end) among the pages from
 * first_page on. */
static void count_votes(const struct sparse *c, uint64_t number, uint64_t kv_head, uint64_t first,
                        uint64_t end, double *votes)
{
    const struct shape *s = c->shape;
    struct tdm_query_page q = query_page(c, number);
    double *scores = host(end * sizeof(*scores));
    memset(votes, 0, end * sizeof(*votes));
    for (uint64_t t = q.first; t <= q.last; t++) {
        for (uint64_t h = kv_head * s->ratio; h < (kv_head + 1) * s->ratio; h++) {
            const float *query = c->q + ((t - c->first_token) * c->heads + h) * s->head_dim;
            double most = -INFINITY, sum = 0;
            for (uint64_t i = first; i < end; i++) {
                uint64_t slot = i / c->slot_pages, in_slot = i % c->slot_pages;
                uint64_t page = c->first_page + i;
                uint64_t last = tdm_page_token(&c->rule, page + 1) - 1;
                const float *mean = c->means + slot * c->mean_slot +
                                    (in_slot * s->kv_heads + kv_head) * s->head_dim;
                scores[i] = last < start_of(c, t)
                                ? -INFINITY
                                : dot(query, mean, s->head_dim) / sqrt((double)s->head_dim);
                most = scores[i] > most ? scores[i] : most;
            }
            for (uint64_t i = first; i < end && most > -INFINITY; i++)
                sum += exp(scores[i] - most);
            for (uint64_t i = first; i < end && most > -INFINITY; i++)
                votes[i] += exp(scores[i] - most) / sum;
        }
    }
    free(scores);
}

/* Whether a list is the result of the vote. */
static bool check_vote(const struct sparse *c, uint64_t number, uint64_t kv_head)
{
    struct tdm_query_page q = query_page(c, number);
    const uint32_t *list = list_of(c, number, kv_head);
    uint64_t winners = c->rule.selector.budget / c->rule.page_tokens;
    uint64_t end = tdm_page_of(&c->rule, c->first_token);
    uint64_t first = tdm_page_of(&c->rule, q.start);
    uint64_t near = tdm_page_of(&c->rule, tdm_near_token(&c->rule, q.start, q.first)), at = 0;
    uint64_t candidates = first < end ? end - first : 0;
    uint64_t due = candidates < winners ? candidates : winners;
    bool right = list[0] == due + q.page - near + 1;
    for (uint64_t page = near; page <= q.page && right; page++)
        right =
            (list[1 + due + page - near] & TDM_PAGE_NUMBER) == page &&
            ((list[1 + due + page - near] & TDM_PAGE_WHOLE) != 0) == (page == q.page && q.opens);
    for (at = 0; at < due && right; at++)
        right =
            (list[1 + at] & TDM_PAGE_WHOLE) != 0 &&
            (list[1 + at] & TDM_PAGE_NUMBER) >= (at == 0 ? first : list[at] + 1 - TDM_PAGE_WHOLE) &&
            (list[1 + at] & TDM_PAGE_NUMBER) < end;
    if (!right || candidates <= winners)
        return right;
    double *votes = host((end - c->first_page) * sizeof(*votes)), least = INFINITY, most = 0;
    count_votes(c, number, kv_head, first - c->first_page, end - c->first_page, votes);
    for (uint64_t page = first; page < end; page++) {
        double of = votes[page - c->first_page];
        if (sees_whole(c, number, kv_head, page))
            least = of < least ? of : least;
        else
            most = of > most ? of : most;
    }
    free(votes);
    return least >= most * (1 - VOTE_BOUND);
}

/* Whether a list is exactly that of the rule. */
static bool check_rule(const struct sparse *c, uint64_t number)
{
    struct tdm_query_page q = query_page(c, number);
    const uint32_t *list = list_of(c, number, 0);
    uint64_t near = tdm_page_of(&c->rule, tdm_near_token(&c->rule, q.start, q.first));
    uint32_t count = 0;
    for (uint64_t page = tdm_page_of(&c->rule, q.start); page <= q.page; page++) {
        bool whole = tdm_sees_whole(&c->rule, &q, near, page);
        if (!whole && page < near)
            continue;
        if (count >= list[0] || list[1 + count] != (page | (whole ? TDM_PAGE_WHOLE : 0)))
            return false;
        count++;
    }
    return count == list[0];
}

/* What is different in run `i` of the same: work beside it, and how many multiprocessors the
 * kernels are told of. Nothing in run 0. */
static void disturb(const struct sparse *c, int i)
{
    static const unsigned multiprocessors[] = {0, 97, 114, 33};
    make_noise(&c->noise, i % 4);
    tdm_cuda_limit_multiprocessors(multiprocessors[i % 4]);
}

/* Checks the means and the lists, and that lists repeat. Stores the lists in c->pages. */
static bool run_select(struct sparse *c, double *mean_error)
{
    const struct shape *s = c->shape;
    struct tdm_error err = {0};
    uint64_t words = c->query_pages * c->lists * (1 + (uint64_t)c->capacity);
    uint64_t columns = (uint64_t)s->kv_heads * s->head_dim;
    uint64_t mean_count = (s->slots - 1) * c->mean_slot;
    uint32_t *again = host(words * sizeof(*again));
    float *due = host(mean_count * sizeof(*due));
    *mean_error = 0;
    struct tdm_array means = {device(mean_count * tdm_dtype_bytes(s->dtype)), s->dtype};
    for (uint64_t i = 0; i + 1 < s->slots; i++) {
        struct tdm_means m = {.tokens = s->chunk_tokens,
                              .page_tokens = s->page_tokens,
                              .kv_heads = s->kv_heads,
                              .head_dim = s->head_dim};
        uint64_t size = tdm_dtype_bytes(s->dtype);
        m.pages = (struct tdm_array){(char *)c->a.pages.data + i * c->slot * size, s->dtype};
        m.means = (struct tdm_array){(char *)means.data + i * c->mean_slot * size, s->dtype};
        check_status(tdm_cuda_page_means(&m, c->stream, &err), &err);
        for (uint64_t page = 0; page < c->slot_pages; page++) {
            uint64_t first = page * s->page_tokens, end = first + s->page_tokens;
            end = end < s->chunk_tokens ? end : s->chunk_tokens;
            for (uint64_t column = 0; column < columns; column++) {
                double sum = 0;
                for (uint64_t t = first; t < end; t++)
                    sum += c->kv[key_at(c, i * s->chunk_tokens + t, 0) + column];
                due[i * c->mean_slot + page * columns + column] =
                    (float)(sum / (double)(end - first));
            }
        }
    }
    check_status(TDM_CUDA(cudaStreamSynchronize(c->stream), &err), &err);
    c->means = download(means, mean_count);
    for (uint64_t i = 0; i + 1 < s->slots; i++) {
        uint64_t at = i * c->mean_slot, count = c->slot_pages * columns;
        double error = difference(due + at, c->means + at, count);
        *mean_error = error <= *mean_error ? *mean_error : error;
    }
    c->s.means = means;
    c->s.votes = device(c->query_pages * s->kv_heads * (s->slots * c->slot_pages) * sizeof(float));
    c->s.lse = device(2 * c->rows * sizeof(float));
    bool right = true;
    for (int i = 0; i <= c->repeats; i++) {
        uint32_t *to = i == 0 ? c->pages : again;
        disturb(c, i);
        check_status(TDM_CUDA(cudaMemsetAsync(c->s.lists.pages, 0, words * 4, c->stream), &err),
                     &err);
        check_status(tdm_cuda_select(&c->s, c->stream, &err), &err);
        check_status(TDM_CUDA(cudaStreamSynchronize(c->stream), &err), &err);
        check_status(
            TDM_CUDA(cudaMemcpy(to, c->s.lists.pages, words * 4, cudaMemcpyDeviceToHost), &err),
            &err);
        right = right && (i == 0 || memcmp(c->pages, again, words * 4) == 0);
    }
    disturb(c, 0);
    for (uint64_t i = 0; i < words && right; i++) /* nothing follows a list */
        if (i % (1 + (uint64_t)c->capacity) > c->pages[i / (1 + c->capacity) * (1 + c->capacity)])
            right = c->pages[i] == TDM_PAGE_NONE;
    for (uint64_t i = 0; i < c->query_pages && right; i++)
        for (uint64_t list = 0; list < c->lists && right; list++)
            right = c->rule.selector.kind == TDM_SELECT_TOP_K ? check_vote(c, i, list)
                                                              : check_rule(c, i);
    cudaFree(c->s.means.data);
    cudaFree(c->s.votes);
    cudaFree(c->s.lse);
    free(again);
    free(due);
    return right;
}

/* ---- attention ---- */

struct result {
    float *out, *lse, *dq, *gradients;
};

static void free_result(struct result *r)
{
    free(r->out);
    free(r->lse);
    free(r->dq);
    free(r->gradients);
}

/* Runs a kind of kernel. Its backward uses the results of its own forward. */
static struct result run_kind(struct sparse *c, const struct tdm_attention_kind *kind)
{
    const struct shape *s = c->shape;
    struct tdm_error err = {0};
    struct tdm_attend a = c->a;
    uint64_t count = s->slots * c->slot, size = tdm_dtype_bytes(s->gradient_dtype);
    struct tdm_array gradients = upload(c->gradients, count, s->gradient_dtype);
    a.out = (struct tdm_array){device(c->elements * tdm_dtype_bytes(s->dtype)), s->dtype};
    a.dq = (struct tdm_array){device(c->elements * tdm_dtype_bytes(s->dtype)), s->dtype};
    a.lse = device(c->rows * sizeof(float));
    a.gradient_slot_elements = c->slot;
    a.written = a.added = (struct tdm_array){0};
    if (a.written_slots > 0)
        a.written = gradients;
    if (a.written_slots < s->slots)
        a.added = (struct tdm_array){(char *)gradients.data + a.written_slots * c->slot * size,
                                     s->gradient_dtype};
    check_status(tdm_cuda_attend_from(&a, c->stream, &err), &err);
    check_status(kind->forward(&a, c->stream, &err), &err);
    check_status(kind->backward(&a, c->stream, &err), &err);
    check_status(TDM_CUDA(cudaStreamSynchronize(c->stream), &err), &err);
    struct result r = {download(a.out, c->elements),
                       download((struct tdm_array){a.lse, TDM_DTYPE_FP32}, c->rows),
                       download(a.dq, c->elements), download(gradients, count)};
    cudaFree(a.out.data);
    cudaFree(a.dq.data);
    cudaFree(a.lse);
    cudaFree(gradients.data);
    return r;
}

/* Computes a row on the host: the keys that it sees, their probabilities, and the results. */
static void run_row(const struct sparse *c, uint64_t t, uint64_t h, struct result *r, double *dk_dv,
                    double *p, const bool *whole)
{
    const struct shape *s = c->shape;
    uint64_t dim = s->head_dim, row = t * c->heads + h, kv_head = h / s->ratio;
    uint64_t token = c->first_token + t, start = start_of(c, token);
    uint64_t near = tdm_near_token(&c->rule, start, token), count = token - c->key_token + 1;
    uint64_t plane = s->page_tokens * s->kv_heads * dim;
    const float *q = c->q + row * dim, *d_out = c->d_out + row * dim;
    double most = -INFINITY, sum = 0, d = 0, scale = 1 / sqrt((double)dim);
    double out[512] = {0}, dq[512] = {0};
    for (uint64_t k = 0; k < count; k++) {
        uint64_t key = c->key_token + k, page = tdm_page_of(&c->rule, key) - c->first_page;
        bool sees = key >= start && (key >= near || whole[page]);
        p[k] = sees ? dot(q, c->kv + key_at(c, k, kv_head), dim) * scale : -INFINITY;
        most = p[k] > most ? p[k] : most;
    }
    for (uint64_t k = 0; k < count; k++)
        sum += exp(p[k] - most);
    for (uint64_t k = 0; k < count; k++) {
        if (p[k] == -INFINITY)
            continue;
        const float *v = c->kv + key_at(c, k, kv_head) + plane;
        double share = exp(p[k] - most) / sum;
        for (uint64_t i = 0; i < dim; i++)
            out[i] += share * v[i];
    }
    for (uint64_t i = 0; i < dim; i++) {
        r->out[row * dim + i] = (float)out[i];
        d += d_out[i] * out[i];
    }
    r->lse[row] = (float)(most + log(sum));
    for (uint64_t k = 0; k < count; k++) {
        if (p[k] == -INFINITY)
            continue;
        uint64_t at = key_at(c, k, kv_head);
        const float *key = c->kv + at, *v = key + plane;
        double share = exp(p[k] - most) / sum, ds = share * (dot(d_out, v, dim) - d) * scale;
        for (uint64_t i = 0; i < dim; i++) {
            dq[i] += ds * key[i];
            dk_dv[at + i] += ds * q[i];
            dk_dv[at + plane + i] += share * d_out[i];
        }
    }
    for (uint64_t i = 0; i < dim; i++)
        r->dq[row * dim + i] = (float)dq[i];
}

static struct result run_host(const struct sparse *c)
{
    const struct shape *s = c->shape;
    uint64_t count = s->slots * c->slot, pages = s->slots * c->slot_pages;
    struct result r = {host(c->elements * 4), host(c->rows * 4), host(c->elements * 4),
                       host(count * 4)};
    double *dk_dv = host(count * sizeof(*dk_dv)), *p = host(c->keys * sizeof(*p));
    bool *whole = host(pages * sizeof(*whole));
    for (uint64_t number = 0; number < c->query_pages; number++)
        for (uint64_t h = 0; h < c->heads; h++) {
            uint64_t t = number * s->page_tokens, end = t + s->page_tokens;
            for (uint64_t page = 0; page < pages; page++)
                whole[page] = sees_whole(c, number, h / s->ratio, c->first_page + page);
            for (; t < end && t < s->tokens; t++)
                run_row(c, t, h, &r, dk_dv, p, whole);
        }
    memcpy(r.gradients, c->gradients, count * sizeof(float));
    for (uint64_t k = 0; k < c->keys; k++)
        for (uint64_t h = 0; h < s->kv_heads; h++)
            for (uint64_t i = 0; i < 2 * (uint64_t)s->head_dim; i++) {
                uint64_t plane = s->page_tokens * s->kv_heads * s->head_dim;
                uint64_t at = key_at(c, k, h) + i % s->head_dim + (i < s->head_dim ? 0 : plane);
                bool written = k / s->chunk_tokens < c->a.written_slots;
                r.gradients[at] = (float)(dk_dv[at] + (written ? 0 : c->gradients[at]));
            }
    free(dk_dv);
    free(p);
    free(whole);
    return r;
}

static void check(struct gpu_test *test, const struct sparse *c, const char *name,
                  const struct result *due, const struct result *got, bool same, double bound)
{
    const struct shape *s = c->shape;
    const struct tdm_selector *k = &s->selector;
    uint64_t gradients = s->slots * c->slot;
    const double errors[] = {
        difference(due->out, got->out, c->elements),
        difference(due->lse, got->lse, c->rows),
        difference(due->dq, got->dq, c->elements),
        difference(due->gradients, got->gradients, gradients),
    };
    bool passed = true;
    for (int i = 0; i < 4; i++)
        passed = passed && errors[i] <= bound;
    gpu_test_case(test, passed && same,
                  "%s, %s: heads %llu/%u x %u, %llu of %llu tokens, chunks of %llu, pages of %llu, "
                  "window %llu block %llu global %llu budget %llu random %llu dilation %llu, %u "
                  "documents, %s: out %.1e lse %.1e dq %.1e dkv %.1e, %s",
                  names[k->kind], name, (unsigned long long)c->heads, s->kv_heads, s->head_dim,
                  (unsigned long long)s->tokens, (unsigned long long)c->keys,
                  (unsigned long long)s->chunk_tokens, (unsigned long long)s->page_tokens,
                  (unsigned long long)k->window, (unsigned long long)k->block,
                  (unsigned long long)k->global, (unsigned long long)k->budget,
                  (unsigned long long)k->random, (unsigned long long)k->dilation, s->documents,
                  tdm_dtype_name(s->dtype), errors[0], errors[1], errors[2], errors[3],
                  same ? "repeats" : "does not repeat");
}

/* Runs a kind of kernel again. Does it give the same bits each time? */
static bool repeats(struct sparse *c, const struct tdm_attention_kind *kind,
                    const struct result *due)
{
    uint64_t gradients = c->shape->slots * c->slot;
    bool same = true;
    for (int i = 1; i <= c->repeats && same; i++) {
        disturb(c, i);
        struct result again = run_kind(c, kind);
        same = memcmp(due->out, again.out, c->elements * 4) == 0 &&
               memcmp(due->lse, again.lse, c->rows * 4) == 0 &&
               memcmp(due->dq, again.dq, c->elements * 4) == 0 &&
               memcmp(due->gradients, again.gradients, gradients * 4) == 0;
        free_result(&again);
    }
    disturb(c, 0);
    return same;
}

static void run_attention(struct gpu_test *test, struct sparse *c)
{
    const struct shape *s = c->shape;
    const struct tdm_attention_kind *kind = tdm_cuda_attention_kinds, *plain = kind;
    bool bf16 = s->dtype == TDM_DTYPE_BF16 || s->gradient_dtype == TDM_DTYPE_BF16;
    while (plain->suits != NULL)
        plain++;
    struct result due = run_kind(c, plain);
    if ((double)c->rows * (double)c->keys * s->head_dim <= MOST_ON_HOST) {
        struct result truth = run_host(c);
        check(test, c, plain->name, &truth, &due, repeats(c, plain, &due),
              bf16 ? BF16_BOUND : FP32_BOUND);
        free_result(&truth);
    }
    for (; kind != plain; kind++) {
        if (!kind->suits(&c->a))
            continue;
        struct result got = run_kind(c, kind);
        check(test, c, kind->name, &due, &got, repeats(c, kind, &got), BF16_BOUND);
        free_result(&got);
    }
    free_result(&due);
}

/* `least`: the least number of repeats. */
static void run_shape(struct gpu_test *test, const struct shape *s, int least)
{
    struct tdm_error err = {0};
    const char *asked = getenv("TDM_REPEATS");
    struct sparse c = {.shape = s, .noise = new_noise()};
    c.repeats = asked == NULL || atoi(asked) < least ? least : atoi(asked);
    c.rule = (struct tdm_page_rule){s->selector, s->chunk_tokens, s->page_tokens, 3};
    c.slot_pages = tdm_pages_of_chunk(&c.rule);
    c.heads = (uint64_t)s->kv_heads * s->ratio;
    c.rows = s->tokens * c.heads;
    c.elements = c.rows * s->head_dim;
    c.slot = c.slot_pages * 2 * s->page_tokens * s->kv_heads * s->head_dim;
    c.mean_slot = c.slot_pages * s->kv_heads * s->head_dim + (s->loose ? 64 : 0);
    c.key_token = 3 * s->chunk_tokens;
    c.keys = (s->slots - 1) * s->chunk_tokens + s->tokens;
    c.first_token = c.key_token + (s->slots - 1) * s->chunk_tokens;
    c.first_page = tdm_page_of(&c.rule, c.key_token);
    c.query_pages = (s->tokens + s->page_tokens - 1) / s->page_tokens;
    c.start_count = s->documents + 1;
    for (uint32_t i = 1; i < c.start_count; i++) /* the first chunk begins a document */
        c.starts[i] = c.key_token + (i - 1) * (c.keys / s->documents);
    check_status(TDM_CUDA(cudaStreamCreate(&c.stream), &err), &err);

    uint64_t all = tdm_attend_key_pages(&(struct tdm_attend){
        .tokens = s->tokens,
        .first_token = c.first_token,
        .key_token = c.key_token,
        .keys = c.keys,
        .lists.rule = c.rule,
    });
    bool lists = tdm_selector_lists(s->selector.kind);
    c.lists = s->selector.kind == TDM_SELECT_TOP_K ? s->kv_heads : 1;
    c.capacity = (uint32_t)all;
    if (s->selector.kind == TDM_SELECT_TOP_K) {
        uint64_t most = s->selector.budget / s->page_tokens + c.slot_pages;
        c.capacity = (uint32_t)(most < all ? most : all);
    }
    uint64_t list_words = c.query_pages * c.lists * (1 + (uint64_t)c.capacity);
    c.q = random_values(test, c.elements, 2.0f);
    c.d_out = random_values(test, c.elements, 1.0f);
    c.kv = random_values(test, s->slots * c.slot, 1.0f);
    c.gradients = random_values(test, s->slots * c.slot, 0.1f);
    for (uint64_t i = 0; s->steep && i < c.elements; i++)
        c.q[i] += 8;
    for (uint64_t i = 0; s->steep && i < s->slots * c.slot; i++)
        c.kv[i] += 0.05f * (float)(i / (c.slot / c.slot_pages));
    c.pages = host(list_words * sizeof(*c.pages));
    uint64_t *starts = device(sizeof(c.starts));
    check_status(
        TDM_CUDA(cudaMemcpy(starts, c.starts, sizeof(c.starts), cudaMemcpyHostToDevice), &err),
        &err);
    c.a = (struct tdm_attend){
        .tokens = s->tokens,
        .first_token = c.first_token,
        .key_token = c.key_token,
        .keys = c.keys,
        .chunk_tokens = s->chunk_tokens,
        .page_tokens = s->page_tokens,
        .lists = {.rule = c.rule, .lists = c.lists, .capacity = c.capacity},
        .documents = {starts, c.start_count},
        .query_heads = (uint32_t)c.heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .q = upload(c.q, c.elements, s->dtype),
        .pages = upload(c.kv, s->slots * c.slot, s->dtype),
        .slot_elements = c.slot,
        .d_out = upload(c.d_out, c.elements, s->dtype),
        .written_slots = gpu_test_between(test, 0, s->slots - 1),
        .from = device(s->tokens * sizeof(uint32_t)),
        .start = device(s->tokens * sizeof(uint32_t)),
        .d = device(2 * tdm_attend_rows(s->tokens) * c.heads * sizeof(float)),
        .dq_sums = device(tdm_attend_rows(s->tokens) * c.heads * s->head_dim * sizeof(float)),
        .turns =
            device(tdm_attend_turns(s->tokens, c.keys, c.heads, s->kv_heads) * sizeof(uint32_t)),
    };
    if (lists) {
        uint64_t items = all * c.lists;
        c.a.lists.pages = device(list_words * sizeof(uint32_t));
        c.a.readers = device(items * tdm_attend_words(&c.a) * 2 * sizeof(uint32_t));
        c.a.order = device(
            tdm_attend_order(all, c.query_pages, c.lists, c.heads / s->kv_heads, c.capacity) *
            sizeof(uint32_t));
        c.s = (struct tdm_select){.tokens = s->tokens,
                                  .first_token = c.first_token,
                                  .documents = c.a.documents,
                                  .query_heads = (uint32_t)c.heads,
                                  .kv_heads = s->kv_heads,
                                  .head_dim = s->head_dim,
                                  .q = c.a.q,
                                  .first_page = c.first_page,
                                  .slot_elements = c.mean_slot,
                                  .lists = c.a.lists};
        double mean_error;
        bool right = run_select(&c, &mean_error);
        gpu_test_case(test, right && mean_error <= MEAN_BOUND,
                      "%s, lists of %llu pages%s, means %.1e", names[s->selector.kind],
                      (unsigned long long)c.query_pages, right ? "" : " are wrong", mean_error);
    }
    if (!s->steep)
        run_attention(test, &c);
    cudaFree(starts);
    cudaFree(c.a.q.data);
    cudaFree(c.a.pages.data);
    cudaFree(c.a.d_out.data);
    cudaFree(c.a.from);
    cudaFree(c.a.start);
    cudaFree(c.a.d);
    cudaFree(c.a.dq_sums);
    cudaFree(c.a.turns);
    cudaFree(c.a.lists.pages);
    cudaFree(c.a.readers);
    cudaFree(c.a.order);
    free(c.q);
    free(c.kv);
    free(c.d_out);
    free(c.gradients);
    free(c.means);
    free(c.pages);
    cudaStreamDestroy(c.stream);
    free_noise(&c.noise);
}

/* ---- shapes ---- */

static struct tdm_selector random_selector(struct gpu_test *test, enum tdm_selector_kind kind,
                                           uint64_t chunk_tokens, uint64_t page_tokens)
{
    struct tdm_selector s = {.kind = kind};
    switch (kind) {
    case TDM_SELECT_BIGBIRD:
        s.random = gpu_test_between(test, 1, 4);
        s.seed = gpu_test_random(test);
        /* fall through */
    case TDM_SELECT_LONGFORMER:
        s.global = gpu_test_between(test, kind == TDM_SELECT_BIGBIRD ? 0 : 1, 2 * page_tokens);
        /* fall through */
    case TDM_SELECT_WINDOW:
        s.window = gpu_test_between(test, 2, 2 * chunk_tokens);
        break;
    case TDM_SELECT_BLOCK:
        s.block = gpu_test_between(test, 2, 2 * chunk_tokens);
        break;
    case TDM_SELECT_DILATED:
        s.window = gpu_test_between(test, 1, 6) * page_tokens;
        s.dilation = gpu_test_between(test, 1, 4);
        break;
    case TDM_SELECT_TOP_K:
        s.budget = gpu_test_between(test, 1, 8) * page_tokens;
        break;
    default:
        break;
    }
    return s;
}

/* Any small shape or, if `fast`, one that the tensor cores serve. */
static struct shape random_shape(struct gpu_test *test, enum tdm_selector_kind kind, bool fast)
{
    static const uint32_t head_dims[] = {64, 96, 128, 128};
    static const uint32_t odd_dims[] = {8, 20, 64, 128};
    struct shape s = {.kv_heads = (uint32_t)gpu_test_between(test, 1, 3),
                      .ratio = (uint32_t)gpu_test_between(test, 1, 8),
                      .slots = gpu_test_between(test, 1, 5),
                      .documents = (uint32_t)gpu_test_between(test, 1, 6),
                      .dtype = TDM_DTYPE_BF16,
                      .gradient_dtype = TDM_DTYPE_FP32,
                      .loose = gpu_test_between(test, 0, 1)};
    uint32_t pick = (uint32_t)gpu_test_between(test, 0, 3);
    if (gpu_test_between(test, 0, 1))
        s.documents = 1;
    if (fast) {
        s.head_dim = head_dims[pick];
        s.page_tokens = gpu_test_between(test, 0, 3) == 0 ? 256 : 128;
        s.chunk_tokens = s.page_tokens * gpu_test_between(test, 1, 5);
        if (gpu_test_between(test, 0, 3) == 0)
            s.gradient_dtype = TDM_DTYPE_BF16;
    } else {
        s.head_dim = odd_dims[pick];
        s.page_tokens = gpu_test_between(test, 5, 40);
        s.chunk_tokens = gpu_test_between(test, s.page_tokens, 130);
        s.dtype = gpu_test_between(test, 0, 1) ? TDM_DTYPE_FP32 : TDM_DTYPE_BF16;
    }
    s.tokens = gpu_test_between(test, 1, 4) == 1
                   ? gpu_test_between(test, s.page_tokens, s.chunk_tokens)
                   : s.chunk_tokens;
    if ((s.slots - 1) * s.chunk_tokens + s.tokens < 2 * s.documents)
        s.documents = 1;
    s.selector = random_selector(test, kind, s.chunk_tokens, s.page_tokens);
    return s;
}

int main(int argc, char **argv)
{
    struct gpu_test test = gpu_test_begin();
    int cases = argc > 1 ? atoi(argv[1]) : 6;
    for (int i = 0; i < cases; i++)
        for (int kind = 0; kind < TDM_SELECTORS; kind++) {
            struct shape s = random_shape(&test, (enum tdm_selector_kind)kind, i % 2);
            run_shape(&test, &s, 1);
        }
    /* more query pages than a word has bits; a chunk of long lists */
    static const struct shape large[] = {
        {.selector = {.kind = TDM_SELECT_TOP_K, .budget = 1024},
         .head_dim = 128,
         .kv_heads = 2,
         .ratio = 4,
         .chunk_tokens = 4608,
         .page_tokens = 128,
         .slots = 3,
         .tokens = 4608,
         .documents = 1,
         .dtype = TDM_DTYPE_BF16,
         .gradient_dtype = TDM_DTYPE_FP32},
        {.selector = {.kind = TDM_SELECT_TOP_K, .budget = 256},
         .head_dim = 128,
         .kv_heads = 1,
         .ratio = 3,
         .chunk_tokens = 4096,
         .page_tokens = 128,
         .slots = 7,
         .tokens = 300,
         .documents = 2,
         .dtype = TDM_DTYPE_BF16,
         .gradient_dtype = TDM_DTYPE_FP32,
         .steep = true},
        {.selector = {.kind = TDM_SELECT_TOP_K, .budget = 2048},
         .head_dim = 128,
         .kv_heads = 2,
         .ratio = 7,
         .chunk_tokens = 2048,
         .page_tokens = 128,
         .slots = 9,
         .tokens = 2000,
         .documents = 3,
         .dtype = TDM_DTYPE_BF16,
         .gradient_dtype = TDM_DTYPE_FP32},
        {.selector = {.kind = TDM_SELECT_TOP_K, .budget = 512},
         .head_dim = 64,
         .kv_heads = 1,
         .ratio = 2,
         .chunk_tokens = 1024,
         .page_tokens = 128,
         .slots = 6,
         .tokens = 1000,
         .documents = 2,
         .dtype = TDM_DTYPE_BF16,
         .gradient_dtype = TDM_DTYPE_FP32},
        /* more rows for votes than shares of them, and sums in bf16 */
        {.selector = {.kind = TDM_SELECT_TOP_K, .budget = 1024},
         .head_dim = 128,
         .kv_heads = 4,
         .ratio = 7,
         .chunk_tokens = 2048,
         .page_tokens = 128,
         .slots = 18,
         .tokens = 2048,
         .documents = 1,
         .dtype = TDM_DTYPE_BF16,
         .gradient_dtype = TDM_DTYPE_BF16},
        {.selector =
             {.kind = TDM_SELECT_BIGBIRD, .window = 700, .global = 200, .random = 5, .seed = 1},
         .head_dim = 128,
         .kv_heads = 2,
         .ratio = 7,
         .chunk_tokens = 2048,
         .page_tokens = 128,
         .slots = 4,
         .tokens = 2048,
         .documents = 2,
         .dtype = TDM_DTYPE_BF16,
         .gradient_dtype = TDM_DTYPE_FP32},
    };
    for (size_t i = 0; argc < 2 && i < sizeof(large) / sizeof(large[0]); i++)
        run_shape(&test, &large[i], 3);
    return gpu_test_end(&test);
}
