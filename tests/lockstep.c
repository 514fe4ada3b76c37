/* SPDX-License-Identifier: Apache-2.0 */
/* Lockstep: a backend against the cpu backend, op by op. */
#include "tests/lockstep.h"

#include "schedule/learning_rate.h"
#include "schedule/operands.h"
#include "tests/lockstep_slack.h"
#include "tests/step_data.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0xff /* not-a-number in every dtype of values */
#define GUARD_BYTES 65536u
#define NEIGHBOUR_BYTES 256u /* on either side of what an op writes */

struct walk {
    struct tdm_program *program;
    struct tdm_arenas cpu, other;
    struct tdm_step step;
    struct tdm_lockstep *lockstep;
    unsigned char *seen;   /* room for copies of what the other backend has */
    unsigned char *before; /* operands before the op */
    uint64_t before_bytes;
    uint64_t unseen_bytes; /* written since all of the arenas was compared */
};

/* ---- both arenas ---- */

static uint64_t offset_of(const struct tdm_buffer *buffer, uint32_t slot)
{
    return buffer->offset + slot * buffer->slot_bytes;
}

static enum tdm_status upload(struct walk *w, enum tdm_place place, uint64_t offset, uint64_t bytes,
                              struct tdm_error *err)
{
    if (bytes == 0 || w->cpu.base[place] == NULL)
        return TDM_OK;
    return w->other.backend->upload(w->other.executor,
                                    (unsigned char *)w->other.base[place] + offset,
                                    (unsigned char *)w->cpu.base[place] + offset, bytes, err);
}

/* Copies what the other backend has. */
static enum tdm_status download(struct walk *w, enum tdm_place place, uint64_t offset,
                                uint64_t bytes, unsigned char *to, struct tdm_error *err)
{
    return w->other.backend->download(w->other.executor, to,
                                      (unsigned char *)w->other.base[place] + offset, bytes, err);
}

static enum tdm_status poison(struct walk *w, const struct tdm_buffer *buffer, uint64_t offset,
                              uint64_t bytes, struct tdm_error *err)
{
    memset((unsigned char *)w->cpu.base[buffer->place] + offset, POISON, bytes);
    return upload(w, buffer->place, offset, bytes, err);
}

/* ---- an op's operands ---- */

static bool overlap(const struct tdm_access *a, const struct tdm_access *b)
{
    return a->buffer == b->buffer && a->first_slot < b->first_slot + b->slots &&
           b->first_slot < a->first_slot + a->slots;
}

/* Does the op write where this operand is? */
static bool changes(const struct tdm_op *op, const struct tdm_access *access)
{
    for (uint32_t i = 0; i < op->access_count; i++)
        if (tdm_is_written(&op->access[i]) && overlap(access, &op->access[i]))
            return true;
    return false;
}

/* Does it need what is where it writes? */
static bool in_place(const struct tdm_op *op, const struct tdm_access *write)
{
    for (uint32_t i = 0; i < op->access_count; i++)
        if (op->access[i].buffer != TDM_NONE && op->access[i].mode != TDM_WRITE &&
            overlap(write, &op->access[i]))
            return true;
    return false;
}

static struct tdm_launch launch_in(const struct walk *w, const struct tdm_arenas *arenas,
                                   const struct tdm_op *op)
{
    struct tdm_launch launch = {.program = w->program,
                                .op = op,
                                .step = &w->step,
                                .scratch = tdm_arenas_scratch(arenas, w->program)};
    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct tdm_access *access = &op->access[i];
        if (access->buffer == TDM_NONE)
            continue;
        const struct tdm_buffer *buffer = &w->program->buffers[access->buffer];
        launch.operand[i] =
            (struct tdm_operand){.data = tdm_arenas_slot(arenas, buffer, access->first_slot),
                                 .dtype = buffer->dtype,
                                 .mode = access->mode,
                                 .slots = access->slots,
                                 .slot_bytes = buffer->slot_bytes};
    }
    return launch;
}

