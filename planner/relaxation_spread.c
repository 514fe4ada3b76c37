/* SPDX-License-Identifier: Apache-2.0 */
/* Makes groups from the shares of arcs in a solution. Where keeping on the device and on the host
 * are worth the same, prices do not say how much to keep in each place. The shares do. Layers are
 * alike, so shares of a layer become numbers of layers. From layer 0 up, the next arc is the one
 * with which the sums of all arcs taken so far are nearest to the solution's own sums. */
#include "planner/relaxation_parts.h"

#include <stdlib.h>

#define LEAST_SHARE 1e-6

struct share {
    const struct tdm_arc *arc;
    double value; /* of the column */
};

struct sums {
    double uses[TDM_SHORT];
};

/* The part of an arc that is below a layer. */
static double part_below(const struct tdm_arc *arc, uint32_t layer)
{
    double layers = arc->to - arc->from + 1;
    if (layer <= arc->from)
        return 0;
    return layer > arc->to ? 1 : (layer - arc->from) / layers;
}

/* Sums that the solution uses for the layers below `layer`. */
static struct sums due_below(const struct share *shares, size_t count, uint32_t layer)
{
    struct sums due = {{0}};
    for (size_t i = 0; i < count; i++)
        for (int u = 0; u < TDM_SHORT; u++)
            due.uses[u] +=
                shares[i].value * part_below(shares[i].arc, layer) * shares[i].arc->uses[u];
    return due;
}

/* Squared distance of sums from the solution's, relative to the whole. */
static double distance(const struct sums *sums, const struct sums *due, const struct sums *whole)
{
    double distance = 0;
    for (int u = 0; u < TDM_SHORT; u++) {
        double apart = whole->uses[u] > 0 ? (sums->uses[u] - due->uses[u]) / whole->uses[u] : 0;
        distance += apart * apart;
    }
    return distance;
}

static const struct tdm_arc *next_arc(const struct share *shares, size_t count, uint32_t from,
                                      const struct sums *so_far, const struct sums *whole)
{
    const struct tdm_arc *best = NULL;
    double least = TDM_NO_BOUND;
    for (size_t i = 0; i < count; i++) {
        const struct tdm_arc *arc = shares[i].arc;
        if (arc->from != from)
            continue;
        struct sums due = due_below(shares, count, arc->to + 1), then = *so_far;
        for (int u = 0; u < TDM_SHORT; u++)
            then.uses[u] += arc->uses[u];
        double apart = distance(&then, &due, whole);
        if (apart < least) {
            least = apart;
            best = arc;
        }
    }
    return best;
}

enum tdm_status tdm_relaxation_spread(const struct tdm_relaxation *r, struct tdm_group *groups,
                                      uint32_t *count, struct tdm_error *err)
{
    struct share *shares = calloc((size_t)r->arc_count + 1, sizeof(*shares));
    struct sums whole = {{0}}, so_far = {{0}};
    size_t share_count = 0;
    *count = 0;
    if (shares == NULL)
        return tdm_fail(err, TDM_NO_MEMORY, "out of memory for groups");
    for (uint32_t i = 0; i < r->arc_count; i++) {
        double value = tdm_solver_column_value(r->solver, r->arcs[i].column);
        if (value < LEAST_SHARE)
            continue;
        shares[share_count++] = (struct share){&r->arcs[i], value};
        for (int u = 0; u < TDM_SHORT; u++)
            whole.uses[u] += value * fabs(r->arcs[i].uses[u]);
    }
    for (uint32_t layer = 0; layer < r->layers;) {
        const struct tdm_arc *arc = next_arc(shares, share_count, layer, &so_far, &whole);
        if (arc == NULL) {
            *count = 0;
            break;
        }
        for (int u = 0; u < TDM_SHORT; u++)
            so_far.uses[u] += arc->uses[u];
        groups[(*count)++] = arc->group;
        layer = arc->to + 1;
    }
    free(shares);
    return TDM_OK;
}
