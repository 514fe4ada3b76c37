/* SPDX-License-Identifier: Apache-2.0 */
/* Status and message: fills the caller's error and maps a status to an exit code. */
#include "base/status.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Room for a message with two paths of any length. */
#define MOST_BYTES 12288

/* Writes a text of one line. Names in it may contain any bytes, and have any length. */
static void print(char *out, size_t bytes, const char *format, va_list args)
{
    char text[MOST_BYTES];
    vsnprintf(text, sizeof(text), format, args);
    tdm_text_shorten(text, out, bytes);
    tdm_text_clean(out);
}

enum tdm_status tdm_fail(struct tdm_error *err, enum tdm_status status, const char *format, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, format);
        print(err->message, sizeof(err->message), format, args);
        va_end(args);
        err->status = status;
        err->hint[0] = '\0';
    }
    return status;
}

enum tdm_status tdm_hint(struct tdm_error *err, const char *format, ...)
{
    if (err == NULL)
        return TDM_INTERNAL;
    va_list args;
    va_start(args, format);
    print(err->hint, sizeof(err->hint), format, args);
    va_end(args);
    return err->status;
}

enum tdm_status tdm_about(struct tdm_error *err, const char *subject)
{
    char about[240], message[500];
    if (err == NULL)
        return TDM_INTERNAL;
    tdm_text_shorten(subject, about, sizeof(about));
    tdm_text_shorten(err->message, message, sizeof(message));
    snprintf(err->message, sizeof(err->message), "%s: %s", about, message);
    tdm_text_clean(err->message);
    return err->status;
}

int tdm_exit_code(enum tdm_status status)
{
    switch (status) {
    case TDM_OK:
        return 0;
    case TDM_USAGE:
        return 2;
    case TDM_INFEASIBLE:
        return 3;
    case TDM_INTERRUPTED:
        return 130;
    default:
        return 1;
    }
}
