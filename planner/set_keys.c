/* SPDX-License-Identifier: Apache-2.0 */
/* --set KEY=VALUE: a table of keys, each with its read function, and the rules between keys. */
#include "planner/set_keys.h"

#include "base/units.h"
#include "planner/places.h"
#include "schedule/optimizer.h"
#include "ops/selector_fields.h"
#include "schedule/training_settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_GROUPS 4096u

struct reading {
    const struct key *key;
    const char *value;
    void *field; /* of the schedule or the pins, which the value sets */
    struct tdm_schedule *schedule;
    struct tdm_pins *pins;
    struct tdm_error *err;
    char what[64]; /* "--set KEY", for messages */
};

struct key {
    const char *name;
    enum tdm_status (*read)(struct reading *r);
    /* Offsets: of the field in the schedule, or if that is 0, in the pins; and of the flag in the
     * pins which says that the user fixed it (0: none). */
    size_t in_schedule, in_pins, flag;
    uint64_t low, high; /* of a count; of tokens `high` is the most, if it is not 0, */
    const char *most;   /* and the same in words */
    enum tdm_training_setting setting;
};

static enum tdm_status bad(struct reading *r, const char *due)
{
    return tdm_fail(r->err, TDM_USAGE, "%s: \"%s\" is not known; expected %s", r->what, r->value,
                    due);
}

/* ---- numbers ---- */

/* A number from key->low to key->high, into 32 bits. */
static enum tdm_status read_count(struct reading *r)
{
    uint64_t count;
    enum tdm_status status =
        tdm_parse_count(r->value, r->what, r->key->low, r->key->high, &count, r->err);
    if (status == TDM_OK)
        *(uint32_t *)r->field = (uint32_t)count;
    return status;
}

static enum tdm_status read_tokens(struct reading *r)
{
    uint64_t *tokens = r->field;
    enum tdm_status status = tdm_parse_tokens(r->value, r->what, tokens, r->err);
    if (status == TDM_OK && r->key->high > 0 && *tokens > r->key->high)
        return tdm_fail(r->err, TDM_USAGE, "%s: \"%s\" is more than %s", r->what, r->value,
                        r->key->most);
    return status;
}

/* "4", or "13,8,4,2,1". */
static enum tdm_status read_groups(struct reading *r)
{
    char *copy = strdup(r->value);
    size_t capacity = 1;
    for (const char *c = r->value; *c != '\0'; c++)
        capacity += *c == ',';
    enum tdm_status status = TDM_OK;
    uint32_t *sizes = capacity <= MAX_GROUPS ? calloc(capacity, sizeof(*sizes)) : NULL;
    if (copy == NULL || (sizes == NULL && capacity <= MAX_GROUPS))
        status = tdm_fail(r->err, TDM_NO_MEMORY, "out of memory for groups");
    else if (sizes == NULL)
        status = tdm_fail(r->err, TDM_USAGE, "%s: more than %u groups", r->what, MAX_GROUPS);
    uint32_t count = 0;
    uint64_t sum = 0;
    for (char *rest = copy; status == TDM_OK && rest != NULL;) {
        uint64_t size;
        char *item = strsep(&rest, ",");
        status = tdm_parse_count(item, r->what, 1, UINT32_MAX / 2, &size, r->err);
        if (status == TDM_OK) {
            sizes[count++] = (uint32_t)size;
            sum += size;
        }
    }
    uint32_t layers = r->schedule->model->layers;
    if (status == TDM_OK && (count == 1 ? sum > layers : sum != layers)) {
        tdm_fail(r->err, TDM_USAGE, "%s: \"%s\" adds up to %llu layers, %s has %u", r->what,
                 r->value, (unsigned long long)sum, r->schedule->model->name, layers);
        status = tdm_hint(r->err, "give sizes that add up to %u, or one size that repeats", layers);
    }
    free(copy);
    if (status != TDM_OK) {
        free(sizes);
        return status;
    }
    r->pins->groups = sizes;
    r->pins->group_count = count;
    return TDM_OK;
}

