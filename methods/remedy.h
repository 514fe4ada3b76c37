/* SPDX-License-Identifier: Apache-2.0 */
/* Changes that would make a step fit, in the terms of the system that runs it. */
#ifndef TDM_METHODS_REMEDY_H
#define TDM_METHODS_REMEDY_H

#include "methods/prediction.h"

#define TDM_REMEDY_TEXT 1024u
#define TDM_REMEDY_CHANGES 24u
#define TDM_REMEDY_MOST 8u

/* How much a change affects the user, from least to most. Changes with a smaller effect are
 * suggested first. */
enum tdm_effect {
    TDM_EFFECT_TIME,     /* at most time; the same values are computed */
    TDM_EFFECT_NUMERICS, /* the same computation in other dtypes */
    TDM_EFFECT_MACHINE,  /* a smaller batch, more GPUs, more host memory, another method */
    TDM_EFFECT_TRAINING, /* another training: adapters, sparse attention */
};

const char *tdm_effect_name(enum tdm_effect effect); /* "time", "numerics", "machine", "training" */

/* A setting and its new value: a key of the method, or "batch", "gpus", "host_memory", "method". */
struct tdm_remedy_change {
    const char *key;
    char value[32];
    char words[128]; /* as users of the system write it. --set accepts it up to a bracket or a
                        second option. "": the change before it implies this one */
};

/* Changes that together make the step fit. None of them can be left out, unless the search ended
 * before it established that. */
struct tdm_remedy {
    struct tdm_remedy_change changes[TDM_REMEDY_CHANGES];
    size_t count;
    enum tdm_effect effect;               /* the largest effect of its changes */
    uint64_t peak_bytes;                  /* used bytes of a GPU, on the whole device */
    bool gives_back;                      /* as in the prediction */
    uint64_t kept_bytes, host_peak_bytes; /* as in the prediction */
    bool elsewhere;                       /* with more GPUs, more host memory, or another method */
};

struct tdm_remedies {
    struct tdm_remedy list[TDM_REMEDY_MOST];
    size_t count;
    bool complete;           /* false: the search ended before it tried everything */
    bool context_alone;      /* neither other batches nor GPUs nor methods were tried */
    uint64_t gpus;           /* number that the user asked for */
    uint64_t longest_tokens; /* the longest context that fits without changes; 0: none does */
};

/* Finds remedies in the order of effects. First come single changes of a setting, the cheapest
 * first, at most three; if none suffices, the smallest set of changes that does. Then come a
 * smaller batch, more host memory if only that is short, and more GPUs. If none of these suffices,
 * they are combined with changes of settings, and another method is tried. Changes to what is
 * trained come last. ¶ `settings`: tokens, batch and GPUs. `choices`: the keys that the user set.
 * `asked`: the prediction for them, after tdm_method_need(). `longest_tokens`: from
 * tdm_method_longest_below(). No further prediction starts once predictions have taken `most_work`
 * (0: no limit), and one that takes more than what is left, and much, is ended. */
enum tdm_status tdm_method_remedies(const struct tdm_method *method, const struct tdm_model *model,
                                    const struct tdm_machine *machine,
                                    const struct tdm_method_settings *settings,
                                    const struct tdm_method_choices *choices, double margin,
                                    const struct tdm_method_prediction *asked,
                                    uint64_t longest_tokens, uint64_t most_work,
                                    struct tdm_remedies *out, struct tdm_error *err);

/* The remedies as one line. Returns `out`. */
const char *tdm_remedies_text(const struct tdm_remedies *remedies, char out[TDM_REMEDY_TEXT]);

#endif
