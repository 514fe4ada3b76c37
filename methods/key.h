/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys: the settings of a method that --set KEY=VALUE sets. Each family of methods has its
 * tables of keys (for example torch/keys.c). A method lists the tables that apply to it.
 */
#ifndef TDM_METHODS_KEY_H
#define TDM_METHODS_KEY_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tdm_method_choices;
struct tdm_method_settings;
struct tdm_model;

/* The case to predict: the checked settings, and the keys that the user set. */
struct tdm_key_case {
    const struct tdm_model *model;
    const struct tdm_method_settings *settings;
    const struct tdm_method_choices *choices;
};

/* A condition under which the value of a key changes a prediction of memory or cost. */
struct tdm_key_need {
    const char *unmet; /* "without lora_rank", after "KEY has no effect" */
    bool (*is_met)(const struct tdm_key_case *c);
};

#define TDM_KEY_MOST_NEEDS 2u

#define TDM_AUTO UINT64_MAX /* the value "auto": the size follows from the model */

struct tdm_method_key {
    const char *name;    /* "checkpointing" */
    const char *values;  /* "off|on|on-reentrant", or "N" */
    const char *assumed; /* the default; NULL: there is none */
    const char *meaning; /* one line */
    /* NULL: the code that predicts the method reads it. */
    enum tdm_status (*read)(const struct tdm_method_key *key, const char *value,
                            struct tdm_method_settings *settings, struct tdm_error *err);
    size_t field;         /* offset of the value in the settings */
    uint64_t least, most; /* limits of a count */
    /* The default of the command compare, which ranks methods at their best; NULL: `assumed`. */
    const char *compared;
    /* The default where the value follows from other settings, also in place of `assumed`. It may
     * use text[TDM_KEY_TEXT]. Without both the key has no value unless the user sets it. */
    const char *(*settled)(const struct tdm_key_case *c, char *text);
    /* Unless all of them are met, the key is accepted but has no effect. They do not depend on the
     * key itself. */
    const struct tdm_key_need *needs[TDM_KEY_MOST_NEEDS];
    /* Values, "a|b", whose memory was compared with no run on a GPU: answers say it. NULL: none. */
    const char *unmeasured;
};

/* Does the key matter so much that every answer should state its default? */
bool tdm_key_is_main(const struct tdm_method_key *key);

/* The first unmet need; NULL: the key has an effect. */
const struct tdm_key_need *tdm_key_unmet(const struct tdm_method_key *key,
                                         const struct tdm_key_case *c);

/* Writes "lora_targets has no effect without lora_rank" to text[TDM_KEY_TEXT] and returns it; NULL:
 * the key has an effect. */
#define TDM_KEY_TEXT 192u
const char *tdm_key_without_effect(const struct tdm_method_key *key, const struct tdm_key_case *c,
                                   char *text);

/* Was this value of the key compared with no run on a GPU? */
bool tdm_key_is_unmeasured(const struct tdm_method_key *key, const char *value);

/* The default of a key that the user did not set; NULL if the key has no effect or no default. */
const char *tdm_key_assumed(const struct tdm_method_key *key, const struct tdm_key_case *c,
                            char *text);

/* For keys "grads": gradients are held if there is no optimizer to consume them. */
const char *tdm_key_settled_grads(const struct tdm_key_case *c, char *text);

/* ---- readers ---- */

/* An enum (unsigned), whose order is that of the values. */
enum tdm_status tdm_key_read_choice(const struct tdm_method_key *key, const char *value,
                                    struct tdm_method_settings *settings, struct tdm_error *err);
/* A bool: the second of two values is true. */
enum tdm_status tdm_key_read_switch(const struct tdm_method_key *key, const char *value,
                                    struct tdm_method_settings *settings, struct tdm_error *err);
/* A uint64_t between least and most. */
enum tdm_status tdm_key_read_count(const struct tdm_method_key *key, const char *value,
                                   struct tdm_method_settings *settings, struct tdm_error *err);

/* A uint64_t; 4K is 4,096. */
enum tdm_status tdm_key_read_tokens(const struct tdm_method_key *key, const char *value,
                                    struct tdm_method_settings *settings, struct tdm_error *err);
/* A bool: the first of two values is true. */
enum tdm_status tdm_key_read_refusal(const struct tdm_method_key *key, const char *value,
                                     struct tdm_method_settings *settings, struct tdm_error *err);
