/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A short digest of a text, by which a schedule knows its model and a trace its schedule; and a
 * checksum of gigabytes, by which a file that was written is known again when it is read. Both
 * guard against mistakes, not against malice.
 */
#ifndef TDM_BASE_DIGEST_H
#define TDM_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

/* Length of a digest in hex, with the final zero. */
#define TDM_DIGEST_SIZE 17

/* FNV-1a, 64 bits, of `bytes` of `data` (RFC 9923, section 2). */
uint64_t tdm_digest_bytes(const void *data, size_t bytes);

/* The digest of a string as 16 lower-case hex digits. Returns `out`. */
const char *tdm_digest_text(const char *text, char out[TDM_DIGEST_SIZE]);

/* A checksum of bytes that come in pieces, at several GB/s. Any change within 8 aligned bytes
 * changes it. {0} begins one; how the bytes are cut into pieces makes no difference. */
struct tdm_checksum {
    uint64_t sum, bytes;
    unsigned char rest[8]; /* the last bytes % 8 */
};

void tdm_checksum_add(struct tdm_checksum *checksum, const void *data, size_t bytes);

/* The checksum of what was added so far. */
uint64_t tdm_checksum_value(const struct tdm_checksum *checksum);

#endif
