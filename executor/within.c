/* SPDX-License-Identifier: Apache-2.0 */
/* Saves within steps (executor/within.h). */
#include "executor/within.h"

#include "base/clock.h"
#include "base/size.h"
#include "schedule/program.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* A rank of this process. */
struct member {
    struct tdm_within *within;
    uint32_t rank;
    struct tdm_program program; /* as it runs it */
    struct tdm_pauses *pauses;  /* NULL: the rank is of another process */
    struct tdm_walk_pauser pauser;
    uint32_t next; /* pause of the step under way */
    /* of a meeting before a pause, which the pause returns */
    enum tdm_status status;
    struct tdm_error err;
};

/* What the ranks decide at a pause. */
enum { SAVES = 1, STOPS = 2 };

struct tdm_within {
    struct tdm_run *run;
    struct tdm_team *team; /* NULL: one rank */
    const struct tdm_program *program;
    const struct tdm_history *history; /* of the steps before */
    struct tdm_run_result *result;
    struct member *members;            /* [ranks] */
    struct tdm_checkpoint_part *parts; /* [ranks] */
    struct tdm_within_save save;       /* that is being written */
    uint32_t first;                    /* the first rank of this process, which leads it */
    uint32_t flags;                    /* set by it, between two meetings */
    uint64_t step, saved_step;
    uint64_t stopped_op;    /* 1 + the op before which the step has ended; 0: none */
    double earlier_seconds; /* of the step, before this run */
    double saved_seconds;   /* on a clock: when the last checkpoint was written, or the run began */
};

static bool is_leader(const struct member *member)
{
    return member->rank == member->within->first;
}

/* Waits for the other ranks of this process. */
static enum tdm_status meet(const struct member *member, bool patient, struct tdm_error *err)
{
    struct tdm_team *team = member->within->team;
    return team == NULL ? TDM_OK : tdm_team_meet_here(team, member->rank, patient, err);
}

/* What the leaders of all processes want at a pause. */
static enum tdm_status decide(struct tdm_within *within, bool late, struct tdm_error *err)
{
    const struct tdm_run_options *options = within->run->options;
    const bool stops = options->stop != NULL && *options->stop;
    within->flags = (stops ? SAVES | STOPS : 0) | (late ? SAVES : 0);
    return tdm_processes_unite(options->processes, &within->flags, err);
}

/* Is the last checkpoint old? Process 0 knows. */
static bool is_late(const struct tdm_within *within)
{
    const struct tdm_run_options *options = within->run->options;
    return tdm_processes_number(options->processes) == 0 &&
           tdm_now_seconds() - within->saved_seconds >= options->within_seconds;
}

static bool wants(void *self, const struct tdm_op *op)
{
    struct member *member = self;
    struct tdm_within *within = member->within;
    const uint32_t count = tdm_pauses_count(member->pauses);
    while (member->next < count && tdm_pauses_at(member->pauses, member->next)->op < op->number)
        member->next++;
    if (member->next == count || tdm_pauses_at(member->pauses, member->next)->op != op->number)
        return false;
    member->status = meet(member, false, &member->err);
    if (member->status == TDM_OK && is_leader(member))
        member->status = decide(within, is_late(within), &member->err);
    if (member->status == TDM_OK)
        member->status = meet(member, false, &member->err);
    return member->status != TDM_OK || (within->flags & SAVES) != 0;
}

/* Collects what the ranks have written, and completes the checkpoint. */
static enum tdm_status complete(struct tdm_within *within, double seconds, struct tdm_error *err)
{
    struct tdm_run *run = within->run;
    struct tdm_processes *processes = run->options->processes;
    const uint32_t each = tdm_processes_ranks(processes, within->program->ranks);
    enum tdm_status status = TDM_OK;
    for (uint32_t from = 0; from < tdm_processes_count(processes) && status == TDM_OK; from++)
        status = tdm_processes_broadcast(processes, from, within->parts + (size_t)from * each,
                                         each * sizeof(*within->parts), err);
    if (status == TDM_OK)
        status = tdm_run_weights_end_within(&run->weights, &within->save, within->program,
                                            within->earlier_seconds + seconds, within->parts,
                                            within->history, err);
    within->saved_seconds = tdm_now_seconds();
    if (status == TDM_OK)
        within->result->within_step = within->step;
    return status == TDM_OK ? decide(within, false, err) : status; /* it may have been told since */
}

