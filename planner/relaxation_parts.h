/* SPDX-License-Identifier: Apache-2.0 */
/* Internal to the relaxation: prices, resource use of an arc, and the search for the best arcs at
 * given prices. */
#ifndef TDM_PLANNER_RELAXATION_PARTS_H
#define TDM_PLANNER_RELAXATION_PARTS_H

#include "planner/estimate_parts.h"
#include "planner/relaxation.h"
#include "planner/solver.h"

#include <math.h>

#define TDM_MIB 1048576.0

/* Rows of the device after those of the layers; the far place has only the first. */
enum { TDM_AT_FORWARD, TDM_AT_HEAD, TDM_AT_UPDATE, TDM_MORE_ROWS };

enum { TDM_IN_FORWARD, TDM_IN_BACKWARD, TDM_IN_PHASES };

/* Bounds of what the link carries in both directions: the first binds where more goes to the
 * device, the second where more goes to the host; the others are the same where the host updates
 * meanwhile. */
#define TDM_BOUNDS_BOTH 4

/* What passes between host and device in slots of its own: inputs of groups; held inputs; kept and
 * held stores; in chunk-major order K and V, and their gradients. Any of it needs its ring for a
 * whole phase. */
enum {
    TDM_FAR_INPUT,
    TDM_FAR_INNER,
    TDM_FAR_KEPT,
    TDM_FAR_HELD = TDM_FAR_KEPT + TDM_STORES,
    TDM_FAR_KV = TDM_FAR_HELD + TDM_STORES,
    TDM_FAR_SUMS,
    TDM_FAR_KINDS
};

/* Amounts for all rows in which arcs take part: MiB and seconds of use, or the prices of these. */
struct tdm_amounts {
    double *place[TDM_MAX_PLACES]; /* [layers + TDM_MORE_ROWS] */
    double compute;                /* backward */
    double fetch[TDM_IN_PHASES], send[TDM_IN_PHASES];
    double both[TDM_IN_PHASES][TDM_BOUNDS_BOTH];
    double again;            /* layers that run again */
    bool far[TDM_FAR_KINDS]; /* of use alone: is any of it at the far place? */
};

/* Seconds of attention of chunks, in rising order, and prefix sums, for a kind of layers and a
 * class of chunks. */
struct tdm_attention_list {
    uint32_t count;
    double *seconds, *before; /* [count], [count + 1] */
};

/* What a layer does with its chunks, in numbers of chunks. */
struct tdm_choice {
    double kept[TDM_STORES][TDM_MAX_PLACES], held[TDM_STORES][TDM_MAX_PLACES];
    double kv_kept[TDM_MAX_PLACES], kv_held;
    double far_kv_gradients;
};

/* Prices of a store's copies for one chunk: to the host in the forward and in the backward, and to
 * the device in the backward. */
struct tdm_store_copies {
    double stash, hold, fetch;
};

struct tdm_pricing {
    const struct tdm_estimator *e;
    enum tdm_order order;
    enum tdm_place far; /* of the machine */
    /* seconds of the link per byte to the device and to the host, by these bounds */
    double both_fetch[TDM_BOUNDS_BOTH], both_send[TDM_BOUNDS_BOTH];
    /* by the last two, the part of a second that the link does without while the host updates; 0:
     * there is no such row */
    double slowed_by_updates[2];
    /* prices of a byte by these, of all bounds together */
    double price_fetch[TDM_IN_PHASES], price_send[TDM_IN_PHASES];
    struct tdm_attention_list *lists; /* [kinds][classes] */
    double *class_chunks;             /* [classes]: chunks of a class */
    double *fixed_seconds[2]; /* [layers]: backward seconds that no store changes; [1]: of a layer
                                 that runs again */
    double *from[TDM_MAX_PLACES]; /* sums of prices from a layer up: [layers + 1] */
    /* MiB of the rows of layers that no choice changes, borrowed: [layers]; sums of these times
     * prices from a layer up: [layers + 1] */
    const double *fixed[TDM_MAX_PLACES];
    double *from_fixed[TDM_MAX_PLACES];
    struct tdm_amounts prices;
    bool is_barred[TDM_FAR_KINDS]; /* nothing of it may be at the far place */
    bool has_ring[TDM_FAR_KINDS];  /* the rows count its ring */
    struct tdm_store_copies copies[TDM_STORES];
};

