/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of schedules as JSON. They come back identical. An edited schedule is refused with one line
 * that names file and field, or can be lowered; it never causes a crash.
 */
#include "schedule/program.h"
#include "schedule/validate.h"
#include "tests/support/random_schedule.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BASE_SEED 3000
#define FILE_NAME "edited.json"

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

static json_t *random_json(uint64_t seed)
{
    const struct tdm_random_options options = {.pass = TDM_RANDOM_ANY_PASS,
                                               .ranks = seed % 3 == 0 ? 4 : 0};
    struct tdm_schedule *schedule = NULL;
    json_t *root = NULL;
    struct tdm_error err;
    must(tdm_random_schedule(seed, &options, &schedule, &err), &err);
    schedule->rings.gradients = 1; /* more needs several ranks, which an edit may remove */
    schedule->packed_bytes = seed % 2 == 0 ? 0 : seed << 20;
    must(tdm_schedule_to_json(schedule, NULL, &root, &err), &err);
    tdm_schedule_free(schedule);
    return root;
}

/* Files that do not say how many gradients wait on the host meant as many as states pass. */
static void test_host_gradients(void **state)
{
    (void)state;
    static const int given[] = {0, 5};
    for (size_t i = 0; i < 2; i++) {
        json_t *root = random_json(BASE_SEED), *rings = json_object_get(root, "rings");
        struct tdm_schedule *schedule = NULL;
        struct tdm_error err;
        json_object_set_new(rings, "optimizer", json_integer(3));
        json_object_del(rings, "host_gradients");
        if (given[i] > 0)
            json_object_set_new(rings, "host_gradients", json_integer(given[i]));
        must(tdm_schedule_from_json(FILE_NAME, root, &schedule, &err), &err);
        assert_int_equal(schedule->rings.optimizer, 3);
        assert_int_equal(schedule->rings.host_gradients, given[i] > 0 ? given[i] : 3);
        tdm_schedule_free(schedule);
        json_decref(root);
    }
}

/* A config may have more digits than a schedule's file stores. It is still the same model. */
static void test_many_digits(void **state)
{
    (void)state;
    json_t *config =
        json_pack("{s:[s], s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f}", "architectures",
                  "LlamaForCausalLM", "num_hidden_layers", 1, "hidden_size", 8, "intermediate_size",
                  8, "num_attention_heads", 1, "num_key_value_heads", 1, "vocab_size", 8,
                  "initializer_range", 0.014142135623730951, "rms_norm_eps", 1.2345678901234567e-6);
    struct tdm_model *model = NULL;
    struct tdm_machine *machine = NULL;
    struct tdm_schedule *schedule = NULL, *again = NULL;
    json_t *root = NULL;
    struct tdm_error err;
    must(tdm_model_from_config("config", "many-digits", config, &model, &err), &err);
    must(tdm_machine_load("h200-published", &machine, &err), &err);
    must(tdm_schedule_new(model, machine, 16, &schedule, &err), &err);
    must(tdm_schedule_to_json(schedule, NULL, &root, &err), &err);
    char *text = json_dumps(root, JSON_REAL_PRECISION(12));
    json_t *parsed = json_loads(text, 0, NULL);
    must(tdm_schedule_from_json(FILE_NAME, parsed, &again, &err), &err);
    json_decref(parsed);
    json_decref(root);
    json_decref(config);
    free(text);
    tdm_schedule_free(schedule);
    tdm_schedule_free(again);
}

static void test_round_trip(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(50, 500);
    for (uint64_t n = 0; n < cases; n++) {
        uint64_t seed = tdm_case_seed(BASE_SEED, n);
        json_t *root = random_json(seed), *again = NULL;
        json_t *predicted = json_pack("{s:f}", "step_seconds", 1.5);
        struct tdm_schedule *schedule = NULL;
        struct tdm_error err;
        must(tdm_schedule_from_json(FILE_NAME, root, &schedule, &err), &err);
        must(tdm_schedule_to_json(schedule, NULL, &again, &err), &err);
        char *first = json_dumps(root, 0), *second = json_dumps(again, 0); /* order of keys too */
        if (strcmp(first, second) != 0)
            fail_msg("seed %llu: %s\ncame back as %s", (unsigned long long)seed, first, second);
        json_decref(again);
        free(second);
        tdm_schedule_free(schedule);

        /* with a prediction next to it, through text */
        json_object_set(root, "predicted", predicted);
        char *text = json_dumps(root, JSON_INDENT(2));
        json_t *parsed = json_loads(text, 0, NULL);
        must(tdm_schedule_from_json(FILE_NAME, parsed, &schedule, &err), &err);
        must(tdm_schedule_to_json(schedule, predicted, &again, &err), &err);
        assert_true(json_equal(root, again));
        tdm_schedule_free(schedule);
        json_decref(again);
        json_decref(parsed);
        json_decref(predicted);
        json_decref(root);
        free(first);
        free(text);
    }
}

