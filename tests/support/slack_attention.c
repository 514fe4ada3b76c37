/* SPDX-License-Identifier: Apache-2.0 */
/* Slack of attention: that of scores passes to probabilities, and theirs to the outputs. */
#include "tests/support/slack_parts.h"

#include "ops/attention.h"

/* Arrays: slack of a row's scores and bounds of its dP - D; largest norms and elements of a KV
 * head; for each key the sum of its probabilities over the rows that see it. */
enum { SCORES, ROW_GRADIENTS, KEY_NORMS, KEYS, VALUES, ROWS, KEY_SUMS, OUT_GRADIENTS };

struct heads {
    uint64_t tokens, query_heads, kv_heads, dim, ratio, keys;
    double scale;
    double rounded; /* error from rounding probabilities to bf16 */
};

static struct heads heads_of(const struct tdm_slack *slack)
{
    const struct tdm_program *program = slack->launch->program;
    const struct tdm_model *model = slack_model(slack);
    const struct tdm_access *pages = &slack->launch->op->access[TDM_ATTENTION_KV];
    const struct tdm_operand *operand = slack->launch->operand;
    struct heads x = {slack->launch->op->tokens,
                      model->query_heads,
                      model->kv_heads,
                      model->head_dim,
                      model->query_heads / model->kv_heads,
                      0,
                      1 / sqrt((double)model->head_dim),
                      0};
    for (uint32_t i = 0; i < pages->slots; i++)
        x.keys += program->chunks[pages->before.chunk + i].tokens;
    /* tensor cores take the probabilities, and their gradients, in bf16 */
    if (operand[TDM_ATTENTION_Q].dtype == TDM_DTYPE_BF16 &&
        operand[TDM_ATTENTION_KV].dtype == TDM_DTYPE_BF16)
        x.rounded = ROUNDED_BF16;
    return x;
}

/* Finds the largest norms and elements of K and V: [kv_heads] and [kv_heads, dim]. */
static void find_keys(struct tdm_slack *slack, const struct heads *x)
{
    const struct tdm_program *program = slack->launch->program;
    const struct tdm_access *access = &slack->launch->op->access[TDM_ATTENTION_KV];
    const struct tdm_operand *pages = &slack->launch->operand[TDM_ATTENTION_KV];
    uint64_t plane = tdm_page_plane_elements(program->schedule);
    double *norms = slack->array[KEY_NORMS]; /* of K, then of V */
    for (uint32_t slot = 0; slot < access->slots; slot++) {
        uint64_t tokens = program->chunks[access->before.chunk + slot].tokens;
        uint64_t first = slot * (pages->slot_bytes / tdm_dtype_bytes(pages->dtype));
        for (uint64_t t = 0; t < tokens; t++)
            for (uint64_t g = 0; g < x->kv_heads; g++) {
                uint64_t at = first + slack_page_element(slack, t) + g * x->dim;
                double of_k = 0, of_v = 0;
                for (uint64_t i = 0; i < x->dim; i++) {
                    double k = slack_value(pages, at + i), v = slack_value(pages, at + plane + i);
                    of_k += k * k;
                    of_v += v * v;
                    slack_raise_to(&slack->array[KEYS][g * x->dim + i], fabs(k));
                    slack_raise_to(&slack->array[VALUES][g * x->dim + i], fabs(v));
                }
                slack_raise_to(&norms[g], sqrt(of_k));
                slack_raise_to(&norms[x->kv_heads + g], sqrt(of_v));
            }
    }
}

/* Finds the slack of each row's scores q k / sqrt(dim), also that of log probabilities, and the
 * bound of its dP - D. */
