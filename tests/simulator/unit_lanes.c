/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of ops on lanes: updates on the host and copies beside them, which share host memory. */
#include "ops/move.h"
#include "schedule/optimizer.h"
#include "simulator/lanes.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

/* While bytes are copied, updates do without 0.6 times as many of their 100 GB/s. */
static const char description[] =
    "{\"format\": \"tidemark-machine-1\", \"name\": \"m\", \"title\": \"m\", \"source\": \"made up\","
    " \"device_bytes\": 100000000000, \"host_bytes\": 100000000000, \"launch_seconds\": 0,"
    " \"copy_seconds\": 0, \"peak_flops_per_second\": 1e15, \"host_bytes_per_copied_byte\": 0.6,"
    " \"rates\": {\"product_flops_per_second\": 7e14,"
    " \"attention_forward_flops_per_second\": 5e14,"
    " \"attention_backward_flops_per_second\": 4e14,"
    " \"elementwise_bytes_per_second\": 4e12,"
    " \"host_optimizer_bytes_per_second\": 1e11,"
    " \"host_optimizer_rounded_bytes_per_second\": 6e10,"
    " \"h2d_bytes_per_second\": 5e10, \"d2h_bytes_per_second\": 5e10,"
    " \"both_ways_bytes_per_second\": 8e10}}";

/* Copies both ways beside updates are slower to the rates given; 0: not. */
static struct tdm_machine *made_up(double h2d, double d2h)
{
    struct tdm_machine *machine;
    struct tdm_error err;
    json_t *root = json_loads(description, 0, NULL);
    assert_non_null(root);
    if (h2d > 0 && d2h > 0) {
        tdm_json_set(&root, "h2d_beside_updates_bytes_per_second", json_real(h2d));
        tdm_json_set(&root, "d2h_beside_updates_bytes_per_second", json_real(d2h));
    }
    if (tdm_machine_from_json("made up", root, &machine, &err) != TDM_OK)
        fail_msg("%s", err.message);
    json_decref(root);
    return machine;
}

static void note_end(void *self, const struct tdm_lane_op *op, double ready_seconds,
                     double peers_end_seconds, double end_seconds)
{
    double *ends = self;
    (void)ready_seconds;
    (void)peers_end_seconds;
    ends[op->lane] = end_seconds;
}

static struct tdm_op copy_of(enum tdm_lane lane, uint32_t link, uint64_t bytes)
{
    struct tdm_op op = {.kind = TDM_OP_COPY, .lane = lane, .link = link, .access_count = 2};
    op.access[TDM_COPY_FROM].bytes = op.access[TDM_COPY_TO].bytes = bytes;
    return op;
}

/* An update on the host that has a master, or rounds its weights. */
static struct tdm_op update_of(uint64_t bytes, bool rounds)
{
    struct tdm_op op = {.kind = TDM_OP_OPTIMIZER,
                        .lane = TDM_LANE_HOST,
                        .link = TDM_NO_LINK,
                        .bytes = bytes,
                        .access_count = TDM_OPTIMIZER_OPERANDS};
    if (rounds)
        op.access[TDM_OPTIMIZER_MASTER].buffer = TDM_NONE;
    return op;
}

/* Begins an update of 1 s and the copies at once. */
static void run(const struct tdm_machine *machine, uint64_t to_device, uint64_t to_host,
                bool rounds, double ends[TDM_MAX_LANES])
{
    const struct tdm_op ops[] = {
        update_of(rounds ? 60000000000 : 100000000000, rounds),
        copy_of(TDM_LANE_H2D, TDM_LINK_H2D, to_device),
        copy_of(TDM_LANE_D2H, TDM_LINK_D2H, to_host),
    };
    const struct tdm_waits waits = {.position = 0};
    struct tdm_lanes lanes;
    struct tdm_error err;
    assert_int_equal(tdm_lanes_open(&lanes, machine, 3, false, &err), TDM_OK);
    lanes.see = note_end;
    lanes.self = ends;
    for (int i = 0; i < 3; i++) {
        ends[ops[i].lane] = 0;
        if (ops[i].kind == TDM_OP_COPY && ops[i].access[TDM_COPY_FROM].bytes == 0)
            continue;
        assert_int_equal(tdm_lanes_take(&lanes, &ops[i], &waits, &err), TDM_OK);
    }
    assert_int_equal(tdm_lanes_finish(&lanes, &err), TDM_OK);
    tdm_lanes_close(&lanes);
}