/* ---- edits ---- */

/* One field of a schedule, for example "groups[0].kept", and the object or array that holds it. */
struct field {
    char path[128];
    json_t *parent;
    const char *key; /* of an object */
    size_t index;    /* of an array, with key NULL */
};

struct fields {
    struct field list[512];
    size_t count;
};

/* Collects every field below `value`, except those of the model's config and of the machine's
 * description, which have their own tests. */
static void collect(struct fields *fields, json_t *value, const char *path)
{
    if (strcmp(path, "model.config") == 0 || strcmp(path, "machine") == 0)
        return;
    const char *key;
    json_t *member;
    size_t index;
    json_object_foreach(value, key, member)
    {
        struct field *field = &fields->list[fields->count++];
        *field = (struct field){.parent = value, .key = key};
        snprintf(field->path, sizeof(field->path), "%s%s%s", path, *path == '\0' ? "" : ".", key);
        collect(fields, member, field->path);
    }
    if (!json_is_array(value))
        return;
    json_array_foreach(value, index, member)
    {
        struct field *field = &fields->list[fields->count++];
        *field = (struct field){.parent = value, .index = index};
        snprintf(field->path, sizeof(field->path), "%s[%zu]", path, index);
        collect(fields, member, field->path);
    }
}

static json_t *value_of(const struct field *field)
{
    return field->key != NULL ? json_object_get(field->parent, field->key)
                              : json_array_get(field->parent, field->index);
}

/* Puts `value` in a field; NULL removes the field. */
static void set(const struct field *field, json_t *value)
{
    if (field->key == NULL && value == NULL)
        json_array_remove(field->parent, field->index);
    else if (field->key == NULL)
        json_array_set_new(field->parent, field->index, value);
    else if (value == NULL)
        json_object_del(field->parent, field->key);
    else
        json_object_set_new(field->parent, field->key, value);
}

static struct {
    uint64_t edits, refused, lowered, failures; /* of all edits of a test, shown before it fails */
} tally;

/* Reads an edited schedule. If it is refused, the message must name the file and `named`. If not,
 * `refusal` must be false, and it must lower to a valid program or be refused by the lowering. */
static void judge(const json_t *root, const char *what, const char *named, bool refusal)
{
    struct tdm_schedule *schedule = NULL;
    struct tdm_program *program = NULL;
    struct tdm_error err = {0};
    uint64_t none[TDM_MAX_PLACES] = {UINT64_MAX, UINT64_MAX};
    tally.edits++;
    if (tdm_schedule_from_json(FILE_NAME, root, &schedule, &err) != TDM_OK) {
        tally.refused++;
        assert_null(schedule);
        if (strncmp(err.message, FILE_NAME ": ", strlen(FILE_NAME) + 2) != 0 ||
            strchr(err.message, '\n') != NULL || strstr(err.message, named) == NULL) {
            print_error("%s: the message does not name \"%s\": %s\n", what, named, err.message);
            tally.failures++;
        }
        return;
    }
    if (refusal) {
        print_error("%s: was not refused\n", what);
        tally.failures++;
        tdm_schedule_free(schedule);
        return;
    }
    if (tdm_program_lower(schedule, &program, &err) == TDM_OK) {
        if (program->op_count < 100000)
            must(tdm_program_validate(program, none, &err), &err);
        tally.lowered++;
    } else {
        assert_int_equal(err.status, TDM_INPUT);
    }
    tdm_program_free(program);
    tdm_schedule_free(schedule);
}

/* The last name in a path, without index: messages name a field by that name. */
static const char *last_name(const struct field *field, char name[64])
{
    const char *dot = strrchr(field->path, '.');
    snprintf(name, 64, "%.63s", dot == NULL ? field->path : dot + 1);
    name[strcspn(name, "[")] = '\0';
    return name;
}

enum edit { REMOVED, WRONG_TYPE, NOTHING, NEGATIVE, FRACTION, HUGE, NONSENSE, EMPTY, EDITS };

