/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Presets: the knobs that other systems fix, as lists of --set pairs.
 *
 * A preset pins what its system does with the loop nest and with what is stored; all else (places
 * that the system leaves open, LM-head tile, homes of state) is chosen as well as it can be. So
 * what comes out is what that system's idea can do here, not what its code does.
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

/* By name; TDM_USAGE with the names there are. */
enum tdm_status tdm_preset_find(const char *name, const struct tdm_preset **preset,
                                struct tdm_error *err);

/* All of them, ended by one without a name. */
const struct tdm_preset *tdm_presets(void);

/* The pairs of a preset with those of a user, who comes last and overrides a key. */
struct tdm_preset_pairs {
    char text[TDM_PRESET_MOST_PAIRS][48]; /* the preset's, its `all` replaced */
    const char **pairs;                   /* owned; points into `text` and at the user's */
    size_t count;
};

/* `layers` and `context` say how much `all` is. The user's pairs (borrowed) must outlive it, which
 * must not be moved. TDM_NO_MEMORY. */
enum tdm_status tdm_preset_merge(const struct tdm_preset *preset, uint32_t layers, uint64_t context,
                                 const char *const *pairs, size_t count,
                                 struct tdm_preset_pairs *merged, struct tdm_error *err);
void tdm_preset_pairs_free(struct tdm_preset_pairs *merged);

#endif
