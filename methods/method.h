/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Methods: how other systems train, as data. A method has a name, keys (--set KEY=VALUE) with
 * their values and defaults, presets, and the system that runs it.
 */
#ifndef TDM_METHODS_METHOD_H
#define TDM_METHODS_METHOD_H

#include "methods/context/burst.h"
#include "methods/chunk/chunk.h"
#include "methods/context/context.h"
#include "methods/cost.h"
#include "methods/key.h"
#include "methods/megatron/megatron.h"
#include "methods/serving/serving.h"
#include "methods/torch/run.h"
#include "methods/torch/wrapper.h"

/* All settings of a method: from the command line, from its keys, and from its presets. */
struct tdm_method_settings {
    const struct tdm_method *method;
    struct tdm_torch_settings torch;
    struct tdm_chunk_settings chunk; /* of oomb and seco */
    struct tdm_megatron_settings megatron;
    struct tdm_burst burst;
    struct tdm_serving serving;
    bool expandable_segments;
    uint32_t step;          /* 1 to TDM_TORCH_STEPS: the step that is reported; 0: all steps */
    uint32_t communicators; /* communicators that NCCL creates */
    uint64_t peers;         /* GPUs of its node that it sends messages to, one by one */
};

struct tdm_method {
    const char *name;      /* "parallel" */
    const char *summary;   /* one line, lower case, no full stop */
    bool divides_sequence; /* --context is the sequence of all GPUs together */
    uint64_t least_gpus, most_gpus;
    bool runs_on_one; /* on one GPU too, where it divides nothing; only if it is named */
    const struct tdm_wrapper *wrapper; /* NULL: none, or the one that the key "sharding" names */
    const struct tdm_divider *divider; /* of attention; NULL: sequences are whole */
    /* Tables, ended by NULL. The tables of the divider and of the wrapper precede them. */
    const struct tdm_method_key *const *keys;
    const struct tdm_torch_system
        *system; /* NULL: the planner predicts it (commands/own_method.h), or it serves */
    bool serves; /* it is a server, not a training (methods/serving/) */
    /* Sets what no key sets, before keys are read. NULL: nothing to set. */
    void (*preset)(struct tdm_method_settings *settings);
    /* Refuses invalid combinations after keys were read; TDM_USAGE says why. It may also settle
     * values that follow from the keys. NULL: only wrapper and divider restrict the settings. */
    enum tdm_status (*check)(const struct tdm_model *model, struct tdm_method_settings *settings,
                             struct tdm_error *err);
    /* One line of further assumptions under these settings; NULL: the divider's assumption. */
    const char *(*assumption)(const struct tdm_model *model,
                              const struct tdm_method_settings *settings);
    void (*cost)(const struct tdm_model *model, const struct tdm_method_settings *settings,
                 struct tdm_method_cost *cost);
};

/* All methods; the last entry has no name. */
const struct tdm_method *tdm_methods(void);

/* Finds a method by its name or a common alias ("torch", "hf"). TDM_USAGE lists the known names. */
enum tdm_status tdm_method_find(const char *name, const struct tdm_method **method,
                                struct tdm_error *err);

/* Alias number `number` of a method, NULL past the last. Aliases that may mean several methods are
 * left out. */
const char *tdm_method_alias(const struct tdm_method *method, size_t number);

/* Key number `number` over all tables, NULL past the last. A key hides keys of the same name in
 * later tables. */
const struct tdm_method_key *tdm_method_key(const struct tdm_method *method, size_t number);

#define TDM_METHOD_MOST_KEYS 96u

/* What the user set: the value of each key, by its number; NULL: the default. For a method without
 * a system, `others` has the pairs with other keys, which the planner reads. */
struct tdm_method_choices {
    const char *said[TDM_METHOD_MOST_KEYS];
    const char *others[TDM_METHOD_MOST_KEYS];
    size_t other_count;
};

/* Reads a pair: KEY=VALUE, "KEY: VALUE" or "--KEY VALUE". Key and value may be spelled as the
 * method or as users of the system spell them. *number: of the key. *value: static, or part of
 * `pair`. False: it is not a pair, or its key is not one of the method. */
bool tdm_method_read_pair(const struct tdm_method *method, const char *pair, size_t *number,
                          const char **value);

/* A second key that a pair sets where nothing else does: use_liger_kernel=true is logits=fused and
 * liger=all. False: it sets one. */
bool tdm_method_read_also(const struct tdm_method *method, const char *pair, size_t *number,
                          const char **value);

/* Does the pair say what every method without such a key does anyway, as bf16=true does? */
bool tdm_method_is_given(const struct tdm_method *method, const char *pair);

#define TDM_OTHER_VALUES 128u

/* The values that a pair may have whose key is one that only users of the system write, such as
 * "yes or no" of use_liger_kernel. False: it is no such key. */
bool tdm_method_other_values(const struct tdm_method *method, const char *pair,
                             char expected[TDM_OTHER_VALUES]);

/* The option of `predict` that says what this pair says, as --batch for
 * per_device_train_batch_size; NULL: none does. */
const char *tdm_method_option_meant(const char *pair);

/* The value of a key, as set or by default; NULL if it has none, or if there is no such key. */
const char *tdm_method_value(const struct tdm_method *method,
                             const struct tdm_method_choices *choices, const char *name);

/* Reads `count` pairs, which must outlive *choices, into *settings, and defaults for all other
 * keys. Tokens, batch and ranks of *settings stay. TDM_USAGE: an unknown key, a key set twice but
 * by two names with one value, a bad value. */
enum tdm_status tdm_method_apply(const struct tdm_method *method, const char *const *pairs,
                                 size_t count, struct tdm_method_settings *settings,
                                 struct tdm_method_choices *choices, struct tdm_error *err);

/* The same from choices that were read before and may have been changed since. */
enum tdm_status tdm_method_settle(const struct tdm_method *method,
                                  const struct tdm_method_choices *choices,
                                  struct tdm_method_settings *settings, struct tdm_error *err);

/* Can this number of GPUs run the method with these settings and this model? TDM_USAGE says why
 * not. */
enum tdm_status tdm_method_check(const struct tdm_model *model,
                                 struct tdm_method_settings *settings, struct tdm_error *err);

/* The check of methods that train Hugging Face's models with PyTorch (torch/keys.c). */
/* Takes the quantization of a model whose config has one. TDM_USAGE: the method has no such
 * weights, or a key says another one. */
enum tdm_status tdm_torch_settle_base(const struct tdm_model *model,
                                      struct tdm_method_settings *settings, struct tdm_error *err);
enum tdm_status tdm_torch_check(const struct tdm_model *model, struct tdm_method_settings *settings,
                                struct tdm_error *err);

/* What the model of these methods assumes, or the divider. */
const char *tdm_torch_assumption(const struct tdm_model *model,
                                 const struct tdm_method_settings *settings);

/* What it refuses of a second model (torch/second_keys.c). */
enum tdm_status tdm_second_check(const struct tdm_model *model,
                                 const struct tdm_method_settings *settings, struct tdm_error *err);

/* One line of what the method is under these settings. */
const char *tdm_method_summary(const struct tdm_method_settings *settings);

/* One line of what these settings assume beside the keys; NULL: nothing. */
const char *tdm_method_assumption(const struct tdm_model *model,
                                  const struct tdm_method_settings *settings);
/* Does it say that something was compared with no run, or not counted? */
bool tdm_method_is_limit(const char *assumption);

#endif
