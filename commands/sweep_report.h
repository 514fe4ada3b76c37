/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark plan --sweep`: prints a sweep as a table, as JSON or as a picture. */
#ifndef TDM_COMMANDS_SWEEP_REPORT_H
#define TDM_COMMANDS_SWEEP_REPORT_H

#include "planner/sweep.h"

/* Output options. */
struct tdm_sweep_report {
    bool json;
    const char *picture; /* .png, .svg or .pdf; NULL: none */
    bool force;          /* overwrite the picture */
};

/* Runs a sweep and prints it. Ctrl-C stops it after the current point, prints the points so far and
 * returns TDM_INTERRUPTED. TDM_INFEASIBLE: nothing fits at any point. */
enum tdm_status tdm_sweep_report(const struct tdm_request *request, const struct tdm_sweep *sweep,
                                 const struct tdm_sweep_report *report, struct tdm_error *err);

#endif
