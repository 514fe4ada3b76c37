/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the answer of `tidemark predict` as text. */
#include "commands/predict_parts.h"

#include "base/units.h"
#include "commands/own_method.h"
#include "commands/print.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void print_row(const char *name, const struct tdm_predict_answer *a, unsigned indent,
                      uint64_t (*bytes)(const struct tdm_predict_answer *a,
                                        const struct tdm_method_step *step, unsigned which),
                      unsigned which)
{
    char text[TDM_FORMAT_SIZE];
    bool any = false;
    for (uint32_t i = 0; i < a->prediction.count; i++)
        any |= bytes(a, &a->prediction.steps[i], which) > 0;
    if (!any)
        return;
    printf("%*s%-*s", (int)indent, "", (int)(24 - indent), name);
    for (uint32_t i = 0; i < a->prediction.count; i++)
        printf(" %12s", tdm_format_bytes(bytes(a, &a->prediction.steps[i], which), text));
    putchar('\n');
}

static uint64_t of_category(const struct tdm_predict_answer *a, const struct tdm_method_step *step,
                            unsigned which)
{
    (void)a;
    return step->torch.categories[which];
}

enum total { ALLOCATED, RESERVED, CACHED, RUNTIME, USED, HOST };

static uint64_t of_total(const struct tdm_predict_answer *a, const struct tdm_method_step *step,
                         unsigned which)
{
    const struct tdm_torch_bytes *peak = &step->torch.peak;
    const uint64_t totals[] = {[ALLOCATED] = peak->allocated,
                               [RESERVED] = peak->reserved,
                               [CACHED] = tdm_method_cached_bytes(step),
                               [RUNTIME] = tdm_torch_runtime_bytes(&a->prediction.runtime),
                               [USED] = step->used_bytes,
                               [HOST] = step->torch.host_bytes};
    return totals[which];
}

/* Prints the given settings, one per line. */
static void print_settings(const struct tdm_predict_answer *a)
{
    const struct tdm_method_key *key;
    const char *head = "settings";
    for (size_t k = 0; (key = tdm_method_key(a->method, k)) != NULL; k++) {
        if (a->choices.said[k] == NULL)
            continue;
        printf("%-10s %s=%s\n", head, key->name, a->choices.said[k]);
        head = "";
    }
}

/* Appends one assumption. A line has at most LINE characters. */
#define LINE 100

static int add_assumed(int column, const char *text)
{
    int length = (int)strlen(text);
    if (column == 0)
        return printf("%-10s %s", "assumed", text);
    if (column + 2 + length <= LINE)
        return column + printf(", %s", text);
    return printf(",\n%-10s %s", "", text) - 2;
}

void tdm_predict_print_assumed(const struct tdm_predict_request *r,
                               const struct tdm_predict_answer *a)
{
    const struct tdm_method_key *key;
    const char *assumption = tdm_method_assumption(a->model, &a->settings);
    const struct tdm_key_case c = tdm_predict_case(a);
    char text[TDM_KEY_TEXT], pair[2 * TDM_KEY_TEXT], rest[64];
    unsigned others = 0;
    int column = 0;
    for (size_t k = 0; (key = tdm_method_key(a->method, k)) != NULL; k++) {
        const char *value = a->choices.said[k] != NULL ? NULL : tdm_key_assumed(key, &c, text);
        if (value == NULL)
            continue;
        if (!tdm_key_is_main(key) && !r->verbose) {
            others++;
            continue;
        }
        snprintf(pair, sizeof(pair), "%s=%s", key->name, value);
        column = add_assumed(column, pair);
    }
    if (assumption != NULL && r->verbose)
        column = add_assumed(column, assumption);
    else if (assumption != NULL && !tdm_method_is_limit(assumption))
        others++;
    snprintf(rest, sizeof(rest), "%u more (--verbose)", others);
    if (others > 0)
        column = add_assumed(column, rest);
    if (column > 0)
        putchar('\n');
    if (assumption != NULL && !r->verbose && tdm_method_is_limit(assumption))
        printf("%-10s %s\n", "note", assumption);
}

/* Prints the settings that were never compared with a run, one per line. */
static void print_unmeasured(const struct tdm_predict_answer *a)
{
    const struct tdm_key_case c = tdm_predict_case(a);
    const struct tdm_method_key *key;
    char text[TDM_KEY_TEXT];
    for (size_t k = 0; (key = tdm_method_key(a->method, k)) != NULL; k++) {
        const char *said = a->choices.said[k];
        const char *value = said != NULL ? said : tdm_key_assumed(key, &c, text);
        if (value != NULL && tdm_key_unmet(key, &c) == NULL && tdm_key_is_unmeasured(key, value))
            printf("%-10s " TDM_NOT_MEASURED "%s=%s was compared with no run on a GPU\n", "note",
                   key->name, value);
    }
}

