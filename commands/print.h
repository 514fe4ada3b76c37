/* SPDX-License-Identifier: Apache-2.0 */
/* Small helpers of the commands that print. */
#ifndef TDM_COMMANDS_PRINT_H
#define TDM_COMMANDS_PRINT_H

#include "base/status.h"
#include "machines/machine.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define TDM_DIGITS_SIZE 32

/* "7,615,616,512". Returns `out`. */
const char *tdm_format_digits(uint64_t number, char out[TDM_DIGITS_SIZE]);

/* One line on stderr if the description of a machine lacked rates: which, and what stands for them.
 * `name` is what the user called it. */
void tdm_warn_machine(const char *name, const struct tdm_machine *machine);

#define TDM_RATES_NOTE_SIZE 256

/* "not measured by tidemark: datasheet, derated" in `out`, or false if calibrate measured the
 * rates. */
bool tdm_rates_note(const struct tdm_machine *machine, char out[TDM_RATES_NOTE_SIZE]);

/* Prints an object on stdout, as tdm_json_write(); `err`, which may hold why nothing fits, changes
 * only if that fails. */
enum tdm_status tdm_print_json(json_t *root, struct tdm_error *err);

#endif
