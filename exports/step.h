/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step in detail, for the formats of other tools and for the page: what a picture shows of it
 * (plots/source.h), and beside it what each op works on and waited for, and which values are where
 * in the arenas, and for which ops.
 *
 * The details come from the program, which is lowered from the plan's schedule. A trace must have
 * the ops of that program.
 */
#ifndef TDM_EXPORTS_STEP_H
#define TDM_EXPORTS_STEP_H

#include "plots/source.h"
#include "schedule/program.h"
#include "traces/reader.h"

/* No op. */
#define TDM_NO_OP UINT32_MAX

/* What is in a slot: "kv_pages, layer 4, chunk 2". */
struct tdm_step_tensor {
    uint32_t buffer, slot; /* TDM_NONE: none */
    uint32_t layer, chunk; /* as in a tag */
    uint8_t content, part; /* enum tdm_content; enum tdm_part, in a buffer by parts */
};

struct tdm_step_op {
    uint64_t tokens, flops, bytes;
    struct tdm_step_tensor tensor; /* the first one that it writes or changes */
    uint8_t part;                  /* weights that it uses: enum tdm_part; TDM_PARTS: none */
    /* the op of another lane for which its lane was idle, or TDM_NO_OP: of those that it had to
     * wait for, the one that ended last */
    uint32_t waited_for[TDM_PLOT_SIDES];
};

/* A value: from its first op to its last one, both included. */
struct tdm_step_life {
    struct tdm_step_tensor tensor;
    uint32_t first_op, last_op;
    uint64_t offset, bytes; /* in the arena of its place */
    bool carried;           /* it outlives the step: from the first op to the last one */
};

struct tdm_step {
    struct tdm_plot *plot;
    struct tdm_program *program;
    struct tdm_step_op *ops;     /* [op_count] by number */
    struct tdm_step_life *lives; /* by rising first op */
    uint32_t op_count;
    size_t life_count;
    /* of a trace: steps that ended, and evaluations */
    struct tdm_trace_step_row *steps;
    struct tdm_trace_evaluation_row *evaluations;
    size_t step_count, evaluation_count;
};

/* Reads a step of `path`, a schedule or a trace, as tdm_plot_read() does. TDM_INPUT if the ops of a
 * trace are not those of its schedule's program. The caller owns *step. */
enum tdm_status tdm_step_read(const char *path, int64_t number, struct tdm_step **step,
                              struct tdm_error *err);
void tdm_step_free(struct tdm_step *step);

/* The side whose times an export has: measured, or predicted if nothing was measured. */
enum tdm_plot_side tdm_step_side(const struct tdm_step *step);

/* Names for people; layers and chunks count from 1. "product gate_up"; "kv_pages, layer 4, chunk
 * 2". They return `out`. */
#define TDM_STEP_NAME 128
const char *tdm_step_op_name(const struct tdm_step *step, const struct tdm_timeline_op *op,
                             char out[TDM_STEP_NAME]);
const char *tdm_step_tensor_name(const struct tdm_step *step, const struct tdm_step_tensor *tensor,
                                 char out[TDM_STEP_NAME]);

/* The place and category of a tensor's buffer. */
enum tdm_place tdm_step_place(const struct tdm_step *step, const struct tdm_step_tensor *tensor);
enum tdm_category tdm_step_category(const struct tdm_step *step,
                                    const struct tdm_step_tensor *tensor);

#endif