static void find_rows(struct tdm_slack *slack, const struct heads *x, bool back)
{
    const struct tdm_operand *operand = slack->launch->operand;
    double error =
        slack_product_error((double)x->dim, operand[TDM_ATTENTION_GRAD_Q].dtype) + 16 * UNIT;
    const double *norms = slack->array[KEY_NORMS];
    uint64_t rows = x->tokens * x->query_heads; /* the largest value follows them */
    for (uint64_t row = 0; row < rows; row++) {
        uint64_t g = row % x->query_heads / x->ratio;
        double q = 0, d = 0, o = 0;
        for (uint64_t i = 0; i < x->dim; i++) {
            double of_q = slack_value(&operand[TDM_ATTENTION_GRAD_Q], row * x->dim + i);
            q += of_q * of_q;
            slack_raise_to(&slack->array[ROWS][g * x->dim + i], fabs(of_q));
            if (!back)
                continue;
            double of_o = slack_value(&operand[TDM_ATTENTION_GRAD_O], row * x->dim + i);
            double of_d = slack_value(&operand[TDM_ATTENTION_GRAD_DO], row * x->dim + i);
            o += of_o * of_o;
            d += of_d * of_d;
            slack_raise_to(&slack->array[OUT_GRADIENTS][g * x->dim + i], fabs(of_d));
        }
        slack->array[SCORES][row] = error * (sqrt(q) * norms[g] * x->scale + 1);
        slack->array[ROW_GRADIENTS][row] = sqrt(d) * (norms[x->kv_heads + g] + sqrt(o));
        slack_raise_to(&slack->array[SCORES][rows], slack->array[SCORES][row]);
        slack_raise_to(&slack->array[ROW_GRADIENTS][rows], slack->array[ROW_GRADIENTS][row]);
    }
}

/* Finds the sum of the probabilities of every key: dV if all output gradients are one. */
static bool find_key_sums(struct tdm_slack *slack, const struct heads *x, struct tdm_error *err)
{
    const struct tdm_program *program = slack->launch->program;
    struct tdm_launch launch = *slack->launch;
    uint64_t elements = x->tokens * x->query_heads * x->dim;
    unsigned char *ones = calloc(elements, sizeof(float)), *dq = calloc(elements, sizeof(float));
    unsigned char *pages[2] = {NULL, NULL};
    bool done = ones != NULL && dq != NULL;
    for (uint64_t i = 0; i < elements && done; i++) {
        const float one = 1;
        const uint16_t half = tdm_float_to_bf16(one);
        if (launch.operand[TDM_ATTENTION_GRAD_DO].dtype == TDM_DTYPE_FP32)
            memcpy(ones + i * sizeof(one), &one, sizeof(one));
        else
            memcpy(ones + i * sizeof(half), &half, sizeof(half));
    }
    launch.operand[TDM_ATTENTION_GRAD_DO].data = ones;
    launch.operand[TDM_ATTENTION_GRAD_DQ].data = dq;
    for (uint32_t i = 0; i < 2 && done; i++) {
        struct tdm_operand *operand = &launch.operand[TDM_ATTENTION_GRAD_DKV_OPENED + i];
        if (operand->data == NULL)
            continue;
        pages[i] = calloc(operand->slots, operand->slot_bytes);
        done = pages[i] != NULL;
        operand->data = pages[i];
    }
    const struct tdm_arenas *cpu = slack->cpu;
    done = done && cpu->backend->run[TDM_OP_ATTENTION_GRAD](cpu->executor, &launch, err) == TDM_OK;

    uint64_t key = 0;
    for (uint32_t i = 0; i < 2 && done; i++) {
        const struct tdm_operand *operand = &launch.operand[TDM_ATTENTION_GRAD_DKV_OPENED + i];
        uint32_t first = slack->launch->op->access[TDM_ATTENTION_GRAD_DKV_OPENED + i].after.chunk;
        for (uint32_t slot = 0; slot < operand->slots && operand->data != NULL; slot++)
            for (uint64_t t = 0; t < program->chunks[first + slot].tokens; t++, key++)
                for (uint64_t g = 0; g < x->kv_heads; g++)
                    slack->array[KEY_SUMS][key * x->kv_heads + g] = slack_value(
                        operand, slot * (operand->slot_bytes / tdm_dtype_bytes(operand->dtype)) +
                                     tdm_page_plane_elements(program->schedule) +
                                     slack_page_element(slack, t) + g * x->dim);
    }
    free(ones);
    free(dq);
    free(pages[0]);
    free(pages[1]);
    return done;
}

