/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of `tidemark predict` from the files that people train with: configs of DeepSpeed and
 * accelerate, TrainingArguments of transformers and TRL, peft's adapter_config.json, Axolotl's
 * YAML, Megatron-LM's arguments, torchtitan's TOML, torchtune's, LitGPT's and NeMo
 * Automodel's YAML, scripts that launch these, ms-swift's, vLLM's and SGLang's
 * among them.
 * Every key is read, ignored with a word, said not to be modelled, or refused.
 */
#ifndef TDM_COMMANDS_PREDICT_FROM_H
#define TDM_COMMANDS_PREDICT_FROM_H

#include "methods/method.h"
#include "commands/setting_words.h"

#include <jansson.h>

#define TDM_FROM_FILES 8u

/* The files of --from, and what they say. All zero: none. */
struct tdm_from {
    const char *paths[TDM_FROM_FILES]; /* borrowed */
    size_t count;
    const char *method, *model;           /* NULL: no file says it */
    const char *spread;                   /* the method of several GPUs; NULL: DDP */
    uint64_t batch, context, gpus, nodes; /* 0: no file says it */
    uint64_t accumulation;                /* micro-batches of a step; 0: no file says it */
    json_t *pairs, *quiet;                /* arrays of "KEY=VALUE"; owned */
    json_t *ignored;                      /* array of "FILE: KEY (why)"; owned */
    json_t *lacking;                      /* the same, of what is not modelled; owned */
    json_t *sources;                      /* object: where a pair is said, as FILE: "KEY"; owned */
    const char *key;                      /* which is being read; NULL: none */
    json_t *words;                        /* array of strings that others borrow; owned */
    const char *changes[TDM_METHOD_MOST_KEYS]; /* pairs of --set for keys of the files; borrowed */
    bool changed[TDM_METHOD_MOST_KEYS];        /* a file has that key */
    size_t change_count;
    struct tdm_from_named {    /* a config that another file names */
        const char *by, *name; /* NULL: none; read where it is found, from here or beside it */
        bool is_read;          /* one was read */
    } deepspeed, accelerate;
    uint64_t gpus_of_node; /* by a launcher; 0: no file says it */
    uint64_t loss_tokens;  /* of a chunk of ms-swift's loss over divided sequences; 0: all */
    uint64_t asked_gpus;   /* of the command line; 0: it does not say */
    json_t *config;        /* what a file says of its model, as a config.json; owned */
    const char *config_file;
    const char *unnamed;  /* why a file's model is not known; NULL: no file says so */
    bool is_training;     /* a file of a trainer was read, which wraps in DDP on several GPUs */
    bool is_trainer;      /* one of transformers, which drops its loss after the backward */
    const char *offloads; /* the file whose activations go to the host; NULL: none */
    bool checkpoints, reentrant, adapters, bf16;
    const char *program; /* that a script launches, as "swift"; NULL: none that is known */
    bool wide;   /* a trainer's file says no bf16, so that fp32 weights are computed with in fp32 */
    bool fsdp_1; /* a file says FSDP 1, or FSDP of no version, which accelerate takes so */
    bool whole;  /* a file says NO_SHARD of FSDP 1: every GPU has all of the model */
    const char *widens_by; /* the file by which accelerate makes fp32 what is trained; or NULL */
    bool
        bytes_of_4_bits; /* TRL keeps weights of 4 bits in bytes, which accelerate does not shard */
    bool narrow_adapters;   /* TRL makes those of quantized weights bf16 */
    bool model_checkpoints; /* gradient_checkpointing: those that the model calls */
    bool scales;            /* gradients for fp16, under autocast */
};

/* Adds the value of one --from. TDM_USAGE: too many. */
enum tdm_status tdm_from_add(struct tdm_from *from, const char *path, struct tdm_error *err);

/* Takes from the list of --set the pairs that no method reads: they are for keys of the files, as
 * "--training.compile" of torchtitan and "model.lora_rank=16" of torchtune are. After tdm_from_read
 * those that no file has go back to the list, for the method to refuse. */
void tdm_from_take_changes(struct tdm_from *from, struct tdm_setting_list *list);
void tdm_from_return_changes(const struct tdm_from *from, struct tdm_setting_list *list);

/* Reads all files. `gpus`: of the command line; 0: as the files say. TDM_INPUT names the file and
 * the key that is not known. The caller frees, also after a failure. */
enum tdm_status tdm_from_read(struct tdm_from *from, uint64_t gpus, struct tdm_error *err);
void tdm_from_free(struct tdm_from *from);

/* Adds the pairs to a list, without those whose key the list has already. Pairs of keys that the
 * method lacks become ignored ones if they say no, else lacking ones, unless the answer would be
 * much too low without them: then TDM_USAGE names file and key. The list borrows from *from. */
enum tdm_status tdm_from_apply(struct tdm_from *from, const struct tdm_method *method,
                               struct tdm_setting_list *list, struct tdm_error *err);

/* Of a filled error about "--set KEY", whose value is one that a file of the list's pairs says:
 * names that file and its key in place of "--set KEY", and makes it TDM_INPUT. Returns the error's
 * status. */
enum tdm_status tdm_from_blame(const struct tdm_from *from, const struct tdm_method *method,
                               const struct tdm_setting_list *list, struct tdm_error *err);

#endif
