/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of machines/: the shipped descriptions, this computer, and broken descriptions. */
#include "base/file.h"
#include "base/json.h"
#include "machines/machine.h"
#include "machines/nccl.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void assert_contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

static struct tdm_machine *load(const char *name)
{
    struct tdm_machine *machine = NULL;
    struct tdm_error err = {0};
    if (tdm_machine_load(name, &machine, &err) != TDM_OK)
        fail_msg("%s", err.message);
    return machine;
}

static void test_names(void **state)
{
    (void)state;
    struct tdm_topology topology;
    tdm_topology_begin(&topology);
    assert_string_equal(tdm_place_name(&topology, TDM_DEVICE), "device");
    assert_string_equal(tdm_place_name(&topology, TDM_HOST), "host");
    assert_string_equal(tdm_lane_name(&topology, TDM_LANE_COMPUTE), "compute");
    assert_string_equal(tdm_lane_name(&topology, TDM_LANE_H2D), "h2d");
    assert_string_equal(tdm_lane_name(&topology, TDM_LANE_D2H), "d2h");
    assert_string_equal(tdm_lane_name(&topology, TDM_LANE_HOST), "host");
}

static void test_shipped(void **state)
{
    (void)state;
    static const char *const expected[] = {
        "a10",      "a100-40",  "a100-80",        "a10g",      "a800-80", "b200",   "h100",
        "h20",      "h200",     "h200-published", "h800",      "l4",      "l40s",   "mi300x",
        "rtx-3090", "rtx-4090", "rtx-5090",       "rtx-a6000", "t4",      "v100-32"};
    char **names;
    assert_int_equal(tdm_machine_names(&names, NULL), TDM_OK);
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        assert_string_equal(names[i], expected[i]);
        struct tdm_machine *machine = load(names[i]);
        assert_string_equal(machine->name, names[i]);
        bool measured = strcmp(names[i], "h200") == 0 || strcmp(names[i], "h100") == 0;
        bool published = strcmp(names[i], "h200-published") == 0;
        /* For some machines only the memory is known. Their rates are assumed, and low. */
        bool sized = json_array_size(json_object_get(machine->description, "assumed")) > 0;
        const char *source = measured    ? "measured by tidemark calibrate"
                             : published ? "published kernels"
                             : sized     ? "memory as the driver"
                                         : "datasheet, derated";
        assert_int_equal(machine->measured, measured);
        assert_int_equal(strncmp(machine->source, source, strlen(source)), 0);
        assert_true(!sized || machine->rate[TDM_RATE_PRODUCT] < machine->peak_flops / 2);
        /* Predictions are for a server of these GPUs, with more host memory than plans use. */
        assert_true(machine->server_host_bytes > machine->topology.places[TDM_HOST].capacity_bytes);
        assert_true(machine->server_name[0] != '\0');
        /* No rate exceeds the GPU's peak. */
        assert_true(machine->rate[TDM_RATE_PRODUCT] < machine->peak_flops);
        assert_true(machine->rate[TDM_RATE_ATTENTION_FORWARD] < machine->rate[TDM_RATE_PRODUCT]);
        assert_true(machine->rate[TDM_RATE_ATTENTION_BACKWARD] <
                    machine->rate[TDM_RATE_ATTENTION_FORWARD]);
        assert_true(machine->rate[TDM_RATE_BOTH_WAYS] > machine->rate[TDM_RATE_H2D]);
        assert_true(machine->topology.places[TDM_DEVICE].capacity_bytes > UINT64_C(14) << 30);
        assert_true(machine->topology.places[TDM_DEVICE].runtime_bytes > UINT64_C(500) << 20);
        tdm_machine_free(machine);
    }
    assert_null(names[sizeof(expected) / sizeof(expected[0])]);
    free(names);
}

