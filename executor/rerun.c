/* SPDX-License-Identifier: Apache-2.0 */
/* Runs steps again (executor/rerun.h). */
#include "executor/rerun.h"

#include "executor/finite.h"
#include "executor/state.h"
#include "executor/within.h"
#include "schedule/learning_rate.h"

#include <stdlib.h>

static enum tdm_status run_step(const struct tdm_rerun *r, uint64_t number, struct tdm_error *err)
{
    struct tdm_step step = {.number = number,
                            .learning_rate =
                                tdm_learning_rate(&r->program->schedule->optimizer, number),
                            .seed = r->run->weights.seed,
                            .untimed = true};
    tdm_batch_step(r->batch, step.seed, number);
    tdm_batch_describe(r->batch, &step);
    enum tdm_status status = tdm_state_write_tokens(r->run->arenas, r->program, r->batch->inputs,
                                                    r->batch->targets, err);
    return status == TDM_OK ? tdm_team_walk_step(r->walk, &step, NULL, r->stop, err) : status;
}

/* Writes zeros to all arenas of a rank. What the steps left would hide values that they write
 * again, and the padding of weights, which copies take along, must be finite. */
static enum tdm_status clear(const struct tdm_arenas *arenas, struct tdm_error *err)
{
    enum tdm_status status = TDM_OK;
    for (uint32_t place = 0; place < TDM_MAX_PLACES && status == TDM_OK; place++)
        if (arenas->base[place] != NULL)
            status = arenas->backend->upload(arenas->executor, arenas->base[place], NULL,
                                             arenas->bytes[place], err);
    return status;
}

enum tdm_status tdm_rerun(const struct tdm_rerun *r, struct tdm_rerun_start *from,
                          struct tdm_error *err)
{
    struct tdm_run *run = r->run;
    struct tdm_finite **finite = calloc(run->ranks, sizeof(struct tdm_finite *));
    enum tdm_status status = TDM_OK;
    if (finite == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for checking a step");
    for (uint32_t rank = 0; rank < run->ranks && status == TDM_OK; rank++) {
        if (run->arenas[rank].backend == NULL) /* of another process */
            continue;
        status = tdm_finite_new(&run->arenas[rank], &finite[rank], err);
        tdm_walk_check(tdm_team_walk_of(r->walk, rank), finite[rank]);
        if (status == TDM_OK)
            status = clear(&run->arenas[rank], err);
    }
    struct tdm_checkpoint *checkpoint = NULL;
    if (status == TDM_OK)
        status = tdm_run_weights_restore(&run->weights, run->arenas, r->program, r->saved_step,
                                         r->within_step, &checkpoint, err);
    if (checkpoint != NULL) {
        *from = (struct tdm_rerun_start){checkpoint->step,
                                         checkpoint->parts == NULL ? 0 : checkpoint->parts[0].op};
        if (checkpoint->parts != NULL)
            tdm_within_go_on(r->walk, run->arenas, checkpoint);
    }
    for (uint64_t step = from->step + 1; status == TDM_OK && step <= r->last; step++)
        status = run_step(r, step, err);
    tdm_checkpoint_close(checkpoint);
    for (uint32_t rank = 0; rank < run->ranks; rank++) {
        if (run->arenas[rank].backend != NULL)
            tdm_walk_check(tdm_team_walk_of(r->walk, rank), NULL);
        tdm_finite_free(finite[rank]);
    }
    free(finite);
    return status;
}
