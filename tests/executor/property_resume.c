/* SPDX-License-Identifier: Apache-2.0 */
/* Property: a training that stops and goes on from its checkpoint is the same training.
 *
 * Each case draws a model, an optimizer and a schedule for 1 to 3 ranks, and trains on the cpu
 * backend, once without a stop, and once with one, after which another schedule (nest, places,
 * sets, prefetch) goes on, in two of three cases with checkpoints that are written beside its
 * steps. Both leave the same bytes in every file of their last checkpoints: weights, masters,
 * moments, and the losses and gradient norms of all steps. So does a checkpoint that is read and
 * written again with another number of ranks.
 *
 * A training that is stopped within a step, where a layer of its backward ends, and goes on from
 * what was saved there, is the same training too: in arenas that hold a pattern where nothing was
 * restored.
 *
 * A checkpoint of which one byte is changed, or a part is missing, is refused, unless the change
 * means nothing. */
#include "base/digest.h"
#include "base/json.h"
#include "base/size.h"
#include "executor/backends.h"
#include "executor/run.h"
#include "models/weights.h"
#include "schedule/kv_row.h"
#include "schedule/nest.h"
#include "schedule/optimizer.h"
#include "schedule/pauses.h"
#include "schedule/program.h"
#include "tests/support/quiet_run.h"
#include "tests/support/random_schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BASE_SEED 20261125u
#define STEPS 6u

/* Nothing here depends on what is on the disk, and flushing takes most of the time. */
int fsync(int fd)
{
    (void)fd;
    return 0;
}

/* ---- runs ---- */

/* A training up to step `steps`. */
struct training {
    const char *schedule, *save, *resume;
    uint64_t steps, every, seed;
    enum tdm_dtype dtype;
    bool force;
};

static char differences[512]; /* of the last run */

static enum tdm_status train(const struct training *t, struct tdm_run_result *result,
                             struct tdm_error *err)
{
    const struct tdm_run_options options = {.schedule_count = 1,
                                            .schedule_paths = &t->schedule,
                                            .backend = &tdm_cpu_backend,
                                            .steps = t->steps,
                                            .seed = t->seed,
                                            .seed_given = t->resume == NULL,
                                            .save_path = t->save,
                                            .save_every = t->every,
                                            .save_keep = 1,
                                            .save_dtype = t->dtype,
                                            .shard_bytes = 20000,
                                            .force = t->force,
                                            .resume_path = t->resume,
                                            .command = "tidemark run"};
    const struct tdm_run_listener listener = tdm_quiet_listener(differences);
    return tdm_run(&options, &listener, result, err);
}

/* ---- comparing ---- */

static char *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    struct stat info;
    if (file == NULL || fstat(fileno(file), &info) != 0)
        fail_msg("%s cannot be read", path);
    char *data = malloc((size_t)info.st_size + 1);
    assert_non_null(data);
    *bytes = fread(data, 1, (size_t)info.st_size, file);
    fclose(file);
    return data;
}

/* Are all safetensors files of a directory in the other one, with the same bytes? Counts them. */
static bool same_files(const char *one, const char *other, unsigned *count)
{
    bool same = true;
    DIR *stream = opendir(one);
    assert_non_null(stream);
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        char path[2][PATH_MAX];
        size_t bytes[2];
        if (strstr(entry->d_name, ".safetensors") == NULL)
            continue;
        snprintf(path[0], PATH_MAX, "%s/%s", one, entry->d_name);
        snprintf(path[1], PATH_MAX, "%s/%s", other, entry->d_name);
        char *a = read_file(path[0], &bytes[0]), *b = read_file(path[1], &bytes[1]);
        if (bytes[0] != bytes[1] || memcmp(a, b, bytes[0]) != 0) {
            fprintf(stderr, "%s and %s differ\n", path[0], path[1]);
            same = false;
        }
        ++*count;
        free(a);
        free(b);
    }
    closedir(stream);
    return same;
}

