/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz targets of what is parsed in memory: configs, machines, schedules, settings. */
#include "tests/fuzz/fuzz.h"

#include "base/units.h"
#include "machines/machine.h"
#include "methods/method.h"
#include "methods/prediction.h"
#include "models/model.h"
#include "schedule/program.h"
#include "schedule/schedule.h"
#include "schedule/training_settings.h"
#include "schedule/validate.h"

#include <string.h>

bool tdm_fuzz_config(const uint8_t *data, size_t bytes)
{
    json_t *root = tdm_fuzz_json(data, bytes);
    struct tdm_model *model = NULL;
    struct tdm_error err = {0};
    bool taken = root != NULL &&
                 tdm_fuzz_taken(tdm_model_from_config("input", "input", root, &model, &err), &err);
    if (taken) {
        char unknown[TDM_MODEL_UNKNOWN];
        (void)tdm_model_unknown(model, unknown);
        (void)tdm_model_matmul_parameters(model);
        double *frequencies = malloc((model->head_dim / 2 + 1) * sizeof(*frequencies)), factor;
        TDM_FUZZ_CHECK(frequencies != NULL);
        tdm_rope_inverse_frequencies(&model->rope, model->head_dim, frequencies, &factor);
        free(frequencies);
        tdm_model_free(model);
    }
    json_decref(root);
    return taken;
}

bool tdm_fuzz_machine(const uint8_t *data, size_t bytes)
{
    json_t *root = tdm_fuzz_json(data, bytes);
    struct tdm_machine *machine = NULL;
    struct tdm_error err = {0};
    bool taken =
        root != NULL && tdm_fuzz_taken(tdm_machine_from_json("input", root, &machine, &err), &err);
    if (taken) {
        struct tdm_machine *again = NULL;
        /* what a schedule keeps of it can be read again */
        TDM_FUZZ_CHECK(tdm_machine_from_json("again", machine->description, &again, &err) ==
                       TDM_OK);
        tdm_machine_free(again);
        tdm_machine_free(machine);
    }
    json_decref(root);
    return taken;
}

/* ---- schedules ---- */

/* Few enough ops to lower and validate for every input? */
static bool is_small(const struct tdm_schedule *schedule)
{
    uint64_t chunks = schedule->sequence_count;
    for (uint32_t i = 0; i < schedule->sequence_count; i++)
        chunks += schedule->sequences[i].tokens / schedule->chunk_tokens;
    return schedule->model->layers <= 4 && chunks <= 16 &&
           tdm_schedule_tokens(schedule) / schedule->page_tokens <= 256 && schedule->ranks <= 4;
}

/* A schedule that was read can be lowered to a valid program, unless its sizes are too large. */
static void lower(const struct tdm_schedule *schedule)
{
    struct tdm_program *program = NULL;
    struct tdm_error err = {0};
    if (!tdm_fuzz_taken(tdm_program_lower(schedule, &program, &err), &err))
        return;
    uint64_t unlimited[TDM_MAX_PLACES];
    for (unsigned place = 0; place < TDM_MAX_PLACES; place++)
        unlimited[place] = UINT64_MAX;
    if (tdm_program_validate(program, unlimited, &err) != TDM_OK) {
        printf("%s\n", err.message);
        TDM_FUZZ_CHECK(!"the program is valid");
    }
    tdm_program_free(program);
}

bool tdm_fuzz_schedule(const uint8_t *data, size_t bytes)
{
    json_t *root = tdm_fuzz_json(data, bytes), *first = NULL, *second = NULL;
    struct tdm_schedule *schedule = NULL, *again = NULL;
    struct tdm_error err = {0};
    bool taken = root != NULL &&
                 tdm_fuzz_taken(tdm_schedule_from_json("input", root, &schedule, &err), &err);
    if (taken) {
        /* what is written of it is the same schedule */
        TDM_FUZZ_CHECK(tdm_schedule_to_json(schedule, NULL, &first, &err) == TDM_OK);
        if (tdm_schedule_from_json("again", first, &again, &err) != TDM_OK) {
            printf("%s\n", err.message);
            TDM_FUZZ_CHECK(!"it can be read again");
        }
        TDM_FUZZ_CHECK(tdm_schedule_to_json(again, NULL, &second, &err) == TDM_OK);
        TDM_FUZZ_CHECK(json_equal(first, second));
        if (is_small(schedule))
            lower(schedule);
        json_decref(first);
        json_decref(second);
        tdm_schedule_free(schedule);
        tdm_schedule_free(again);
    }
    json_decref(root);
    return taken;
}

/* ---- settings ---- */

#define MOST_LINES 12u

/* The settings of a method, or of a training ("train"). A model and a machine are always the same:
 * those of the schedule in the corpus. */
static bool read_settings(const char *name, const char *const *pairs, size_t count)
{
    static struct tdm_schedule *schedule;
    struct tdm_error err = {0};
    if (schedule == NULL) {
        json_t *plan = tdm_fuzz_seed("schedule/plan.json");
        TDM_FUZZ_CHECK(tdm_schedule_from_json("plan", plan, &schedule, &err) == TDM_OK);
        json_decref(plan);
    }
    if (strcmp(name, "train") == 0) {
        struct tdm_schedule changed = *schedule; /* they only change its optimizer */
        return tdm_fuzz_taken(tdm_training_settings_apply(pairs, count, &changed, &err), &err);
    }
    const struct tdm_method *method;
    if (!tdm_fuzz_taken(tdm_method_find(name, &method, &err), &err))
        return false;
    struct tdm_method_settings settings = {0};
    struct tdm_method_choices choices = {0};
    settings.torch.tokens = 256;
    settings.torch.batch = 1;
    settings.torch.ranks = (uint32_t)method->least_gpus;
    return tdm_fuzz_taken(tdm_method_apply(method, pairs, count, &settings, &choices, &err),
                          &err) &&
           tdm_fuzz_taken(tdm_method_check(schedule->model, &settings, &err), &err);
}

bool tdm_fuzz_settings(const uint8_t *data, size_t bytes)
{
    const char *lines[MOST_LINES];
    size_t count = 0;
    char *text = malloc(bytes + 1);
    TDM_FUZZ_CHECK(text != NULL);
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    for (char *at = text, *end; at != NULL && count < MOST_LINES; at = end) {
        end = strchr(at, '\n');
        if (end != NULL)
            *end++ = '\0';
        lines[count++] = at;
    }
    if (lines[count - 1][0] == '\0' && count > 1)
        count--; /* after the last newline */
    struct tdm_error err = {0};
    uint64_t number;
    for (size_t i = 1; i < count; i++) {
        (void)tdm_fuzz_taken(tdm_parse_bytes(lines[i], "input", &number, &err), &err);
        (void)tdm_fuzz_taken(tdm_parse_tokens(lines[i], "input", &number, &err), &err);
    }
    bool taken = read_settings(lines[0], lines + 1, count - 1);
    free(text);
    return taken;
}
