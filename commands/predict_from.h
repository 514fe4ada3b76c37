/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of `tidemark predict` from the files that people train with: a DeepSpeed config,
 * transformers' TrainingArguments (or TRL's SFTConfig), peft's adapter_config.json, all as JSON.
 * Every key is read, ignored with a word, or refused.
 */
#ifndef TDM_COMMANDS_PREDICT_FROM_H
#define TDM_COMMANDS_PREDICT_FROM_H

#include "methods/method.h"
#include "commands/setting_words.h"

#include <jansson.h>

#define TDM_FROM_FILES 4u

/* The files of --from, and what they say. All zero: none. */
struct tdm_from {
    const char *paths[TDM_FROM_FILES]; /* borrowed */
    size_t count;
    const char *method;      /* NULL: no file says it */
    uint64_t batch, context; /* 0: no file says it */
    json_t *pairs;           /* array of "KEY=VALUE"; owned */
    json_t *ignored;         /* array of "FILE: KEY (why)"; owned */
    bool checkpoints, reentrant;
};

/* Adds the value of one --from. TDM_USAGE: too many. */
enum tdm_status tdm_from_add(struct tdm_from *from, const char *path, struct tdm_error *err);

/* Reads all files. TDM_INPUT names the file and the key that is not known. The caller frees, also
 * after a failure. */
enum tdm_status tdm_from_read(struct tdm_from *from, struct tdm_error *err);
void tdm_from_free(struct tdm_from *from);

/* Adds the pairs to a list, without those whose key the list has already. Pairs of keys that the
 * method lacks become ignored ones. The list borrows from *from. */
enum tdm_status tdm_from_apply(struct tdm_from *from, const struct tdm_method *method,
                               struct tdm_setting_list *list, struct tdm_error *err);

#endif