static const char *const edit_names[EDITS] = {
    "removed", "of another type", "null", "negative", "a fraction", "huge", "nonsense", "empty"};

/* The edited value; NULL removes the field. Sets *applies: is there such an edit of this value? */
static json_t *edited(const json_t *old, enum edit edit, bool *applies)
{
    bool is_number = json_is_number(old);
    *applies = true;
    switch (edit) {
    case REMOVED:
        return NULL;
    case WRONG_TYPE:
        return json_is_string(old) ? json_integer(7) : json_string("seven");
    case NOTHING:
        return json_null();
    case NEGATIVE:
        *applies = is_number;
        return is_number ? json_integer(-3) : NULL;
    case FRACTION:
        *applies = json_is_integer(old);
        return *applies ? json_real(1.5) : NULL;
    case HUGE:
        *applies = is_number;
        return !is_number             ? NULL
               : json_is_integer(old) ? json_integer(INT64_MAX)
                                      : json_real(1e300);
    case NONSENSE:
        *applies = json_is_string(old);
        return *applies ? json_string("nonsense") : NULL;
    case EMPTY:
        *applies = !is_number;
        return json_is_array(old)    ? json_array()
               : json_is_object(old) ? json_object()
               : *applies            ? json_string("")
                                     : NULL;
    case EDITS:
        break;
    }
    *applies = false;
    return NULL;
}

/* Edits after which the schedule is still legal. */
static bool is_harmless(const struct field *field, enum edit edit)
{
    static const struct {
        const char *name;
        enum edit edit;
    } table[] = {
        {"warmup_steps", REMOVED},
        {"warmup_steps", NOTHING},
        {"name", NONSENSE},
        {"name", EMPTY},
        {"memory_bytes", HUGE},
        {"host_memory_bytes", HUGE},
        {"pass", REMOVED},
        {"pass", NOTHING},
        {"selector", REMOVED},
        {"selector", NOTHING},
        {"held_device_chunks", REMOVED},
        {"held_device_chunks", NOTHING},
        {"gather", REMOVED},
        {"gather", NOTHING},
        {"ahead", REMOVED},
        {"ahead", NOTHING},
        {"splits", REMOVED},
        {"splits", NOTHING},
        {"host_gradients", REMOVED},
        {"host_gradients", NOTHING},
        {"on", REMOVED},
        {"on", NOTHING},
        {"ranks", REMOVED},
        {"ranks", NOTHING},
        {"deal", REMOVED},
        {"deal", NOTHING},
        {"packed_bytes", REMOVED},
        {"packed_bytes", NOTHING},
        {"packed_bytes", HUGE},
        {"snapshot_bytes", REMOVED},
        {"snapshot_bytes", NOTHING},
        {"snapshot_bytes", HUGE},
        {"exchange", REMOVED},
        {"exchange", NOTHING},
        {"sliced_weights", REMOVED},
        {"sliced_weights", NOTHING},
        {"decayed", REMOVED},
        {"decayed", NOTHING},
    };
    char name[64];
    last_name(field, name);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(name, table[i].name) == 0 && edit == table[i].edit)
            return true;
    /* One of several sequences or documents may be removed, a group not: its layers need one. */
    return edit == REMOVED && field->key == NULL && strncmp(field->path, "sequences", 9) == 0 &&
           json_array_size(field->parent) > 1;
}

static void edit_every_field(uint64_t seed)
{
    json_t *root = random_json(seed);
    struct fields *fields = calloc(1, sizeof(*fields));
    assert_non_null(fields);
    collect(fields, root, "");
    size_t count = fields->count;
    for (size_t i = 0; i < count; i++)
        for (int edit = 0; edit < EDITS; edit++) {
            bool applies;
            const struct field *field = &fields->list[i];
            json_t *value = edited(value_of(field), (enum edit)edit, &applies);
            if (!applies)
                continue;
            json_t *copy = json_deep_copy(root);
            struct fields *places = calloc(1, sizeof(*places));
            assert_non_null(places);
            collect(places, copy, "");
            char what[256], name[64];
            snprintf(what, sizeof(what), "seed %llu, \"%s\" %s", (unsigned long long)seed,
                     field->path, edit_names[edit]);
            set(&places->list[i], value);
            last_name(field, name);
            /* if a part is removed, the message may name another part */
            bool by_part = (field->key == NULL && edit == REMOVED) ||
                           (json_is_object(value_of(field)) && edit == EMPTY);
            if (edit == HUGE && field->key == NULL && strcmp(name, "sequences") == 0)
                snprintf(name, sizeof(name), "tokens"); /* their sum is too large */
            judge(copy, what, by_part ? "" : name, !is_harmless(field, (enum edit)edit));
            free(places);
            json_decref(copy);
        }
    free(fields);
    json_decref(root);
}

