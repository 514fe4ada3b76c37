/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of other processes hand over what they recorded (executor/gather.h). */
#include "executor/gather.h"

/* Clocks are compared so often: the answer that was fastest counts. */
#define CLOCK_ROUNDS 4

enum tdm_status tdm_gather_clock(struct tdm_processes *processes, uint32_t from,
                                 int64_t (*now)(struct tdm_executor *),
                                 struct tdm_executor *executor, int64_t *ahead_ns,
                                 struct tdm_error *err)
{
    const uint32_t number = tdm_processes_number(processes);
    int64_t fastest_ns = INT64_MAX;
    enum tdm_status status = TDM_OK;
    *ahead_ns = 0;
    for (int i = 0; i < CLOCK_ROUNDS && (number == 0 || number == from) && status == TDM_OK; i++) {
        const int64_t asked_ns = now(executor);
        int64_t theirs_ns = asked_ns;
        status = tdm_processes_hand(processes, from, &theirs_ns, sizeof(theirs_ns), err);
        theirs_ns = now(executor);
        if (status == TDM_OK)
            status = tdm_processes_collect(processes, from, &theirs_ns, sizeof(theirs_ns), err);
        const int64_t took_ns = now(executor) - asked_ns;
        const int64_t ahead = theirs_ns - (asked_ns + took_ns / 2);
        if (took_ns >= fastest_ns)
            continue;
        fastest_ns = took_ns;
        *ahead_ns = ahead < -took_ns || ahead > took_ns ? ahead : 0;
    }
    return status;
}

/* What precedes the arrays. */
struct head {
    int64_t number;
    uint64_t timing_count, touch_count, observed_count, arena_count, used_count;
};

enum tdm_status tdm_gather_batch(struct tdm_processes *processes, uint32_t from,
                                 struct tdm_trace_batch *batch, int64_t *number,
                                 struct tdm_error *err)
{
    struct head head = {*number,
                        batch->timing_count,
                        batch->touch_count,
                        batch->observed_count,
                        batch->arena_count,
                        batch->used_count};
    if (tdm_processes_number(processes) != 0 && tdm_processes_number(processes) != from)
        return TDM_OK;
    enum tdm_status status = tdm_processes_collect(processes, from, &head, sizeof(head), err);
    const struct {
        void *data;
        uint64_t bytes;
    } arrays[] = {{batch->timings, head.timing_count * sizeof(*batch->timings)},
                  {batch->touches, head.touch_count * sizeof(*batch->touches)},
                  {batch->observed, head.observed_count * sizeof(*batch->observed)},
                  {batch->arenas, head.arena_count * sizeof(*batch->arenas)},
                  {batch->used, head.used_count * sizeof(*batch->used)}};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]) && status == TDM_OK; i++)
        status = tdm_processes_collect(processes, from, arrays[i].data, arrays[i].bytes, err);
    if (status != TDM_OK)
        return status;
    *number = head.number;
    batch->timing_count = head.timing_count;
    batch->touch_count = head.touch_count;
    batch->observed_count = head.observed_count;
    batch->arena_count = head.arena_count;
    batch->used_count = head.used_count;
    return TDM_OK;
}