static void test_h200_published(void **state)
{
    (void)state;
    struct tdm_machine *machine = load("h200-published");
    assert_int_equal(machine->topology.places[TDM_DEVICE].capacity_bytes, UINT64_C(150093103104));
    assert_int_equal(machine->topology.places[TDM_HOST].capacity_bytes, UINT64_C(110) << 30);
    assert_int_equal(machine->topology.places[TDM_DEVICE].runtime_bytes, UINT64_C(528) << 20);
    assert_int_equal(machine->topology.places[TDM_HOST].runtime_bytes, UINT64_C(464) << 20);
    assert_true(machine->rate[TDM_RATE_PRODUCT] == 720e12);
    assert_true(machine->rate[TDM_RATE_ATTENTION_FORWARD] == 650e12);
    assert_true(machine->rate[TDM_RATE_ATTENTION_BACKWARD] == 600e12);
    assert_true(machine->rate[TDM_RATE_ELEMENTWISE] == 4.28e12);
    assert_true(machine->rate[TDM_RATE_H2D] == 55.4e9);
    assert_true(machine->rate[TDM_RATE_D2H] == 55.4e9);
    assert_true(machine->rate[TDM_RATE_BOTH_WAYS] == 99.7e9);
    tdm_machine_free(machine);
}

/* The links between device and host have the rates of the description. */
static void test_links(void **state)
{
    (void)state;
    struct tdm_machine *machine = load("h200-published");
    const struct tdm_topology *topology = &machine->topology;
    assert_int_equal(tdm_link_find(topology, TDM_HOST, TDM_DEVICE), TDM_LINK_H2D);
    assert_int_equal(tdm_link_find(topology, TDM_HOST, TDM_HOST), TDM_NO_LINK);
    assert_int_equal(tdm_link_opposite(topology, TDM_LINK_H2D), TDM_LINK_D2H);
    assert_int_equal(tdm_lane_at(topology, TDM_HOST), TDM_LANE_HOST);
    assert_true(tdm_link_rate(topology, TDM_LINK_H2D, 0) == 55.4e9);
    assert_true(tdm_link_rate(topology, TDM_LINK_H2D, 1u << TDM_LINK_H2D) == 55.4e9);
    assert_true(tdm_link_rate(topology, TDM_LINK_D2H, 1u << TDM_LINK_H2D) == 99.7e9 / 2);
    tdm_machine_free(machine);
}

/* h200-published with the fields of JSON objects put over its own; rate_changes may be NULL. */
static json_t *changed(const char *changes, const char *rate_changes)
{
    struct tdm_machine *machine = load("h200-published");
    json_t *description = json_deep_copy(machine->description);
    tdm_machine_free(machine);
    json_t *update = json_loads(changes, 0, NULL);
    assert_non_null(update);
    json_object_update(description, update);
    json_decref(update);
    if (rate_changes != NULL) {
        update = json_loads(rate_changes, 0, NULL);
        assert_non_null(update);
        json_object_update(json_object_get(description, "rates"), update);
        json_decref(update);
    }
    return description;
}

#define SECOND "{\"name\": \"second\", \"bytes\": 1000}"
#define LINK(from, to, lane, more)                                   \
    "{\"from\": \"" from "\", \"to\": \"" to "\", \"lane\": \"" lane \
    "\", \"bytes_per_second\": 3e11" more "}"

#define SHARED(lanes) \
    "{\"shared\": [{\"name\": \"bus\", \"bytes_per_second\": 6e10, \"lanes\": " lanes "}]}"

