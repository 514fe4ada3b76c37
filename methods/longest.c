/* SPDX-License-Identifier: Apache-2.0 */
/* The longest context: extrapolates a line through known contexts, and corrects it until the
 * contexts that fit and that do not are neighbours. */
#include "methods/longest.h"

#include "methods/divisors.h"

#define GRAIN UINT64_C(1024)
#define CLOSE 512u /* precision: one part in so many */
#define MOST_TOKENS (UINT64_C(1) << 40)
#define MORE_TRIES 3u /* tries above a context that does not fit */

uint64_t tdm_context_grain(const struct tdm_model *model,
                           const struct tdm_method_settings *settings, uint64_t tokens,
                           struct tdm_error *err)
{
    uint64_t cuts = 2 * settings->torch.ranks;
    const uint64_t grains[] = {GRAIN, GRAIN / tdm_common_divisor(GRAIN, cuts) * cuts};
    for (size_t i = 0; i < sizeof(grains) / sizeof(grains[0]); i++) {
        struct tdm_method_settings near = *settings;
        near.torch.tokens = (tokens + grains[i] - 1) / grains[i] * grains[i];
        if (tdm_method_check(model, &near, err) == TDM_OK)
            return grains[i];
    }
    return 0;
}

/* Two points of allocated bytes, the newer one last. The first is the origin until two contexts are
 * known. */
struct line {
    double tokens[2], bytes[2];
    double beside; /* cached bytes beyond those allocated, at the newer point */
};

static void add_point(struct line *line, uint64_t tokens, uint64_t used, uint64_t cached)
{
    if (used == 0 || tokens == 0 || tokens == (uint64_t)line->tokens[1])
        return;
    line->tokens[0] = line->tokens[1];
    line->bytes[0] = line->bytes[1];
    line->tokens[1] = (double)tokens;
    line->bytes[1] = (double)(used - cached);
    line->beside = (double)cached;
}

/* Tokens at which the line reaches so many bytes; 0: it does not. */
static double meets(const struct line *line, double bytes)
{
    double rise = (line->bytes[1] - line->bytes[0]) / (line->tokens[1] - line->tokens[0]);
    if (!(rise > 0))
        return 0;
    double tokens = line->tokens[1] + (bytes - line->beside - line->bytes[1]) / rise;
    return tokens > 0 && tokens < (double)MOST_TOKENS ? tokens : 0;
}

#define MOST_FAILED 64u

/* A context that was tried and does not fit, in grains. The search may ask for it again. */
struct failed {
    uint64_t tried, work;
};

/* State of a search, in grains. */
struct search {
    uint64_t fits, fails; /* neighbours at the end; fails 0: no failure is known */
    uint64_t most;        /* upper limit of what is tried */
    uint64_t stride; /* minimum distance of the next try above `fits`, in steps; it grows with small
                        successes */
    unsigned missed; /* consecutive tries that failed */
    unsigned tries;  /* left above what does not fit */
    struct line line;
    struct failed failed[MOST_FAILED];
    unsigned failed_count;
};

static const struct failed *find_failed(const struct search *s, uint64_t tried)
{
    for (unsigned i = 0; i < s->failed_count; i++)
        if (s->failed[i].tried == tried)
            return &s->failed[i];
    return NULL;
}

/* Distance at which `fits` and `fails` count as neighbours. */
static uint64_t step_of(const struct search *s)
{
    return 1 + s->fits / CLOSE;
}

static bool are_neighbours(const struct search *s)
{
    return s->fails > 0 && s->fails <= s->fits + step_of(s);
}

/* The next context to try; 0: the search is over. */
static uint64_t next_try(struct search *s, double bytes, uint64_t grain)
{
    uint64_t least = s->fits + step_of(s) * s->stride;
    uint64_t next = (uint64_t)(meets(&s->line, bytes) / (double)grain);
    if (are_neighbours(s)) {
        if (s->tries == 0)
            return 0;
        next = s->fits + step_of(s) * (MORE_TRIES + 2 - s->tries--);
        return next <= s->most ? next : 0;
    }
    if (s->fails == 0 && next == 0)
        next = 2 * s->fits;
    if (next < least)
        next = least;
    if (s->fails > 0 && (s->missed > 1 || next >= s->fails))
        next = s->fits + (s->fails - s->fits) / 2;
    if (next > s->most)
        next = s->most;
    return next > s->fits ? next : 0;
}

