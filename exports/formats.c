/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the formats. */
#include "exports/export.h"

const struct tdm_export_format tdm_export_formats[] = {
    {.name = "chrome", .write = tdm_export_chrome},
    {.name = "memory-viz", .write = tdm_export_memory_viz, .binary = true},
    {.name = "csv", .write = tdm_export_csv},
    {.name = NULL}};