static void test_broken(void **state)
{
    (void)state;
    static const struct {
        const char *changes, *rate_changes, *message;
    } cases[] = {
        {"{\"format\": null}", NULL, "\"format\" is missing"},
        {"{\"format\": \"tidemark-machine-2\"}", NULL,
         "\"format\" is \"tidemark-machine-2\"; this tidemark reads \"tidemark-machine-1\""},
        {"{\"devicebytes\": 1}", NULL, "\"devicebytes\" is not a known field"},
        {"{\"name\": \"\"}", NULL, "\"name\" has 0 characters; it must have 1 to 63"},
        {"{\"name\": \"0123456789012345678901234567890123456789012345678901234567890123\"}", NULL,
         "\"name\" has 64 characters"},
        {"{\"source\": null}", NULL, "\"source\" is missing"},
        {"{\"notes\": \"text\"}", NULL, "\"notes\" is \"text\"; it must be an array"},
        {"{\"notes\": [\"text\", 1]}", NULL, "\"notes\" holds something else at 1"},
        {"{\"device_bytes\": 0}", NULL, "\"device_bytes\" is 0; it must be a whole number"},
        {"{\"device_bytes\": 1.5e11}", NULL, "it must be a whole number"},
        {"{\"host_bytes\": null}", NULL, "\"host_bytes\" is missing"},
        {"{\"runtime_device_bytes\": 150093103104}", NULL,
         "\"runtime_device_bytes\" leaves nothing of \"device_bytes\""},
        {"{\"launch_seconds\": -1}", NULL, "\"launch_seconds\" is -1; it must be a number from 0"},
        {"{\"rates\": null}", NULL, "\"rates\" is missing; add it as an object"},
        {"{}", "{\"product_flops_per_second\": 0}",
         "\"rates.product_flops_per_second\" is 0; it must be a number from 1"},
        {"{}", "{\"h2d_bytes_per_second\": \"fast\"}",
         "\"rates.h2d_bytes_per_second\" is \"fast\"; it must be a number"},
        {"{}", "{\"h2d_bytes_per_second\": [[1, 2]]}",
         "\"rates.h2d_bytes_per_second\" is a list; it must be a number"},
        {"{}", "{\"product_flops_per_second\": []}", "has 0 points; it must have 1 to 64"},
        {"{}", "{\"norm_bytes_per_second\": [[1, 2], [3]]}",
         "\"rates.norm_bytes_per_second\" holds at 1 no point; a point is [size, rate]"},
        {"{}", "{\"norm_bytes_per_second\": [[4, 2], [4, 3]]}", "has size 4 after size 4"},
        {"{}", "{\"norm_bytes_per_second\": [[4, 2], [8, 5]]}",
         "lets size 8 take less time than size 4; lower the rate 5 to at most 4"},
        {"{\"base\": \"h21\"}", "{\"h2d_bytes_per_second\": null}",
         "\"base\" is \"h21\", which is not a shipped machine"},
        {"{\"provenance\": {\"date\": 1}}", NULL,
         "\"provenance\" holds something else than a string at \"date\""},
        {"{}", "{\"h2d\": 1}", "\"rates.h2d\" is not a known field"},
        {"{\"places\": [1]}", NULL, "\"places\" holds something else than an object at 0"},
        {"{\"places\": [{\"name\": \"Second GPU\", \"bytes\": 1}]}", NULL,
         "\"places[0].name\" is \"Second GPU\"; expected 1 to 15 lower-case letters"},
        {"{\"places\": [{\"name\": \"host\", \"bytes\": 1}]}", NULL,
         "\"places[0].name\" is \"host\", which another place has"},
        {"{\"places\": [{\"name\": \"second\", \"bytes\": 8, \"runtime_bytes\": 8}]}", NULL,
         "\"places[0].runtime_bytes\" leaves nothing of \"bytes\""},
        {"{\"places\": [{\"name\": \"second\"}]}", NULL, "\"places[0].bytes\" is missing"},
        {"{\"places\": [{}, {}, {}]}", NULL, "\"places\" has 3 rows; at most 2"},
        {"{\"links\": [{\"from\": \"disk\", \"to\": \"host\"}]}", NULL,
         "\"links[0].from\" is \"disk\", which is not a place of this machine"},
        {"{\"links\": [" LINK("host", "host", "x", "") "]}", NULL,
         "\"links[0].to\" is where it comes from"},
        {"{\"links\": [" LINK("host", "device", "x", "") "]}", NULL,
         "\"links[0].to\" is \"device\", to which another link from \"host\" goes"},
        {"{\"places\": [" SECOND "], \"links\": [" LINK("host", "second", "compute", "") "]}", NULL,
         "\"links[0].lane\" is \"compute\", which computes"},
        {"{\"places\": [" SECOND
         "], \"links\": [" LINK("host", "second", "x", ", \"shared\": \"y\"") "]}",
         NULL, "\"links[0].shared\" is \"y\", which \"shared\" of the machine does not have"},
        {"{\"shared\": [{\"name\": \"y\", \"bytes_per_second\": 1e9}, "
         "{\"name\": \"y\", \"bytes_per_second\": 1e9}]}",
         NULL, "\"shared[1].name\" is \"y\", which another row has"},
        {"{\"shared\": [{\"name\": \"y\"}]}", NULL, "\"shared[0].bytes_per_second\" is missing"},
        {SHARED("\"h2d\""), NULL, "\"shared[0].lanes\" is \"h2d\"; it must be an array"},
        {SHARED("[\"h2d\", 1]"), NULL,
         "\"shared[0].lanes\" holds something else than a string at 1"},
        {SHARED("[\"up\"]"), NULL,
         "\"shared[0].lanes\" holds \"up\", which is not a lane of this machine"},
        {SHARED("[\"d2h\", \"host\"]"), NULL,
         "\"shared[0].lanes\" holds \"host\", which computes; expected lanes that copy"},
        {SHARED("[\"d2h\", \"d2h\"]"), NULL,
         "\"shared[0].lanes\" holds \"d2h\", which shares \"bus\" already"},
        {"{\"shared\": [{\"name\": \"a\", \"bytes_per_second\": 1e9, \"lanes\": [\"h2d\"]}, "
         "{\"name\": \"b\", \"bytes_per_second\": 1e9, \"lanes\": [\"d2h\", \"h2d\"]}]}",
         NULL, "\"shared[1].lanes\" holds \"h2d\", which shares \"a\" already"},
        {"{\"shared\": [{\"name\": \"y\", \"bytes_per_second\": 1e9, \"links\": []}]}", NULL,
         "\"shared[0].links\" is not a known field"},
        {"{}", "{\"both_ways_bytes_per_second\": 120e9}",
         "\"rates.both_ways_bytes_per_second\" is 1.2e+11, more than \"h2d_bytes_per_second\""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        json_t *description = changed(cases[i].changes, cases[i].rate_changes);
        struct tdm_machine *machine = NULL;
        struct tdm_error err = {0};
        assert_int_equal(tdm_machine_from_json("m.json", description, &machine, &err), TDM_INPUT);
        assert_null(machine);
        assert_contains(err.message, "m.json: \"");
        assert_contains(err.message, cases[i].message);
        json_decref(description);
    }
}

/* A second device behind a switch, to which the host has a link too. */
static void test_more_places(void **state)
{
    (void)state;
    json_t *description = changed(
        "{\"places\": [" SECOND
        "], \"shared\": [{\"name\": \"switch\", \"bytes_per_second\": 4e11}], "
        "\"links\": [" LINK("device", "second", "to_second", ", \"shared\": \"switch\"") ", " LINK(
            "second", "device", "from_second",
            ", \"both_ways_bytes_per_second\": 5e11, \"shared\": \"switch\"") ", " LINK("host",
                                                                                        "second",
                                                                                        "h2d",
                                                                                        "") "]}",
        NULL);
    struct tdm_machine *machine;
    struct tdm_error err;
    assert_int_equal(tdm_machine_from_json("m.json", description, &machine, &err), TDM_OK);
    const struct tdm_topology *t = &machine->topology;
    enum tdm_place second;
    assert_true(tdm_place_parse(t, "second", &second));
    assert_int_equal(second, TDM_PLACES);
    assert_int_equal(t->places[second].capacity_bytes, 1000);
    assert_int_equal(t->lane_count, TDM_LANES + 2); /* h2d has two links */
    assert_int_equal(tdm_lane_at(t, second), TDM_MAX_LANES);
    uint32_t there = tdm_link_find(t, TDM_DEVICE, second), back = tdm_link_opposite(t, there);
    assert_string_equal(tdm_lane_name(t, t->links[there].lane), "to_second");
    assert_int_equal(t->links[tdm_link_find(t, TDM_HOST, second)].lane, TDM_LANE_H2D);
    assert_true(tdm_link_rate(t, there, 0) == 3e11);
    assert_true(tdm_link_rate(t, there, 1u << back) == 2e11); /* half of the switch's rate */
    assert_true(tdm_link_rate(t, back, 1u << there) == 2e11);
    assert_true(tdm_link_rate(t, back, 1u << TDM_LINK_H2D) == 3e11);
    assert_int_equal(tdm_link_find(t, second, TDM_HOST), TDM_NO_LINK);
    tdm_machine_free(machine);
    json_decref(description);
}

/* Copies to the device, from it and to a second one cross a bus. */
static void test_shared_lanes(void **state)
{
    (void)state;
    json_t *description = changed("{\"places\": [" SECOND
                                  "], \"shared\": [{\"name\": \"bus\", \"bytes_per_second\": 6e10, "
                                  "\"lanes\": [\"h2d\", \"d2h\", \"to_second\"]}], "
                                  "\"links\": [" LINK("device", "second", "to_second", "") "]}",
                                  NULL);
    struct tdm_machine *machine;
    struct tdm_error err;
    assert_int_equal(tdm_machine_from_json("m.json", description, &machine, &err), TDM_OK);
    const struct tdm_topology *t = &machine->topology;
    const uint32_t h2d = TDM_LINK_H2D, d2h = TDM_LINK_D2H, third = TDM_LINKS;
    assert_true(tdm_link_rate(t, h2d, 0) == 55.4e9);
    assert_true(tdm_link_rate(t, h2d, 1u << d2h) == 3e10);
    assert_true(tdm_link_rate(t, d2h, 1u << third) == 3e10);
    assert_true(tdm_link_rate(t, d2h, 1u << third | 1u << h2d) == 2e10);
    assert_true(tdm_link_rate(t, third, 0) == 6e10);
    assert_true(tdm_link_rate(t, third, 1u << h2d | 1u << d2h) == 2e10);
    assert_true(tdm_machine_both_ways_rate(machine) == 6e10); /* what plans go by */
    tdm_machine_free(machine);
    json_decref(description);
}

/* Rates at points, between them and beyond them. Time never falls with size. */
static void test_tables(void **state)
{
    (void)state;
    struct tdm_rate_table table = {0};
    tdm_rate_add(&table, 100, 10);
    assert_true(tdm_rate_at(&table, 1) == 10 && tdm_rate_at(&table, 1e9) == 10);
    tdm_rate_add(&table, 400, 40); /* takes as long as the first */
    tdm_rate_add(&table, 1600, 1e9);
    tdm_rate_add(&table, 6400, 80);
    assert_true(table.rate[2] == 160); /* lowered to the same time */
    assert_true(tdm_rate_most(&table) == 160);
    assert_true(tdm_rate_at(&table, 100) == 10 && tdm_rate_at(&table, 50) == 10);
    assert_true(tdm_rate_at(&table, 6400) == 80 && tdm_rate_at(&table, 1e6) == 80);
    assert_true(fabs(tdm_rate_at(&table, 200) - 20) < 1e-9);
    assert_true(fabs(tdm_rate_at(&table, 3200) - sqrt(160 * 80)) < 1e-9);
    double last = 0;
    for (double size = 1; size < 1e5; size *= 1.01) {
        double seconds = size / tdm_rate_at(&table, size);
        assert_true(seconds >= last * (1 - 1e-12));
        last = seconds;
    }
    json_t *json = tdm_rate_json(&table);
    assert_int_equal(json_array_size(json), 4);
    json_decref(json);
    for (unsigned i = 0; i < 2 * TDM_RATE_POINTS; i++)
        tdm_rate_add(&table, 1e4 * (i + 1), 80);
    assert_int_equal(table.count, TDM_RATE_POINTS);
}

/* A table may stand in place of a number, and other rates replace a rate that is not described. */
static void test_described_tables(void **state)
{
    (void)state;
    json_t *description = changed(
        "{}",
        "{\"product_flops_per_second\": [[1e9, 1e14], [1e12, 7e14]], \"head_flops_per_second\":"
        " 5e14, \"attention_forward_share\": [[256, 0.5], [4096, 1]]}");
    struct tdm_machine *machine = NULL;
    struct tdm_error err = {0};
    assert_int_equal(tdm_machine_from_json("m.json", description, &machine, &err), TDM_OK);
    assert_string_equal(machine->missing, "");
    assert_true(machine->rate[TDM_RATE_PRODUCT] == 7e14);
    assert_true(tdm_rate_at(&machine->table[TDM_RATE_PRODUCT], 1e9) == 1e14);
    assert_true(tdm_rate_at(&machine->table[TDM_RATE_PRODUCT_GRAD_WEIGHT], 1e9) == 1e14);
    assert_int_equal(machine->table[TDM_RATE_PRODUCT_GRAD_WEIGHT].of, TDM_RATE_PRODUCT);
    assert_int_equal(machine->table[TDM_RATE_HEAD].of, TDM_RATE_HEAD);
    assert_true(tdm_rate_at(&machine->table[TDM_RATE_HEAD], 1e9) == 5e14);
    assert_true(machine->rate[TDM_RATE_OPTIMIZER] == machine->rate[TDM_RATE_ELEMENTWISE]);
    assert_true(tdm_rate_at(&machine->table[TDM_RATE_ATTENTION_FORWARD_SHARE], 256) == 0.5);
    assert_true(tdm_rate_at(&machine->table[TDM_RATE_NARROW_ATTENTION_FORWARD_SHARE], 256) == 0.5);
    assert_true(tdm_rate_at(&machine->table[TDM_RATE_ATTENTION_BACKWARD_SHARE], 256) == 1);
    tdm_machine_free(machine);
    json_decref(description);
}

/* Host rates that nobody measured for a GPU are those of its link. */
static void test_host_rates(void **state)
{
    struct tdm_machine *machine = NULL;
    struct tdm_error err = {0};
    (void)state;
    assert_int_equal(tdm_machine_load("a100-80", &machine, &err), TDM_OK);
    assert_true(machine->rate[TDM_RATE_HOST_OPTIMIZER] == machine->rate[TDM_RATE_BOTH_WAYS]);
    assert_true(machine->rate[TDM_RATE_HOST_OPTIMIZER_ROUNDED] ==
                machine->rate[TDM_RATE_HOST_OPTIMIZER]);
    tdm_machine_free(machine);
    assert_int_equal(tdm_machine_load("h200", &machine, &err), TDM_OK);
    assert_true(machine->rate[TDM_RATE_HOST_OPTIMIZER] ==
                1.1e11); /* its own, not that of the link */
    assert_true(machine->rate[TDM_RATE_HOST_OPTIMIZER_ROUNDED] <
                machine->rate[TDM_RATE_HOST_OPTIMIZER]);
    /* copies both ways are slower beside updates on the host, those in one direction are not */
    const uint32_t d2h = 1u << TDM_LINK_D2H;
    const double alone = tdm_link_rate(&machine->topology, TDM_LINK_H2D, 0);
    assert_true(tdm_link_rate(&machine->topology, TDM_LINK_H2D, d2h | TDM_UPDATES_BUSY) == 3.75e10);
    assert_true(tdm_link_rate(&machine->topology, TDM_LINK_H2D, d2h) > 3.75e10);
    assert_true(tdm_link_rate(&machine->topology, TDM_LINK_H2D, TDM_UPDATES_BUSY) == alone);
    tdm_machine_free(machine);
}

/* Missing values come from the base; without a base they are low. They are listed. */
static void test_fallback(void **state)
{
    (void)state;
    const char *missing =
        "{\"product_flops_per_second\": null, \"both_ways_bytes_per_second\": null,"
        " \"h2d_bytes_per_second\": 20e9, \"d2h_bytes_per_second\": 20e9}";
    struct tdm_machine *machine = NULL;
    struct tdm_error err = {0};
    json_t *description = changed("{\"base\": \"a100-80\", \"copy_seconds\": null}", missing);
    assert_int_equal(tdm_machine_from_json("m.json", description, &machine, &err), TDM_OK);
    assert_string_equal(machine->missing, "rates.product_flops_per_second, "
                                          "rates.both_ways_bytes_per_second, copy_seconds");
    assert_true(machine->rate[TDM_RATE_PRODUCT] == 218.4e12);
    /* not more than the two links together */
    assert_true(machine->rate[TDM_RATE_BOTH_WAYS] == 40e9);
    assert_true(machine->copy_seconds == 3e-6);
    assert_int_equal(json_array_size(json_object_get(machine->description, "assumed")), 3);
    /* the description in a schedule is complete */
    json_t *carried = json_incref(machine->description);
    tdm_machine_free(machine);
    assert_int_equal(tdm_machine_from_json("s.json", carried, &machine, &err), TDM_OK);
    assert_string_equal(machine->missing, "");
    tdm_machine_free(machine);
    json_decref(carried);
    json_decref(description);

    description = changed("{}", missing);
    assert_int_equal(tdm_machine_from_json("m.json", description, &machine, &err), TDM_OK);
    assert_true(machine->rate[TDM_RATE_PRODUCT] < machine->peak_flops / 2);
    assert_true(machine->rate[TDM_RATE_BOTH_WAYS] < 40e9);
    tdm_machine_free(machine);
    json_decref(description);
}

static void test_unknown(void **state)
{
    (void)state;
    struct tdm_machine *machine = NULL;
    struct tdm_error err;
    static const char *const unknown[] = {"", "no-such-machine", "/no/such/file", "/"};
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        assert_int_equal(tdm_machine_load(unknown[i], &machine, &err), TDM_INPUT);
        assert_contains(err.message, "is not a shipped machine, \"local\", or a file");
        assert_string_equal(
            err.hint,
            "shipped machines: a10, a100-40, a100-80, a10g, a800-80, b200, h100, h20, h200, "
            "h200-published, h800, l4, l40s, mi300x, rtx-3090, rtx-4090, rtx-5090, rtx-a6000, "
            "t4, v100-32; for another card name one like it, and --memory");
    }
    assert_null(machine);
    tdm_machine_free(NULL);
}

