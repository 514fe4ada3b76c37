/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of `tidemark predict` share: what was asked, the answer, and the answer as text and as JSON. Not for
 * use outside planner/cmd_predict*.c and planner/predict_json.c. */
#ifndef TDM_PLANNER_PREDICT_PARTS_H
#define TDM_PLANNER_PREDICT_PARTS_H

#include "methods/remedy.h"
#include "methods/timeline.h"
#include "plots/events_plot.h"

#include <jansson.h>

struct tdm_predict_request {
    const char *model, *machine, *method;
    uint64_t context, batch, gpus;
    const char *host_memory; /* NULL: what the machine has to plan on */
    uint64_t host_bytes;
    char host_pair[48];
    double margin;
    const char *pairs[TDM_METHOD_MOST_KEYS];
    size_t pair_count;
    struct tdm_picture timeline; /* its path: NULL: none; "-": no picture, but in JSON */
    bool as_json;
};

struct tdm_predict_answer {
    struct tdm_model *model;
    struct tdm_machine *machine;
    const struct tdm_method *method;
    struct tdm_method_settings settings;
    struct tdm_method_choices choices;
    struct tdm_method_prediction prediction;
    struct tdm_remedies remedies;         /* none where it fits */
    struct tdm_method_timeline *timeline; /* NULL: was not asked for */
};

/* What the needs of keys are asked of. */
static inline struct tdm_key_case tdm_predict_case(const struct tdm_predict_answer *a)
{
    return (struct tdm_key_case){
        .model = a->model, .settings = &a->settings, .choices = &a->choices};
}

/* ---- as text, on stdout (cmd_predict_text.c) ---- */

/* The model, the method, the machine, settings said and assumed, and those said without effect. */
void tdm_predict_print_head(const struct tdm_predict_request *r,
                            const struct tdm_predict_answer *a);
/* Peaks of each step by category; and that it fits, if it does. */
void tdm_predict_print_answer(const struct tdm_predict_request *r,
                              const struct tdm_predict_answer *a);
#define TDM_PREDICT_HOST_TEXT 160

/* "8 GPUs of a computer take 343.75 GiB of 110 GiB of host memory" */
const char *tdm_predict_host_text(const struct tdm_predict_answer *a,
                                  char out[TDM_PREDICT_HOST_TEXT]);
void tdm_predict_print_fits(const struct tdm_predict_request *r, const struct tdm_predict_answer *a,
                            uint64_t used_bytes);

/* ---- as JSON (predict_json.c): new objects, NULL if memory ran out ---- */

/* What was asked, beside the method's answer, whose reference is taken. */
json_t *tdm_predict_json(const struct tdm_predict_request *r, const struct tdm_predict_answer *a,
                         json_t *predicted);
json_t *tdm_predict_remedies_json(const struct tdm_remedies *remedies);
/* The answer of another system; `err`: why it does not fit. */
json_t *tdm_predict_peaks_json(const struct tdm_predict_answer *a, const struct tdm_error *err);

#endif
