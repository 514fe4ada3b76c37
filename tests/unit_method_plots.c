/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures of comparisons and of methods' steps: drawn by gnuplot for few and many methods, with and without what fits,
 * and for steps of few events. */
#include "plots/compare_plot.h"
#include "plots/events_plot.h"

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define GIB (UINT64_C(1) << 30)

/* Draws into a file of the test's own folder and expects these words in the picture. */
static void expect_words(enum tdm_status status, const struct tdm_error *err, const char *path,
                         const char *const *words)
{
    char *text = NULL;
    uint64_t bytes;
    struct tdm_error reading;
    if (status != TDM_OK)
        fail_msg("%s", err->message);
    assert_int_equal(tdm_file_read(path, UINT64_C(1) << 26, &text, &bytes, &reading), TDM_OK);
    for (; *words != NULL; words++)
        if (strstr(text, *words) == NULL)
            fail_msg("the picture says nothing of \"%s\"", *words);
    free(text);
    unlink(path);
}

static const char *picture_path(char out[600])
{
    const char *folder = getenv("TDM_SCRATCH");
    snprintf(out, 600, "%s/unit_method_plots.%d.svg", folder == NULL ? "/tmp" : folder,
             (int)getpid());
    return out;
}

static bool has_gnuplot(void)
{
    return system("gnuplot --version >/dev/null 2>&1") == 0;
}

static void comparisons(void **state)
{
    static const char *const words[] = {"longest that fits", "does not fit", "the device: 100 GiB",
                                        "weights",           "1M",           NULL};
    char names[20][32], path[600];
    (void)state;
    if (!has_gnuplot())
        skip();
    for (size_t count = 2; count <= 20; count += 9) {
        struct tdm_compare_line lines[20] = {0};
        struct tdm_compare_plot plot = {.title = "a model's title",
                                        .subtitle = "what is below it",
                                        .bar_context = 8192,
                                        .device_bytes = 100 * GIB,
                                        .count = count,
                                        .lines = lines};
        for (size_t i = 0; i < count; i++) {
            snprintf(names[i], sizeof(names[i]), "method_%zu", i);
            lines[i].name = names[i];
            lines[i].has_bar = i + 1 < count; /* the last one fits nowhere */
            lines[i].categories[TDM_WEIGHTS] = (i + 1) * GIB;
            lines[i].categories[TDM_ALLOCATOR] = 5 * GIB;
            for (size_t k = 0; lines[i].has_bar && k < 3 + i / 4; k++)
                lines[i].dots[lines[i].dot_count++] =
                    (struct tdm_compare_dot){UINT64_C(8192) << k, (10 + i + 9 * k) * GIB};
        }
        lines[0].dots[lines[0].dot_count - 1].context = 1 << 20;
        const struct tdm_picture picture = {picture_path(path), true, 1600, 900};
        struct tdm_error err;
        expect_words(tdm_compare_plot_draw(&plot, &picture, &err), &err, path, words);
    }
}

static void steps(void **state)
{
    static const char *const words[] = {"allocations and frees", "GiB allocated", "backward", NULL};
    static struct tdm_method_timeline timeline;
    char path[600];
    (void)state;
    if (!has_gnuplot())
        skip();
    for (uint32_t count = 2; count <= TDM_TIMELINE_POINTS; count *= 8) {
        timeline = (struct tdm_method_timeline){.step = 1, .stretch = 1, .count = count};
        timeline.events = count;
        timeline.phase_events[TDM_PHASE_FORWARD] = count / 4;
        timeline.phase_events[TDM_PHASE_BACKWARD] = count - count / 4;
        for (uint32_t i = 0; i < count; i++) {
            timeline.points[i].event = i;
            timeline.points[i].live_bytes[TDM_METHOD_LOGITS] = (1 + i % 7) * GIB;
            timeline.points[i].reserved_bytes = 9 * GIB;
        }
        struct tdm_events_plot plot = {.title = "a method's step",
                                       .subtitle = "what is below it",
                                       .runtime_bytes = GIB,
                                       .device_bytes = (count == 2 ? 12 : 100) * GIB,
                                       .timeline = &timeline};
        const struct tdm_picture picture = {picture_path(path), true, 1600, 900};
        struct tdm_error err;
        expect_words(tdm_events_plot_draw(&plot, &picture, &err), &err, path, words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comparisons),
        cmocka_unit_test(steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
