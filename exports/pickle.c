/* SPDX-License-Identifier: Apache-2.0 */
/* Writes Python's pickle format. Opcodes are those of Lib/pickletools.py. */
#include "exports/pickle.h"

#include <string.h>

#define PROTO 0x80
#define EMPTY_DICT '}'
#define EMPTY_LIST ']'
#define MARK '('
#define SETITEMS 'u'
#define APPENDS 'e'
#define BININT 'J'
#define BININT1 'K'
#define BININT2 'M'
#define LONG1 0x8a
#define SHORT_BINUNICODE 0x8c
#define BINUNICODE 'X'
#define MEMOIZE 0x94
#define BINGET 'h'
#define LONG_BINGET 'j'
#define NONE 'N'
#define NEWFALSE 0x89
#define STOP '.'

static void put_little(FILE *out, uint64_t number, int bytes)
{
    for (int i = 0; i < bytes; i++)
        fputc((int)(number >> 8 * i & 0xff), out);
}

struct tdm_pickle tdm_pickle_begin(FILE *out)
{
    fputc(PROTO, out);
    fputc(4, out);
    return (struct tdm_pickle){.out = out};
}

void tdm_pickle_end(struct tdm_pickle *pickle)
{
    fputc(STOP, pickle->out);
}

void tdm_pickle_none(struct tdm_pickle *pickle)
{
    fputc(NONE, pickle->out);
}

void tdm_pickle_false(struct tdm_pickle *pickle)
{
    fputc(NEWFALSE, pickle->out);
}

void tdm_pickle_number(struct tdm_pickle *pickle, uint64_t number)
{
    FILE *out = pickle->out;
    if (number < 0x100) {
        fputc(BININT1, out);
        put_little(out, number, 1);
    } else if (number < 0x10000) {
        fputc(BININT2, out);
        put_little(out, number, 2);
    } else if (number < 0x80000000) {
        fputc(BININT, out);
        put_little(out, number, 4);
    } else {
        fputc(LONG1, out);
        fputc(8, out);
        put_little(out, number, 8);
    }
}

void tdm_pickle_text(struct tdm_pickle *pickle, const char *text)
{
    const size_t bytes = strlen(text);
    fputc(bytes < 0x100 ? SHORT_BINUNICODE : BINUNICODE, pickle->out);
    put_little(pickle->out, bytes, bytes < 0x100 ? 1 : 4);
    fwrite(text, 1, bytes, pickle->out);
}

uint32_t tdm_pickle_keep(struct tdm_pickle *pickle)
{
    fputc(MEMOIZE, pickle->out);
    return pickle->kept++;
}

void tdm_pickle_again(struct tdm_pickle *pickle, uint32_t kept)
{
    fputc(kept < 0x100 ? BINGET : LONG_BINGET, pickle->out);
    put_little(pickle->out, kept, kept < 0x100 ? 1 : 4);
}

void tdm_pickle_begin_dict(struct tdm_pickle *pickle)
{
    fputc(EMPTY_DICT, pickle->out);
    fputc(MARK, pickle->out);
}

void tdm_pickle_end_dict(struct tdm_pickle *pickle)
{
    fputc(SETITEMS, pickle->out);
}

void tdm_pickle_begin_list(struct tdm_pickle *pickle, uint64_t *count)
{
    *count = 0;
    fputc(EMPTY_LIST, pickle->out);
}

void tdm_pickle_item(struct tdm_pickle *pickle, uint64_t *count)
{
    if (*count % TDM_PICKLE_BATCH == 0) {
        if (*count > 0)
            fputc(APPENDS, pickle->out);
        fputc(MARK, pickle->out);
    }
    (*count)++;
}

void tdm_pickle_end_list(struct tdm_pickle *pickle, uint64_t count)
{
    if (count > 0)
        fputc(APPENDS, pickle->out);
}
