/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `tidemark plan`: their table, and the checks of their combinations. */
#include "commands/plan_arguments.h"

#include "base/file.h"
#include "base/inputs.h"
#include "commands/cmd.h"
#include "commands/common_options.h"
#include "commands/model_inputs.h"
#include "machines/nccl.h"
#include "schedule/optimizer.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- values with a custom parser ---- */

static enum tdm_status read_memory(const char *text, void *value, struct tdm_error *err)
{
    struct tdm_plan_arguments *a = value;
    a->request.has_memory = true;
    return tdm_parse_bytes(text, "--memory", &a->request.memory_bytes, err);
}

static enum tdm_status read_host_memory(const char *text, void *value, struct tdm_error *err)
{
    struct tdm_plan_arguments *a = value;
    a->request.has_host_memory = true;
    return tdm_host_memory_parse(text, &a->request.host_memory_bytes, err);
}

static enum tdm_status read_margin(const char *text, void *value, struct tdm_error *err)
{
    struct tdm_plan_arguments *a = value;
    a->has_margin = true;
    return tdm_margin_parse(text, &a->request.margin, err);
}

/* Remembers the first given option that --like also sets. */
static void note_state_option(struct tdm_plan_arguments *a, const char *option)
{
    if (a->state_option == NULL)
        a->state_option = option;
}

static enum tdm_status read_optimizer(const char *text, void *value, struct tdm_error *err)
{
    struct tdm_plan_arguments *a = value;
    note_state_option(a, "--optimizer");
    if (tdm_optimizer_parse(text, &a->request.optimizer))
        return TDM_OK;
    return tdm_fail(err, TDM_USAGE, "--optimizer: \"%s\" is not known; expected %s", text,
                    TDM_OPTIMIZER_NAMES);
}

static enum tdm_status read_clip(const char *text, void *value, struct tdm_error *err)
{
    struct tdm_plan_arguments *a = value;
    note_state_option(a, "--clip");
    if (tdm_clip_parse(text, &a->request.clip))
        return TDM_OK;
    return tdm_fail(err, TDM_USAGE, "--clip: \"%s\" is not known; it must be %s", text,
                    TDM_CLIP_NAMES);
}

static enum tdm_status read_pass(const char *text, void *value, struct tdm_error *err)
{
    return tdm_purpose_parse(text, value)
               ? TDM_OK
               : tdm_fail(err, TDM_USAGE, "--pass: \"%s\" is not known; use train or evaluate",
                          text);
}

static enum tdm_status read_ranks(const char *text, void *value, struct tdm_error *err)
{
    uint64_t ranks;
    enum tdm_status status = tdm_parse_count(text, "--ranks", 1, TDM_MAX_RANKS, &ranks, err);
    if (status == TDM_OK)
        *(uint32_t *)value = (uint32_t)ranks;
    return status;
}

static enum tdm_status read_ranks_per_node(const char *text, void *value, struct tdm_error *err)
{
    uint64_t ranks;
    enum tdm_status status =
        tdm_parse_count(text, "--ranks-per-node", 1, TDM_MAX_RANKS, &ranks, err);
    if (status == TDM_OK)
        *(uint32_t *)value = (uint32_t)ranks;
    return status;
}

/* "shared", "nccl" or "nccl:CHANNELS". */
static enum tdm_status read_transport(const char *text, void *value, struct tdm_error *err)
{
    struct tdm_request *r = value;
    uint64_t channels = 0;
    const bool counted = strncmp(text, "nccl:", 5) == 0;
    if (!counted && strcmp(text, "nccl") != 0 && strcmp(text, "shared") != 0)
        return tdm_fail(err, TDM_USAGE,
                        "--transport: \"%s\" is not known; use shared, nccl or nccl:CHANNELS",
                        text);
    enum tdm_status status = counted ? tdm_parse_count(text + 5, "--transport nccl:CHANNELS", 1,
                                                       TDM_NCCL_MOST_CHANNELS, &channels, err)
                                     : TDM_OK;
    r->joined = strcmp(text, "shared") == 0 ? TDM_JOINED_SHARED : TDM_JOINED_NCCL;
    r->channels = (uint32_t)channels;
    return status;
}

