/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rates from measured ops: used for the ops that calibrate runs and for the ops of a trace.
 *
 * Ops that run at the same rate (cost.h) are sorted by size and cut into intervals. An interval
 * ends where the size doubles, or grows by a quarter for a refined rate. Ops with a refined rate
 * count for both rates. Each interval gives one point of the rate's table: its work over its
 * seconds, without the slowest and the fastest eighth. A rate and its share by tokens are fitted
 * alternately.
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

/* Adds an op that took `seconds` on a machine. Copies between places are ignored, and so are ops
 * with too few blocks for their rate to tell. TDM_NO_MEMORY. */
enum tdm_status tdm_rate_fit_add(struct tdm_rate_fit *fit, const struct tdm_machine *machine,
                                 const struct tdm_op *op, double seconds, struct tdm_error *err);

/* Sets the overhead of timing one op. It is subtracted from every op's seconds, at most half of
 * them. */
void tdm_rate_fit_set_overhead(struct tdm_rate_fit *fit, double seconds);

/* Makes tables for all rates that have ops; the others are unchanged, with *known false. With
 * `corrected` the tables have rates already: parts without ops stay, and so do the shares; refined
 * rates are corrected only where the tables describe them. */
void tdm_rate_fit_tables(struct tdm_rate_fit *fit, bool corrected,
                         struct tdm_rate_table tables[TDM_RATES], bool known[TDM_RATES]);

/* Seconds below which only one op in 200 is; 0 if there are no ops. */
double tdm_rate_fit_least_seconds(struct tdm_rate_fit *fit);

/* Number of ops of a rate, and their seconds: measured, and predicted by a machine's rates. */
struct tdm_rate_total {
    size_t ops;
    double measured_seconds, predicted_seconds;
};
void tdm_rate_fit_totals(const struct tdm_rate_fit *fit, const struct tdm_machine *machine,
                         struct tdm_rate_total totals[TDM_RATES]);

#endif