static void test_every_field(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(3, 20);
    memset(&tally, 0, sizeof(tally));
    for (uint64_t n = 0; n < cases; n++)
        edit_every_field(tdm_case_seed(BASE_SEED, n));
    print_message("%llu edits: %llu refused, %llu lowered\n", (unsigned long long)tally.edits,
                  (unsigned long long)tally.refused, (unsigned long long)tally.lowered);
    assert_true(tally.edits >= 60 * cases);
    assert_int_equal(tally.failures, 0);
}

/* An unknown field in any object. */
static void test_unknown_fields(void **state)
{
    (void)state;
    static const char *const objects[] = {"", "model", "groups[0]", "dtypes", "optimizer"};
    for (size_t i = 0; i < sizeof(objects) / sizeof(objects[0]); i++) {
        json_t *root = random_json(BASE_SEED);
        json_t *object = *objects[i] == '\0' ? root : json_object_get(root, objects[i]);
        if (strcmp(objects[i], "groups[0]") == 0)
            object = json_array_get(json_object_get(root, "groups"), 0);
        assert_non_null(object);
        json_object_set_new(object, "chunk_tokkens", json_integer(4));
        judge(root, objects[i], "chunk_tokkens", true);
        json_decref(root);
    }
}

/* Legal values that contradict each other, and values at the limits of the number types. */
static void test_contradictions(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        const char *changes; /* replace top-level fields of the schedule */
        const char *named;
        bool refusal;
    } table[] = {
        {"another format", "{\"format\": \"tidemark-schedule-0\"}", "format", true},
        {"too few groups", "{\"groups\": []}", "groups", true},
        {"chunk-major holds on the host", NULL, "held_place", true},
        {"no sequences", "{\"sequences\": []}", "sequences", true},
        {"a sequence of nothing", "{\"sequences\": [0]}", "sequences", true},
        {"more tokens than there are", "{\"sequences\": [1099511627777]}", "tokens", true},
        {"a sum of tokens that overflows",
         "{\"sequences\": [9223372036854775807, 9223372036854775807, 2]}", "tokens", true},
        {"more chunks than anybody waits for", "{\"sequences\": [1048576], \"chunk_tokens\": 1}",
         "", false},
        {"a sequence of documents",
         "{\"sequences\": [{\"tokens\": 20, \"documents\": [0, 3, 12]}, 5]}", "", false},
        {"a document beyond its sequence",
         "{\"sequences\": [5, {\"tokens\": 20, \"documents\": [0, 20]}]}",
         "\"sequences[1].documents\" has a document at 20", true},
        {"a first document that is not at 0",
         "{\"sequences\": [{\"tokens\": 20, \"documents\": [1, 3]}]}", "begins with 1", true},
        {"documents that do not rise",
         "{\"sequences\": [{\"tokens\": 20, \"documents\": [0, 3, 3]}]}", "3 after 3", true},
        {"documents of nothing", "{\"sequences\": [{\"tokens\": 20, \"documents\": []}]}",
         "0 documents", true},
        {"documents without tokens", "{\"sequences\": [{\"documents\": [0]}]}",
         "sequences[0].tokens", true},
        {"a misspelt field of a sequence", "{\"sequences\": [{\"tokens\": 20, \"starts\": [0]}]}",
         "starts", true},
        {"a sequence of words", "{\"sequences\": [\"long\"]}", "a whole number of tokens", true},
        {"a machine without rates", "{\"machine\": {}}", "", true},
        {"a model without a config", "{\"model\": {\"name\": \"x\", \"digest\": \"y\"}}", "config",
         true},
        {"too much prefetch", "{\"prefetch\": 17}", "prefetch", true},
        {"pages of nothing", "{\"page_tokens\": 0}", "page_tokens", true},
        {"tiles of nothing", "{\"head_tile_tokens\": 0}", "head_tile_tokens", true},
        {"no memory at all", "{\"memory_bytes\": 0, \"host_memory_bytes\": 0}", "", false},
        {"the largest pages", "{\"page_tokens\": 65536}", "", false},
        {"the largest chunks", "{\"chunk_tokens\": 1099511627776}", "", false},
        {"tiles of no vocabulary", "{\"head_tile_vocabulary\": 0}", "head_tile_vocabulary", true},
        {"all of any vocabulary", "{\"head_tile_vocabulary\": 4294967295}", "", false},
        {"the largest tiles", "{\"head_tile_tokens\": 1099511627776}", "", false},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        json_t *root = random_json(BASE_SEED + 1);
        if (table[i].changes != NULL) {
            json_t *changes = json_loads(table[i].changes, 0, NULL);
            assert_non_null(changes);
            json_object_update(root, changes);
            json_decref(changes);
        } else {
            json_object_set_new(root, "order", json_string("chunk-major"));
            json_t *group = json_array_get(json_object_get(root, "groups"), 0);
            json_object_set_new(group, "held_place", json_string("host"));
        }
        judge(root, table[i].name, table[i].named, table[i].refusal);
        json_decref(root);
    }
}