/* Divides sequences into documents of one length, or takes those of the text that a run reads. */
static enum tdm_status read_documents(struct reading *r)
{
    uint64_t length;
    r->schedule->documents_of_text = strcmp(r->value, "file") == 0;
    if (r->schedule->documents_of_text)
        length = UINT64_MAX; /* one document per sequence */
    else if (tdm_parse_tokens(r->value, r->what, &length, r->err) != TDM_OK)
        return r->err->status;
    enum tdm_status status = TDM_OK;
    for (uint32_t s = 0; s < r->schedule->sequence_count && status == TDM_OK; s++)
        status = tdm_sequence_divide(&r->schedule->sequences[s], r->what, length, r->err);
    return status == TDM_INPUT ? (r->err->status = TDM_USAGE) : status;
}

/* "25%" of the chunks, or a chunk's number. */
static enum tdm_status read_kept_from(struct reading *r)
{
    char digits[24];
    size_t length = strlen(r->value);
    bool percent = length > 0 && r->value[length - 1] == '%';
    uint64_t number;
    if (length >= sizeof(digits))
        return bad(r, "a chunk's number or a percentage");
    memcpy(digits, r->value, length + 1);
    if (percent)
        digits[length - 1] = '\0';
    enum tdm_status status =
        tdm_parse_count(digits, r->what, 0, percent ? 100 : UINT32_MAX - 1, &number, r->err);
    if (status != TDM_OK)
        return status;
    r->pins->kept_from_unit = percent ? TDM_SPLIT_PERCENT : TDM_SPLIT_CHUNK;
    r->pins->kept_from = (uint32_t)number;
    return TDM_OK;
}

static enum tdm_status read_setting(struct reading *r)
{
    return tdm_training_setting_read(r->key->setting, r->value, r->what, &r->schedule->optimizer,
                                     r->err);
}

/* ---- names ---- */

static enum tdm_status read_order(struct reading *r)
{
    return tdm_order_parse(r->value, r->field) ? TDM_OK : bad(r, "layer-major or chunk-major");
}

static enum tdm_status read_deal(struct reading *r)
{
    return tdm_deal_parse(r->value, r->field) ? TDM_OK : bad(r, TDM_DEAL_NAMES);
}

static enum tdm_status read_exchange(struct reading *r)
{
    return tdm_exchange_kind_parse(r->value, r->field) ? TDM_OK : bad(r, TDM_EXCHANGE_NAMES);
}

static enum tdm_status read_kv(struct reading *r)
{
    return tdm_kv_parse(r->value, r->field) ? TDM_OK : bad(r, "recompute or keep");
}

static enum tdm_status read_when(struct reading *r)
{
    return tdm_when_parse(r->value, r->field) ? TDM_OK : bad(r, TDM_WHEN_NAMES);
}

static enum tdm_status read_dtype(struct reading *r)
{
    bool master = r->field == &r->schedule->dtypes.master;
    return tdm_dtype_parse(r->value, r->field)
               ? TDM_OK
               : bad(r, master ? "fp32, remainder16 or none" : "bf16 or fp32");
}

static enum tdm_status read_set(struct reading *r)
{
    enum tdm_set *set = r->field;
    char names[TDM_SET_LIST];
    return tdm_set_parse(r->value, set) && *set != TDM_SET_INPUT
               ? TDM_OK
               : bad(r, tdm_set_list(TDM_SET_ATTENTION_OUTPUT, names, sizeof(names)));
}

static enum tdm_status read_attention(struct reading *r)
{
    for (int i = 0; i < TDM_ATTENTION_STORES; i++)
        if (strcmp(r->value, tdm_attention_store_name((enum tdm_attention_store)i)) == 0) {
            r->pins->attention = (enum tdm_attention_store)i;
            return TDM_OK;
        }
    return bad(r, "none, held or kept");
}

static enum tdm_status read_sliced(struct reading *r)
{
    r->pins->weight_slices = strcmp(r->value, "yes") == 0;
    return r->pins->weight_slices || strcmp(r->value, "no") == 0
               ? TDM_OK
               : tdm_fail(r->err, TDM_USAGE, "%s is \"%s\"; expected yes or no", r->what, r->value);
}

/* ---- the selector ---- */

static enum tdm_status read_selector(struct reading *r)
{
    enum tdm_selector_kind *kind = r->field;
    if (!tdm_selector_parse(r->value, kind)) {
        bad(r, TDM_SELECTOR_PATTERNS);
        return tdm_hint(r->err, "--budget N asks for top-k");
    }
    if (*kind != TDM_SELECT_TOP_K)
        return TDM_OK;
    tdm_fail(r->err, TDM_USAGE, "%s: \"top-k\" is asked for by --budget N", r->what);
    return tdm_hint(r->err, "give --budget without --set selector");
}

