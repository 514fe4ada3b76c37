/* SPDX-License-Identifier: Apache-2.0 */
/* --set KEY=VALUE: a table of keys, each with its read function. */
#include "planner/set_keys.h"

#include "base/units.h"
#include "planner/places.h"
#include "schedule/optimizer.h"
#include "ops/selector_fields.h"
#include "schedule/training_settings.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_GROUPS 4096u

struct reading {
    const char *key; /* as given */
    const char *value;
    struct tdm_schedule *schedule;
    struct tdm_pins *pins;
    struct tdm_error *err;
    char what[64]; /* "--set KEY", for messages */
};

/* `field`: an offset into the schedule, or an enum tdm_training_setting. */
struct key {
    const char *name;
    enum tdm_status (*read)(struct reading *reading, size_t field);
    size_t field;
};

static enum tdm_status bad(struct reading *r, const char *due)
{
    return tdm_fail(r->err, TDM_USAGE, "%s: \"%s\" is not known; expected %s", r->what, r->value,
                    due);
}

static enum tdm_status read_order(struct reading *r, size_t field)
{
    (void)field;
    r->pins->has_order = true;
    return tdm_order_parse(r->value, &r->pins->order) ? TDM_OK
                                                      : bad(r, "layer-major or chunk-major");
}

/* "4", or "13,8,4,2,1". */
static enum tdm_status read_groups(struct reading *r, size_t field)
{
    (void)field;
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
    for (char *rest = copy; status == TDM_OK && rest != NULL;) {
        uint64_t size;
        char *item = strsep(&rest, ",");
        status = tdm_parse_count(item, r->what, 1, UINT32_MAX / 2, &size, r->err);
        if (status == TDM_OK)
            sizes[count++] = (uint32_t)size;
    }
    uint32_t layers = r->schedule->model->layers;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += sizes[i];
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

static enum tdm_status read_chunk(struct reading *r, size_t field)
{
    (void)field;
    return tdm_parse_tokens(r->value, r->what, &r->pins->chunk_tokens, r->err);
}

/* Divides sequences into documents of one length, or takes those of the text that a run reads. */
static enum tdm_status read_documents(struct reading *r, size_t field)
{
    (void)field;
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

static enum tdm_status read_head_tile(struct reading *r, size_t field)
{
    (void)field;
    return tdm_parse_tokens(r->value, r->what, &r->pins->head_tile_tokens, r->err);
}

static enum tdm_status read_head_tile_vocabulary(struct reading *r, size_t field)
{
    (void)field;
    uint64_t entries;
    enum tdm_status status = tdm_parse_tokens(r->value, r->what, &entries, r->err);
    if (status == TDM_OK && entries > UINT32_MAX)
        return tdm_fail(r->err, TDM_USAGE, "%s: \"%s\" is more than 2^32 - 1 entries", r->what,
                        r->value);
    if (status == TDM_OK)
        r->schedule->head_tile_vocabulary = entries;
    return status;
}

static enum tdm_status read_page(struct reading *r, size_t field)
{
    (void)field;
    uint64_t tokens;
    enum tdm_status status = tdm_parse_tokens(r->value, r->what, &tokens, r->err);
    if (status == TDM_OK && tokens > 65536)
        return tdm_fail(r->err, TDM_USAGE, "%s: \"%s\" is more than 64K tokens", r->what, r->value);
    if (status == TDM_OK)
        r->schedule->page_tokens = tokens;
    return status;
}

static enum tdm_status read_selector(struct reading *r, size_t field)
{
    (void)field;
    enum tdm_selector_kind *kind = &r->schedule->selector.kind;
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
static enum tdm_status read_selector_field(struct reading *r, size_t field)
{
    uint64_t *value = (uint64_t *)(void *)((char *)r->schedule + field);
    const struct tdm_selector_field *known;
    size_t number = 0;
    while ((known = tdm_selector_field(number)) != NULL &&
           known->offset + offsetof(struct tdm_schedule, selector) != field)
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

static enum tdm_status read_deal(struct reading *r, size_t field)
{
    (void)field;
    return tdm_deal_parse(r->value, &r->schedule->deal) ? TDM_OK : bad(r, TDM_DEAL_NAMES);
}

static enum tdm_status read_exchange(struct reading *r, size_t field)
{
    (void)field;
    r->pins->has_exchange = true;
    return tdm_exchange_kind_parse(r->value, &r->schedule->exchange) ? TDM_OK
                                                                     : bad(r, TDM_EXCHANGE_NAMES);
}

static enum tdm_status read_head_ranks(struct reading *r, size_t field)
{
    (void)field;
    uint64_t ranks;
    enum tdm_status status =
        tdm_parse_count(r->value, r->what, 2, TDM_MAX_HEAD_RANKS, &ranks, r->err);
    if (status == TDM_OK)
        r->schedule->head_ranks = (uint32_t)ranks;
    return status;
}

static enum tdm_status read_prefetch(struct reading *r, size_t field)
{
    (void)field;
    uint64_t bodies;
    enum tdm_status status = tdm_parse_count(r->value, r->what, 0, 16, &bodies, r->err);
    if (status == TDM_OK) {
        r->schedule->prefetch = (uint32_t)bodies;
        r->pins->has_prefetch = true;
    }
    return status;
}

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
    const char *device = tdm_place_name(topology, TDM_DEVICE);
    const char *far = tdm_place_name(topology, tdm_far_place(r->schedule));
    const char *between = also[0] == '\0' ? " or " : ", ";
    enum tdm_place other;
    if (!tdm_place_parse(topology, r->value, &other))
        return tdm_fail(r->err, TDM_USAGE, "%s: \"%s\" is not known; expected %s%s%s%s", r->what,
                        r->value, device, between, far, also);
    tdm_fail(r->err, TDM_USAGE, "%s: plans put nothing at \"%s\"; expected %s%s%s%s", r->what,
             r->value, device, between, far, also);
    return tdm_hint(r->err, "write other places into the schedule by hand");
}

static enum tdm_status read_place(struct reading *r, bool *has, enum tdm_place *place)
{
    *has = true;
    return parse_place(r, place) ? TDM_OK : bad_place(r, "");
}

static enum tdm_status read_inputs(struct reading *r, size_t field)
{
    (void)field;
    return read_place(r, &r->pins->has_input_place, &r->pins->input_place);
}

static enum tdm_status read_kept_place(struct reading *r, size_t field)
{
    (void)field;
    return read_place(r, &r->pins->has_kept_place, &r->pins->kept_place);
}

static enum tdm_status read_held_place(struct reading *r, size_t field)
{
    (void)field;
    return read_place(r, &r->pins->has_held_place, &r->pins->held_place);
}

static enum tdm_status read_attention(struct reading *r, size_t field)
{
    (void)field;
    for (int i = 0; i < TDM_ATTENTION_STORES; i++)
        if (strcmp(r->value, tdm_attention_store_name((enum tdm_attention_store)i)) == 0) {
            r->pins->has_attention = true;
            r->pins->attention = (enum tdm_attention_store)i;
            return TDM_OK;
        }
    return bad(r, "none, held or kept");
}

static enum tdm_status read_set(struct reading *r, enum tdm_set *set)
{
    char names[TDM_SET_LIST];
    return tdm_set_parse(r->value, set) && *set != TDM_SET_INPUT
               ? TDM_OK
               : bad(r, tdm_set_list(TDM_SET_ATTENTION_OUTPUT, names, sizeof(names)));
}

static enum tdm_status read_kept(struct reading *r, size_t field)
{
    (void)field;
    return read_set(r, &r->pins->kept_set);
}

static enum tdm_status read_held(struct reading *r, size_t field)
{
    (void)field;
    return read_set(r, &r->pins->held_set);
}

static enum tdm_status read_kv(struct reading *r, size_t field)
{
    (void)field;
    r->pins->has_kv = true;
    return tdm_kv_parse(r->value, &r->pins->kv) ? TDM_OK : bad(r, "recompute or keep");
}

static enum tdm_status read_kv_place(struct reading *r, size_t field)
{
    bool has;
    (void)field;
    return read_place(r, &has, &r->pins->kv_place);
}

static enum tdm_status read_kv_gradients_place(struct reading *r, size_t field)
{
    bool has;
    (void)field;
    return read_place(r, &has, &r->pins->kv_gradients_place);
}

/* "25%" of the chunks, or a chunk's number. */
static enum tdm_status read_kept_from(struct reading *r, size_t field)
{
    (void)field;
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

static enum tdm_status read_dtype(struct reading *r, size_t field)
{
    enum tdm_dtype *dtype = (enum tdm_dtype *)(void *)((char *)r->schedule + field);
    bool master = field == offsetof(struct tdm_schedule, dtypes.master);
    return tdm_dtype_parse(r->value, dtype)
               ? TDM_OK
               : bad(r, master ? "fp32, remainder16 or none" : "bf16 or fp32");
}

/* `setting` is one of enum tdm_training_setting. */
static enum tdm_status read_setting(struct reading *r, size_t setting)
{
    return tdm_training_setting_read((enum tdm_training_setting)setting, r->value, r->what,
                                     &r->schedule->optimizer, r->err);
}

/* Pins the home of a state. `field`: offset of the home, or of a part of it. */
static void pin_home(struct reading *r, size_t field)
{
    size_t state = (field - offsetof(struct tdm_schedule, homes)) / sizeof(struct tdm_home);
    r->pins->has_home[state] = true;
}

/* Reads a number of layers on the device, or one place for layers, embedding and head. */
static enum tdm_status read_home(struct reading *r, size_t field)
{
    struct tdm_home *home = (struct tdm_home *)(void *)((char *)r->schedule + field);
    pin_home(r, field);
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

static enum tdm_status read_home_place(struct reading *r, size_t field)
{
    enum tdm_place *place = (enum tdm_place *)(void *)((char *)r->schedule + field);
    pin_home(r, field);
    return parse_place(r, place) ? TDM_OK : bad_place(r, "");
}

static enum tdm_status read_ring(struct reading *r, size_t field)
{
    uint64_t slots;
    enum tdm_status status = tdm_parse_count(r->value, r->what, 1, TDM_MAX_RING, &slots, r->err);
    r->pins->has_rings = true;
    if (status == TDM_OK)
        *(uint32_t *)(void *)((char *)r->schedule + field) = (uint32_t)slots;
    return status;
}

/* Only the search for several ranks has a use for it. */
static enum tdm_status read_gradients(struct reading *r, size_t field)
{
    uint64_t slots;
    enum tdm_status status = tdm_parse_count(r->value, r->what, 1, 2, &slots, r->err);
    (void)field;
    if (status == TDM_OK)
        r->pins->gradient_slots = (uint32_t)slots;
    return status;
}

static enum tdm_status read_sliced(struct reading *r, size_t field)
{
    (void)field;
    r->pins->has_weight_slices = true;
    r->pins->weight_slices = strcmp(r->value, "yes") == 0;
    return r->pins->weight_slices || strcmp(r->value, "no") == 0
               ? TDM_OK
               : tdm_fail(r->err, TDM_USAGE, "%s is \"%s\"; expected yes or no", r->what, r->value);
}

static enum tdm_status read_gather(struct reading *r, size_t field)
{
    uint64_t chunks;
    enum tdm_status status = tdm_parse_count(r->value, r->what, 0, TDM_MAX_GATHER, &chunks, r->err);
    r->pins->has_rings = true;
    if (status == TDM_OK)
        *(uint32_t *)(void *)((char *)r->schedule + field) = (uint32_t)chunks;
    return status;
}

static enum tdm_status read_when(struct reading *r, size_t field)
{
    (void)field;
    return tdm_when_parse(r->value, &r->schedule->optimizer.when) ? TDM_OK : bad(r, TDM_WHEN_NAMES);
}

static enum tdm_status read_on(struct reading *r, size_t field)
{
    (void)field;
    r->pins->has_update_place = true;
    return parse_place(r, &r->schedule->optimizer.on) ? TDM_OK : bad_place(r, "");
}

#define FIELD(member) offsetof(struct tdm_schedule, member)

static const struct key keys[] = {
    {"order", read_order, 0},
    {"groups", read_groups, 0},
    {"chunk", read_chunk, 0},
    {"page", read_page, 0},
    {"selector", read_selector, 0},
    {"selector.window", read_selector_field, FIELD(selector.window)},
    {"selector.block", read_selector_field, FIELD(selector.block)},
    {"selector.global", read_selector_field, FIELD(selector.global)},
    {"selector.random", read_selector_field, FIELD(selector.random)},
    {"selector.dilation", read_selector_field, FIELD(selector.dilation)},
    {"selector.seed", read_selector_field, FIELD(selector.seed)},
    {"head_tile", read_head_tile, 0},
    {"head_tile_vocabulary", read_head_tile_vocabulary, 0},
    {"documents", read_documents, 0},
    {"deal", read_deal, 0},
    {"exchange", read_exchange, 0},
    {"exchange.heads", read_head_ranks, 0},
    {"prefetch", read_prefetch, 0},
    {"inputs", read_inputs, 0},
    {"attention", read_attention, 0},
    {"kept_place", read_kept_place, 0},
    {"kept_from", read_kept_from, 0},
    {"held_place", read_held_place, 0},
    {"kept", read_kept, 0},
    {"held", read_held, 0},
    {"kv", read_kv, 0},
    {"kv_place", read_kv_place, 0},
    {"kv_gradients_place", read_kv_gradients_place, 0},
    {"weights", read_home, FIELD(homes[TDM_STATE_WEIGHTS])},
    {"weights.embedding", read_home_place, FIELD(homes[TDM_STATE_WEIGHTS].embedding)},
    {"weights.head", read_home_place, FIELD(homes[TDM_STATE_WEIGHTS].head)},
    {"master", read_home, FIELD(homes[TDM_STATE_MASTER])},
    {"master.embedding", read_home_place, FIELD(homes[TDM_STATE_MASTER].embedding)},
    {"master.head", read_home_place, FIELD(homes[TDM_STATE_MASTER].head)},
    {"moments", read_home, FIELD(homes[TDM_STATE_MOMENTS])},
    {"moments.embedding", read_home_place, FIELD(homes[TDM_STATE_MOMENTS].embedding)},
    {"moments.head", read_home_place, FIELD(homes[TDM_STATE_MOMENTS].head)},
    {"gradients", read_home, FIELD(homes[TDM_STATE_GRADIENTS])},
    {"gradients.embedding", read_home_place, FIELD(homes[TDM_STATE_GRADIENTS].embedding)},
    {"gradients.head", read_home_place, FIELD(homes[TDM_STATE_GRADIENTS].head)},
    {"rings.weights", read_ring, FIELD(rings.weights)},
    {"rings.optimizer", read_ring, FIELD(rings.optimizer)},
    {"rings.stashed", read_ring, FIELD(rings.stashed)},
    {"rings.kv", read_ring, FIELD(rings.kv)},
    {"rings.gather", read_gather, FIELD(rings.gather)},
    {"rings.gradients", read_gradients, 0},
    {"weights.sliced", read_sliced, 0},
    {"dtypes.weights", read_dtype, FIELD(dtypes.weights)},
    {"dtypes.master", read_dtype, FIELD(dtypes.master)},
    {"dtypes.activations", read_dtype, FIELD(dtypes.activations)},
    {"dtypes.kv", read_dtype, FIELD(dtypes.kv)},
    {"dtypes.kv_gradients", read_dtype, FIELD(dtypes.kv_gradients)},
    {"dtypes.gradients", read_dtype, FIELD(dtypes.gradients)},
    {"dtypes.moments", read_dtype, FIELD(dtypes.moments)},
    {"dtypes.logits", read_dtype, FIELD(dtypes.logits)},
    {"optimizer.learning_rate", read_setting, TDM_SETTING_LEARNING_RATE},
    {"optimizer.beta1", read_setting, TDM_SETTING_BETA1},
    {"optimizer.beta2", read_setting, TDM_SETTING_BETA2},
    {"optimizer.epsilon", read_setting, TDM_SETTING_EPSILON},
    {"optimizer.weight_decay", read_setting, TDM_SETTING_WEIGHT_DECAY},
    {"optimizer.decayed", read_setting, TDM_SETTING_DECAYED},
    {"optimizer.warmup_steps", read_setting, TDM_SETTING_WARMUP_STEPS},
    {"optimizer.schedule", read_setting, TDM_SETTING_RATE_SCHEDULE},
    {"optimizer.decay_steps", read_setting, TDM_SETTING_DECAY_STEPS},
    {"optimizer.final_learning_rate", read_setting, TDM_SETTING_FINAL_LEARNING_RATE},
    {"optimizer.when", read_when, 0},
    {"optimizer.on", read_on, 0},
    {"optimizer.clip_norm", read_setting, TDM_SETTING_CLIP_NORM},
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
    for (size_t i = 0; i < KEYS; i++) {
        size_t name = strlen(keys[i].name);
        if (used + name + 3 > sizeof(list))
            break;
        if (used > 0) {
            memcpy(list + used, ", ", 2);
            used += 2;
        }
        memcpy(list + used, keys[i].name, name + 1);
        used += name;
    }
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
    r->key = keys[i].name;
    r->value = equals + 1;
    memcpy(r->what, "--set ", 6);
    memcpy(r->what + 6, keys[i].name, length + 1);
    return keys[i].read(r, keys[i].field);
}

/* Does a pair set the homes of all units? Other keys may then change some of them. */
static bool is_general(const char *pair)
{
    size_t length = strcspn(pair, "=");
    for (size_t i = 0; i < KEYS; i++)
        if (strlen(keys[i].name) == length && memcmp(keys[i].name, pair, length) == 0)
            return keys[i].read == read_home;
    return false;
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
    bool stores = pins->has_attention && pins->attention != TDM_ATTENTION_NONE;
    stores = stores || pins->has_input_place || pins->has_kept_place || pins->has_held_place ||
             pins->kept_from_unit != TDM_SPLIT_FREE || pins->kept_set != TDM_SET_INPUT ||
             pins->held_set != TDM_SET_INPUT || pins->has_kv || tdm_is_far(pins->kv_place) ||
             tdm_is_far(pins->kv_gradients_place);
    if (pass == TDM_EVALUATE && stores)
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
