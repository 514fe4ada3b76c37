/* SPDX-License-Identifier: Apache-2.0 */
/* Tags of what slots hold: comparing, numbering along a range of slots, describing in words. */
#ifndef TDM_SCHEDULE_TAGS_H
#define TDM_SCHEDULE_TAGS_H

#include "schedule/program_types.h"

/* Is this the content of buffers whose slots are units? */
bool tdm_content_is_of_unit(enum tdm_content content);

bool tdm_tag_same(struct tdm_tag a, struct tdm_tag b);

/* The tag of the k-th slot of a range: that of the k-th chunk after the first, or for unit contents
 * of the k-th unit. */
struct tdm_tag tdm_tag_at(struct tdm_tag tag, uint32_t k);

#define TDM_TAG_TEXT 96

/* "k, v pages of layer 3 chunk 2 down to contributor 5". Returns `text`. */
const char *tdm_tag_show(struct tdm_tag tag, char text[TDM_TAG_TEXT]);

#endif
