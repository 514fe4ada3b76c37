/* SPDX-License-Identifier: Apache-2.0 */
/* A program: its chunks, the two runs of the lowering with packing between them, and homes. */
#include "schedule/program.h"

#include "base/size.h"
#include "schedule/attend.h"
#include "schedule/layout.h"
#include "schedule/lowering.h"
#include "schedule/pack.h"
#include "schedule/params.h"
#include "schedule/ranks.h"
#include "schedule/ranks_sample.h"
#include "schedule/slices.h"
#include "schedule/tags.h"
#include "schedule/values.h"

#include <stdlib.h>
#include <string.h>

/* Offsets are multiples of 512 bytes, the most that cuBLAS, vector loads and bulk copies need. */
#define ARENA_ALIGN 512u

/* A step with more chunks than this would take too long. */
#define MAX_CHUNKS 65536u

/* Maximum number of LM-head tiles of a step. */
#define MAX_TILES 16777216u

/* Every rank needs a chunk: it would have no share of the gradients. */
static enum tdm_status check_ranks(const struct tdm_program *program, struct tdm_error *err)
{
    bool has[TDM_MAX_RANKS] = {false};
    for (uint32_t chunk = 0; chunk < program->chunk_count; chunk++)
        has[program->chunks[chunk].rank] = true;
    for (uint32_t rank = 0; rank < program->ranks; rank++)
        if (!has[rank]) {
            const bool one = program->chunk_count == 1;
            const uint64_t tokens = program->schedule->chunk_tokens;
            tdm_fail(err, TDM_INPUT,
                     "%u chunk%s of %llu token%s leave%s rank %u of %u without work",
                     program->chunk_count, one ? "" : "s", (unsigned long long)tokens,
                     tokens == 1 ? "" : "s", one ? "s" : "", rank, program->ranks);
            return tdm_hint(err, "use %s or fewer ranks (--ranks)",
                            tokens == 1 ? "a longer --context" : "smaller chunks (--set chunk=N)");
        }
    return TDM_OK;
}

/* (query, key) pairs of every chunk in all layers. */
static void count_pairs(const struct tdm_program *program, uint64_t *pairs)
{
    const struct tdm_model *model = program->schedule->model;
    for (uint32_t chunk = 0; chunk < program->chunk_count; chunk++)
        for (uint32_t layer = 0, same; layer < model->layers; layer += same) {
            for (same = 1;
                 layer + same < model->layers &&
                 model->layer_kinds[layer + same].window == model->layer_kinds[layer].window;)
                same++;
            pairs[chunk] = tdm_size_add(
                pairs[chunk], tdm_size_mul(same, tdm_attend_pairs(program, layer, chunk)));
        }
}

static enum tdm_status deal(struct tdm_program *program, struct tdm_error *err)
{
    const enum tdm_deal deal = program->schedule->deal;
    uint64_t *pairs = NULL;
    if (deal == TDM_DEAL_GREEDY && program->ranks > 1) {
        pairs = calloc(program->chunk_count, sizeof(*pairs));
        if (pairs == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u chunks",
                            program->chunk_count);
        count_pairs(program, pairs);
    }
    tdm_ranks_deal(program->chunks, program->chunk_count, program->ranks,
                   program->ranks > 1 ? deal : TDM_DEAL_SNAKE, pairs);
    free(pairs);
    tdm_sets_count(program);
    return check_ranks(program, err);
}

static enum tdm_status make_chunks(struct tdm_program *program, struct tdm_error *err)
{
    const struct tdm_schedule *schedule = program->schedule;
    uint64_t count = 0;
    for (uint32_t s = 0; s < schedule->sequence_count; s++)
        count = tdm_size_add(
            count, tdm_size_ceil_div(schedule->sequences[s].tokens, schedule->chunk_tokens));
    if (count > MAX_CHUNKS) {
        tdm_fail(err, TDM_INPUT, "%llu chunks of %llu tokens in a step; at most %u are supported",
                 (unsigned long long)count, (unsigned long long)schedule->chunk_tokens, MAX_CHUNKS);
        return tdm_hint(err, "use larger chunks (--set chunk=N)");
    }
    uint64_t tiles = 0;
    /* adding `count` below covers the ragged last tile of each chunk */
    for (uint32_t s = 0; s < schedule->sequence_count; s++)
        tiles = tdm_size_add(
            tiles, tdm_size_ceil_div(schedule->sequences[s].tokens, schedule->head_tile_tokens));
    uint64_t columns = tdm_vocabulary_tiles(schedule);
    if (tdm_size_mul(tdm_size_add(tiles, count), columns) > MAX_TILES) {
        tdm_fail(err, TDM_INPUT,
                 "%llu LM-head tiles of %llu tokens in a step, %llu of the vocabulary in each; at "
                 "most %u are supported",
                 (unsigned long long)tiles, (unsigned long long)schedule->head_tile_tokens,
                 (unsigned long long)columns, MAX_TILES);
        return tdm_hint(err, "use larger tiles (--set head_tile=N, head_tile_vocabulary=N)");
    }
    program->chunks = calloc(count, sizeof(*program->chunks));
    if (program->chunks == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for %llu chunks",
                        (unsigned long long)count);

