/* SPDX-License-Identifier: Apache-2.0 */
/* Small helpers of the commands that print. */
#include "planner/print.h"

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
    if (machine->missing[0] == '\0')
        return;
    fprintf(stderr, "tidemark: %s: warning: lacks %s; ", name, machine->missing);
    if (base != NULL)
        fprintf(stderr, "what \"%s\" has is taken\n", base);
    else
        fprintf(stderr, "low values are assumed (name a shipped machine as its \"base\")\n");
}

enum tdm_status tdm_print_json(json_t *root, struct tdm_error *err)
{
    if (root == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for JSON");
    int failed =
        json_dumpf(root, stdout, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(12));
    json_decref(root);
    if (failed || fputc('\n', stdout) == EOF)
        return tdm_fail(err, TDM_IO, "standard output cannot be written");
    return TDM_OK;
}
