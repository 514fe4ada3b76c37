/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scratch of a step: the most that any op of it needs.
 *
 * Products get what there is and ask for nothing: at the shapes of models from 0.5B to 7B, chunks of 1K
 * and 4K tokens, cuBLASLt chose the same algorithms, which need no workspace, whether it was
 * allowed 0, 32 or 64 MiB (H200, CUDA 13.0).
 */
#include "schedule/scratch.h"

#include "base/size.h"
#include "schedule/attend_scratch.h"
#include "schedule/gather.h"
#include "schedule/layout.h"

/* Every array in it begins on so many bytes. */
#define ARRAY_ALIGN 256u

/* Sums over rows are made in two steps, so that they repeat: of so many slices of the rows, then of the
 * slices; gradients of norms, of QK-norms by head, of biases. */
#define NORM_SLICES 264u
#define HEAD_SLICES 528u
#define BIAS_SLICES 64u

/* Sums of squares: so many a tensor. */
#define SQUARES 1024u

/* Arrays of one op. */
static uint64_t arrays(uint64_t one, uint64_t other)
{
    return tdm_size_add(tdm_size_align(one, ARRAY_ALIGN), tdm_size_align(other, ARRAY_ALIGN));
}

/* Of attention over lists of pages, beside what it needs without: where a row's document begins, and in the
 * backward the inverse lists, two bits for each query page, and the order in which key pages are worked on. */
static uint64_t lists_bytes(const struct tdm_schedule *schedule, uint64_t tokens, uint64_t pages)
{
    const struct tdm_model *model = schedule->model;
    uint64_t lists = tdm_page_lists(schedule), items = tdm_size_mul(pages, lists);
    uint64_t words = tdm_size_ceil_div(tokens, tdm_size_mul(32, schedule->page_tokens));
    if (tdm_schedule_lists(schedule) == TDM_SELECT_DENSE)
        return 0;
    uint64_t order = tdm_attend_order(pages, tdm_size_ceil_div(tokens, schedule->page_tokens),
                                      lists, model->query_heads / model->kv_heads);
    return tdm_size_add(arrays(tdm_size_mul(items, tdm_size_mul(words, 2 * sizeof(uint32_t))),
                               tdm_size_mul(order, sizeof(uint32_t))),
                        arrays(tdm_size_mul(tokens, sizeof(uint32_t)), 0));
}

uint64_t tdm_scratch_dq_bytes(const struct tdm_schedule *schedule, uint64_t tokens)
{
    const struct tdm_model *model = schedule->model;
    if (schedule->pass != TDM_TRAIN || schedule->dtypes.activations != TDM_DTYPE_BF16 ||
        schedule->dtypes.kv != TDM_DTYPE_BF16 ||
        (model->head_dim != 64 && model->head_dim != 128) ||
        schedule->page_tokens % TDM_ATTEND_KEYS != 0)
        return 0;
    return tdm_size_mul(tdm_attend_rows(tokens),
                        tdm_size_mul(model->query_heads, 4 * (uint64_t)model->head_dim));
}

uint64_t tdm_scratch_turn_bytes(const struct tdm_schedule *schedule, uint64_t tokens,
                                uint64_t key_pages)
{
    const struct tdm_model *model = schedule->model;
    if (tdm_scratch_dq_bytes(schedule, tokens) == 0)
        return 0;
    return tdm_size_mul(tdm_attend_turns(tokens, tdm_size_mul(key_pages, schedule->page_tokens),
                                         model->query_heads, model->kv_heads),
                        sizeof(uint32_t));
}

/* Where pages are gathered from the host: room for them and their gradients, the lists of a batch, which page lies
 * where for each list, what tokens see first of each, and where batches end. */
