/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status and message: how a function reports a failure.
 *
 * Every function that can fail returns enum tdm_status and takes a caller-owned struct tdm_error as
 * its last argument. The function that first knows what is wrong writes the message; callers pass
 * the status on. Outputs are set only on TDM_OK. Library code never prints and never exits.
 */
#ifndef TDM_BASE_STATUS_H
#define TDM_BASE_STATUS_H

enum tdm_status {
    TDM_OK,
    TDM_USAGE,       /* a bad command line: exit 2 */
    TDM_INPUT,       /* a bad file or value in it: exit 1 */
    TDM_INFEASIBLE,  /* no schedule fits, or this one does not: exit 3 */
    TDM_NO_MEMORY,   /* the process could not get memory: exit 1 */
    TDM_NO_DEVICE,   /* no such GPU or driver: exit 1 */
    TDM_IO,          /* reading or writing failed: exit 1 */
    TDM_INTERRUPTED, /* Ctrl-C: exit 130 */
    TDM_INTERNAL,    /* a bug in tidemark: exit 1 */
};

/* The last failure. `message` is one line that states what is wrong with what, in lower case and
 * without a full stop. `hint` is one line with the usual remedy, or empty. */
struct tdm_error {
    enum tdm_status status;
    char message[768];
    char hint[1536];
};

/* Fills `err` (may be NULL) with `status` and a printf-style message, clears the hint, and returns
 * `status`, so that a caller can write `return tdm_fail(err, TDM_INPUT, "...")`. Message and hint
 * are one line of valid UTF-8 each, without control characters (base/text.h), whatever names they
 * quote. */
enum tdm_status tdm_fail(struct tdm_error *err, enum tdm_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Sets the hint of a filled error. Does nothing if `err` is NULL. Returns its status. */
enum tdm_status tdm_hint(struct tdm_error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Puts `subject` and a colon before the message of a filled error, such as a file that a deeper
 * layer did not know. Returns its status. */
enum tdm_status tdm_about(struct tdm_error *err, const char *subject);

/* Process exit code for a status: 0, 1, 2, 3 or 130. */
int tdm_exit_code(enum tdm_status status);

#endif
