/* SPDX-License-Identifier: Apache-2.0 */
/* Small output helpers for the commands. */
#include "commands/print.h"

#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *tdm_format_digits(uint64_t number, char out[TDM_DIGITS_SIZE])
{
    char plain[TDM_DIGITS_SIZE];
    int length = snprintf(plain, sizeof(plain), "%" PRIu64, number);
    char *to = out;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            *to++ = ',';
        *to++ = plain[i];
    }
    *to = '\0';
    return out;
}

void tdm_warn_machine(const char *name, const struct tdm_machine *machine)
{
    const char *base = json_string_value(json_object_get(machine->description, "base"));
    if (machine->missing[0] == '\0' || machine->shipped)
        return;
    fprintf(stderr, "tidemark: %s: warning: lacks %s; ", name, machine->missing);
    if (base != NULL)
        fprintf(stderr, "what \"%s\" has is taken\n", base);
    else
        fprintf(stderr, "low values are assumed (name a shipped machine as its \"base\")\n");
}

bool tdm_rates_note(const struct tdm_machine *machine, char out[TDM_RATES_NOTE_SIZE])
{
    if (!machine->measured)
        snprintf(out, TDM_RATES_NOTE_SIZE,
                 "not measured by tidemark: %s; tidemark calibrate measures them", machine->source);
    return !machine->measured;
}

enum tdm_status tdm_print_json(json_t *root, struct tdm_error *err)
{
    return tdm_json_write(stdout, true, root, err);
}
