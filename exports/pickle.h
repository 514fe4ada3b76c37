/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes Python's pickle format, protocol 4, without frames: dicts, lists, numbers and strings,
 * with the opcodes that PyTorch's memory viewer reads.
 *
 * A dict is begun, filled with a key and a value in turn, and ended. Python's memo holds what is
 * used again: tdm_pickle_keep() after a value, and tdm_pickle_again() in place of a value.
 */
#ifndef TDM_EXPORTS_PICKLE_H
#define TDM_EXPORTS_PICKLE_H

#include <stdint.h>
#include <stdio.h>

/* A list's items are appended in batches of this many, so that readers need no long stack. */
#define TDM_PICKLE_BATCH 1000u

struct tdm_pickle {
    FILE *out;
    uint32_t kept; /* values in the memo */
};

struct tdm_pickle tdm_pickle_begin(FILE *out);
void tdm_pickle_end(struct tdm_pickle *pickle);

void tdm_pickle_none(struct tdm_pickle *pickle);
void tdm_pickle_false(struct tdm_pickle *pickle);
void tdm_pickle_number(struct tdm_pickle *pickle, uint64_t number); /* below 2^63 */
void tdm_pickle_text(struct tdm_pickle *pickle, const char *text);  /* UTF-8 */

/* Puts the value that was written last into the memo, and returns its number there. */
uint32_t tdm_pickle_keep(struct tdm_pickle *pickle);
void tdm_pickle_again(struct tdm_pickle *pickle, uint32_t kept);

void tdm_pickle_begin_dict(struct tdm_pickle *pickle);
void tdm_pickle_end_dict(struct tdm_pickle *pickle);

/* A list: tdm_pickle_item() before each item, with *count 0 at first. */
void tdm_pickle_begin_list(struct tdm_pickle *pickle, uint64_t *count);
void tdm_pickle_item(struct tdm_pickle *pickle, uint64_t *count);
void tdm_pickle_end_list(struct tdm_pickle *pickle, uint64_t count);

#endif