/* Prints the given settings that have no effect, one per line. */
static void print_notes(const struct tdm_predict_answer *a)
{
    const struct tdm_key_case c = tdm_predict_case(a);
    const struct tdm_method_key *key;
    const char *head = "notes";
    char text[TDM_KEY_TEXT];
    for (size_t k = 0; (key = tdm_method_key(a->method, k)) != NULL; k++)
        if (a->choices.said[k] != NULL && tdm_key_without_effect(key, &c, text) != NULL) {
            printf("%-10s %s\n", head, text);
            head = "";
        }
}

/* Prints what the files of --from say and the answer does not count, one per line. */
static void print_lacking(const struct tdm_predict_request *r)
{
    for (size_t i = 0; i < json_array_size(r->from.lacking); i++)
        printf("%-10s not modelled: %s\n", i == 0 ? "files" : "",
               json_string_value(json_array_get(r->from.lacking, i)));
}

/* Prints how much of a sequence one GPU has. */
static void print_division(const struct tdm_predict_request *r, const struct tdm_predict_answer *a)
{
    const struct tdm_context *c = &a->settings.torch.context;
    uint64_t padded = tdm_context_padded_tokens(c, r->context);
    char digits[TDM_DIGITS_SIZE];
    printf("%-10s ", "a GPU");
    if (padded != r->context)
        printf("padded to %s, ", tdm_format_digits(padded, digits));
    printf("%s tokens", tdm_format_digits(tdm_context_local_tokens(c, r->context), digits));
    printf(" of a sequence over %" PRIu64 " GPUs", c->ranks);
    if (c->ring_degree > 1 && c->ulysses_degree > 1)
        printf("; rings of %" PRIu64 " GPUs, all-to-all among %" PRIu64, c->ring_degree,
               c->ulysses_degree);
    putchar('\n');
}

void tdm_predict_print_head(const struct tdm_predict_request *r, const struct tdm_predict_answer *a,
                            const char *answer)
{
    char digits[TDM_DIGITS_SIZE], text[TDM_FORMAT_SIZE], source[TDM_HOST_SOURCE_BYTES];
    printf("%s%s\n\n", answer,
           json_array_size(r->from.lacking) > 0 ? "; not all settings are modelled" : "");
    printf("%-10s %s: %s parameters, %" PRIu32 " layers\n", "model", a->model->name,
           tdm_format_digits(a->model->parameters, digits), a->model->layers);
    printf("%-10s %s: %s\n", "method", a->method->name, tdm_method_summary(&a->settings));
    bool serves = a->method->serves;
    printf("%-10s %" PRIu64 " sequence%s%s of %s tokens (%s)\n", serves ? "cache" : "step",
           r->batch, r->batch == 1 ? "" : "s",
           serves                         ? ""
           : r->gpus == 1                 ? ""
           : a->method->divides_sequence  ? " a group of GPUs"
           : tdm_method_is_own(a->method) ? " on all GPUs"
                                          : " a GPU",
           tdm_format_tokens(r->context, text), tdm_format_digits(r->context, digits));
    if (a->settings.torch.context.ranks > 0)
        print_division(r, a);
    printf("%-10s %s: %s\n", "machine", a->machine->name, a->machine->title);
    if (r->memory.has_device)
        printf("%-10s %s of memory, as given; all else as %s\n", "",
               tdm_format_bytes(r->memory.device_bytes, text), a->machine->name);
    if (a->prediction.host_peak_bytes > 0 || tdm_method_is_own(a->method))
        printf("%-10s %s, %s\n", "host",
               tdm_format_bytes(tdm_machine_far(a->machine)->capacity_bytes, text),
               tdm_host_source(a->machine, &r->memory, source));
    print_settings(a);
    print_unmeasured(a);
    print_notes(a);
    print_lacking(r);
    putchar('\n');
}

/* Prints the step that needs the most memory. */
static void print_largest(const struct tdm_torch_step *step)
{
    char name[TDM_LABEL_BYTES], text[TDM_FORMAT_SIZE];
    if (step->largest_count > 0)
        printf("%-52s %12s %8s  %s\n", "largest at the peak", "bytes", "tensors", "category");
    for (uint32_t i = 0; i < step->largest_count; i++) {
        const struct tdm_tensor_group *group = &step->largest[i];
        printf("  %-50s %12s %8" PRIu32 "  %s\n", tdm_label_format(&group->label, name),
               tdm_format_bytes(group->bytes, text), group->count,
               tdm_method_category_name(group->category));
    }
    if (step->largest_count > 0)
        putchar('\n');
}

