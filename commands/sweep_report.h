/* SPDX-License-Identifier: Apache-2.0 */
/* `tidemark plan --sweep`: a sweep as a table, as JSON, as a picture. */
#ifndef TDM_COMMANDS_SWEEP_REPORT_H
#define TDM_COMMANDS_SWEEP_REPORT_H

#include "planner/sweep.h"

/* How it is reported. */
struct tdm_sweep_report {
    bool json;
    const char *picture; /* .png, .svg or .pdf; NULL: none */
    bool force;          /* overwrites it */
};

/* Runs a sweep and prints it; Ctrl-C ends it after the point it is at, and prints what there is:
 * TDM_INTERRUPTED. TDM_INFEASIBLE if nothing fits anywhere. */
enum tdm_status tdm_sweep_report(const struct tdm_request *request, const struct tdm_sweep *sweep,
                                 const struct tdm_sweep_report *report, struct tdm_error *err);

#endif
