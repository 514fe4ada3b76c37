/* SPDX-License-Identifier: Apache-2.0 */
/* Property: a place that a machine's description adds serves a program as the host does.
 *
 * A random schedule runs on the cpu backend. Then its machine gets a second device with a link in
 * each direction, and what the schedule's groups have on the host goes to that device. The program
 * must have the same ops, on the lanes of the new links, and leave the same bits. If the machine
 * lacks a link, the validator, lowering and the check of the schedule must refuse the program. A
 * backend that does not serve the place must refuse it too. And copies that are
 * under way at the same time share their links. Inputs on the host may also be fetched earlier, to
 * make K and V ahead. */
#include "commands/prediction.h"
#include "executor/backends.h"
#include "ops/move.h"
#include "schedule/kv_row.h"
#include "schedule/nest.h"
#include "schedule/optimizer.h"
#include "schedule/program.h"
#include "schedule/schedule_check.h"
#include "schedule/validate.h"
#include "simulator/simulate.h"
#include "tests/support/random_schedule.h"
#include "tests/support/run_steps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BASE_SEED 83000u
#define TABLES                                                                           \
    "{\"places\": [{\"name\": \"second\", \"bytes\": 1099511627776}],"                   \
    " \"shared\": [{\"name\": \"switch\", \"bytes_per_second\": 4e11}],"                 \
    " \"links\": [{\"from\": \"second\", \"to\": \"device\", \"lane\": \"from_second\"," \
    "              \"bytes_per_second\": 3e11, \"shared\": \"switch\"},"                 \
    "             {\"from\": \"device\", \"to\": \"second\", \"lane\": \"to_second\","   \
    "              \"bytes_per_second\": 3e11, \"both_ways_bytes_per_second\": 5e11,"    \
    "              \"shared\": \"switch\"}]}"

static const uint64_t no_limit[TDM_MAX_PLACES] = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};

static void must(enum tdm_status status, const struct tdm_error *err)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
}

/* Gives the schedule's machine other tables. */
static void set_tables(struct tdm_schedule *schedule, const char *text)
{
    struct tdm_error err;
    struct tdm_machine *machine;
    json_t *tables, *description = json_deep_copy(schedule->machine->description);
    must(tdm_json_parse("tables", text, strlen(text), &tables, &err), &err);
    assert_int_equal(json_object_update(description, tables), 0);
    must(tdm_machine_from_json("other tables", description, &machine, &err), &err);
    json_decref(tables);
    json_decref(description);
    tdm_machine_free(schedule->machine);
    schedule->machine = machine;
}

/* Gives the schedule's machine the tables above; returns the new place. */
static enum tdm_place add_place(struct tdm_schedule *schedule)
{
    enum tdm_place place;
    set_tables(schedule, TABLES);
    assert_true(tdm_place_parse(&schedule->machine->topology, "second", &place));
    assert_int_equal(place, TDM_PLACES);
    return place;
}

/* Moves what groups have on the host to another place. Returns false if they have nothing there. */
static bool move_groups(struct tdm_schedule *schedule, enum tdm_place place)
{
    bool moved = false;
    for (uint32_t g = 0; g < schedule->group_count; g++) {
        struct tdm_group *group = &schedule->groups[g];
        enum tdm_place *const of_group[] = {&group->input_place, &group->kept_place,
                                            &group->held_place, &group->kv_place,
                                            &group->kv_gradients_place};
        for (size_t i = 0; i < sizeof(of_group) / sizeof(of_group[0]); i++)
            if (*of_group[i] == TDM_HOST) {
                *of_group[i] = place;
                moved = true;
            }
    }
    return moved;
}

/* Ops by kind, and copies by lane. */
struct counts {
    uint64_t kinds[TDM_OP_KINDS], copies[TDM_MAX_LANES];
};

static enum tdm_status count(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    struct counts *counts = self;
    (void)err;
    if (item->kind == TDM_RUN) {
        counts->kinds[item->op->kind]++;
        counts->copies[item->op->lane] += item->op->kind == TDM_OP_COPY;
    }
    return TDM_OK;
}

