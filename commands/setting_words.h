/* SPDX-License-Identifier: Apache-2.0 */
/* What users give with --set: several options of a system in one string, and such options given
 * without --set. */
#ifndef TDM_COMMANDS_SETTING_WORDS_H
#define TDM_COMMANDS_SETTING_WORDS_H

#include "commands/options.h"
#include "methods/method.h"

#define TDM_SETTING_TEXT 4096u

/* Pairs of --set; all zero: none. */
struct tdm_setting_list {
    const char *pairs[TDM_METHOD_MOST_KEYS]; /* borrowed, or in `text` */
    size_t count;
    char text[TDM_SETTING_TEXT];
    size_t used_bytes;  /* of it */
    char optimizer[80]; /* the pair of --optimizer */
};

/* Adds the value of a --set, which must outlive the list: a pair, or several options in one string,
 * as in "--recompute-granularity full --sequence-parallel", each a pair. TDM_USAGE: there is no
 * room for more. */
enum tdm_status tdm_settings_add(struct tdm_setting_list *list, const char *text,
                                 struct tdm_error *err);

/* --optimizer and --set of commands that ask about methods, read into a struct tdm_setting_list. */
extern const struct tdm_option tdm_option_method_optimizer, tdm_option_method_setting;

/* After an option was refused: where it is a setting of some method, `err` says to give it with
 * --set. */
void tdm_settings_explain(const char *command, int argc, char **argv, struct tdm_error *err);

#endif