/* The cpu's operands as they are before the op: copies of those that it changes. */
static enum tdm_status keep_operands(struct walk *w, const struct tdm_op *op,
                                     struct tdm_launch *launch, struct tdm_error *err)
{
    uint64_t bytes = 0, at = 0;
    *launch = launch_in(w, &w->cpu, op);
    for (uint32_t i = 0; i < op->access_count; i++)
        if (launch->operand[i].data != NULL && changes(op, &op->access[i]))
            bytes += launch->operand[i].slots * launch->operand[i].slot_bytes;
    if (bytes > w->before_bytes) {
        free(w->before);
        w->before = malloc(bytes);
        w->before_bytes = w->before == NULL ? 0 : bytes;
        if (w->before == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "out of memory for operands");
    }
    for (uint32_t i = 0; i < op->access_count; i++) {
        struct tdm_operand *operand = &launch->operand[i];
        if (operand->data == NULL || !changes(op, &op->access[i]))
            continue;
        uint64_t of_operand = operand->slots * operand->slot_bytes;
        memcpy(w->before + at, operand->data, of_operand);
        operand->data = w->before + at;
        at += of_operand;
    }
    return TDM_OK;
}

static enum tdm_status poison_outputs(struct walk *w, const struct tdm_op *op,
                                      struct tdm_error *err)
{
    const struct tdm_model *model = w->program->schedule->model;
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < op->access_count && status == TDM_OK; i++) {
        const struct tdm_access *access = &op->access[i];
        if (!tdm_is_written(access) || access->mode != TDM_WRITE || in_place(op, access))
            continue;
        const struct tdm_buffer *buffer = &w->program->buffers[access->buffer];
        uint64_t first = offset_of(buffer, access->first_slot);
        if (!tdm_content_is_of_unit(access->after.content)) {
            status = poison(w, buffer, first, access->slots * buffer->slot_bytes, err);
            continue;
        }
        const struct tdm_unit *unit = &model->units[access->after.layer];
        for (uint32_t t = 0; t < unit->tensor_count && status == TDM_OK; t++) {
            const struct tdm_tensor *tensor = &model->tensors[unit->first_tensor + t];
            uint64_t size = tdm_dtype_bytes(buffer->dtype);
            if (tdm_is_of_part(access, tensor))
                status =
                    poison(w, buffer, first + tensor->offset * size, tensor->elements * size, err);
        }
    }
    return status;
}

/* ---- comparison ---- */

static void __attribute__((format(printf, 3, 4)))
note_wrong(struct walk *w, const struct tdm_op *op, const char *format, ...)
{
    struct tdm_lockstep *lockstep = w->lockstep;
    char text[256];
    va_list args;
    if (lockstep->wrong++ > 0)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    snprintf(lockstep->first, sizeof(lockstep->first),
             "op %llu of step %llu (%s, part %s, layer %d, chunk %d, %llu tokens from %llu): %s",
             (unsigned long long)op->number, (unsigned long long)w->step.number,
             tdm_op_kind_name(op->kind), op->part == 0 ? "-" : tdm_part_name(op->part),
             (int)op->layer, (int)op->chunk, (unsigned long long)op->tokens,
             (unsigned long long)op->first_row, text);
}

static double as_double(const unsigned char *at, enum tdm_dtype dtype)
{
    float single;
    double wide;
    uint16_t half;
    int32_t whole;
    switch (dtype) {
    case TDM_DTYPE_FP32:
        memcpy(&single, at, sizeof(single));
        return (double)single;
    case TDM_DTYPE_FP64:
        memcpy(&wide, at, sizeof(wide));
        return wide;
    case TDM_DTYPE_INT32:
        memcpy(&whole, at, sizeof(whole));
        return whole;
    default:
        memcpy(&half, at, sizeof(half));
        return (double)tdm_bf16_to_float(half);
    }
}

/* One unit in the last place of a number of this size. */
static double unit_of(double value, enum tdm_dtype dtype)
{
    int exponent;
    int digits = dtype == TDM_DTYPE_BF16 ? 8 : dtype == TDM_DTYPE_FP32 ? 24 : 53;
    if (value == 0)
        return 0;
    frexp(value, &exponent);
    int least = dtype == TDM_DTYPE_FP64 ? -1021 : -125;
    return ldexp(1, (exponent < least ? least : exponent) - digits);
}

