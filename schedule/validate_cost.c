/* SPDX-License-Identifier: Apache-2.0 */
/* Costs of ops, counted a second time for the validator. */
#include "schedule/validate_cost.h"

#include "base/size.h"
#include "ops/attention.h"
#include "ops/select.h"
#include "ops/team.h"
#include "schedule/layout.h"
#include "schedule/slices.h"

#include <math.h>
#include <stdlib.h>

/* What the tokens of a layer see. */
struct sight {
    uint64_t window, block; /* in tokens; 0: no such limit */
    bool lists;             /* some of the earlier pages, not known here which */
    uint64_t *pairs;        /* [chunks] 0: not counted yet */
};

struct tdm_cost_check {
    const struct tdm_program *program;
    uint32_t *sight_of;  /* [layers] */
    struct sight *sight; /* [layers], `sights` of them used */
    uint32_t sights;
};

static struct sight sight_of(const struct tdm_schedule *schedule, uint32_t layer)
{
    const struct tdm_selector *selector = &schedule->selector;
    uint64_t window = schedule->model->layer_kinds[layer].window;
    if (window > 0) /* the model's window overrides the selector */
        return (struct sight){.window = window};
    switch (selector->kind) {
    case TDM_SELECT_DENSE:
        return (struct sight){0};
    case TDM_SELECT_WINDOW:
        return (struct sight){.window = selector->window};
    case TDM_SELECT_BLOCK:
        return (struct sight){.block = selector->block};
    default:
        return (struct sight){.lists = true};
    }
}

struct tdm_cost_check *tdm_cost_check_new(const struct tdm_program *program)
{
    uint32_t layers = program->schedule->model->layers;
    struct tdm_cost_check *check = calloc(1, sizeof(*check));
    if (check == NULL)
        return NULL;
    check->program = program;
    check->sight_of = calloc((size_t)layers + 1, sizeof(*check->sight_of));
    check->sight = calloc((size_t)layers + 1, sizeof(*check->sight));
    bool complete = check->sight_of != NULL && check->sight != NULL;
    for (uint32_t layer = 0; layer < layers && complete; layer++) {
        struct sight seen = sight_of(program->schedule, layer);
        uint32_t i = 0;
        while (i < check->sights &&
               (check->sight[i].window != seen.window || check->sight[i].block != seen.block ||
                check->sight[i].lists != seen.lists))
            i++;
        check->sight_of[layer] = i;
        if (i < check->sights)
            continue;
        seen.pairs = calloc((size_t)program->chunk_count + 1, sizeof(*seen.pairs));
        complete = seen.pairs != NULL;
        check->sight[check->sights++] = seen;
    }
    if (complete)
        return check;
    tdm_cost_check_free(check);
    return NULL;
}

void tdm_cost_check_free(struct tdm_cost_check *check)
{
    if (check == NULL)
        return;
    for (uint32_t i = 0; i < check->sights; i++)
        free(check->sight[i].pairs);
    free(check->sight);
    free(check->sight_of);
    free(check);
}

/* ---- pairs ---- */

/* (query, key) pairs of a chunk's tokens; with lists, the pairs that there would be without. */
static uint64_t count_pairs(const struct tdm_program *program, const struct sight *sight,
                            uint32_t number)
{
    const struct tdm_chunk *chunk = &program->chunks[number];
    const struct tdm_sequence *sequence = &program->schedule->sequences[chunk->sequence];
    const uint64_t *starts = sequence->document_starts;
    uint64_t pairs = 0, start = 0;
    uint32_t document = 0;
    for (uint64_t t = chunk->first_token; t < chunk->first_token + chunk->tokens; t++) {
        while (starts != NULL && document + 1 < sequence->document_count &&
               starts[document + 1] <= t)
            start = starts[++document];
        uint64_t seen = t - start + 1;
        if (sight->window > 0 && seen > sight->window)
            seen = sight->window;
        if (sight->block > 0)
            seen = (t - start) % sight->block + 1;
        pairs += seen;
    }
    return pairs;
}

