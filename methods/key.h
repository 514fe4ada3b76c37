/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys: the settings of a method that --set KEY=VALUE sets. Tables of them belong to families of
 * methods (torch/keys.c); a method lists the tables that it has.
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

/* What is predicted: settings that were read and checked, and what was said of them. */
struct tdm_key_case {
    const struct tdm_model *model;
    const struct tdm_method_settings *settings;
    const struct tdm_method_choices *choices;
};

/* What a key needs, so that its value changes a figure: of memory or of cost. */
struct tdm_key_need {
    const char *unmet; /* "without lora_rank", after "KEY has no effect" */
    bool (*is_met)(const struct tdm_key_case *c);
};

#define TDM_KEY_MOST_NEEDS 2u

#define TDM_AUTO UINT64_MAX /* "auto", of a size that follows from the model */

struct tdm_method_key {
    const char *name;    /* "checkpointing" */
    const char *values;  /* "off|on|on-reentrant", or "N" */
    const char *assumed; /* what it is where nothing is said; NULL: nothing is assumed */
    const char *meaning; /* one line */
    /* NULL: it is read by who predicts the method. */
    enum tdm_status (*read)(const struct tdm_method_key *key, const char *value,
                            struct tdm_method_settings *settings, struct tdm_error *err);
    size_t field;         /* where a choice goes in the settings */
    uint64_t least, most; /* of a count */
    /* What compare takes where nothing is said, so that methods are ranked at their best; NULL:
     * what is assumed. */
    const char *compared;
    /* What it is where nothing is said and nothing is assumed, because it follows from other
     * settings; may use text[TDM_KEY_TEXT]. NULL: it has no value then. */
    const char *(*settled)(const struct tdm_key_case *c, char *text);
    /* Without all of them it may be said, but has no effect. They ask nothing of the key itself. */
    const struct tdm_key_need *needs[TDM_KEY_MOST_NEEDS];
};

/* Does so much follow from it that what is assumed of it is worth a word beside every answer? */
bool tdm_key_is_main(const struct tdm_method_key *key);

/* The first of its needs that is not met; NULL: the key has an effect. */
const struct tdm_key_need *tdm_key_unmet(const struct tdm_method_key *key,
                                         const struct tdm_key_case *c);

/* "lora_targets has no effect without lora_rank" into text[TDM_KEY_TEXT], which is returned; NULL:
 * it has one. */
#define TDM_KEY_TEXT 192u
const char *tdm_key_without_effect(const struct tdm_method_key *key, const struct tdm_key_case *c,
                                   char *text);

/* What is assumed of a key of which nothing was said: NULL where it has no effect, or no value. */
const char *tdm_key_assumed(const struct tdm_method_key *key, const struct tdm_key_case *c,
                            char *text);

/* Of keys "grads": held where no optimizer is there to use them up. */
const char *tdm_key_settled_grads(const struct tdm_key_case *c, char *text);

/* ---- readers ---- */

/* An enum (unsigned): the order of the values is its order. */
enum tdm_status tdm_key_read_choice(const struct tdm_method_key *key, const char *value,
                                    struct tdm_method_settings *settings, struct tdm_error *err);
/* A bool: the second of two values is true. */
enum tdm_status tdm_key_read_switch(const struct tdm_method_key *key, const char *value,
                                    struct tdm_method_settings *settings, struct tdm_error *err);
/* A uint64_t, least to most. */
enum tdm_status tdm_key_read_count(const struct tdm_method_key *key, const char *value,
                                   struct tdm_method_settings *settings, struct tdm_error *err);

/* A uint64_t; 4K is 4,096. */
enum tdm_status tdm_key_read_tokens(const struct tdm_method_key *key, const char *value,
                                    struct tdm_method_settings *settings, struct tdm_error *err);
/* A bool: the first of two values is true. */
enum tdm_status tdm_key_read_refusal(const struct tdm_method_key *key, const char *value,
                                     struct tdm_method_settings *settings, struct tdm_error *err);
/* Projections with adapters; the step that counts. */
enum tdm_status tdm_key_read_targets(const struct tdm_method_key *key, const char *value,
                                     struct tdm_method_settings *settings, struct tdm_error *err);
/* Of the key "step". */
enum tdm_status tdm_key_read_step(const struct tdm_method_key *key, const char *value,
                                  struct tdm_method_settings *settings, struct tdm_error *err);

/* For readers of lists, names with commas or spaces between them: the bits of all that are named,
 * at least one. */
struct tdm_key_word {
    const char *name;
    uint32_t bits;
};
enum tdm_status tdm_key_read_words(const struct tdm_method_key *key, const char *value,
                                   const struct tdm_key_word *words, size_t count, uint32_t *bits,
                                   struct tdm_error *err);

/* For readers of their own: the value is none of the key's. */
enum tdm_status tdm_key_bad_value(const struct tdm_method_key *key, const char *value,
                                  struct tdm_error *err);

/* ---- needs of keys of several families ---- */

extern const struct tdm_key_need tdm_need_lora, tdm_need_chunked_logits, tdm_need_later_steps;

/* ---- tables, each ended by a key without a name ---- */

extern const struct tdm_method_key
    tdm_keys_torch[]; /* of all that Hugging Face's models run under */
extern const struct tdm_method_key tdm_keys_ddp[], tdm_keys_fsdp[];
extern const struct tdm_method_key tdm_keys_burst[];
extern const struct tdm_method_key tdm_keys_oomb[], tdm_keys_seco[], tdm_keys_longlora[];
extern const struct tdm_method_key
    tdm_keys_megatron[]; /* and, before them, which sizes are assumed */
extern const struct tdm_method_key tdm_keys_tensor_parallel[], tdm_keys_megatron_cp[];
extern const struct tdm_method_key tdm_keys_planned[]; /* of tidemark's own schedule */

#endif
