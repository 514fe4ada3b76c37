/* SPDX-License-Identifier: Apache-2.0 */
/* What an op costs: FLOPs and bytes, and the seconds that they take by the rates of a machine. */
#include "schedule/cost.h"

#include "base/size.h"
#include "ops/attention.h"
#include "ops/move.h"
#include "ops/team.h"
#include "ops/update.h"
#include "schedule/attend.h"
#include "schedule/gather.h"
#include "schedule/layout.h"
#include "schedule/ranks.h"
#include "schedule/slices.h"

static uint64_t access_bytes(const struct tdm_access *access)
{
    if (access->buffer == TDM_NONE)
        return 0;
    return access->mode == TDM_ACCUMULATE ? 2 * access->bytes : access->bytes;
}

/* (query, key) pairs of an op: in a ring of attention, with the keys of one chunk. An op may be
 * malformed, for the validator to refuse. */
static uint64_t pairs_of(const struct tdm_program *program, const struct tdm_op *op)
{
    const uint32_t key = op->access[TDM_ATTENTION_KV].before.chunk;
    if (!tdm_ranks_ring(program))
        return tdm_attend_pairs(program, op->layer, op->chunk);
    return key <= op->chunk ? tdm_attend_pairs_with(program, op->layer, op->chunk, key) : 0;
}

/* Keys that an attention op sees. */
static uint64_t keys_of(const struct tdm_program *program, const struct tdm_op *op)
{
    const struct tdm_chunk *chunk = &program->chunks[op->chunk];
    uint32_t first = tdm_attend_first(program, op->layer, op->chunk);
    /* of one chunk: the keys of a range up to the queries that has the same number of pairs */
    if (tdm_ranks_ring(program))
        return op->tokens == 0 ? 0 : op->pairs / op->tokens + op->tokens / 2 + 1;
    /* plus one: a first chunk has tokens * (tokens + 1) / 2 pairs, and neither a rate that grows
     * with keys nor a share that grows with tokens may grow faster than the pairs */
    uint64_t keys = chunk->first_token + chunk->tokens - program->chunks[first].first_token + 1;
    struct tdm_page_rule rule = tdm_page_rule_of(&program->params.pages, op->layer);
    /* with lists: the keys of a range that has the same number of pairs */
    if (tdm_selector_lists(rule.selector.kind) && op->tokens > 0 &&
        keys > op->pairs / op->tokens + op->tokens / 2 + 1)
        keys = op->pairs / op->tokens + op->tokens / 2 + 1;
    return keys;
}

static uint64_t operand_bytes(const struct tdm_op *op, uint32_t operand)
{
    const struct tdm_access *access = &op->access[operand];
    return access->buffer == TDM_NONE ? 0 : access->bytes;
}

static void scatter_cost(const struct tdm_program *program, struct tdm_op *op)
{
    const struct tdm_access *sum = &op->access[TDM_REDUCE_SCATTER_SUM];
    const uint64_t size = tdm_dtype_bytes(program->schedule->dtypes.gradients);
    const uint32_t unit = sum->after.layer;
    const enum tdm_part part =
        sum->after.content == TDM_UNIT_GRADIENT ? op->part : TDM_PART_EMBEDDING;
    uint64_t all = tdm_tensors_range(program->schedule->model, unit, part).elements;
    uint64_t own = tdm_rank_range(program->schedule, unit, part, program->rank).elements;
    op->fetched_bytes = tdm_size_mul(tdm_size_mul(own, size), program->ranks - 1);
    op->sent_bytes = tdm_size_mul(all - own, size);
}

/* Bytes of the heads of one rank of the chunk in an access. */
static uint64_t chunk_part(const struct tdm_program *program, const struct tdm_access *chunk,
                           const struct tdm_access *heads)
{
    const uint32_t number = chunk->after.chunk;
    return tdm_chunks_bytes(program, heads->after.content, number, number + 1);
}

