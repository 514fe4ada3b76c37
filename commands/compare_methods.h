/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Methods side by side: what each takes at the same contexts on the same machine, how long a
 * context it reaches, what it sends and roughly how long a step takes, ranked. tidemark's own
 * schedule, on one GPU, is among them.
 *
 * Settings that nobody said are those that the method's keys have for comparisons (key.h:
 * compared), else what is assumed. A setting that was said goes to every method that takes it.
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
    uint64_t contexts[TDM_COMPARED_CONTEXTS]; /* rising */
    size_t context_count;
    struct tdm_setting_list set;
    const char
        *names[TDM_METHOD_MOST_KEYS]; /* of --method; none: all that can run on so many GPUs */
    size_t name_count;
    void *self;
    /* Is told what is being predicted (context 0: the longest context is looked for); may be
     * NULL. */
    void (*going)(void *self, const char *method, uint64_t context);
};

/* A step of so long a context. */
struct tdm_compared_point {
    uint64_t
        context; /* 0: there is none; more than was asked for where the method needs a multiple */
    bool fits;
    uint64_t used_bytes, host_bytes;     /* peaks of a GPU and of its host memory */
    uint64_t categories[TDM_CATEGORIES]; /* at the peak of a GPU */
    struct tdm_method_cost cost;
    double step_seconds; /* rough; of tidemark's own schedule that of its simulation */
};

struct tdm_compared {
    const struct tdm_method *method;
    struct tdm_method_settings settings; /* but for the tokens */
    struct tdm_method_choices choices;
    char texts[TDM_METHOD_MOST_KEYS]
              [TDM_COMPARED_TEXT]; /* "checkpointing=on": said, or for comparisons */
    size_t text_count;
    char refused[TDM_REFUSAL_BYTES]; /* why it cannot run so, and what would; "" if it can */
    struct tdm_compared_point points[TDM_COMPARED_CONTEXTS];
    /* A multiple of 1K tokens (or of what the method needs), to within one part in 512 above 512K
     * tokens. */
    struct tdm_compared_point longest;
};

struct tdm_methods_comparison {
    struct tdm_model *model;
    struct tdm_machine *machine;
    struct tdm_links links; /* of the machine; gpus_per_node may be said */
    bool nodes_are_assumed;
    struct tdm_compared *
        *rows; /* the longest context first, of equal ones the fastest; refused ones last */
    size_t count;
};

/* Tokens of all sequences of a step by its seconds, as far as the group of GPUs is fast. */
double tdm_compared_rate(const struct tdm_compared_point *point);

/* The number of the request's context at which most methods fit; of several the largest. */
size_t tdm_compared_common(const struct tdm_methods_comparison *c,
                           const struct tdm_compare_request *request);

/* The caller frees *comparison in every case. TDM_USAGE: a name, a setting that no method takes. */
enum tdm_status tdm_compare_methods(const struct tdm_compare_request *request,
                                    struct tdm_methods_comparison *comparison,
                                    struct tdm_error *err);
void tdm_methods_comparison_free(struct tdm_methods_comparison *comparison);

#endif