/* The same with the keys of one chunk: whose K and V go around a ring. */
static uint64_t count_pairs_with(const struct tdm_program *program, const struct sight *sight,
                                 uint32_t number, uint32_t key)
{
    const struct tdm_chunk *chunk = &program->chunks[number], *of = &program->chunks[key];
    const struct tdm_sequence *sequence = &program->schedule->sequences[chunk->sequence];
    const uint64_t *starts = sequence->document_starts;
    uint64_t pairs = 0, start = 0;
    uint32_t document = 0;
    if (number > key && starts == NULL && sight->window == 0 && sight->block == 0)
        return chunk->tokens * of->tokens;
    for (uint64_t t = chunk->first_token; t < chunk->first_token + chunk->tokens; t++) {
        while (starts != NULL && document + 1 < sequence->document_count &&
               starts[document + 1] <= t)
            start = starts[++document];
        uint64_t from = start, end = of->first_token + of->tokens;
        if (sight->window > 0 && t + 1 > from + sight->window)
            from = t + 1 - sight->window;
        if (sight->block > 0)
            from = t - (t - start) % sight->block;
        from = from > of->first_token ? from : of->first_token;
        end = end < t + 1 ? end : t + 1;
        pairs += end > from ? end - from : 0;
    }
    return pairs;
}

static const struct sight *look(const struct tdm_cost_check *check, const struct tdm_op *op,
                                uint64_t *pairs)
{
    const struct tdm_program *program = check->program;
    struct sight *sight = &check->sight[check->sight_of[op->layer]];
    if (program->ranks > 1 && tdm_schedule_rings(program->schedule)) {
        const uint32_t key = op->access[TDM_ATTENTION_KV].before.chunk;
        *pairs = key < program->chunk_count ? count_pairs_with(program, sight, op->chunk, key) : 0;
        return sight;
    }
    if (sight->pairs[op->chunk] == 0)
        sight->pairs[op->chunk] = count_pairs(check->program, sight, op->chunk);
    *pairs = sight->pairs[op->chunk];
    return sight;
}

/* Tokens of the chunks in the slots of an access. *pages: their pages, which chunks do not
 * share. */
static uint64_t tokens_of(const struct tdm_program *program, const struct tdm_access *access,
                          uint64_t *pages)
{
    uint64_t tokens = 0;
    *pages = 0;
    for (uint32_t k = 0; access->buffer != TDM_NONE && k < access->slots; k++) {
        uint32_t chunk = access->before.chunk + k;
        if (chunk >= program->chunk_count)
            break;
        tokens += program->chunks[chunk].tokens;
        *pages += tdm_size_ceil_div(program->chunks[chunk].tokens, program->schedule->page_tokens);
    }
    return tokens;
}

static bool is_there(const struct tdm_op *op, uint32_t operand)
{
    return op->access_count > operand && op->access[operand].buffer != TDM_NONE;
}

static enum tdm_status fail(const struct tdm_op *op, const char *what, uint64_t found, uint64_t due,
                            struct tdm_error *err)
{
    return tdm_fail(err, TDM_INPUT, "op %llu (%s) has %llu %s; expected %llu",
                    (unsigned long long)op->number, tdm_op_kind_name(op->kind),
                    (unsigned long long)found, what, (unsigned long long)due);
}

static enum tdm_status fail_between(const struct tdm_op *op, const char *what, uint64_t found,
                                    uint64_t least, uint64_t most, struct tdm_error *err)
{
    return tdm_fail(err, TDM_INPUT, "op %llu (%s) has %llu %s; %llu to %llu are possible",
                    (unsigned long long)op->number, tdm_op_kind_name(op->kind),
                    (unsigned long long)found, what, (unsigned long long)least,
                    (unsigned long long)most);
}

/* Pairs must be exact; with lists, at least one per token, at most all. */
static enum tdm_status check_pairs(const struct tdm_cost_check *check, const struct tdm_op *op,
                                   struct tdm_error *err)
{
    uint64_t all;
    const struct sight *sight = look(check, op, &all);
    uint64_t least = sight->lists ? op->tokens : all;
    if (op->head_dim != check->program->schedule->model->head_dim)
        return fail(op, "dimensions of a head", op->head_dim,
                    check->program->schedule->model->head_dim, err);
    if (least == all && op->pairs != all)
        return fail(op, "pairs", op->pairs, all, err);
    return op->pairs < least || op->pairs > all
               ? fail_between(op, "pairs", op->pairs, least, all, err)
               : TDM_OK;
}

