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

/* Does a step multiply fp32 values, at rates that its machine does not describe? */
static bool lacks_fp32(const struct tdm_schedule *schedule)
{
    const struct tdm_dtypes *dtypes = &schedule->dtypes;
    const enum tdm_dtype factors[] = {dtypes->weights, dtypes->activations, dtypes->kv,
                                      dtypes->logits};
    bool fp32 = false;
    for (size_t i = 0; i < sizeof(factors) / sizeof(factors[0]); i++)
        fp32 = fp32 || factors[i] == TDM_DTYPE_FP32;
    return fp32 && !tdm_rate_is_fp32(schedule->machine->table[TDM_RATE_FP32_PRODUCT].of);
}

bool tdm_schedule_rates_note(const struct tdm_schedule *schedule, char out[TDM_RATES_NOTE_SIZE])
{
    if (tdm_rates_note(schedule->machine, out))
        return true;
    if (!lacks_fp32(schedule))
        return false;
    snprintf(out, TDM_RATES_NOTE_SIZE,
             "of fp32 products and attention not measured: those of bf16 are taken, and a card is "
             "many times slower; tidemark calibrate measures them");
    return true;
}

void tdm_note_ranks(const char *trace, int64_t step, uint32_t ranks, uint32_t without,
                    const char *file)
{
    char last[32] = "";
    if (without > 1)
        snprintf(last, sizeof(last), "s %" PRIu32 " to", ranks);
    fprintf(stderr,
            "tidemark: %s: rank%s %" PRIu32 " %s no op times of step %" PRId64
            "; %s has the other ranks\n",
            trace, last, ranks + without - 1, without > 1 ? "have" : "has", step, file);
}

enum tdm_status tdm_print_json(json_t *root, struct tdm_error *err)
{
    return tdm_json_write(stdout, true, root, err);
}
