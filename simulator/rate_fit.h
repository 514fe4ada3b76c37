/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rates from measured ops: what calibrate makes of the ops that it ran, and of the ops of a trace.
 *
 * Ops that run at the same rate (cost.h) are sorted by size and cut where the size doubles, those
 * of a refined rate, which count for that too, where it grows by a quarter; each part gives one
 * point of the rate's table: its work over its seconds, without the slowest and the fastest eighth.
 * Where there is a share by tokens, rate and share are fitted by turns.
 */
#ifndef TDM_SIMULATOR_RATE_FIT_H
#define TDM_SIMULATOR_RATE_FIT_H

#include "machines/machine.h"
#include "schedule/program.h"

#include <stdbool.h>
#include <stddef.h>

struct tdm_rate_fit;

enum tdm_status tdm_rate_fit_new(struct tdm_rate_fit **fit, struct tdm_error *err);
void tdm_rate_fit_free(struct tdm_rate_fit *fit);

/* Notes an op that took `seconds`. Copies between places are left out. TDM_NO_MEMORY. */
enum tdm_status tdm_rate_fit_add(struct tdm_rate_fit *fit, const struct tdm_op *op, double seconds,
                                 struct tdm_error *err);

/* How long taking an op's time delays it: taken off every op, of which at least half remains. */
void tdm_rate_fit_set_overhead(struct tdm_rate_fit *fit, double seconds);

/* Makes tables for all rates of which there are ops; others are left as they are, with *known
 * false. With `corrected` the tables hold rates already: what the ops say nothing of stays, and so
 * do the shares; refined rates are corrected where they are described. */
void tdm_rate_fit_tables(struct tdm_rate_fit *fit, bool corrected,
                         struct tdm_rate_table tables[TDM_RATES], bool known[TDM_RATES]);

/* Seconds that only one op in 200 stays below; 0 if there are none. */
double tdm_rate_fit_least_seconds(struct tdm_rate_fit *fit);

/* Ops of a rate, and their seconds: measured, and by a machine's rates. */
struct tdm_rate_total {
    size_t ops;
    double measured_seconds, predicted_seconds;
};
void tdm_rate_fit_totals(const struct tdm_rate_fit *fit, const struct tdm_machine *machine,
                         struct tdm_rate_total totals[TDM_RATES]);

#endif