/* The bytes that a team op receives from other ranks and sends to them. */
static void team_cost(const struct tdm_program *program, struct tdm_op *op)
{
    const uint64_t size = tdm_dtype_bytes(program->schedule->dtypes.weights);
    const uint32_t parts = tdm_schedule_head_parts(program->schedule);
    const uint32_t sets = program->ranks / parts;
    uint64_t own, part;
    switch (op->kind) {
    case TDM_OP_GATHER:
        own = operand_bytes(op, TDM_GATHER_OWN) + operand_bytes(op, TDM_GATHER_OWN_MEANS);
        op->fetched_bytes =
            operand_bytes(op, TDM_GATHER_BELOW) + operand_bytes(op, TDM_GATHER_ABOVE) +
            operand_bytes(op, TDM_GATHER_BELOW_MEANS) + operand_bytes(op, TDM_GATHER_ABOVE_MEANS);
        op->sent_bytes = tdm_size_mul(own, sets - 1);
        break;
    case TDM_OP_REDUCE:
        own = operand_bytes(op, TDM_REDUCE_OWN);
        for (uint32_t i = 0; own > 0 && i < op->access[TDM_REDUCE_OWN].slots; i++) {
            const uint32_t chunk = op->access[TDM_REDUCE_OWN].after.chunk + i;
            if (chunk >= program->chunk_count) /* of a program that the validator refuses */
                break;
            op->fetched_bytes =
                tdm_size_add(op->fetched_bytes,
                             tdm_size_mul(tdm_chunks_bytes(program, TDM_DKVPAGES, chunk, chunk + 1),
                                          tdm_shares(program, op->layer, chunk) - 1));
        }
        op->sent_bytes = operand_bytes(op, TDM_REDUCE_BELOW) + operand_bytes(op, TDM_REDUCE_ABOVE);
        break;
    case TDM_OP_REDUCE_ALL: /* shares of the other ranks' slices, then sums of one's own */
        own = operand_bytes(op, TDM_REDUCE_ALL_SUM);
        op->fetched_bytes = op->sent_bytes = 2 * (own - own / program->ranks);
        break;
    case TDM_OP_REDUCE_SCATTER: /* shares of one's own part, of those of the others */
        scatter_cost(program, op);
        break;
    case TDM_OP_GATHER_ALL:
        part = tdm_rank_part(program->schedule, op->layer, program->rank).elements;
        own = program->schedule->model->units[op->layer].elements - part;
        op->fetched_bytes = tdm_size_mul(own, size);
        op->sent_bytes = tdm_size_mul(tdm_size_mul(part, size), program->ranks - 1);
        break;
    case TDM_OP_ALL_TO_ALL: /* `own` bytes are the rank's heads of its own chunk, which stay */
        own = operand_bytes(op, TDM_ALL_TO_ALL_CHUNK) == 0
                  ? 0
                  : chunk_part(program, &op->access[TDM_ALL_TO_ALL_CHUNK],
                               &op->access[TDM_ALL_TO_ALL_HEADS]);
        op->in_node = program->schedule->ranks_per_node % parts == 0;
        op->fetched_bytes = operand_bytes(op, TDM_ALL_TO_ALL_HEADS) - own;
        op->sent_bytes = tdm_size_mul(own, parts - 1);
        if (op->access[TDM_ALL_TO_ALL_HEADS].mode == TDM_READ) { /* the other way */
            own = op->sent_bytes;
            op->sent_bytes = op->fetched_bytes;
            op->fetched_bytes = own;
        }
        break;
    case TDM_OP_HOP:
        op->sent_bytes = operand_bytes(op, TDM_HOP_SENT);
        op->fetched_bytes = operand_bytes(op, TDM_HOP_RECEIVED);
        break;
    case TDM_OP_HOP_SUM:
        op->sent_bytes = operand_bytes(op, TDM_HOP_SUM_SENT);
        op->fetched_bytes = operand_bytes(op, TDM_HOP_SUM_RECEIVED);
        break;
    default:
        break;
    }
}

/* Does an op multiply fp32 values? Kernels for tensor cores take bf16 only. */
static bool is_fp32(const struct tdm_program *program, const struct tdm_op *op)
{
    const struct tdm_dtypes *dtypes = &program->schedule->dtypes;
    const bool activations = dtypes->activations == TDM_DTYPE_FP32;
    switch (tdm_op_type(op->kind)->rate) {
    case TDM_RATE_PRODUCT:
    case TDM_RATE_PRODUCT_GRAD_INPUT:
        return activations || dtypes->weights == TDM_DTYPE_FP32;
    case TDM_RATE_PRODUCT_GRAD_WEIGHT:
        return activations;
    case TDM_RATE_HEAD:
        return activations || dtypes->weights == TDM_DTYPE_FP32 || dtypes->logits == TDM_DTYPE_FP32;
    case TDM_RATE_ATTENTION_FORWARD:
    case TDM_RATE_ATTENTION_BACKWARD:
        return activations || dtypes->kv == TDM_DTYPE_FP32;
    default:
        return false;
    }
}

