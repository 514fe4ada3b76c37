/* SPDX-License-Identifier: Apache-2.0 */
/* The longest context: extrapolates a line through known contexts, and corrects it until the
 * contexts that fit and that do not are neighbours. */
#include "methods/longest.h"

#include "methods/divisors.h"

#define GRAIN UINT64_C(1024)
#define CLOSE 512u /* precision: one part in so many */
#define NEAR 8     /* points are near if so many times their distance is less than their tokens */
#define FAR_PART 16u
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

/* Two points, the newer one last: allocated bytes grow along the line through them. The older one
 * is at 0 tokens until two contexts are known. */
struct line {
    double tokens[2], allocated[2];
    double cached; /* bytes beyond those allocated, at the newer point */
};

/* A newer point that is near the last one replaces it, because the slope between them says little.
 */
static void add_point(struct line *line, uint64_t tokens, uint64_t used, uint64_t cached)
{
    double apart = (double)tokens - line->tokens[1];
    if (used == 0 || tokens == 0)
        return;
    if (apart * NEAR > line->tokens[1] || apart * NEAR < -line->tokens[1]) {
        line->tokens[0] = line->tokens[1];
        line->allocated[0] = line->allocated[1];
    }
    line->tokens[1] = (double)tokens;
    line->allocated[1] = (double)(used - cached);
    line->cached = (double)cached;
}

/* Tokens at which the line plus `cached` reaches `bytes`. `grows`: the part of `cached` that grows
 * with the line. 0: never. */
static double meets(const struct line *line, double bytes, double cached, double grows)
{
    double step = line->tokens[1] - line->tokens[0];
    double rise = (line->allocated[1] - line->allocated[0] + cached * grows) / step;
    if (!(rise > 0))
        return 0;
    double tokens = line->tokens[1] + (bytes - cached - line->allocated[1]) / rise;
    return tokens > 0 && tokens < (double)MOST_TOKENS ? tokens : 0;
}

/* The context at which used bytes should reach `bytes`. Far from the only known context, cached
 * bytes are in proportion. */
static double guess(const struct line *line, double bytes)
{
    return meets(line, bytes, line->cached, line->tokens[0] > 0 ? 0 : 1);
}

#define MOST_FAILED 64u

/* State of a search, in grains. */
struct search {
    uint64_t fits, fails; /* neighbours at the end; fails 0: no failure is known */
    uint64_t most;        /* upper limit of what is tried */
    uint64_t stride; /* minimum distance of the next try above `fits`, in steps; it grows with small
                        successes */
    unsigned missed; /* consecutive tries that failed */
    bool gives_back; /* the longest that fits does so because cached memory is given back */
    unsigned tries;  /* left above what does not fit */
    struct line line, host;       /* of the device, and of the host, where nothing is cached */
    uint64_t failed[MOST_FAILED]; /* those that did not fit. The search may ask for them again. */
    unsigned failed_count;
};