static bool is_poison(const unsigned char *at, uint64_t size)
{
    for (uint64_t i = 0; i < size; i++)
        if (at[i] != POISON)
            return false;
    return true;
}

/* Compares the elements of a piece and makes those that are within their bounds the same. */
static bool compare_piece(struct walk *w, const struct tdm_op *op, const struct tdm_slack *slack,
                          const struct tdm_written *piece, const unsigned char *due,
                          unsigned char *got)
{
    struct tdm_lockstep_kind *kind = &w->lockstep->kinds[op->kind];
    enum tdm_dtype dtype = piece->dtype;
    uint64_t size = tdm_dtype_bytes(dtype), elements = piece->elements;
    bool right = true;
    kind->elements += elements;
    struct tdm_lockstep_elements *seen = dtype == TDM_DTYPE_BF16 ? &kind->bf16 : &kind->others;
    for (uint64_t i = 0; i < elements && right; i++, due += size, got += size) {
        double a = as_double(due, dtype), b = as_double(got, dtype);
        if (isfinite(a))
            seen->size += a * a;
        if (memcmp(due, got, size) == 0) {
            seen->bounded++;
            continue;
        }
        const char *fault = NULL;
        double allowed = 0, off = fabs(a - b);
        allowed = is_poison(due, size) ? -1 : tdm_slack_of(slack, piece, i, a);
        if (allowed >= 0)
            allowed += unit_of(fmax(fabs(a), fabs(b)), dtype);
        if (is_poison(due, size))
            fault = "was written and should not be";
        else if (is_poison(got, size) && !isinf(allowed))
            fault = "was not written";
        else if (!(off <= allowed))
            fault = allowed < 0 ? "is not the same" : "is beyond its bound";
        if (fault != NULL) {
            note_wrong(w, op, "%s operand %u slot %u element %llu %s: %.9g, due %.9g +- %.3g",
                       tdm_dtype_name(dtype), piece->operand, piece->slot, (unsigned long long)i,
                       fault, b, a, allowed);
            right = false;
        } else if (!isinf(allowed)) {
            seen->bounded++;
            seen->differ++;
            seen->off += off * off;
            kind->worst = fmax(kind->worst, off / allowed);
        }
        memcpy(got, due, size);
    }
    return right;
}

/* Compares one slot of an operand; `got` is a copy of what the other backend has. */
static bool compare_slot(struct walk *w, const struct tdm_launch *launch,
                         const struct tdm_slack *slack, uint32_t number, uint32_t slot,
                         unsigned char *got)
{
    const struct tdm_operand *operand = &launch->operand[number];
    const unsigned char *due = (unsigned char *)operand->data + slot * operand->slot_bytes;
    struct tdm_written written[TDM_WRITTEN_MOST];
    uint32_t count = tdm_list_written(launch, number, slot, written);
    bool right = true;
    for (uint32_t i = 0; i < count && right; i++)
        right = compare_piece(w, launch->op, slack, &written[i], due + written[i].offset,
                              got + written[i].offset);
    if (right && memcmp(due, got, operand->slot_bytes) != 0) {
        note_wrong(w, launch->op, "operand %u slot %u was written where it should not be", number,
                   slot);
        right = false;
    }
    return right;
}

/* The name of a buffer at an offset, for a message. */
static const char *buffer_at(const struct walk *w, enum tdm_place place, uint64_t offset)
{
    for (uint32_t i = 0; i < w->program->buffer_count; i++) {
        const struct tdm_buffer *buffer = &w->program->buffers[i];
        if (buffer->used && buffer->place == place && offset >= buffer->offset &&
            offset - buffer->offset < buffer->bytes)
            return buffer->name;
    }
    return "no buffer";
}

/* What the other backend has in an operand and on both sides of it. */
struct seen {
    enum tdm_place place;
    uint64_t first, end;    /* bytes of the operand in the arena */
    uint64_t offset, bytes; /* with its neighbours */
    unsigned char *data;
};

