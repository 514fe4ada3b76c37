/* SPDX-License-Identifier: Apache-2.0 */
/* Small output helpers for the commands. */
#ifndef TDM_COMMANDS_PRINT_H
#define TDM_COMMANDS_PRINT_H

#include "base/status.h"
#include "schedule/schedule.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define TDM_DIGITS_SIZE 32

/* "7,615,616,512". Returns `out`. */
const char *tdm_format_digits(uint64_t number, char out[TDM_DIGITS_SIZE]);

/* Prints one line to stderr if the user's machine description lacks rates: which ones, and the
 * substitutes. Of a shipped one tdm_rates_note() says all that a user can do. `name` is the user's
 * name for the machine. */
void tdm_warn_machine(const char *name, const struct tdm_machine *machine);

#define TDM_RATES_NOTE_SIZE 256

/* Writes "not measured by tidemark: datasheet, derated; tidemark calibrate measures them" to `out`.
 * Returns false if calibrate measured the rates. */
bool tdm_rates_note(const struct tdm_machine *machine, char out[TDM_RATES_NOTE_SIZE]);
/* The same of the rates that a schedule needs: a machine may have none of fp32 values. */
bool tdm_schedule_rates_note(const struct tdm_schedule *schedule, char out[TDM_RATES_NOTE_SIZE]);

/* Prints one line to stderr: of a trace's step, `ranks` ranks are in a file, and the others, whose
 * number is `without`, have no op times. */
void tdm_note_ranks(const char *trace, int64_t step, uint32_t ranks, uint32_t without,
                    const char *file);

/* Prints an object to stdout with tdm_json_write(). `err` may already hold the reason that nothing
 * fits. It is overwritten only if printing fails. */
enum tdm_status tdm_print_json(json_t *root, struct tdm_error *err);

#endif
