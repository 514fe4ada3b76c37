/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for tests that draw SVG pictures and look for words in them. */
#ifndef TDM_TESTS_PICTURES_H
#define TDM_TESTS_PICTURES_H

#include "base/status.h"

#include <stdbool.h>

#define TDM_PICTURE_PATH 600

bool tdm_has_gnuplot(void);

/* A path in the test's scratch folder. */
const char *tdm_picture_path(char out[TDM_PICTURE_PATH]);

/* The text of a picture file; malloc'ed. */
char *tdm_picture_text_of(const char *path);

/* Checks that a picture was drawn and has these words (NULL-terminated). Removes the file. */
void tdm_expect_words(enum tdm_status status, const struct tdm_error *err, const char *path,
                      const char *const *words);

#endif