/* Reads a field of the selector, within the range of its table. */
static enum tdm_status read_selector_field(struct reading *r)
{
    uint64_t *value = r->field;
    const struct tdm_selector_field *known;
    size_t number = 0;
    while ((known = tdm_selector_field(number)) != NULL &&
           known->offset + offsetof(struct tdm_schedule, selector) != r->key->in_schedule)
        number++;
    if (known == NULL)
        return tdm_fail(r->err, TDM_INTERNAL, "%s: no selector has this", r->what);
    if (known->counts)
        return tdm_parse_count(r->value, r->what, known->low, known->high, value, r->err);
    enum tdm_status status = tdm_parse_tokens(r->value, r->what, value, r->err);
    if (status == TDM_OK && *value > known->high)
        return tdm_fail(r->err, TDM_USAGE, "%s: \"%s\" is more than %llu tokens", r->what, r->value,
                        (unsigned long long)known->high);
    return status;
}

/* ---- places and homes ---- */

/* Reads the name of a place that plans use. */
static bool parse_place(const struct reading *r, enum tdm_place *place)
{
    enum tdm_place found;
    if (!tdm_place_parse(&r->schedule->machine->topology, r->value, &found) ||
        (tdm_is_far(found) && found != tdm_far_place(r->schedule)))
        return false;
    *place = found;
    return true;
}

/* Refuses a value that is not the name of a place that plans use, nor what `also` names ("", or
 * such as " or the number of layers"). */
static enum tdm_status bad_place(const struct reading *r, const char *also)
{
    const struct tdm_topology *topology = &r->schedule->machine->topology;
    char due[160];
    enum tdm_place other;
    snprintf(due, sizeof(due), "expected %s%s%s%s", tdm_place_name(topology, TDM_DEVICE),
             also[0] == '\0' ? " or " : ", ", tdm_place_name(topology, tdm_far_place(r->schedule)),
             also);
    if (!tdm_place_parse(topology, r->value, &other))
        return tdm_fail(r->err, TDM_USAGE, "%s: \"%s\" is not known; %s", r->what, r->value, due);
    tdm_fail(r->err, TDM_USAGE, "%s: plans put nothing at \"%s\"; %s", r->what, r->value, due);
    return tdm_hint(r->err, "write other places into the schedule by hand");
}

static enum tdm_status read_place(struct reading *r)
{
    return parse_place(r, r->field) ? TDM_OK : bad_place(r, "");
}

/* Reads a number of layers on the device, or one place for layers, embedding and head. */
static enum tdm_status read_home(struct reading *r)
{
    struct tdm_home *home = r->field;
    uint32_t layers = r->schedule->model->layers;
    enum tdm_place place;
    uint64_t count;
    if (parse_place(r, &place)) {
        *home = (struct tdm_home){tdm_is_far(place) ? 0 : layers, place, place};
        return TDM_OK;
    }
    if (r->value[0] < '0' || r->value[0] > '9')
        return bad_place(r, " or the number of layers that are on the device");
    enum tdm_status status = tdm_parse_count(r->value, r->what, 0, layers, &count, r->err);
    if (status == TDM_OK)
        home->device_layers = (uint32_t)count;
    return status;
}

/* ---- the keys ---- */

_Static_assert(offsetof(struct tdm_schedule, model) == 0 && offsetof(struct tdm_pins, groups) == 0,
               "an offset of 0 means no field: no key may set the first one");

#define FIELD(member) .in_schedule = offsetof(struct tdm_schedule, member)
#define PIN(member) .in_pins = offsetof(struct tdm_pins, member)
#define PINNED(member) .flag = offsetof(struct tdm_pins, member)

/* The home of a state, and of its embedding and head apart. */
#define HOME(name, state)                                                                        \
    {name, read_home, FIELD(homes[state]), PINNED(has_home[state])},                             \
        {name ".embedding", read_place, FIELD(homes[state].embedding), PINNED(has_home[state])}, \
    {                                                                                            \
        name ".head", read_place, FIELD(homes[state].head), PINNED(has_home[state])              \
    }