void tdm_op_cost(const struct tdm_program *program, struct tdm_op *op)
{
    const struct tdm_op_type *type = tdm_op_type(op->kind);
    struct tdm_work work = {.tokens = op->tokens, .entries = op->entries, .part = op->part};

    op->bytes = 0;
    op->keys = 0;
    op->pairs = 0;
    op->head_dim = op->kv_heads = 0;
    op->in_node = op->gathers = op->by_lists = op->visits = false;
    op->fetched_bytes = op->sent_bytes = 0;
    op->fp32 = is_fp32(program, op);
    for (uint32_t i = 0; i < op->access_count; i++)
        op->bytes += access_bytes(&op->access[i]);
    if (type->sight != TDM_SIGHT_NONE) {
        work.pairs = op->pairs = pairs_of(program, op);
        op->head_dim = program->params.pages.head_dim;
    }
    if (type->sight == TDM_SIGHT_KEYS) {
        op->keys = keys_of(program, op);
        op->kv_heads = program->params.pages.kv_heads;
        op->by_lists =
            tdm_page_rule_of(&program->params.pages, op->layer).selector.kind == TDM_SELECT_TOP_K;
        op->visits =
            tdm_ranks_ring(program) && op->access[TDM_ATTENTION_KV].before.chunk != op->chunk;
        tdm_gather_cost(program, op);
    }
    if (type->sight == TDM_SIGHT_PAGES)
        work.scores = tdm_attend_scores(program, op->layer, op->chunk);
    if ((TDM_TEAM_KINDS & TDM_KIND(op->kind)) != 0)
        team_cost(program, op);
    op->flops = type->flops(&program->params, &work);
}

double tdm_model_flops(const struct tdm_schedule *schedule)
{
    const struct tdm_model *model = schedule->model;
    double attention = 4.0 * model->query_heads * model->head_dim * tdm_attend_step_pairs(schedule);
    double forward = 2.0 * (double)tdm_model_active_matmul_parameters(model) *
                         (double)tdm_schedule_tokens(schedule) +
                     attention;
    return schedule->pass == TDM_EVALUATE ? forward : 3.0 * forward;
}

/* The rate of fp32 values beside that of bf16. */
static enum tdm_rate fp32_rate(enum tdm_rate rate)
{
    switch (rate) {
    case TDM_RATE_PRODUCT:
        return TDM_RATE_FP32_PRODUCT;
    case TDM_RATE_PRODUCT_GRAD_INPUT:
        return TDM_RATE_FP32_PRODUCT_GRAD_INPUT;
    case TDM_RATE_PRODUCT_GRAD_WEIGHT:
        return TDM_RATE_FP32_PRODUCT_GRAD_WEIGHT;
    case TDM_RATE_HEAD:
        return TDM_RATE_FP32_HEAD;
    case TDM_RATE_ATTENTION_FORWARD:
        return TDM_RATE_FP32_ATTENTION_FORWARD;
    case TDM_RATE_ATTENTION_BACKWARD:
        return TDM_RATE_FP32_ATTENTION_BACKWARD;
    default:
        return rate;
    }
}

/* The rate of an op, as if its values were bf16. */
static enum tdm_rate bf16_rate(const struct tdm_op *op)
{
    bool narrow = op->head_dim <= TDM_NARROW_HEAD_DIM;
    if (op->kind == TDM_OP_OPTIMIZER) { /* rounded: it has moments but no master */
        bool rounded = op->access_count > TDM_OPTIMIZER_MOMENT1 &&
                       op->access[TDM_OPTIMIZER_MASTER].buffer == TDM_NONE &&
                       op->access[TDM_OPTIMIZER_MOMENT1].buffer != TDM_NONE;
        if (op->lane != TDM_LANE_COMPUTE)
            return rounded ? TDM_RATE_HOST_OPTIMIZER_ROUNDED : TDM_RATE_HOST_OPTIMIZER;
        return rounded ? TDM_RATE_OPTIMIZER_ROUNDED : TDM_RATE_OPTIMIZER;
    }
    if (op->kind == TDM_OP_ATTENTION && narrow)
        return TDM_RATE_NARROW_ATTENTION_FORWARD;
    if (op->kind == TDM_OP_ATTENTION_GRAD && narrow)
        return TDM_RATE_NARROW_ATTENTION_BACKWARD;
    return tdm_op_type(op->kind)->rate;
}

