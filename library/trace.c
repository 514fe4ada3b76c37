/* SPDX-License-Identifier: Apache-2.0 */
/* Traces as tables of columns, for programs that link libtidemark: the rows of traces/reader.h,
 * turned by library/table_kinds.c. */
#include "library/tidemark.h"

#include "library/parts.h"
#include "library/table.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct tidemark_trace {
    struct tdm_trace_reader *reader;
    int64_t first_program; /* -1: none */
};

union cell {
    int64_t integer;
    double real;
    const char *text;
};

/* Columns are arrays of cells, which callers see as arrays of one of their members. */
static_assert(sizeof(union cell) == sizeof(int64_t) && sizeof(union cell) == sizeof(double) &&
                  sizeof(union cell) == sizeof(const char *),
              "cells have gaps");

struct tidemark_table {
    const struct tdm_table_kind *kind;
    struct tdm_topology topology; /* a copy, whose names texts point to */
    void *rows;                   /* names in them are pointed to, too */
    size_t row_count;
    uint32_t column_count;
    union cell *columns[TDM_MOST_COLUMNS]; /* [row_count] each */
};

enum tidemark_status tidemark_trace_open(const char *path, tidemark_trace **trace,
                                         struct tidemark_error *error)
{
    struct tdm_error err = {0};
    struct tdm_trace_program_row *programs = NULL;
    size_t count;
    tidemark_trace *opened = calloc(1, sizeof(*opened));
    if (opened == NULL)
        return tdm_library_tell(tdm_fail(&err, TDM_NO_MEMORY, "out of memory for the trace"), &err,
                                error);
    tdm_library_lock();
    enum tdm_status status = tdm_trace_reader_open(path, &opened->reader, &err);
    if (status == TDM_OK)
        status = tdm_trace_read_programs(opened->reader, &programs, &count, &err);
    tdm_library_unlock();
    if (status != TDM_OK) {
        tidemark_trace_close(opened);
        return tdm_library_tell(status, &err, error);
    }
    opened->first_program = count > 0 ? programs[0].program : -1;
    free(programs);
    *trace = opened;
    return tdm_library_tell(status, &err, error);
}

void tidemark_trace_close(tidemark_trace *trace)
{
    if (trace == NULL)
        return;
    tdm_trace_reader_close(trace->reader);
    free(trace);
}

const char *tidemark_trace_table_name(uint32_t index)
{
    uint32_t count = 0;
    while (tdm_table_kinds[count].name != NULL)
        count++;
    return index < count ? tdm_table_kinds[index].name : NULL;
}

static enum tidemark_type type_of(enum tdm_field field)
{
    if (field == TDM_FIELD_REAL)
        return TIDEMARK_REALS;
    return field < TDM_FIELD_REAL ? TIDEMARK_INTEGERS : TIDEMARK_TEXTS;
}

static const char *text_of(const struct tidemark_table *table, enum tdm_field field,
                           const void *member)
{
    switch (field) {
    case TDM_FIELD_CHARS:
        return member;
    case TDM_FIELD_POINTER:
        return *(const char *const *)member;
    case TDM_FIELD_PHASE:
        return tdm_phase_name(*(const enum tdm_phase *)member);
    case TDM_FIELD_KIND:
        return tdm_op_kind_name(*(const enum tdm_op_kind *)member);
    case TDM_FIELD_CATEGORY:
        return tdm_category_name(*(const enum tdm_category *)member);
    case TDM_FIELD_PLACE:
        return tdm_place_name(&table->topology, *(const enum tdm_place *)member);
    case TDM_FIELD_LANE:
        return tdm_lane_name(&table->topology, *(const enum tdm_lane *)member);
    default: {
        enum tdm_content content = *(const enum tdm_content *)member;
        return content == TDM_EMPTY ? NULL : tdm_content_name(content);
    }
    }
}

static union cell cell_of(const struct tidemark_table *table, enum tdm_field field,
                          const void *member)
{
    switch (field) {
    case TDM_FIELD_COUNT:
        return (union cell){.integer = (int64_t) * (const uint64_t *)member};
    case TDM_FIELD_SIGNED:
        return (union cell){.integer = *(const int64_t *)member};
    case TDM_FIELD_NUMBER: {
        uint32_t number = *(const uint32_t *)member;
        return (union cell){.integer = number == TDM_NONE ? -1 : (int64_t)number};
    }
    case TDM_FIELD_YES:
        return (union cell){.integer = *(const bool *)member};
    case TDM_FIELD_REAL:
        return (union cell){.real = *(const double *)member};
    default:
        return (union cell){.text = text_of(table, field, member)};
    }
}

/* Texts that belong to the reader become the table's. */
static bool keep_text(union cell *cell)
{
    if (cell->text == NULL)
        return true;
    cell->text = strdup(cell->text);
    return cell->text != NULL;
}

static enum tdm_status turn(tidemark_table *table, struct tdm_error *err)
{
    for (const struct tdm_column *column = table->kind->columns; column->name != NULL; column++) {
        union cell *cells = calloc(table->row_count + 1, sizeof(*cells));
        if (cells == NULL)
            return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the table \"%s\"",
                            table->kind->name);
        table->columns[table->column_count++] = cells;
        for (size_t row = 0; row < table->row_count; row++) {
            const char *of = (const char *)table->rows + row * table->kind->row_bytes;
            cells[row] = cell_of(table, column->field, of + column->place);
            if (column->field == TDM_FIELD_POINTER && !keep_text(&cells[row]))
                return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the table \"%s\"",
                                table->kind->name);
        }
    }
    return TDM_OK;
}

