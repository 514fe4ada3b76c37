/* SPDX-License-Identifier: Apache-2.0 */
/* Status and message: fills the caller's error and maps a status to an exit code. */
#include "base/status.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum tdm_status tdm_fail(struct tdm_error *err, enum tdm_status status, const char *format, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->message, sizeof(err->message), format, args);
        va_end(args);
        tdm_text_clean(err->message); /* names in it may contain any bytes */
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
    vsnprintf(err->hint, sizeof(err->hint), format, args);
    va_end(args);
    tdm_text_clean(err->hint);
    return err->status;
}

enum tdm_status tdm_about(struct tdm_error *err, const char *subject)
{
    char message[sizeof(err->message)];
    if (err == NULL)
        return TDM_INTERNAL;
    snprintf(message, sizeof(message), "%.240s: %.500s", subject, err->message);
    tdm_text_clean(message);
    memcpy(err->message, message, sizeof(message));
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