/* Keys must be all of the chunks that are read and one more; with lists, no more than that. */
static enum tdm_status check_keys(const struct tdm_cost_check *check, const struct tdm_op *op,
                                  struct tdm_error *err)
{
    uint64_t pairs, pages, all;
    const struct sight *sight = look(check, op, &pairs);
    all = is_there(op, TDM_ATTENTION_KV)
              ? tokens_of(check->program, &op->access[TDM_ATTENTION_KV], &pages) + 1
              : 0;
    if (check->program->ranks > 1 && tdm_schedule_rings(check->program->schedule))
        all = op->tokens == 0 ? 0 : pairs / op->tokens + op->tokens / 2 + 1; /* as many pairs */
    if (sight->lists ? op->keys == 0 || op->keys > all : op->keys != all)
        return fail(op, "keys", op->keys, all, err);
    all = check->program->schedule->model->kv_heads /
          tdm_schedule_head_parts(check->program->schedule);
    return op->kv_heads != all ? fail(op, "KV heads", op->kv_heads, all, err) : TDM_OK;
}

/* ---- FLOPs ---- */

/* Elements of the matrices that an op multiplies with: those of its part of its layer. */
static uint64_t matrix_elements(const struct tdm_model *model, const struct tdm_op *op)
{
    uint64_t elements = 0;
    for (uint32_t i = 0; op->layer < model->unit_count && i < model->units[op->layer].tensor_count;
         i++) {
        const struct tdm_tensor *tensor = &model->tensors[model->units[op->layer].first_tensor + i];
        bool vector = tdm_role_is_norm(tensor->role) || tensor->role == TDM_ROLE_Q_BIAS ||
                      tensor->role == TDM_ROLE_K_BIAS || tensor->role == TDM_ROLE_V_BIAS;
        if (!vector && tdm_part_of(tensor->role) == op->part)
            elements += tensor->rows * tensor->columns;
    }
    return elements;
}

/* Ranks that have parts of the heads of the same chunks. */
static uint32_t ranks_of_set(const struct tdm_schedule *schedule)
{
    if (schedule->ranks > 1 && schedule->head_ranks > 0)
        return schedule->head_ranks;
    return schedule->ranks > 1 && schedule->exchange == TDM_EXCHANGE_HEADS ? schedule->ranks : 1;
}

/* Two FLOPs per multiply-add. Attention has the products Q K^T and P V, its backward Q K^T again,
 * dO V^T, P^T dO, dS K and dS^T Q. */
static enum tdm_status check_flops(const struct tdm_cost_check *check, const struct tdm_op *op,
                                   struct tdm_error *err)
{
    const struct tdm_model *model = check->program->schedule->model;
    const struct tdm_schedule *schedule = check->program->schedule;
    const uint32_t parts = ranks_of_set(schedule);
    uint64_t heads = (uint64_t)model->query_heads * model->head_dim, due = 0, pages;
    uint64_t logits = tdm_size_mul(op->tokens, (uint64_t)op->entries * model->hidden);
    switch (op->kind) {
    case TDM_OP_PRODUCT:
    case TDM_OP_PRODUCT_GRAD_INPUT:
    case TDM_OP_PRODUCT_GRAD_WEIGHT:
        due = tdm_size_mul(2 * op->tokens, matrix_elements(model, op));
        break;
    case TDM_OP_LOSS:
        due = tdm_size_mul(2, logits);
        break;
    case TDM_OP_HEAD: /* and the gradients of rows and weights */
    case TDM_OP_HEAD_GRAD:
        due = tdm_size_mul(6, logits);
        break;
    case TDM_OP_ATTENTION:
        due = tdm_size_mul(2 * 2 * heads / parts, op->pairs);
        break;
    case TDM_OP_ATTENTION_GRAD:
        due = tdm_size_mul(5 * 2 * heads / parts, op->pairs);
        break;
    case TDM_OP_SELECT:
        /* a vote computes each score of a query and a page before its chunk twice */
        (void)(is_there(op, TDM_SELECT_MEANS)
                   ? tokens_of(check->program, &op->access[TDM_SELECT_MEANS], &pages)
                   : (pages = 0));
        due = tdm_size_mul(2 * 2 * heads, tdm_size_mul(op->tokens, pages));
        return op->flops > due || op->flops % (2 * 2 * heads) != 0
                   ? fail_between(op, "FLOPs", op->flops, 0, due, err)
                   : TDM_OK;
    default:
        break;
    }
    return op->flops == due ? TDM_OK : fail(op, "FLOPs", op->flops, due, err);
}

