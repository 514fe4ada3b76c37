/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the ranks of a run: divides them among processes, chooses the transport, and compares what
 * must be the same everywhere. All of it before memory is taken. */
#include "executor/run_parts.h"

#include "config.h"
#include "base/digest.h"
#include "base/json.h"
#include "base/size.h"
#include "executor/transports.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what must be the same ---- */

struct facts {
    struct tdm_fact of[TDM_MOST_FACTS];
    uint32_t count;
};

static void add(struct facts *facts, const char *name, const char *text)
{
    if (facts->count == TDM_MOST_FACTS)
        return;
    struct tdm_fact *fact = &facts->of[facts->count++];
    *fact = (struct tdm_fact){0};
    snprintf(fact->name, sizeof(fact->name), "%s", name);
    snprintf(fact->text, sizeof(fact->text), "%s", text);
}

/* The digest of a schedule's settings, however its file is written. */
static enum tdm_status digest_schedule(const struct tdm_schedule *schedule,
                                       char out[TDM_DIGEST_SIZE], struct tdm_error *err)
{
    json_t *json;
    enum tdm_status status = tdm_schedule_to_json(schedule, NULL, &json, err);
    if (status != TDM_OK)
        return status;
    char *text = tdm_json_canonical(json);
    json_decref(json);
    if (text == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for the schedule's JSON");
    tdm_digest_text(text, out);
    free(text);
    return TDM_OK;
}

/* The digest of all schedules of a run, and their sizes. */
static enum tdm_status add_schedules(const struct tdm_run *run, struct facts *facts,
                                     struct tdm_error *err)
{
    uint64_t ops = 0, bytes = 0, digest = 0;
    char text[TDM_FACT_TEXT];
    for (uint32_t i = 0; i < run->program_count; i++) {
        char one[TDM_DIGEST_SIZE + 16];
        enum tdm_status status = digest_schedule(run->programs[i]->schedule, one, err);
        if (status != TDM_OK)
            return status;
        snprintf(one + strlen(one), 16, "%08x", (unsigned)digest);
        digest = tdm_digest_bytes(one, strlen(one));
        ops += run->programs[i]->op_count;
        for (uint32_t place = 0; place < TDM_MAX_PLACES; place++)
            bytes += run->programs[i]->arena_bytes[place];
    }
    snprintf(text, sizeof(text), "digest %016llx", (unsigned long long)digest);
    add(facts, "schedule", text);
    snprintf(text, sizeof(text), "%llu ops in %llu bytes", (unsigned long long)ops,
             (unsigned long long)bytes);
    add(facts, "program", text);
    return TDM_OK;
}

/* Of one or more texts. */
static void add_tokens(struct tdm_tokens *const *texts, uint32_t text_count, const char *name,
                       struct facts *facts)
{
    struct tdm_checksum sum = {0};
    char text[TDM_FACT_TEXT];
    uint64_t count = 0;
    if (text_count == 0)
        return;
    for (uint32_t t = 0; t < text_count; t++) {
        const uint64_t tokens = tdm_tokens_count(texts[t]);
        for (uint64_t i = 0; i < tokens; i++) {
            const uint32_t token = tdm_tokens_at(texts[t], i);
            tdm_checksum_add(&sum, &token, sizeof(token));
        }
        tdm_checksum_add(&sum, &tokens, sizeof(tokens));
        count += tokens;
    }
    snprintf(text, sizeof(text), "%llu tokens with checksum %016llx", (unsigned long long)count,
             (unsigned long long)tdm_checksum_value(&sum));
    add(facts, name, text);
}

static enum tdm_status add_card(const struct tdm_backend *backend, struct facts *facts,
                                struct tdm_error *err)
{
    struct tdm_card card = {.name = ""};
    enum tdm_status status = backend->card == NULL ? TDM_OK : backend->card(&card, err);
    if (backend->card != NULL)
        add(facts, "card", card.name);
    return status;
}

/* What the command line says about the numbers. */
static void add_options(const struct tdm_run *run, struct facts *facts)
{
    const struct tdm_run_options *options = run->options;
    char text[TDM_FACT_TEXT];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)options->steps);
    add(facts, "number of steps", text);
    snprintf(text, sizeof(text), "%llu", (unsigned long long)run->weights.seed);
    add(facts, "seed", text);
    snprintf(text, sizeof(text), "%s, %s%s, every %llu, %llu",
             options->save_path == NULL ? "no" : "yes",
             options->saves_within ? "within steps, " : "",
             options->gradients_path == NULL ? "no" : "yes",
             (unsigned long long)options->save_every, (unsigned long long)options->shard_bytes);
    add(facts, "way to save", text);
    snprintf(text, sizeof(text), "every %llu, %llu windows",
             (unsigned long long)options->evaluate_every,
             (unsigned long long)options->evaluate_windows);
    add(facts, "way to evaluate", text);
    const struct tdm_checkpoint *resumed = run->weights.resumed;
    snprintf(text, sizeof(text), "%s%.32s", resumed == NULL ? "none" : "digest ",
             resumed == NULL ? "" : json_string_value(json_object_get(resumed->note, "digest")));
    add(facts, "checkpoint to go on from", text);
}

