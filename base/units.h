/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Units as people type and read them. Bytes and tokens are 1024-based everywhere: `80G` and `80GiB`
 * are the same number of bytes, `256K` is 262,144 tokens.
 */
#ifndef TDM_BASE_UNITS_H
#define TDM_BASE_UNITS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Reads "123", "1.5GiB", "80G", "512MiB", "64K" (also "B") into bytes. `what` names the option or
 * field in the message ("--memory"). "12.34 GiB", as printed below, is accepted, rounded down to a
 * byte. TDM_USAGE on nonsense, a sign, a fraction of a byte ("1.5"), overflow, and on "80GB", which
 * could be 1000-based. */
enum tdm_status tdm_parse_bytes(const char *text, const char *what, uint64_t *bytes,
                                struct tdm_error *err);

#define TDM_LONGEST_CONTEXT (UINT64_C(1) << 28) /* 256M tokens; with more, FLOPs exceed 64 bits */

/* Reads "4096", "256K", "1M" into a count of tokens (at least 1). Same errors. */
enum tdm_status tdm_parse_tokens(const char *text, const char *what, uint64_t *tokens,
                                 struct tdm_error *err);

/* Reads a decimal whole number within [low, high]. Same errors. */
enum tdm_status tdm_parse_count(const char *text, const char *what, uint64_t low, uint64_t high,
                                uint64_t *count, struct tdm_error *err);

/* Long enough for any of the formats below. */
#define TDM_FORMAT_SIZE 32

/* "12.34 GiB", "512 MiB", "3 KiB", "17 B". Returns `out`. */
const char *tdm_format_bytes(uint64_t bytes, char out[TDM_FORMAT_SIZE]);

/* A typed form that is read as at least `bytes`: hundredths of GiB ("12.35G"), or whole MiB if it
 * is small ("17M"). Returns `out`. */
const char *tdm_format_enough_bytes(uint64_t bytes, char out[TDM_FORMAT_SIZE]);

/* "256K", "1M"; 4096 gives "4K", 5000 stays "5000". Returns `out`. */
const char *tdm_format_tokens(uint64_t tokens, char out[TDM_FORMAT_SIZE]);

/* "4.2 days" from 100 h on, "35.4 h" from 10,000 s on, "102 s", "31.50 s", "12.3 ms", "45 us".
 * Returns `out`. */
const char *tdm_format_seconds(double seconds, char out[TDM_FORMAT_SIZE]);

#endif