const char *tdm_predict_need_text(const struct tdm_predict_request *r,
                                  const struct tdm_predict_answer *a, char out[TDM_PREDICT_TEXT])
{
    const struct tdm_method_prediction *p = &a->prediction;
    uint64_t device_bytes = a->machine->topology.places[TDM_DEVICE].capacity_bytes;
    char need[TDM_FORMAT_SIZE], has[TDM_FORMAT_SIZE], peak[TDM_FORMAT_SIZE], margin[48] = "";
    bool known = p->runs || p->endless, lacks = p->failure.lacks != NULL;
    uint64_t used_bytes = p->fits_device ? p->kept_bytes
                          : lacks        ? p->failure.used_bytes
                          : known        ? tdm_method_peak_bytes(p)
                                         : p->least_bytes;
    if (!p->fits_device && !lacks && used_bytes <= device_bytes)
        snprintf(margin, sizeof(margin), " and a margin of %g%%", 100 * r->margin);
    tdm_format_bytes(used_bytes, need);
    tdm_format_bytes(device_bytes, has);
    int length =
        p->fits_device && p->gives_back
            ? snprintf(
                  out, TDM_PREDICT_TEXT,
                  "uses %s of %s (%s is enough, as PyTorch gives cached memory back when it must)",
                  tdm_format_bytes(tdm_method_peak_bytes(p), peak), has, need)
            : snprintf(out, TDM_PREDICT_TEXT, "%s%s%s of %s",
                       lacks   ? "stops at "
                       : known ? "needs "
                               : "needs more than ",
                       need, margin, has);
    if (p->host_peak_bytes == 0)
        return out;
    length += snprintf(out + length, TDM_PREDICT_TEXT - (size_t)length,
                       ", and %s of %s of host memory", tdm_format_bytes(p->host_peak_bytes, need),
                       tdm_format_bytes(tdm_machine_far(a->machine)->capacity_bytes, has));
    if (p->host_gpus > 1)
        snprintf(out + length, TDM_PREDICT_TEXT - (size_t)length, " for %" PRIu64 " GPUs",
                 p->host_gpus);
    return out;
}

const char *tdm_predict_verdict_text(const struct tdm_predict_request *r,
                                     const struct tdm_predict_answer *a, char out[TDM_PREDICT_TEXT])
{
    const struct tdm_method_prediction *p = &a->prediction;
    char text[TDM_FORMAT_SIZE];
    tdm_predict_need_text(r, a, out);
    int length = (int)strlen(out);
    char *end = out + length;
    size_t end_bytes = TDM_PREDICT_TEXT - (size_t)length;
    if (p->fits)
        snprintf(end, end_bytes, ": fits with a margin of %g%%", 100 * r->margin);
    else if (p->failure.lacks != NULL)
        snprintf(end, end_bytes, ": too few %s", p->failure.lacks);
    else if (a->longest_tokens > 0)
        snprintf(end, end_bytes, ": does not fit; longest context %s",
                 tdm_format_tokens(a->longest_tokens, text));
    else
        snprintf(end, end_bytes, ": does not fit; no context does");
    return out;
}

void tdm_predict_print_peaks(const struct tdm_predict_answer *a)
{
    const struct tdm_method_prediction *p = &a->prediction;
    char head[32];
    static const char *const whose[] = {[TDM_RUN_FIRST] = "peak of a GPU",
                                        [TDM_RUN_LAST] = "peak of the last GPU",
                                        [TDM_RUN_BETWEEN] = "peak of a middle GPU"};
    printf("%-24s", whose[p->run]);
    for (uint32_t i = 0; i < p->count; i++) {
        snprintf(head, sizeof(head), "step %" PRIu32, p->steps[i].number);
        printf(" %12s", head);
    }
    putchar('\n');
    print_row("used", a, 2, of_total, USED);
    print_row("reserved", a, 4, of_total, RESERVED);
    print_row("allocated", a, 6, of_total, ALLOCATED);
    for (unsigned c = 0; c < TDM_METHOD_CATEGORIES; c++)
        print_row(tdm_method_category_name((enum tdm_method_category)c), a, 8, of_category, c);
    print_row("allocator", a, 6, of_total, CACHED);
    print_row("runtime", a, 4, of_total, RUNTIME);
    print_row("host memory", a, 2, of_total, HOST);
    printf("%-24s", "  in phase");
    for (uint32_t i = 0; i < p->count; i++)
        printf(" %12s", tdm_torch_phase_name(p->steps[i].torch.peak_phase));
    printf("\n\n");
    print_largest(&p->steps[p->highest].torch);
}
