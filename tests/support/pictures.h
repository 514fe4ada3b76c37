/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures that tests draw as SVG, and the words in them. */
#ifndef TDM_TESTS_PICTURES_H
#define TDM_TESTS_PICTURES_H

#include "base/status.h"

#include <stdbool.h>

#define TDM_PICTURE_PATH 600

bool tdm_has_gnuplot(void);

/* A file in the test's own folder. */
const char *tdm_picture_path(char out[TDM_PICTURE_PATH]);

/* The text of a picture; malloc'ed. */
char *tdm_picture_text_of(const char *path);

/* A picture was drawn, and these words (NULL-terminated) are in it. Removes it. */
void tdm_expect_words(enum tdm_status status, const struct tdm_error *err, const char *path,
                      const char *const *words);

#endif