/* Parses "dense", "auto" or a number of tokens. */
static enum tdm_status read_budget(const char *text, void *value, struct tdm_error *err)
{
    struct tdm_request *r = value;
    r->budget = strcmp(text, "dense") == 0  ? TDM_BUDGET_DENSE
                : strcmp(text, "auto") == 0 ? TDM_BUDGET_AUTO
                                            : TDM_BUDGET_TOKENS;
    return r->budget == TDM_BUDGET_TOKENS && strcmp(text, "0") != 0
               ? tdm_parse_tokens(text, "--budget", &r->budget_tokens, err)
               : TDM_OK;
}

static enum tdm_status read_objective(const char *text, void *value, struct tdm_error *err)
{
    return tdm_objective_parse(text, value)
               ? TDM_OK
               : tdm_fail(err, TDM_USAGE, "--objective: \"%s\" is not known; expected %s", text,
                          TDM_OBJECTIVE_NAMES);
}

static enum tdm_status read_step_time(const char *text, void *value, struct tdm_error *err)
{
    char *end;
    double *seconds = value;
    errno = 0;
    *seconds = strtod(text, &end);
    if (end != text && *end == '\0' && errno == 0 && isfinite(*seconds) && *seconds > 0 &&
        strpbrk(text, "xX ") == NULL)
        return TDM_OK;
    return tdm_fail(err, TDM_USAGE, "--step-time: \"%s\" is not a number of seconds above 0", text);
}

static enum tdm_status read_sweep(const char *text, void *value, struct tdm_error *err)
{
    struct tdm_plan_arguments *a = value;
    if (a->lines.count > 0)
        return tdm_fail(err, TDM_USAGE, "--sweep: \"%s\" is the third; give at most two", text);
    struct tdm_sweep *sweep = a->sweeps ? &a->lines : &a->sweep;
    a->sweeps = true;
    return tdm_sweep_parse(text, sweep, err);
}

static enum tdm_status read_preset(const char *text, void *value, struct tdm_error *err)
{
    return tdm_preset_find(text, value, err);
}

static const char *nth_preset(size_t index)
{
    return tdm_presets()[index].name;
}

static enum tdm_status read_pair(const char *text, void *value, struct tdm_error *err)
{
    struct tdm_request *r = value;
    if (r->pair_count == TDM_MOST_PAIRS)
        return tdm_fail(err, TDM_USAGE, "--set is given more than %u times", TDM_MOST_PAIRS);
    r->pairs[r->pair_count++] = text;
    return TDM_OK;
}

static const char *nth_heuristic(size_t index)
{
    return index < TDM_HEURISTICS ? tdm_heuristic_name((enum tdm_heuristic)index) : NULL;
}

static enum tdm_status read_heuristic(const char *text, void *value, struct tdm_error *err)
{
    unsigned *without = value;
    for (int i = 0; i < TDM_HEURISTICS; i++)
        if (strcmp(text, tdm_heuristic_name((enum tdm_heuristic)i)) == 0) {
            *without |= 1u << i;
            return TDM_OK;
        }
    return tdm_fail(
        err, TDM_USAGE,
        "--without: \"%s\" is not known; expected enumeration, rounding, structure, fine or polish",
        text);
}

/* ---- the table ---- */

#define PLACE(field) offsetof(struct tdm_plan_arguments, field)