static void test_held_on_the_device(void **state)
{
    (void)state;
    static const struct {
        const char *name, *place;
        int chunks;
        bool refusal;
    } table[] = {{"held on the device by its place alone", "device", 0, false},
                 {"held on the device twice", "device", 1, true},
                 {"less than no chunks held on the device", "host", -1, true},
                 {"the last chunk held on the device", "host", 1, false},
                 {"all chunks held on the device, and more", "host", 1 << 20, false}};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        json_t *root = random_json(BASE_SEED + 1);
        json_t *group = json_array_get(json_object_get(root, "groups"), 0);
        json_object_set_new(root, "order", json_string("layer-major"));
        json_object_set_new(group, "held_place", json_string(table[i].place));
        json_object_set_new(group, "held_device_chunks", json_integer(table[i].chunks));
        json_object_set_new(group, "kv_gradients_place", json_string("device"));
        judge(root, table[i].name, "held_device_chunks", table[i].refusal);
        json_decref(root);
    }
}

/* The digest must match the config: neither may change without the other. */
static void test_digest(void **state)
{
    (void)state;
    struct tdm_schedule *schedule = NULL;
    struct tdm_error err;
    json_t *root = random_json(BASE_SEED + 2);
    json_t *config = json_object_get(json_object_get(root, "model"), "config");
    json_int_t hidden = json_integer_value(json_object_get(config, "hidden_size"));
    json_object_set_new(config, "hidden_size", json_integer(hidden + 1));
    judge(root, "another width", "model.digest", true);
    assert_int_equal(tdm_schedule_from_json(FILE_NAME, root, &schedule, &err), TDM_INPUT);
    assert_non_null(strstr(err.hint, "plan again"));

    json_object_set_new(config, "hidden_size", json_integer(-1));
    judge(root, "no width", "hidden_size", true);
    json_decref(root);
}

/* The text of a schedule, cut off anywhere or with a byte changed. */
static void test_damaged_text(void **state)
{
    (void)state;
    const char *scratch = getenv("TDM_SCRATCH");
    char path[512];
    snprintf(path, sizeof(path), "%s/" FILE_NAME, scratch == NULL ? "." : scratch);
    json_t *root = random_json(BASE_SEED + 3);
    char *text = json_dumps(root, JSON_INDENT(2));
    size_t length = strlen(text);
    struct tdm_dice dice;
    tdm_dice_seed(&dice, BASE_SEED);
    for (int n = 0; n < 120; n++) {
        size_t at = tdm_dice_roll(&dice, 0, length - 2);
        bool cut = n % 2 == 0;
        char old = text[at];
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        if (!cut)
            text[at] = (char)tdm_dice_roll(&dice, 1, 255);
        fwrite(text, 1, cut ? at : length, file);
        fclose(file);
        text[at] = old;

        struct tdm_schedule *schedule = NULL;
        struct tdm_error err = {0};
        enum tdm_status status = tdm_schedule_load(path, &schedule, &err);
        if (cut)
            assert_int_equal(status, TDM_INPUT);
        if (status != TDM_OK && (strstr(err.message, FILE_NAME) == NULL ||
                                 strchr(err.message, '\n') != NULL || err.message[0] == '\0'))
            fail_msg("byte %zu: \"%s\"", at, err.message);
        tdm_schedule_free(schedule);
    }
    unlink(path);
    free(text);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_gradients),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_many_digits),
        cmocka_unit_test(test_every_field),
        cmocka_unit_test(test_unknown_fields),
        cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_digest),
        cmocka_unit_test(test_damaged_text),
        cmocka_unit_test(test_held_on_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