/* Do two checkpoints hold the same, the losses included? */
static bool same_checkpoints(const char *one, const char *other)
{
    char path[2][PATH_MAX];
    struct tdm_error err;
    json_t *note[2];
    unsigned count = 0;
    snprintf(path[0], PATH_MAX, "%s/" TDM_WEIGHTS_FOLDER, one);
    snprintf(path[1], PATH_MAX, "%s/" TDM_WEIGHTS_FOLDER, other);
    bool same = same_files(one, other, &count) && same_files(path[0], path[1], &count);
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], PATH_MAX, "%s/" TDM_WEIGHTS_NOTE, i == 0 ? one : other);
        assert_int_equal(tdm_json_load(path[i], &note[i], &err), TDM_OK);
    }
    static const char *const keys[] = {"step", "seed", "losses", "gradient_norms", "sets"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (!json_equal(json_object_get(note[0], keys[i]), json_object_get(note[1], keys[i]))) {
            fprintf(stderr, "%s and %s have other %s\n", path[0], path[1], keys[i]);
            same = false;
        }
    assert_true(count >= 1);
    json_decref(note[0]);
    json_decref(note[1]);
    return same;
}

static void remove_all(void)
{
    assert_int_equal(system("rm -rf whole part other broken *.json"), 0);
}

/* ---- cases ---- */

struct tally {
    uint64_t masters, moments, teams, others, rounded;
};

static bool run_case(uint64_t seed, struct tally *tally)
{
    const struct tdm_random_options options = {.optimizer = seed % 7 == 0 ? TDM_RANDOM_ANY_OPTIMIZER
                                                                          : TDM_RANDOM_UPDATES,
                                               .max_tokens = 48,
                                               .ranks = seed % 2 == 0 ? 3 : 0};
    struct tdm_schedule *schedule = NULL, *variant = NULL;
    struct tdm_run_result result[4] = {{0}};
    struct tdm_error err = {0};
    char text[512];
    const enum tdm_dtype dtype = seed % 5 == 1   ? TDM_DTYPE_FP32
                                 : seed % 5 == 2 ? TDM_DTYPE_BF16
                                                 : TDM_DTYPE_NONE;
    const uint64_t stop = 1 + seed % (STEPS - 1);
    remove_all();
    bool passed = tdm_random_schedule(seed, &options, &schedule, &err) == TDM_OK &&
                  tdm_random_variant(schedule, seed, &variant, &err) == TDM_OK;
    if (passed) {
        schedule->optimizer.learning_rate = variant->optimizer.learning_rate = 1e-3;
        assert_true(tdm_quiet_schedule(schedule, "one.json"));
        if (seed % 3 != 0) /* it saves beside its steps */
            variant->snapshot_bytes = tdm_schedule_state_bytes(variant);
        assert_true(tdm_quiet_schedule(variant, "variant.json"));
        variant->ranks = variant->ranks > 1 ? 1 : schedule->ranks;
        if (variant->ranks == 1) { /* it sums over no others, and has all weights */
            variant->rings.gradients = 1;
            variant->sliced_weights = false;
        }
        assert_true(tdm_quiet_schedule(variant, "other.json"));
        const struct training whole = {"one.json", "whole", NULL, STEPS, 100, seed, dtype, false},
                              part = {"one.json", "part", NULL, stop, 2, seed, dtype, false},
                              rest = {"variant.json", "part", "part", STEPS, 2, 0, dtype, false},
                              again = {"other.json", "other", "part", STEPS, 1, 0, dtype, false};
        passed = train(&whole, &result[0], &err) == TDM_OK &&
                 train(&part, &result[1], &err) == TDM_OK &&
                 train(&rest, &result[2], &err) == TDM_OK && differences[0] == '\0' &&
                 train(&again, &result[3], &err) == TDM_OK;
    }
    if (!passed)
        fprintf(stderr, "seed %llu: %s, differences \"%s\"\n", (unsigned long long)seed,
                err.message, differences);
    passed = passed && same_checkpoints("whole/latest", "part/latest") &&
             same_checkpoints("whole/latest", "other/latest") &&
             result[0].first_loss == result[2].first_loss &&
             result[0].late_loss == result[2].late_loss && result[2].steps == STEPS &&
             result[2].resumed_step == stop && result[2].saved_step == STEPS;
    if (passed) {
        tally->masters += schedule->dtypes.master != TDM_DTYPE_NONE;
        tally->moments += schedule->dtypes.moments != TDM_DTYPE_NONE;
        tally->teams += schedule->ranks > 1;
        tally->others += differences[0] != '\0';
        tally->rounded += dtype != TDM_DTYPE_NONE && dtype != schedule->dtypes.weights;
    } else {
        tdm_case_again("executor/property_resume", seed);
        for (int i = 0; i < 2 && schedule != NULL && variant != NULL; i++)
            fprintf(stderr, "  %s\n",
                    tdm_schedule_describe(i == 0 ? schedule : variant, text, sizeof(text)));
    }
    tdm_schedule_free(schedule);
    tdm_schedule_free(variant);
    return passed;
}

