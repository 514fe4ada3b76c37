/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Digests and checksums. A short digest of a text ties a schedule to its model and a trace to its
 * schedule. A checksum of gigabytes recognizes a written file when it is read. Both guard against
 * mistakes, not against malice.
 */
#ifndef TDM_BASE_DIGEST_H
#define TDM_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

/* Length of a digest in hex, with the final zero. */
#define TDM_DIGEST_SIZE 17

/* FNV-1a with 64 bits over `bytes` bytes of `data` (RFC 9923, section 2). */
uint64_t tdm_digest_bytes(const void *data, size_t bytes);

/* The digest of a string as 16 lower-case hex digits. Returns `out`. */
const char *tdm_digest_text(const char *text, char out[TDM_DIGEST_SIZE]);

/* A checksum of bytes that arrive in pieces, at several GB/s. Any change within 8 aligned bytes
 * changes it. {0} begins one. The sizes of the pieces make no difference. */
struct tdm_checksum {
    uint64_t sum, bytes;
    unsigned char rest[8]; /* the last bytes % 8 */
};

void tdm_checksum_add(struct tdm_checksum *checksum, const void *data, size_t bytes);

/* The checksum of the bytes added so far. */
uint64_t tdm_checksum_value(const struct tdm_checksum *checksum);

#endif
