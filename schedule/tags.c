/* SPDX-License-Identifier: Apache-2.0 */
/* Tags: comparing, numbering, describing. */
#include "schedule/tags.h"

#include <stdio.h>

bool tdm_content_is_of_unit(enum tdm_content content)
{
    return content == TDM_UNIT_WEIGHTS || content == TDM_UNIT_MASTER ||
           content == TDM_UNIT_MOMENT1 || content == TDM_UNIT_MOMENT2 ||
           content == TDM_UNIT_GRADIENT;
}

const char *tdm_tag_show(struct tdm_tag tag, char text[TDM_TAG_TEXT])
{
    int used = snprintf(text, TDM_TAG_TEXT, "%s", tdm_content_name(tag.content));
    if (tag.layer != TDM_NONE && tag.content != TDM_EMPTY)
        used += snprintf(text + used, TDM_TAG_TEXT - (size_t)used, " of layer %u", tag.layer);
    if (tag.chunk != TDM_NONE)
        used += snprintf(text + used, TDM_TAG_TEXT - (size_t)used, " %s %u",
                         tdm_content_is_of_unit(tag.content) ? "slice" : "chunk", tag.chunk);
    if (tag.contributor == TDM_ITSELF)
        used += snprintf(text + used, TDM_TAG_TEXT - (size_t)used, " down to itself");
    else if (tag.contributor != TDM_NONE)
        used += snprintf(text + used, TDM_TAG_TEXT - (size_t)used, " down to contributor %u",
                         tag.contributor);
    if (tag.share != 0)
        snprintf(text + used, TDM_TAG_TEXT - (size_t)used, " (share of rank %u)", tag.share - 1);
    return text;
}