static void a_training_goes_on_as_if_it_had_not_stopped(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(20, 40), failed = 0;
    struct tally tally = {0};
    for (uint64_t i = 0; i < cases; i++)
        failed += !run_case(tdm_case_seed(BASE_SEED, i), &tally);
    assert_int_equal(failed, 0);
    assert_true(tdm_case_enough("have masters", tally.masters, cases, 0.05));
    assert_true(tdm_case_enough("have moments", tally.moments, cases, 0.3));
    assert_true(tdm_case_enough("have several ranks", tally.teams, cases, 0.2));
    assert_true(
        tdm_case_enough("are read again by another number of ranks", tally.others, cases, 0.2));
    assert_true(tdm_case_enough("have files of another dtype than their weights", tally.rounded,
                                cases, 0.1));
}

/* ---- within a step ---- */

/* Stops a run at a pause of its steps. */
struct stopper {
    uint64_t pauses, at; /* counted from 1; 0: never */
    volatile sig_atomic_t stop;
};

static struct stopper stopper;

static void paused(void *self, const char *directory, uint64_t step, uint64_t op, uint64_t ops,
                   double seconds)
{
    (void)self, (void)directory, (void)step, (void)op, (void)ops, (void)seconds;
    if (++stopper.pauses == stopper.at)
        stopper.stop = 1;
}

/* Trains up to step `steps`, which is saved within at every pause, until the pause `at`. */
static enum tdm_status train_within(const char *schedule, const char *save, const char *resume,
                                    uint64_t seed, uint64_t steps, uint64_t at,
                                    struct tdm_run_result *result, struct tdm_error *err)
{
    const struct tdm_run_options options = {.schedule_count = 1,
                                            .schedule_paths = &schedule,
                                            .backend = &tdm_cpu_backend,
                                            .steps = steps,
                                            .seed = seed,
                                            .seed_given = resume == NULL,
                                            .save_path = save,
                                            .save_every = steps,
                                            .save_keep = 1,
                                            .shard_bytes = 1u << 30,
                                            .saves_within = true,
                                            .within_seconds = at == 0 ? 1e9 : 0,
                                            .resume_path = resume,
                                            .stop = &stopper.stop,
                                            .command = "tidemark run"};
    struct tdm_run_listener listener = tdm_quiet_listener(differences);
    listener.saved_within = paused;
    stopper = (struct stopper){.at = at};
    return tdm_run(&options, &listener, result, err);
}