static bool has_failed(const struct search *s, uint64_t tried)
{
    for (unsigned i = 0; i < s->failed_count; i++)
        if (s->failed[i] == tried)
            return true;
    return false;
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

/* No context from here on fits, as far as can be told. */
static uint64_t end_of(const struct search *s, double bytes, uint64_t grain)
{
    uint64_t allocated = (uint64_t)(meets(&s->line, bytes, 0, 0) / (double)grain) + 1;
    bool known = s->line.tokens[0] > 0 && allocated > s->fits + 1;
    if (!known || (s->fails > 0 && s->fails < allocated))
        return s->fails;
    return allocated;
}

/* How far below a context that does not fit to try next: a little, and with every further failure
 * twice as much. */
static uint64_t step_down(const struct search *s)
{
    uint64_t half = (s->fails - s->fits + 1) / 2;
    uint64_t step = s->line.tokens[0] > 0 ? step_of(s) : step_of(s) + s->fails / FAR_PART;
    uint64_t steps = s->missed < 32 ? UINT64_C(1) << (s->missed > 0 ? s->missed - 1 : 0) : 1;
    return s->missed < 32 && step * steps < half ? step * steps : half;
}

/* What the device and the host have. */
struct limits {
    double device_bytes, host_bytes;
};

/* The context, in grains, at which one of them should be full; 0: never, as far as is known. */
static uint64_t guess_grains(const struct search *s, const struct limits *limits, uint64_t grain)
{
    double device = guess(&s->line, limits->device_bytes), host = 0;
    if (s->host.tokens[1] > 0)
        host = meets(&s->host, limits->host_bytes, 0, 0);
    return (uint64_t)((host > 0 && (device == 0 || host < device) ? host : device) / (double)grain);
}

/* The next context to try; 0: the search is over. */
static uint64_t next_try(struct search *s, const struct limits *limits, uint64_t grain)
{
    uint64_t least = s->fits + step_of(s) * s->stride;
    uint64_t next = guess_grains(s, limits, grain);
    const double bytes = limits->device_bytes;
    uint64_t end = end_of(s, bytes, grain);
    if (are_neighbours(s)) {
        if (s->tries == 0)
            return 0;
        next = s->fits + step_of(s) * (MORE_TRIES + 2 - s->tries--);
        return next <= s->most ? next : 0;
    }
    if (s->fails == 0 && next == 0)
        next = 2 * s->fits;
    if (s->gives_back && end > 0)
        next = s->fits + (end - s->fits) / 2;
    if (s->fails > 0 && next >= s->fails)
        next = s->fails - step_down(s);
    if (next < least)
        next = s->fails == 0 || least < s->fails ? least : s->fits + (s->fails - s->fits) / 2;
    if (next > s->most)
        next = s->most;
    return next > s->fits ? next : 0;
}

static void note_try(struct search *s, uint64_t tried, bool fits, bool gives_back)
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
    s->gives_back = gives_back;
}

/* What is searched, and what was found. */
struct longest {
    const struct tdm_model *model;
    const struct tdm_machine *machine;
    const struct tdm_method_settings *settings;
    double margin;
    bool whole; /* every try is also predicted on the whole device */
    uint64_t grain, tokens;
    struct tdm_method_prediction prediction; /* for `tokens`, unless these were known */
    uint64_t unmade_tokens; /* with so many there is no room for the model itself; 0: not known */
    struct tdm_method_prediction unmade; /* for these */
    uint64_t work;
};

/* There is no room for what is made before the first step. */
static bool is_unmade(const struct tdm_method_prediction *p)
{
    return !p->runs && p->count > 0 && p->steps[p->highest].torch.unmade;
}

/* What is made before the first step does not get smaller with more tokens: if the model itself had
 * no room, it has none now, and the prediction is that one again. */
static enum tdm_status try_tokens(struct longest *l, uint64_t tokens, bool whole,
                                  struct tdm_method_prediction *p, struct tdm_error *err)
{
    struct tdm_method_settings at = *l->settings;
    at.torch.tokens = tokens;
    *p = (struct tdm_method_prediction){.work = 0};
    if (tdm_method_check(l->model, &at, NULL) != TDM_OK)
        return TDM_OK;
    if (l->unmade_tokens > 0 && tokens >= l->unmade_tokens) {
        *p = l->unmade;
        return TDM_OK;
    }
    enum tdm_status status = whole ? tdm_method_try(l->model, l->machine, &at, l->margin, 0, p, err)
                                   : tdm_method_probe(l->model, l->machine, &at, l->margin, p, err);
    if (status == TDM_OK && is_unmade(p)) {
        l->unmade_tokens = tokens;
        l->unmade = *p;
    }
    return status;
}

/* No longer context is tried. */
static uint64_t most_tokens(const struct tdm_model *model, const struct tdm_known_context *fails)
{
    const uint64_t positions = tdm_model_position_limit(model);
    const uint64_t most = fails->tokens > 0 ? fails->tokens - 1 : MOST_TOKENS;
    return positions > 0 && positions < most ? positions : most;
}

