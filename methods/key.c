/* SPDX-License-Identifier: Apache-2.0 */
/* Readers of keys, and what a key needs to have an effect. */
#include "methods/key.h"

#include "base/units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define VERSION_MOST 1000000ul /* of a number, which may be a date */

/* Do both begin with the same letters? Case, and "-" or "_", make no difference. */
static bool same_letters(const char *a, const char *b, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        const char x[] = {a[i] == '_' ? '-' : a[i], '\0'}, y[] = {b[i] == '_' ? '-' : b[i], '\0'};
        if (strcasecmp(x, y) != 0)
            return false;
    }
    return true;
}

/* Index of the value in "a|b|c", or -1. An explanation after the value is ignored: "b (as x does)".
 */
static int choice(const char *values, const char *value)
{
    const char *explained = strstr(value, " (");
    size_t length = explained == NULL ? strlen(value) : (size_t)(explained - value);
    for (int number = 0; values != NULL; number++) {
        size_t span = strcspn(values, "|");
        if (span == length && same_letters(values, value, span))
            return number;
        values = values[span] == '|' ? values + span + 1 : NULL;
    }
    return -1;
}

enum tdm_status tdm_key_bad_value(const struct tdm_method_key *key, const char *value,
                                  struct tdm_error *err)
{
    return tdm_fail(err, TDM_USAGE, "--set %s: \"%.64s\" is not known; expected %s", key->name,
                    value, key->values);
}

enum tdm_status tdm_key_read_version(const struct tdm_method_key *key, const char *value,
                                     const char *example, unsigned version[TDM_VERSION_NUMBERS],
                                     struct tdm_error *err)
{
    const char *next = value;
    memset(version, 0, TDM_VERSION_NUMBERS * sizeof(*version));
    for (unsigned i = 0; i < TDM_VERSION_NUMBERS; i++) {
        char *end = (char *)next;
        const unsigned long number = *next >= '0' && *next <= '9' ? strtoul(next, &end, 10) : 0;
        if (end == next || number > VERSION_MOST)
            return tdm_fail(err, TDM_USAGE,
                            "--set %s: \"%.64s\" is not a version; expected one such as %s",
                            key->name, value, example);
        version[i] = (unsigned)number;
        if (*end != '.')
            break;
        next = end + 1;
    }
    return TDM_OK;
}

enum tdm_status tdm_key_read_words(const struct tdm_method_key *key, const char *value,
                                   const struct tdm_key_word *words, size_t count, uint32_t *bits,
                                   struct tdm_error *err)
{
    uint32_t all = 0;
    for (const char *name = value; *name != '\0';) {
        size_t span = strcspn(name, ", "), i = 0;
        while (i < count &&
               (strlen(words[i].name) != span || memcmp(name, words[i].name, span) != 0))
            i++;
        if (i == count)
            return tdm_key_bad_value(key, value, err);
        all |= words[i].bits;
        name += span + strspn(name + span, ", ");
    }
    if (all == 0)
        return tdm_key_bad_value(key, value, err);
    *bits = all;
    return TDM_OK;
}

enum tdm_status tdm_key_read_choice(const struct tdm_method_key *key, const char *value,
                                    struct tdm_method_settings *settings, struct tdm_error *err)
{
    int number = choice(key->values, value);
    if (number < 0)
        return tdm_key_bad_value(key, value, err);
    *(unsigned *)(void *)((char *)settings + key->field) = (unsigned)number;
    return TDM_OK;
}

enum tdm_status tdm_key_read_switch(const struct tdm_method_key *key, const char *value,
                                    struct tdm_method_settings *settings, struct tdm_error *err)
{
    int number = choice(key->values, value);
    if (number < 0)
        return tdm_key_bad_value(key, value, err);
    *(bool *)(void *)((char *)settings + key->field) = number == 1;
    return TDM_OK;
}

