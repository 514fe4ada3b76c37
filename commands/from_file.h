/* SPDX-License-Identifier: Apache-2.0 */
/* Files of settings in the formats that people have them in, as JSON values. */
#ifndef TDM_COMMANDS_FROM_FILE_H
#define TDM_COMMANDS_FROM_FILE_H

#include "base/status.h"

#include <jansson.h>

/* Reads a file of JSON, YAML, TOML, arguments of a command line ("--micro-batch-size 1 --bf16"), or
 * a shell script that passes such: by the end of its name (.json, .yaml, .yml, .toml, .args, .sh),
 * else by how it begins. Keys of arguments keep their dashes; one without a value is true. Of a
 * script "launcher" has the options before the program, as of torchrun, and "env" what is assigned.
 * The caller owns the result. Errors name the file, and the line where there is one. */
enum tdm_status tdm_from_load(const char *path, json_t **root, struct tdm_error *err);

/* The words of the training command of a script, and what is assigned before it: an object of
 * strings and arrays of strings. The caller owns both. TDM_INPUT: no command has options. */
enum tdm_status tdm_from_script(const char *file, const char *text, json_t **words,
                                json_t **assigned, struct tdm_error *err);

/* The server that the words of a command start, "vllm" or "sglang": by its own name, as a module of
 * Python, or vLLM as an image for Docker. NULL: they start none. */
const char *tdm_from_server(const json_t *words);

#endif