/* Stops at one pause of one step, goes on, and compares with `whole`. */
static bool goes_on_within(uint64_t seed, uint64_t steps, uint64_t at)
{
    struct tdm_run_result result = {0};
    struct tdm_error err = {0};
    assert_int_equal(system("rm -rf part"), 0);
    bool passed =
        train_within("one.json", "part", NULL, seed, steps, at, &result, &err) == TDM_INTERRUPTED &&
        result.within_step > 0 &&
        train_within("one.json", "part", "part", 0, steps, 0, &result, &err) == TDM_OK &&
        result.saved_step == steps && same_checkpoints("whole/latest", "part/latest") &&
        access("part/latest", F_OK) == 0 && system("ls part | grep -q within") != 0;
    if (!passed)
        fprintf(stderr, "seed %llu, pause %llu: %s\n", (unsigned long long)seed,
                (unsigned long long)at, err.message);
    return passed;
}

/* Stops within steps, and of which programs. */
struct stops {
    uint64_t all, of_teams, of_rows_apart, of_kv_ahead;
};

/* Notes what a program has, too. */
static uint64_t count_pauses(const struct tdm_schedule *schedule, bool *makes_ahead)
{
    struct tdm_program *program;
    struct tdm_pauses *pauses;
    struct tdm_error err;
    assert_int_equal(tdm_program_lower(schedule, &program, &err), TDM_OK);
    const struct tdm_program first = tdm_program_of_rank(program, 0);
    assert_int_equal(tdm_pauses_new(&first, &pauses, &err), TDM_OK);
    const uint64_t count = tdm_pauses_count(pauses);
    *makes_ahead = tdm_nest_any_kv_ahead(schedule, tdm_kv_row_is_whole(program), NULL);
    tdm_pauses_free(pauses);
    tdm_program_free(program);
    return count;
}

static bool run_within_case(uint64_t seed, struct stops *stops)
{
    const struct tdm_random_options options = {.optimizer = seed % 7 == 0 ? TDM_RANDOM_ANY_OPTIMIZER
                                                                          : TDM_RANDOM_UPDATES,
                                               .max_tokens = 48,
                                               .ranks = seed % 2 == 0 ? 4 : 0};
    const uint64_t steps = 2;
    uint64_t most = tdm_case_long() ? 12 : 2;
    struct tdm_schedule *schedule = NULL;
    struct tdm_run_result result = {0};
    struct tdm_error err = {0};
    struct tdm_dice dice;
    char text[512];
    bool makes_ahead;
    remove_all();
    tdm_dice_seed(&dice, seed);
    assert_int_equal(tdm_random_schedule(seed, &options, &schedule, &err), TDM_OK);
    assert_int_equal(tdm_random_favour(seed, schedule, &err), TDM_OK);
    schedule->optimizer.learning_rate = 1e-3;
    assert_true(tdm_quiet_schedule(schedule, "one.json"));
    if (train_within("one.json", "whole", NULL, seed, steps, 0, &result, &err) != TDM_OK)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.message);
    /* each is saved up to the one where the run stops, which takes most of the time */
    const uint64_t pauses = tdm_least(count_pauses(schedule, &makes_ahead) * steps, 60);
    bool passed = true;
    most = tdm_least(most, pauses);
    for (uint64_t i = 0; i < most && passed; i++) {
        passed = goes_on_within(seed, steps, tdm_dice_roll(&dice, 1, pauses));
        stops->all++;
        stops->of_teams += schedule->ranks > 1;
        stops->of_rows_apart += tdm_updates_rows_apart(schedule);
        stops->of_kv_ahead += makes_ahead;
    }
    if (!passed) {
        tdm_case_again("executor/property_resume", seed);
        fprintf(stderr, "  %s\n", tdm_schedule_describe(schedule, text, sizeof(text)));
    }
    tdm_schedule_free(schedule);
    return passed;
}