    uint64_t row = 0;
    for (uint32_t s = 0; s < schedule->sequence_count; s++) {
        uint32_t first = program->chunk_count;
        uint64_t tokens = schedule->sequences[s].tokens;
        for (uint64_t at = 0; at < tokens; at += schedule->chunk_tokens) {
            struct tdm_chunk *chunk = &program->chunks[program->chunk_count++];
            chunk->sequence = s;
            chunk->first_chunk = first;
            chunk->first_token = at;
            chunk->tokens =
                tokens - at < schedule->chunk_tokens ? tokens - at : schedule->chunk_tokens;
            chunk->row = row;
            row += chunk->tokens;
        }
        for (uint32_t chunk = first; chunk < program->chunk_count; chunk++)
            program->chunks[chunk].last_chunk = program->chunk_count - 1;
    }
    tdm_chunks_place(program->chunks, count, schedule);
    return deal(program, err);
}

/* How far a lowering goes: to the least memory; to that alone, without ops; until it is within the
 * limits; or, where it is not within them, not even that far. */
enum effort { TO_THE_END, MEMORY_ALONE, WITHIN, IF_IT_FITS };

/* The first run of the lowering: live ranges as conflicts, peaks, number of ops. */
struct ranges {
    struct tdm_program *program;
    struct tdm_rank_counts *counts; /* of the rank under way */
    struct tdm_conflicts conflicts;
    uint64_t *live; /* bits */
    uint64_t live_bytes[TDM_MAX_PLACES];
    const uint64_t *most_bytes; /* [places] with more live, the lowering ends; NULL: no limit */
};

static enum tdm_status note_range(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct ranges *ranges = self;
    struct tdm_program *program = ranges->program;
    if (item->kind == TDM_RUN) {
        ranges->counts->ops++;
        ranges->counts->written_values += tdm_values_written(item->op);
        program->kinds |= TDM_KIND(item->op->kind);
        program->lanes |= 1u << item->op->lane;
        return TDM_OK;
    }

    struct tdm_buffer *buffer = &program->buffers[item->buffer];
    uint64_t bit = (uint64_t)1 << (item->buffer % 64);
    uint64_t *word = &ranges->live[item->buffer / 64];
    uint64_t *live_bytes = &ranges->live_bytes[buffer->place];
    bool is_live = (*word & bit) != 0;
    if (is_live == (item->kind == TDM_ALLOC))
        return tdm_fail(err, TDM_INTERNAL, "lowering %s buffer \"%s\" twice",
                        is_live ? "allocates" : "frees", buffer->name);
    if (item->kind == TDM_FREE) {
        *word &= ~bit;
        *live_bytes -= tdm_size_align(buffer->bytes, ARENA_ALIGN);
        return TDM_OK;
    }
    tdm_conflicts_add(&ranges->conflicts, item->buffer, ranges->live);
    *word |= bit;
    buffer->used = true;
    *live_bytes = tdm_size_add(*live_bytes, tdm_size_align(buffer->bytes, ARENA_ALIGN));
    if (*live_bytes == TDM_SIZE_MAX)
        return tdm_fail(err, TDM_INPUT, "the step needs more than 2^64 bytes");
    if (*live_bytes > program->live_peak_bytes[buffer->place])
        program->live_peak_bytes[buffer->place] = *live_bytes;
    if (ranges->most_bytes != NULL && *live_bytes > ranges->most_bytes[buffer->place])
        return tdm_fail(err, TDM_INFEASIBLE, "the schedule does not fit");
    return TDM_OK;
}

static bool lives_all_along(const struct tdm_program *program, uint32_t buffer)
{
    return program->buffers[buffer].resident || buffer == program->scratch;
}

/* Places the buffers that live for the whole step at the bottom of a place's arena, in the order of
 * their declaration, and returns their bytes. This wastes no space, and programs of one model that
 * declare the same state first have it at the same offsets. */