static enum tdm_status find_kind(const char *name, const struct tdm_table_kind **kind,
                                 struct tdm_error *err)
{
    for (*kind = tdm_table_kinds; (*kind)->name != NULL; (*kind)++)
        if (strcmp((*kind)->name, name) == 0)
            return TDM_OK;
    return tdm_fail(err, TDM_INPUT, "a trace has no table \"%s\"", name);
}

/* Has the trace the program, and the program the rank? */
static enum tdm_status check_program(const struct tdm_table_query *query, struct tdm_error *err)
{
    struct tdm_trace_program_row *programs = NULL;
    size_t count = 0, i = 0;
    enum tdm_status status = tdm_trace_read_programs(query->reader, &programs, &count, err);
    while (i < count && programs[i].program != query->program)
        i++;
    if (status == TDM_OK && i == count && query->program != -1) /* the first of none */
        status = tdm_fail(err, TDM_INPUT, "the trace has no program %" PRId64, query->program);
    else if (status == TDM_OK && i < count && query->rank >= programs[i].ranks)
        status =
            tdm_fail(err, TDM_INPUT, "the trace has no rank %" PRIu32 ", its program has %" PRIu32,
                     query->rank, programs[i].ranks);
    free(programs);
    return status;
}

/* Has the trace the step, which may not have ended? */
static enum tdm_status check_step(const struct tdm_table_query *query, struct tdm_error *err)
{
    struct tdm_trace_step_row *steps = NULL;
    struct tdm_trace_unfinished_row *unfinished = NULL;
    size_t count = 0, unfinished_count = 0;
    bool has = query->step == TDM_TRACE_EVERY_STEP;
    if (has)
        return TDM_OK;
    enum tdm_status status = tdm_trace_read_steps(query->reader, &steps, &count, err);
    if (status == TDM_OK)
        status = tdm_trace_read_unfinished(query->reader, &unfinished, &unfinished_count, err);
    for (size_t i = 0; i < count; i++)
        has = has || steps[i].step == query->step;
    for (size_t i = 0; i < unfinished_count; i++)
        has = has || unfinished[i].step == query->step;
    free(steps);
    free(unfinished);
    if (status == TDM_OK && !has)
        return tdm_fail(err, TDM_INPUT, "the trace has no step %" PRId64, query->step);
    return status;
}

enum tidemark_status tidemark_trace_read(tidemark_trace *trace, const char *name, int64_t program,
                                         int64_t step, uint32_t rank, tidemark_table **table,
                                         struct tidemark_error *error)
{
    struct tdm_error err = {0};
    const struct tdm_table_kind *kind;
    const struct tdm_table_query query = {.reader = trace->reader,
                                          .program = program != 0 ? program : trace->first_program,
                                          .step = step,
                                          .rank = rank};
    enum tdm_status status = find_kind(name, &kind, &err);
    if (status != TDM_OK)
        return tdm_library_tell(status, &err, error);
    tidemark_table *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return tdm_library_tell(tdm_fail(&err, TDM_NO_MEMORY, "out of memory for a table"), &err,
                                error);
    made->kind = kind;
    made->topology = *tdm_trace_reader_topology(trace->reader);
    tdm_library_lock();
    tdm_trace_reader_see(trace->reader, rank);
    status = check_program(&query, &err);
    if (status == TDM_OK)
        status = check_step(&query, &err);
    if (status == TDM_OK)
        status = kind->read(&query, &made->rows, &made->row_count, &err);
    tdm_library_unlock();
    if (status == TDM_OK)
        status = turn(made, &err);
    if (status == TDM_OK)
        *table = made;
    else
        tidemark_table_free(made);
    return tdm_library_tell(status, &err, error);
}

uint64_t tidemark_table_rows(const tidemark_table *table)
{
    return table->row_count;
}

uint32_t tidemark_table_columns(const tidemark_table *table)
{
    return table->column_count;
}

const char *tidemark_table_name(const tidemark_table *table, uint32_t column)
{
    return column < table->column_count ? table->kind->columns[column].name : NULL;
}

enum tidemark_type tidemark_table_type(const tidemark_table *table, uint32_t column)
{
    return column < table->column_count ? type_of(table->kind->columns[column].field)
                                        : TIDEMARK_INTEGERS;
}

static const union cell *cells_of(const tidemark_table *table, uint32_t column,
                                  enum tidemark_type type)
{
    return column < table->column_count && tidemark_table_type(table, column) == type
               ? table->columns[column]
               : NULL;
}

const int64_t *tidemark_table_integers(const tidemark_table *table, uint32_t column)
{
    const union cell *cells = cells_of(table, column, TIDEMARK_INTEGERS);
    return cells == NULL ? NULL : &cells->integer;
}

const double *tidemark_table_reals(const tidemark_table *table, uint32_t column)
{
    const union cell *cells = cells_of(table, column, TIDEMARK_REALS);
    return cells == NULL ? NULL : &cells->real;
}

const char *const *tidemark_table_texts(const tidemark_table *table, uint32_t column)
{
    const union cell *cells = cells_of(table, column, TIDEMARK_TEXTS);
    return cells == NULL ? NULL : &cells->text;
}

void tidemark_table_free(tidemark_table *table)
{
    if (table == NULL)
        return;
    for (uint32_t i = 0; i < table->column_count; i++) {
        for (size_t row = 0; row < table->row_count; row++)
            if (table->kind->columns[i].field == TDM_FIELD_POINTER)
                free((char *)table->columns[i][row].text);
        free(table->columns[i]);
    }
    free(table->rows);
    free(table);
}