const struct tdm_option tdm_plan_options[] = {
    {.as = &tdm_option_context, .place = PLACE(request.context)},
    {.as = &tdm_option_machine,
     .place = PLACE(request.machine),
     .details = "h200 has the rates that calibrate measured of tidemark's own kernels, "
                "h200-published those of published kernels. Of a machine whose rates calibrate did "
                "not measure the output says so, and where they are from (JSON: rates_measured, "
                "rates_source)."},
    {.as = &tdm_option_memory,
     .read = read_memory,
     .help = "device memory that may be used, driver and libraries included; all that the machine "
             "has, less the margin, by default"},
    {.as = &tdm_option_margin,
     .read = read_margin,
     .help = "memory of the device that must be left over, unless --memory says how much may be "
             "used: as 3% or 0.03; 3% by default, 0 for none"},
    {.as = &tdm_option_host_memory,
     .read = read_host_memory,
     .help = "host memory that may be used, driver and libraries included; 0: no more than they "
             "take; what the machine's description says to plan on by default"},
    {.as = &tdm_option_batch,
     .formerly = "sequences",
     .place = PLACE(request.sequences),
     .high = TDM_MOST_SEQUENCES,
     .details = "Their gradients are added up, as the mean over all tokens of the step."},
    {.name = "ranks",
     .word = "R",
     .place = PLACE(request.ranks),
     .read = read_ranks,
     .help = "plan for R devices, each with the memory of --memory, which share the step, and the "
             "host's memory of their computer; 1 by default",
     .details =
         "Each rank has its part of every sequence's chunks and of the state of all weights. K and "
         "V of a layer are gathered from all ranks, or ranks divide the heads; the gradients are "
         "summed over them. Order is layer-major."},
    {.name = "ranks-per-node",
     .word = "P",
     .place = PLACE(request.ranks_per_node),
     .read = read_ranks_per_node,
     .help = "ranks in a computer (a node), which share its --host-memory; all by default",
     .details = "Between nodes ranks are as far apart as the network makes them, and GPUs are "
                "joined by NCCL."},
    {.name = "transport",
     .word = "NAME",
     .place = PLACE(request),
     .read = read_transport,
     .help = "how GPUs are joined: shared (default in a node): each reads the memory of the "
             "others; nccl or nccl:CHANNELS (8): by NCCL, whose memory is then planned too",
     .values = TDM_VALUES_NAMES,
     .names = "shared or nccl"},
    {.name = "optimizer",
     .word = "KIND",
     .read = read_optimizer,
     .help = "adamw (default), adamw-bf16-moments, adamw-bf16, sgd, or none: gradients only",
     .details =
         "adamw-bf16-moments has its moments in bf16. adamw-bf16 has that too and no master: "
         "weights are rounded stochastically. sgd has no moments, and no master unless "
         "dtypes.master asks for one.",
     .values = TDM_VALUES_NAMES,
     .names = TDM_OPTIMIZER_NAMES},
    {.name = "pass",
     .word = "PASS",
     .place = PLACE(request.pass),
     .read = read_pass,
     .help = "train (default); evaluate: forward to the loss, to run among steps that train, with "
             "the same optimizer and dtypes of state (run --evaluate)",
     .values = TDM_VALUES_NAMES,
     .names = "train or evaluate"},
    {.name = "like",
     .word = "FILE",
     .place = PLACE(request.like_path),
     .help = "with --pass evaluate: fit the schedule FILE that trains. All that both must have in "
             "common is taken from it; MODEL may then be left out, and machine, memory, context, "
             "dtypes and attention are as there if nothing else is asked for",
     .details =
         "In common are the model, the optimizer, and dtypes and homes of weights, master and "
         "moments.",
     .values = TDM_VALUES_FILES},
    {.name = "snapshot",
     .type = TDM_OPTION_FLAG,
     .place = PLACE(request.snapshot),
     .help = "leave host memory for a copy of weights, masters and moments, from which run "
             "--save-every writes a checkpoint while the next step computes; else between steps"},
    {.name = "clip",
     .word = "WHAT",
     .read = read_clip,
     .help =
         "scale gradients down to a norm of optimizer.clip_norm: layer (each layer's by itself, "
         "embedding and head too), global (all by the norm of all, so optimizer.when=end) or "
         "none (default)",
     .details = "The gradient norm that a run reports is the one before clipping.",
     .values = TDM_VALUES_NAMES,
     .names = TDM_CLIP_NAMES},
    {.name = "budget",
     .word = "WHAT",
     .place = PLACE(request),
     .read = read_budget,
     .help = "sparse attention: tokens that the queries of a page retrieve by page-level top-k "
             "beside their own chunk (of 4K tokens, if --set says nothing else), a multiple of a "
             "page; as many as the context or more are dense. auto: the largest with which a step "
             "takes at most --step-time, to within one part in 64; dense (default): all",
     .details = "It is of layers to which the model gives no window. Each query of the page scores "
                "the means of the keys of the pages before its chunk, a softmax over these is its "
                "vote, and the pages with most votes of the page's queries and of the query heads "
                "of a KV head are read, by the backward too. Chunks are then a part of what is "
                "computed, and not searched.",
     .values = TDM_VALUES_NAMES,
     .names = "dense or auto"},
    {.name = "objective",
     .word = "WHAT",
     .place = PLACE(objective),
     .read = read_objective,
     .help = "time (default): the fastest step; context: the longest context that fits, without "
             "--context; memory: the least device memory that is enough, within the limit on host "
             "memory",
     .values = TDM_VALUES_NAMES,
     .names = TDM_OBJECTIVE_NAMES},
    {.name = "step-time",
     .word = "S",
     .place = PLACE(step_seconds),
     .read = read_step_time,
     .help = "the longest context, the least memory, or with --budget auto the largest budget, of "
             "which a step takes at most S seconds"},
    {.name = "sweep",
     .word = "AXIS=VALUES",
     .read = read_sweep,
     .repeats = true,
     .help = "plan at many values, one row each, and with -o FILE.png (.svg, .pdf) draw step time, "
             "MFU and peaks, and where each nest takes over; AXIS is context, memory or "
             "host-memory, VALUES are FROM..TO (contexts double, memory has 13 points), FROM..TO:N "
             "points, or a list A,B,C; a second --sweep plans the first for each of its values",
     .details =
         "A row has order, groups, chunk, what is kept and held where, step time, tokens/s, "
         "MFU, and peaks; of a point that does not fit, what is short. The picture, which "
         "needs gnuplot, has a band for every nest where it is the fastest; of two sweeps it has "
         "a line for each value of the second. Dashed is the bound. Ctrl-C ends it "
         "after the point it is at, and prints those before."},
    {.name = "preset",
     .word = "NAME",
     .place = PLACE(request.preset),
     .read = read_preset,
     .help = "fix the knobs that another system fixes (below)",
     .details = "All else is chosen as well as it can be, and --set may change any of them.",
     .values = TDM_VALUES_NAMES,
     .nth_name = nth_preset},
    {.name = "explain",
     .type = TDM_OPTION_FLAG,
     .place = PLACE(explain),
     .help =
         "what binds: by how much a GiB, a second of computing or a GB/s more lowers the bound, "
         "and what is on the host at its peak"},
    {.name = "write-lp",
     .word = "FILE",
     .place = PLACE(request.program_path),
     .help = "write the linear program of the bound in CPLEX LP format, with its groups (the "
             "bound is at most its optimum); --force: over an older one",
     .values = TDM_VALUES_FILES},
    {.name = "effort",
     .word = "N",
     .type = TDM_OPTION_COUNT,
     .place = PLACE(request.effort),
     .low = 1,
     .high = TDM_MOST_EFFORT,
     .help = "1 (default): one search, about a second; 2: also searches with less device memory, "
             "so that more of it never gives a slower plan; minutes"},
    {.name = "without",
     .word = "HEURISTIC",
     .place = PLACE(request.without),
     .read = read_heuristic,
     .repeats = true,
     .help = "plan without enumeration, rounding, structure, fine or polish, to see what it gains; "
             "may be repeated",
     .details =
         "enumeration is of recipes; rounding is of the linear program's solution; structure "
         "and fine are two local searches of what it gives; with polish the neighbours of the "
         "best schedules of a small step are simulated.",
     .values = TDM_VALUES_NAMES,
     .nth_name = nth_heuristic},
    {.as = &tdm_option_set,
     .place = PLACE(request),
     .read = read_pair,
     .help = "fix a knob instead of searching it (below); may be repeated, a key only once"},
    {.as = &tdm_option_output,
     .place = PLACE(output),
     .help = "write the schedule as JSON; - is stdout; of a sweep, the picture"},
    {.as = &tdm_option_force, .place = PLACE(force)},
    {.as = &tdm_option_json,
     .place = PLACE(json),
     .help = "one JSON object on stdout, also when nothing fits"},
    {.name = NULL}};