static struct tdm_program *lower(const struct tdm_schedule *schedule, struct counts *counts)
{
    struct tdm_error err;
    struct tdm_program *program;
    *counts = (struct counts){0};
    must(tdm_program_lower(schedule, &program, &err), &err);
    must(tdm_program_validate(program, no_limit, &err), &err);
    must(tdm_program_emit(program, count, counts, &err), &err);
    return program;
}

static struct tdm_steps run(const struct tdm_schedule *schedule, const struct tdm_step_data *data,
                            uint64_t seed)
{
    struct tdm_steps steps;
    struct tdm_error err;
    must(tdm_schedule_check(schedule, "places", &err), &err);
    must(tdm_steps_run(schedule, &tdm_cpu_backend, data, seed, true, &steps, &err), &err);
    return steps;
}

static void refused(enum tdm_status status, const struct tdm_error *err, const char *words)
{
    assert_int_equal(status, TDM_INPUT);
    if (strstr(err->message, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err->message, words);
}

static enum tdm_status push(void *self, const struct tdm_item *item, struct tdm_error *err)
{
    return tdm_validator_push(self, item, NULL, err);
}

/* Validates the stream of a program against another machine. */
static enum tdm_status validate_for(const struct tdm_program *program, struct tdm_machine *machine,
                                    struct tdm_error *err)
{
    struct tdm_schedule schedule = *program->schedule;
    struct tdm_program view = *program;
    struct tdm_validator *validator;
    schedule.machine = machine;
    view.schedule = &schedule;
    must(tdm_validator_new(&view, no_limit, &validator, err), err);
    enum tdm_status status = tdm_program_emit(program, push, validator, err);
    tdm_validator_free(validator);
    return status;
}

/* Checks that the program is refused if the backend lacks the place, or if the links to it are
 * missing or swapped. */
static void check_refusals(struct tdm_schedule *schedule, const struct tdm_program *program)
{
    struct tdm_topology *topology = &schedule->machine->topology;
    const uint32_t links = topology->link_count;
    struct tdm_machine other_machine = *schedule->machine;
    struct tdm_program *other;
    struct tdm_error err;
    struct tdm_backend few = tdm_null_backend;
    few.places = TDM_PLACES;
    refused(tdm_backend_check(&few, 1, &program, &err), &err, "has no place \"second\"");
    few.places = TDM_MAX_PLACES;
    few.lanes = TDM_LANES;
    refused(tdm_backend_check(&few, 1, &program, &err), &err, "has no lane \"");
    other_machine.topology.link_count = TDM_LINKS;
    refused(validate_for(program, &other_machine, &err), &err, "over no link of the machine");
    other_machine.topology = *topology; /* the two links are swapped */
    other_machine.topology.links[TDM_LINKS] = topology->links[TDM_LINKS + 1];
    other_machine.topology.links[TDM_LINKS + 1] = topology->links[TDM_LINKS];
    refused(validate_for(program, &other_machine, &err), &err, "over the link from");
    topology->link_count = TDM_LINKS;
    refused(tdm_program_lower(schedule, &other, &err), &err, "has no link");
    refused(tdm_schedule_check(schedule, "FILE", &err), &err, "has no link");
    topology->link_count = links;
}

/* Checks the bytes of a place and the busy lanes in a simulation. */
static void check_simulation(const struct tdm_program *program, enum tdm_place place,
                             const struct counts *counts)
{
    struct tdm_topology *topology = &program->schedule->machine->topology;
    struct tdm_simulation simulation, slower;
    struct tdm_error err;
    must(tdm_simulate(program, NULL, NULL, &simulation, &err), &err);
    assert_true(simulation.used_peak_bytes[place] == program->arena_bytes[place]);
    assert_true(simulation.live_peak_bytes[place] <= program->live_peak_bytes[place]);
    json_t *report = tdm_prediction_json(program->schedule, &simulation);
    assert_true((uint64_t)json_integer_value(json_object_get(report, "second_peak_bytes")) ==
                program->arena_bytes[place]);
    assert_true((json_object_size(json_object_get(report, "second_categories")) > 0) ==
                (program->arena_bytes[place] > 0));
    json_decref(report);
    for (uint32_t lane = TDM_LANES; lane < topology->lane_count; lane++)
        assert_true((simulation.busy_seconds[lane] > 0) == (counts->copies[lane] > 0));

    const double rate = topology->shared[0].bytes_per_second;
    topology->shared[0].bytes_per_second = rate / 1000;
    must(tdm_simulate(program, NULL, NULL, &slower, &err), &err);
    topology->shared[0].bytes_per_second = rate;
    for (uint32_t lane = TDM_LANES; lane < topology->lane_count; lane++)
        if (counts->copies[lane] > 0)
            assert_true(slower.busy_seconds[lane] > simulation.busy_seconds[lane]);
}

/* Adds 1 to *moved if copies went to the second device. */
static bool serves_as_the_host(uint64_t seed, uint64_t *moved)
{
    const struct tdm_random_options options = {.max_tokens = 90};
    struct tdm_schedule *schedule;
    struct tdm_step_data data;
    struct counts before, after;
    struct tdm_error err;
    must(tdm_random_schedule(seed, &options, &schedule, &err), &err);
    assert_true(tdm_step_data_draw(&data, schedule, seed));
    struct tdm_steps due = run(schedule, &data, seed);
    struct tdm_program *program = lower(schedule, &before);
    uint64_t host_bytes = program->arena_bytes[TDM_HOST];
    tdm_program_free(program);

    enum tdm_place place = add_place(schedule);
    bool moves = move_groups(schedule, place);
    struct tdm_steps found = run(schedule, &data, seed);
    bool same = tdm_steps_same(&due, &found);
    program = lower(schedule, &after);
    assert_memory_equal(before.kinds, after.kinds, sizeof(before.kinds));
    assert_true(program->arena_bytes[TDM_HOST] <= host_bytes);
    assert_true(moves || program->arena_bytes[place] == 0);
    check_simulation(program, place, &after);
    uint64_t copies = 0, gone = 0;
    for (uint32_t lane = TDM_LANES; lane < schedule->machine->topology.lane_count; lane++)
        copies += after.copies[lane];
    for (uint32_t lane = 0; lane < TDM_LANES; lane++)
        gone += before.copies[lane] - after.copies[lane];
    assert_int_equal(copies, gone);
    *moved += copies > 0;
    if (copies > 0)
        check_refusals(schedule, program);
    if (!same)
        tdm_case_again("executor/property_places", seed);
    tdm_program_free(program);
    tdm_steps_free(&due);
    tdm_steps_free(&found);
    tdm_step_data_free(&data);
    tdm_schedule_free(schedule);
    return same;
}

static void a_place_serves_as_the_host(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(40, 250), failed = 0, moved = 0;
    for (uint64_t i = 0; i < cases; i++)
        failed += !serves_as_the_host(tdm_case_seed(BASE_SEED, i), &moved);
    assert_int_equal(failed, 0);
    assert_true(tdm_case_enough("programs copied over the new links", moved, cases, 0.3));
}

/* A schedule names its places, and they stay the same when it is written and read. */
static void names_come_back(void **state)
{
    (void)state;
    const struct tdm_random_options options = {.max_tokens = 90};
    struct tdm_schedule *schedule, *read;
    struct tdm_error err;
    json_t *json;
    uint64_t seed = BASE_SEED;
    for (bool moved = false; !moved; seed++) {
        must(tdm_random_schedule(seed, &options, &schedule, &err), &err);
        moved = move_groups(schedule, add_place(schedule));
        must(tdm_schedule_to_json(schedule, NULL, &json, &err), &err);
        must(tdm_schedule_from_json("places", json, &read, &err), &err);
        json_decref(json);
        assert_memory_equal(schedule->groups, read->groups,
                            schedule->group_count * sizeof(schedule->groups[0]));
        tdm_schedule_free(schedule);
        tdm_schedule_free(read);
    }
}

static bool makes_ahead(const struct tdm_schedule *schedule)
{
    struct counts counts;
    struct tdm_program *program = lower(schedule, &counts);
    const bool ahead = tdm_nest_any_kv_ahead(schedule, tdm_kv_row_is_whole(program), NULL);
    tdm_program_free(program);
    return ahead;
}

/* K and V that are made while the layer above goes backward are the same ops in another order, and
 * lead to the same bits. */
static void kv_ahead_has_the_same_bits(void **state)
{
    (void)state;
    const struct tdm_random_options options = {.max_tokens = 90};
    uint64_t cases = tdm_case_count(120, 800), compared = 0, listed = 0;
    for (uint64_t i = 0; i < cases; i++) {
        const uint64_t seed = tdm_case_seed(BASE_SEED + 5000, i);
        struct tdm_schedule *schedule;
        struct tdm_step_data data;
        struct tdm_error err;
        must(tdm_random_schedule(seed, &options, &schedule, &err), &err);
        must(tdm_random_make_ahead(schedule, &err), &err);
        if (makes_ahead(schedule)) {
            struct counts with, without;
            assert_true(tdm_step_data_draw(&data, schedule, seed));
            struct tdm_steps ahead = run(schedule, &data, seed);
            tdm_program_free(lower(schedule, &with));
            schedule->rings.ahead = 0;
            struct tdm_steps after = run(schedule, &data, seed);
            tdm_program_free(lower(schedule, &without));
            if (!tdm_steps_same(&ahead, &after)) {
                tdm_case_again("executor/property_places", seed);
                fail();
            }
            /* weights may be fetched at other visits */
            with.kinds[TDM_OP_COPY] = without.kinds[TDM_OP_COPY] = 0;
            assert_memory_equal(with.kinds, without.kinds, sizeof(with.kinds));
            tdm_steps_free(&ahead);
            tdm_steps_free(&after);
            tdm_step_data_free(&data);
            listed += tdm_schedule_lists(schedule) != TDM_SELECT_DENSE;
            compared++;
        }
        tdm_schedule_free(schedule);
    }
    assert_true(tdm_case_enough("cases make K and V ahead", compared, cases, 0.15));
    assert_true(tdm_case_enough("cases make them ahead and list pages", listed, cases, 0.03));
}

/* Rows of the embedding that no token uses are updated early, on the host; those of a step that is
 * not told which these are with the others. Both leave the same bits. */
static void rows_apart_have_the_same_bits(void **state)
{
    (void)state;
    const struct tdm_random_options options = {.max_tokens = 40, .optimizer = TDM_RANDOM_UPDATES};
    uint64_t cases = tdm_case_count(150, 1000), compared = 0;
    for (uint64_t i = 0; i < cases; i++) {
        const uint64_t seed = tdm_case_seed(BASE_SEED + 9000, i);
        struct tdm_schedule *schedule;
        struct tdm_step_data data;
        struct tdm_error err;
        must(tdm_random_schedule(seed, &options, &schedule, &err), &err);
        tdm_random_to_host(schedule);
        if (tdm_updates_rows_apart(schedule)) {
            assert_true(tdm_step_data_draw(&data, schedule, seed));
            struct tdm_steps apart = run(schedule, &data, seed);
            data.hides_rows = true;
            struct tdm_steps at_once = run(schedule, &data, seed);
            if (!tdm_steps_same(&apart, &at_once)) {
                tdm_case_again("executor/property_places", seed);
                fail();
            }
            tdm_steps_free(&apart);
            tdm_steps_free(&at_once);
            tdm_step_data_free(&data);
            compared++;
        }
        tdm_schedule_free(schedule);
    }
    assert_true(tdm_case_enough("cases update rows apart", compared, cases, 0.05));
}

#define MOST_COPIES 4096u

/* The copies of a program, with their predicted times. */
struct copies {
    const struct tdm_machine *machine;
    struct copy {
        uint32_t link;
        double start, end, bytes;
    } of[MOST_COPIES];
    uint32_t count;
    uint64_t alone, shared, slowed_by_later;
};

static enum tdm_status see_copy(void *self, const struct tdm_op *op, double start_seconds,
                                double end_seconds,
                                const uint64_t live_bytes[TDM_MAX_PLACES][TDM_CATEGORIES],
                                struct tdm_error *err)
{
    struct copies *copies = self;
    (void)live_bytes, (void)err;
    if (op->kind != TDM_OP_COPY || op->link == TDM_NO_LINK)
        return TDM_OK;
    assert_true(copies->count < MOST_COPIES);
    copies->of[copies->count++] = (struct copy){op->link, start_seconds, end_seconds,
                                                (double)op->access[TDM_COPY_FROM].bytes};
    return TDM_OK;
}

static bool is_under_way(const struct copy *copy, double at)
{
    return copy->start <= at && at < copy->end;
}

/* Bytes that a copy moves from its start to its end, at the rates beside those that are under way
 * at each moment. */
static double moved_bytes(struct copies *copies, const struct copy *copy)
{
    double bytes = 0, at = copy->start;
    bool is_shared = false, later = false;
    while (at < copy->end) {
        double next = copy->end, moving = copy->start + copies->machine->copy_seconds;
        uint32_t busy = 0;
        for (uint32_t i = 0; i < copies->count; i++) {
            const struct copy *other = &copies->of[i];
            if (other != copy && is_under_way(other, at))
                busy |= 1u << other->link;
            later |= other != copy && is_under_way(other, at) && other->start > copy->start;
            next = other->start > at ? fmin(next, other->start) : next;
            next = other->end > at ? fmin(next, other->end) : next;
        }
        if (moving > at)
            next = fmin(next, moving);
        else
            bytes += (next - at) * tdm_link_rate(&copies->machine->topology, copy->link, busy);
        is_shared |= busy != 0;
        at = next;
    }
    *(is_shared ? &copies->shared : &copies->alone) += 1;
    copies->slowed_by_later += later;
    return bytes;
}

/* Simulates random programs. `tables`: as in a description, or NULL: both ways together the link
 * carries less than the sum of both. */
static void check_copies(const char *tables)
{
    static struct copies copies;
    const struct tdm_random_options options = {.max_tokens = 90};
    memset(&copies, 0, sizeof(copies));
    for (uint64_t seed = BASE_SEED; seed < BASE_SEED + 40; seed++) {
        struct tdm_schedule *schedule;
        struct tdm_program *program;
        struct tdm_simulation simulation;
        struct tdm_error err;
        must(tdm_random_schedule(seed, &options, &schedule, &err), &err);
        if (tables != NULL)
            set_tables(schedule, tables);
        schedule->machine->rate[TDM_RATE_H2D] = 1e6;
        schedule->machine->rate[TDM_RATE_D2H] = 8e5;
        schedule->machine->rate[TDM_RATE_BOTH_WAYS] = 1.2e6;
        tdm_machine_set_links(schedule->machine);
        must(tdm_program_lower(schedule, &program, &err), &err);
        copies.machine = schedule->machine;
        copies.count = 0;
        must(tdm_simulate(program, see_copy, &copies, &simulation, &err), &err);
        for (uint32_t i = 0; i < copies.count; i++) {
            const struct copy *copy = &copies.of[i];
            const double moved = moved_bytes(&copies, copy);
            if (fabs(moved - copy->bytes) > 1e-6 * copy->bytes)
                fail_msg("seed %llu: copy %u moves %.9g of %.9g bytes", (unsigned long long)seed, i,
                         moved, copy->bytes);
        }
        tdm_program_free(program);
        tdm_schedule_free(schedule);
    }
    print_message("%llu copies alone, %llu beside others, %llu of these beside one that began "
                  "later\n",
                  (unsigned long long)copies.alone, (unsigned long long)copies.shared,
                  (unsigned long long)copies.slowed_by_later);
    assert_true(copies.alone > 100 && copies.shared > 100 && copies.slowed_by_later > 100);
}

/* Copies to the device and from it slow each other, whichever began first. */
static void directions_share_a_link(void **state)
{
    (void)state;
    check_copies(NULL);
}

/* They do so too where they share the bytes per second of a bus, which the machine states. */
static void lanes_share_a_bus(void **state)
{
    (void)state;
    check_copies("{\"shared\": [{\"name\": \"bus\", \"bytes_per_second\": 1e6, "
                 "\"lanes\": [\"h2d\", \"d2h\"]}]}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_place_serves_as_the_host),
        cmocka_unit_test(names_come_back),
        cmocka_unit_test(kv_ahead_has_the_same_bits),
        cmocka_unit_test(rows_apart_have_the_same_bits),
        cmocka_unit_test(directions_share_a_link),
        cmocka_unit_test(lanes_share_a_bus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