static enum tdm_status save_there(void *self, const struct tdm_op *op, double seconds,
                                  struct tdm_error *err)
{
    struct member *member = self;
    struct tdm_within *within = member->within;
    struct tdm_run *run = within->run;
    const struct tdm_weights_watch watch = {.stop = run->options->cut};
    enum tdm_status status = member->status;
    if (status != TDM_OK) {
        *err = member->err;
        return status;
    }
    if (is_leader(member))
        status = tdm_run_weights_begin_within(&run->weights, within->step,
                                              &within->result->saved_step, &within->save, err);
    if (status == TDM_OK)
        status = meet(member, true, err);
    if (status == TDM_OK)
        status = tdm_checkpoint_write_part(within->save.directory, &run->arenas[member->rank],
                                           &member->program, member->pauses, member->next, &watch,
                                           &within->parts[member->rank], err);
    if (status == TDM_OK)
        status = meet(member, true, err);
    if (status == TDM_OK && is_leader(member))
        status = complete(within, seconds, err);
    if (status == TDM_OK) /* nobody goes on before it is saved */
        status = meet(member, true, err);
    if (is_leader(member))
        tdm_run_weights_leave_within(&within->save);
    if (within->team != NULL)
        tdm_team_goes_on(within->team, member->rank);
    if (status != TDM_OK || (within->flags & STOPS) == 0)
        return status;
    if (is_leader(member)) {
        within->stopped_op = op->number + 1;
        tdm_processes_fail_alike(run->options->processes);
    }
    return tdm_fail(err, TDM_INTERRUPTED, "interrupted in step %" PRIu64, within->step);
}

bool tdm_within_stopped(const struct tdm_within *within, struct tdm_error *err)
{
    if (within == NULL || within->stopped_op == 0)
        return false;
    tdm_fail(err, TDM_INTERRUPTED,
             "interrupted in step %" PRIu64 ", before op %" PRIu64 " of %" PRIu64
             ", where it was saved",
             within->step, within->stopped_op,
             tdm_program_of_rank(within->program, within->first).op_count);
    return true;
}

/* Finds the pauses of all ranks, which must agree, and keeps those of this process. */
static enum tdm_status find_pauses(struct tdm_within *within, struct tdm_error *err)
{
    const struct tdm_program *program = within->program;
    struct tdm_pauses *first = NULL;
    enum tdm_status status = TDM_OK;
    for (uint32_t i = 0; i < program->ranks && status == TDM_OK; i++) {
        const uint32_t rank = (within->first + i) % program->ranks;
        struct member *member = &within->members[rank];
        member->program = tdm_program_of_rank(program, rank);
        status = tdm_pauses_new(&member->program, &member->pauses, err);
        if (status != TDM_OK)
            break;
        first = i == 0 ? member->pauses : first;
        if (!tdm_pauses_agree(first, member->pauses))
            status =
                tdm_fail(err, TDM_INPUT,
                         "--save-within: rank %" PRIu32 " of the schedule does not pause where "
                         "rank %" PRIu32 " does",
                         rank, within->first);
        if (within->run->arenas[rank].backend == NULL) {
            tdm_pauses_free(member->pauses);
            member->pauses = NULL;
        }
    }
    return status;
}