/* ---- checks of combinations ---- */

static bool sweeps_over(const struct tdm_plan_arguments *a, enum tdm_sweep_axis axis)
{
    return a->sweeps && (a->sweep.axis == axis || (a->lines.count > 0 && a->lines.axis == axis));
}

static enum tdm_status check_sweep(const struct tdm_plan_arguments *a, struct tdm_error *err)
{
    const bool given[TDM_SWEEP_AXES] = {a->request.context != 0, a->request.has_memory,
                                        a->request.has_host_memory};
    if (a->objective != TDM_OBJECTIVE_TIME)
        return tdm_fail(err, TDM_USAGE, "plan: --sweep goes with --objective time alone");
    for (int axis = 0; axis < TDM_SWEEP_AXES; axis++) {
        const char *name = tdm_sweep_axis_name((enum tdm_sweep_axis)axis);
        if (given[axis] && sweeps_over(a, (enum tdm_sweep_axis)axis))
            return tdm_fail(err, TDM_USAGE, "plan: --sweep %s and --%s are about the same", name,
                            name);
    }
    if (a->lines.count > 0 && a->lines.axis == a->sweep.axis)
        return tdm_fail(err, TDM_USAGE, "plan: both --sweep are over %s",
                        tdm_sweep_axis_name(a->sweep.axis));
    if (a->lines.count > TDM_FRONTIER_MOST)
        return tdm_fail(err, TDM_USAGE,
                        "plan: the second --sweep has %zu values; at most %u are drawn",
                        a->lines.count, TDM_FRONTIER_MOST);
    if (a->output != NULL && strcmp(a->output, "-") == 0)
        return tdm_fail(err, TDM_USAGE, "plan: a sweep's picture cannot be written to stdout");
    return TDM_OK;
}