enum tdm_status tdm_key_read_dropout(const struct tdm_method_key *key, const char *value,
                                     struct tdm_method_settings *settings, struct tdm_error *err)
{
    char *end;
    double share = strtod(value, &end);
    if (end == value || *end != '\0' || !(share >= 0 && share < 1))
        return tdm_fail(err, TDM_USAGE,
                        "--set %s: \"%.64s\" is not a share; expected a number from 0 on, below 1",
                        key->name, value);
    *(double *)(void *)((char *)settings + key->field) = share;
    return TDM_OK;
}

enum tdm_status tdm_key_read_refusal(const struct tdm_method_key *key, const char *value,
                                     struct tdm_method_settings *settings, struct tdm_error *err)
{
    int number = choice(key->values, value);
    if (number < 0)
        return tdm_key_bad_value(key, value, err);
    *(bool *)(void *)((char *)settings + key->field) = number == 0;
    return TDM_OK;
}

enum tdm_status tdm_key_read_count(const struct tdm_method_key *key, const char *value,
                                   struct tdm_method_settings *settings, struct tdm_error *err)
{
    char what[64];
    snprintf(what, sizeof(what), "--set %s", key->name);
    return tdm_parse_count(value, what, key->least, key->most,
                           (uint64_t *)(void *)((char *)settings + key->field), err);
}

enum tdm_status tdm_key_read_tokens(const struct tdm_method_key *key, const char *value,
                                    struct tdm_method_settings *settings, struct tdm_error *err)
{
    char what[64];
    snprintf(what, sizeof(what), "--set %s", key->name);
    return tdm_parse_tokens(value, what, (uint64_t *)(void *)((char *)settings + key->field), err);
}

bool tdm_key_is_unmeasured(const struct tdm_method_key *key, const char *value)
{
    const size_t length = strlen(value);
    const char *one = key->unmeasured;
    while (one != NULL && *one != '\0') {
        const size_t found = strcspn(one, "|");
        if (found == length && strncmp(one, value, length) == 0)
            return true;
        one += found + (one[found] == '|');
    }
    return false;
}

bool tdm_key_is_main(const struct tdm_method_key *key)
{
    static const char *const names[] = {"checkpointing",
                                        "attention",
                                        "optimizer",
                                        "weights_dtype",
                                        "logits",
                                        "sharding",
                                        "reshard_after_forward",
                                        "offload_optimizer",
                                        "offload_param",
                                        "chunk",
                                        "ds_sequence_parallel_fpdt_chunk_size",
                                        "budget",
                                        "layer_checkpoint",
                                        "kv_offload",
                                        "tensor_model_parallel_size",
                                        "context_parallel_size",
                                        "pipeline_model_parallel_size",
                                        "sequence_parallel",
                                        "recompute_granularity",
                                        "use_distributed_optimizer",
                                        "use_checkpoint",
                                        "spzero",
                                        "offload",
                                        "objective",
                                        "version"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(key->name, names[i]) == 0)
            return true;
    return false;
}

/* ---- needs ---- */

const struct tdm_key_need *tdm_key_unmet(const struct tdm_method_key *key,
                                         const struct tdm_key_case *c)
{
    for (unsigned i = 0; i < TDM_KEY_MOST_NEEDS && key->needs[i] != NULL; i++)
        if (!key->needs[i]->is_met(c))
            return key->needs[i];
    return NULL;
}

const char *tdm_key_without_effect(const struct tdm_method_key *key, const struct tdm_key_case *c,
                                   char *text)
{
    const struct tdm_key_need *need = tdm_key_unmet(key, c);
    if (need == NULL)
        return NULL;
    snprintf(text, TDM_KEY_TEXT, "%s has no effect %s", key->name, need->unmet);
    return text;
}

const char *tdm_key_assumed(const struct tdm_method_key *key, const struct tdm_key_case *c,
                            char *text)
{
    if (tdm_key_unmet(key, c) != NULL)
        return NULL;
    return key->settled != NULL ? key->settled(c, text) : key->assumed;
}