enum tdm_status tdm_within_open(struct tdm_run *run, struct tdm_team_walk *walk,
                                const struct tdm_program *program,
                                const struct tdm_history *history, struct tdm_run_result *result,
                                struct tdm_within **out, struct tdm_error *err)
{
    *out = NULL;
    if (!run->options->saves_within)
        return TDM_OK;
    struct tdm_within *within = calloc(1, sizeof(*within));
    if (within == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for saves within steps");
    *within = (struct tdm_within){.run = run,
                                  .team = tdm_team_walk_team(walk),
                                  .program = program,
                                  .history = history,
                                  .result = result,
                                  .members = calloc(program->ranks, sizeof(*within->members)),
                                  .parts = calloc(program->ranks, sizeof(*within->parts)),
                                  .first = (uint32_t)(tdm_run_here(run) - run->arenas),
                                  .saved_seconds = tdm_now_seconds()};
    enum tdm_status status =
        within->members == NULL || within->parts == NULL
            ? tdm_fail(err, TDM_NO_MEMORY, "out of memory for saves within steps")
            : find_pauses(within, err);
    for (uint32_t rank = 0; rank < program->ranks && status == TDM_OK; rank++) {
        struct member *member = &within->members[rank];
        member->within = within;
        member->rank = rank;
        member->pauser = (struct tdm_walk_pauser){member, wants, save_there};
        if (member->pauses != NULL)
            tdm_walk_pause(tdm_team_walk_of(walk, rank), &member->pauser);
    }
    if (status != TDM_OK) {
        tdm_within_close(within);
        return status;
    }
    *out = within;
    return TDM_OK;
}

void tdm_within_close(struct tdm_within *within)
{
    if (within == NULL)
        return;
    for (uint32_t rank = 0; within->members != NULL && rank < within->program->ranks; rank++)
        tdm_pauses_free(within->members[rank].pauses);
    free(within->members);
    free(within->parts);
    free(within);
}

void tdm_within_begin(struct tdm_within *within, uint64_t step, double earlier_seconds)
{
    if (within == NULL)
        return;
    within->step = step;
    within->earlier_seconds = earlier_seconds;
    for (uint32_t rank = 0; rank < within->program->ranks; rank++)
        within->members[rank].next = 0;
    if (within->result->saved_step != within->saved_step)
        within->saved_seconds = tdm_now_seconds();
    within->saved_step = within->result->saved_step;
}

void tdm_within_go_on(struct tdm_team_walk *walk, const struct tdm_arenas *arenas,
                      const struct tdm_checkpoint *checkpoint)
{
    for (uint32_t rank = 0; checkpoint != NULL && rank < checkpoint->part_count; rank++)
        if (arenas[rank].backend != NULL)
            tdm_walk_begin_at(tdm_team_walk_of(walk, rank), checkpoint->parts[rank].op);
}

/* When a pause is expected, after the step began. */
static double expected_seconds(const struct tdm_forecast *forecast, const struct tdm_pause *pause)
{
    uint64_t ended = 0;
    while (ended < forecast->count && forecast->ops[ended].number < pause->op)
        ended++;
    return tdm_forecast_seconds(forecast, ended);
}

enum tdm_status tdm_within_tell_costs(const struct tdm_run *run, struct tdm_error *err)
{
    const struct tdm_forecast *forecast = run->loaded[0].forecasts[0];
    const struct tdm_run_listener *listener = run->listener;
    const struct tdm_program *program = run->programs[0];
    if (!run->options->saves_within || listener->within_costs == NULL)
        return TDM_OK;
    uint64_t bytes[TDM_MOST_PAUSES] = {0}; /* of all ranks */
    uint32_t count = 0;
    double first = 0, before = 0, gap = 0;
    for (uint32_t rank = 0; rank < program->ranks; rank++) {
        const struct tdm_program of_rank = tdm_program_of_rank(program, rank);
        struct tdm_pauses *pauses;
        enum tdm_status status = tdm_pauses_new(&of_rank, &pauses, err);
        if (status != TDM_OK)
            return status;
        count = tdm_pauses_count(pauses);
        for (uint32_t i = 0; i < count; i++) {
            const struct tdm_pause *pause = tdm_pauses_at(pauses, i);
            const double seconds = rank == 0 ? expected_seconds(forecast, pause) : 0;
            bytes[i] += pause->bytes;
            first = rank == 0 && i == 0 ? seconds : first;
            gap = rank == 0 && i > 0 ? fmax(gap, seconds - before) : gap;
            before = seconds;
        }
        tdm_pauses_free(pauses);
    }
    uint64_t least = count == 0 ? 0 : bytes[0], most = 0;
    for (uint32_t i = 0; i < count; i++) {
        least = tdm_least(least, bytes[i]);
        most = tdm_most(most, bytes[i]);
    }
    listener->within_costs(listener->self, count, least, most, first, gap);
    return TDM_OK;
}