enum tdm_rate tdm_op_rate(const struct tdm_op *op)
{
    return op->fp32 ? fp32_rate(tdm_op_type(op->kind)->rate) : bf16_rate(op);
}

/* The refined rate of a part. `of_q`: that of TDM_PART_Q, for a kind of product. */
static enum tdm_rate part_rate(enum tdm_rate kind, enum tdm_rate of_q, enum tdm_part part)
{
    switch (part) {
    case TDM_PART_Q:
        return of_q;
    case TDM_PART_KV:
        return of_q + 1;
    case TDM_PART_O:
        return of_q + 2;
    case TDM_PART_GATE_UP:
        return of_q + 3;
    case TDM_PART_DOWN:
        return of_q + 4;
    default:
        return kind;
    }
}

/* The refined rate of an op, as if its values were bf16. */
static enum tdm_rate refined_bf16_rate(const struct tdm_op *op)
{
    enum tdm_rate rate = bf16_rate(op);
    int later = op->keys > op->tokens + 1; /* tdm_op_cost() adds one */
    switch (rate) {
    case TDM_RATE_PRODUCT:
        return part_rate(rate, TDM_RATE_PRODUCT_Q, op->part);
    case TDM_RATE_PRODUCT_GRAD_INPUT:
        return part_rate(rate, TDM_RATE_PRODUCT_GRAD_INPUT_Q, op->part);
    case TDM_RATE_PRODUCT_GRAD_WEIGHT:
        return part_rate(rate, TDM_RATE_PRODUCT_GRAD_WEIGHT_Q, op->part);
    case TDM_RATE_HEAD:
        return TDM_RATE_HEAD_TILE;
    case TDM_RATE_ATTENTION_FORWARD:
        return TDM_RATE_ATTENTION_FORWARD_FIRST + later;
    case TDM_RATE_ATTENTION_BACKWARD:
        return TDM_RATE_ATTENTION_BACKWARD_FIRST + later;
    case TDM_RATE_NARROW_ATTENTION_FORWARD:
        return TDM_RATE_NARROW_ATTENTION_FORWARD_FIRST + later;
    case TDM_RATE_NARROW_ATTENTION_BACKWARD:
        return TDM_RATE_NARROW_ATTENTION_BACKWARD_FIRST + later;
    default:
        return rate;
    }
}

enum tdm_rate tdm_op_refined_rate(const struct tdm_op *op)
{
    return op->fp32 ? tdm_op_rate(op) : refined_bf16_rate(op);
}

enum tdm_rate tdm_rate_share(enum tdm_rate rate)
{
    switch (rate) {
    case TDM_RATE_ATTENTION_FORWARD:
        return TDM_RATE_ATTENTION_FORWARD_SHARE;
    case TDM_RATE_ATTENTION_BACKWARD:
        return TDM_RATE_ATTENTION_BACKWARD_SHARE;
    case TDM_RATE_NARROW_ATTENTION_FORWARD:
        return TDM_RATE_NARROW_ATTENTION_FORWARD_SHARE;
    case TDM_RATE_NARROW_ATTENTION_BACKWARD:
        return TDM_RATE_NARROW_ATTENTION_BACKWARD_SHARE;
    case TDM_RATE_PRODUCT_GRAD_WEIGHT:
        return TDM_RATE_PRODUCT_GRAD_WEIGHT_SHARE;
    case TDM_RATE_NORM_GRAD:
        return TDM_RATE_NORM_GRAD_SHARE;
    case TDM_RATE_HEAD_TILE:
        return TDM_RATE_HEAD_TILE_SHARE;
    case TDM_RATE_ATTENTION_FORWARD_LATER:
        return TDM_RATE_ATTENTION_FORWARD_LATER_SHARE;
    case TDM_RATE_ATTENTION_BACKWARD_LATER:
        return TDM_RATE_ATTENTION_BACKWARD_LATER_SHARE;
    case TDM_RATE_NARROW_ATTENTION_FORWARD_LATER:
        return TDM_RATE_NARROW_ATTENTION_FORWARD_LATER_SHARE;
    case TDM_RATE_NARROW_ATTENTION_BACKWARD_LATER:
        return TDM_RATE_NARROW_ATTENTION_BACKWARD_LATER_SHARE;
    default:
        if (rate >= TDM_RATE_PRODUCT_Q && rate <= TDM_RATE_PRODUCT_GRAD_WEIGHT_DOWN)
            return TDM_RATE_PRODUCT_Q_SHARE + (rate - TDM_RATE_PRODUCT_Q);
        return TDM_RATES;
    }
}