static void a_step_goes_on_as_if_it_had_not_stopped(void **state)
{
    (void)state;
    uint64_t cases = tdm_case_count(16, 36), failed = 0;
    struct stops stops = {0};
    for (uint64_t i = 0; i < cases; i++)
        failed += !run_within_case(tdm_case_seed(BASE_SEED + 1, i), &stops);
    printf("# %llu stops within a step, %llu of several ranks\n", (unsigned long long)stops.all,
           (unsigned long long)stops.of_teams);
    assert_int_equal(failed, 0);
    assert_true(tdm_case_enough("stop within a step", stops.all, cases, 0.5));
    assert_true(tdm_case_enough("stop within a step of several ranks", stops.of_teams, cases, 0.2));
    /* of few tokens few steps use fewer rows than there are */
    if (tdm_case_long())
        assert_true(tdm_case_enough("stop within a step that updates rows apart",
                                    stops.of_rows_apart, stops.all, 0.005));
    assert_true(tdm_case_enough("stop within a step that makes K and V ahead", stops.of_kv_ahead,
                                stops.all, 0.02));
}

/* Writes into the note of a checkpoint within a step that its program has one op less, as one of
 * another version of tidemark may. */
static void take_an_op(const char *directory)
{
    char path[PATH_MAX], digest[TDM_DIGEST_SIZE];
    struct tdm_error err;
    json_t *note;
    snprintf(path, sizeof(path), "%s/" TDM_WEIGHTS_NOTE, directory);
    assert_int_equal(tdm_json_load(path, &note, &err), TDM_OK);
    json_t *part = json_array_get(json_object_get(json_object_get(note, "within"), "ranks"), 0);
    const json_int_t ops = json_integer_value(json_object_get(part, "ops"));
    json_object_set_new(part, "ops", json_integer(ops - 1));
    json_object_del(note, "digest");
    char *text = tdm_json_canonical(note);
    assert_non_null(text);
    json_object_set_new(note, "digest", json_string(tdm_digest_text(text, digest)));
    free(text);
    assert_int_equal(remove(path), 0);
    assert_int_equal(tdm_json_save(directory, TDM_WEIGHTS_NOTE, note, &err), TDM_OK);
    json_decref(note);
}

static void a_step_of_another_version_is_refused(void **state)
{
    (void)state;
    const struct tdm_random_options options = {.optimizer = TDM_RANDOM_UPDATES, .max_tokens = 32};
    struct tdm_schedule *schedule = NULL;
    struct tdm_run_result result = {0};
    struct tdm_error err = {0};
    bool ahead;
    remove_all();
    for (uint64_t seed = BASE_SEED; schedule == NULL; seed++) {
        assert_int_equal(tdm_random_schedule(seed, &options, &schedule, &err), TDM_OK);
        if (count_pauses(schedule, &ahead) == 0) {
            tdm_schedule_free(schedule);
            schedule = NULL;
        }
    }
    assert_true(tdm_quiet_schedule(schedule, "one.json"));
    tdm_schedule_free(schedule);
    assert_int_equal(train_within("one.json", "part", NULL, 1, 1, 1, &result, &err),
                     TDM_INTERRUPTED);
    take_an_op("part/within-1");
    assert_int_equal(train_within("one.json", "part", "part", 0, 1, 0, &result, &err), TDM_INPUT);
    assert_non_null(strstr(err.message, "this version of tidemark makes another program"));
    assert_non_null(strstr(err.hint, "resume from a step-N"));
}

/* ---- checkpoints that were changed ---- */

/* Changes one byte of a file, or cuts it off there. */
static void spoil(struct tdm_dice *dice, const char *path)
{
    size_t bytes;
    char *data = read_file(path, &bytes);
    size_t at = (size_t)tdm_dice_roll(dice, 0, bytes - 1);
    bool cut = tdm_dice_chance(dice, 30);
    data[at] ^= (char)(1u << tdm_dice_roll(dice, 0, 7));
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_true(fwrite(data, 1, cut ? at : bytes, file) == (cut ? at : bytes));
    assert_int_equal(fclose(file), 0);
    free(data);
}