bool slack_begin_attention(struct tdm_slack *slack, struct tdm_error *err)
{
    struct heads x = heads_of(slack);
    bool back = slack->launch->op->kind == TDM_OP_ATTENTION_GRAD, taken = true;
    uint64_t rows = x.tokens * x.query_heads, columns = x.kv_heads * x.dim;
    const uint64_t counts[TDM_SLACK_ARRAYS] = {rows + 1, rows + 1, 2 * x.kv_heads,      columns,
                                               columns,  columns,  x.keys * x.kv_heads, columns};
    for (int i = 0; i < TDM_SLACK_ARRAYS; i++)
        taken = slack_take(slack, i, counts[i]) != NULL && taken;
    if (!taken)
        return false;
    find_keys(slack, &x);
    find_rows(slack, &x, back);
    return !back || find_key_sums(slack, &x, err);
}

double slack_of_attention(const struct tdm_slack *slack, const struct tdm_written *piece,
                          uint64_t element)
{
    struct heads x = heads_of(slack);
    uint64_t row = piece->lse ? element : element / x.dim;
    if (row >= x.tokens * x.query_heads)
        return EXACT;
    double scores = slack->array[SCORES][row];
    if (piece->lse)
        return scores + slack_sum_error((double)x.keys) * (1 + log((double)x.keys + 1));
    uint64_t g = row % x.query_heads / x.ratio;
    double relative =
        2 * scores +
        slack_product_error((double)x.keys, slack->launch->operand[TDM_ATTENTION_KV].dtype) +
        x.rounded;
    return relative * slack->array[VALUES][g * x.dim + element % x.dim];
}

double slack_of_attention_grad(const struct tdm_slack *slack, const struct tdm_written *piece,
                               uint64_t element)
{
    const struct tdm_program *program = slack->launch->program;
    const struct tdm_operand *operand = &slack->launch->operand[piece->operand];
    struct heads x = heads_of(slack);
    double error = slack_product_error((double)(x.keys + x.tokens * x.ratio + x.dim),
                                       slack->launch->operand[TDM_ATTENTION_GRAD_Q].dtype) +
                   x.rounded;
    if (piece->operand == TDM_ATTENTION_GRAD_DQ) {
        uint64_t row = element / x.dim, g = row % x.query_heads / x.ratio;
        if (row >= x.tokens * x.query_heads)
            return EXACT;
        return x.scale * (2 * slack->array[SCORES][row] + error) *
               slack->array[ROW_GRADIENTS][row] * slack->array[KEYS][g * x.dim + element % x.dim];
    }
    /* an element of a key, in slots that are overwritten or, after these, added to */
    const struct tdm_access *access = &slack->launch->op->access[piece->operand];
    uint32_t first_chunk = slack->launch->op->access[TDM_ATTENTION_GRAD_KV].before.chunk;
    uint32_t chunk = access->after.chunk + piece->slot;
    uint64_t page = element / tdm_page_elements(program->schedule);
    uint64_t in_page = element % tdm_page_elements(program->schedule);
    uint64_t plane = tdm_page_plane_elements(program->schedule), width = x.kv_heads * x.dim;
    bool of_v = in_page >= plane;
    uint64_t t = page * program->schedule->page_tokens + in_page % plane / width;
    uint64_t column = in_page % plane % width, key = t;
    if (t >= program->chunks[chunk].tokens)
        return EXACT;
    for (uint32_t i = first_chunk; i < chunk; i++)
        key += program->chunks[i].tokens;
    double sum = slack->array[KEY_SUMS][key * x.kv_heads + column / x.dim];
    double scores = slack->array[SCORES][x.tokens * x.query_heads];
    double rows = slack->array[ROW_GRADIENTS][x.tokens * x.query_heads];
    uint64_t at = piece->slot * (operand->slot_bytes / tdm_dtype_bytes(operand->dtype)) + element;
    double before = slack_adds(operand) ? fabs(slack_value(operand, at)) : 0;
    double size =
        of_v ? slack->array[OUT_GRADIENTS][column] : x.scale * rows * slack->array[ROWS][column];
    return (2 * scores + error) * sum * size + 4 * UNIT * before;
}
