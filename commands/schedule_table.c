/* SPDX-License-Identifier: Apache-2.0 */
/* Prints a schedule and its prediction as a table. */
#include "commands/schedule_table.h"

#include "base/size.h"
#include "base/units.h"
#include "commands/nest_text.h"
#include "commands/prediction.h"
#include "commands/print.h"
#include "commands/ranks_table.h"
#include "schedule/gather.h"
#include "schedule/learning_rate.h"
#include "schedule/slices.h"
#include "ops/selector_fields.h"

#include <inttypes.h>
#include <string.h>

#define ROW "  %-20s "

/* Do all groups have one size, except that the last may be smaller? */
static bool one_size_repeats(const struct tdm_schedule *schedule)
{
    uint32_t last = schedule->group_count - 1, size = schedule->groups[0].layers;
    for (uint32_t i = 1; i < last; i++)
        if (schedule->groups[i].layers != size)
            return false;
    return schedule->groups[last].layers <= size;
}

const char *tdm_groups_text(const struct tdm_schedule *schedule, char *out, size_t out_bytes)
{
    if (one_size_repeats(schedule)) {
        snprintf(out, out_bytes, "%u", schedule->groups[0].layers);
        return out;
    }
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < schedule->group_count; i++) {
        if (used + 16 > out_bytes) {
            snprintf(out + used, out_bytes - used, "...");
            break;
        }
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%u", i == 0 ? "" : ",",
                                 schedule->groups[i].layers);
    }
    return out;
}

static void print_step(FILE *out, const struct tdm_schedule *schedule)
{
    const struct tdm_model *model = schedule->model;
    const struct tdm_machine *machine = schedule->machine;
    char digits[TDM_DIGITS_SIZE], tokens[TDM_FORMAT_SIZE], text[TDM_FORMAT_SIZE];
    char note[TDM_RATES_NOTE_SIZE];
    fprintf(out, "model      %s: %s parameters, %u layers\n", model->name,
            tdm_format_digits(model->parameters, digits), model->layers);
    fprintf(out, "step       %u sequence%s of %s tokens (%s)", schedule->sequence_count,
            schedule->sequence_count == 1 ? "" : "s",
            tdm_format_tokens(schedule->sequences[0].tokens, tokens),
            tdm_format_digits(schedule->sequences[0].tokens, digits));
    if (schedule->sequences[0].document_count > 1)
        fprintf(out, ", %s from %" PRIu32 " documents",
                schedule->sequence_count == 1 ? "packed" : "each packed",
                schedule->sequences[0].document_count);
    if (schedule->documents_of_text)
        fputs(", packed from the documents of its text", out);
    fputc('\n', out);
    if (model->max_context > 0 && schedule->sequences[0].document_count <= 1 &&
        schedule->sequences[0].tokens > model->max_context)
        fprintf(out,
                "note       longer than the %s tokens that the model was made for "
                "(max_position_embeddings)\n",
                tdm_format_tokens(model->max_context, tokens));
    fprintf(out, "machine    %s: %s\n", machine->name, machine->title);
    if (tdm_schedule_rates_note(schedule, note))
        fprintf(out, "rates      %s\n", note);
    fprintf(out, "limits     %s", tdm_format_bytes(schedule->memory_bytes, text));
    if (schedule->memory_bytes != machine->topology.places[TDM_DEVICE].capacity_bytes)
        fprintf(out, " of %s",
                tdm_format_bytes(machine->topology.places[TDM_DEVICE].capacity_bytes, text));
    fprintf(out, " of device memory used%s, %s of host memory\n",
            schedule->ranks > 1 ? " by each rank" : "",
            tdm_format_bytes(schedule->host_memory_bytes, text));
}

