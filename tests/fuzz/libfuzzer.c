/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Searches for inputs with libFuzzer: TDM_FUZZ_TARGET names the target. Inputs that are JSON are
 * mutated as JSON most of the time, since few other changes pass the parser.
 */
#include "tests/fuzz/fuzz.h"

#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t most_bytes, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t bytes, size_t most_bytes);

static const struct tdm_fuzz_target *target;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    const char *name = getenv("TDM_FUZZ_TARGET");
    tdm_fuzz_searches = true;
    target = name == NULL ? NULL : tdm_fuzz_find(name);
    if (target == NULL) {
        fprintf(stderr, "TDM_FUZZ_TARGET must name a target: a folder of tests/fuzz/corpus\n");
        exit(1);
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    target->run(data, bytes);
    return 0;
}

/* ---- mutations of JSON ---- */

static uint64_t state;

/* A number below `limit`. */
static size_t draw(size_t limit)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(state >> 33) % limit;
}

static size_t count_values(const json_t *value)
{
    size_t count = 1, index;
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)value, key, member) count += count_values(member);
    json_array_foreach(value, index, member) count += count_values(member);
    return count;
}

/* The value with a number, in the order of count_values(). */
static json_t *value_at(json_t *value, size_t *number)
{
    size_t index;
    const char *key;
    json_t *member, *found;
    if ((*number)-- == 0)
        return value;
    json_object_foreach(value, key,
                        member) if ((found = value_at(member, number)) != NULL) return found;
    json_array_foreach(value, index,
                       member) if ((found = value_at(member, number)) != NULL) return found;
    return NULL;
}

/* Another value for `old`: near it, extreme, of another type, or a copy from elsewhere. */
static json_t *other_value(json_t *root, const json_t *old)
{
    static const json_int_t numbers[] = {0,
                                         1,
                                         -1,
                                         2,
                                         3,
                                         4,
                                         7,
                                         8,
                                         16,
                                         64,
                                         255,
                                         256,
                                         4096,
                                         65535,
                                         65536,
                                         INT32_MAX,
                                         INT64_MAX,
                                         INT64_MIN,
                                         (json_int_t)1 << 40};
    static const double reals[] = {0.0, -1.0, 0.5, 1e-300, 1e308, 1e16, -0.0};
    size_t number;
    char text[64];
    switch (draw(8)) {
    case 0:
        return json_integer(numbers[draw(sizeof(numbers) / sizeof(numbers[0]))]);
    case 1:
        return json_real(reals[draw(sizeof(reals) / sizeof(reals[0]))]);
    case 2:
        if (json_is_integer(old)) {
            uint64_t was = (uint64_t)json_integer_value(old);
            return json_integer((json_int_t)(draw(2) ? was + draw(9) - 4 : was << draw(8)));
        }
        return draw(2) ? json_true() : json_null();
    case 3:
        if (json_is_string(old)) { /* a letter changed, or cut */
            snprintf(text, sizeof(text), "%s", json_string_value(old));
            size_t length = strlen(text);
            if (length > 0)
                text[draw(length)] = draw(2) ? (char)('!' + draw(90)) : '\0';
            return json_string_nocheck(text);
        }
        return json_array();
    case 4:
        return draw(2) ? json_object() : json_string("");
    default:
        number = draw(count_values(root));
        return json_deep_copy(value_at(root, &number));
    }
}

static void mutate(json_t *root)
{
    size_t number = draw(count_values(root));
    json_t *parent = value_at(root, &number);
    const char *key;
    json_t *member;
    if (json_object_size(parent) > 0) {
        size_t skipped = draw(json_object_size(parent));
        void *at = json_object_iter(parent);
        while (skipped-- > 0)
            at = json_object_iter_next(parent, at);
        char *name = strdup(json_object_iter_key(at));
        member = json_object_iter_value(at);
        if (draw(8) == 0)
            json_object_del(parent, name);
        else
            json_object_set_new(parent, name, other_value(root, member));
        free(name);
    } else if (json_array_size(parent) > 0) {
        size_t index = draw(json_array_size(parent));
        if (draw(4) == 0)
            json_array_remove(parent, index);
        else if (draw(3) == 0)
            json_array_append_new(parent, other_value(root, json_array_get(parent, index)));
        else
            json_array_set_new(parent, index, other_value(root, json_array_get(parent, index)));
    } else { /* a leaf: try the root's member of that rank */
        key = json_object_iter_key(json_object_iter(root));
        if (key != NULL && draw(16) == 0)
            json_object_set_new(root, "unknown", json_integer(1));
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t most_bytes, unsigned seed)
{
    state = seed;
    json_t *root = !target->json || draw(8) == 0
                       ? NULL
                       : json_loadb((const char *)data, bytes, JSON_DISABLE_EOF_CHECK, NULL);
    if (root == NULL)
        return LLVMFuzzerMutate(data, bytes, most_bytes);
    for (size_t edits = 1 + draw(3); edits > 0; edits--)
        mutate(root);
    size_t size = json_dumpb(root, (char *)data, most_bytes, JSON_COMPACT);
    json_decref(root);
    return size > 0 && size <= most_bytes ? size : LLVMFuzzerMutate(data, bytes, most_bytes);
}
