/* SPDX-License-Identifier: Apache-2.0 */
/* Names that people type: which one of a list they mean, and which ones they may have meant. */
#ifndef TDM_BASE_NAMES_H
#define TDM_BASE_NAMES_H

#include <stdbool.h>

#define TDM_SUGGESTION_BYTES 160u

/* Do they differ only in case, spaces, "-" and "_"? */
bool tdm_name_is(const char *name, const char *other);

/* The name in the NULL-terminated list that is meant. This is the one that tdm_name_is
 * says is the same. Otherwise it is the only one that has `name` before or after one of its
 * dashes ("4090" of rtx-4090). NULL if there is none, or several. */
const char *tdm_name_meant(const char *name, const char *const *names);

/* "did you mean a or b? " with the names that begin or end in `name`, else those with a similar
 * spelling. "" if there are none. Returns `out`. */
const char *tdm_name_suggest(const char *name, const char *const *names,
                             char out[TDM_SUGGESTION_BYTES]);

/* "a, b, c": the names that are nearest, the nearest first: those with at most two edits or with
 * `name` inside, then others, each by the number of edits. Returns `out`; "" of an empty list. */
const char *tdm_names_nearest(const char *name, const char *const *names,
                              char out[TDM_SUGGESTION_BYTES]);

#endif