static uint64_t gather_bytes(const struct tdm_schedule *schedule, uint64_t tokens)
{
    if (!tdm_gathers_at_all(schedule))
        return 0;
    uint64_t lists = tdm_page_lists(schedule), batches = tdm_gather_batches(schedule, tokens);
    bool trains = schedule->pass == TDM_TRAIN;
    uint64_t sight = tdm_size_mul(tdm_size_mul(tokens, lists), sizeof(uint32_t));
    return tdm_size_add(
        tdm_size_add(arrays(tdm_gather_room_bytes(schedule, TDM_KVPAGES),
                            trains ? tdm_gather_room_bytes(schedule, TDM_DKVPAGES) : 0),
                     arrays(tdm_content_bytes(schedule, TDM_PAGE_LISTS, 0, tokens),
                            tdm_size_mul(tdm_gather_pages(schedule), lists * sizeof(uint32_t)))),
        tdm_size_add(arrays(sight, sight),
                     arrays((batches + 1) * sizeof(uint32_t), 3 * lists * sizeof(uint32_t))));
}

/* Of a selection by vote: the LSE of each row, in two parts, and the votes of each query page for each page. */
static uint64_t votes_bytes(const struct tdm_schedule *schedule, uint64_t tokens)
{
    const struct tdm_model *model = schedule->model;
    uint64_t items = tdm_size_mul(tdm_size_ceil_div(tokens, schedule->page_tokens),
                                  tdm_size_mul(tdm_longest_pages(schedule), model->kv_heads));
    if (tdm_schedule_lists(schedule) != TDM_SELECT_TOP_K)
        return 0;
    return arrays(tdm_size_mul(tokens, 2 * sizeof(float) * (uint64_t)model->query_heads),
                  tdm_size_mul(items, sizeof(float)));
}

/* `gathers`: with what it takes to gather pages. */
static uint64_t most_bytes(const struct tdm_schedule *schedule, uint64_t tokens, bool gathers)
{
    uint64_t pages = gathers ? tdm_gather_key_pages(schedule) : tdm_longest_pages(schedule);
    const struct tdm_model *model = schedule->model;
    uint64_t columns =
        ((uint64_t)model->query_heads + 2 * (uint64_t)model->kv_heads) * (uint64_t)model->head_dim;
    uint64_t tensors = 0;
    for (uint32_t unit = 0; unit < model->unit_count; unit++)
        if (model->units[unit].tensor_count > tensors)
            tensors = model->units[unit].tensor_count;
    const uint64_t needs[] = {
        /* attention: from where a row sees, and in the backward two numbers for each head, and the sums of dQ */
        tdm_size_add(
            tdm_size_add(arrays(tdm_size_mul(tokens, sizeof(uint64_t)),
                                tdm_size_mul(tdm_attend_rows(tokens),
                                             2 * sizeof(float) * (uint64_t)model->query_heads)),
                         arrays(tdm_scratch_dq_bytes(schedule, tokens),
                                tdm_scratch_turn_bytes(schedule, tokens, pages))),
            tdm_size_add(lists_bytes(schedule, tokens, pages),
                         gathers ? gather_bytes(schedule, tokens) : 0)),
        votes_bytes(schedule, tokens),
        /* LM head: the loss of each row */
        arrays(tdm_size_mul(tokens, sizeof(double)), 0),
        arrays(tdm_size_mul(model->hidden, NORM_SLICES * sizeof(float)), 0),
        arrays(tdm_size_mul(model->head_dim, HEAD_SLICES * sizeof(float)), 0),
        arrays(tdm_size_mul(columns, BIAS_SLICES * sizeof(float)), 0),
        arrays(tdm_size_mul(tensors, SQUARES * sizeof(double)), 0),
    };
    uint64_t most = 0;
    for (size_t i = 0; i < sizeof(needs) / sizeof(needs[0]); i++)
        most = needs[i] > most ? needs[i] : most;
    return most;
}

uint64_t tdm_scratch_bytes(const struct tdm_schedule *schedule, uint64_t tokens)
{
    return most_bytes(schedule, tokens, true);
}

uint64_t tdm_scratch_product_bytes(const struct tdm_schedule *schedule, uint64_t tokens)
{
    return most_bytes(schedule, tokens, false);
}