/* Copies of all operands that an op wrote, before any of them is compared. */
static enum tdm_status see_operands(struct walk *w, const struct tdm_op *op,
                                    struct seen seen[TDM_OPERANDS], struct tdm_error *err)
{
    unsigned char *at = w->seen;
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < op->access_count && status == TDM_OK; i++) {
        const struct tdm_access *access = &op->access[i];
        seen[i] = (struct seen){0};
        if (!tdm_is_written(access))
            continue;
        const struct tdm_buffer *buffer = &w->program->buffers[access->buffer];
        struct seen *x = &seen[i];
        x->place = buffer->place;
        x->first = offset_of(buffer, access->first_slot);
        x->end = x->first + access->slots * buffer->slot_bytes;
        x->offset = x->first < NEIGHBOUR_BYTES ? 0 : x->first - NEIGHBOUR_BYTES;
        x->bytes = x->end + NEIGHBOUR_BYTES - x->offset; /* a guard is behind all buffers */
        x->data = at;
        at += x->bytes;
        status = download(w, x->place, x->offset, x->bytes, x->data, err);
    }
    return status;
}

static bool is_operand(const struct seen seen[TDM_OPERANDS], uint32_t count, enum tdm_place place,
                       uint64_t offset)
{
    for (uint32_t i = 0; i < count; i++)
        if (seen[i].data != NULL && seen[i].place == place && offset >= seen[i].first &&
            offset < seen[i].end)
            return true;
    return false;
}

/* Scratch is the op's own, and nobody's after it. */
static bool is_scratch(const struct walk *w, enum tdm_place place, uint64_t offset)
{
    const struct tdm_buffer *scratch = &w->program->buffers[w->program->scratch];
    return place == scratch->place && offset >= scratch->offset &&
           offset - scratch->offset < scratch->bytes;
}

/* Bytes of an arena that must be the same; true if they are. */
static bool compare_bytes(struct walk *w, const struct tdm_op *op, enum tdm_place place,
                          uint64_t offset, uint64_t bytes, const unsigned char *got,
                          const struct seen seen[TDM_OPERANDS])
{
    const unsigned char *due = (const unsigned char *)w->cpu.base[place] + offset;
    if (memcmp(due, got, bytes) == 0)
        return true;
    for (uint64_t i = 0; i < bytes; i++) {
        if (due[i] == got[i] || is_scratch(w, place, offset + i) ||
            is_operand(seen, op->access_count, place, offset + i))
            continue;
        note_wrong(w, op, "byte %llu of the %s was changed, of %s, which is not its own",
                   (unsigned long long)(offset + i), tdm_place_name(place),
                   buffer_at(w, place, offset + i));
        return false;
    }
    return true;
}

/* Compares all that an op may have written, and gives the other backend what the cpu has. */
static enum tdm_status compare_op(struct walk *w, const struct tdm_launch *launch,
                                  const struct tdm_slack *slack, struct tdm_error *err)
{
    const struct tdm_op *op = launch->op;
    struct tdm_lockstep_kind *kind = &w->lockstep->kinds[op->kind];
    struct seen seen[TDM_OPERANDS];
    bool right = true;
    kind->ops++;
    enum tdm_status status = see_operands(w, op, seen, err);
    for (uint32_t i = 0; i < op->access_count && status == TDM_OK; i++) {
        const struct seen *x = &seen[i];
        if (x->data == NULL)
            continue;
        const unsigned char *due = (const unsigned char *)w->cpu.base[x->place] + x->offset;
        uint64_t bytes = x->end - x->first, margin = x->first - x->offset;
        if (memcmp(due, x->data, x->bytes) == 0) {
            enum tdm_dtype dtype = launch->operand[i].dtype;
            uint64_t elements = op->access[i].bytes / tdm_dtype_bytes(dtype);
            kind->elements += elements;
            (dtype == TDM_DTYPE_BF16 ? &kind->bf16 : &kind->others)->bounded += elements;
            continue;
        }
        right = compare_bytes(w, op, x->place, x->offset, margin, x->data, seen) && right;
        right = compare_bytes(w, op, x->place, x->end, x->bytes - margin - bytes,
                              x->data + margin + bytes, seen) &&
                right;
        for (uint32_t slot = 0; slot < op->access[i].slots; slot++)
            right = compare_slot(w, launch, slack, i, slot,
                                 x->data + margin + slot * launch->operand[i].slot_bytes) &&
                    right;
        status = upload(w, x->place, x->offset, x->bytes, err);
        w->unseen_bytes += bytes;
    }
    kind->wrong += !right;
    return status;
}

