/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Presets: the knobs that other systems fix, as lists of --set pairs.
 *
 * A preset pins how its system uses the loop nest and what it stores. Everything else is
 * optimised: places that the system leaves open, LM-head tile, homes of state. The result shows
 * what the system's idea can do here, not what its code does.
 */
#ifndef TDM_PLANNER_PRESETS_H
#define TDM_PLANNER_PRESETS_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

#define TDM_PRESET_MOST_PAIRS 8u

struct tdm_preset {
    const char *name;    /* "oomb" */
    const char *summary; /* one line, lower case, no full stop */
    /* KEY=VALUE, NULL-terminated; the value `all` stands for all layers or all tokens of a
     * sequence */
    const char *pairs[TDM_PRESET_MOST_PAIRS];
};

/* Finds a preset by name. TDM_USAGE: unknown name; lists the names. */
enum tdm_status tdm_preset_find(const char *name, const struct tdm_preset **preset,
                                struct tdm_error *err);

/* All presets; the last entry has no name. */
const struct tdm_preset *tdm_presets(void);

/* The pairs of a preset followed by the user's, which override its keys. */
struct tdm_preset_pairs {
    char text[TDM_PRESET_MOST_PAIRS][48]; /* the preset's, its `all` replaced */
    const char **pairs;                   /* owned; points into `text` and at the user's */
    size_t count;
};

/* `layers` and `context` are the values of `all`. The user's pairs (borrowed) must outlive *merged,
 * which must not be moved. TDM_NO_MEMORY. */
enum tdm_status tdm_preset_merge(const struct tdm_preset *preset, uint32_t layers, uint64_t context,
                                 const char *const *pairs, size_t count,
                                 struct tdm_preset_pairs *merged, struct tdm_error *err);
void tdm_preset_pairs_free(struct tdm_preset_pairs *merged);

#endif
