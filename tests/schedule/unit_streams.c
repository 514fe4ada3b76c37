/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the streams of ops of random programs, and of every shipped model at 13 nests, with
 * tests/data/op_streams.txt. A code change that should not change the streams must leave that file
 * as it is; `TDM_FREEZE=1 tests/schedule/unit_streams` writes it again.
 *
 * A digest covers what a stream says, by name and not by number: the buffers and their offsets, and
 * for each op its kind, part, phase, lane, rows, operands with their tags, and costs.
 */
#include "base/digest.h"
#include "ops/attention.h"
#include "ops/update.h"
#include "schedule/program.h"
#include "schedule/schedule_check.h"
#include "tests/support/random_schedule.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RANDOM = 300,
    IN_A_LINE = 10,
    NESTS = 13,
    CONTEXT = 16384,
    CHUNK = 2048,
    CHUNKS = CONTEXT / CHUNK
};
#define BASE_SEED 220000

static void must(enum tdm_status status, const char *what, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s: %s", what, err->message);
}

/* ---- the digest of a stream ---- */

/* A checksum over many small parts: they are collected first. */
struct stream {
    struct tdm_checksum sum;
    const struct tdm_program *program;
    size_t held;
    unsigned char bytes[4096];
};

static void add_held(struct stream *s)
{
    tdm_checksum_add(&s->sum, s->bytes, s->held);
    s->held = 0;
}

/* Of at most so many bytes. */
enum { LONGEST = 256 };

static unsigned char *next_bytes(struct stream *s)
{
    if (s->held + LONGEST > sizeof(s->bytes))
        add_held(s);
    return s->bytes + s->held;
}

static void add_text(struct stream *s, const char *text)
{
    size_t count = strlen(text) + 1;
    assert_true(count <= LONGEST);
    memcpy(next_bytes(s), text, count);
    s->held += count;
}

