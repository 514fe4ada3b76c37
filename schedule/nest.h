/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop nest: groups of layers x chunks of tokens, as a sequence of bodies.
 *
 * Every order is a sequence of the same few bodies. Lowering knows bodies, not orders. Besides the
 * bodies that compute, markers say where a phase, a group or a layer begins and ends: there buffers
 * are allocated and freed.
 */
#ifndef TDM_SCHEDULE_NEST_H
#define TDM_SCHEDULE_NEST_H

#include "schedule/program_types.h"

enum tdm_body_kind {
    TDM_BODY_PHASE_BEGIN,
    TDM_BODY_PHASE_END,
    TDM_BODY_GROUP_BEGIN,
    TDM_BODY_GROUP_END,
    TDM_BODY_LAYER_BEGIN, /* layer-major: a layer's sweep over the chunks */
    TDM_BODY_LAYER_END,
    TDM_BODY_HEAD_BEGIN,
    TDM_BODY_HEAD_END,
    TDM_BODY_FORWARD,  /* a layer forward for a chunk */
    TDM_BODY_KV,       /* its K and V alone: norm and KV product */
    TDM_BODY_HEAD,     /* final norm, LM head and loss of a chunk, forward and backward */
    TDM_BODY_LOSS,     /* final norm, LM head and loss of a chunk, forward alone */
    TDM_BODY_BACKWARD, /* recompute of missing values, and backward; with several ranks without: */
    TDM_BODY_BACKWARD_KV,  /* several ranks: the rest of it, from a chunk's complete dK and dV on */
    TDM_BODY_EMBEDDING,    /* adds a chunk's rows to the gradient of the embedding */
    TDM_BODY_GRADIENT_SUM, /* several ranks: of the shares of the gradient of unit `layer` */
    TDM_BODY_GRADIENT_NORM, /* of unit `layer`, whose gradient is complete */
    TDM_BODY_OPTIMIZER,     /* of unit `layer` */
    TDM_BODY_GRADIENT_END,  /* of layer `layer`: nothing uses the gradient where it was summed */
};

/* Does a body compute with the weights of its layer, for its chunk? */
static inline bool tdm_body_is_of_layer(enum tdm_body_kind kind)
{
    return kind == TDM_BODY_FORWARD || kind == TDM_BODY_KV || kind == TDM_BODY_BACKWARD ||
           kind == TDM_BODY_BACKWARD_KV;
}

enum tdm_pass {
    TDM_PASS_FIRST, /* the forward */
    TDM_PASS_RERUN, /* a group run forward again */
    TDM_PASS_BACKWARD,
};

struct tdm_body {
    enum tdm_body_kind kind;
    enum tdm_phase phase;
    enum tdm_pass pass;
    uint32_t group, layer, chunk; /* TDM_NONE where it has none */
    /* with several ranks: the rank has no chunk in this round, whose first one is `chunk`, and only
     * takes part in the team ops of others (ops/team.h) */
    bool absent;
};

/* Most bodies whose fetches were emitted and that have not run; more than any prefetch. */
#define TDM_MOST_QUEUED 32u

/* Does a body count among those whose fetches run ahead? Bodies without a chunk, and K and V that
 * are made from nothing that is fetched, take no slot. */
static inline bool tdm_body_runs_ahead(enum tdm_body_kind kind, uint32_t chunk, bool fetches)
{
    return chunk != UINT32_MAX && (fetches || kind != TDM_BODY_KV);
}

typedef enum tdm_status (*tdm_body_visitor)(void *self, const struct tdm_body *body,
                                            struct tdm_error *err);

/* Do the gradients of layer 0's input outlive its backward, so that the embedding's gradient is
 * computed after it? In chunk-major order with one group X has one slot, and each chunk is added at
 * once. */
bool tdm_nest_embeds_apart(const struct tdm_schedule *schedule);

/* Is the gradient of a layer summed over the ranks while the next layer goes backward, and used
 * after that? Then it has a GRADIENT_END apart from its LAYER_END. */
bool tdm_nest_defers(const struct tdm_schedule *schedule);

/* Are K and V of a layer made ahead: each chunk's between the bodies of the layer above, once that
 * has gone backward for the chunk and leaves its slot of the row that they share? Then the inputs
 * that they are made of come from the host beside that layer's computing; after it nothing would be
 * computed meanwhile. Only with a slot for such an input (tdm_rings). `whole_row`: layer-major
 * order on one rank, and the row has a slot for every chunk of the step. */
bool tdm_nest_kv_ahead(const struct tdm_schedule *schedule, bool whole_row, uint32_t layer);

/* The same for all layers: fills ahead[layers], unless it is NULL. Returns whether there is one. */
bool tdm_nest_any_kv_ahead(const struct tdm_schedule *schedule, bool whole_row, bool *ahead);

/* Calls `visit` for every body of one step of program->rank, in program order: the bodies of the
 * rank's chunks, and the bodies without a chunk. Reads only the program's schedule, chunks and
 * rank. */
enum tdm_status tdm_nest_visit(const struct tdm_program *program, tdm_body_visitor visit,
                               void *self, struct tdm_error *err);

#endif
