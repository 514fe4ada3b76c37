/* SPDX-License-Identifier: Apache-2.0 */
/* Names that people type: which one of a list is meant, and which ones may have been. */
#ifndef TDM_BASE_NAMES_H
#define TDM_BASE_NAMES_H

#define TDM_SUGGESTION_BYTES 160u

/* The name of the list (ended by NULL) that is meant: the same but for case, spaces, "-" and "_";
 * else the only one that begins or ends so, up to a "-" of its own ("4090" of rtx-4090). NULL:
 * none, or several. */
const char *tdm_name_meant(const char *name, const char *const *names);

/* "did you mean a or b? ", the names that begin or end so, else those that are spelt nearly so; ""
 * if there is none. Returns `out`. */
const char *tdm_name_suggest(const char *name, const char *const *names,
                             char out[TDM_SUGGESTION_BYTES]);

#endif