static void a_changed_checkpoint_is_refused(void **state)
{
    (void)state;
    const struct tdm_random_options options = {.optimizer = TDM_RANDOM_UPDATES, .max_tokens = 32};
    uint64_t cases = tdm_case_count(60, 180), refused = 0;
    struct tdm_schedule *schedule = NULL;
    struct tdm_run_result result;
    struct tdm_error err = {0};
    struct tdm_dice dice;
    remove_all();
    for (uint64_t seed = BASE_SEED; schedule == NULL; seed++) { /* one with masters and moments */
        assert_int_equal(tdm_random_schedule(seed, &options, &schedule, &err), TDM_OK);
        if (schedule->dtypes.master != TDM_DTYPE_REMAINDER16 ||
            schedule->dtypes.moments == TDM_DTYPE_NONE) {
            tdm_schedule_free(schedule);
            schedule = NULL;
        }
    }
    assert_true(tdm_quiet_schedule(schedule, "one.json"));
    tdm_schedule_free(schedule);
    const struct training part = {.schedule = "one.json", .save = "part", .steps = 2, .every = 2};
    const struct training rest = {.schedule = "one.json", .resume = "broken", .steps = 2};
    const struct training copied = {.schedule = "one.json",
                                    .save = "other",
                                    .resume = "broken",
                                    .steps = 2,
                                    .every = 1,
                                    .force = true};
    if (train(&part, &result, &err) != TDM_OK)
        fail_msg("%s", err.message);
    assert_int_equal(system("ls part/step-2/model*.safetensors part/step-2/optimizer/*.safetensors "
                            "part/step-2/checkpoint.json | sed 's,^part/step-2,broken,' >files"),
                     0);
    char names[64][256], *end;
    size_t count = 0;
    FILE *list = fopen("files", "r");
    assert_non_null(list);
    while (count < 64 && fgets(names[count], sizeof(names[0]), list) != NULL) {
        if ((end = strchr(names[count], '\n')) != NULL)
            *end = '\0';
        count++;
    }
    fclose(list);
    assert_true(count >= 4);
    for (uint64_t i = 0; i < cases; i++) {
        uint64_t seed = tdm_case_seed(BASE_SEED, i);
        tdm_dice_seed(&dice, seed);
        const char *name = names[tdm_dice_roll(&dice, 0, count - 1)];
        assert_int_equal(system("rm -rf broken && cp -r part/step-2 broken"), 0);
        spoil(&dice, name);
        err = (struct tdm_error){0};
        enum tdm_status status = train(&rest, &result, &err);
        if ((status == TDM_INPUT || status == TDM_IO) && strstr(err.message, "broken/") != NULL &&
            strchr(err.message, '\n') == NULL)
            refused++;
        else if (status == TDM_OK && train(&copied, &result, &err) == TDM_OK &&
                 same_checkpoints("part/latest", "other/latest"))
            refused++; /* a byte of the header that says nothing */
        else
            fprintf(stderr, "seed %llu: %s was changed: status %d, \"%s\"\n",
                    (unsigned long long)seed, name, (int)status, err.message);
    }
    print_message("%llu of %llu changed checkpoints were refused, or say the same\n",
                  (unsigned long long)refused, (unsigned long long)cases);
    assert_int_equal(refused, cases);
}

static int enter_scratch(void **state)
{
    (void)state;
    const char *scratch = getenv("TDM_SCRATCH");
    return scratch != NULL && chdir(scratch) == 0 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_training_goes_on_as_if_it_had_not_stopped),
        cmocka_unit_test(a_step_goes_on_as_if_it_had_not_stopped),
        cmocka_unit_test(a_step_of_another_version_is_refused),
        cmocka_unit_test(a_changed_checkpoint_is_refused),
    };
    return cmocka_run_group_tests(tests, enter_scratch, NULL);
}