/* ---- bytes ---- */

/* Every operand passes through memory once, and twice if it is added to. */
static enum tdm_status check_bytes(const struct tdm_op *op, struct tdm_error *err)
{
    uint64_t due = 0;
    for (uint32_t i = 0; i < op->access_count; i++)
        if (op->access[i].buffer != TDM_NONE)
            due += op->access[i].bytes +
                   (op->access[i].mode == TDM_ACCUMULATE ? op->access[i].bytes : 0);
    return op->bytes == due ? TDM_OK : fail(op, "bytes", op->bytes, due, err);
}

static bool is_far(const struct tdm_program *program, const struct tdm_op *op, uint32_t operand)
{
    return is_there(op, operand) &&
           program->buffers[op->access[operand].buffer].place != TDM_DEVICE;
}

/* Checks the link. Attention whose K and V are not on the device gathers over the link from there,
 * and needs the link back for what it sends. check_way() of validate.c checks copies. */
static enum tdm_status check_link_number(const struct tdm_program *program, const struct tdm_op *op,
                                         struct tdm_error *err)
{
    const struct tdm_topology *topology = &program->schedule->machine->topology;
    bool attends = op->kind == TDM_OP_ATTENTION || op->kind == TDM_OP_ATTENTION_GRAD;
    if (op->kind == TDM_OP_COPY)
        return TDM_OK;
    if ((TDM_TEAM_KINDS & TDM_KIND(op->kind)) != 0)
        return op->link == TDM_LINK_PEER ? TDM_OK : fail(op, "link", op->link, TDM_LINK_PEER, err);
    if (!attends || !is_far(program, op, TDM_ATTENTION_KV))
        return op->link == TDM_NO_LINK ? TDM_OK : fail(op, "link", op->link, TDM_NO_LINK, err);
    enum tdm_place home = program->buffers[op->access[TDM_ATTENTION_KV].buffer].place;
    uint32_t due = tdm_link_find(topology, home, TDM_DEVICE);
    if (due == TDM_NO_LINK || tdm_link_opposite(topology, due) == TDM_NO_LINK)
        return tdm_fail(err, TDM_INPUT,
                        "op %llu (%s) gathers from %s over no link of the machine and back",
                        (unsigned long long)op->number, tdm_op_kind_name(op->kind),
                        tdm_place_name(topology, home));
    return op->link == due ? TDM_OK : fail(op, "link", op->link, due, err);
}

static uint64_t bytes_of(const struct tdm_op *op, uint32_t operand)
{
    return is_there(op, operand) ? op->access[operand].bytes : 0;
}

/* Of a gradient, or of the tensors of one of its parts with the gaps between them, each rank gets
 * the shares of what it updates: an equal run of the unit's elements, in steps of 256. */
static void scattered(const struct tdm_program *program, const struct tdm_op *op, uint64_t *fetched,
                      uint64_t *sent)
{
    const struct tdm_model *model = program->schedule->model;
    const struct tdm_access *sum = &op->access[TDM_REDUCE_SCATTER_SUM];
    const struct tdm_unit *unit = &model->units[sum->after.layer];
    const uint64_t size = tdm_dtype_bytes(program->schedule->dtypes.gradients);
    uint64_t each = (unit->elements + program->ranks - 1) / program->ranks;
    uint64_t first = UINT64_MAX, end = 0, all, own;
    each = (each + 255) / 256 * 256;
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        const struct tdm_tensor *tensor = &model->tensors[unit->first_tensor + i];
        if (op->part != TDM_PART_ALL && sum->after.content == TDM_UNIT_GRADIENT &&
            tdm_part_of(tensor->role) != op->part)
            continue;
        first = tensor->offset < first ? tensor->offset : first;
        end = tensor->offset + tensor->elements > end ? tensor->offset + tensor->elements : end;
    }
    all = end > first ? end - first : 0;
    uint64_t begin = program->rank * each, last = begin + each;
    begin = begin > first ? begin : first;
    last = last < end ? last : end;
    own = last > begin ? last - begin : 0;
    *fetched = own * (program->ranks - 1) * size;
    *sent = (all - own) * size;
}