enum tdm_status tdm_pricing_open(const struct tdm_estimator *e, enum tdm_order order,
                                 struct tdm_pricing *pricing, struct tdm_error *err);
void tdm_pricing_close(struct tdm_pricing *pricing);

enum tdm_status tdm_amounts_new(const struct tdm_estimator *e, struct tdm_amounts *amounts,
                                struct tdm_error *err);
void tdm_amounts_clear(const struct tdm_estimator *e, struct tdm_amounts *amounts);
void tdm_amounts_free(struct tdm_amounts *amounts);

/* Sums `prices`. Call after every change of them. */
void tdm_pricing_prepare(struct tdm_pricing *pricing);

/* Cost of a layer in an arc, beside rows of K and V: of computing that no choice changes and of
 * attention, and of the other stores. */
struct tdm_layer_cost {
    double fixed, stores[TDM_STORES];
};

static inline double tdm_layer_cost_sum(const struct tdm_layer_cost *cost, double rows)
{
    double sum = cost->fixed + rows;
    for (int s = 0; s < TDM_STORES; s++)
        sum += cost->stores[s];
    return sum;
}

/* Cost at the prices of layer `j` in the arc (a, b), if each chunk makes its best choice. Adds the
 * layer's resource use to `use` and stores the choice in `choice` (both may be NULL), those of its
 * rows of K and V too. */
struct tdm_layer_cost tdm_price_layer(const struct tdm_pricing *pricing, uint32_t j, uint32_t a,
                                      uint32_t b, struct tdm_amounts *use,
                                      struct tdm_choice *choice);

/* The same of its rows of K and V; 0 in layer-major order. */
double tdm_price_rows(const struct tdm_pricing *pricing, uint32_t j, uint32_t a, uint32_t b,
                      struct tdm_amounts *use, struct tdm_choice *choice);

/* Cost of the input of layer j, stored for its group (j == a) or held in it; *place: the place
 * chosen. */
double tdm_price_input(const struct tdm_pricing *pricing, uint32_t j, uint32_t a, uint32_t b,
                       struct tdm_amounts *use, enum tdm_place *place);

/* Further cost of the group itself: gradients in chunk-major order, layers that run again. */
double tdm_price_group(const struct tdm_pricing *pricing, uint32_t a, uint32_t b,
                       struct tdm_amounts *use);

/* Does attention of some layer copy what it needs, in place of whole rows of K and V? */
bool tdm_relaxation_gathers(const struct tdm_estimator *e);

/* Minimum workspace of a layer's backward, when everything possible is stored. Device rows always
 * include it. */
uint64_t tdm_least_work(const struct tdm_estimator *e, uint32_t layer);

/* Workspace of the LM head with its smallest tile. */
uint64_t tdm_head_work(const struct tdm_estimator *e);

/* ---- the linear program ---- */

#define TDM_NO_BOUND 1e300

/* Single rows. */
enum {
    ROW_EMBEDDING,
    ROW_END,
    ROW_FAR_END,
    ROW_COMPUTE,
    ROW_FETCH_FORWARD,
    ROW_FETCH_BACKWARD,
    ROW_SEND_FORWARD,
    ROW_SEND_BACKWARD,
    ROW_SEND_UPDATED,
    ROW_BOTH, /* two each */
    ROW_BOTH_LAST,
    ROW_BOTH_BACKWARD,
    ROW_BOTH_BACKWARD_LAST,
    ROW_AGAIN,
    ROW_SLOTS_FORWARD,
    ROW_SLOTS_HEAD,
    ROW_UNUSED_MASTER,
    ROW_UNUSED_MOMENTS,
    ROW_LESS_MASTER,
    ROW_LESS_MOMENTS,
    ROW_TAKEN,
    ROW_STALL,
    ROW_HOST_UPDATES, /* of updates on the host alone, and the next */
    ROW_SLOWED,       /* two */
    ROW_SLOWED_LAST,
    ROW_BOTH_UPDATED, /* from here on of tight programs alone */
    ROW_BOTH_UPDATED_LAST,
    ROW_BESIDE, /* of each state */
    ROW_BESIDE_LAST = ROW_BESIDE + TDM_STATE_MOMENTS,
    ROWS
};

