/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares methods: memory at the same contexts on the same machine, the longest context, the
 * bytes sent and a rough step time, ranked. tidemark's own schedule, on one GPU, is one of the
 * rows.
 *
 * A setting that the user did not give has the value that the method's keys define for comparisons
 * (key.h: compared), else the assumed value. A setting that the user gave goes to every method
 * that takes it.
 */
#ifndef TDM_COMMANDS_COMPARE_METHODS_H
#define TDM_COMMANDS_COMPARE_METHODS_H

#include "planner/margin.h"
#include "commands/own_method.h"
#include "commands/setting_words.h"

#define TDM_COMPARED_CONTEXTS 32u
#define TDM_COMPARED_TEXT 128u
#define TDM_REFUSAL_BYTES sizeof(struct tdm_error)

struct tdm_compare_request {
    const char *model, *machine;
    uint64_t batch, gpus;
    double margin;
    struct tdm_said_memory memory;
    uint64_t contexts[TDM_COMPARED_CONTEXTS]; /* ascending */
    size_t context_count;
    struct tdm_setting_list set;
    const char *names[TDM_METHOD_MOST_KEYS]; /* from --method; empty: all methods that run on this
                                                number of GPUs */
    size_t name_count;
    void *self;
    /* Progress callback: what is being predicted. Context 0: searching for the longest context. May
     * be NULL. Several threads call it. */
    void (*going)(void *self, const char *method, uint64_t context);
};

/* A step at one context. */
struct tdm_compared_point {
    uint64_t context; /* 0: none; larger than requested if the method needs a multiple */
    bool fits;
    uint64_t used_bytes, host_bytes;     /* peaks of a GPU and of its share of host memory */
    uint64_t enough_bytes;               /* of used_bytes, if cached memory is given back */
    uint64_t categories[TDM_CATEGORIES]; /* at the peak of a GPU */
    struct tdm_method_cost cost;
    double step_seconds; /* rough; for tidemark's own schedule the simulated time */
};

struct tdm_compared {
    const struct tdm_method *method;
    struct tdm_method_settings settings; /* except tokens */
    struct tdm_method_choices choices;
    char texts[TDM_METHOD_MOST_KEYS][TDM_COMPARED_TEXT]; /* "checkpointing=on": given by the user or
                                                            set for comparisons */
    size_t text_count;
    char refused[TDM_REFUSAL_BYTES]; /* why it cannot run, and what would help; "" if it can run */
    struct tdm_compared_point points[TDM_COMPARED_CONTEXTS];
    /* A multiple of 1K tokens (or of what the method needs). Above 512K tokens it is accurate to
     * one part in 512. */
    struct tdm_compared_point longest;
};

struct tdm_methods_comparison {
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_links links; /* of the machine; the user may set gpus_per_node */
    bool nodes_are_assumed;
    struct tdm_compared **rows; /* longest context first, then fastest; refused methods last */
    size_t count;
};

/* The GPUs that tidemark's own schedule is for: at most those of one computer. */
uint64_t tdm_compared_own_gpus(const struct tdm_compare_request *request,
                               const struct tdm_methods_comparison *c);

/* Tokens per second of the group of GPUs: tokens of all sequences of a step, over the step's
 * seconds. */
double tdm_compared_rate(const struct tdm_compared_point *point);

/* Index of the requested context at which the most methods fit. On a tie, the largest context. */
size_t tdm_compared_common(const struct tdm_methods_comparison *c,
                           const struct tdm_compare_request *request);

/* The caller frees *comparison, also on failure. TDM_USAGE: an unknown method name, or a setting
 * that no method takes. */
enum tdm_status tdm_compare_methods(const struct tdm_compare_request *request,
                                    struct tdm_methods_comparison *comparison,
                                    struct tdm_error *err);
void tdm_methods_comparison_free(struct tdm_methods_comparison *comparison);

#endif
