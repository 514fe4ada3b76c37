/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark machines`: lists the shipped machines, or shows the capacities and rates of one. */
#include "commands/cmd.h"

#include "base/json.h"
#include "base/units.h"
#include "machines/machine.h"
#include "machines/machine_table.h"
#include "commands/answers.h"
#include "commands/common_options.h"
#include "commands/print.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static void print_row(const struct tdm_machine *machine)
{
    char device[TDM_FORMAT_SIZE], host[TDM_FORMAT_SIZE];
    printf("%-14s %11s %11s %9.1f %9.1f  %s\n", machine->name,
           tdm_format_bytes(machine->topology.places[TDM_DEVICE].capacity_bytes, device),
           tdm_format_bytes(tdm_machine_far(machine)->capacity_bytes, host),
           machine->peak_flops / 1e12, tdm_machine_link_rate(machine, TDM_LINK_H2D) / 1e9,
           machine->title);
}

static enum tdm_status show_one(const char *name, bool as_json, struct tdm_error *err)
{
    struct tdm_machine *machine;
    enum tdm_status status = tdm_machine_load(name, &machine, err);
    if (status != TDM_OK)
        return status;
    tdm_warn_machine(name, machine);
    if (as_json)
        status = tdm_print_json(tdm_machine_json(machine), err);
    else
        tdm_machine_table(stdout, machine);
    tdm_machine_free(machine);
    return status;
}

/* Calls `each` with all shipped machines. */
static enum tdm_status visit_all(void (*each)(const struct tdm_machine *machine, void *self),
                                 void *self, struct tdm_error *err)
{
    char **names;
    enum tdm_status status = tdm_machine_names(&names, err);
    if (status != TDM_OK)
        return status;
    for (size_t i = 0; names[i] != NULL && status == TDM_OK; i++) {
        struct tdm_machine *machine;
        status = tdm_machine_load(names[i], &machine, err);
        if (status == TDM_OK) {
            each(machine, self);
            tdm_machine_free(machine);
        }
    }
    free(names);
    return status;
}

static void add_machine(const struct tdm_machine *machine, void *self)
{
    tdm_json_add(self, tdm_machine_json(machine));
}

static void show_row(const struct tdm_machine *machine, void *self)
{
    (void)self;
    print_row(machine);
}

static enum tdm_status show_all(struct tdm_error *err)
{
    printf("%-14s %11s %11s %9s %9s\n", "machine", "device", "host", "TFLOP/s", "h2d GB/s");
    return visit_all(show_row, NULL, err);
}

enum tdm_status tdm_machines_answer(const char *name, json_t **answer, struct tdm_error *err)
{
    struct tdm_machine *machine;
    enum tdm_status status;
    if (name != NULL) {
        status = tdm_machine_load(name, &machine, err);
        if (status == TDM_OK) {
            *answer = tdm_machine_json(machine);
            tdm_machine_free(machine);
        }
        return status;
    }
    json_t *list = json_array();
    status = visit_all(add_machine, &list, err);
    if (status == TDM_OK)
        *answer = json_pack("{s:o}", "machines", list);
    else
        json_decref(list);
    return status;
}

static const struct tdm_option options[] = {{.as = &tdm_option_json}, {.name = NULL}};

static enum tdm_status run(int argc, char **argv, struct tdm_error *err)
{
    bool as_json = false, help;
    int first;
    enum tdm_status status =
        tdm_options_read(&tdm_cmd_machines, argc, argv, &as_json, &first, &help, err);
    if (status != TDM_OK || help)
        return status;
    if (argc - first > 1)
        return tdm_fail(err, TDM_USAGE, "machines: takes one machine only");
    json_t *answer;
    if (first < argc)
        return show_one(argv[first], as_json, err);
    if (!as_json)
        return show_all(err);
    status = tdm_machines_answer(NULL, &answer, err);
    return status == TDM_OK ? tdm_print_json(answer, err) : status;
}

const struct tdm_command tdm_cmd_machines = {
    .name = "machines",
    .usage = "machines [MACHINE] [--json]",
    .summary = "list the shipped machines, or explain one",
    .options = options,
    .notes = "MACHINE is a shipped name, also as H100 or 4090, a file that describes one, or "
             "local: this computer. Bytes are 1024-based, GB/s and TFLOP/s are 1000-based.\n"
             "\n"
             "Examples:\n"
             "  tidemark machines\n"
             "  tidemark machines h200\n",
    .arguments = TDM_VALUES_MACHINES,
    .run = run,
};
