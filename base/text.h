/* SPDX-License-Identifier: Apache-2.0 */
/* Cleans text of unknown origin for display, such as file names and the contents of files and
 * traces. */
#ifndef TDM_BASE_TEXT_H
#define TDM_BASE_TEXT_H

#include <stddef.h>

/* Makes `text` one line of valid UTF-8 that does not affect a terminal, in place. Control
 * characters (C0, DEL, C1) and each byte that is not part of a whole character, such as a cut one,
 * become "?". The text never grows. Returns `text`. */
char *tdm_text_clean(char *text);

/* Bytes of `text` before the first that is not part of a whole character of UTF-8: its length if
 * all are. */
size_t tdm_text_utf8_bytes(const char *text);

/* Copies `text` to `out`, which has room for `bytes` (at least 8). If it is too long, "..." stands
 * for its middle: what an error is about comes first in a message, and its reason last. Whole
 * characters stay whole. */
void tdm_text_shorten(const char *text, char *out, size_t bytes);

/* A copy of `text`, cut if it is too long and cleaned by tdm_text_clean(). Returns `out`. */
#define TDM_TEXT_SHOWN 1024
const char *tdm_text_shown(const char *text, char out[TDM_TEXT_SHOWN]);

#endif
