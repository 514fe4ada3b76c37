/* SPDX-License-Identifier: Apache-2.0 */
/* Internal to lockstep: both backends' arenas, and the comparison of their contents. */
#ifndef TDM_TESTS_LOCKSTEP_COMPARE_H
#define TDM_TESTS_LOCKSTEP_COMPARE_H

#include "tests/support/lockstep.h"
#include "tests/support/lockstep_slack.h"

#define POISON 0xff          /* NaN in every dtype of values */
#define NEIGHBOUR_BYTES 256u /* compared on both sides of what an op writes */

struct lockstep_walk {
    struct tdm_program *program;
    struct tdm_arenas cpu, other;
    struct tdm_step step;
    struct tdm_lockstep *lockstep;
    unsigned char *seen;   /* for copies of the other backend's bytes */
    unsigned char *before; /* operands before the op */
    uint64_t before_bytes;
    uint64_t unseen_bytes; /* written since the last comparison of whole arenas */
};

static inline uint64_t lockstep_offset(const struct tdm_buffer *buffer, uint32_t slot)
{
    return buffer->offset + slot * buffer->slot_bytes;
}

static inline enum tdm_status lockstep_upload(struct lockstep_walk *w, enum tdm_place place,
                                              uint64_t offset, uint64_t bytes,
                                              struct tdm_error *err)
{
    if (bytes == 0 || w->cpu.base[place] == NULL)
        return TDM_OK;
    return w->other.backend->upload(w->other.executor,
                                    (unsigned char *)w->other.base[place] + offset,
                                    (unsigned char *)w->cpu.base[place] + offset, bytes, err);
}

/* Copies bytes of the other backend's arena to `to`. */
static inline enum tdm_status lockstep_download(struct lockstep_walk *w, enum tdm_place place,
                                                uint64_t offset, uint64_t bytes, unsigned char *to,
                                                struct tdm_error *err)
{
    return w->other.backend->download(w->other.executor, to,
                                      (unsigned char *)w->other.base[place] + offset, bytes, err);
}

/* Compares all that an op may have written, and copies the cpu's bytes to the other backend.
 * `launch` is the cpu's, after the op. */
enum tdm_status lockstep_compare_op(struct lockstep_walk *w, const struct tdm_launch *launch,
                                    const struct tdm_slack *slack, struct tdm_error *err);

/* Compares all bytes of the arenas except scratch: ops up to this one changed only their own. */
enum tdm_status lockstep_compare_arenas(struct lockstep_walk *w, const struct tdm_op *op,
                                        struct tdm_error *err);

#endif
