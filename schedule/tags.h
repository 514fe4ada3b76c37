/* SPDX-License-Identifier: Apache-2.0 */
/* Tags of what slots hold: comparing, numbering along a range of slots, describing in words. */
#ifndef TDM_SCHEDULE_TAGS_H
#define TDM_SCHEDULE_TAGS_H

#include "schedule/program_types.h"

/* Is this the content of buffers whose slots are units? */
bool tdm_content_is_of_unit(enum tdm_content content);

/* The next two are asked for every slot of every access, so they are inline. */
static inline bool tdm_tag_same(struct tdm_tag a, struct tdm_tag b)
{
    return a.content == b.content && a.layer == b.layer && a.chunk == b.chunk &&
           a.contributor == b.contributor && a.share == b.share;
}

/* The tag of the k-th slot of a range: that of the k-th chunk after the first, or for unit contents
 * of the k-th unit. */
static inline struct tdm_tag tdm_tag_at(struct tdm_tag tag, uint32_t k)
{
    if (tag.chunk != TDM_NONE)
        tag.chunk += k;
    else if (tag.layer != TDM_NONE)
        tag.layer += k;
    if (tag.contributor == TDM_ITSELF)
        tag.contributor = tag.chunk;
    return tag;
}

#define TDM_TAG_TEXT 96

/* "k, v pages of layer 3 chunk 2 down to contributor 5". Returns `text`. */
const char *tdm_tag_show(struct tdm_tag tag, char text[TDM_TAG_TEXT]);

#endif
