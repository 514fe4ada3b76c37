/* SPDX-License-Identifier: Apache-2.0 */
/* What users give with --set: several options of a system in one string, and such options given
 * without --set. */
#ifndef TDM_COMMANDS_SETTING_WORDS_H
#define TDM_COMMANDS_SETTING_WORDS_H

#include "methods/method.h"

#define TDM_SETTING_TEXT 4096u

/* Pairs of --set; all zero: none. */
struct tdm_setting_list {
    const char *pairs[TDM_METHOD_MOST_KEYS]; /* borrowed, or in `text` */
    size_t count;
    char text[TDM_SETTING_TEXT];
    size_t used_bytes; /* of it */
};

/* Adds the value of a --set, which must outlive the list: a pair, or several options in one string,
 * as in "--recompute-granularity full --sequence-parallel", each a pair. TDM_USAGE: there is no
 * room for more. */
enum tdm_status tdm_settings_add(struct tdm_setting_list *list, const char *text,
                                 struct tdm_error *err);

/* After tdm_options_next() failed with TDM_USAGE: where the option at fault is a setting of some
 * method, `err` says to give it with --set. */
void tdm_settings_explain(const char *command, int argc, char **argv, struct tdm_error *err);

#endif