static enum tdm_status find(struct longest *l, const struct tdm_known_context *fits,
                            const struct tdm_known_context *fails, struct tdm_error *err)
{
    const struct limits limits = {
        .device_bytes =
            (double)l->machine->topology.places[TDM_DEVICE].capacity_bytes * (1 - l->margin),
        .host_bytes = (double)tdm_machine_far(l->machine)->capacity_bytes};
    struct search s = {.fits = fits->tokens / l->grain,
                       .most = most_tokens(l->model, fails) / l->grain,
                       .stride = 1,
                       .tries = MORE_TRIES};
    s.fails = fails->tokens > 0 ? (fails->tokens - 1) / l->grain + 1 : 0;
    s.line.allocated[1] = (double)fails->fixed_bytes;
    add_point(&s.line, fails->tokens, fails->used_bytes, fails->cached_bytes);
    add_point(&s.line, fits->tokens, fits->used_bytes, fits->cached_bytes);
    add_point(&s.host, fails->tokens, fails->host_bytes, 0);
    add_point(&s.host, fits->tokens, fits->host_bytes, 0);
    l->tokens = fits->tokens;
    for (uint64_t next; (next = next_try(&s, &limits, l->grain)) > 0;) {
        struct tdm_method_prediction p;
        if (has_failed(&s, next)) {
            note_try(&s, next, false, false);
            continue;
        }
        enum tdm_status status = try_tokens(l, next * l->grain, l->whole, &p, err);
        if (status != TDM_OK)
            return status;
        l->work += p.work;
        note_try(&s, next, p.fits, p.gives_back);
        if (p.fits_device && !p.fits) /* host bytes grow with every token: longer ones do not fit */
            s.tries = 0;
        if (!p.fits && !p.runs && s.failed_count < MOST_FAILED)
            s.failed[s.failed_count++] = next;
        if (p.runs) {
            add_point(&s.line, next * l->grain, tdm_method_peak_bytes(&p),
                      tdm_method_cached_bytes(&p.steps[p.highest]));
            add_point(&s.host, next * l->grain, p.host_peak_bytes, 0);
        }
        if (p.fits) {
            l->tokens = next * l->grain;
            l->prediction = p;
        }
    }
    return TDM_OK;
}

/* Predicts what was found on the whole device. *holds: it fits. */
static enum tdm_status confirm(struct longest *l, const struct tdm_known_context *fits, bool *holds,
                               struct tdm_error *err)
{
    *holds = l->tokens == fits->tokens || !l->prediction.gives_back;
    if (*holds)
        return TDM_OK;
    struct tdm_method_settings at = *l->settings;
    at.torch.tokens = l->tokens;
    enum tdm_status status = tdm_method_check(l->model, &at, err);
    if (status == TDM_OK)
        status = tdm_method_try_after(l->model, l->machine, &at, l->margin, &l->prediction,
                                      &l->prediction, err);
    *holds = l->prediction.fits;
    l->work += l->prediction.work;
    return status;
}

enum tdm_status tdm_method_longest(const struct tdm_model *model, const struct tdm_machine *machine,
                                   const struct tdm_method_settings *settings, double margin,
                                   uint64_t grain, const struct tdm_known_context *fits,
                                   const struct tdm_known_context *fails, uint64_t *tokens,
                                   struct tdm_method_prediction *prediction, uint64_t *work,
                                   struct tdm_error *err)
{
    struct longest l = {
        .model = model, .machine = machine, .settings = settings, .margin = margin, .grain = grain};
    bool holds;
    enum tdm_status status = find(&l, fits, fails, err);
    if (status == TDM_OK)
        status = confirm(&l, fits, &holds, err);
    if (status == TDM_OK && !holds) { /* rare: with more memory other blocks are cut */
        l.whole = true;
        status = find(&l, fits, fails, err);
    }
    if (status != TDM_OK)
        return status;
    *tokens = l.tokens;
    *work += l.work;
    if (l.tokens > fits->tokens)
        *prediction = l.prediction;
    return TDM_OK;
}

