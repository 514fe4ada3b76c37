/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for tests that draw SVG pictures and look for words in them. */
#include "tests/support/pictures.h"

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool tdm_has_gnuplot(void)
{
    return system("gnuplot --version >/dev/null 2>&1") == 0;
}

const char *tdm_picture_path(char out[TDM_PICTURE_PATH])
{
    const char *folder = getenv("TDM_SCRATCH");
    snprintf(out, TDM_PICTURE_PATH, "%s/picture.%d.svg", folder == NULL ? "/tmp" : folder,
             (int)getpid());
    return out;
}

char *tdm_picture_text_of(const char *path)
{
    char *text = NULL;
    uint64_t bytes;
    struct tdm_error err;
    assert_int_equal(tdm_file_read(path, UINT64_C(1) << 26, &text, &bytes, &err), TDM_OK);
    return text;
}

void tdm_expect_words(enum tdm_status status, const struct tdm_error *err, const char *path,
                      const char *const *words)
{
    if (status != TDM_OK)
        fail_msg("%s", err->message);
    char *text = tdm_picture_text_of(path);
    for (; *words != NULL; words++)
        if (strstr(text, *words) == NULL)
            fail_msg("the picture says nothing of \"%s\"", *words);
    free(text);
    unlink(path);
}