/* How the chunks of a sequence are dealt to several ranks. */
static void print_ranks(FILE *out, const struct tdm_schedule *schedule)
{
    static const char *const deals[TDM_DEALS] = {
        [TDM_DEAL_SNAKE] = "each with a chunk of every round, in turns from both ends",
        [TDM_DEAL_STRIPES] = "each with a chunk of every round, in the order of the ranks",
        [TDM_DEAL_CONTIGUOUS] = "each with a part of every sequence in one piece",
        [TDM_DEAL_GREEDY] =
            "each with a chunk of every round, the costliest to the rank with least",
    };
    if (schedule->ranks == 1)
        return;
    fprintf(out, ROW "%u, %s\n", "ranks", schedule->ranks, deals[schedule->deal]);
    if (schedule->exchange == TDM_EXCHANGE_HEADS)
        fprintf(out, ROW "heads: each rank attends with %u of %u KV heads\n", "exchange",
                schedule->model->kv_heads / schedule->ranks, schedule->model->kv_heads);
    if (tdm_exchange_kind_has_rows(schedule->exchange))
        fprintf(out,
                ROW "%s: %u ranks in a row divide the %u KV heads, and those with the same "
                    "heads %s\n",
                "exchange", tdm_exchange_kind_name(schedule->exchange), schedule->head_ranks,
                schedule->model->kv_heads,
                tdm_schedule_gathers(schedule)          ? "gather K and V"
                : tdm_schedule_passes_queries(schedule) ? "pass K and V on, in the backward queries"
                                                        : "pass K and V on");
    if (schedule->exchange == TDM_EXCHANGE_QUERIES)
        fprintf(out,
                ROW "queries: chunks of K and V pass from rank to rank, in the backward those of "
                    "queries\n",
                "exchange");
    if (schedule->exchange == TDM_EXCHANGE_RING)
        fprintf(out, ROW "ring: K and V pass from rank to rank, one chunk at a time\n", "exchange");
    if (tdm_weights_sliced(schedule))
        fprintf(out, ROW "each rank has its part at home, and all gather a unit to use it\n",
                "weights");
}

static void print_chunks(FILE *out, const struct tdm_schedule *schedule)
{
    char text[TDM_FORMAT_SIZE], last[TDM_FORMAT_SIZE];
    uint64_t context = schedule->sequences[0].tokens, size = schedule->chunk_tokens;
    uint64_t count = tdm_size_ceil_div(context, size);
    fprintf(out, ROW "%" PRIu64 " of %s tokens", "chunks", count * schedule->sequence_count,
            tdm_format_tokens(size < context ? size : context, text));
    if (size < context && context % size != 0)
        fprintf(out, ", the last of %s", tdm_format_tokens(context % size, last));
    fputc('\n', out);
}

/* Prints the selector, unless queries see everything. */
static void print_selector(FILE *out, const struct tdm_schedule *schedule)
{
    const struct tdm_selector *selector = &schedule->selector;
    const struct tdm_selector_field *field;
    char text[TDM_FORMAT_SIZE], digits[TDM_DIGITS_SIZE];
    uint64_t window = 0;
    uint32_t layers = 0;
    for (uint32_t layer = 0; layer < schedule->model->layers; layer++)
        if (schedule->model->layer_kinds[layer].window > 0) {
            window = schedule->model->layer_kinds[layer].window;
            layers++;
        }
    if (layers > 0)
        fprintf(out, ROW "%s tokens in %" PRIu32 " of %" PRIu32 " layers, the model's own\n",
                "windows", tdm_format_tokens(window, text), layers, schedule->model->layers);
    if (selector->kind == TDM_SELECT_DENSE)
        return;
    fprintf(out, ROW "%s", "selector", tdm_selector_name(selector->kind));
    for (size_t i = 0; (field = tdm_selector_field(i)) != NULL; i++)
        if (tdm_selector_has(selector->kind, field))
            fprintf(out, ", %s %s", field->name,
                    field->counts ? tdm_format_digits(tdm_selector_get(selector, field), digits)
                                  : tdm_format_tokens(tdm_selector_get(selector, field), text));
    fputc('\n', out);
}

static uint32_t chunk_count(const struct tdm_schedule *schedule)
{
    uint64_t count = 0;
    for (uint32_t s = 0; s < schedule->sequence_count; s++)
        count += tdm_size_ceil_div(schedule->sequences[s].tokens, schedule->chunk_tokens);
    return (uint32_t)count;
}

static bool store_the_same(const struct tdm_group *a, const struct tdm_group *b)
{
    return a->input_place == b->input_place && a->kept == b->kept &&
           a->kept_from_chunk == b->kept_from_chunk && a->kept_place == b->kept_place &&
           a->held == b->held && a->held_from_chunk == b->held_from_chunk &&
           a->held_place == b->held_place && a->held_device_chunks == b->held_device_chunks &&
           a->kv == b->kv && a->kv_place == b->kv_place &&
           a->kv_gradients_place == b->kv_gradients_place;
}

