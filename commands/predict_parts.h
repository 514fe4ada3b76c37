/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of `tidemark predict`: the request, the answer, and its output as text and as
 * JSON. Only for commands/cmd_predict*.c and commands/predict_json.c. */
#ifndef TDM_COMMANDS_PREDICT_PARTS_H
#define TDM_COMMANDS_PREDICT_PARTS_H

#include "methods/remedy.h"
#include "methods/timeline.h"
#include "planner/margin.h"
#include "commands/predict_from.h"
#include "commands/setting_words.h"
#include "plots/events_plot.h"

#include <jansson.h>

struct tdm_predict_request {
    const char *model, *machine, *method;
    const char *mode;                     /* "train" or "serve" */
    uint64_t context, batch, gpus, nodes; /* GPUs of all nodes together */
    char node_pair[40];                   /* the setting that --nodes stands for */
    struct tdm_said_memory memory;
    double margin;
    struct tdm_setting_list set;
    struct tdm_from from;
    bool verbose;                /* print all assumptions; finish the search for remedies */
    struct tdm_picture timeline; /* path NULL: no timeline; "-": in the JSON only, no picture */
    bool as_json;
};

struct tdm_predict_answer {
    struct tdm_model *model;
    struct tdm_machine *machine;
    const struct tdm_method *method;
    struct tdm_method_settings settings;
    struct tdm_method_choices choices;
    struct tdm_method_prediction prediction;
    uint64_t longest_tokens; /* longest context that fits with these settings, if this one does not;
                                0: none */
    uint64_t longest_work;   /* work spent to find it, in the unit of a prediction's work */
    struct tdm_remedies remedies;         /* empty if it fits */
    struct tdm_method_timeline *timeline; /* NULL: not requested */
};

/* The context in which a key's requirements are evaluated. */
static inline struct tdm_key_case tdm_predict_case(const struct tdm_predict_answer *a)
{
    return (struct tdm_key_case){
        .model = a->model, .settings = &a->settings, .choices = &a->choices};
}

/* ---- as text, on stdout (cmd_predict_text.c) ---- */

#define TDM_PREDICT_TEXT 320

/* "needs 151.20 GiB of 139.79 GiB, and 343.75 GiB of 110 GiB of host memory for 8 GPUs": the memory
 * that is exceeded or used. Returns `out`. */
const char *tdm_predict_need_text(const struct tdm_predict_request *r,
                                  const struct tdm_predict_answer *a, char out[TDM_PREDICT_TEXT]);
/* Prints the answer in one line, then the model, the method, the machine, the given settings, and
 * those of them that have no effect. */
void tdm_predict_print_head(const struct tdm_predict_request *r, const struct tdm_predict_answer *a,
                            const char *answer);
/* The first line of the answer for another system. Returns `out`. */
const char *tdm_predict_verdict_text(const struct tdm_predict_request *r,
                                     const struct tdm_predict_answer *a,
                                     char out[TDM_PREDICT_TEXT]);
/* Prints the peaks of each step by category. */
void tdm_predict_print_peaks(const struct tdm_predict_answer *a);
/* Prints the most important assumptions, or all of them with --verbose. */
void tdm_predict_print_assumed(const struct tdm_predict_request *r,
                               const struct tdm_predict_answer *a);

/* ---- as JSON (predict_json.c): new objects, NULL if memory ran out ---- */

/* docs/prediction.schema.json says what it has. */
#define TDM_PREDICTION_FORMAT "tidemark-prediction-1"

/* The request and the method's answer, whose reference is taken over. */
json_t *tdm_predict_json(const struct tdm_predict_request *r, const struct tdm_predict_answer *a,
                         json_t *predicted);
json_t *tdm_predict_remedies_json(const struct tdm_remedies *remedies);
/* ---- serving (predict_serve.c, predict_serve_text.c) ---- */

/* Points of a picture: contexts by powers of two, and a batch for each dtype of the cache. */
#define TDM_SERVE_POINTS 32u
struct tdm_serve_point {
    uint64_t context;
    uint64_t sequences[TDM_KV_DTYPES]; /* that the cache holds */
};

struct tdm_serve_report {
    struct tdm_serving_answer serving;
    uint64_t longest_tokens; /* of which the cache holds the batch; 0: none */
    struct tdm_serve_point points[TDM_SERVE_POINTS];
    uint32_t count;
    bool fits;
};

/* Prints the answer, draws it if asked. TDM_INFEASIBLE if the cache does not hold the batch. */
enum tdm_status tdm_predict_serve(const struct tdm_predict_request *r,
                                  const struct tdm_predict_answer *a, struct tdm_error *err);
/* The same as JSON, without printing. */
enum tdm_status tdm_predict_serve_answer(const struct tdm_predict_request *r,
                                         const struct tdm_predict_answer *a, json_t **answer,
                                         struct tdm_error *err);
void tdm_serve_print(const struct tdm_predict_request *r, const struct tdm_predict_answer *a,
                     const struct tdm_serve_report *report);

/* The answer for another system. `err`: why it does not fit. */
json_t *tdm_predict_peaks_json(const struct tdm_predict_answer *a, const struct tdm_error *err);

#endif
