/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Methods: how other systems train, as data. A method has a name, keys (--set KEY=VALUE) each of
 * which has values of which one is assumed where the user says nothing, what it presets, and the
 * system that runs it.
 */
#ifndef TDM_METHODS_METHOD_H
#define TDM_METHODS_METHOD_H

#include "methods/context/burst.h"
#include "methods/chunk/chunk.h"
#include "methods/context/context.h"
#include "methods/cost.h"
#include "methods/key.h"
#include "methods/megatron/megatron.h"
#include "methods/torch/run.h"
#include "methods/torch/wrapper.h"

/* What a method was told: by the command line, by its keys and by itself. */
struct tdm_method_settings {
    const struct tdm_method *method;
    struct tdm_torch_settings torch;
    struct tdm_chunk_settings chunk; /* of oomb and seco */
    struct tdm_megatron_settings megatron;
    struct tdm_burst burst;
    bool expandable_segments;
    uint32_t step;          /* 1 to TDM_TORCH_STEPS: the step that counts; 0: all */
    uint32_t communicators; /* that NCCL makes */
    bool sends_to_peers;    /* by messages from one GPU to another */
};

struct tdm_method {
    const char *name;      /* "parallel" */
    const char *summary;   /* one line, lower case, no full stop */
    bool divides_sequence; /* --context is of all GPUs together */
    uint64_t least_gpus, most_gpus;
    const struct tdm_wrapper *wrapper; /* NULL: none, or the one that the key "sharding" names */
    const struct tdm_divider *divider; /* of attention; NULL: sequences are whole */
    /* Tables, ended by NULL, beside those of the divider and of the wrapper, which come first. */
    const struct tdm_method_key *const *keys;
    const struct tdm_torch_system
        *system; /* NULL: the planner predicts it (commands/own_method.h) */
    /* Sets what no key sets, before the keys are read; NULL: nothing. */
    void (*preset)(struct tdm_method_settings *settings);
    /* What cannot be run together, after the keys were read; TDM_USAGE says why. It may also settle
     * what follows from the keys. NULL: everything can that wrapper and divider can. */
    enum tdm_status (*check)(const struct tdm_model *model, struct tdm_method_settings *settings,
                             struct tdm_error *err);
    /* What is taken for granted beside the keys where these settings are asked for, one line; NULL:
     * what the divider takes for granted. */
    const char *(*assumption)(const struct tdm_model *model,
                              const struct tdm_method_settings *settings);
    void (*cost)(const struct tdm_model *model, const struct tdm_method_settings *settings,
                 struct tdm_method_cost *cost);
};

/* All methods, ended by one without a name. */
const struct tdm_method *tdm_methods(void);

/* By its name or another that is usual for it ("torch", "hf"); TDM_USAGE with the names there
 * are. */
enum tdm_status tdm_method_find(const char *name, const struct tdm_method **method,
                                struct tdm_error *err);

/* Its other name number `number`, NULL past the last; names that may mean several methods are none.
 */
const char *tdm_method_alias(const struct tdm_method *method, size_t number);

/* Key number `number` over all tables, NULL past the last. A key hides those of its name in later
 * tables. */
const struct tdm_method_key *tdm_method_key(const struct tdm_method *method, size_t number);

#define TDM_METHOD_MOST_KEYS 64u

/* What was said: the value of every key, by its number; NULL: it is assumed. Of a method without a
 * system also the pairs of other keys, which are for the planner to read. */
struct tdm_method_choices {
    const char *said[TDM_METHOD_MOST_KEYS];
    const char *others[TDM_METHOD_MOST_KEYS];
    size_t other_count;
};

/* Reads a pair: KEY=VALUE, "KEY: VALUE" or "--KEY VALUE", the key and the value as the method has
 * them or as users of the system write them. *number: of the key; *value: static, or in `pair`.
 * False: it is no pair, or of no key of the method. */
bool tdm_method_read_pair(const struct tdm_method *method, const char *pair, size_t *number,
                          const char **value);

/* The value of a key, said or assumed; NULL if there is none, or no such key. */
const char *tdm_method_value(const struct tdm_method *method,
                             const struct tdm_method_choices *choices, const char *name);

/* Reads `count` pairs (which must outlive *choices) and what is assumed for the rest into
 * *settings, whose tokens, batch and ranks stay. TDM_USAGE: an unknown key, a key said twice, a bad
 * value. */
enum tdm_status tdm_method_apply(const struct tdm_method *method, const char *const *pairs,
                                 size_t count, struct tdm_method_settings *settings,
                                 struct tdm_method_choices *choices, struct tdm_error *err);

/* The same for choices that were read before, or changed since. */
enum tdm_status tdm_method_settle(const struct tdm_method *method,
                                  const struct tdm_method_choices *choices,
                                  struct tdm_method_settings *settings, struct tdm_error *err);

/* Can so many GPUs run it, with these settings and this model? TDM_USAGE says why not. */
enum tdm_status tdm_method_check(const struct tdm_model *model,
                                 struct tdm_method_settings *settings, struct tdm_error *err);

/* What is assumed of these settings beside the keys, one line; NULL: nothing. */
const char *tdm_method_assumption(const struct tdm_model *model,
                                  const struct tdm_method_settings *settings);

#endif