/* Do all groups store the same? Then the first represents all. */
static bool groups_are_alike(const struct tdm_schedule *schedule)
{
    for (uint32_t i = 1; i < schedule->group_count; i++)
        if (!store_the_same(&schedule->groups[i], &schedule->groups[0]))
            return false;
    return true;
}

static void print_ahead(FILE *out, const struct tdm_schedule *schedule, const char *title)
{
    if (schedule->rings.ahead > 0)
        fprintf(out,
                ROW "made again while the layer above goes backward, from inputs on the host\n",
                title);
}

/* Prints the stores of unlike groups: the fraction of all, and the place. */
static void print_mixed_stores(FILE *out, const struct tdm_schedule *schedule)
{
    char text[TDM_NEST_TEXT];
    const struct tdm_topology *topology = &schedule->machine->topology;
    uint32_t inputs[TDM_MAX_PLACES] = {0}, kv[TDM_MAX_PLACES] = {0};
    uint32_t gradients[TDM_MAX_PLACES] = {0}, kept_kv = 0;
    for (uint32_t i = 0; i < schedule->group_count; i++) {
        const struct tdm_group *group = &schedule->groups[i];
        inputs[group->input_place] += i > 0; /* the first group's inputs are the tokens */
        kv[group->kv_place] += group->kv == TDM_KV_KEEP ? group->layers : 0;
        kept_kv += group->kv == TDM_KV_KEEP;
        gradients[group->kv_gradients_place] += group->layers;
    }
    fprintf(out, ROW, "group inputs");
    for (uint32_t place = 0; place < topology->place_count; place++)
        if (place < TDM_PLACES || inputs[place] > 0)
            fprintf(out, "%s%u on the %s", place == 0 ? "" : ", ", inputs[place],
                    topology->places[place].name);
    fputc('\n', out);
    fprintf(out, ROW "%s\n", "kept", tdm_nest_kept(schedule, text));
    fprintf(out, ROW "%s\n", "held", tdm_nest_held(schedule, text));
    if (kept_kv > 0) {
        fprintf(out, ROW "kept on the device for %u layer%s", "K and V", kv[TDM_DEVICE],
                kv[TDM_DEVICE] == 1 ? "" : "s");
        for (uint32_t place = TDM_DEVICE + 1; place < topology->place_count; place++)
            if (place < TDM_PLACES || kv[place] > 0)
                fprintf(out, ", on the %s for %u", topology->places[place].name, kv[place]);
        fputc('\n', out);
    }
    print_ahead(out, schedule, kept_kv > 0 ? "" : "K and V");
    for (uint32_t place = TDM_DEVICE + 1; place < topology->place_count; place++)
        if (gradients[place] > 0)
            fprintf(out, ROW "on the %s for %u layer%s, between the chunks that add to them\n",
                    "their gradients", topology->places[place].name, gradients[place],
                    gradients[place] == 1 ? "" : "s");
}

/* Prints the tensors of a set besides the attention outputs. */
static void print_set(FILE *out, const char *title, enum tdm_set set)
{
    if (tdm_set_beside(set) != NULL)
        fprintf(out, ROW "%s\n", title, tdm_set_beside(set));
}

static const char *place_name(const struct tdm_schedule *schedule, enum tdm_place place)
{
    return tdm_place_name(&schedule->machine->topology, place);
}