static uint64_t lay_residents(struct tdm_program *program, enum tdm_place place)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < program->buffer_count; i++) {
        struct tdm_buffer *buffer = &program->buffers[i];
        if (!lives_all_along(program, i) || buffer->place != place)
            continue;
        buffer->offset = at;
        at = tdm_size_add(at, tdm_size_align(buffer->bytes, ARENA_ALIGN));
    }
    return at;
}

/* With how many bytes an arena is good enough, where `live` fit into the capacity. */
static uint64_t goal_of(const struct tdm_program *program, enum tdm_place place, uint64_t capacity,
                        bool quick)
{
    const uint64_t live = program->live_peak_bytes[place];
    const uint64_t packed = place == TDM_DEVICE ? program->schedule->packed_bytes : 0;
    if (quick)
        return capacity;
    return packed > capacity ? capacity : packed > live ? packed : live;
}

static enum tdm_status pack_place(struct tdm_program *program,
                                  const struct tdm_conflicts *conflicts, enum tdm_place place,
                                  uint64_t capacity, uint64_t below, bool quick,
                                  struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    uint32_t count = program->buffer_count;
    uint64_t above = lay_residents(program, place);
    uint64_t live = program->live_peak_bytes[place], goal = live, effort = TDM_PACK_EFFORT;
    if (live <= capacity) {
        goal = goal_of(program, place, capacity, quick);
    } else { /* no packing is within it */
        capacity = TDM_SIZE_MAX;
        effort = quick ? 0 : effort;
    }
    uint64_t *bytes = calloc((size_t)count + 1, sizeof(*bytes));
    uint64_t *offsets = calloc((size_t)count + 1, sizeof(*offsets));
    if (bytes == NULL || offsets == NULL) {
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for packing %u buffers", count);
        goto free_lists;
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct tdm_buffer *buffer = &program->buffers[i];
        if (buffer->used && !lives_all_along(program, i) && buffer->place == place)
            bytes[i] = buffer->bytes;
    }
    status = tdm_pack_below(conflicts, bytes, ARENA_ALIGN, goal - above, capacity - above,
                            below - above, effort, offsets, &program->arena_bytes[place], err);
    if (status != TDM_OK)
        goto free_lists;
    program->arena_bytes[place] = tdm_size_add(program->arena_bytes[place], above);
    for (uint32_t i = 0; i < count; i++)
        if (bytes[i] > 0)
            program->buffers[i].offset = tdm_size_add(offsets[i], above);

free_lists:
    free(bytes);
    free(offsets);
    return status;
}

/* Sets lowered[ranks]: the ranks that are lowered. Of a sample they are those that stand for the
 * memory and the times of all, or for the memory alone. */
static enum tdm_status choose_ranks(const struct tdm_program *program, enum effort effort,
                                    bool *lowered, struct tdm_error *err)
{
    uint32_t stands[TDM_MAX_RANKS], simulated[TDM_SIMULATED_RANKS];
    const bool memory_alone = effort == MEMORY_ALONE;
    const bool some = program->sampled || (memory_alone && program->ranks > 1);
    enum tdm_status status = TDM_OK;
    if (some)
        status = tdm_ranks_alike(program, stands, err);
    for (uint32_t rank = 0; rank < program->ranks && status == TDM_OK; rank++)
        lowered[rank] = !some || stands[rank] == rank;
    const uint32_t count =
        program->sampled && !memory_alone ? tdm_ranks_simulated(program, simulated) : 0;
    for (uint32_t i = 0; i < count; i++)
        lowered[simulated[i]] = true;
    return status;
}