/* The rank's heads of its own chunk, in its exchange of heads. */
static uint64_t bytes_of_own_heads(const struct tdm_program *program, const struct tdm_op *op)
{
    const struct tdm_access *heads = &op->access[TDM_ALL_TO_ALL_HEADS];
    for (uint32_t k = 0; is_there(op, TDM_ALL_TO_ALL_HEADS) && k < heads->slots; k++) {
        const struct tdm_chunk *chunk = &program->chunks[heads->after.chunk + k];
        if (chunk->rank == program->rank)
            return tdm_content_bytes(program->schedule, heads->after.content, 0, chunk->tokens);
    }
    return 0;
}

/* Checks the bytes that a rank receives from the others and sends to them. In a gather each chunk
 * goes to all other ranks; in a reduce each share goes to the chunk's rank. A gradient is cut into
 * a slice for each rank: shares of the other slices are sent, and then the sums of its own. */
static enum tdm_status check_team_bytes(const struct tdm_program *program, const struct tdm_op *op,
                                        struct tdm_error *err)
{
    const uint32_t set = ranks_of_set(program->schedule);
    uint64_t fetched = 0, sent = 0, own, part;
    switch (op->kind) {
    case TDM_OP_GATHER:
        own = bytes_of(op, TDM_GATHER_OWN) + bytes_of(op, TDM_GATHER_OWN_MEANS);
        fetched = bytes_of(op, TDM_GATHER_BELOW) + bytes_of(op, TDM_GATHER_ABOVE) +
                  bytes_of(op, TDM_GATHER_BELOW_MEANS) + bytes_of(op, TDM_GATHER_ABOVE_MEANS);
        sent = own * (program->ranks / set - 1);
        break;
    case TDM_OP_REDUCE: /* how many others have a share is seen when all ranks are compared */
        own = bytes_of(op, TDM_REDUCE_OWN);
        /* the shares of several chunks differ in number, but are of whole tokens */
        part = set == 1 ? own : tdm_content_bytes(program->schedule, TDM_DKVPAGES, 0, 1);
        fetched = own == 0 ? 0 : op->fetched_bytes / part * part;
        if (fetched > own * (program->ranks / set - 1))
            fetched = own * (program->ranks / set - 1);
        sent = bytes_of(op, TDM_REDUCE_BELOW) + bytes_of(op, TDM_REDUCE_ABOVE);
        break;
    case TDM_OP_REDUCE_SCATTER:
        scattered(program, op, &fetched, &sent);
        break;
    case TDM_OP_GATHER_ALL:
        own = tdm_rank_part(program->schedule, op->layer, program->rank).elements;
        fetched = program->schedule->model->units[op->layer].elements - own;
        fetched *= tdm_dtype_bytes(program->schedule->dtypes.weights);
        sent = own * (program->ranks - 1) * tdm_dtype_bytes(program->schedule->dtypes.weights);
        break;
    case TDM_OP_ALL_TO_ALL: /* of each chunk, all heads but the own ones leave their rank */
        own = bytes_of_own_heads(program, op);
        fetched = bytes_of(op, TDM_ALL_TO_ALL_HEADS) - own;
        sent = own * (set - 1);
        if (is_there(op, TDM_ALL_TO_ALL_HEADS) &&
            op->access[TDM_ALL_TO_ALL_HEADS].mode == TDM_READ) {
            sent = fetched;
            fetched = own * (set - 1);
        }
        break;
    case TDM_OP_HOP: /* one chunk to the next rank, another one from the one before */
        sent = bytes_of(op, TDM_HOP_SENT);
        fetched = bytes_of(op, TDM_HOP_RECEIVED);
        break;
    case TDM_OP_HOP_SUM:
        sent = bytes_of(op, TDM_HOP_SUM_SENT);
        fetched = bytes_of(op, TDM_HOP_SUM_RECEIVED);
        break;
    default:
        own = bytes_of(op, TDM_REDUCE_ALL_SUM);
        fetched = sent = 2 * (own - own / program->ranks);
    }
    if (op->fetched_bytes != fetched)
        return fail(op, "bytes to receive", op->fetched_bytes, fetched, err);
    return op->sent_bytes == sent ? TDM_OK : fail(op, "bytes to send", op->sent_bytes, sent, err);
}

