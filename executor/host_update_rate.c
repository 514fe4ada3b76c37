/* SPDX-License-Identifier: Apache-2.0 */
/* Measures how fast the host's cores update a layer. The layer is zeros in memory of its own. */
#include "executor/host_update_rate.h"

#include "base/clock.h"
#include "executor/host_optimizer.h"
#include "schedule/layout.h"
#include "schedule/program.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE_BYTES (UINT64_C(2) << 20) /* a huge page */

/* The contents of the first operands of an update. */
static const enum tdm_content contents[] = {[TDM_OPTIMIZER_WEIGHTS] = TDM_UNIT_WEIGHTS,
                                            [TDM_OPTIMIZER_GRADIENT] = TDM_UNIT_GRADIENT,
                                            [TDM_OPTIMIZER_MASTER] = TDM_UNIT_MASTER,
                                            [TDM_OPTIMIZER_MOMENT1] = TDM_UNIT_MOMENT1,
                                            [TDM_OPTIMIZER_MOMENT2] = TDM_UNIT_MOMENT2};
#define CONTENTS (sizeof(contents) / sizeof(contents[0]))

static enum tdm_status take(uint64_t bytes, enum tdm_dtype dtype, struct tdm_operand *operand,
                            struct tdm_error *err)
{
    uint64_t pages = (bytes + PAGE_BYTES - 1) / PAGE_BYTES;
    void *data = bytes > 0 ? aligned_alloc(PAGE_BYTES, pages * PAGE_BYTES) : NULL;
    if (bytes == 0)
        return TDM_OK;
    if (data == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "no memory for a layer that is updated");
    madvise(data, pages * PAGE_BYTES, MADV_HUGEPAGE); /* only for speed */
    memset(data, 0, bytes);
    *operand = (struct tdm_operand){.data = data, .dtype = dtype, .slots = 1, .slot_bytes = bytes};
    return TDM_OK;
}

enum tdm_status tdm_host_update_rate(const struct tdm_schedule *schedule, uint32_t threads,
                                     double seconds, const struct tdm_beside_updates *beside,
                                     double *bytes_per_second, struct tdm_error *err)
{
    struct tdm_program program = {0};
    const struct tdm_step step = {.number = 1, .learning_rate = 1e-5, .seed = 1};
    const struct tdm_op op = {
        .kind = TDM_OP_OPTIMIZER, .slices = 1, .elements = schedule->model->units[0].elements};
    struct tdm_launch launch = {.program = &program, .op = &op, .step = &step};
    enum tdm_status status = TDM_OK;
    double moved = 0, passed = 0, begin;
    tdm_program_set_schedule(&program, schedule);
    for (size_t i = 0; i < CONTENTS && status == TDM_OK; i++) {
        uint64_t bytes = tdm_content_bytes(schedule, contents[i], 0, 0);
        status = take(bytes, tdm_content_dtype(schedule, contents[i]), &launch.operand[i], err);
        moved += (contents[i] == TDM_UNIT_GRADIENT ? 1 : 2) * (double)bytes;
    }
    struct tdm_host_update update;
    if (status == TDM_OK) {
        update = tdm_host_update_of(&launch);
        tdm_host_update_warm_up(threads);
        tdm_host_update_run(&update, threads);
    }
    if (status == TDM_OK && beside != NULL)
        status = beside->begin(beside->self, err);
    if (status == TDM_OK) {
        uint64_t updates = 0;
        for (begin = tdm_now_seconds(); passed < seconds || updates == 0;
             passed = tdm_now_seconds() - begin, updates++)
            tdm_host_update_run(&update, threads);
        if (beside != NULL)
            beside->end(beside->self);
        *bytes_per_second = (double)updates * moved / passed;
    }
    for (size_t i = 0; i < CONTENTS; i++)
        free(launch.operand[i].data);
    return status;
}
