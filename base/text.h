/* SPDX-License-Identifier: Apache-2.0 */
/* Text of unknown origin, as names of files and what files and traces hold, made fit to be
 * shown. */
#ifndef TDM_BASE_TEXT_H
#define TDM_BASE_TEXT_H

/* Makes `text` one line of valid UTF-8 that moves no terminal, in place: control characters (C0,
 * DEL, C1) and each byte that belongs to no whole character, as where one was cut, become "?". It
 * never grows. Returns `text`. */
char *tdm_text_clean(char *text);

/* A copy of `text` that tdm_text_clean() cleaned, cut where it is longer. Returns `out`. */
#define TDM_TEXT_SHOWN 1024
const char *tdm_text_shown(const char *text, char out[TDM_TEXT_SHOWN]);

#endif
