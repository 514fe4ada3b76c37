/* SPDX-License-Identifier: Apache-2.0 */
/* Compares documents that come from the text of a step with the same documents in the schedule, on
 * the cuda backend (tests/support/text_documents.h). Small, wide and large cases take turns, each
 * with at least two documents per sequence. TDM_CASES=N TDM_SEED=S runs cases S to S + N - 1;
 * TDM_BACKEND=cpu needs no GPU. */
#include "schedule/schedule_check.h"
#include "tests/support/backend_cases.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/random_schedule.h"
#include "tests/support/text_documents.h"

#define BASE_SEED 52000u

/* A token that saw another document would change the loss by a hundredth and gradients by a third.
 * The order of sums and one rounding to bf16 change them by less than these bounds. */
#define LOSS_BOUND 1e-4
#define VALUES_BOUND 2e-2

/* Gives every sequence of more than one token at least two documents. */
static enum tdm_status give_documents(struct tdm_schedule *schedule, uint64_t seed,
                                      struct tdm_error *err)
{
    struct tdm_dice dice;
    enum tdm_status status = TDM_OK;
    tdm_dice_seed(&dice, seed ^ 0xd0c5);
    /* Blocks begin with the documents, so documents from the text are refused. */
    if (schedule->selector.kind == TDM_SELECT_BLOCK)
        schedule->selector = (struct tdm_selector){0};
    for (uint32_t s = 0; s < schedule->sequence_count && status == TDM_OK; s++) {
        struct tdm_sequence *sequence = &schedule->sequences[s];
        if (sequence->document_count == 1 && sequence->tokens > 1)
            status = tdm_sequence_divide(sequence, "case",
                                         tdm_dice_roll(&dice, 1, sequence->tokens - 1), err);
    }
    return status == TDM_OK ? tdm_schedule_check(schedule, "case", err) : status;
}

static void run_case(struct gpu_test *test, const struct tdm_backend *backend, uint64_t seed)
{
    char text[768];
    enum tdm_case kind = tdm_case_of(seed);
    struct tdm_schedule *schedule = NULL;
    struct tdm_text_documents found = {0};
    struct tdm_error err = {0};
    enum tdm_status status = tdm_backend_case(kind, seed, &schedule, &err);
    if (status == TDM_OK)
        status = give_documents(schedule, seed, &err);
    if (status == TDM_OK)
        status = tdm_text_documents_compare(schedule, backend, seed, &found, &err);
    bool passed = status == TDM_OK && found.loss <= LOSS_BOUND && found.values <= VALUES_BOUND;
    gpu_test_case(test, passed, "seed %llu %s: %llu documents, loss off by %.1e, values by %.1e",
                  (unsigned long long)seed, tdm_case_name(kind),
                  (unsigned long long)found.documents, found.loss, found.values);
    if (!passed)
        printf("# %s\n# %s\n", status == TDM_OK ? "" : err.message,
               schedule == NULL ? "" : tdm_schedule_describe(schedule, text, sizeof(text)));
    tdm_schedule_free(schedule);
}

int main(void)
{
    struct gpu_test test = gpu_test_begin();
    struct tdm_error err = {0};
    const struct tdm_backend *backend;
    uint64_t cases = tdm_case_count(18, 90);
    if (tdm_backend_find(gpu_test_backend(), &backend, &err) != TDM_OK) {
        printf("Bail out! %s\n", err.message);
        return 1;
    }
    for (uint64_t i = 0; i < cases; i++)
        run_case(&test, backend, tdm_case_seed(BASE_SEED, i));
    return gpu_test_end(&test);
}