/* `below_bytes`: NULL, or as of tdm_program_measure(). */
static enum tdm_status find_ranges_and_pack(struct tdm_program *program,
                                            const uint64_t capacity_bytes[TDM_MAX_PLACES],
                                            enum effort effort, const uint64_t *below_bytes,
                                            struct tdm_error *err)
{
    struct ranges ranges = {.program = program,
                            .most_bytes = effort == IF_IT_FITS ? capacity_bytes : NULL};
    enum tdm_status status = tdm_conflicts_new(program->buffer_count, &ranges.conflicts, err);
    if (status != TDM_OK)
        return status;
    ranges.live = calloc((size_t)ranges.conflicts.words + 1, sizeof(*ranges.live));
    bool lowered[TDM_MAX_RANKS] = {false};
    bool *left_out = calloc((size_t)program->chunk_count + 1, sizeof(*left_out));
    if (ranges.live == NULL || left_out == NULL)
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for live ranges");
    else
        status = choose_ranks(program, effort, lowered, err);
    /* all ranks have the same buffers at the same offsets: those that are live together on any */
    for (uint32_t rank = 0; rank < program->ranks && status == TDM_OK; rank++) {
        if (!lowered[rank])
            continue;
        struct tdm_program view = tdm_program_of_rank(program, rank);
        ranges.counts = &program->counts[rank];
        if (effort != MEMORY_ALONE) {
            status = tdm_lower(&view, note_range, &ranges, err);
            continue;
        }
        view.left_out = left_out;
        status = tdm_rounds_left_out(&view, left_out, err);
        if (status == TDM_OK)
            status = tdm_lower_lives(&view, note_range, &ranges, err);
    }
    program->op_count = program->counts[0].ops;
    program->written_values = program->counts[0].written_values;
    uint32_t places = program->schedule->machine->topology.place_count;
    for (uint32_t place = 0; place < places && status == TDM_OK; place++) {
        const uint64_t live = program->live_peak_bytes[place];
        const uint64_t below = below_bytes != NULL ? below_bytes[place] : TDM_SIZE_MAX;
        program->arena_bytes[place] = live;
        if (live < below)
            status = pack_place(program, &ranges.conflicts, (enum tdm_place)place,
                                capacity_bytes[place], below, effort == WITHIN, err);
    }
    free(left_out);
    free(ranges.live);
    tdm_conflicts_free(&ranges.conflicts);
    return status;
}

void tdm_program_set_schedule(struct tdm_program *program, const struct tdm_schedule *schedule)
{
    program->schedule = schedule;
    program->sequences = schedule->sequences;
    program->sequence_count = schedule->sequence_count;
    program->documents_of_text = schedule->documents_of_text;
    tdm_params_fill(schedule, &program->params);
}