/* Names as people write them. An ambiguous name is refused. */
static void test_other_names(void **state)
{
    static const char *const names[][2] = {{"H100", "h100"},
                                           {"4090", "rtx-4090"},
                                           {"RTX 3090", "rtx-3090"},
                                           {"NVIDIA GeForce RTX 5090", "rtx-5090"},
                                           {"A10G", "a10g"},
                                           {"NVIDIA A10", "a10"},
                                           {"Tesla T4", "t4"},
                                           {"V100", "v100-32"},
                                           {"A800", "a800-80"},
                                           {"a100_40", "a100-40"},
                                           {"A6000", "rtx-a6000"},
                                           {"H20", "h20"},
                                           {"NVIDIA H800", "h800"},
                                           {"AMD Instinct MI300X", "mi300x"},
                                           /* as drivers and clusters name them */
                                           {"NVIDIA A100-SXM4-40GB", "a100-40"},
                                           {"a100-sxm4-80gb", "a100-80"},
                                           {"NVIDIA H100 80GB HBM3", "h100"},
                                           {"Tesla V100-SXM2-32GB", "v100-32"},
                                           {"NVIDIA A10 24GB", "a10"}};
    static const char *const others[] = {"Tesla V100-SXM2-16GB", "NVIDIA H100 PCIe",
                                         "NVIDIA A100 80GB PCIe", "NVIDIA H100 NVL 94GB",
                                         "NVIDIA A1000 40GB"};
    struct tdm_machine *machine = NULL;
    struct tdm_error err;
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        machine = load(names[i][0]);
        assert_string_equal(machine->name, names[i][1]);
        tdm_machine_free(machine);
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        assert_int_equal(tdm_machine_load(others[i], &machine, &err), TDM_INPUT);
    machine = load("a10"); /* its card's name begins those of two others */
    assert_true(tdm_machine_is_card(machine, "NVIDIA A10"));
    assert_false(tdm_machine_is_card(machine, "NVIDIA A10G"));
    assert_false(tdm_machine_is_card(machine, "NVIDIA A100-SXM4-40GB"));
    tdm_machine_free(machine);
    assert_int_equal(tdm_machine_load("A100", &machine, &err), TDM_INPUT);
    assert_contains(err.hint, "did you mean a100-40 or a100-80? ");
    assert_int_equal(tdm_machine_load("L40", &machine, &err), TDM_INPUT); /* another GPU */
    assert_contains(err.hint, "l40s");
}

