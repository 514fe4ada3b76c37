/* SPDX-License-Identifier: Apache-2.0 */
/* What fail_calls records of a program that changes files, and replay_crashes reads: a file of
 * records, each followed by its two texts, without ends, and its data. */
#ifndef TDM_TESTS_RECORDED_CALL_H
#define TDM_TESTS_RECORDED_CALL_H

#include <stdint.h>

enum tdm_recorded_kind {
    TDM_RECORDED_CREATE,   /* a file `path` */
    TDM_RECORDED_WRITE,    /* data at `offset` of `inode` */
    TDM_RECORDED_TRUNCATE, /* `inode` to `offset` bytes */
    TDM_RECORDED_SYNC,     /* of `inode`, which `path` named: a file or a directory */
    TDM_RECORDED_RENAME,   /* `path` to `other` */
    TDM_RECORDED_EXCHANGE, /* the names of `path` and `other` */
    TDM_RECORDED_REMOVE,   /* a file or directory `path` */
    TDM_RECORDED_MKDIR,    /* `path` */
    TDM_RECORDED_SYMLINK,  /* `path` to the text `other` */
    TDM_RECORDED_SAID      /* data that was written to what stderr is */
};

struct tdm_recorded_call {
    uint32_t kind, path_bytes, other_bytes, data_bytes;
    uint64_t inode, offset;
};

#endif