static const struct key keys[] = {
    {"order", read_order, PIN(order), PINNED(has_order)},
    {"groups", .read = read_groups},
    {"chunk", read_tokens, PIN(chunk_tokens)},
    {"page", read_tokens, FIELD(page_tokens), .high = 65536, .most = "64K tokens"},
    {"selector", read_selector, FIELD(selector.kind)},
    {"selector.window", read_selector_field, FIELD(selector.window)},
    {"selector.block", read_selector_field, FIELD(selector.block)},
    {"selector.global", read_selector_field, FIELD(selector.global)},
    {"selector.random", read_selector_field, FIELD(selector.random)},
    {"selector.dilation", read_selector_field, FIELD(selector.dilation)},
    {"selector.seed", read_selector_field, FIELD(selector.seed)},
    {"head_tile", read_tokens, PIN(head_tile_tokens)},
    {"head_tile_vocabulary", read_tokens, FIELD(head_tile_vocabulary), .high = UINT32_MAX,
     .most = "2^32 - 1 entries"},
    {"documents", .read = read_documents},
    {"deal", read_deal, FIELD(deal)},
    {"exchange", read_exchange, FIELD(exchange), PINNED(has_exchange)},
    {"exchange.heads", read_count, FIELD(head_ranks), .low = 2, .high = TDM_MAX_HEAD_RANKS},
    {"prefetch", read_count, FIELD(prefetch), PINNED(has_prefetch), .high = 16},
    {"inputs", read_place, PIN(input_place), PINNED(has_input_place)},
    {"attention", read_attention, PINNED(has_attention)},
    {"kept_place", read_place, PIN(kept_place), PINNED(has_kept_place)},
    {"kept_from", .read = read_kept_from},
    {"held_place", read_place, PIN(held_place), PINNED(has_held_place)},
    {"kept", read_set, PIN(kept_set)},
    {"held", read_set, PIN(held_set)},
    {"kv", read_kv, PIN(kv), PINNED(has_kv)},
    {"kv_place", read_place, PIN(kv_place)},
    {"kv_gradients_place", read_place, PIN(kv_gradients_place)},
    HOME("weights", TDM_STATE_WEIGHTS),
    HOME("master", TDM_STATE_MASTER),
    HOME("moments", TDM_STATE_MOMENTS),
    HOME("gradients", TDM_STATE_GRADIENTS),
    {"rings.weights", read_count, FIELD(rings.weights), PINNED(has_ring.weights), .low = 1,
     .high = TDM_MAX_RING},
    {"rings.optimizer", read_count, FIELD(rings.optimizer), PINNED(has_ring.optimizer), .low = 1,
     .high = TDM_MAX_RING},
    {"rings.host_gradients", read_count, FIELD(rings.host_gradients), PINNED(has_host_gradients),
     .low = 1, .high = TDM_MAX_RING},
    {"rings.stashed", read_count, FIELD(rings.stashed), PINNED(has_ring.stashed), .low = 1,
     .high = TDM_MAX_RING},
    {"rings.kv", read_count, FIELD(rings.kv), PINNED(has_ring.kv), .low = 1, .high = TDM_MAX_RING},
    {"rings.gather", read_count, FIELD(rings.gather), PINNED(has_ring.gather),
     .high = TDM_MAX_GATHER},
    {"rings.ahead", read_count, FIELD(rings.ahead), PINNED(has_ring.ahead), .high = 1},
    {"rings.gradients", read_count, PIN(gradient_slots), .low = 1, .high = 2}, /* of ranks */
    {"weights.sliced", read_sliced, PINNED(has_weight_slices)},
    {"dtypes.weights", read_dtype, FIELD(dtypes.weights)},
    {"dtypes.master", read_dtype, FIELD(dtypes.master)},
    {"dtypes.activations", read_dtype, FIELD(dtypes.activations)},
    {"dtypes.kv", read_dtype, FIELD(dtypes.kv)},
    {"dtypes.kv_gradients", read_dtype, FIELD(dtypes.kv_gradients)},
    {"dtypes.gradients", read_dtype, FIELD(dtypes.gradients)},
    {"dtypes.moments", read_dtype, FIELD(dtypes.moments)},
    {"dtypes.logits", read_dtype, FIELD(dtypes.logits)},
    {"optimizer.learning_rate", read_setting, .setting = TDM_SETTING_LEARNING_RATE},
    {"optimizer.beta1", read_setting, .setting = TDM_SETTING_BETA1},
    {"optimizer.beta2", read_setting, .setting = TDM_SETTING_BETA2},
    {"optimizer.epsilon", read_setting, .setting = TDM_SETTING_EPSILON},
    {"optimizer.weight_decay", read_setting, .setting = TDM_SETTING_WEIGHT_DECAY},
    {"optimizer.decayed", read_setting, .setting = TDM_SETTING_DECAYED},
    {"optimizer.warmup_steps", read_setting, .setting = TDM_SETTING_WARMUP_STEPS},
    {"optimizer.schedule", read_setting, .setting = TDM_SETTING_RATE_SCHEDULE},
    {"optimizer.decay_steps", read_setting, .setting = TDM_SETTING_DECAY_STEPS},
    {"optimizer.final_learning_rate", read_setting, .setting = TDM_SETTING_FINAL_LEARNING_RATE},
    {"optimizer.when", read_when, FIELD(optimizer.when)},
    {"optimizer.on", read_place, FIELD(optimizer.on), PINNED(has_update_place)},
    {"optimizer.clip_norm", read_setting, .setting = TDM_SETTING_CLIP_NORM},
};