/* A double: a share from 0 on, below 1. */
enum tdm_status tdm_key_read_dropout(const struct tdm_method_key *key, const char *value,
                                     struct tdm_method_settings *settings, struct tdm_error *err);
/* So begins an assumption of what was read and compared with no run: plain answers say it. */
#define TDM_NOT_MEASURED "not measured: "
/* And one of what the model has and the answer does not count: plain answers say it too. */
#define TDM_NOT_COUNTED "not counted: "

/* Projections that get adapters. */
/* A norm to which gradients are clipped; 0: none. */
enum tdm_status tdm_key_read_clipping(const struct tdm_method_key *key, const char *value,
                                      struct tdm_method_settings *settings, struct tdm_error *err);
/* Never met: of a system whose step has the same memory without clipping. */
extern const struct tdm_key_need tdm_need_own_clipping;
enum tdm_status tdm_key_read_targets(const struct tdm_method_key *key, const char *value,
                                     struct tdm_method_settings *settings, struct tdm_error *err);
/* Liger's kernels in layers. */
enum tdm_status tdm_key_read_liger(const struct tdm_method_key *key, const char *value,
                                   struct tdm_method_settings *settings, struct tdm_error *err);
/* For the key "step". */
enum tdm_status tdm_key_read_step(const struct tdm_method_key *key, const char *value,
                                  struct tdm_method_settings *settings, struct tdm_error *err);

/* For keys whose value is a list of names, separated by commas or spaces: the bits of all names in
 * it, of which there must be at least one. */
struct tdm_key_word {
    const char *name;
    uint32_t bits;
};
enum tdm_status tdm_key_read_words(const struct tdm_method_key *key, const char *value,
                                   const struct tdm_key_word *words, size_t count, uint32_t *bits,
                                   struct tdm_error *err);

/* For other readers: fails because the value is not one of the key's. */
enum tdm_status tdm_key_bad_value(const struct tdm_method_key *key, const char *value,
                                  struct tdm_error *err);

/* For other readers: the first numbers of a version such as 4.48.1; those that it has not are 0.
 * Fails if the value does not begin so; `example` is a version for that message. */
#define TDM_VERSION_NUMBERS 3u
enum tdm_status tdm_key_read_version(const struct tdm_method_key *key, const char *value,
                                     const char *example, unsigned version[TDM_VERSION_NUMBERS],
                                     struct tdm_error *err);

/* ---- needs that several families share ---- */

extern const struct tdm_key_need tdm_need_lora, tdm_need_chunked_logits, tdm_need_later_steps;

/* ---- tables, each ended by a key without a name ---- */

extern const struct tdm_method_key
    tdm_keys_torch[]; /* of all methods that run Hugging Face's models */
extern const struct tdm_method_key tdm_keys_peft[];     /* of adapters other than LoRA */
extern const struct tdm_method_key tdm_keys_adapters[]; /* of what is beside and under adapters */
extern const struct tdm_method_key tdm_keys_second[];   /* of TRL's trainers with two models */
extern const struct tdm_method_key tdm_keys_ppo[];      /* of its PPO, where all models are whole */
extern const struct tdm_method_key tdm_keys_code[];     /* whose code the model is */
extern const struct tdm_method_key tdm_keys_in_backward[]; /* of steps in the backward */
extern const struct tdm_method_key tdm_keys_module[];      /* of ranks that run whole layers */
extern const struct tdm_method_key tdm_keys_whole[];       /* of ranks with whole parameters */
extern const struct tdm_method_key tdm_keys_plain[];       /* of states that are not DeepSpeed's */
extern const struct tdm_method_key tdm_keys_float8[];      /* of products of 8 bits */
extern const struct tdm_method_key tdm_keys_loop[];        /* of the training loop */
extern const struct tdm_method_key tdm_keys_ddp[], tdm_keys_fsdp[];
extern const struct tdm_method_key tdm_keys_tensor[]; /* of tensor parallelism beneath fsdp */
extern const struct tdm_method_key tdm_keys_burst[];
extern const struct tdm_method_key tdm_keys_oomb[], tdm_keys_seco[], tdm_keys_longlora[];
extern const struct tdm_method_key tdm_keys_megatron[]; /* preceded by the sizes that are assumed */
extern const struct tdm_method_key tdm_keys_tensor_parallel[], tdm_keys_megatron_cp[];
extern const struct tdm_method_key tdm_keys_planned[]; /* of tidemark's own schedule */
extern const struct tdm_method_key tdm_keys_serving[]; /* of vLLM */

#endif