static void note_try(struct search *s, uint64_t tried, bool fits)
{
    if (!fits && are_neighbours(s))
        return;
    if (!fits) {
        s->fails = tried;
        s->stride = 1;
        s->missed++;
        return;
    }
    if (s->fails > 0 && tried > s->fails)
        s->fails = 0;
    s->stride = tried - s->fits <= step_of(s) * s->stride ? 2 * s->stride : 1;
    s->missed = 0;
    s->tries = MORE_TRIES;
    s->fits = tried;
}

enum tdm_status tdm_method_longest(const struct tdm_model *model, const struct tdm_machine *machine,
                                   const struct tdm_method_settings *settings, double margin,
                                   uint64_t grain, const struct tdm_known_context *fits,
                                   const struct tdm_known_context *fails, uint64_t *tokens,
                                   struct tdm_method_prediction *prediction, uint64_t *work,
                                   struct tdm_error *err)
{
    const double bytes = (double)machine->topology.places[TDM_DEVICE].capacity_bytes * (1 - margin);
    struct search s = {.fits = fits->tokens / grain,
                       .most = (fails->tokens > 0 ? fails->tokens - 1 : MOST_TOKENS) / grain,
                       .stride = 1,
                       .tries = MORE_TRIES};
    s.fails = fails->tokens > 0 ? s.most + 1 : 0;
    add_point(&s.line, fails->tokens, fails->used_bytes, fails->cached_bytes);
    add_point(&s.line, fits->tokens, fits->used_bytes, fits->cached_bytes);
    *tokens = fits->tokens;
    for (uint64_t next; (next = next_try(&s, bytes, grain)) > 0;) {
        struct tdm_method_settings at = *settings;
        struct tdm_method_prediction p = {.work = 0};
        at.torch.tokens = next * grain;
        enum tdm_status status = TDM_OK;
        const struct failed *failed = find_failed(&s, next);
        if (failed != NULL) {
            *work += failed->work;
            note_try(&s, next, false);
            continue;
        }
        if (tdm_method_check(model, &at, NULL) == TDM_OK)
            status = tdm_method_try(model, machine, &at, margin, &p, err);
        if (status != TDM_OK)
            return status;
        *work += p.work;
        note_try(&s, next, p.fits);
        if (!p.fits && !p.runs && s.failed_count < MOST_FAILED)
            s.failed[s.failed_count++] = (struct failed){.tried = next, .work = p.work};
        if (p.runs)
            add_point(&s.line, at.torch.tokens, tdm_method_peak_bytes(&p),
                      tdm_method_cached_bytes(&p.steps[p.highest]));
        if (p.fits) {
            *tokens = at.torch.tokens;
            *prediction = p;
        }
    }
    return TDM_OK;
}

enum tdm_status tdm_method_longest_below(const struct tdm_model *model,
                                         const struct tdm_machine *machine,
                                         const struct tdm_method_settings *settings, double margin,
                                         const struct tdm_method_prediction *asked,
                                         uint64_t *tokens, uint64_t *work, struct tdm_error *err)
{
    const struct tdm_known_context none = {.tokens = 0};
    struct tdm_known_context fails = {.tokens = settings->torch.tokens};
    struct tdm_method_prediction prediction;
    uint64_t grain = tdm_context_grain(model, settings, 1, NULL);
    if (asked->endless) {
        fails.used_bytes = tdm_method_peak_bytes(asked);
        fails.cached_bytes = tdm_method_cached_bytes(&asked->steps[asked->highest]);
    }
    *tokens = 0;
    return grain == 0 ? TDM_OK
                      : tdm_method_longest(model, machine, settings, margin, grain, &none, &fails,
                                           tokens, &prediction, work, err);
}