double tdm_op_work(const struct tdm_op *op)
{
    return (double)(op->flops > 0 ? op->flops : op->bytes);
}

double tdm_op_size(const struct tdm_op *op, enum tdm_rate rate)
{
    double work = tdm_op_work(op);
    if (op->keys > 0)
        return (double)op->keys;
    /* with a share by tokens, time must not decrease with tokens or with work per token */
    return tdm_rate_share(rate) == TDM_RATES ? work : work / (double)op->tokens;
}

/* Seconds for the bytes that gathering attention fetches over its link and sends back. */
static double gather_seconds(const struct tdm_topology *topology, const struct tdm_op *op)
{
    double seconds = 0;
    if (op->fetched_bytes > 0)
        seconds += (double)op->fetched_bytes / tdm_link_rate(topology, op->link, 0);
    if (op->sent_bytes > 0)
        seconds += (double)op->sent_bytes /
                   tdm_link_rate(topology, tdm_link_opposite(topology, op->link), 0);
    return seconds;
}

uint64_t tdm_op_link_bytes(const struct tdm_op *op)
{
    if (op->link == TDM_NO_LINK)
        return 0;
    if (op->kind == TDM_OP_COPY)
        return op->access[TDM_COPY_FROM].bytes;
    if ((TDM_TEAM_KINDS & TDM_KIND(op->kind)) == 0)
        return 0;
    /* a rank sends and receives at once */
    return op->fetched_bytes > op->sent_bytes ? op->fetched_bytes : op->sent_bytes;
}

static double link_seconds(const struct tdm_machine *machine, const struct tdm_op *op)
{
    const double rate = op->in_node && machine->node_rate > 0
                            ? machine->node_rate
                            : tdm_link_rate(&machine->topology, op->link, 0);
    return (double)tdm_op_link_bytes(op) / rate;
}

/* Seconds of a team op once all ranks are ready. An all-to-all also puts the heads of each rank in
 * their places, which the others do on the way. */
static double team_seconds(const struct tdm_machine *machine, const struct tdm_op *op)
{
    double seconds = machine->peer_seconds + link_seconds(machine, op);
    if (op->kind == TDM_OP_ALL_TO_ALL)
        seconds += (double)op->bytes / machine->rate[TDM_RATE_ELEMENTWISE];
    return seconds;
}

/* The share of the rate of dense attention that an attention of a special kind reaches; TDM_RATES:
 * all of it. */
static enum tdm_rate attention_share(const struct tdm_op *op)
{
    const bool forward = op->kind == TDM_OP_ATTENTION;
    if (op->by_lists)
        return forward ? TDM_RATE_ATTENTION_FORWARD_LISTS_SHARE
                       : TDM_RATE_ATTENTION_BACKWARD_LISTS_SHARE;
    if (op->visits && op->head_dim <= TDM_NARROW_HEAD_DIM)
        return forward ? TDM_RATE_NARROW_ATTENTION_FORWARD_VISITS_SHARE
                       : TDM_RATE_NARROW_ATTENTION_BACKWARD_VISITS_SHARE;
    if (op->visits)
        return forward ? TDM_RATE_ATTENTION_FORWARD_VISITS_SHARE
                       : TDM_RATE_ATTENTION_BACKWARD_VISITS_SHARE;
    return TDM_RATES;
}

/* The rate that a machine describes for an op. Where it has none of fp32, those of bf16 hold. */
static enum tdm_rate described_rate(const struct tdm_machine *machine, const struct tdm_op *op)
{
    enum tdm_rate rate = tdm_op_rate(op);
    if (op->fp32 && tdm_rate_is_fp32(machine->table[rate].of))
        return rate;
    rate = refined_bf16_rate(op);
    return machine->table[rate].of == rate ? rate : bf16_rate(op);
}

