/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the answer of `tidemark predict --mode serve` as text. */
#include "commands/predict_parts.h"

#include "base/size.h"
#include "base/units.h"
#include "commands/print.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

/* A row of bytes, and what is to be said of it. */
__attribute__((format(printf, 3, 4))) static void print_bytes(const char *name, uint64_t bytes,
                                                              const char *format, ...)
{
    char text[TDM_FORMAT_SIZE];
    va_list arguments;
    printf("%-24s %12s", name, tdm_format_bytes(bytes, text));
    if (format != NULL) {
        printf("  ");
        va_start(arguments, format);
        vprintf(format, arguments);
        va_end(arguments);
    }
    putchar('\n');
}

static void verdict(const struct tdm_predict_request *r, const struct tdm_serve_report *report,
                    char out[TDM_PREDICT_TEXT])
{
    const struct tdm_serving_answer *s = &report->serving;
    char tokens[TDM_DIGITS_SIZE], context[TDM_FORMAT_SIZE], longest[TDM_DIGITS_SIZE];
    char held[TDM_DIGITS_SIZE];
    int length =
        snprintf(out, TDM_PREDICT_TEXT, "holds %s tokens of cache, %s sequence%s of %s: %s",
                 tdm_format_digits(s->cache_tokens, tokens),
                 tdm_format_digits(s->held_sequences, held), s->held_sequences == 1 ? "" : "s",
                 tdm_format_tokens(r->context, context), report->fits ? "fits" : "does not fit");
    if (report->longest_tokens == 0)
        snprintf(out + length, TDM_PREDICT_TEXT - (size_t)length, "; no context does");
    else
        snprintf(out + length, TDM_PREDICT_TEXT - (size_t)length,
                 "; longest context %s tokens of %" PRIu64 " sequence%s",
                 tdm_format_digits(report->longest_tokens, longest), r->batch,
                 r->batch == 1 ? "" : "s");
}

static void print_gpu(const struct tdm_predict_answer *a, const struct tdm_serving_answer *s)
{
    const struct tdm_serving_rank *rank = &s->rank;
    const struct tdm_serving *serving = &a->settings.serving;
    char text[TDM_FORMAT_SIZE], digits[2][TDM_DIGITS_SIZE];
    printf("%-24s %12s\n", "of a GPU", "bytes");
    print_bytes("  budget", s->budget_bytes, "%g of %s", serving->utilization,
                tdm_format_bytes(a->machine->topology.places[TDM_DEVICE].capacity_bytes, text));
    print_bytes("    weights", rank->weights_bytes, "with %s of RoPE's table",
                tdm_format_bytes(rank->rope_bytes, text));
    print_bytes("    activations", tdm_most(rank->forward_bytes, rank->sampler_bytes),
                "peak of the profile run, %s tokens of %s sequences, in the %s",
                tdm_format_digits(s->batched_tokens, digits[0]),
                tdm_format_digits(s->sequences, digits[1]),
                rank->sampler_bytes > rank->forward_bytes ? "sampler" : "layers");
    print_bytes("    not torch's", rank->non_torch_bytes, NULL);
    print_bytes("    K and V", rank->cache_bytes, "%s blocks of %" PRIu64 " tokens, %s each",
                tdm_format_digits(s->blocks, digits[0]),
                tdm_serving_block_tokens(a->model, serving),
                tdm_format_bytes(rank->block_bytes, text));
    if (rank->graph_bytes > 0)
        print_bytes(serving->version < TDM_VLLM_0_21 ? "  CUDA graphs" : "    CUDA graphs",
                    rank->graph_bytes, "%s the budget; an estimate",
                    serving->version < TDM_VLLM_0_21 ? "beside" : "within");
    if (serving->pipeline_ranks > 1)
        printf("%-24s stage %" PRIu32 " of %" PRIu64 " has room for the fewest blocks\n", "",
               s->stage + 1, serving->pipeline_ranks);
    if (s->groups > 1)
        printf("%-24s %" PRIu32 " groups of layers have block tables of their own\n", "",
               s->groups);
    putchar('\n');
}

static void print_sglang_gpu(const struct tdm_predict_answer *a, const struct tdm_serving_answer *s)
{
    const struct tdm_serving_rank *rank = &s->rank;
    const uint64_t page = tdm_serving_block_tokens(a->model, &a->settings.serving);
    char text[TDM_FORMAT_SIZE], digits[2][TDM_DIGITS_SIZE];
    printf("%-24s %12s\n", "of a GPU", "bytes");
    print_bytes("  budget", s->budget_bytes, "%g of %s that are free before weights are loaded",
                s->share, tdm_format_bytes(s->free_bytes, text));
    print_bytes("    weights", rank->weights_bytes, "with %s of RoPE's table",
                tdm_format_bytes(rank->rope_bytes, text));
    print_bytes("    loaded beside them", rank->non_torch_bytes, NULL);
    print_bytes("    K and V", rank->cache_bytes, "%s pages of %" PRIu64 " token%s, %s each",
                tdm_format_digits(rank->blocks, digits[0]), page, page == 1 ? "" : "s",
                tdm_format_bytes(rank->block_bytes, text));
    print_bytes("  rest", s->free_bytes - s->budget_bytes,
                "for graphs, and activations: %s of %s tokens in a layer",
                tdm_format_bytes(rank->forward_bytes, text),
                tdm_format_digits(s->batched_tokens, digits[1]));
    putchar('\n');
}

static void print_points(const struct tdm_predict_answer *a, const struct tdm_serve_report *report)
{
    char text[TDM_FORMAT_SIZE], digits[TDM_DIGITS_SIZE];
    printf("%-24s %12s\n", "context", "sequences");
    for (uint32_t i = 0; i < report->count; i++) {
        uint64_t held = report->points[i].sequences[a->settings.serving.kv_dtype];
        if (held > 0)
            printf("  %-22s %12s\n", tdm_format_tokens(report->points[i].context, text),
                   tdm_format_digits(held, digits));
    }
    putchar('\n');
}

void tdm_serve_print(const struct tdm_predict_request *r, const struct tdm_predict_answer *a,
                     const struct tdm_serve_report *report)
{
    const char *assumption = tdm_method_assumption(a->model, &a->settings);
    char answer[TDM_PREDICT_TEXT];
    verdict(r, report, answer);
    tdm_predict_print_head(r, a, answer);
    if (a->settings.serving.sglang)
        print_sglang_gpu(a, &report->serving);
    else
        print_gpu(a, &report->serving);
    print_points(a, report);
    if (assumption != NULL && !r->verbose)
        printf("%-10s %s\n", "note", assumption);
    tdm_predict_print_assumed(r, a);
}