static enum tdm_status compare_range(struct walk *w, const struct tdm_op *op, enum tdm_place place,
                                     uint64_t offset, uint64_t bytes, struct tdm_error *err)
{
    const struct seen none[TDM_OPERANDS] = {{0}};
    enum tdm_status status = download(w, place, offset, bytes, w->seen, err);
    if (status != TDM_OK || compare_bytes(w, op, place, offset, bytes, w->seen, none))
        return status;
    w->lockstep->kinds[op->kind].wrong++;
    return upload(w, place, offset, bytes, err);
}

/* Compares all bytes of the arenas but scratch: ops up to this one have left alone what is not theirs. */
static enum tdm_status compare_arenas(struct walk *w, const struct tdm_op *op,
                                      struct tdm_error *err)
{
    const struct tdm_buffer *scratch = &w->program->buffers[w->program->scratch];
    enum tdm_status status = TDM_OK;
    w->unseen_bytes = 0;
    for (int place = 0; place < TDM_PLACES && status == TDM_OK; place++) {
        uint64_t bytes = w->cpu.bytes[place], begin = bytes, end = bytes;
        if (scratch->used && (int)scratch->place == place) {
            begin = scratch->offset;
            end = scratch->offset + scratch->bytes;
        }
        if (w->cpu.base[place] == NULL)
            continue;
        status = compare_range(w, op, (enum tdm_place)place, 0, begin, err);
        if (status == TDM_OK)
            status = compare_range(w, op, (enum tdm_place)place, end, bytes - end, err);
    }
    return status;
}

/* ---- the walk ---- */

static enum tdm_status run_on(const struct tdm_arenas *arenas, const struct tdm_launch *launch,
                              struct tdm_error *err)
{
    const struct tdm_backend *backend = arenas->backend;
    struct tdm_timing timings[16];
    enum tdm_status status = backend->run[launch->op->kind](arenas->executor, launch, err);
    if (status == TDM_OK && backend->finish != NULL)
        status = backend->finish(arenas->executor, err);
    while (backend->reap != NULL && backend->reap(arenas->executor, timings, 16) > 0)
        ;
    return status;
}

static enum tdm_status run_op(struct walk *w, const struct tdm_op *op, struct tdm_error *err)
{
    struct tdm_launch before, of_cpu = launch_in(w, &w->cpu, op);
    struct tdm_launch of_other = launch_in(w, &w->other, op);
    struct tdm_slack slack = {0};
    enum tdm_status status = keep_operands(w, op, &before, err);
    if (status == TDM_OK)
        status = poison_outputs(w, op, err);
    if (status == TDM_OK)
        status = run_on(&w->cpu, &of_cpu, err);
    if (status == TDM_OK)
        status = run_on(&w->other, &of_other, err);
    if (status == TDM_OK)
        status = tdm_slack_begin(&slack, &before, &w->cpu, err);
    if (status == TDM_OK)
        status = compare_op(w, &of_cpu, &slack, err);
    tdm_slack_end(&slack);
    uint64_t all = w->cpu.bytes[TDM_DEVICE] - w->program->buffers[w->program->scratch].bytes;
    if (status == TDM_OK && w->unseen_bytes * 8 > all)
        status = compare_arenas(w, op, err);
    return status;
}

static enum tdm_status take_item(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct walk *w = self;
    if (item->kind == TDM_RUN)
        return run_op(w, item->op, err);
    const struct tdm_buffer *buffer = &w->program->buffers[item->buffer];
    if (buffer->resident)
        return TDM_OK;
    return poison(w, buffer, buffer->offset, buffer->bytes, err);
}