/* A row's bounds, and a column that is not an arc. The value at given prices is computed from
 * them. */
struct tdm_row_bounds {
    double least, most;
};

struct tdm_plain_column {
    int number; /* of the solver */
    double least, most, cost;
    size_t first, count; /* in `kept` */
};

#define TDM_MOST_PLAIN 38u

/* A column that is an arc. */
struct tdm_arc_column {
    int number;
    bool far[TDM_FAR_KINDS];
};

/* Phases in which rings are live. */
enum { TDM_RINGS_FORWARD, TDM_RINGS_BACKWARD, TDM_RINGS };

/* When to stop. */
struct tdm_enough {
    double seconds, tolerance;
    unsigned solutions;
};

struct tdm_relaxation {
    struct tdm_pricing pricing;
    struct tdm_row_bounds *bounds; /* [row_count] */
    int row_count;
    struct tdm_plain_column plain[TDM_MOST_PLAIN];
    uint32_t plain_count;
    struct tdm_entry *kept; /* of plain columns */
    size_t kept_count;
    double *found, *centre,
        *tried; /* [row_count] prices: the solver's, the best so far, and a point between them */
    struct tdm_solver *solver;
    uint32_t layers;
    int *node;                  /* [layers] */
    int *place[TDM_MAX_PLACES]; /* [layers + TDM_MORE_ROWS]; -1: no such row */
    int row[ROWS];
    /* numbers in `plain`; 0: there is no such column */
    uint32_t plain_slots, plain_tied, plain_passing, plain_ring, plain_home[TDM_STATES],
        plain_less[TDM_STATES];
    uint32_t plain_embedding[TDM_STATES], plain_head[TDM_STATES], plain_excess[TDM_MAX_PLACES];
    double excess_price;    /* per MiB */
    bool *allowed;          /* [layers * layers]: arcs */
    bool *is_alike;         /* [layers]: a layer's costs equal those of the layer below */
    double *best;           /* [layers + 1] of the dynamic program */
    uint32_t *from;         /* [layers + 1] */
    struct tdm_amounts use; /* of the column under construction */
    /* of that column, and by row the number of its entry, from 1 on; 0: none. [row_count] each */
    struct tdm_entry *entries;
    uint32_t *entry_of, entry_count;
    uint32_t arc_count, arc_capacity;
    struct tdm_arc_column *arcs; /* [arc_count] */
    unsigned solutions;          /* made so far */
    bool is_converged;           /* the last one was within the tolerance */
    double ring_mib[TDM_RINGS];  /* which the rows of the device count */
    bool is_tight;               /* has rows that only tightening needs */
    bool is_free[TDM_STATES];    /* homes are not fixed */
    bool is_tied;                /* one column has all state of layers: others are updated there */
    uint32_t base_layers;        /* at home on the device by the rows' constants */
    uint32_t most_tied;          /* layers in that column; each saves seconds of the host's lane */
    uint32_t most_passing;       /* the same where masters and moments pass */
    double tied_host, tied_compute, least_host; /* and takes some of the other; least of all */
    bool is_warm;                               /* `found` has prices of a similar program */
    bool of_bytes;                              /* minimises the bytes of a place, */
    enum tdm_place least;                       /* this one. Then the bound is MiB */
    double bound_seconds;
    /* of both ways (tdm_relaxation_set_way()): which one the solution has; a bound of the other
     * one, and its prices and homes if it was solved, else NULL */
    bool is_passing;
    double other_seconds, *other_centre, other_layers[TDM_STATES];
    struct tdm_relaxed relaxed;
    /* Sums of bytes, MiB, that do not depend on choices. */
    double *fixed[TDM_MAX_PLACES];
};