static enum tdm_status check_program(const struct tdm_plan_arguments *a, struct tdm_error *err)
{
    const char *path = a->request.program_path;
    if (a->sweeps && (path != NULL || a->explain))
        return tdm_fail(err, TDM_USAGE, "plan: --%s is about one plan, and --sweep makes many",
                        path != NULL ? "write-lp" : "explain");
    if (path == NULL)
        return TDM_OK;
    if (a->request.pass == TDM_EVALUATE)
        return tdm_fail(err, TDM_USAGE,
                        "plan: --write-lp: an evaluation has no linear program; all its schedules "
                        "are looked at");
    if (strcmp(path, "-") == 0)
        return tdm_fail(err, TDM_USAGE, "plan: --write-lp writes a file, not stdout");
    if (a->output != NULL && tdm_path_within(path, a->output))
        return tdm_fail(err, TDM_USAGE, "plan: -o and --write-lp name the same file");
    return tdm_file_check(path, a->force, err);
}

/* Reads the training schedule, if one is given. */
static enum tdm_status read_like(struct tdm_plan_arguments *a, struct tdm_error *err)
{
    struct tdm_request *r = &a->request;
    if (r->like_path == NULL)
        return TDM_OK;
    if (r->pass != TDM_EVALUATE)
        return tdm_fail(err, TDM_USAGE, "plan: --like goes with --pass evaluate");
    if (a->sweeps || a->objective != TDM_OBJECTIVE_TIME || r->budget == TDM_BUDGET_AUTO)
        return tdm_fail(err, TDM_USAGE,
                        "plan: --like goes with neither --sweep nor --objective nor --budget auto");
    if (a->state_option != NULL)
        return tdm_fail(err, TDM_USAGE, "plan: %s: the optimizer is that of --like %s",
                        a->state_option, r->like_path);
    enum tdm_status status = tdm_schedule_load(r->like_path, &a->training, err);
    if (status != TDM_OK)
        return status;
    if (a->training->pass != TDM_TRAIN)
        return tdm_fail(err, TDM_USAGE, "plan: --like %s: is a schedule that evaluates",
                        r->like_path);
    r->like = a->training;
    if (r->ranks != 0 && r->ranks != a->training->ranks)
        return tdm_fail(err, TDM_USAGE, "plan: --ranks %u: --like %s has %u", r->ranks,
                        r->like_path, a->training->ranks);
    r->ranks = a->training->ranks;
    r->ranks_per_node = a->training->ranks_per_node;
    if (r->context == 0)
        r->context = a->training->sequences[0].tokens;
    return TDM_OK;
}

