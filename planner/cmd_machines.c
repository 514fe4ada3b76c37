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
#include <string.h>

static void print_row(const struct tdm_machine *machine)
{
    char device[TDM_FORMAT_SIZE], host[TDM_FORMAT_SIZE];
    printf("%-14s %11s %11s %9.1f %9.1f  %s\n", machine->name,
           tdm_format_bytes(machine->capacity_bytes[TDM_DEVICE], device),
           tdm_format_bytes(machine->capacity_bytes[TDM_HOST], host), machine->peak_flops / 1e12,
           machine->rate[TDM_RATE_H2D] / 1e9, machine->title);
}

/* Does it have this rate of its own, and not by another one that stands for it? */
static bool has_own(const struct tdm_machine *machine, enum tdm_rate rate)
{
    const json_t *rates = json_object_get(machine->description, "rates");
    return rate < TDM_RATES_REQUIRED || json_object_get(rates, tdm_rate_key(rate)) != NULL;
}

static json_t *machine_json(const struct tdm_machine *machine)
{
    static const char *const as_they_are[] = {"base", "provenance", "assumed",
                                              "pinned_bytes_per_second"};
    json_t *rates = json_object();
    for (unsigned i = 0; i < TDM_RATES; i++)
        if (has_own(machine, (enum tdm_rate)i))
            json_object_set_new(rates, tdm_rate_key((enum tdm_rate)i),
                                tdm_rate_json(&machine->table[i]));
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:o}", "name", machine->name,
                  "title", machine->title, "source", machine->source, "device_bytes",
                  (json_int_t)machine->capacity_bytes[TDM_DEVICE], "host_bytes",
                  (json_int_t)machine->capacity_bytes[TDM_HOST], "runtime_device_bytes",
                  (json_int_t)machine->runtime_bytes[TDM_DEVICE], "runtime_host_bytes",
                  (json_int_t)machine->runtime_bytes[TDM_HOST], "peak_flops_per_second",
                  machine->peak_flops, "launch_seconds", machine->launch_seconds, "copy_seconds",
                  machine->copy_seconds, "rates", rates);
    for (size_t i = 0; i < sizeof(as_they_are) / sizeof(as_they_are[0]); i++) {
        json_t *value = json_object_get(machine->description, as_they_are[i]);
        if (value != NULL)
            json_object_set(object, as_they_are[i], value);
    }
    return object;
}

/* A size in few characters: 34G, 4K, 512. They are 1000-based, but keys and tokens. */
static const char *show_size(double size, bool counted, char out[TDM_FORMAT_SIZE])
{
    static const char *const letters[] = {"", "K", "M", "G", "T", "P"};
    double step = counted ? 1024 : 1000;
    unsigned i = 0;
    while (size >= 0.9995 * step && i + 1 < sizeof(letters) / sizeof(letters[0])) {
        size /= step;
        i++;
    }
    snprintf(out, TDM_FORMAT_SIZE, "%.3g%s", size, letters[i]);
    return out;
}

/* Points of a table, in lines of at most 100 characters. */
static void print_points(const struct tdm_rate_table *table, double unit, bool counted)
{
    char size[TDM_FORMAT_SIZE], point[2 * TDM_FORMAT_SIZE];
    int column = 0;
    for (uint32_t i = 0; i < table->count; i++) {
        int length = snprintf(point, sizeof(point), "%s: %.4g",
                              show_size(table->size[i], counted, size), table->rate[i] / unit);
        if (column + length > 80) {
            printf(",\n%-22s", "");
            column = 0;
        } else if (i > 0) {
            printf(", ");
            column += 2;
        }
        printf("%s", point);
        column += length;
    }
    putchar('\n');
}

static void print_rate(const struct tdm_machine *machine, enum tdm_rate rate)
{
    const struct tdm_rate_table *table = &machine->table[rate];
    const char *key = tdm_rate_key(rate), *size = tdm_rate_size_name(rate);
    const char *per_second = strstr(key, "_flops_per_second");
    double unit = per_second != NULL ? 1e12 : 1e9;
    const char *unit_name = per_second != NULL ? "TFLOP/s" : "GB/s";
    if (per_second == NULL)
        per_second = strstr(key, "_bytes_per_second");
    if (tdm_rate_is_share(rate)) {
        unit = 1;
        unit_name = "of that";
    }
    int length = per_second == NULL ? (int)strlen(key) : (int)(per_second - key);
    if (table->count == 1) {
        printf("%-22.*s %.1f %s\n", length, key, table->rate[0] / unit, unit_name);
        return;
    }
    printf("%-22.*s %s, by %s\n%-22s ", length, key, unit_name, size, "");
    print_points(table, unit, strcmp(size, "keys") == 0 || strcmp(size, "tokens") == 0);
}

static void print_texts(const struct tdm_machine *machine, const char *key)
{
    const json_t *texts = json_object_get(machine->description, key);
    for (size_t i = 0; i < json_array_size(texts); i++)
        printf("%-22s %s\n", i == 0 ? key : "", json_string_value(json_array_get(texts, i)));
}

static void print_details(const struct tdm_machine *machine)
{
    char text[TDM_FORMAT_SIZE], runtime[TDM_FORMAT_SIZE];
    const char *name;
    json_t *value;
    printf("%-22s %s\n", machine->name, machine->title);
    printf("%-22s %s\n", "source", machine->source);
    json_object_foreach(json_object_get(machine->description, "provenance"), name, value)
        printf("%-22s %s\n", name, json_string_value(value));
    for (int place = 0; place < TDM_PLACES; place++)
        printf("%-22s %s, of which the runtime takes %s\n", tdm_place_name((enum tdm_place)place),
               tdm_format_bytes(machine->capacity_bytes[place], text),
               tdm_format_bytes(machine->runtime_bytes[place], runtime));
    printf("%-22s %.1f TFLOP/s, dense bf16 (what MFU is counted by)\n", "peak",
           machine->peak_flops / 1e12);
    for (unsigned i = 0; i < TDM_RATES; i++)
        if (has_own(machine, (enum tdm_rate)i))
            print_rate(machine, (enum tdm_rate)i);
    printf("%-22s %s at least\n", "an op", tdm_format_seconds(machine->launch_seconds, text));
    printf("%-22s %s and its bytes\n", "a copy", tdm_format_seconds(machine->copy_seconds, text));
    value = json_object_get(machine->description, "pinned_bytes_per_second");
    if (value != NULL)
        printf("%-22s %.1f GB/s taken\n", "pinned", json_number_value(value) / 1e9);
    print_texts(machine, "assumed");
    print_texts(machine, "notes");
}

static enum tdm_status show_one(const char *name, bool as_json, struct tdm_error *err)
{
    struct tdm_machine *machine;
    enum tdm_status status = tdm_machine_load(name, &machine, err);
    if (status != TDM_OK)
        return status;
    tdm_warn_machine(name, machine);
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
