/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target of checkpoints: that of a run, with changes of its note. */
#include "tests/fuzz/fuzz.h"

#include "base/digest.h"
#include "base/json.h"
#include "executor/backends.h"
#include "executor/checkpoint.h"
#include "executor/run.h"
#include "models/weights.h"
#include "schedule/program.h"
#include "tests/support/quiet_run.h"

#define STEPS 2u

static struct tdm_schedule *schedule;
static struct tdm_program *program;

void tdm_fuzz_train(void)
{
    if (program != NULL)
        return;
    char plan[TDM_FUZZ_PATH], trace[TDM_FUZZ_PATH], save[TDM_FUZZ_PATH], differences[512];
    struct tdm_error err = {0};
    json_t *root = tdm_fuzz_seed("schedule/plan.json");
    tdm_fuzz_path("plan.json", plan);
    const char *paths = plan;
    TDM_FUZZ_CHECK(tdm_schedule_from_json("plan", root, &schedule, &err) == TDM_OK);
    TDM_FUZZ_CHECK(json_dump_file(root, plan, 0) == 0);
    json_decref(root);
    const struct tdm_run_options options = {.schedule_count = 1,
                                            .schedule_paths = &paths,
                                            .backend = &tdm_cpu_backend,
                                            .steps = STEPS,
                                            .seed_given = true,
                                            .trace_path = tdm_fuzz_path("run.db", trace),
                                            .save_path = tdm_fuzz_path("saves", save),
                                            .save_every = STEPS,
                                            .save_keep = 1,
                                            .shard_bytes = 1 << 20,
                                            .command = "tidemark run"};
    const struct tdm_run_listener listener = tdm_quiet_listener(differences);
    struct tdm_run_result result;
    if (tdm_run(&options, &listener, &result, &err) != TDM_OK ||
        tdm_program_lower(schedule, &program, &err) != TDM_OK) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
}

/* Puts members of `changes` into `object`, those of objects in it too; null removes one. */
static void change(json_t *object, json_t *changes)
{
    const char *key;
    json_t *value;
    json_object_foreach(changes, key, value)
    {
        json_t *inner = json_object_get(object, key);
        if (json_is_null(value))
            json_object_del(object, key);
        else if (json_is_object(inner) && json_is_object(value))
            change(inner, value);
        else
            json_object_set(object, key, value);
    }
}

/* Gives an edited note the digest that it should have, so that more than this is tested. */
static void sign(json_t *note)
{
    char digest[TDM_DIGEST_SIZE];
    json_object_del(note, "digest");
    char *text = tdm_json_canonical(note);
    TDM_FUZZ_CHECK(text != NULL);
    json_object_set_new(note, "digest", json_string(tdm_digest_text(text, digest)));
    free(text);
}

bool tdm_fuzz_checkpoint(const uint8_t *data, size_t bytes)
{
    static json_t *original;
    char directory[TDM_FUZZ_PATH], path[TDM_FUZZ_PATH];
    struct tdm_error err = {0};
    json_t *changes = tdm_fuzz_json(data, bytes);
    if (changes == NULL)
        return false;
    tdm_fuzz_train();
    snprintf(directory, sizeof(directory), "%s/saves/step-%u", tdm_fuzz_folder(), STEPS);
    if (original == NULL)
        TDM_FUZZ_CHECK(tdm_json_load(tdm_fuzz_path("saves/latest/" TDM_WEIGHTS_NOTE, path),
                                     &original, &err) == TDM_OK);
    json_t *note = json_deep_copy(original);
    change(note, changes);
    sign(note);
    TDM_FUZZ_CHECK(json_dump_file(note, tdm_fuzz_path("saves/latest/" TDM_WEIGHTS_NOTE, path), 0) ==
                   0);
    const struct tdm_checkpoint_user user = {
        .program = program, .schedule_path = "plan.json", .backend = "cpu"};
    struct tdm_checkpoint *checkpoint = NULL;
    bool taken = tdm_fuzz_taken(tdm_checkpoint_open(directory, &checkpoint, &err), &err);
    if (taken) {
        struct tdm_history history = {0};
        TDM_FUZZ_CHECK(checkpoint->step >= 1 || checkpoint->parts != NULL);
        if (tdm_fuzz_taken(tdm_checkpoint_history(checkpoint, &history, &err), &err))
            TDM_FUZZ_CHECK(history.count == checkpoint->step);
        tdm_history_free(&history);
        const struct tdm_tokens_identity text = {.order = "random"};
        (void)tdm_fuzz_taken(tdm_checkpoint_match_tokens(checkpoint, "text", &text, &err), &err);
        taken = tdm_fuzz_taken(tdm_checkpoint_match(checkpoint, &user, &err), &err);
        tdm_checkpoint_close(checkpoint);
    }
    json_decref(note);
    json_decref(changes);
    return taken;
}
