/* SPDX-License-Identifier: Apache-2.0 */
/* The buffers of a program: declares all that a schedule needs, in a fixed order, each with its
 * place, category, slots and bytes. */
#include "schedule/buffers_parts.h"

#include "base/size.h"
#include "schedule/layout.h"
#include "schedule/ranks.h"
#include "schedule/queries.h"
#include "schedule/ring.h"
#include "schedule/scratch.h"
#include "schedule/slices.h"
#include "schedule/streams.h"

/* The state comes first: residents are laid out in this order, and another program of the model
 * with the same homes, whatever its nest or pass, must find the state at the same offsets. */
static void declare_residents(struct tdm_builder *b)
{
    struct tdm_layout *layout = b->layout;
    uint32_t chunks = b->program->chunk_count;

    tdm_declare_state(b);
    layout->tokens =
        tdm_declare_resident(b,
                             tdm_declare(b, TDM_DEVICE, TDM_STAGING, TDM_AXIS_CHUNK, TDM_TOKENS, 0,
                                         b->chunk_capacity, chunks, "tokens"),
                             TDM_TOKENS, TDM_NONE, 0);
    layout->loss = tdm_declare_resident(
        b,
        tdm_declare(b, TDM_DEVICE, TDM_WORKSPACE, TDM_AXIS_CHUNK, TDM_LOSS, 0, 1, chunks, "loss"),
        TDM_EMPTY, TDM_NONE, TDM_NONE);
    if (b->schedule->pass == TDM_TRAIN)
        layout->norms = tdm_declare_resident(b,
                                             tdm_declare(b, TDM_DEVICE, TDM_WORKSPACE,
                                                         TDM_AXIS_UNIT, TDM_GRADIENT_NORM, 0, 1,
                                                         b->model->unit_count, "norms"),
                                             TDM_EMPTY, TDM_NONE, TDM_NONE);
}

/* If ranks divide the heads of attention: a rank's heads of its set's chunks of a round, and the
 * pages of all heads of its own chunk. Of the latter there are two, so that one is copied or
 * exchanged while the next is made. */
