/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the progress ticker without a terminal: work of over a second prints a plain line. */
#include "base/ticker.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Stores the output of a ticker over `milliseconds` in `text`. `then`: its text from halfway on. */
static void wait_for(unsigned milliseconds, const char *then, char text[256])
{
    struct tdm_ticker ticker;
    FILE *out = tmpfile();
    assert_non_null(out);
    tdm_ticker_begin(&ticker, out, "looking");
    usleep(milliseconds * 500);
    if (then != NULL)
        tdm_ticker_say(&ticker, "%s", then);
    usleep(milliseconds * 500);
    tdm_ticker_end(&ticker);
    tdm_ticker_end(&ticker); /* a second end prints nothing */
    rewind(out);
    text[fread(text, 1, 255, out)] = '\0';
    fclose(out);
}

static void test_short(void **state)
{
    (void)state;
    char text[256];
    unsetenv("TIDEMARK_PROGRESS");
    for (int i = 0; i < 20; i++) {
        wait_for(i, "still looking", text);
        assert_string_equal(text, "");
    }
}

static void test_long(void **state)
{
    (void)state;
    char text[256];
    unsetenv("TIDEMARK_PROGRESS");
    wait_for(1500, NULL, text);
    assert_string_equal(text, "looking (1 s)\n");
    wait_for(1500, "drawing", text);
    assert_string_equal(text, "drawing (1 s)\n");
}

static void test_silent(void **state)
{
    (void)state;
    char text[256];
    setenv("TIDEMARK_PROGRESS", "no", 1);
    wait_for(1300, NULL, text);
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_short),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_silent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
