/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of tokens. The format is found from the contents, or given by the user as a prefix:
 *
 *     FILE             an array of NumPy (.npy); llm.c's data, which begins with 256 int32
 *                      (20240520: GPT-2's uint16; 20240801: Llama 3's uint32); Megatron-LM's
 *                      PREFIX.bin, with PREFIX.idx beside it; JSON lines, whose name ends in
 *                      ".jsonl" (jsonl.h); any other file as bytes, one token a
 *                      byte, where the vocabulary has no more entries than bytes need
 *     uint16:FILE      little-endian numbers of two bytes, from the first byte on
 *     uint32:FILE      the same of four bytes
 *     bytes:FILE       one token a byte, whatever the vocabulary is
 */
#ifndef TDM_TEXTS_TOKEN_FILE_H
#define TDM_TEXTS_TOKEN_FILE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The tokens of a file, and its documents if the format marks them. */
struct tdm_token_file {
    const char *format;        /* "bytes", "an array of NumPy"; for messages */
    char *path;                /* of the file that holds the tokens; owned */
    char *bytes;               /* the whole file; owned */
    const unsigned char *data; /* first token, in `bytes` */
    uint64_t count;
    uint32_t width; /* bytes of a token: 1, 2, 4 or 8; little-endian */
    bool is_signed;
    bool is_truth;             /* truth values, which can be a mask */
    uint64_t document_count;   /* 0: the format has none */
    uint64_t *document_starts; /* [document_count] first token of each, rising from 0; owned */
    unsigned char *targets;    /* [count] 0: a token that is read, but no target; NULL: all are;
                                  owned */
    bool opened_by_delimiter;  /* documents begin with a delimiter token, which the text before it
                                  predicts */
};

/* Token `i`. A negative number is not a token and gives a very large value. */
uint64_t tdm_token_file_at(const struct tdm_token_file *file, uint64_t i);

/* Reads `what`, a file with or without a prefix, and checks that every token is below `vocabulary`.
 * The caller releases *file with tdm_token_file_free(). TDM_INPUT: fewer than 2 tokens, a token
 * outside the vocabulary, an invalid header, an unknown format for a vocabulary too large for
 * bytes, not a regular file, more than 4 GiB. TDM_IO. */
enum tdm_status tdm_token_file_read(const char *what, uint32_t vocabulary,
                                    struct tdm_token_file *file, struct tdm_error *err);
void tdm_token_file_free(struct tdm_token_file *file);

/* As a vocabulary: ids are not checked, and an unknown format is bytes. */
#define TDM_ANY_VOCABULARY UINT32_MAX

/* Bytes of the prefix of `what`, with its colon; 0: it has none. */
size_t tdm_token_file_prefix(const char *what);

/* The files that `what` is read from, without a prefix: the file of the tokens, and the file of
 * their documents or NULL. The caller frees both. TDM_NO_MEMORY. */
struct tdm_token_paths {
    char *tokens, *documents;
};
enum tdm_status tdm_token_file_paths(const char *what, struct tdm_token_paths *paths,
                                     struct tdm_error *err);

#endif