/* Keys of --set that are about several ranks. */
static enum tdm_status check_team_keys(const struct tdm_request *r, struct tdm_error *err)
{
    static const char *const keys[] = {"deal=", "exchange=", "exchange.heads="};
    for (size_t i = 0; i < r->pair_count && r->ranks <= 1; i++)
        for (size_t key = 0; key < sizeof(keys) / sizeof(keys[0]); key++)
            if (strncmp(r->pairs[i], keys[key], strlen(keys[key])) == 0)
                return tdm_fail(err, TDM_USAGE, "plan: --set %s is about several ranks (--ranks)",
                                r->pairs[i]);
    return TDM_OK;
}

static enum tdm_status check_objective(const struct tdm_plan_arguments *a, struct tdm_error *err)
{
    enum tdm_status status = a->sweeps ? check_sweep(a, err) : TDM_OK;
    if (status == TDM_OK)
        status = check_team_keys(&a->request, err);
    if (status != TDM_OK)
        return status;
    if (a->request.ranks > 1 && a->request.budget == TDM_BUDGET_AUTO)
        return tdm_fail(err, TDM_USAGE, "plan: --budget auto is for one rank");
    if (a->request.ranks > 1 && a->request.program_path != NULL)
        return tdm_fail(err, TDM_USAGE, "plan: --write-lp is about a plan for one rank");
    const uint32_t ranks = a->request.ranks == 0 ? 1 : a->request.ranks;
    if (a->request.ranks_per_node != 0 && ranks % a->request.ranks_per_node != 0)
        return tdm_fail(err, TDM_USAGE, "plan: --ranks-per-node %u does not divide %u rank%s",
                        a->request.ranks_per_node, ranks, ranks == 1 ? "" : "s");
    if (a->request.joined != TDM_JOINED_AS_FITS && ranks == 1) {
        tdm_fail(err, TDM_USAGE, "plan: --transport: one rank needs no transport");
        return tdm_hint(err, "leave it out, or use --ranks");
    }
    if (a->request.joined == TDM_JOINED_SHARED && a->request.ranks_per_node != 0 &&
        a->request.ranks_per_node < ranks)
        return tdm_fail(err, TDM_USAGE,
                        "plan: --transport shared: ranks of several nodes cannot read each "
                        "other's memory");
    bool says_memory = a->request.has_memory || sweeps_over(a, TDM_SWEEP_MEMORY);
    if (a->has_margin && says_memory) {
        const char *option = a->request.has_memory ? "memory" : "sweep memory";
        tdm_fail(err, TDM_USAGE, "plan: --margin and --%s both say how much may be used", option);
        return tdm_hint(err, "--%s is used exactly as given; leave --margin out", option);
    }
    if (a->objective == TDM_OBJECTIVE_CONTEXT && a->request.context != 0)
        return tdm_fail(err, TDM_USAGE,
                        "plan: --objective context finds the context, and --context gives one");
    bool finds_context = a->objective == TDM_OBJECTIVE_CONTEXT || sweeps_over(a, TDM_SWEEP_CONTEXT);
    if (!finds_context && a->request.context == 0) {
        tdm_fail(err, TDM_USAGE, "plan: --context is missing");
        return tdm_hint(err, "for example --context 256K");
    }
    bool finds_budget = a->request.budget == TDM_BUDGET_AUTO;
    if (a->objective == TDM_OBJECTIVE_TIME && a->step_seconds > 0 && !finds_budget) {
        tdm_fail(err, TDM_USAGE, "plan: --step-time is a limit beside another objective");
        return tdm_hint(err, "add --objective context, --objective memory or --budget auto");
    }
    if (finds_budget && a->step_seconds == 0) {
        tdm_fail(err, TDM_USAGE, "plan: --budget auto needs --step-time");
        return tdm_hint(err, "for example --step-time 60");
    }
    if (finds_budget && (a->objective != TDM_OBJECTIVE_TIME || a->sweeps))
        return tdm_fail(err, TDM_USAGE,
                        "plan: --budget auto goes with neither --objective nor --sweep");
    return TDM_OK;
}
/* Refuses to overwrite an input. */
static enum tdm_status check_outputs(const struct tdm_plan_arguments *a, struct tdm_error *err)
{
    const struct tdm_request *r = &a->request;
    const struct tdm_input like = {.option = "--like", .path = r->like_path};
    enum tdm_status status =
        tdm_model_inputs_spare(r->model, r->machine, "plan: -o", a->output, err);
    if (status == TDM_OK)
        status = tdm_inputs_spare(&like, 1, "plan: -o", a->output, err);
    if (status == TDM_OK)
        status =
            tdm_model_inputs_spare(r->model, r->machine, "plan: --write-lp", r->program_path, err);
    return status == TDM_OK && a->output != NULL ? tdm_file_check(a->output, a->force, err)
                                                 : status;
}