#define KEYS (sizeof(keys) / sizeof(keys[0]))

/* Index of a key whose name has `length` bytes; KEYS: none. */
static size_t find_key(const char *name, size_t length)
{
    size_t i = 0;
    while (i < KEYS && (strlen(keys[i].name) != length || memcmp(keys[i].name, name, length) != 0))
        i++;
    return i;
}

bool tdm_set_keys_know(const char *pair)
{
    return find_key(pair, strcspn(pair, "=")) < KEYS;
}

static enum tdm_status unknown_key(const char *key, size_t length, struct tdm_error *err)
{
    char list[1400] = "";
    size_t used = 0;
    tdm_fail(err, TDM_USAGE, "--set: unknown key \"%.*s\"", (int)(length < 64 ? length : 64), key);
    for (size_t i = 0; i < KEYS && used + strlen(keys[i].name) + 3 <= sizeof(list); i++)
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", used > 0 ? ", " : "",
                                 keys[i].name);
    const enum tdm_training_setting meant = tdm_training_setting_meant(key, length);
    const bool found = meant < TDM_TRAINING_SETTINGS;
    tdm_hint(err, "%s%s%skeys: %s", found ? "did you mean " : "",
             found ? tdm_training_setting_key(meant) : "", found ? "? " : "", list);
    return TDM_USAGE;
}

static enum tdm_status apply_pair(const char *pair, bool seen[KEYS], struct reading *r)
{
    const char *equals = strchr(pair, '=');
    if (equals == NULL || equals == pair) {
        tdm_fail(r->err, TDM_USAGE, "--set: \"%s\" is not KEY=VALUE", pair);
        return tdm_hint(r->err, "for example --set chunk=4K");
    }
    size_t length = (size_t)(equals - pair);
    size_t i = find_key(pair, length);
    if (i == KEYS)
        return unknown_key(pair, length, r->err);
    if (seen[i])
        return tdm_fail(r->err, TDM_USAGE, "--set: \"%s\" is given twice", keys[i].name);
    seen[i] = true;
    r->key = &keys[i];
    r->value = equals + 1;
    r->field = r->key->in_schedule > 0 ? (char *)r->schedule + r->key->in_schedule
                                       : (char *)r->pins + r->key->in_pins;
    if (r->key->flag > 0)
        *(bool *)((char *)r->pins + r->key->flag) = true;
    snprintf(r->what, sizeof(r->what), "--set %s", r->key->name);
    return r->key->read(r);
}

/* Does a pair set the homes of all units? Other keys may then change some of them. */
static bool is_general(const char *pair)
{
    const size_t i = find_key(pair, strcspn(pair, "="));
    return i < KEYS && keys[i].read == read_home;
}

/* Checks what only one loop order can do, and pins that order. */
static enum tdm_status check_order(struct tdm_pins *pins, struct tdm_error *err)
{
    const struct {
        bool asked;
        enum tdm_order order;
        const char *text;
    } rules[] = {
        {pins->has_held_place && tdm_is_far(pins->held_place), TDM_LAYER_MAJOR,
         "held_place=host needs order=layer-major: in chunk-major order what is held lives for one "
         "chunk"},
        {pins->has_kv && pins->kv == TDM_KV_RECOMPUTE, TDM_LAYER_MAJOR,
         "kv=recompute needs order=layer-major: chunk-major order would make K and V of all chunks "
         "again for every chunk"},
        {tdm_is_far(pins->kv_gradients_place), TDM_CHUNK_MAJOR,
         "kv_gradients_place=host needs order=chunk-major: in layer-major order they live for one "
         "layer"},
    };
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        if (!rules[i].asked)
            continue;
        if (pins->has_order && pins->order != rules[i].order)
            return tdm_fail(err, TDM_USAGE, "--set: %s", rules[i].text);
        pins->has_order = true;
        pins->order = rules[i].order;
    }
    return TDM_OK;
}