static enum tdm_status compare(const struct tdm_run *run, struct tdm_error *err)
{
    const struct tdm_run_options *options = run->options;
    struct facts facts = {.count = 0};
    add(&facts, "version of tidemark", PACKAGE_VERSION);
    add(&facts, "backend", options->backend->name);
    add(&facts, "transport", run->team.transport->name);
    add_options(run, &facts);
    enum tdm_status status = add_schedules(run, &facts, err);
    if (status == TDM_OK)
        status = add_card(options->backend, &facts, err);
    add_tokens(&run->tokens, 1, "text", &facts);
    add_tokens(run->texts, options->evaluate_path == NULL ? 0 : options->text_count,
               "text to evaluate on", &facts);
    return status == TDM_OK ? tdm_processes_compare(options->processes, run->programs[0]->ranks,
                                                    facts.of, facts.count, err)
                            : status;
}

/* ---- who has which ranks ---- */

static enum tdm_status divide(const struct tdm_run_options *options,
                              const struct tdm_schedule *schedule, struct tdm_error *err)
{
    const uint32_t ranks = schedule->ranks;
    const uint32_t processes = tdm_processes_count(options->processes);
    if (ranks % processes != 0) {
        tdm_fail(err, TDM_INPUT, "%u ranks cannot be divided among %u processes", ranks, processes);
        return tdm_hint(err, "mpirun -n N with an N that divides the ranks of the schedule");
    }
    const uint32_t here = tdm_processes_ranks(options->processes, ranks);
    /* what NCCL takes on a GPU follows from the ranks of its node; elsewhere processes need not be
     * nodes */
    if (schedule->ranks_per_node > 0 && here > schedule->ranks_per_node && processes > 1 &&
        options->backend->own_device_memory) {
        tdm_fail(err, TDM_INPUT,
                 "%u ranks in each of %u processes, but the schedule has %u in a node, and what "
                 "NCCL takes on a GPU was planned for that",
                 here, processes, schedule->ranks_per_node);
        return tdm_hint(err, "mpirun -n %u, or plan with --ranks-per-node %u",
                        ranks / schedule->ranks_per_node, here);
    }
    if (options->devices == NULL || options->device_count == here)
        return TDM_OK;
    return tdm_fail(err, TDM_USAGE, "--devices names %u device%s for %u rank%s%s",
                    options->device_count, options->device_count == 1 ? "" : "s", here,
                    here == 1 ? "" : "s", processes > 1 ? " of a process" : "");
}

/* NCCL refuses ranks that share a device, after it has begun to join them. */
static enum tdm_status check_nccl_devices(const struct tdm_run_options *options,
                                          struct tdm_error *err)
{
    for (uint32_t i = 0; options->devices != NULL && i < options->device_count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (options->devices[i] == options->devices[j]) {
                tdm_fail(err, TDM_USAGE,
                         "--devices: two ranks have device %u, and NCCL joins "
                         "different devices only",
                         options->devices[i]);
                return tdm_hint(err, "ranks of one process share a device with --transport shared");
            }
    return TDM_OK;
}

/* NCCL takes its memory by channels: it must not use more than were planned. */
static void limit_channels(const struct tdm_run *run)
{
    char text[16];
    uint32_t channels = 0;
    for (uint32_t i = 0; i < run->program_count; i++)
        channels =
            (uint32_t)tdm_most(channels, run->programs[i]->schedule->machine->joined_channels);
    snprintf(text, sizeof(text), "%u", channels);
    if (channels > 0)
        setenv("NCCL_MAX_CTAS", text, 1);
}

enum tdm_status tdm_run_join(struct tdm_run *run, struct tdm_error *err)
{
    const struct tdm_run_options *options = run->options;
    enum tdm_status status = divide(options, run->programs[0]->schedule, err);
    run->team = (struct tdm_team_options){.processes = options->processes,
                                          .late_seconds = options->late_seconds};
    if (status == TDM_OK)
        status = tdm_transport_choose(
            options->transport, options->backend, run->programs[0]->schedule,
            tdm_processes_count(options->processes), &run->team.transport, err);
    if (status == TDM_OK && run->team.transport == &tdm_transport_nccl) {
        status = check_nccl_devices(options, err);
        limit_channels(run);
    }
    return status == TDM_OK && options->processes != NULL ? compare(run, err) : status;
}
