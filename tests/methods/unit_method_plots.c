/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of pictures of comparisons and of methods' steps. gnuplot draws them for few and many
 * methods, with and without one that fits, and for steps of few events. */
#include "plots/compare_plot.h"
#include "plots/events_plot.h"

#include "tests/support/pictures.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define GIB (UINT64_C(1) << 30)

static void comparisons(void **state)
{
    static const char *const words[] = {"longest that fits", "does not fit", "the device: 100 GiB",
                                        "weights",           "1M",           NULL};
    char names[20][32], path[TDM_PICTURE_PATH];
    (void)state;
    if (!tdm_has_gnuplot())
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
                    (struct tdm_compare_dot){UINT64_C(8192) << k, (10 + 3 * i + 9 * k) * GIB};
        }
        lines[0].dots[lines[0].dot_count - 1].context = 1 << 20;
        const struct tdm_picture picture = {tdm_picture_path(path), true, 1600, 900};
        struct tdm_error err;
        tdm_expect_words(tdm_compare_plot_draw(&plot, &picture, &err), &err, path, words);
    }
}

/* Methods with nearly the same peaks and reach share one line with their names; others have one
 * each. At most eight lines are drawn, and the picture names the methods without one. */
static void lines_of_comparisons(void **state)
{
    static const char *const words[] = {"a, b  64K to 65K<",
                                        "c  65K<", /* the same reach, and more bytes on the way */
                                        "d  32K<", /* the same bytes, and less reach */
                                        "j  8K<",
                                        "no line: k 8K, l fits nowhere<",
                                        NULL};
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"};
    enum { COUNT = sizeof(names) / sizeof(names[0]) };
    struct tdm_compare_line lines[COUNT] = {0};
    struct tdm_compare_plot plot = {
        .bar_context = 8192, .device_bytes = 100 * GIB, .count = COUNT, .lines = lines};
    char path[TDM_PICTURE_PATH];
    (void)state;
    if (!tdm_has_gnuplot())
        skip();
    for (uint64_t i = 0; i < COUNT - 1; i++)
        lines[i] = (struct tdm_compare_line){.dot_count = 1, .dots = {{8192, (30 + 5 * i) * GIB}}};
    lines[5] = lines[4]; /* e and f */
    for (uint64_t i = 0; i < 4; i++) {
        static const uint64_t gib[] = {20, 21, 25, 20}, reach[] = {65536, 66560, 66560, 32768};
        lines[i].dots[0].bytes = gib[i] * GIB;
        lines[i].dots[lines[i].dot_count++] = (struct tdm_compare_dot){reach[i], 99 * GIB};
    }
    for (int i = 0; i < COUNT; i++)
        lines[i].name = names[i];
    const struct tdm_picture picture = {tdm_picture_path(path), true, 1600, 900};
    struct tdm_error err;
    tdm_expect_words(tdm_compare_plot_draw(&plot, &picture, &err), &err, path, words);
}

/* Every dot is a point of a line: labels have none. */
static void dots_are_points(void **state)
{
    struct tdm_compare_line lines[2] = {{.name = "a", .dot_count = 3},
                                        {.name = "b", .dot_count = 2}};
    struct tdm_compare_plot plot = {
        .bar_context = 8192, .device_bytes = 100 * GIB, .count = 2, .lines = lines};
    char path[TDM_PICTURE_PATH];
    (void)state;
    if (!tdm_has_gnuplot())
        skip();
    for (uint64_t i = 0; i < 2; i++)
        for (uint64_t k = 0; k < lines[i].dot_count; k++)
            lines[i].dots[k] =
                (struct tdm_compare_dot){UINT64_C(8192) << k, (20 + 9 * k + i) * GIB};
    const struct tdm_picture picture = {tdm_picture_path(path), true, 1600, 900};
    struct tdm_error err;
    assert_int_equal(tdm_compare_plot_draw(&plot, &picture, &err), TDM_OK);
    char *text = tdm_picture_text_of(path);
    unsigned dots = 0;
    for (const char *at = text; (at = strstr(at, "<use xlink:href='#gpPt")) != NULL; at++) {
        const char *placed = strstr(at, "transform='translate("), *end = strchr(at, '>');
        dots += placed != NULL && placed < end;
    }
    assert_int_equal(dots, 5);
    free(text);
    unlink(path);
}

static void steps(void **state)
{
    static const char *const words[] = {"allocations and frees", "GiB allocated", "backward", NULL};
    static struct tdm_method_timeline timeline;
    char path[TDM_PICTURE_PATH];
    (void)state;
    if (!tdm_has_gnuplot())
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
        const struct tdm_picture picture = {tdm_picture_path(path), true, 1600, 900};
        struct tdm_error err;
        tdm_expect_words(tdm_events_plot_draw(&plot, &picture, &err), &err, path, words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comparisons),
        cmocka_unit_test(lines_of_comparisons),
        cmocka_unit_test(dots_are_points),
        cmocka_unit_test(steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
