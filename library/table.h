/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of a trace: which there are, and the columns of their rows. Only for library/. */
#ifndef TDM_LIBRARY_TABLE_H
#define TDM_LIBRARY_TABLE_H

#include "library/tidemark.h"
#include "traces/reader.h"

/* The C type of a member of a row. */
enum tdm_field {
    TDM_FIELD_COUNT,   /* uint64_t */
    TDM_FIELD_SIGNED,  /* int64_t */
    TDM_FIELD_NUMBER,  /* uint32_t; TDM_NONE: -1 */
    TDM_FIELD_YES,     /* bool */
    TDM_FIELD_REAL,    /* double */
    TDM_FIELD_CHARS,   /* char array */
    TDM_FIELD_POINTER, /* const char *, or NULL */
    /* enums, whose names are the texts */
    TDM_FIELD_PHASE,
    TDM_FIELD_KIND,
    TDM_FIELD_CONTENT, /* TDM_EMPTY: NULL */
    TDM_FIELD_CATEGORY,
    TDM_FIELD_PLACE,
    TDM_FIELD_LANE,
};

struct tdm_column {
    const char *name;
    enum tdm_field field;
    size_t place; /* offset in the row */
};

#define TDM_MOST_COLUMNS 24u

/* What is asked for. */
struct tdm_table_query {
    struct tdm_trace_reader *reader;
    int64_t program, step;
    uint32_t rank; /* that the reader sees */
};

struct tdm_table_kind {
    const char *name;
    size_t row_bytes;
    const struct tdm_column *columns; /* ended by one without a name */
    /* Reads the rows, in one allocation that the caller frees; NULL if there are none. */
    enum tdm_status (*read)(const struct tdm_table_query *query, void **rows, size_t *count,
                            struct tdm_error *err);
};

/* All tables; the last has no name. */
extern const struct tdm_table_kind tdm_table_kinds[];

#endif