/* Adds rows, and all columns except arcs. `limit_bytes` and `fixed_homes` as of
 * tdm_relaxation_new. */
enum tdm_status tdm_relaxation_lay(struct tdm_relaxation *r,
                                   const uint64_t limit_bytes[TDM_MAX_PLACES],
                                   const bool fixed_homes[TDM_STATES], struct tdm_error *err);

/* tdm_column_put() adds to an entry of the column under construction, if the row exists.
 * tdm_column_add() adds the column, which is not an arc, to the program and begins a new one. */
void tdm_column_put(struct tdm_relaxation *r, int row, double value);
enum tdm_status tdm_column_add(struct tdm_relaxation *r, const char *name, double least,
                               double most, double cost, struct tdm_error *err);

/* The value of a column in the last solution, by its number in `plain`; 0 for 0. */
double tdm_relaxation_value(const struct tdm_relaxation *r, uint32_t plain);

/* Changes the limits of a column by its number in `plain`; does nothing for 0. */
void tdm_relaxation_limit(struct tdm_relaxation *r, uint32_t plain, double least, double most);

/* Where layers are updated on the host: lets up to `most` others have all their state on the
 * device, or, if `passing`, at least one of them its weights alone. A schedule has one or the
 * other. */
void tdm_relaxation_set_way(struct tdm_relaxation *r, bool passing, uint32_t most);

/* Seconds of one copy of a unit's state. */
double tdm_relaxation_unit_seconds(const struct tdm_estimator *e, enum tdm_link_number way,
                                   enum tdm_state state, uint32_t unit);

/* Is a unit's state at home on the host fetched for its update? Of layers, if none is at home on
 * the device. Bytes of it sent to the host; of all layers the minimum. */
bool tdm_relaxation_comes(const struct tdm_estimator *e, enum tdm_state state, uint32_t unit);
double tdm_relaxation_sent_bytes(const struct tdm_estimator *e, enum tdm_state state,
                                 uint32_t unit);

/* Does a device row include the ring of a state at home on the host? Rings of masters and moments
 * are live while layers go backward, if these are fetched. */
bool tdm_relaxation_has_ring(const struct tdm_relaxation *r, enum tdm_state state, uint32_t row);

bool tdm_relaxation_updates_in_backward(const struct tdm_estimator *e);

/* Bytes of the inputs and sets of `bodies` bodies; slots that a ring of state may have. */
double tdm_relaxation_ring_bytes(const struct tdm_estimator *e, uint64_t bodies);
double tdm_relaxation_most_slots(uint32_t slots);

/* The most slots of the rings of masters and moments beyond the first. */
double tdm_relaxation_more_slots(const struct tdm_relaxation *r);

/* ---- what runs ahead, and slots (relaxation_ahead.c) ---- */

/* Adds columns of what is fetched ahead, of slots of rings, and of the wait for the head's state.
 */
enum tdm_status tdm_relaxation_lay_ahead(struct tdm_relaxation *r, struct tdm_error *err);

/* Adds the column of the first slot of the rings for layers that pass beside others that are
 * updated on the host. It is there or not. */
enum tdm_status tdm_relaxation_lay_ring(struct tdm_relaxation *r, struct tdm_error *err);

/* Of masters or moments of the head at home on the host: seconds to fetch the first slice, if
 * nothing is sent before its update (else 0); seconds that the row `stall` counts. */
double tdm_relaxation_first_seconds(const struct tdm_relaxation *r, enum tdm_state state);
double tdm_relaxation_stall_seconds(const struct tdm_relaxation *r, enum tdm_state state);

/* Seconds of the head's norm and update, at least as much as they take. */
double tdm_relaxation_head_update(const struct tdm_relaxation *r);

/* What one more layer at home on the device adds to the slots that cost nothing in the rows of the
 * layers. */
double tdm_relaxation_unused_slots(const struct tdm_relaxation *r);

