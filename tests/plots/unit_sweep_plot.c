/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of pictures of sweeps: few and many points, with and without points that fit, and the
 * places of the names of nests. */
#include "plots/frontier_plot.h"

#include "tests/support/pictures.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>

/* One point; a first point that does not fit; more nests than a legend is meant for. */
static void test_draw_sweep(void **state)
{
    (void)state;
    if (!tdm_has_gnuplot())
        skip();
    static const size_t counts[] = {1, 2, 200};
    static const char *const words[] = {"step (seconds)", "MFU (%)", "peak (GiB)", NULL};
    struct tdm_error err = {0};
    struct tdm_sweep_dot dots[200] = {0};
    char path[TDM_PICTURE_PATH];
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        for (int tokens = 0; tokens < 2; tokens++) {
            struct tdm_sweep_plot plot = {.title = "a model's title",
                                          .subtitle = "where",
                                          .x_title = "x",
                                          .tokens = tokens == 1,
                                          .count = counts[i],
                                          .dots = dots};
            const struct tdm_picture picture = {tdm_picture_path(path), true, 1600, 1000};
            for (size_t n = 0; n < counts[i]; n++) {
                struct tdm_sweep_dot *dot = &dots[n];
                *dot = (struct tdm_sweep_dot){.x = tokens ? 1000.0 + 500.0 * (double)n : (double)n,
                                              .fits = counts[i] == 1 || (n > 0 && n % 7 != 3),
                                              .step_seconds = 0.5 + (double)n,
                                              .mfu = 0.5,
                                              .peak_bytes = {(n + 1) << 30, n << 29},
                                              .limit_bytes = {UINT64_C(60) << 30, 0}};
                snprintf(dot->nest, sizeof(dot->nest), "nest '%zu'", n / 3);
            }
            tdm_expect_words(tdm_sweep_plot_draw(&plot, &picture, &err), &err, path, words);
        }
}

/* A band has its name above it, in rows. If it is too narrow, the name is turned, or the band has a
 * number and its name is below. */
static void test_sweep_names(void **state)
{
    (void)state;
    if (!tdm_has_gnuplot())
        skip();
    static const struct {
        double x;
        const char *nest;
    } points[] = {
        {1, "layer-major, 28 groups of 1, all kept"},
        {13, "chunk-major, groups of 3,1,1,1,1,2,3,2,3,2,2,1,1,1,1, attention kept in part"},
        {15, "layer-major, groups of 3,1,1,1,1,2,3,2,3,2,2,1,1,1,1, attention kept in part"},
        {15.2, "a narrow one, with a name"},
        {15.4, "layer-major, 28 groups of 1, q, K, V kept"},
        {20, NULL},
    };
    static const char *const words[] = {
        ">layer-major, 28 groups of 1, all kept<",                 /* in one row */
        ">chunk-major, groups of 3,1,1,1,1,2,3,2,3,2,2,1,1,1,1,<", /* in two */
        ">attention kept in part<",
        ">layer-major, groups of 3,1,1,1,1,2,3,2,<", /* turned, in three */
        "rotate(-90",
        ">4<", /* no room */
        ">4  a narrow one, with a name<",
        ">does not fit<",
        NULL};
    enum { COUNT = sizeof(points) / sizeof(points[0]) };
    struct tdm_sweep_dot dots[COUNT] = {0};
    struct tdm_sweep_plot plot = {.x_title = "x", .count = COUNT, .dots = dots};
    struct tdm_error err = {0};
    char path[TDM_PICTURE_PATH];
    for (int i = 0; i < COUNT; i++) {
        dots[i] = (struct tdm_sweep_dot){.x = points[i].x,
                                         .fits = points[i].nest != NULL,
                                         .step_seconds = 1,
                                         .mfu = 0.5,
                                         .peak_bytes = {1 << 30, 0}};
        if (dots[i].fits)
            snprintf(dots[i].nest, sizeof(dots[i].nest), "%s", points[i].nest);
    }
    const struct tdm_picture picture = {tdm_picture_path(path), true, 1600, 1000};
    tdm_expect_words(tdm_sweep_plot_draw(&plot, &picture, &err), &err, path, words);
}

/* Lines with and without a bound, of one and of several points, some of which do not fit. */
static void test_draw_lines(void **state)
{
    (void)state;
    if (!tdm_has_gnuplot())
        skip();
    static const char *const words[] = {"step (seconds)", ">first<", ">second<",
                                        ">no schedule is faster<", NULL};
    struct tdm_error err = {0};
    struct tdm_sweep_dot dots[2][9] = {0};
    char path[TDM_PICTURE_PATH];
    for (size_t count = 1; count <= 9; count += 4)
        for (int tokens = 0; tokens < 2; tokens++) {
            struct tdm_frontier_plot plot = {
                .title = "a title",
                .x_title = "x",
                .tokens = tokens == 1,
                .count = 2,
                .lines = {{"first", count, dots[0]}, {"second", count, dots[1]}}};
            const struct tdm_picture picture = {tdm_picture_path(path), true, 1600, 1000};
            for (size_t n = 0; n < count; n++)
                for (int line = 0; line < 2; line++)
                    dots[line][n] =
                        (struct tdm_sweep_dot){.x = tokens ? 1000.0 * (double)(n + 1) : (double)n,
                                               .fits = line == 0 || n % 3 != 1,
                                               .step_seconds = 3.0 / (double)(n + 1),
                                               .bound_seconds = line == 0 ? 1.0 : 0.0};
            tdm_expect_words(tdm_frontier_plot_draw(&plot, &picture, &err), &err, path, words);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_draw_sweep),
        cmocka_unit_test(test_sweep_names),
        cmocka_unit_test(test_draw_lines),
    };
    return cmocka_run_group_tests_name("sweep_plot", tests, NULL, NULL);
}