static enum tdm_status declare(const struct tdm_schedule *schedule, bool sampled,
                               struct tdm_program **out, struct tdm_error *err)
{
    struct tdm_program *program = calloc(1, sizeof(*program));
    if (program == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a program");
    tdm_program_set_schedule(program, schedule);
    program->ranks = schedule->ranks;
    program->sampled = sampled && program->ranks > TDM_SIMULATED_RANKS;
    program->counts = calloc(program->ranks, sizeof(*program->counts));
    enum tdm_status status =
        program->counts == NULL
            ? tdm_fail(err, TDM_NO_MEMORY, "out of memory for %u ranks", program->ranks)
            : make_chunks(program, err);
    if (status == TDM_OK)
        status = tdm_buffers_declare(program, err);
    if (status != TDM_OK) {
        tdm_program_free(program);
        return status;
    }
    *out = program;
    return TDM_OK;
}

enum tdm_status tdm_program_declare(const struct tdm_schedule *schedule, struct tdm_program **out,
                                    struct tdm_error *err)
{
    return declare(schedule, false, out, err);
}

static enum tdm_status lower(const struct tdm_schedule *schedule,
                             const uint64_t capacity_bytes[TDM_MAX_PLACES], enum effort effort,
                             bool sampled, const uint64_t *below_bytes, struct tdm_program **out,
                             struct tdm_error *err)
{
    struct tdm_program *program;
    enum tdm_status status = declare(schedule, sampled, &program, err);
    if (status != TDM_OK)
        return status;
    status = find_ranges_and_pack(program, capacity_bytes, effort, below_bytes, err);
    if (status != TDM_OK) {
        tdm_program_free(program);
        return status;
    }
    *out = program;
    return TDM_OK;
}

uint64_t tdm_program_used_bytes(const struct tdm_program *program, enum tdm_place place)
{
    const struct tdm_schedule *schedule = program->schedule;
    const uint64_t arenas =
        tdm_size_mul(program->arena_bytes[place], tdm_schedule_sharers(schedule, place));
    return tdm_size_add(arenas, schedule->machine->topology.places[place].runtime_bytes);
}

/* Lowers for the schedule's own limits. */
static enum tdm_status lower_for_limits(const struct tdm_schedule *schedule, enum effort effort,
                                        bool sampled, const uint64_t *below_bytes,
                                        struct tdm_program **program, struct tdm_error *err)
{
    const struct tdm_topology *topology = &schedule->machine->topology;
    uint64_t capacity_bytes[TDM_MAX_PLACES];
    for (uint32_t place = 0; place < topology->place_count; place++) {
        uint64_t runtime = topology->places[place].runtime_bytes;
        uint64_t limit = tdm_schedule_limit(schedule, (enum tdm_place)place);
        capacity_bytes[place] = limit > runtime ? limit - runtime : 0;
        capacity_bytes[place] /= tdm_schedule_sharers(schedule, (enum tdm_place)place);
    }
    return lower(schedule, capacity_bytes, effort, sampled, below_bytes, program, err);
}

enum tdm_status tdm_program_lower(const struct tdm_schedule *schedule, struct tdm_program **program,
                                  struct tdm_error *err)
{
    return lower_for_limits(schedule, TO_THE_END, false, NULL, program, err);
}

enum tdm_status tdm_program_lower_sample(const struct tdm_schedule *schedule,
                                         struct tdm_program **program, struct tdm_error *err)
{
    return lower_for_limits(schedule, TO_THE_END, true, NULL, program, err);
}

enum tdm_status tdm_program_measure(const struct tdm_schedule *schedule,
                                    const uint64_t *below_bytes,
                                    uint64_t arena_bytes[TDM_MAX_PLACES], struct tdm_error *err)
{
    struct tdm_program *program;
    enum tdm_status status =
        lower_for_limits(schedule, MEMORY_ALONE, true, below_bytes, &program, err);
    if (status != TDM_OK)
        return status;
    memcpy(arena_bytes, program->arena_bytes, sizeof(program->arena_bytes));
    tdm_program_free(program);
    return TDM_OK;
}

enum tdm_status tdm_program_lower_sample_if(const struct tdm_schedule *schedule,
                                            struct tdm_program **program, struct tdm_error *err)
{
    return lower_for_limits(schedule, IF_IT_FITS, true, NULL, program, err);
}

enum tdm_status tdm_program_lower_within(const struct tdm_schedule *schedule,
                                         const uint64_t capacity_bytes[TDM_MAX_PLACES],
                                         struct tdm_program **program, struct tdm_error *err)
{
    return lower(schedule, capacity_bytes, WITHIN, false, NULL, program, err);
}

struct tdm_program tdm_program_of_rank(const struct tdm_program *program, uint32_t rank)
{
    struct tdm_program view = *program;
    view.rank = rank;
    view.op_count = program->counts[rank].ops;
    view.written_values = program->counts[rank].written_values;
    return view;
}

enum tdm_status tdm_program_emit(const struct tdm_program *program, tdm_sink sink, void *self,
                                 struct tdm_error *err)
{
    return tdm_lower(program, sink, self, err);
}

void tdm_program_free(struct tdm_program *program)
{
    if (program == NULL)
        return;
    tdm_layout_free(program->layout);
    free(program->chunks);
    free(program->buffers);
    free(program->counts);
    free(program);
}

struct tdm_tag tdm_program_initial(const struct tdm_program *program,
                                   const struct tdm_buffer *buffer, uint32_t slot)
{
    const struct tdm_model *model = program->schedule->model;
    struct tdm_tag tag = tdm_tag_at(buffer->initial, slot);
    if (buffer->axis == TDM_AXIS_UNIT && tag.content != TDM_EMPTY &&
        buffer->initial.layer < model->layers)
        tag.layer = tdm_home_layer(&program->schedule->homes[tdm_state_of(tag.content)],
                                   model->layers, buffer->place, slot);
    if (tag.content == TDM_UNIT_WEIGHTS && tdm_weights_sliced(program->schedule))
        tag.share = program->rank + 1;
    return tag;
}

bool tdm_program_home(const struct tdm_program *program, enum tdm_content content, uint32_t unit,
                      uint32_t *buffer, uint32_t *slot)
{
    struct tdm_ref home = tdm_home_of(program, content, unit);
    *buffer = home.buffer;
    *slot = home.slot;
    return home.buffer != TDM_NONE;
}

static const struct tdm_buffer *buffer_at(const struct tdm_program *program, uint32_t number)
{
    return number == TDM_NONE ? NULL : &program->buffers[number];
}

const struct tdm_buffer *tdm_program_tokens_buffer(const struct tdm_program *program)
{
    return buffer_at(program, program->layout->tokens);
}

const struct tdm_buffer *tdm_program_loss_buffer(const struct tdm_program *program)
{
    return buffer_at(program, program->layout->loss);
}

const struct tdm_buffer *tdm_program_norms_buffer(const struct tdm_program *program)
{
    return buffer_at(program, program->layout->norms);
}

const struct tdm_buffer *tdm_program_tied_buffer(const struct tdm_program *program)
{
    const struct tdm_layout *layout = program->layout;
    return buffer_at(program,
                     layout->tied_home != TDM_NONE ? layout->tied_home : layout->tied_gradient);
}
