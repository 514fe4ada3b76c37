/* SPDX-License-Identifier: Apache-2.0 */
/* Parses --set: pairs, or several of another system's options in one string. Also handles such
 * options given without --set. */
#ifndef TDM_COMMANDS_SETTING_WORDS_H
#define TDM_COMMANDS_SETTING_WORDS_H

#include "commands/options.h"
#include "methods/method.h"

#define TDM_SETTING_TEXT 4096u

/* Pairs from --set. All zero: none. */
struct tdm_setting_list {
    const char *pairs[TDM_METHOD_MOST_KEYS]; /* borrowed, or in `text` */
    size_t count;
    char text[TDM_SETTING_TEXT];
    size_t used_bytes;  /* bytes of `text` in use */
    char optimizer[80]; /* the pair made from --optimizer */
};

/* Adds the value of one --set. The value must outlive the list. It is a pair, or several options in
 * one string, such as "--recompute-granularity full --sequence-parallel", which become one pair
 * each. TDM_USAGE: the list is full. */
enum tdm_status tdm_settings_add(struct tdm_setting_list *list, const char *text,
                                 struct tdm_error *err);

/* --optimizer and --set, for commands that query methods. Parsed into a struct tdm_setting_list. */
extern const struct tdm_option tdm_option_method_optimizer, tdm_option_method_setting;

/* Called after an unknown option. If it is a setting of some method, `err` gets a hint to use
 * --set. */
void tdm_settings_explain(const char *command, int argc, char **argv, struct tdm_error *err);

#endif
