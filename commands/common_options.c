/* SPDX-License-Identifier: Apache-2.0 */
/* Options that several commands have. */
#include "commands/common_options.h"

#include "base/units.h"
#include "planner/margin.h"
#include "schedule/schedule.h"
#include "schedule/training_settings.h"

#include <getopt.h>
#include <string.h>

static enum tdm_status read_memory(const char *text, void *value, struct tdm_error *err)
{
    struct tdm_said_memory *said = value;
    said->has_device = true;
    return tdm_parse_bytes(text, "--memory", &said->device_bytes, err);
}

static enum tdm_status read_host_memory(const char *text, void *value, struct tdm_error *err)
{
    struct tdm_said_memory *said = value;
    said->has_host = true;
    return tdm_host_memory_parse(text, &said->host_bytes, err);
}

static enum tdm_status read_margin(const char *text, void *value, struct tdm_error *err)
{
    return tdm_margin_parse(text, value, err);
}

const struct tdm_option tdm_option_context = {.name = "context",
                                              .word = "N",
                                              .help = "tokens of each sequence: 4096, 256K, 1M",
                                              .type = TDM_OPTION_TOKENS,
                                              .high = TDM_LONGEST_CONTEXT};

const struct tdm_option tdm_option_machine = {
    .name = "machine",
    .word = "MACHINE",
    .help = "a shipped name (tidemark machines), a file that describes one, or local, which "
            "calibrate measured; h200 by default",
    .values = TDM_VALUES_MACHINES};

const struct tdm_option tdm_option_memory = {
    .name = "memory",
    .word = "SIZE",
    .help =
        "memory of the device, for a card that is not listed; all else is as the machine has it",
    .type = TDM_OPTION_BYTES,
    .read = read_memory};

const struct tdm_option tdm_option_host_memory = {
    .name = "host-memory",
    .word = "SIZE",
    .help = "host memory of a computer, which its GPUs share, up to 8 or gpus_per_node of them; by "
            "default what a server of such cards has",
    .type = TDM_OPTION_BYTES,
    .read = read_host_memory};

const struct tdm_option tdm_option_margin = {
    .name = "margin",
    .word = "SHARE",
    .help = "memory of the device that must be left over, as 3% or 0.03; 3% by default",
    .read = read_margin};

const struct tdm_option tdm_option_batch = {.name = "batch",
                                            .word = "N",
                                            .help = "sequences in a step; 1 by default",
                                            .type = TDM_OPTION_COUNT,
                                            .low = 1};

const struct tdm_option tdm_option_gpus = {.name = "gpus",
                                           .word = "N",
                                           .help = "GPUs; 1 by default",
                                           .type = TDM_OPTION_COUNT,
                                           .low = 1,
                                           .high = 65536};

const struct tdm_option tdm_option_method = {
    .name = "method", .word = "NAME", .values = TDM_VALUES_METHODS};

const struct tdm_option tdm_option_set = {.name = "set", .word = "KEY=VALUE", .repeats = true};

const struct tdm_option tdm_option_backend = {.name = "backend", .word = "NAME"};

const struct tdm_option tdm_option_step = {
    .name = "step", .word = "N", .type = TDM_OPTION_COUNT, .high = INT64_MAX};

const struct tdm_option tdm_option_rank = {
    .name = "rank", .word = "R", .type = TDM_OPTION_COUNT, .high = TDM_MAX_RANKS - 1};

const struct tdm_option tdm_option_output = {
    .name = "output", .letter = 'o', .word = "FILE", .values = TDM_VALUES_FILES};

const struct tdm_option tdm_option_force = {
    .name = "force", .help = "overwrite FILE", .type = TDM_OPTION_FLAG};

const struct tdm_option tdm_option_json = {
    .name = "json", .help = "one JSON object on stdout", .type = TDM_OPTION_FLAG};

void tdm_training_explain(const char *command, int argc, char **argv, struct tdm_error *err)
{
    const char *option = optind >= 1 && optind <= argc ? argv[optind - 1] : "";
    const char *next = optind < argc ? argv[optind] : "VALUE";
    if (strncmp(option, "--", 2) != 0)
        return;
    const size_t length = strcspn(option + 2, "=");
    const enum tdm_training_setting meant = tdm_training_setting_meant(option + 2, length);
    if (length == 0 || meant == TDM_TRAINING_SETTINGS)
        return;
    tdm_fail(err, TDM_USAGE, "%s: \"%.*s\" is a setting of training: give it with --set", command,
             (int)length + 2, option);
    tdm_hint(err, "--set %s=%.64s", tdm_training_setting_key(meant),
             option[2 + length] == '=' ? option + 3 + length : next);
}