static void test_updates_beside_copies(void **state)
{
    struct tdm_machine *machine = made_up(0, 0);
    double ends[TDM_MAX_LANES];
    (void)state;
    run(machine, 0, 0, false, ends);
    assert_float_equal(ends[TDM_LANE_HOST], 1, 1e-9);
    /* all the time beside a copy of 50 GB/s: 70 of 100 GB/s are left */
    run(machine, 500000000000, 0, false, ends);
    assert_float_equal(ends[TDM_LANE_HOST], 1 / 0.7, 1e-9);
    assert_float_equal(ends[TDM_LANE_H2D], 10, 1e-9);
    run(machine, 0, 500000000000, false, ends);
    assert_float_equal(ends[TDM_LANE_HOST], 1 / 0.7, 1e-9);
    /* half a second beside it */
    run(machine, 25000000000, 0, false, ends);
    assert_float_equal(ends[TDM_LANE_HOST], 1.15, 1e-9);
    assert_float_equal(ends[TDM_LANE_H2D], 0.5, 1e-9);
    /* beside copies both ways, of 40 GB/s each */
    run(machine, 400000000000, 400000000000, false, ends);
    assert_float_equal(ends[TDM_LANE_HOST], 1 / 0.52, 1e-9);
    assert_float_equal(ends[TDM_LANE_H2D], 10, 1e-9);
    assert_float_equal(ends[TDM_LANE_D2H], 10, 1e-9);
    /* one that rounds waits for the cores */
    run(machine, 400000000000, 400000000000, true, ends);
    assert_float_equal(ends[TDM_LANE_HOST], 1, 1e-9);
    tdm_machine_free(machine);
}

static void test_copies_beside_updates(void **state)
{
    struct tdm_machine *machine = made_up(30e9, 36e9);
    double ends[TDM_MAX_LANES];
    (void)state;
    /* in one direction alone they keep their rate */
    run(machine, 500000000000, 0, false, ends);
    assert_float_equal(ends[TDM_LANE_H2D], 10, 1e-9);
    /* both ways 30 and 36 GB/s until the update ends, then 40 each, and 50 when one is left */
    run(machine, 400000000000, 400000000000, false, ends);
    const double updated = 1 / (1 - 0.6 * 0.66), both = updated + (400 - 36 * updated) / 40;
    assert_float_equal(ends[TDM_LANE_HOST], updated, 1e-9);
    assert_float_equal(ends[TDM_LANE_D2H], both, 1e-9);
    assert_float_equal(ends[TDM_LANE_H2D], both + (400 - 30 * updated - 40 * (both - updated)) / 50,
                       1e-9);
    /* one that rounds does not slow them */
    run(machine, 400000000000, 400000000000, true, ends);
    assert_float_equal(ends[TDM_LANE_H2D], 10, 1e-9);
    tdm_machine_free(machine);
}

/* Also where that is all that slows copies, of one direction. */
static void test_copies_one_way_slower(void **state)
{
    struct tdm_machine *machine = made_up(0, 0);
    struct tdm_link *links = machine->topology.links;
    double ends[TDM_MAX_LANES];
    (void)state;
    machine->host_bytes_per_copied_byte = 0;
    machine->h2d_beside_updates = links[TDM_LINK_H2D].beside_updates_bytes_per_second = 30e9;
    for (unsigned link = TDM_LINK_H2D; link <= TDM_LINK_D2H; link++)
        links[link].both_ways_bytes_per_second = 100e9;
    run(machine, 400000000000, 400000000000, false, ends);
    assert_float_equal(ends[TDM_LANE_HOST], 1, 1e-9);
    assert_float_equal(ends[TDM_LANE_D2H], 8, 1e-9);
    assert_float_equal(ends[TDM_LANE_H2D], 1 + (400 - 30) / 50.0, 1e-9);
    tdm_machine_free(machine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_updates_beside_copies),
        cmocka_unit_test(test_copies_beside_updates),
        cmocka_unit_test(test_copies_one_way_slower),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
