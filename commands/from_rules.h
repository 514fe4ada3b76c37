/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each key of the files of --from stands for: a table of rules for each kind of file. Only for
 * commands/from_*.c and commands/predict_from.c.
 *
 * Objects inside are entered unless a rule names them, so a key is a path:
 * "zero_optimization.stage". The first rule that fits holds.
 */
#ifndef TDM_COMMANDS_FROM_RULES_H
#define TDM_COMMANDS_FROM_RULES_H

#include "commands/predict_from.h"

enum tdm_from_action {
    TDM_FROM_SET,     /* a setting, whose key is `to`; null, "auto" and empty: not said */
    TDM_FROM_SIZE,    /* the same, and "auto" is one of its values */
    TDM_FROM_ON,      /* the pair `to`, if it is on */
    TDM_FROM_IGNORE,  /* `to` says why */
    TDM_FROM_REFUSE,  /* unless it is off; `to` says what is known */
    TDM_FROM_LACK,    /* unless it is off, the answer says that it is not modelled, and `to` */
    TDM_FROM_BATCH,   /* --batch */
    TDM_FROM_CONTEXT, /* --context */
    TDM_FROM_GPUS,    /* --gpus */
    TDM_FROM_NODES,   /* --nodes */
    TDM_FROM_MODEL,   /* MODEL */
    TDM_FROM_STEPS,   /* micro-batches whose gradients are added up */
    TDM_FROM_ONE,     /* a degree: 1 (and what is below it) or a refusal by `to` */
    TDM_FROM_READ,    /* `read` */
    TDM_FROM_TABLE,   /* what stands for the "*" is a key of `table` */
};

struct tdm_from_reading {
    struct tdm_from *from;
    const char *file;
    const json_t *root;
    const struct tdm_from_kind *kind;
    struct tdm_error *err;
    bool of_program; /* options of a program, which may have some of its own */
};

struct tdm_from_rule {
    const char *key; /* a path; one that ends in "*" is the beginning of some; NULL: the end */
    enum tdm_from_action action;
    const char *to;
    enum tdm_status (*read)(const struct tdm_from_reading *r, const char *path,
                            const json_t *value);
    const struct tdm_from_rule *table;
    const char *prefix; /* of names of the table, which may be left out */
};

#define TDM_FROM_SIGNS 24u

/* A kind of file, and keys of which it has one. */
struct tdm_from_kind {
    const char *name;
    const struct tdm_from_rule *rules;
    const char *signs[TDM_FROM_SIGNS]; /* up to NULL */
    bool options;                      /* keys are options: "--num-layers" is num_layers */
    const char *lists[4]; /* keys whose value is a list, which --set may give one word for */
    /* Called when all keys were read. NULL: nothing follows from what it does not say. */
    enum tdm_status (*settle)(const struct tdm_from_reading *r);
};

extern const struct tdm_from_kind tdm_from_deepspeed, tdm_from_accelerate, tdm_from_training,
    tdm_from_adapter, tdm_from_axolotl, tdm_from_llamafactory, tdm_from_megatron,
    tdm_from_torchtitan, tdm_from_torchtune, tdm_from_litgpt, tdm_from_swift,
    tdm_from_swift_megatron, tdm_from_automodel, tdm_from_launcher, tdm_from_vllm, tdm_from_sglang;

/* TrainingArguments, which LLaMA-Factory's configs have too. */
extern const struct tdm_from_rule tdm_from_training_rules[];
/* Megatron-LM's arguments by the names of their keys, which ms-swift has too. */
extern const struct tdm_from_rule tdm_from_megatron_rules[];
/* fsdp_config of TrainingArguments, accelerate and Axolotl. */
extern const struct tdm_from_rule tdm_from_fsdp_rules[];

/* The rest of a row behind its key: {"fp16", REFUSE "only bf16 is known"}. */
#define SET .action = TDM_FROM_SET, .to =
#define SIZE .action = TDM_FROM_SIZE, .to =
#define ON .action = TDM_FROM_ON, .to =
#define IGNORE .action = TDM_FROM_IGNORE, .to =
#define REFUSE .action = TDM_FROM_REFUSE, .to =
#define LACK .action = TDM_FROM_LACK, .to =
#define ONE .action = TDM_FROM_ONE, .to =
#define SAYS(what) .action = TDM_FROM_##what
#define READ(function) .action = TDM_FROM_READ, .read = (function)
#define TABLE(rules) .action = TDM_FROM_TABLE, .table = (rules)

#define TDM_FROM_NO_MEMORY "changes no memory"
#define TDM_FROM_OF_MODEL "the model says it"

#define TDM_FROM_PATH_BYTES 200u

/* False, null, 0, "none", "no", "off", "disabled" or empty. */
bool tdm_from_is_off(const json_t *value);
bool tdm_from_is(const json_t *value, const char *word);

