/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several files as one text: names and patterns, with commas between them.
 *
 *     a.bin,b.bin          the tokens of a.bin, then those of b.bin
 *     'part-*.npy'         files that the pattern matches, by name (glob(7))
 *     uint16:a,uint16:b    a prefix (token_file.h) belongs to its name or pattern
 *
 * A file that has exactly the name that is given is that one file.
 */
#ifndef TDM_TEXTS_LIST_H
#define TDM_TEXTS_LIST_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

struct tdm_text_list {
    char **whats; /* [count] with their prefixes, as tdm_token_file_read() takes them; owned */
    size_t count; /* at least 1 */
};

/* Finds the files. TDM_IO: a pattern matches none. TDM_USAGE: an empty name. The caller releases
 * *list with tdm_text_list_free(). */
enum tdm_status tdm_text_list_read(const char *what, struct tdm_text_list *list,
                                   struct tdm_error *err);
/* Is there the first file of the text? What cannot be read as a list has none. TDM_NO_MEMORY. */
enum tdm_status tdm_text_list_exists(const char *what, bool *exists, struct tdm_error *err);
void tdm_text_list_free(struct tdm_text_list *list);

#endif