/* A folder that stands for the user's configuration. */
static int make_config_home(void **state)
{
    static char path[256];
    const char *given = getenv("TDM_SCRATCH");
    snprintf(path, sizeof(path), "%s/config.XXXXXX", given == NULL ? "/tmp" : given);
    if (mkdtemp(path) == NULL)
        return -1;
    *state = path;
    return setenv("XDG_CONFIG_HOME", path, 1);
}

static void test_local(void **state)
{
    const char *home = *state;
    struct tdm_machine *machine = load("local");
    assert_string_equal(machine->name, "local");
    assert_contains(machine->source, "assumed");
    assert_false(machine->measured);
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGE_SIZE);
    assert_true(machine->topology.places[TDM_DEVICE].capacity_bytes <= memory / 4);
    assert_true(machine->topology.places[TDM_HOST].capacity_bytes / 2 <=
                machine->topology.places[TDM_DEVICE].capacity_bytes);
    for (unsigned i = 0; i < TDM_RATES; i++)
        assert_true(machine->rate[i] > 0);
    json_t *description = json_deep_copy(machine->description);
    tdm_machine_free(machine);

    /* A description that calibrate wrote comes first, and loads by its path too. */
    char path[512];
    snprintf(path, sizeof(path), "%s/tidemark", home);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/tidemark/machine.json", home);
    json_object_set_new(description, "name", json_string("calibrated"));
    assert_int_equal(json_dump_file(description, path, 0), 0);
    machine = load("local");
    assert_string_equal(machine->name, "calibrated");
    tdm_machine_free(machine);
    machine = load(path);
    assert_string_equal(machine->name, "calibrated");
    tdm_machine_free(machine);

    /* A damaged file is an error, not a reason to guess. */
    struct tdm_error err;
    assert_int_equal(tdm_file_write(path, "{", 1, true, &err), TDM_OK);
    assert_int_equal(tdm_machine_load("local", &machine, &err), TDM_INPUT);
    assert_contains(err.message, "tidemark/machine.json: line 1");
    json_decref(description);
    remove(path);
    *strrchr(path, '/') = '\0';
    remove(path);
    remove(home);
}