/* The key is read, and ignored because of `why`. */
enum tdm_status tdm_from_note(const struct tdm_from_reading *r, const char *path, const char *why);
/* The key changes memory, and no method has it. */
enum tdm_status tdm_from_lack(const struct tdm_from_reading *r, const char *path, const char *why);
/* TDM_INPUT: `FILE: "PATH" is VALUE; EXPECTED`. */
enum tdm_status tdm_from_bad(const struct tdm_from_reading *r, const char *path,
                             const json_t *value, const char *expected);
/* A setting for --set. If the method lacks it, the answer says so. */
enum tdm_status tdm_from_pair(const struct tdm_from_reading *r, const char *key, const char *value);
/* The same, left out in silence where the method lacks it. */
enum tdm_status tdm_from_quiet_pair(const struct tdm_from_reading *r, const char *key,
                                    const char *value);
enum tdm_status tdm_from_count(const struct tdm_from_reading *r, const char *path,
                               const json_t *value, uint64_t *out);
/* What the file says of its model is none that is known: `FILE: "PATH" WHY`. It is an error if
 * nothing else names the model. */
enum tdm_status tdm_from_unnamed(const struct tdm_from_reading *r, const char *path,
                                 const char *why);
/* The value of a key in a section of the file; NULL: there is none. */
const json_t *tdm_from_in(const struct tdm_from_reading *r, const char *section, const char *key);
bool tdm_from_begins(const char *text, const char *beginning);
/* Takes the value as MODEL. */
enum tdm_status tdm_from_read_model(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value);
/* A word that stays valid as long as the settings. NULL: no memory. */
const char *tdm_from_keep(const struct tdm_from_reading *r, const char *word);

/* The rule of a path, which may be one of a table that a rule names. NULL: there is none. */
const struct tdm_from_rule *tdm_from_find_rule(const struct tdm_from_rule *rules, const char *path);

/* Gives the file the values of the command line, for keys that files of its kind have. */
enum tdm_status tdm_from_change(const struct tdm_from_reading *r, json_t *root);

/* Reads a key by another table, which has a rule for it. */
enum tdm_status tdm_from_apply_rules(const struct tdm_from_reading *r,
                                     const struct tdm_from_rule *rules, const char *path,
                                     const json_t *value);

/* For rules: stages of ZeRO, the name of a DeepSpeed config, dtypes of weights, attention by
 * transformers' names, checkpointing and its kind. */
enum tdm_status tdm_from_read_stage(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value);
enum tdm_status tdm_from_read_deepspeed(const struct tdm_from_reading *r, const char *path,
                                        const json_t *value);
enum tdm_status tdm_from_read_dtype(const struct tdm_from_reading *r, const char *path,
                                    const json_t *value);
enum tdm_status tdm_from_read_attention(const struct tdm_from_reading *r, const char *path,
                                        const json_t *value);
/* OffloadActivations of torchtune, which TRL and Axolotl have too. */
enum tdm_status tdm_from_read_offloading(const struct tdm_from_reading *r, const char *path,
                                         const json_t *value);
enum tdm_status tdm_from_read_checkpoints(const struct tdm_from_reading *r, const char *path,
                                          const json_t *value);
enum tdm_status tdm_from_read_reentrant(const struct tdm_from_reading *r, const char *path,
                                        const json_t *value);
/* A backend of torch.compile or a switch, and its mode, of a whole model with its loss. */
enum tdm_status tdm_from_read_compile(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value);
enum tdm_status tdm_from_read_compile_mode(const struct tdm_from_reading *r, const char *path,
                                           const json_t *value);
/* Ranks of PyTorch's context parallelism: more than one name the method torch-cp. */
enum tdm_status tdm_from_read_context(const struct tdm_from_reading *r, const char *path,
                                      const json_t *value);
/* fully_shard: the method fsdp, unless the ranks of a sequence have named torch-cp. */
void tdm_from_name_fsdp(const struct tdm_from_reading *r);
/* Says which version of FSDP is predicted where the file names none. */
enum tdm_status tdm_from_fsdp_version(const struct tdm_from_reading *r, const char *path);
/* The words of fsdp, of transformers and Axolotl, in one text or a list: "full_shard offload". */
enum tdm_status tdm_from_read_fsdp(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value);
/* vllm_mode of TRL: colocate is use_vllm=yes. */
enum tdm_status tdm_from_read_vllm_mode(const struct tdm_from_reading *r, const char *path,
                                        const json_t *value);
/* Liger's parts that a table names, as `liger`: PREFIXrms_norm, PREFIXrope, and `mlp` behind the
 * prefix; `unsaid`: a part that is not named is on. */
enum tdm_status tdm_from_liger_parts(const struct tdm_from_reading *r, const json_t *table,
                                     const char *prefix, const char *mlp, bool unsaid);
/* optim_args of TrainingArguments, which Axolotl has too. */
enum tdm_status tdm_from_read_optim_args(const struct tdm_from_reading *r, const char *path,
                                         const json_t *value);
enum tdm_status tdm_from_read_bf16(const struct tdm_from_reading *r, const char *path,
                                   const json_t *value);

#endif
