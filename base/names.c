/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the name in a list that a user means. */
#include "base/names.h"

#include <stdio.h>
#include <string.h>

#define LONGEST 64u
#define MOST_SUGGESTED 4u
#define MOST_NEAREST 3u
#define FEW_EDITS 2u

/* Converts to lower case, without spaces, dashes and underscores, cut to what fits. */
static void fold(const char *name, char out[LONGEST])
{
    size_t used = 0;
    for (; *name != '\0' && used + 1 < LONGEST; name++)
        if (strchr(" -_", *name) == NULL)
            out[used++] = *name >= 'A' && *name <= 'Z' ? (char)(*name - 'A' + 'a') : *name;
    out[used] = '\0';
}

bool tdm_name_is(const char *name, const char *other)
{
    char x[LONGEST], y[LONGEST];
    fold(name, x);
    fold(other, y);
    return strcmp(x, y) == 0;
}

/* Is it the part of `whole` before or after one of its dashes? */
static bool is_part(const char *part, const char *whole)
{
    char before[LONGEST];
    for (const char *dash = strchr(whole, '-'); dash != NULL; dash = strchr(dash + 1, '-')) {
        snprintf(before, sizeof(before), "%.*s", (int)(dash - whole), whole);
        if (tdm_name_is(part, before) || tdm_name_is(part, dash + 1))
            return true;
    }
    return false;
}

const char *tdm_name_meant(const char *name, const char *const *names)
{
    const char *meant = NULL;
    unsigned parts = 0;
    for (size_t i = 0; names[i] != NULL; i++)
        if (tdm_name_is(name, names[i]))
            return names[i];
    for (size_t i = 0; names[i] != NULL; i++)
        if (is_part(name, names[i])) {
            meant = names[i];
            parts++;
        }
    return parts == 1 ? meant : NULL;
}

/* The number of edits (insert, delete, replace a letter) that turn `a` into `b`, both folded. */
static unsigned edits(const char *a, const char *b)
{
    unsigned row[LONGEST + 1];
    size_t length = strlen(b);
    for (size_t j = 0; j <= length; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= length; j++) {
            unsigned replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            unsigned shorter = row[j] < row[j - 1] ? row[j] : row[j - 1];
            row[j] = replaced < shorter + 1 ? replaced : shorter + 1;
        }
    }
    return row[length];
}

static unsigned distance(const char *a, const char *b)
{
    char x[LONGEST], y[LONGEST];
    fold(a, x);
    fold(b, y);
    return edits(x, y);
}

/* Finds the names that begin or end in `name`, at a dash. If there are none, finds those with the
 * fewest edits, if these are few. */
static size_t find_near(const char *name, const char *const *names,
                        const char *near[MOST_SUGGESTED])
{
    const unsigned most = strlen(name) < 4 ? 1 : 2;
    unsigned least = most;
    size_t count = 0;
    for (size_t i = 0; names[i] != NULL && count < MOST_SUGGESTED; i++)
        if (is_part(name, names[i]))
            near[count++] = names[i];
    if (count > 0)
        return count;
    for (size_t i = 0; names[i] != NULL; i++)
        if (distance(name, names[i]) < least)
            least = distance(name, names[i]);
    for (size_t i = 0; names[i] != NULL && count < MOST_SUGGESTED; i++)
        if (distance(name, names[i]) == least)
            near[count++] = names[i];
    return count;
}

const char *tdm_name_suggest(const char *name, const char *const *names,
                             char out[TDM_SUGGESTION_BYTES])
{
    const char *near[MOST_SUGGESTED];
    size_t count = find_near(name, names, near), used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        const char *before = i == 0 ? "did you mean " : i + 1 == count ? " or " : ", ";
        used += (size_t)snprintf(out + used, TDM_SUGGESTION_BYTES - used, "%s%.30s%s", before,
                                 near[i], i + 1 == count ? "? " : "");
    }
    return out;
}

/* How far a name is from another one: edits, if these are few, or letters that are left out. */
static unsigned apart(const char *name, const char *other)
{
    char x[LONGEST], y[LONGEST];
    fold(name, x);
    fold(other, y);
    const unsigned count = edits(x, y);
    return count <= FEW_EDITS || (x[0] != '\0' && strstr(y, x) != NULL) ? count : LONGEST + count;
}

const char *tdm_names_nearest(const char *name, const char *const *names,
                              char out[TDM_SUGGESTION_BYTES])
{
    const char *near[MOST_NEAREST] = {NULL};
    size_t used = 0;
    for (size_t i = 0; names[i] != NULL; i++) {
        const char *next = names[i];
        for (size_t n = 0; n < MOST_NEAREST && next != NULL; n++)
            if (near[n] == NULL || apart(name, next) < apart(name, near[n])) {
                const char *further = near[n];
                near[n] = next;
                next = further;
            }
    }
    out[0] = '\0';
    for (size_t n = 0; n < MOST_NEAREST && near[n] != NULL; n++)
        used += (size_t)snprintf(out + used, TDM_SUGGESTION_BYTES - used, "%s%.48s",
                                 n > 0 ? ", " : "", near[n]);
    return out;
}