/* Bytes at the peak that do not depend on the context. Logits do not where they are a chunk's. */
static uint64_t fixed_bytes(const struct tdm_method_prediction *asked)
{
    const uint64_t *at_peak = asked->steps[asked->highest].torch.categories;
    uint64_t chunks = at_peak[TDM_METHOD_KV] + at_peak[TDM_METHOD_KV_GRADIENTS];
    uint64_t fixed = tdm_torch_runtime_bytes(&asked->runtime);
    for (unsigned c = 0; c < TDM_METHOD_CATEGORIES; c++)
        if (c == TDM_METHOD_WEIGHTS || c == TDM_METHOD_GRADIENTS || c == TDM_METHOD_OPTIMIZER ||
            (chunks > 0 && c == TDM_METHOD_LOGITS))
            fixed += at_peak[c];
    return fixed;
}

/* Where host memory is what limits the context: host bytes grow with the tokens, so the line
 * through two contexts says where they meet what the host has. Tries that context and the next
 * longer one, and leaves in *fits and *fails what these tries show. The search then has little to
 * do. */
static enum tdm_status bracket_by_host(struct longest *l, const struct tdm_method_prediction *asked,
                                       struct tdm_known_context *fits,
                                       struct tdm_known_context *fails, struct tdm_error *err)
{
    double host = (double)tdm_machine_far(l->machine)->capacity_bytes;
    double tokens = (double)l->settings->torch.tokens, bytes = (double)asked->host_peak_bytes;
    uint64_t next = (uint64_t)(tokens * host / bytes / 2);
    for (unsigned tries = 0; tries < 3; tries++) {
        struct tdm_method_prediction p;
        next = next / l->grain * l->grain;
        if (next <= fits->tokens || next >= fails->tokens)
            return TDM_OK;
        enum tdm_status status = try_tokens(l, next, true, &p, err);
        l->work += p.work;
        if (status != TDM_OK || !p.runs || !p.fits_device)
            return status;
        struct tdm_known_context known = {.tokens = next,
                                          .used_bytes = tdm_method_peak_bytes(&p),
                                          .host_bytes = p.host_peak_bytes,
                                          .cached_bytes =
                                              tdm_method_cached_bytes(&p.steps[p.highest])};
        *(p.fits ? fits : fails) = known;
        double slope = (bytes - (double)p.host_peak_bytes) / (tokens - (double)next);
        if (tries == 0)
            next += (uint64_t)((host - (double)p.host_peak_bytes) / slope);
        else
            next = p.fits ? next + l->grain * (1 + next / l->grain / CLOSE) : next - l->grain;
    }
    return TDM_OK;
}

enum tdm_status tdm_method_longest_below(const struct tdm_model *model,
                                         const struct tdm_machine *machine,
                                         const struct tdm_method_settings *settings, double margin,
                                         const struct tdm_method_prediction *asked,
                                         uint64_t *tokens, uint64_t *work, struct tdm_error *err)
{
    struct tdm_known_context fits = {.tokens = 0};
    struct tdm_known_context fails = {.tokens = settings->torch.tokens};
    struct tdm_method_prediction prediction;
    uint64_t grain = tdm_context_grain(model, settings, 1, NULL);
    if (asked->endless) {
        fails.used_bytes = tdm_method_peak_bytes(asked);
        fails.cached_bytes = tdm_method_cached_bytes(&asked->steps[asked->highest]);
        fails.fixed_bytes = fixed_bytes(asked);
        fails.host_bytes = asked->host_peak_bytes;
    }
    *tokens = 0;
    if (grain == 0)
        return TDM_OK;
    if (asked->runs && asked->fits_device && !asked->fits_host) {
        struct longest l = {.model = model,
                            .machine = machine,
                            .settings = settings,
                            .margin = margin,
                            .grain = grain};
        enum tdm_status status = bracket_by_host(&l, asked, &fits, &fails, err);
        *work += l.work;
        if (status != TDM_OK)
            return status;
    }
    return tdm_method_longest(model, machine, settings, margin, grain, &fits, &fails, tokens,
                              &prediction, work, err);
}
