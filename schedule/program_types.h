/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program consists of: chunks, ops with their operands, buffers, items. program.h makes
 * programs and streams them.
 */
#ifndef TDM_SCHEDULE_PROGRAM_TYPES_H
#define TDM_SCHEDULE_PROGRAM_TYPES_H

#include "base/dtype.h"
#include "base/status.h"
#include "machines/machine.h"
#include "ops/content.h"
#include "ops/ops.h"
#include "ops/params.h"
#include "ops/update.h"
#include "schedule/category.h"
#include "schedule/schedule.h"

#include <stdbool.h>
#include <stdint.h>

#define TDM_NONE UINT32_MAX /* no layer, chunk, buffer, contributor */
/* as the contributor in an access of several slots: to each slot its own chunk was the last to add
 */
#define TDM_ITSELF (UINT32_MAX - 1)

/* Tokens processed together: a part of one sequence. Chunks are numbered over the whole step. */
struct tdm_chunk {
    uint32_t sequence;
    uint32_t first_chunk; /* of its sequence */
    uint32_t last_chunk;  /* of its sequence */
    uint64_t first_token; /* inside its sequence */
    uint64_t tokens;
    uint32_t place;    /* its number where splits of groups count chunks */
    uint64_t row;      /* number of its first token over all sequences of the step */
    uint32_t rank;     /* rank that works on it: ranks.h */
    uint32_t round;    /* round of the step in which that rank does */
    uint32_t slot;     /* which of the rank's chunks it is, and */
    uint32_t set_slot; /* of those of the ranks that divide heads with it */
    uint32_t next;     /* the rank's next chunk; the number of chunks if there is none */
    uint32_t round_first, round_end; /* the chunks of its round */
};

enum tdm_phase { TDM_FORWARD, TDM_BACKWARD, TDM_OPTIMIZER_PHASE, TDM_PHASES };

const char *tdm_phase_name(enum tdm_phase phase);

/* What a slot (or one part of it) holds: content, layer (or unit) and chunk (or slice of the unit,
 * slices.h). For a running sum also
 * its last contributor: the chunk that added last (the tile, in sums over LM-head tiles). Each sum
 * runs in program order with chunks in reverse, so the first contributor has the highest number
 * (ranks.h). In an access of several slots the chunk of the k-th slot is `chunk + k`; layer and
 * contributor are common. */
struct tdm_tag {
    enum tdm_content content;
    uint32_t layer;
    uint32_t chunk;
    uint32_t contributor;
    uint32_t share; /* 0: the whole; else one rank's share of a sum over ranks: its number + 1 */
};

/* One operand of an op: slots [first_slot, first_slot + slots) of a buffer; ranges do not wrap.
 * An operand that this op does not have is {.buffer = TDM_NONE}. */
struct tdm_access {
    uint32_t buffer;
    uint32_t first_slot;
    uint32_t slots;
    enum tdm_mode mode;
    uint32_t part; /* enum tdm_part in buffers of units; 0 in others */
    struct tdm_tag before, after;
    uint64_t bytes; /* meaningful bytes in all the slots (a ragged chunk fills less than a slot) */
};

/* Operations. The headers of the op families say what the operands of each kind are (ops/ops.h).
 * What all ops of a family share is in tdm_program.params. */
struct tdm_op {
    uint64_t number; /* in program order, from 0 */
    enum tdm_op_kind kind;
    enum tdm_part part; /* part of the weights that it uses; 0 if none */
    enum tdm_phase phase;
    enum tdm_lane lane;
    /* link of the machine: that a copy between two places uses, or over which attention gathers;
     * TDM_NO_LINK in other ops */
    uint32_t link;
    uint32_t layer;       /* or unit; TDM_NONE if none */
    uint32_t chunk;       /* TDM_NONE if none */
    uint64_t tokens;      /* rows it works on */
    uint64_t first_row;   /* first row of a tile inside its chunk */
    uint32_t first_entry; /* of an LM-head tile: its first vocabulary entry, */
    uint32_t entries;     /* and the number of entries; 0 in other ops */
    /* of a round: its first chunk in `chunk`, its tokens in `tokens` (team.h) */
    /* of a hop, of which `chunk` and `tokens` are of the round whose K and V go around: in which
     * lap they do (ring.h), how many sets these are then from their own, and the first chunk of the
     * round whose queries see them; 0 in other ops */
    uint32_t lap, hops, queries;
    uint32_t slice;  /* of an update: the slice of its unit, and */
    uint32_t slices; /* their number, or 1: all at once; of a norm of a rank's part 1; else 0 */
    /* of these: the elements of the unit that it changes or reads; and of a copy of a rank's part
     * of a gradient */
    uint64_t first_element, elements;
    enum tdm_update_rows rows; /* of an update of the embedding: those that it changes */
    uint32_t access_count; /* operands of its kind, absent ones included: tdm_op_type.operands */
    struct tdm_access access[TDM_OPERANDS];
    uint64_t flops;
    uint64_t bytes;         /* read and written: the minimum that the algorithm needs */
    uint64_t fetched_bytes; /* moved by an op of the compute lane over its link: fetched, and */
    uint64_t sent_bytes;    /* sent back; estimates, see gather.h */
    /* attention: keys in the chunks that it sees, plus one; over lists or one chunk in a ring,
     * those of a range that has as many pairs; 0 in other ops */
    uint64_t keys;
    /* attention, select: (query, key) pairs; with lists, as many as the lists have space for */
    uint64_t pairs;
    uint32_t head_dim; /* attention; 0 in other ops */
    uint32_t kv_heads; /* attention over keys: those that the rank has; 0 in other ops */
    bool fp32;         /* product, attention, LM head: of fp32 values, by other kernels than bf16 */
    bool in_node;      /* team op: between ranks of one node alone, of several nodes */
    bool by_lists;     /* attention: over top-k lists */
    bool visits;       /* attention: in a ring of ranks, to another chunk than its queries' */
    /* attention: K and V are at home on the host, and the listed pages are gathered */
    bool gathers;
};