/* The row `taken`: seconds that all units take slots of moments, if all their state is at home on
 * the host; seconds more for a layer whose masters and moments pass beside others that are updated
 * on the host; seconds less for a unit's state on the device; seconds that a slot may be taken
 * before the first update. */
double tdm_relaxation_taken(const struct tdm_relaxation *r);
double tdm_relaxation_taken_passing(const struct tdm_relaxation *r);

/* Seconds by which a copied byte slows updates on the host; what one slot of masters and moments,
 * which may be fetched before these begin, does not. Not counted where copies could stop updates:
 * what is copied in a pause could then cost more than the pause. */
double tdm_relaxation_byte_slows(const struct tdm_estimator *e);
double tdm_relaxation_slot_slows(const struct tdm_relaxation *r);
double tdm_relaxation_taken_less(const struct tdm_relaxation *r, enum tdm_state state,
                                 uint32_t unit);
double tdm_relaxation_taken_ahead(const struct tdm_relaxation *r);

/* MiB that one slot of the rings of masters and moments has at most, of both together. */
double tdm_relaxation_slot_mib(const struct tdm_relaxation *r);
double tdm_relaxation_ends_slot_mib(const struct tdm_relaxation *r);

/* Adds the column of an arc, from `r->use` and the prices. */
enum tdm_status tdm_relaxation_put_arc(struct tdm_relaxation *r, uint32_t a, uint32_t b,
                                       struct tdm_error *err);

/* tdm_relaxation_use() passes prices to the pricing. tdm_relaxation_path() finds the cheapest path,
 * stores it in `best` and `from`, and returns its cost. */
void tdm_relaxation_use(struct tdm_relaxation *r, const double *prices);
double tdm_relaxation_path(struct tdm_relaxation *r);

/* Tries prices `weight` of the way from the solver's to the best so far, and keeps them if their
 * bound is better. */
void tdm_relaxation_try(struct tdm_relaxation *r, double weight);

/* Adds the arcs of the last path. */
enum tdm_status tdm_relaxation_add_path(struct tdm_relaxation *r, struct tdm_error *err);

/* Solves, in turn with finding arcs. */
enum tdm_status tdm_relaxation_iterate(struct tdm_relaxation *r, const struct tdm_enough *enough,
                                       struct tdm_error *err);

/* Divides a solved, tight program into parts, of which each schedule is in one: with one slot for
 * moments, or with more; with a ring for what passes in slots, or without. The bound is the
 * smallest of the parts'. Makes about `most` solutions at most. The solver is left with the whole
 * program. */
enum tdm_status tdm_relaxation_divide(struct tdm_relaxation *r, const struct tdm_enough *enough,
                                      unsigned most, struct tdm_error *err);

/* Seconds per MiB of all rows of a place, at the best prices. */
double tdm_relaxation_place_price(const struct tdm_relaxation *r, enum tdm_place place);

/* Fill `relaxed`: the first sets homes from the solver's last solution; the second sets bound,
 * prices and binding rows from the best prices. */
void tdm_relaxation_read(struct tdm_relaxation *r);
void tdm_relaxation_weigh(struct tdm_relaxation *r);

static inline double tdm_price_at_most(const double *prices, int row)
{
    return row < 0 ? 0 : fmax(-prices[row], 0);
}

/* The rows of one of the bounds TDM_BOUNDS_BOTH; -1: it has none. */
static inline int tdm_both_row(const struct tdm_relaxation *r, int bound)
{
    return bound < 2 ? r->row[ROW_BOTH + bound] : -1;
}

static inline int tdm_both_backward_row(const struct tdm_relaxation *r, int bound)
{
    return r->row[bound < 2 ? ROW_BOTH_BACKWARD + bound : ROW_SLOWED + bound - 2];
}

static inline int tdm_both_updated_row(const struct tdm_relaxation *r, int bound)
{
    return bound < 2 ? r->row[ROW_BOTH_UPDATED + bound] : -1;
}

/* The price of a row that has a least value; 0 if there is none. */
static inline double tdm_price_at_least(const double *prices, int row)
{
    return row >= 0 && prices[row] > 0 ? prices[row] : 0;
}

#endif