const struct tdm_plan_arguments tdm_plan_defaults = {
    .request = {.sequences = 1, .margin = TDM_MARGIN, .optimizer = TDM_OPTIMIZER_ADAMW}};

enum tdm_status tdm_plan_arguments_read(int argc, char **argv, struct tdm_plan_arguments *a,
                                        bool *help, struct tdm_error *err)
{
    int first;
    enum tdm_status status = tdm_options_read(&tdm_cmd_plan, argc, argv, a, &first, help, err);
    if (status != TDM_OK || (help != NULL && *help))
        return status;
    status = read_like(a, err);
    if (status != TDM_OK)
        return status;
    if (argc - first != 1 && !(argc == first && a->request.like != NULL)) {
        tdm_fail(err, TDM_USAGE,
                 first == argc ? "plan: no model is named" : "plan: takes one model only");
        return tdm_hint(err, "usage: tidemark %s", tdm_cmd_plan.usage);
    }
    status = check_objective(a, err);
    if (status == TDM_OK)
        status = check_program(a, err);
    if (status != TDM_OK)
        return status;
    if (a->json && a->output != NULL && strcmp(a->output, "-") == 0)
        return tdm_fail(err, TDM_USAGE, "plan: --json and -o - would both write to stdout");
    if (first < argc)
        a->request.model = argv[first];
    if (a->request.machine == NULL && a->request.like == NULL)
        a->request.machine = "h200";
    return check_outputs(a, err);
}
