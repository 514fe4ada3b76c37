/* SPDX-License-Identifier: Apache-2.0 */
/* What would make a step fit, in the words of the system that runs it. */
#ifndef TDM_METHODS_REMEDY_H
#define TDM_METHODS_REMEDY_H

#include "methods/prediction.h"

#define TDM_REMEDY_TEXT 1024u
#define TDM_REMEDY_CHANGES 24u
#define TDM_REMEDY_MOST 8u

/* What a change is to who makes it, from what is asked for first to what is asked for last. */
enum tdm_effect {
    TDM_EFFECT_TIME,     /* time at most; the same is computed */
    TDM_EFFECT_NUMERICS, /* the same is computed, in other dtypes */
    TDM_EFFECT_MACHINE,  /* a smaller batch, more GPUs, more host memory, another method */
    TDM_EFFECT_TRAINING, /* something else is trained: adapters, sparse attention */
};

const char *tdm_effect_name(enum tdm_effect effect); /* "time", "numerics", "machine", "training" */

/* A setting and what it becomes: a key of the method, or "batch", "gpus", "host_memory",
 * "method". */
struct tdm_remedy_change {
    const char *key;
    char value[32];
    char words[128]; /* as the system's users write it, which --set takes back up to a bracket or a
                      * second option; "" if it goes with the change before it */
};

/* Changes that make it fit together; none of them can be left out, unless the search ended before
 * it saw that. */
struct tdm_remedy {
    struct tdm_remedy_change changes[TDM_REMEDY_CHANGES];
    size_t count;
    enum tdm_effect effect;               /* the largest of the changes' */
    uint64_t peak_bytes;                  /* used, of a GPU, on the whole device */
    bool gives_back;                      /* as in the prediction */
    uint64_t kept_bytes, host_peak_bytes; /* as in the prediction */
    bool elsewhere; /* on more GPUs, with more host memory, or by another method */
};

struct tdm_remedies {
    struct tdm_remedy list[TDM_REMEDY_MOST];
    size_t count;
    bool complete;           /* false: the search ended before it had looked at everything */
    uint64_t gpus;           /* that were asked for */
    uint64_t longest_tokens; /* that fit as it is; 0: none */
};

/* What makes it fit, in the order of effects: single changes of a setting, the cheapest first, at
 * most three, or if none does, the fewest of them together; a smaller batch; more host memory if
 * only that is short; more GPUs; if nothing of that does, all of these with changes of settings,
 * and another method. Last, what trains something else. `settings`: tokens, batch and GPUs;
 * `choices`: what the user said of the method's keys; `asked`: what was predicted of these, after
 * tdm_method_need(); `longest_tokens`: of tdm_method_longest_below(). Nothing new is begun once
 * predictions took `most_work` (0: no limit). */
enum tdm_status tdm_method_remedies(const struct tdm_method *method, const struct tdm_model *model,
                                    const struct tdm_machine *machine,
                                    const struct tdm_method_settings *settings,
                                    const struct tdm_method_choices *choices, double margin,
                                    const struct tdm_method_prediction *asked,
                                    uint64_t longest_tokens, uint64_t most_work,
                                    struct tdm_remedies *out, struct tdm_error *err);

/* One line that says it. Returns `out`. */
const char *tdm_remedies_text(const struct tdm_remedies *remedies, char out[TDM_REMEDY_TEXT]);

#endif
