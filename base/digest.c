/* SPDX-License-Identifier: Apache-2.0 */
/* FNV-1a over bytes: the digest that ties schedules to models. */
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