static void print_stores(FILE *out, const struct tdm_schedule *schedule)
{
    if (schedule->pass == TDM_EVALUATE) /* an evaluation stores nothing */
        return;
    if (!groups_are_alike(schedule)) {
        print_mixed_stores(out, schedule);
        return;
    }
    const struct tdm_group *group = &schedule->groups[0];
    uint32_t chunks = chunk_count(schedule);
    uint32_t from = group->kept_from_chunk;
    bool kept = tdm_set_has(group->kept, TDM_STORE_ATTENTION) && from < chunks;
    bool held = tdm_set_has(group->held, TDM_STORE_ATTENTION) && group->held_from_chunk < chunks;
    bool inner = false;
    for (uint32_t i = 0; i < schedule->group_count; i++)
        inner |= schedule->groups[i].layers > 1;
    if (schedule->order == TDM_LAYER_MAJOR && !inner)
        held = false;

    if (schedule->group_count > 1)
        fprintf(out, ROW "kept on the %s\n", "group inputs",
                place_name(schedule, group->input_place));
    if (inner && schedule->order == TDM_LAYER_MAJOR)
        fprintf(out, ROW "held on the %s", "inner inputs", place_name(schedule, group->held_place));
    if (inner && group->held_device_chunks > 0)
        fprintf(out, ", of the last %u of %u chunks on the device",
                chunks - tdm_held_near_from(group, chunks), chunks);
    if (inner && schedule->order == TDM_LAYER_MAJOR)
        fputc('\n', out);
    fprintf(out, ROW, "attention outputs");
    if (kept && from == 0)
        fprintf(out, "kept on the %s", place_name(schedule, group->kept_place));
    else if (kept)
        fprintf(out, "kept from chunk %u of %u on the %s, before it ", from, chunks,
                place_name(schedule, group->kept_place));
    if (!kept || from > 0)
        fprintf(out, held ? "held on the %s" : "recomputed",
                place_name(schedule, group->held_place));
    fputc('\n', out);
    print_set(out, "with what is kept", kept ? group->kept : TDM_SET_INPUT);
    print_set(out, "with what is held", held ? group->held : TDM_SET_INPUT);
    if (group->kv == TDM_KV_KEEP &&
        (schedule->order == TDM_LAYER_MAJOR || group->kv_place != TDM_DEVICE))
        fprintf(out, ROW "kept on the %s\n", "K and V", place_name(schedule, group->kv_place));
    print_ahead(out, schedule, "K and V");
    if (group->kv_gradients_place != TDM_DEVICE)
        fprintf(out, ROW "on the %s, between the chunks that add to them\n", "their gradients",
                place_name(schedule, group->kv_gradients_place));
    if (tdm_gathers_at_all(schedule))
        fprintf(out, ROW "by attention itself, into room for %llu pages a list\n", "gathered",
                (unsigned long long)tdm_gather_pages(schedule));
}

static void print_groups(FILE *out, const struct tdm_schedule *schedule)
{
    char text[256];
    uint32_t count = schedule->group_count, size = schedule->groups[0].layers;
    uint32_t last = schedule->groups[count - 1].layers;
    tdm_groups_text(schedule, text, sizeof(text));
    if (!one_size_repeats(schedule))
        fprintf(out, ROW "%u: %s layers\n", "groups", count, text);
    else if (last == size)
        fprintf(out, ROW "%u of %u layer%s\n", "groups", count, size, size == 1 ? "" : "s");
    else
        fprintf(out, ROW "%u of %u layers, the last of %u\n", "groups", count, size, last);
}

static bool is_all_near(const struct tdm_schedule *schedule, enum tdm_state state)
{
    const struct tdm_home *home = &schedule->homes[state];
    return home->device_layers == schedule->model->layers && home->embedding == TDM_DEVICE &&
           home->head == TDM_DEVICE;
}

/* Prints the state that is not entirely on the device. */
static void print_homes(FILE *out, const struct tdm_schedule *schedule)
{
    enum tdm_place far = schedule->machine->topology.far;
    uint32_t layers = schedule->model->layers;
    for (int state = 0; state < TDM_STATES; state++) {
        const struct tdm_home *home = &schedule->homes[state];
        bool absent = (state == TDM_STATE_MASTER || state == TDM_STATE_MOMENTS) &&
                      !tdm_schedule_keeps(schedule, (enum tdm_state)state);
        if (absent || is_all_near(schedule, (enum tdm_state)state))
            continue;
        fprintf(out, ROW, tdm_state_name((enum tdm_state)state));
        if (home->device_layers == 0 && home->embedding == far && home->head == far)
            fprintf(out, "on the %s\n", place_name(schedule, far));
        else
            fprintf(out, "%u of %u layers on the device; embedding on the %s, head on the %s\n",
                    home->device_layers, layers, place_name(schedule, home->embedding),
                    place_name(schedule, home->head));
    }
}

