/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz targets: each gives any bytes to one parser, which must take them or refuse them with one
 * line of text. A sanitizer, or a check that does not hold, ends the program.
 *
 * tests/fuzz/replay.c runs the committed corpus, tests/fuzz/libfuzzer.c searches for more inputs
 * (docs/testing.md).
 */
#ifndef TDM_TESTS_FUZZ_H
#define TDM_TESTS_FUZZ_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct tdm_fuzz_target {
    const char *name;                               /* also of its folder in tests/fuzz/corpus */
    bool json;                                      /* inputs are JSON, which is mutated as such */
    bool (*run)(const uint8_t *data, size_t bytes); /* was the input taken? */
};

/* Does libFuzzer search, or are inputs replayed? A search may leave out what others of its inputs
 * do. */
extern bool tdm_fuzz_searches;

/* All targets; the last one has no name. */
extern const struct tdm_fuzz_target tdm_fuzz_targets[];

/* The target of a name; NULL if there is none. */
const struct tdm_fuzz_target *tdm_fuzz_find(const char *name);

#define TDM_FUZZ_CHECK(condition)                                                \
    do {                                                                         \
        if (!(condition)) {                                                      \
            printf("%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            fflush(stdout);                                                      \
            abort();                                                             \
        }                                                                        \
    } while (0)

/* Was the input taken? If not, checks that the failure is one of input, and its message one clean
 * line. */
bool tdm_fuzz_taken(enum tdm_status status, const struct tdm_error *err);

/* Parses JSON as files are. NULL if it is none. */
json_t *tdm_fuzz_json(const uint8_t *data, size_t bytes);

/* A folder of this process, made at the first call and removed at its end. */
const char *tdm_fuzz_folder(void);

/* "FOLDER/NAME" in `path`. Returns `path`. */
#define TDM_FUZZ_PATH 256
const char *tdm_fuzz_path(const char *name, char path[TDM_FUZZ_PATH]);

/* Writes a file of the folder. */
void tdm_fuzz_write(const char *name, const void *data, size_t bytes);

/* Puts the bytes in a file in memory, whose name `path` gets. Returns its descriptor. */
int tdm_fuzz_file(const void *data, size_t bytes, char path[TDM_FUZZ_PATH]);

/* tests/fuzz/corpus/NAME, a whole file, as JSON. */
json_t *tdm_fuzz_seed(const char *name);

/* Trains the schedule of the corpus, once: leaves its trace, run.db, and its checkpoint, saves, in
 * the folder. */
void tdm_fuzz_train(void);

/* ---- the targets ---- */

bool tdm_fuzz_config(const uint8_t *data, size_t bytes);   /* config.json */
bool tdm_fuzz_machine(const uint8_t *data, size_t bytes);  /* a machine's description */
bool tdm_fuzz_schedule(const uint8_t *data, size_t bytes); /* and lowering it */
bool tdm_fuzz_settings(const uint8_t *data, size_t bytes); /* METHOD and pairs, a line each */
/* A letter for the format (y, t, a, j) and a file of predict --from. */
bool tdm_fuzz_from(const uint8_t *data, size_t bytes);
bool tdm_fuzz_safetensors(const uint8_t *data, size_t bytes); /* and reading all values */
bool tdm_fuzz_index(const uint8_t *data, size_t bytes);       /* model.safetensors.index.json */
bool tdm_fuzz_npy(const uint8_t *data, size_t bytes);         /* tokens in an array of NumPy */
bool tdm_fuzz_idx(const uint8_t *data, size_t bytes);   /* u32 bytes of the .bin, then the .idx */
bool tdm_fuzz_bin(const uint8_t *data, size_t bytes);   /* tokens in a file of any format */
bool tdm_fuzz_jsonl(const uint8_t *data, size_t bytes); /* tokens as JSON lines */
/* The note of a checkpoint. Its members replace those of the true one, null ones go. */
bool tdm_fuzz_checkpoint(const uint8_t *data, size_t bytes);
/* Records of 8 bytes, each a change of a value of a trace; or a database. */
bool tdm_fuzz_trace(const uint8_t *data, size_t bytes);

#endif
