/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the contents of two backends' arenas after an op. */
#include "tests/support/lockstep_compare.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void __attribute__((format(printf, 3, 4)))
note_wrong(struct lockstep_walk *w, const struct tdm_op *op, const char *format, ...)
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

/* Compares the elements of a piece. Those within their bounds get the cpu's value. */
static bool compare_piece(struct lockstep_walk *w, const struct tdm_op *op,
                          const struct tdm_slack *slack, const struct tdm_written *piece,
                          const unsigned char *due, unsigned char *got)
{
    struct tdm_lockstep_kind *kind = &w->lockstep->kinds[op->kind];
    enum tdm_dtype dtype = piece->dtype;
    uint64_t size = tdm_dtype_bytes(dtype), elements = piece->elements;
    bool right = true;
    kind->elements += elements;
    struct tdm_lockstep_elements *seen = dtype == TDM_DTYPE_BF16 ? &kind->bf16 : &kind->others;
    for (uint64_t i = 0; i < elements && right; i++, due += size, got += size) {
        double a = tdm_value_of(due, dtype), b = tdm_value_of(got, dtype);
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

/* Compares one slot of an operand; `got` is a copy of the other backend's slot. */
static bool compare_slot(struct lockstep_walk *w, const struct tdm_launch *launch,
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
static const char *buffer_at(const struct lockstep_walk *w, enum tdm_place place, uint64_t offset)
{
    for (uint32_t i = 0; i < w->program->buffer_count; i++) {
        const struct tdm_buffer *buffer = &w->program->buffers[i];
        if (buffer->used && buffer->place == place && offset >= buffer->offset &&
            offset - buffer->offset < buffer->bytes)
            return buffer->name;
    }
    return "no buffer";
}

/* The other backend's bytes of an operand and its neighbours on both sides. */
struct seen {
    enum tdm_place place;
    uint64_t first, end;    /* bytes of the operand in the arena */
    uint64_t offset, bytes; /* including the neighbours */
    unsigned char *data;
};

/* Copies all operands that an op wrote, before comparing any. */
static enum tdm_status see_operands(struct lockstep_walk *w, const struct tdm_op *op,
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
        x->first = lockstep_offset(buffer, access->first_slot);
        x->end = x->first + access->slots * buffer->slot_bytes;
        x->offset = x->first < NEIGHBOUR_BYTES ? 0 : x->first - NEIGHBOUR_BYTES;
        x->bytes = x->end + NEIGHBOUR_BYTES - x->offset; /* guard bytes follow all buffers */
        x->data = at;
        at += x->bytes;
        status = lockstep_download(w, x->place, x->offset, x->bytes, x->data, err);
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

/* Scratch is private to an op, so it is not compared. */
static bool is_scratch(const struct lockstep_walk *w, enum tdm_place place, uint64_t offset)
{
    const struct tdm_buffer *scratch = &w->program->buffers[w->program->scratch];
    return place == scratch->place && offset >= scratch->offset &&
           offset - scratch->offset < scratch->bytes;
}

/* Compares bytes of an arena, except scratch and operands. True if they are the same. */
static bool compare_bytes(struct lockstep_walk *w, const struct tdm_op *op, enum tdm_place place,
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
                   (unsigned long long)(offset + i),
                   tdm_place_name(&w->program->schedule->machine->topology, place),
                   buffer_at(w, place, offset + i));
        return false;
    }
    return true;
}

enum tdm_status lockstep_compare_op(struct lockstep_walk *w, const struct tdm_launch *launch,
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
        status = lockstep_upload(w, x->place, x->offset, x->bytes, err);
        w->unseen_bytes += bytes;
    }
    kind->wrong += !right;
    return status;
}

static enum tdm_status compare_range(struct lockstep_walk *w, const struct tdm_op *op,
                                     enum tdm_place place, uint64_t offset, uint64_t bytes,
                                     struct tdm_error *err)
{
    const struct seen none[TDM_OPERANDS] = {{0}};
    enum tdm_status status = lockstep_download(w, place, offset, bytes, w->seen, err);
    if (status != TDM_OK || compare_bytes(w, op, place, offset, bytes, w->seen, none))
        return status;
    w->lockstep->kinds[op->kind].wrong++;
    return lockstep_upload(w, place, offset, bytes, err);
}

enum tdm_status lockstep_compare_arenas(struct lockstep_walk *w, const struct tdm_op *op,
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