/* Checks keys that depend on each other. */
static enum tdm_status check_together(struct tdm_pins *pins, enum tdm_purpose pass,
                                      struct tdm_error *err)
{
    bool attention = pins->has_attention && pins->attention != TDM_ATTENTION_NONE;
    if (pass == TDM_EVALUATE && (attention || tdm_pins_fix_stores(pins)))
        return tdm_fail(
            err, TDM_USAGE,
            "--set: inputs, attention, kept, held, kept_place, kept_from, held_place and kv are "
            "about the backward, and --pass evaluate has none");
    bool about_kept = pins->has_kept_place || pins->kept_from_unit != TDM_SPLIT_FREE ||
                      pins->kept_set != TDM_SET_INPUT;
    if (about_kept && pins->has_attention && pins->attention != TDM_ATTENTION_KEPT)
        return tdm_fail(err, TDM_USAGE,
                        "--set: kept, kept_place and kept_from need attention=kept, which is %s",
                        tdm_attention_store_name(pins->attention));
    if (about_kept) {
        pins->has_attention = true;
        pins->attention = TDM_ATTENTION_KEPT;
    }
    if (pins->held_set != TDM_SET_INPUT && pins->has_attention &&
        pins->attention == TDM_ATTENTION_NONE)
        return tdm_fail(err, TDM_USAGE,
                        "--set: held needs attention=held or attention=kept, which is none");
    if (pins->held_set != TDM_SET_INPUT && !pins->has_attention) {
        pins->has_attention = true;
        pins->attention = TDM_ATTENTION_HELD;
    }
    if (tdm_is_far(pins->kv_place) && !pins->has_kv) { /* only what is kept has a place */
        pins->has_kv = true;
        pins->kv = TDM_KV_KEEP;
    }
    if (pins->has_kv && pins->kv == TDM_KV_RECOMPUTE &&
        (tdm_set_has(pins->kept_set, TDM_STORE_KV) || tdm_is_far(pins->kv_place)))
        return tdm_fail(err, TDM_USAGE,
                        "--set: kv=recompute does not go with kept=qkv, kept=all, kept=normed or "
                        "kv_place=host, which keep K and V");
    return check_order(pins, err);
}

static bool was_given(const char *const *pairs, size_t count, const char *start)
{
    for (size_t i = 0; i < count; i++)
        if (strncmp(pairs[i], start, strlen(start)) == 0)
            return true;
    return false;
}

enum tdm_status tdm_set_keys_apply(const char *const *pairs, size_t count,
                                   struct tdm_schedule *schedule, struct tdm_pins *pins,
                                   struct tdm_error *err)
{
    bool seen[KEYS] = {false};
    struct reading reading = {.schedule = schedule, .pins = pins, .err = err};
    /* keys for all units come before those for one: weights=host before weights.head=device */
    for (int general = 1; general >= 0; general--)
        for (size_t i = 0; i < count; i++) {
            if (is_general(pairs[i]) != (general == 1))
                continue;
            enum tdm_status status = apply_pair(pairs[i], seen, &reading);
            if (status != TDM_OK)
                return status;
        }
    if (was_given(pairs, count, "page=") && pins->chunk_tokens != 0 &&
        schedule->page_tokens > pins->chunk_tokens) {
        tdm_fail(err, TDM_USAGE,
                 "--set page: a page of %llu tokens is longer than a chunk of %llu, which would "
                 "take a whole one",
                 (unsigned long long)schedule->page_tokens, (unsigned long long)pins->chunk_tokens);
        return tdm_hint(err, "use --set page=%llu or larger chunks",
                        (unsigned long long)pins->chunk_tokens);
    }
    /* fp32 weights are their own master */
    if (schedule->dtypes.weights == TDM_DTYPE_FP32 && !was_given(pairs, count, "dtypes.master="))
        schedule->dtypes.master = TDM_DTYPE_NONE;
    return check_together(pins, schedule->pass, err);
}
