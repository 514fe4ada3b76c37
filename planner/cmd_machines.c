/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark machines`: the shipped machines, or one with its capacities and rates. */
#include "planner/cmd.h"

#include "base/units.h"
#include "machines/machine.h"
#include "planner/print.h"

#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static void print_row(const struct tdm_machine *machine)
{
    char device[TDM_FORMAT_SIZE], host[TDM_FORMAT_SIZE];
    printf("%-14s %11s %11s %9.1f %9.1f  %s\n", machine->name,
           tdm_format_bytes(machine->capacity_bytes[TDM_DEVICE], device),
           tdm_format_bytes(machine->capacity_bytes[TDM_HOST], host), machine->peak_flops / 1e12,
           machine->rate[TDM_RATE_H2D] / 1e9, machine->title);
}

static json_t *machine_json(const struct tdm_machine *machine)
{
    const double *rate = machine->rate;
    return json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:f,"
                     " s:{s:f, s:f, s:f, s:f, s:f, s:f, s:f}}",
                     "name", machine->name, "title", machine->title, "source", machine->source,
                     "device_bytes", (json_int_t)machine->capacity_bytes[TDM_DEVICE], "host_bytes",
                     (json_int_t)machine->capacity_bytes[TDM_HOST], "runtime_device_bytes",
                     (json_int_t)machine->runtime_bytes[TDM_DEVICE], "runtime_host_bytes",
                     (json_int_t)machine->runtime_bytes[TDM_HOST], "peak_flops_per_second",
                     machine->peak_flops, "launch_seconds", machine->launch_seconds, "copy_seconds",
                     machine->copy_seconds, "rates", "product_flops_per_second",
                     rate[TDM_RATE_PRODUCT], "attention_forward_flops_per_second",
                     rate[TDM_RATE_ATTENTION_FORWARD], "attention_backward_flops_per_second",
                     rate[TDM_RATE_ATTENTION_BACKWARD], "elementwise_bytes_per_second",
                     rate[TDM_RATE_ELEMENTWISE], "h2d_bytes_per_second", rate[TDM_RATE_H2D],
                     "d2h_bytes_per_second", rate[TDM_RATE_D2H], "both_ways_bytes_per_second",
                     rate[TDM_RATE_BOTH_WAYS]);
}

static void print_details(const struct tdm_machine *machine)
{
    static const struct {
        const char *name;
        enum tdm_rate rate;
        double unit;
        const char *unit_name;
    } rates[] = {
        {"products", TDM_RATE_PRODUCT, 1e12, "TFLOP/s"},
        {"attention", TDM_RATE_ATTENTION_FORWARD, 1e12, "TFLOP/s forward"},
        {"", TDM_RATE_ATTENTION_BACKWARD, 1e12, "TFLOP/s backward"},
        {"elementwise", TDM_RATE_ELEMENTWISE, 1e9, "GB/s read and written"},
        {"h2d", TDM_RATE_H2D, 1e9, "GB/s"},
        {"d2h", TDM_RATE_D2H, 1e9, "GB/s"},
        {"both ways", TDM_RATE_BOTH_WAYS, 1e9, "GB/s together"},
    };
    char text[TDM_FORMAT_SIZE], runtime[TDM_FORMAT_SIZE];
    printf("%-12s %s\n", machine->name, machine->title);
    printf("%-12s %s\n", "source", machine->source);
    for (int place = 0; place < TDM_PLACES; place++)
        printf("%-12s %s, of which the runtime takes %s\n", tdm_place_name((enum tdm_place)place),
               tdm_format_bytes(machine->capacity_bytes[place], text),
               tdm_format_bytes(machine->runtime_bytes[place], runtime));
    printf("%-12s %.1f TFLOP/s, dense bf16 (what MFU is counted by)\n", "peak",
           machine->peak_flops / 1e12);
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++)
        printf("%-12s %.1f %s\n", rates[i].name, machine->rate[rates[i].rate] / rates[i].unit,
               rates[i].unit_name);
    printf("%-12s %s at least\n", "an op", tdm_format_seconds(machine->launch_seconds, text));
    printf("%-12s %s and its bytes\n", "a copy", tdm_format_seconds(machine->copy_seconds, text));
    const json_t *notes = json_object_get(machine->description, "notes");
    for (size_t i = 0; i < json_array_size(notes); i++)
        printf("%-12s %s\n", i == 0 ? "notes" : "", json_string_value(json_array_get(notes, i)));
}

static enum tdm_status show_one(const char *name, bool as_json, struct tdm_error *err)
{
    struct tdm_machine *machine;
    enum tdm_status status = tdm_machine_load(name, &machine, err);
    if (status != TDM_OK)
        return status;
    if (as_json)
        status = tdm_print_json(machine_json(machine), err);
    else
        print_details(machine);
    tdm_machine_free(machine);
    return status;
}

static enum tdm_status show_all(bool as_json, struct tdm_error *err)
{
    char **names;
    enum tdm_status status = tdm_machine_names(&names, err);
    if (status != TDM_OK)
        return status;
    json_t *list = json_array();
    if (!as_json)
        printf("%-14s %11s %11s %9s %9s\n", "machine", "device", "host", "TFLOP/s", "h2d GB/s");
    for (size_t i = 0; names[i] != NULL && status == TDM_OK; i++) {
        struct tdm_machine *machine;
        status = tdm_machine_load(names[i], &machine, err);
        if (status != TDM_OK)
            break;
        if (as_json)
            json_array_append_new(list, machine_json(machine));
        else
            print_row(machine);
        tdm_machine_free(machine);
    }
    free(names);
    if (status == TDM_OK && as_json)
        return tdm_print_json(json_pack("{s:o}", "machines", list), err);
    json_decref(list);
    return status;
}

static enum tdm_status run(int argc, char **argv, struct tdm_error *err)
{
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    bool as_json = false;
    opterr = 0;
    optind = 0;
    for (int option; (option = getopt_long(argc, argv, ":h", options, NULL)) != -1;) {
        switch (option) {
        case 'j':
            as_json = true;
            break;
        case 'h':
            tdm_cmd_print_help(&tdm_cmd_machines);
            return TDM_OK;
        default:
            return tdm_cmd_bad_option(&tdm_cmd_machines, argc, argv, option, err);
        }
    }
    if (argc - optind > 1)
        return tdm_fail(err, TDM_USAGE, "machines: takes one machine only");
    return optind < argc ? show_one(argv[optind], as_json, err) : show_all(as_json, err);
}

const struct tdm_command tdm_cmd_machines = {
    .name = "machines",
    .usage = "machines [MACHINE] [--json]",
    .summary = "list the shipped machines, or explain one",
    .help = "  --json  one JSON object on stdout\n"
            "  --help  this text\n"
            "\n"
            "MACHINE is a shipped name, a file that describes one, or local: this computer. Bytes\n"
            "are 1024-based, GB/s and TFLOP/s are 1000-based.\n"
            "\n"
            "Examples:\n"
            "  tidemark machines\n"
            "  tidemark machines h200\n",
    .run = run,
};
