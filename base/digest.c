/* SPDX-License-Identifier: Apache-2.0 */
/* Digests: FNV-1a over bytes, which ties schedules to models, and a checksum over words of 8
 * bytes. */
#include "base/digest.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

uint64_t tdm_digest_bytes(const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    uint64_t digest = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++) {
        digest ^= byte[i];
        digest *= UINT64_C(0x100000001b3);
    }
    return digest;
}

const char *tdm_digest_text(const char *text, char out[TDM_DIGEST_SIZE])
{
    snprintf(out, TDM_DIGEST_SIZE, "%016" PRIx64, tdm_digest_bytes(text, strlen(text)));
    return out;
}

/* This is a bijection of the sum for a given word, and of the word for a given sum. So a difference
 * in one word is never lost. */
static uint64_t add_word(uint64_t sum, uint64_t word)
{
    sum ^= word;
    sum *= UINT64_C(0x9e3779b97f4a7c15); /* odd */
    return sum << 29 | sum >> 35;
}

void tdm_checksum_add(struct tdm_checksum *checksum, const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    size_t held = (size_t)(checksum->bytes % 8);
    uint64_t word, sum = checksum->sum;
    if (bytes == 0) /* `data` may be NULL */
        return;
    checksum->bytes += bytes;
    if (held > 0) {
        size_t some = bytes < 8 - held ? bytes : 8 - held;
        memcpy(checksum->rest + held, byte, some);
        byte += some;
        bytes -= some;
        if (held + some < 8)
            return;
        memcpy(&word, checksum->rest, 8);
        sum = add_word(sum, word);
    }
    for (; bytes >= 8; byte += 8, bytes -= 8) {
        memcpy(&word, byte, 8);
        sum = add_word(sum, word);
    }
    memcpy(checksum->rest, byte, bytes);
    checksum->sum = sum;
}

uint64_t tdm_checksum_value(const struct tdm_checksum *checksum)
{
    uint64_t word = 0;
    memcpy(&word, checksum->rest, (size_t)(checksum->bytes % 8));
    return add_word(add_word(checksum->sum, word), checksum->bytes);
}
