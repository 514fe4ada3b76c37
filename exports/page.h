/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A page that shows a step in any browser, without a network: one HTML file with the data, the
 * script and the style. It has the numbers of the ops and of the values as arrays of binary numbers
 * in base64; the script (page_data.js, page_view.js) makes levels of detail of them when the page
 * is opened.
 */
#ifndef TDM_EXPORTS_PAGE_H
#define TDM_EXPORTS_PAGE_H

#include "exports/step.h"

#include <stdio.h>

/* Writes the page; errors of `out` are left to whoever closes it. TDM_NO_MEMORY. */
enum tdm_status tdm_page_write(const struct tdm_step *step, FILE *out, struct tdm_error *err);

/* Made from the files of these names when tidemark is built. */
extern const char tdm_page_css[], tdm_page_data_js[], tdm_page_view_js[];

#endif
