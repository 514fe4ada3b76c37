/* SPDX-License-Identifier: Apache-2.0 */
/* Cleans text for display: valid UTF-8 without control characters. */
#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Bytes of the character that begins at `s`; 0 if none does (Unicode standard, table 3-7). */
static size_t length_of(const unsigned char *s)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = s[0] < 0x80         ? 1
                    : s[0] >> 5 == 0x6  ? 2
                    : s[0] >> 4 == 0xe  ? 3
                    : s[0] >> 3 == 0x1e ? 4
                                        : 0;
    if (length < 2)
        return length;
    uint32_t code = s[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (s[i] >> 6 != 0x2) /* also stops at the terminating zero */
            return 0;
        code = code << 6 | (s[i] & 0x3fu);
    }
    if (code < least[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return 0;
    return length;
}

static int is_control(const unsigned char *s, size_t length)
{
    return (length == 1 && (s[0] < 0x20 || s[0] == 0x7f)) ||
           (length == 2 && s[0] == 0xc2 && s[1] < 0xa0);
}

/* Is this byte one of a character that began before it? */
static bool is_within(char byte)
{
    return ((unsigned char)byte & 0xc0) == 0x80;
}

char *tdm_text_clean(char *text)
{
    const unsigned char *from = (const unsigned char *)text;
    char *to = text;
    while (*from != '\0') {
        size_t length = length_of(from);
        if (length == 0 || is_control(from, length)) {
            *to++ = '?';
            from += length == 0 ? 1 : length;
        } else {
            for (size_t i = 0; i < length; i++)
                *to++ = (char)*from++;
        }
    }
    *to = '\0';
    return text;
}

size_t tdm_text_utf8_bytes(const char *text)
{
    const char *at = text;
    for (size_t length; *at != '\0'; at += length) {
        length = length_of((const unsigned char *)at);
        if (length == 0)
            break;
    }
    return (size_t)(at - text);
}

void tdm_text_shorten(const char *text, char *out, size_t bytes)
{
    const size_t length = strlen(text), room = bytes - sizeof("..."); /* at least 4 */
    if (length < bytes) {
        memcpy(out, text, length + 1);
        return;
    }
    size_t first = room / 2, last = length - (room - first);
    for (int i = 0; i < 3 && is_within(text[first]); i++)
        first--;
    for (int i = 0; i < 3 && is_within(text[last]); i++)
        last++;
    snprintf(out, bytes, "%.*s...%s", (int)first, text, text + last);
}

const char *tdm_text_shown(const char *text, char out[TDM_TEXT_SHOWN])
{
    snprintf(out, TDM_TEXT_SHOWN, "%s", text);
    return tdm_text_clean(out);
}