/* Checks the bytes over the link. Attention whose K and V are not on the device gathers the chunk's
 * own pages, and at most all earlier ones for every query page. If sums of dK, dV are there too, it
 * fetches and sends as many pages of them, and first sends zeros to those that it is the first to
 * add to. */
static enum tdm_status check_link(const struct tdm_cost_check *check, const struct tdm_op *op,
                                  struct tdm_error *err)
{
    const struct tdm_program *program = check->program;
    const struct tdm_schedule *schedule = program->schedule;
    bool attends = op->kind == TDM_OP_ATTENTION || op->kind == TDM_OP_ATTENTION_GRAD;
    bool adds = is_far(program, op, TDM_ATTENTION_GRAD_DKV_OPENED) ||
                is_far(program, op, TDM_ATTENTION_GRAD_DKV_ADDED);
    uint64_t pages, zeros = 0, sums = 0;
    if ((TDM_TEAM_KINDS & TDM_KIND(op->kind)) != 0)
        return check_team_bytes(program, op, err);
    if (!attends || !is_far(program, op, TDM_ATTENTION_KV))
        return op->fetched_bytes == 0 && op->sent_bytes == 0
                   ? TDM_OK
                   : fail(op, "bytes over the link", op->fetched_bytes + op->sent_bytes, 0, err);
    uint64_t page = tdm_content_bytes(schedule, TDM_KVPAGES, 0, schedule->page_tokens);
    uint64_t own = tdm_size_ceil_div(op->tokens, schedule->page_tokens);
    tokens_of(program, &op->access[TDM_ATTENTION_KV], &pages);
    if (op->kind == TDM_OP_ATTENTION_GRAD && adds)
        sums = tdm_content_bytes(schedule, TDM_DKVPAGES, 0, schedule->page_tokens);
    for (uint32_t i = TDM_ATTENTION_GRAD_DKV_OPENED; i <= TDM_ATTENTION_GRAD_DKV_ADDED && sums > 0;
         i++)
        if (is_far(program, op, i) && op->access[i].mode == TDM_WRITE)
            zeros += op->access[i].bytes;
    uint64_t least = own * (page + sums);
    uint64_t most = tdm_size_mul(tdm_size_mul(own, pages + 1), page + sums);
    if (op->fetched_bytes + 2 < least || op->fetched_bytes > most)
        return fail_between(op, "bytes to fetch", op->fetched_bytes, least, most, err);
    /* both are rounded down */
    double share = (double)sums / (double)(page + sums);
    double due = (double)zeros + share * (double)op->fetched_bytes;
    if (fabs((double)op->sent_bytes - due) > 2 + 1e-9 * due)
        return fail(op, "bytes to send", op->sent_bytes, (uint64_t)due, err);
    return TDM_OK;
}

enum tdm_status tdm_cost_check_op(struct tdm_cost_check *check, const struct tdm_op *op,
                                  struct tdm_error *err)
{
    bool attends = op->kind == TDM_OP_ATTENTION || op->kind == TDM_OP_ATTENTION_GRAD;
    enum tdm_status status = TDM_OK;
    if (attends || op->kind == TDM_OP_SELECT)
        status = check_pairs(check, op, err);
    else if (op->pairs != 0 || op->head_dim != 0)
        status = fail(op, "pairs", op->pairs, 0, err);
    if (status == TDM_OK && attends)
        status = check_keys(check, op, err);
    else if (status == TDM_OK && (op->keys != 0 || op->kv_heads != 0))
        status = fail(op, "keys", op->keys, 0, err);
    if (status == TDM_OK)
        status = check_flops(check, op, err);
    if (status == TDM_OK)
        status = check_bytes(op, err);
    if (status == TDM_OK)
        status = check_link(check, op, err);
    return status == TDM_OK ? check_link_number(check->program, op, err) : status;
}