static void print_schedule(FILE *out, const struct tdm_schedule *schedule)
{
    const struct tdm_dtypes *d = &schedule->dtypes;
    const struct tdm_optimizer_settings *o = &schedule->optimizer;
    char text[TDM_FORMAT_SIZE];
    fprintf(out, "\nschedule\n");
    if (schedule->pass == TDM_EVALUATE)
        fprintf(out, ROW "evaluate: forward to the loss, all state stays as it is\n", "pass");
    fprintf(out, ROW "%s\n", "order", tdm_order_name(schedule->order));
    print_groups(out, schedule);
    print_ranks(out, schedule);
    print_chunks(out, schedule);
    print_selector(out, schedule);
    print_stores(out, schedule);
    print_homes(out, schedule);
    fprintf(out, ROW "%s tokens", "LM-head tile",
            tdm_format_tokens(schedule->head_tile_tokens < schedule->chunk_tokens
                                  ? schedule->head_tile_tokens
                                  : schedule->chunk_tokens,
                              text));
    if (schedule->head_tile_vocabulary < schedule->model->vocabulary)
        fprintf(out, " x %llu of %u entries of the vocabulary, logits made twice",
                (unsigned long long)schedule->head_tile_vocabulary, schedule->model->vocabulary);
    fprintf(out, "\n");
    fprintf(
        out, ROW "weights %s, activations %s, kv %s, kv_gradients %s, gradients %s, logits %s\n",
        "dtypes", tdm_dtype_name(d->weights), tdm_dtype_name(d->activations), tdm_dtype_name(d->kv),
        tdm_dtype_name(d->kv_gradients), tdm_dtype_name(d->gradients), tdm_dtype_name(d->logits));
    if (o->kind == TDM_OPTIMIZER_NONE)
        fprintf(out, ROW "none: all gradients stay%s", "optimizer",
                is_all_near(schedule, TDM_STATE_GRADIENTS) ? " on the device" : "");
    else
        fprintf(out, ROW "%s %s the backward%s%s, master %s, moments %s, learning rate %g",
                "optimizer", tdm_optimizer_name(o->kind), o->when == TDM_WHEN_END ? "after" : "in",
                o->on == TDM_DEVICE ? "" : ", on the ",
                o->on == TDM_DEVICE ? "" : place_name(schedule, o->on), tdm_dtype_name(d->master),
                tdm_dtype_name(d->moments), o->learning_rate);
    if (o->kind != TDM_OPTIMIZER_NONE && o->rate_schedule != TDM_RATE_CONSTANT)
        fprintf(out, ", %s to %g", tdm_rate_schedule_name(o->rate_schedule),
                o->final_learning_rate);
    fputc('\n', out);
    if (o->clip != TDM_CLIP_NONE)
        fprintf(out, ROW "norm of %s at most %g\n", "clipping",
                o->clip == TDM_CLIP_LAYER ? "each layer's gradient" : "all gradients",
                o->clip_norm);
}

static void print_time(FILE *out, const struct tdm_schedule *schedule,
                       const struct tdm_simulation *s)
{
    char text[TDM_FORMAT_SIZE], digits[TDM_DIGITS_SIZE];
    double rate = (double)tdm_schedule_tokens(schedule) / s->step_seconds;
    fprintf(
        out, ROW "%s: %s tokens/s, MFU %.1f%%\n", "step", tdm_format_seconds(s->step_seconds, text),
        tdm_format_digits((uint64_t)(rate + 0.5), digits), 100 * tdm_prediction_mfu(schedule, s));
    for (int phase = 0; phase < TDM_PHASES; phase++)
        if (s->phase_seconds[phase] > 0)
            fprintf(out, "    %-18s %s\n", tdm_phase_name((enum tdm_phase)phase),
                    tdm_format_seconds(s->phase_seconds[phase], text));
    fprintf(out, "    %-18s %s\n", "stalls", tdm_format_seconds(s->stall_seconds, text));
    tdm_ranks_table(out, &schedule->machine->topology, &s->team);
    const struct tdm_topology *topology = &schedule->machine->topology;
    for (uint32_t i = 0; i < topology->link_count; i++) {
        const struct tdm_link *link = &topology->links[i];
        const struct tdm_link_use *use = &s->links[i];
        if (use->bytes == 0 || i == TDM_LINK_PEER)
            continue;
        char title[32];
        snprintf(title, sizeof(title), "copied to %s", place_name(schedule, link->to));
        fprintf(out, ROW "%s", title, tdm_format_bytes(use->bytes, text));
        if (topology->link_count > TDM_LINKS) /* several may end at the same place */
            fprintf(out, " from %s", place_name(schedule, link->from));
        fprintf(out, " in %s\n", tdm_format_seconds(use->seconds, text));
    }
    if (s->busy_seconds[TDM_LANE_HOST] > 0)
        fprintf(out, ROW "%s\n", "updated on the host",
                tdm_format_seconds(s->busy_seconds[TDM_LANE_HOST], text));
}