/* FLOP/s or bytes/s of an op of the compute lane; `keys`: of attention, those that it sees. */
static double rate_of(const struct tdm_machine *machine, const struct tdm_op *op, double keys)
{
    const enum tdm_rate kind = described_rate(machine, op);
    enum tdm_rate share = tdm_rate_share(kind);
    const struct tdm_rate_table *table = &machine->table[kind];
    double rate = tdm_rate_at(table, op->keys > 0 ? keys : tdm_op_size(op, table->of));
    if (share != TDM_RATES)
        rate *= tdm_rate_at(&machine->table[share], (double)op->tokens);
    share = attention_share(op);
    if (share != TDM_RATES && !tdm_rate_is_fp32(kind)) /* kernels for fp32 are one for all kinds */
        rate *= tdm_rate_at(&machine->table[share], (double)op->tokens);
    return rate;
}

/* ---- few blocks ----
 *
 * A thread block of the backward of dense attention adds up dK and dV of BLOCK_KEYS keys of a KV
 * head, over all queries of the chunk (executor/cuda/attention_grad_hopper.cu). With fewer blocks
 * than multiprocessors the op takes as long as one block. Rates were measured with more KV heads,
 * which take as long then: the rate is of more work than this op has. */

#define BLOCK_KEYS 128.0

/* KV heads of the models whose steps give rates (executor/calibrate.c). */
#define MEASURED_KV_HEADS 4u
#define MEASURED_NARROW_KV_HEADS 2u

/* The least seconds of an op whose KV heads are fewer than those measured; 0 for other ops. The
 * keys of the chunk itself are divided further, so a first chunk has blocks enough. */
static double block_seconds(const struct tdm_machine *machine, const struct tdm_op *op)
{
    const uint32_t measured =
        op->head_dim <= TDM_NARROW_HEAD_DIM ? MEASURED_NARROW_KV_HEADS : MEASURED_KV_HEADS;
    const uint64_t before = op->keys > op->tokens ? op->keys - 1 - op->tokens : 0;
    if (machine->multiprocessors == 0 || op->kind != TDM_OP_ATTENTION_GRAD || before == 0 ||
        op->kv_heads >= measured || op->fp32 || op->visits || op->by_lists)
        return 0;
    if (op->pairs != op->tokens * before + op->tokens * (op->tokens + 1) / 2)
        return 0; /* a window, or documents */
    /* keys that a query sees, and with how many those measured have a block for each
     * multiprocessor */
    const double mean = (double)op->pairs / (double)op->tokens;
    const double full = (double)machine->multiprocessors * BLOCK_KEYS / measured;
    const double least = mean < full ? mean : full;
    return tdm_op_work(op) * measured / op->kv_heads * least / mean /
           rate_of(machine, op, (double)op->keys - (mean - least));
}

bool tdm_op_has_few_blocks(const struct tdm_machine *machine, const struct tdm_op *op)
{
    const double least = block_seconds(machine, op);
    return least > 0 && least * rate_of(machine, op, (double)op->keys) > tdm_op_work(op);
}

bool tdm_op_shares_host_memory(const struct tdm_machine *machine, const struct tdm_op *op)
{
    return op->kind == TDM_OP_OPTIMIZER && tdm_op_rate(op) == TDM_RATE_HOST_OPTIMIZER &&
           (machine->host_bytes_per_copied_byte > 0 || machine->h2d_beside_updates > 0 ||
            machine->d2h_beside_updates > 0);
}

double tdm_op_seconds_per_copied_byte(const struct tdm_machine *machine, const struct tdm_op *op)
{
    return tdm_op_shares_host_memory(machine, op)
               ? machine->host_bytes_per_copied_byte / machine->rate[TDM_RATE_HOST_OPTIMIZER]
               : 0;
}

double tdm_op_seconds(const struct tdm_machine *machine, const struct tdm_op *op)
{
    if (op->kind == TDM_OP_COPY && op->link != TDM_NO_LINK)
        return machine->copy_seconds + link_seconds(machine, op);
    if ((TDM_TEAM_KINDS & TDM_KIND(op->kind)) != 0)
        return team_seconds(machine, op);
    double seconds = tdm_op_work(op) / rate_of(machine, op, (double)op->keys);
    const double least = block_seconds(machine, op);
    if (least > seconds)
        seconds = least;
    /* products and attention: operands pass through memory at least once */
    double memory = (double)op->bytes / machine->rate[TDM_RATE_ELEMENTWISE];
    if (op->flops > 0 && memory > seconds)
        seconds = memory;
    return (seconds > machine->launch_seconds ? seconds : machine->launch_seconds) +
           gather_seconds(&machine->topology, op);
}