/* What numbers the slots of a buffer. */
enum tdm_axis { TDM_AXIS_CHUNK, TDM_AXIS_UNIT, TDM_AXIS_RING };

/* A ring or row of equal slots at one place. It may be allocated and freed many times in a step,
 * always at the same offset. */
struct tdm_buffer {
    char name[40];
    enum tdm_place place;
    enum tdm_category category;
    enum tdm_dtype dtype;
    enum tdm_content content; /* content that it was declared for: determines the slot size */
    enum tdm_axis axis;
    bool by_part;  /* slots hold units, tracked part by part */
    bool resident; /* its contents outlive the step; slots hold `initial` before the first one */
    struct tdm_tag initial; /* of the first slot: tdm_program_initial() */
    uint32_t slots;
    uint64_t slot_bytes;
    uint64_t bytes;  /* slots * slot_bytes */
    uint64_t offset; /* in the arena of its place; set by packing */
    bool used;       /* some item names it; unused buffers take no bytes */
};

struct tdm_rank_counts {
    uint64_t ops, written_values;
};

struct tdm_program {
    const struct tdm_schedule *schedule;  /* borrowed */
    struct tdm_params params;             /* of its ops */
    const struct tdm_sequence *sequences; /* of the step; the schedule's */
    uint32_t sequence_count;
    bool documents_of_text; /* the text of a run determines where documents begin */
    uint32_t ranks;         /* number of ranks that share the chunks */
    /* the rank whose step tdm_program_emit() gives, and whose ops are counted below */
    uint32_t rank;
    struct tdm_chunk *chunks;
    uint32_t chunk_count;
    /* [chunks] whose bodies are left out, where only lives matter (ranks_sample.h); NULL: none */
    const bool *left_out;
    struct tdm_buffer *buffers;
    uint32_t buffer_count;
    uint64_t arena_bytes[TDM_MAX_PLACES]; /* as packed */
    /* maximum bytes of live buffers: the lower bound of packing */
    uint64_t live_peak_bytes[TDM_MAX_PLACES];
    uint64_t op_count;
    uint64_t written_values;        /* values that its ops begin in a step (values.h) */
    struct tdm_rank_counts *counts; /* [ranks] the same of every rank that was lowered: */
    bool sampled;                   /* not of all (tdm_program_lower_sample()); else 0 */
    tdm_kinds kinds;                /* of the ops of all ranks */
    uint32_t lanes;                 /* bits of the lanes that have ops, by number */
    /* buffer that ops use besides their operands; live for the whole step */
    uint32_t scratch;
    uint64_t product_bytes;    /* part of it for products: tdm_scratch_product_bytes() */
    struct tdm_layout *layout; /* lower.c's own numbering of the buffers */
};

enum tdm_item_kind { TDM_ALLOC, TDM_FREE, TDM_RUN };

struct tdm_item {
    enum tdm_item_kind kind;
    uint32_t buffer;         /* TDM_ALLOC, TDM_FREE */
    const struct tdm_op *op; /* TDM_RUN; valid during the call */
};

/* Takes one item. A failure ends the emission and is returned by it. */
typedef enum tdm_status (*tdm_sink)(void *self, const struct tdm_item *item, struct tdm_error *err);

/* Tokens of all chunks. */
uint64_t tdm_program_tokens(const struct tdm_program *program);

/* Finds a buffer by name: its number, or TDM_NONE. */
uint32_t tdm_program_find(const struct tdm_program *program, const char *name);

#endif