/* Prints how much of the categories above is page lists and page means. */
static void print_lists(FILE *out, const struct tdm_simulation *s)
{
    char text[TDM_FORMAT_SIZE];
    const char *title = "of these";
    if (s->peak_list_bytes > 0) {
        fprintf(out, "    %-18s page lists %s", title, tdm_format_bytes(s->peak_list_bytes, text));
        title = ",";
    }
    if (s->peak_mean_bytes > 0)
        fprintf(out, *title == ',' ? "%s page means %s" : "    %-18s page means %s", title,
                tdm_format_bytes(s->peak_mean_bytes, text));
    if (s->peak_list_bytes + s->peak_mean_bytes > 0)
        fputc('\n', out);
}

static void print_peak(FILE *out, const struct tdm_schedule *schedule,
                       const struct tdm_simulation *s, enum tdm_place place)
{
    char used[TDM_FORMAT_SIZE], limit[TDM_FORMAT_SIZE], title[32];
    uint64_t limit_bytes = tdm_schedule_limit(schedule, place);
    if (s->used_peak_bytes[place] == 0)
        return;
    snprintf(title, sizeof(title), "%s peak", place_name(schedule, place));
    fprintf(out, ROW "%s of %s\n", title, tdm_format_bytes(s->used_peak_bytes[place], used),
            tdm_format_bytes(limit_bytes, limit));
    fprintf(out, "    %-18s %-14s %s\n", "allocated", "at this peak", "at its own peak");
    for (int c = 0; c < TDM_CATEGORIES; c++)
        if (s->category_peaks[place][c] > 0)
            fprintf(out, "    %-18s %-14s %s\n", tdm_category_name((enum tdm_category)c),
                    tdm_format_bytes(s->peak_categories[place][c], used),
                    tdm_format_bytes(s->category_peaks[place][c], limit));
    if (place == TDM_DEVICE)
        print_lists(out, s);
    uint64_t live = s->live_peak_bytes[place], arena = s->arena_bytes[place];
    if (arena > live)
        fprintf(out, "    %-18s %s (%.2f%% over the live peak)\n", "packing",
                tdm_format_bytes(arena - live, used), 100 * ((double)arena / (double)live - 1));
}

void tdm_schedule_table(FILE *out, const struct tdm_schedule *schedule,
                        const struct tdm_simulation *simulation)
{
    print_step(out, schedule);
    print_schedule(out, schedule);
    fprintf(out, "\npredicted\n");
    print_time(out, schedule, simulation);
    for (uint32_t place = 0; place < schedule->machine->topology.place_count; place++)
        print_peak(out, schedule, simulation, (enum tdm_place)place);
    char bytes[TDM_FORMAT_SIZE];
    if (schedule->snapshot_bytes > 0)
        fprintf(out, ROW "%s of host memory more, while checkpoints are written\n", "snapshot",
                tdm_format_bytes(schedule->snapshot_bytes, bytes));
}

void tdm_search_line(FILE *out, const struct tdm_search_counts *counts)
{
    char examined[TDM_DIGITS_SIZE], large[TDM_DIGITS_SIZE], slow[TDM_DIGITS_SIZE],
        simulated[TDM_DIGITS_SIZE];
    if (counts->least_alone) {
        fprintf(out, "\nchosen for the least device memory; faster schedules were not sought\n");
        return;
    }
    if (counts->examined == 0 &&
        counts->complete) { /* close enough to the bound that no recipe was tried */
        fprintf(out,
                "\nsimulated %" PRIu64 " schedule%s, rounded from the linear program's solution\n",
                counts->simulated, counts->simulated == 1 ? "" : "s");
        return;
    }
    fprintf(out,
            "\nof %s standard schedule%s, by estimate, %s do not fit and %s are no faster; %s "
            "schedule%s simulated%s\n",
            tdm_format_digits(counts->examined, examined), counts->examined == 1 ? "" : "s",
            tdm_format_digits(counts->too_large, large), tdm_format_digits(counts->too_slow, slow),
            tdm_format_digits(counts->simulated, simulated),
            counts->simulated == 1 ? " was" : "s were",
            counts->complete ? "" : "; the search was cut short");
}
