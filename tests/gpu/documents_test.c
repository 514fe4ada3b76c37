/* SPDX-License-Identifier: Apache-2.0 */
/* Compares documents that come from the text of a step with the same documents in the schedule, on
 * the cuda backend (tests/support/text_documents.h). Small, wide and large cases take turns, each
 * with at least two documents per sequence. TDM_CASES=N TDM_SEED=S runs cases S to S + N - 1;
 * TDM_BACKEND=cpu needs no GPU. */
#include "schedule/optimizer.h"
#include "schedule/schedule_check.h"
#include "tests/support/backend_cases.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/random_schedule.h"
#include "tests/support/text_documents.h"

#include <math.h>

#define BASE_SEED 52000u
#define ROUNDED_SEED 20261141u /* sums over keys begin elsewhere, and the loss is 93 */

/* A token that saw another document would change gradients by a tenth or more. Without AdamW's
 * moments weights would hide that, so cases of SGD leave gradients, too.
 *
 * Both programs get the same bits unless attention's sums over keys begin elsewhere: in the
 * schedule that knows the documents, with their first chunk. If that is not a whole number of the
 * kernel's tiles away, probabilities are rounded to bf16 relative to other maxima, and then all
 * activations of these tokens differ by roundings. Logits then differ by about 2^-8 of themselves,
 * which is as large as losses are here, up to 200; the mean over the tokens differs by less. The
 * most that was seen is 0.75 of 2^-8 loss / sqrt(tokens), and 5e-3 in moments. */
#define LOSS_BOUND 1e-4
#define ROUNDED_LOSS_BOUND 0x1p-7 /* of the loss / sqrt(tokens), in addition */
#define VALUES_BOUND 1e-2

static double loss_bound(const struct tdm_schedule *schedule, double loss)
{
    bool rounds = schedule->dtypes.activations == TDM_DTYPE_BF16;
    double tokens = (double)tdm_schedule_tokens(schedule);
    return LOSS_BOUND + (rounds ? ROUNDED_LOSS_BOUND * loss / sqrt(tokens) : 0);
}

/* Gives every sequence of more than one token at least two documents, and leaves gradients rather
 * than what SGD makes of them. */
static enum tdm_status give_documents(struct tdm_schedule *schedule, uint64_t seed,
                                      struct tdm_error *err)
{
    struct tdm_dice dice;
    enum tdm_status status = TDM_OK;
    tdm_dice_seed(&dice, seed ^ 0xd0c5);
    /* Blocks begin with the documents, so documents from the text are refused. */
    if (schedule->selector.kind == TDM_SELECT_BLOCK)
        schedule->selector = (struct tdm_selector){0};
    if (schedule->optimizer.kind == TDM_OPTIMIZER_SGD)
        tdm_schedule_set_optimizer(schedule, TDM_OPTIMIZER_NONE);
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
    char text[768] = "";
    enum tdm_case kind = tdm_case_of(seed);
    struct tdm_schedule *schedule = NULL;
    struct tdm_text_documents found = {0};
    struct tdm_error err = {0};
    enum tdm_status status = tdm_backend_case(kind, seed, &schedule, &err);
    if (status == TDM_OK)
        status = give_documents(schedule, seed, &err);
    if (status == TDM_OK)
        status = tdm_text_documents_compare(schedule, backend, seed, &found, &err);
    if (schedule != NULL)
        tdm_schedule_describe(schedule, text, sizeof(text));
    double bound = status == TDM_OK ? loss_bound(schedule, found.of_loss) : 0;
    bool passed = status == TDM_OK && found.loss <= bound && found.values <= VALUES_BOUND;
    gpu_test_case(test, passed,
                  "seed %llu %s: %llu documents, loss off by %.1e of %.1e, values by %.1e",
                  (unsigned long long)seed, tdm_case_name(kind),
                  (unsigned long long)found.documents, found.loss, bound, found.values);
    if (!passed)
        printf("# %s\n# %s\n", status == TDM_OK ? "" : err.message, text);
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
    if (tdm_case_fixed())
        run_case(&test, backend, ROUNDED_SEED);
    return gpu_test_end(&test);
}