/* What NCCL 2.28 took on two H200s by NCCL_MAX_CTAS, in MiB, with the buffers that it has by
 * itself: for a communicator, a ring that joins both, and the first send and receive. */
static void test_nccl_channels(void **state)
{
    (void)state;
    static const struct {
        uint32_t channels;
        uint64_t mib;
    } measured[] = {{1, 452}, {4, 542}, {8, 662}, {16, 902}};
    const struct tdm_nccl_buffers usual = {
        .simple = 4u << 20, .ll = 512u << 10, .ll128 = 120u * 640 * 8 * 8};
    for (size_t i = 0; i < sizeof(measured) / sizeof(measured[0]); i++) {
        const uint32_t channels = measured[i].channels;
        /* the ring is one more connection each way */
        assert_int_equal(tdm_nccl_channel_bytes(&usual, channels, 2) + (UINT64_C(422) << 20),
                         measured[i].mib << 20);
    }
    /* with our buffers, and other ranks; five channels become eight */
    assert_int_equal(tdm_nccl_channel_bytes(&tdm_nccl_buffers, 8, 1), UINT64_C(80) << 20);
    assert_int_equal(tdm_nccl_channel_bytes(&tdm_nccl_buffers, 5, 7), UINT64_C(272) << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_shipped),
        cmocka_unit_test(test_h200_published),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_more_places),
        cmocka_unit_test(test_shared_lanes),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_described_tables),
        cmocka_unit_test(test_host_rates),
        cmocka_unit_test(test_nccl_channels),
        cmocka_unit_test(test_fallback),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_other_names),
        cmocka_unit_test_setup(test_local, make_config_home),
    };
    return cmocka_run_group_tests_name("machines", tests, NULL, NULL);
}
