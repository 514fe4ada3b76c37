/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the part of Python's pickle format that memory snapshots have, by the description of its
 * opcodes in Lib/pickletools.py: what PyTorch's memory viewer reads. */
#ifndef TDM_TESTS_UNPICKLE_H
#define TDM_TESTS_UNPICKLE_H

#include <jansson.h>
#include <stddef.h>

/* The value, as JSON; the caller releases it. NULL, with the reason in *why, if the bytes are no
 * pickle, have an opcode that the viewer does not know, or more follows. */
json_t *tdm_unpickle(const unsigned char *bytes, size_t count, const char **why);

#endif
