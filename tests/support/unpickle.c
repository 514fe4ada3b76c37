/* SPDX-License-Identifier: Apache-2.0 */
/* A stack machine that reads pickles. */
#include "tests/support/unpickle.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEPTH = 20000, MOST_MARKS = 64 };

struct machine {
    const unsigned char *bytes;
    size_t count, at;
    json_t *stack[MOST_DEPTH]; /* owned */
    size_t depth;
    size_t marks[MOST_MARKS], mark_count;
    json_t **memo; /* owned, one reference each */
    size_t memo_count, memo_capacity;
    const char *why;
};

static bool fail(struct machine *m, const char *why)
{
    m->why = why;
    return false;
}

static bool number(struct machine *m, int bytes, uint64_t *value)
{
    if (m->count - m->at < (size_t)bytes)
        return fail(m, "the pickle is cut");
    *value = 0;
    for (int i = 0; i < bytes; i++)
        *value |= (uint64_t)m->bytes[m->at++] << 8 * i;
    return true;
}

static bool push(struct machine *m, json_t *value)
{
    if (value == NULL)
        return fail(m, "a string is not UTF-8, or there is no memory");
    if (m->depth == MOST_DEPTH) {
        json_decref(value);
        return fail(m, "the stack is too deep");
    }
    m->stack[m->depth++] = value;
    return true;
}

static bool push_text(struct machine *m, int length_bytes)
{
    uint64_t length;
    if (!number(m, length_bytes, &length))
        return false;
    if (m->count - m->at < length)
        return fail(m, "a string is cut");
    const char *text = (const char *)m->bytes + m->at;
    m->at += length;
    return push(m, json_stringn(text, length));
}

static bool push_number(struct machine *m, int bytes)
{
    uint64_t value;
    return number(m, bytes, &value) &&
           ((value <= INT64_MAX && (bytes != 4 || value <= INT32_MAX)) ||
            fail(m, "a negative number")) &&
           push(m, json_integer((json_int_t)value));
}

static bool push_long(struct machine *m)
{
    uint64_t bytes;
    if (!number(m, 1, &bytes))
        return false;
    return bytes == 8 ? push_number(m, 8) : fail(m, "a long that has not 8 bytes");
}

static bool memoize(struct machine *m)
{
    if (m->depth == 0)
        return fail(m, "nothing to keep");
    if (m->memo_count == m->memo_capacity) {
        m->memo_capacity = m->memo_capacity == 0 ? 1024 : 2 * m->memo_capacity;
        m->memo = realloc(m->memo, m->memo_capacity * sizeof(json_t *));
        if (m->memo == NULL)
            abort();
    }
    m->memo[m->memo_count++] = json_incref(m->stack[m->depth - 1]);
    return true;
}

static bool again(struct machine *m, int bytes)
{
    uint64_t kept;
    if (!number(m, bytes, &kept))
        return false;
    return kept < m->memo_count ? push(m, json_incref(m->memo[kept])) : fail(m, "not in the memo");
}

/* SETITEMS and APPENDS: what is above the last mark goes into the value below it. */
static bool fill(struct machine *m, bool dict)
{
    if (m->mark_count == 0)
        return fail(m, "no mark");
    size_t mark = m->marks[--m->mark_count];
    json_t *into = mark == 0 ? NULL : m->stack[mark - 1];
    if (dict ? !json_is_object(into) || (m->depth - mark) % 2 != 0 : !json_is_array(into))
        return fail(m, "nothing to fill");
    for (size_t i = mark; i < m->depth; i += dict ? 2 : 1) {
        if (dict && (!json_is_string(m->stack[i]) ||
                     json_object_get(into, json_string_value(m->stack[i])) != NULL))
            return fail(m, "a key is no string, or is there twice");
        if (dict) {
            json_object_set_new(into, json_string_value(m->stack[i]), m->stack[i + 1]);
            json_decref(m->stack[i]);
        } else {
            json_array_append_new(into, m->stack[i]);
        }
    }
    m->depth = mark;
    return true;
}

/* False: it ended, or failed. */
static bool run_op(struct machine *m, bool *stopped)
{
    if (m->at == m->count)
        return fail(m, "no STOP");
    switch (m->bytes[m->at++]) {
    case 0x80: /* PROTO */
        return m->at == 1 && m->count > 1 && m->bytes[m->at++] == 4 ? true
                                                                    : fail(m, "not protocol 4");
    case '}':
        return push(m, json_object());
    case ']':
        return push(m, json_array());
    case '(':
        if (m->mark_count == MOST_MARKS)
            return fail(m, "too many marks");
        m->marks[m->mark_count++] = m->depth;
        return true;
    case 'u':
        return fill(m, true);
    case 'e':
        return fill(m, false);
    case 'J':
        return push_number(m, 4);
    case 'K':
        return push_number(m, 1);
    case 'M':
        return push_number(m, 2);
    case 0x8a: /* LONG1 */
        return push_long(m);
    case 0x8c: /* SHORT_BINUNICODE */
        return push_text(m, 1);
    case 'X':
        return push_text(m, 4);
    case 0x94: /* MEMOIZE */
        return memoize(m);
    case 'h':
        return again(m, 1);
    case 'j':
        return again(m, 4);
    case 'N':
        return push(m, json_null());
    case 0x89: /* NEWFALSE */
        return push(m, json_false());
    case '.':
        *stopped = true;
        return false;
    default:
        return fail(m, "an opcode that the viewer does not know");
    }
}

json_t *tdm_unpickle(const unsigned char *bytes, size_t count, const char **why)
{
    struct machine *m = calloc(1, sizeof(*m));
    bool stopped = false;
    json_t *value = NULL;
    if (m == NULL)
        abort();
    m->bytes = bytes;
    m->count = count;
    while (run_op(m, &stopped))
        ;
    if (stopped && (m->depth != 1 || m->mark_count != 0 || m->at != count))
        m->why = "more or less than one value";
    if (m->why == NULL)
        value = m->stack[--m->depth];
    *why = m->why;
    while (m->depth > 0)
        json_decref(m->stack[--m->depth]);
    while (m->memo_count > 0)
        json_decref(m->memo[--m->memo_count]);
    free(m->memo);
    free(m);
    return value;
}