static void declare_heads(struct tdm_builder *b)
{
    const uint32_t ranks = tdm_schedule_head_parts(b->schedule);
    const struct {
        enum tdm_content content;
        uint32_t slots;
        const char *name;
    } table[] = {
        {TDM_PARTED, 1, "parted_heads"},           {TDM_OWN_KVPAGES, 2, "own_kv"},
        {TDM_OWN_DKVPAGES, 1, "own_d_kv"},         {TDM_HEADS_Q, ranks, "heads_q"},
        {TDM_HEADS_OUT, ranks, "heads_attention"}, {TDM_HEADS_DOUT, ranks, "heads_d_attention"},
        {TDM_HEADS_DQ, ranks, "heads_d_q"},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        b->layout->work[table[i].content] =
            tdm_declare(b, TDM_DEVICE, TDM_WORKSPACE, TDM_AXIS_RING, table[i].content, 0,
                        b->chunk_capacity, table[i].slots, "%s", table[i].name);
}

/* If K and V, or queries, go around a ring (lower_ring.c, lower_queries.c). A set attends from as
 * many chunks of a round as it has ranks. */
static void declare_ring(struct tdm_builder *b)
{
    const uint32_t own = tdm_schedule_head_parts(b->schedule);
    const struct {
        enum tdm_content content;
        uint32_t slots;
        const char *name;
    } table[] = {{TDM_PASSING_DKV, TDM_PASSING_SLOTS, "passing_kv_gradients"},
                 {TDM_QUERIES, own + TDM_VISITING_QUERIES_SLOTS, "queries"},
                 {TDM_PASSING_DQ, TDM_PASSING_DQ_SLOTS, "passing_d_q"},
                 {TDM_OUT_PART, 1, "attention_part"},
                 {TDM_OUT_SUM, own, "attention_so_far"},
                 {TDM_DQ_PART, 1, "d_q_part"},
                 {TDM_DQ_SUM, own, "d_q_so_far"}};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        b->layout->work[table[i].content] =
            tdm_declare(b, TDM_DEVICE, TDM_WORKSPACE, TDM_AXIS_RING, table[i].content, 0,
                        b->chunk_capacity, table[i].slots, "%s", table[i].name);
    b->layout->visiting_kv = tdm_declare(b, TDM_DEVICE, TDM_KV, TDM_AXIS_RING, TDM_KVPAGES, 0,
                                         b->chunk_capacity, TDM_VISITING_SLOTS, "visiting_kv");
}

static void declare_workspaces(struct tdm_builder *b)
{
    static const struct {
        enum tdm_content content;
        const char *name;
    } table[] = {
        {TDM_X, "x"},
        {TDM_NORMED, "normed"},
        {TDM_Q, "q"},
        {TDM_QRAW, "q_raw"},
        {TDM_KVRAW, "kv_raw"},
        {TDM_ATTENTION_OUT, "attention"},
        {TDM_Y, "y"},
        {TDM_MLP_NORMED, "mlp_normed"},
        {TDM_GATE_UP, "gate_up"},
        {TDM_ACTIVATED, "activated"},
        {TDM_DACTIVATED, "d_activated"},
        {TDM_DMLP_NORMED, "d_mlp_normed"},
        {TDM_DATTENTION, "d_attention"},
        {TDM_DQ, "d_q"},
        {TDM_DKVRAW, "d_kv_raw"},
        {TDM_DNORMED, "d_normed"},
        {TDM_FINAL_NORMED, "final_normed"},
        {TDM_TOKEN_ORDER, "token_order"},
        {TDM_PAGE_LISTS, "page_lists"},
    };
    struct tdm_layout *layout = b->layout;
    /* if ranks gather K and V it waits for dK and dV of all ranks (lower_backward.c) */
    uint32_t waiting =
        tdm_ranks_gather(b->program) ? tdm_rank_chunks(b->program, 0, b->program->chunk_count) : 1;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        layout->work[table[i].content] = tdm_declare(
            b, TDM_DEVICE, TDM_WORKSPACE, TDM_AXIS_RING, table[i].content, 0, b->chunk_capacity,
            table[i].content == TDM_DNORMED ? waiting : 1, "%s", table[i].name);
    if (tdm_ranks_divide_heads(b->program))
        declare_heads(b);
    if (tdm_ranks_ring(b->program))
        declare_ring(b);
    uint64_t tile = b->schedule->head_tile_tokens;
    if (tile > b->chunk_capacity)
        tile = b->chunk_capacity;
    layout->work[TDM_LOGIT_TILE] =
        tdm_declare(b, TDM_DEVICE, TDM_LOGITS, TDM_AXIS_RING, TDM_LOGIT_TILE, 0, tile, 1, "logits");
    if (layout->vocabulary_tiles > 1) {
        layout->work[TDM_HEAD_LSE] = tdm_declare(b, TDM_DEVICE, TDM_LOGITS, TDM_AXIS_RING,
                                                 TDM_HEAD_LSE, 0, tile, 1, "head_lse");
        layout->work[TDM_HEAD_SUM] = tdm_declare(b, TDM_DEVICE, TDM_LOGITS, TDM_AXIS_RING,
                                                 TDM_HEAD_SUM, 0, tile, 1, "head_sum");
    }
    /* without a backward, X passes through it in chunk-major order too */
    layout->stream_slots = b->schedule->order == TDM_CHUNK_MAJOR && b->schedule->group_count == 1
                               ? 1
                               : tdm_rank_chunks(b->program, 0, b->program->chunk_count);
    layout->stream = tdm_declare(b, TDM_DEVICE, TDM_RESIDUALS, TDM_AXIS_CHUNK, TDM_X, 0,
                                 b->chunk_capacity, layout->stream_slots, "stream");
}

static void declare_scratch(struct tdm_builder *b)
{
    struct tdm_program *program = b->program;
    program->scratch = tdm_declare(b, TDM_DEVICE, TDM_WORKSPACE, TDM_AXIS_RING, TDM_SCRATCH, 0,
                                   b->chunk_capacity, 1, "scratch");
    struct tdm_buffer *buffer = &program->buffers[program->scratch];
    buffer->bytes = buffer->slot_bytes =
        tdm_size_align(tdm_scratch_bytes(b->schedule, b->chunk_capacity), TDM_SLOT_ALIGN);
    program->product_bytes = tdm_scratch_product_bytes(b->schedule, b->chunk_capacity);
}

enum tdm_status tdm_buffers_declare(struct tdm_program *program, struct tdm_error *err)
{
    const struct tdm_schedule *schedule = program->schedule;
    const struct tdm_model *model = schedule->model;
    struct tdm_builder b = {.program = program, .schedule = schedule, .model = model};

    for (uint32_t chunk = 0; chunk < program->chunk_count; chunk++)
        if (program->chunks[chunk].tokens > b.chunk_capacity)
            b.chunk_capacity = program->chunks[chunk].tokens;
    program->layout = b.layout = tdm_layout_new(program);
    if (program->layout == NULL || !tdm_builder_grow(&b))
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the program's buffers");

    declare_residents(&b);
    declare_scratch(&b);
    if (schedule->pass == TDM_TRAIN) {
        tdm_declare_gradients(&b);
        tdm_declare_host_updates(&b);
    }
    if (!tdm_declare_kv(&b))
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the program's buffers");
    tdm_declare_lists(&b);
    if (schedule->pass == TDM_TRAIN)
        tdm_declare_stores(&b);
    declare_workspaces(&b);
    tdm_declare_rings(&b);
    if (b.out_of_memory)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the program's buffers");

    for (uint32_t i = 0; i < program->buffer_count; i++)
        if (program->buffers[i].bytes == TDM_SIZE_MAX)
            return tdm_fail(err, TDM_INPUT, "buffer \"%s\" has more than 2^64 bytes",
                            program->buffers[i].name);
    return tdm_stream_plan(program, err);
}
