/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark plan --sweep`: prints a sweep, or two of them, as tables, as JSON or as a picture. */
#ifndef TDM_COMMANDS_SWEEP_REPORT_H
#define TDM_COMMANDS_SWEEP_REPORT_H

#include "planner/sweep.h"
#include "plots/frontier_plot.h"

/* Output options. */
struct tdm_sweep_report {
    bool json;
    const char *picture; /* .png, .svg or .pdf; NULL: none */
    bool force;          /* overwrite the picture */
};

/* Runs a sweep and prints it. `lines`: another one, of another axis and at most TDM_FRONTIER_MOST
 * values, for each of which the first is run; or NULL. Ctrl-C stops it after the current point,
 * prints the points so far and returns TDM_INTERRUPTED. TDM_INFEASIBLE: nothing fits at any point.
 */
enum tdm_status tdm_sweep_report(const struct tdm_request *request, const struct tdm_sweep *sweep,
                                 const struct tdm_sweep *lines,
                                 const struct tdm_sweep_report *report, struct tdm_error *err);

#endif