static void add_number(struct stream *s, uint64_t number)
{
    unsigned char *bytes = next_bytes(s);
    for (unsigned i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(number >> (8 * i));
    s->held += 8;
}

static void add_tag(struct stream *s, const struct tdm_tag *tag)
{
    add_text(s, tdm_content_name(tag->content));
    add_number(s, tag->layer);
    add_number(s, tag->chunk);
    add_number(s, tag->contributor);
}

static void add_access(struct stream *s, const struct tdm_access *access)
{
    static const char *const modes[] = {
        [TDM_READ] = "r", [TDM_WRITE] = "w", [TDM_ACCUMULATE] = "a"};
    add_number(s, access->buffer != TDM_NONE);
    if (access->buffer == TDM_NONE)
        return;
    const struct tdm_buffer *buffer = &s->program->buffers[access->buffer];
    add_text(s, buffer->name);
    add_text(s, modes[access->mode]);
    add_number(s, access->first_slot);
    add_number(s, access->slots);
    add_text(s, buffer->by_part && access->part < TDM_PARTS
                    ? tdm_part_name((enum tdm_part)access->part)
                    : "-");
    add_tag(s, &access->before);
    add_tag(s, &access->after);
    add_number(s, access->bytes);
}

/* Number of operands in the digest of an op: up to the last one that is present. As in the frozen
 * file, the optimizer's norms and the sums that attention_grad adds to are included even if
 * absent. */
static uint32_t frozen_count(const struct tdm_op *op)
{
    uint32_t count = op->kind == TDM_OP_OPTIMIZER        ? TDM_OPTIMIZER_NORMS + 1
                     : op->kind == TDM_OP_ATTENTION_GRAD ? TDM_ATTENTION_GRAD_DKV_ADDED + 1
                                                         : 0;
    for (uint32_t i = count; i < op->access_count; i++)
        if (op->access[i].buffer != TDM_NONE)
            count = i + 1;
    return count;
}

static void add_op(struct stream *s, const struct tdm_op *op)
{
    uint32_t operands = frozen_count(op);
    add_text(s, tdm_op_kind_name(op->kind));
    add_text(s, op->part < TDM_PARTS ? tdm_part_name(op->part) : "-");
    add_text(s, tdm_phase_name(op->phase));
    add_text(s, tdm_lane_name(&s->program->schedule->machine->topology, op->lane));
    const uint64_t numbers[] = {op->number,    op->layer,       op->chunk,         op->tokens,
                                op->first_row, op->first_entry, op->entries,       operands,
                                op->flops,     op->bytes,       op->fetched_bytes, op->sent_bytes,
                                op->keys,      op->pairs,       op->head_dim};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        add_number(s, numbers[i]);
    for (uint32_t i = 0; i < operands; i++)
        add_access(s, &op->access[i]);
}

static enum tdm_status add_item(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    (void)err;
    struct stream *s = self;
    if (item->kind == TDM_RUN) {
        add_op(s, item->op);
    } else {
        add_text(s, item->kind == TDM_ALLOC ? "alloc" : "free");
        add_text(s, s->program->buffers[item->buffer].name);
    }
    return TDM_OK;
}

static void add_buffers(struct stream *s)
{
    for (uint32_t i = 0; i < s->program->buffer_count; i++) {
        const struct tdm_buffer *buffer = &s->program->buffers[i];
        if (!buffer->used)
            continue;
        add_text(s, buffer->name);
        add_text(s, tdm_place_name(&s->program->schedule->machine->topology, buffer->place));
        add_text(s, tdm_category_name(buffer->category));
        add_text(s, tdm_dtype_name(buffer->dtype));
        add_number(s, buffer->slots);
        add_number(s, buffer->slot_bytes);
        add_number(s, buffer->offset);
    }
    for (int place = 0; place < TDM_PLACES; place++)
        add_number(s, s->program->arena_bytes[place]);
}

static uint64_t digest(const struct tdm_schedule *schedule, const char *what)
{
    struct tdm_program *program = NULL;
    struct tdm_error err;
    must(tdm_program_lower(schedule, &program, &err), what, &err);
    struct stream s = {.program = program};
    add_buffers(&s);
    must(tdm_program_emit(program, add_item, &s, &err), what, &err);
    add_held(&s);
    tdm_program_free(program);
    return tdm_checksum_value(&s.sum);
}

/* ---- nests ---- */

static void set_all(struct tdm_schedule *schedule, enum tdm_set kept, enum tdm_set held)
{
    for (uint32_t g = 0; g < schedule->group_count; g++) {
        schedule->groups[g].kept = kept;
        schedule->groups[g].held = held;
        if (tdm_set_has(kept, TDM_STORE_KV) || tdm_set_has(held, TDM_STORE_KV))
            schedule->groups[g].kv = TDM_KV_KEEP;
    }
}

/* Groups of `size` layers; the last group has the remaining layers. */
static void set_groups(struct tdm_schedule *schedule, uint32_t size)
{
    uint32_t sizes[256], count = 0;
    struct tdm_error err;
    for (uint32_t left = schedule->model->layers; left > 0; left -= sizes[count++])
        sizes[count] = left < size ? left : size;
    must(tdm_schedule_set_groups(schedule, count, sizes, &err), "groups", &err);
    tdm_schedule_set_order(schedule, schedule->order);
}

static void on_the_host(struct tdm_schedule *schedule, uint32_t device_layers)
{
    for (int state = 0; state < TDM_STATES; state++)
        if (state != TDM_STATE_GRADIENTS)
            tdm_schedule_set_home(schedule, (enum tdm_state)state, device_layers, TDM_HOST);
}

static void set_nest(struct tdm_schedule *schedule, unsigned nest)
{
    const uint32_t layers = schedule->model->layers;
    struct tdm_group *groups;
    if (nest >= 9)
        schedule->order = TDM_CHUNK_MAJOR;
    set_groups(schedule, nest < 4 || nest == 8 ? 1
                         : nest < 6            ? 2
                         : nest < 8            ? 5
                         : nest < 11           ? layers
                                               : 3);
    groups = schedule->groups;
    switch (nest) {
    case 0:
        set_all(schedule, TDM_SET_INPUT, TDM_SET_INPUT);
        break;
    case 1:
        set_all(schedule, TDM_SET_ATTENTION_OUTPUT, TDM_SET_INPUT);
        break;
    case 2:
        set_all(schedule, TDM_SET_QKV, TDM_SET_INPUT);
        break;
    case 3:
        set_all(schedule, TDM_SET_ALL, TDM_SET_INPUT);
        break;
    case 4:
        set_all(schedule, TDM_SET_INPUT, TDM_SET_ATTENTION_OUTPUT);
        break;
    case 5:
        set_all(schedule, TDM_SET_INPUT, TDM_SET_INPUT);
        break;
    case 6:
        set_all(schedule, TDM_SET_INPUT, TDM_SET_QKV);
        break;
    case 7:
        set_all(schedule, TDM_SET_ATTENTION_OUTPUT, TDM_SET_ATTENTION_OUTPUT);
        for (uint32_t g = 0; g < schedule->group_count; g++) {
            groups[g].kept_from_chunk = CHUNKS / 5;
            groups[g].kept_place = g % 2 == 0 ? TDM_HOST : TDM_DEVICE;
            groups[g].input_place = g % 3 == 1 ? TDM_HOST : TDM_DEVICE;
        }
        break;
    case 8:
        set_all(schedule, TDM_SET_QKV, TDM_SET_INPUT);
        for (uint32_t g = 0; g < schedule->group_count; g++)
            groups[g].kept_place = groups[g].kv_place = TDM_HOST;
        on_the_host(schedule, layers / 3);
        schedule->head_tile_tokens = 512;
        break;
    case 9:
        set_all(schedule, TDM_SET_INPUT, TDM_SET_ATTENTION_OUTPUT);
        break;
    case 10:
        set_all(schedule, TDM_SET_INPUT, TDM_SET_QKV);
        schedule->dtypes.kv_gradients = TDM_DTYPE_BF16;
        break;
    case 11:
        set_all(schedule, TDM_SET_ALL, TDM_SET_ALL);
        on_the_host(schedule, 0);
        schedule->optimizer.on = TDM_HOST;
        break;
    default:
        set_all(schedule, TDM_SET_INPUT, TDM_SET_QKV);
        for (uint32_t g = 0; g < schedule->group_count; g++)
            groups[g].kv_place = groups[g].kv_gradients_place = TDM_HOST;
        schedule->selector = (struct tdm_selector){.kind = TDM_SELECT_TOP_K, .budget = 2048};
        schedule->head_tile_vocabulary = 16384;
        schedule->optimizer.clip = TDM_CLIP_GLOBAL;
        schedule->optimizer.clip_norm = 1;
        schedule->optimizer.when = TDM_WHEN_END;
    }
}

/* False: the planner does not take this model, or not at this nest. */
static bool model_digest(const char *name, unsigned nest, uint64_t *sum)
{
    struct tdm_model *model = NULL;
    struct tdm_machine *machine = NULL;
    struct tdm_schedule *schedule = NULL;
    struct tdm_error err;
    char what[128];
    snprintf(what, sizeof(what), "%s, nest %u", name, nest);
    must(tdm_model_load(name, &model, &err), what, &err);
    must(tdm_machine_load("h200-published", &machine, &err), what, &err);
    if (model->sized_only) { /* only for predictions */
        tdm_model_free(model);
        tdm_machine_free(machine);
        return false;
    }
    must(tdm_schedule_new(model, machine, CONTEXT, &schedule, &err), what, &err);
    schedule->chunk_tokens = CHUNK;
    set_nest(schedule, nest);
    enum tdm_status status = tdm_schedule_check(schedule, what, &err);
    if (status == TDM_OK)
        *sum = digest(schedule, what);
    tdm_schedule_free(schedule);
    return status == TDM_OK;
}

/* ---- the file ---- */

static const char *file_path(void)
{
    static char path[4096];
    const char *sources = getenv("TDM_SRCDIR");
    snprintf(path, sizeof(path), "%s/tests/data/op_streams.txt", sources == NULL ? "." : sources);
    return path;
}

/* Checks that the next line of the file is `line`; with `freeze`, writes it. */
static void line_is(FILE *file, bool freeze, const char *line)
{
    char found[512] = "";
    if (freeze) {
        assert_true(fputs(line, file) >= 0);
        return;
    }
    while (fgets(found, sizeof(found), file) != NULL && found[0] == '#')
        ;
    if (strcmp(found, line) != 0)
        fail_msg(
            "other ops than before: %sinstead of %s(TDM_FREEZE=1 tests/schedule/unit_streams accepts it)",
            line, found);
}

static size_t random_lines(FILE *file, bool freeze)
{
    char line[512];
    for (unsigned first = 0; first < RANDOM; first += IN_A_LINE) {
        int at = snprintf(line, sizeof(line), "random %u", first);
        for (unsigned i = first; i < first + IN_A_LINE; i++) {
            const struct tdm_random_options options = {.pass = TDM_RANDOM_ANY_PASS,
                                                       .max_tokens = i % 3 == 0 ? 2000 : 64};
            struct tdm_schedule *schedule = NULL;
            struct tdm_error err;
            must(tdm_random_schedule(BASE_SEED + i, &options, &schedule, &err), "random", &err);
            at += snprintf(line + at, sizeof(line) - (size_t)at, " %08" PRIx32,
                           (uint32_t)(digest(schedule, "random") >> 32));
            tdm_schedule_free(schedule);
        }
        snprintf(line + at, sizeof(line) - (size_t)at, "\n");
        line_is(file, freeze, line);
    }
    return RANDOM;
}

static size_t model_lines(FILE *file, bool freeze)
{
    char **names, line[512];
    struct tdm_error err;
    size_t streams = 0;
    must(tdm_model_names(&names, &err), "models", &err);
    for (size_t m = 0; names[m] != NULL; m++) {
        int at = snprintf(line, sizeof(line), "%s", names[m]);
        for (unsigned nest = 0; nest < NESTS; nest++) {
            uint64_t sum;
            if (!model_digest(names[m], nest, &sum)) {
                at += snprintf(line + at, sizeof(line) - (size_t)at, " -");
                continue;
            }
            at += snprintf(line + at, sizeof(line) - (size_t)at, " %08" PRIx32,
                           (uint32_t)(sum >> 32));
            streams++;
        }
        snprintf(line + at, sizeof(line) - (size_t)at, "\n");
        line_is(file, freeze, line);
    }
    free(names);
    return streams;
}

static void streams_are_as_they_were(void **state)
{
    (void)state;
    const char *asked = getenv("TDM_FREEZE");
    bool freeze = asked != NULL && asked[0] != '\0';
    FILE *file = fopen(file_path(), freeze ? "w" : "r");
    if (file == NULL)
        fail_msg("%s: cannot be opened", file_path());
    if (freeze)
        fputs(
            "# Digests of streams of ops: see tests/schedule/unit_streams.c. A line has those of ten random programs, or of\n"
            "# a shipped model at 13 nests, - where the model cannot have it.\n",
            file);
    size_t streams = random_lines(file, freeze);
    streams += model_lines(file, freeze);
    assert_int_equal(fclose(file), 0);
    printf("# %zu streams are as they were\n", streams);
    assert_true(streams > 600);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(streams_are_as_they_were)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
