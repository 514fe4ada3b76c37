/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Methods: how other systems train, as data. A method has a name and keys (--set KEY=VALUE); each key has
 * values, one of which is assumed where the user says nothing.
 */
#ifndef TDM_METHODS_METHOD_H
#define TDM_METHODS_METHOD_H

#include "base/status.h"
#include "methods/torch_run.h"

#include <stddef.h>

/* What the keys of a method say. */
struct tdm_method_settings {
    struct tdm_torch_settings torch;
    bool expandable_segments;
    uint32_t step; /* 1 to TDM_TORCH_STEPS: the step that counts; 0: all */
};

struct tdm_method_key {
    const char *name;    /* "checkpointing" */
    const char *values;  /* "off|on|on-reentrant", or "N" */
    const char *assumed; /* what it is where nothing is said; NULL: nothing is assumed */
    const char *meaning; /* one line */
    enum tdm_status (*read)(const struct tdm_method_key *key, const char *value,
                            struct tdm_method_settings *settings, struct tdm_error *err);
    size_t field; /* where a choice goes in the settings */
};

struct tdm_method {
    const char *name;    /* "parallel" */
    const char *summary; /* one line, lower case, no full stop */
    enum tdm_torch_sharing sharing;
    const struct tdm_method_key *keys; /* ended by one without a name */
};

/* Can so many GPUs run it? TDM_USAGE says why not. */
enum tdm_status tdm_method_check_gpus(const struct tdm_method *method, uint64_t gpus,
                                      struct tdm_error *err);

/* All methods, ended by one without a name. */
const struct tdm_method *tdm_methods(void);

/* By name; TDM_USAGE with the names there are. */
enum tdm_status tdm_method_find(const char *name, const struct tdm_method **method,
                                struct tdm_error *err);

#define TDM_METHOD_MOST_KEYS 32u

/* What was said: the value of every key, by its number; NULL: it is assumed. */
struct tdm_method_choices {
    const char *said[TDM_METHOD_MOST_KEYS];
};

/* Reads `count` texts KEY=VALUE (which must outlive *choices) and what is assumed for the rest into
 * *settings, whose tokens, batch and ranks stay. TDM_USAGE: an unknown key, a key said twice, a bad value. */
enum tdm_status tdm_method_apply(const struct tdm_method *method, const char *const *pairs,
                                 size_t count, struct tdm_method_settings *settings,
                                 struct tdm_method_choices *choices, struct tdm_error *err);

#endif