static enum tdm_status open_walk(struct walk *w, const struct tdm_schedule *schedule,
                                 const struct tdm_backend *backend, struct tdm_error *err)
{
    const struct tdm_backend *cpu;
    uint64_t all = 0;
    enum tdm_status status = tdm_backend_find("cpu", &cpu, err);
    if (status == TDM_OK)
        status = tdm_program_lower(schedule, &w->program, err);
    if (status != TDM_OK)
        return status;
    const struct tdm_program *const programs[] = {w->program};
    for (int place = 0; place < TDM_PLACES; place++) {
        if (w->program->arena_bytes[place] > 0)
            w->program->arena_bytes[place] += GUARD_BYTES; /* that nobody may touch */
        all += w->program->arena_bytes[place];
    }
    w->seen = malloc(all + TDM_OPERANDS * 2 * NEIGHBOUR_BYTES);
    if (w->seen == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for a copy of the arena");
    status = tdm_arenas_take(cpu, 1, programs, &w->cpu, err);
    return status == TDM_OK ? tdm_arenas_take(backend, 1, programs, &w->other, err) : status;
}

static void close_walk(struct walk *w)
{
    tdm_arenas_release(&w->cpu);
    tdm_arenas_release(&w->other);
    tdm_program_free(w->program);
    free(w->seen);
    free(w->before);
}

/* Poison, weights and tokens, on both. */
static enum tdm_status begin_walk(struct walk *w, const struct tdm_step_data *data,
                                  struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (int place = 0; place < TDM_PLACES; place++)
        if (w->cpu.base[place] != NULL)
            memset(w->cpu.base[place], POISON, w->cpu.bytes[place]);
    status = tdm_step_data_write(data, &w->cpu, w->program, err);
    for (int place = 0; place < TDM_PLACES && status == TDM_OK; place++)
        status = upload(w, (enum tdm_place)place, 0, w->cpu.bytes[place], err);
    return status;
}

enum tdm_status tdm_lockstep_run(const struct tdm_schedule *schedule,
                                 const struct tdm_backend *backend, uint64_t seed, uint32_t steps,
                                 struct tdm_lockstep *lockstep, struct tdm_error *err)
{
    struct walk w = {.lockstep = lockstep};
    struct tdm_step_data data = {0};
    struct tdm_op last = {.layer = TDM_NONE, .chunk = TDM_NONE};
    enum tdm_status status = open_walk(&w, schedule, backend, err);
    if (status == TDM_OK && !tdm_step_data_draw(&data, schedule, seed))
        status = tdm_fail(err, TDM_NO_MEMORY, "out of memory for weights");
    if (status == TDM_OK)
        status = begin_walk(&w, &data, err);
    for (uint32_t i = 0; i < steps && status == TDM_OK; i++) {
        w.step = (struct tdm_step){.number = i + 1,
                                   .learning_rate = tdm_learning_rate(&schedule->optimizer, i + 1),
                                   .seed = seed};
        status = tdm_program_emit(w.program, take_item, &w, err);
    }
    if (status == TDM_OK)
        status = compare_arenas(&w, &last, err);
    tdm_step_data_free(&data);
    close_walk(&w);
    return status;
}

static void add_elements(struct tdm_lockstep_elements *all, const struct tdm_lockstep_elements *one)
{
    all->bounded += one->bounded;
    all->differ += one->differ;
    all->off += one->off;
    all->size += one->size;
}

void tdm_lockstep_add(struct tdm_lockstep *all, const struct tdm_lockstep *one)
{
    for (int i = 0; i < TDM_OP_KINDS; i++) {
        all->kinds[i].ops += one->kinds[i].ops;
        all->kinds[i].elements += one->kinds[i].elements;
        add_elements(&all->kinds[i].bf16, &one->kinds[i].bf16);
        add_elements(&all->kinds[i].others, &one->kinds[i].others);
        all->kinds[i].worst = fmax(all->kinds[i].worst, one->kinds[i].worst);
        all->kinds[i].wrong += one->kinds[i].wrong;
    }
    if (all->wrong == 0 && one->wrong > 0)
        memcpy(all->first, one->first, sizeof(all->first));
    all->wrong += one->wrong;
}
