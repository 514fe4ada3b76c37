/* SPDX-License-Identifier: Apache-2.0 */
/* Units as people type and read them. Decimal fractions are computed in whole numbers, so that no
 * rounding of a double decides how many bytes an option means. */
#include "base/units.h"

#include "base/size.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum unit_flaw { FLAW_NONE, FLAW_NONSENSE, FLAW_FRACTION, FLAW_OVERFLOW };

/* A split quantity: "1.50GiB" is whole 1, fraction "50", suffix "GiB". */
struct quantity {
    uint64_t whole; /* saturated */
    const char *fraction;
    size_t fraction_digits;
    const char *suffix;
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* Is `text` the same as `word`, ignoring case? `word` is lower-case. */
static bool is_word(const char *text, const char *word)
{
    while (*text != '\0' && lower(*text) == *word) {
        text++;
        word++;
    }
    return *text == '\0' && *word == '\0';
}

static enum unit_flaw split(const char *text, struct quantity *quantity)
{
    struct quantity q = {0};
    if (!is_digit(*text))
        return FLAW_NONSENSE;
    for (; is_digit(*text); text++)
        q.whole = tdm_size_add(tdm_size_mul(q.whole, 10), (uint64_t)(*text - '0'));
    if (*text == '.') {
        q.fraction = ++text;
        while (is_digit(*text))
            text++;
        q.fraction_digits = (size_t)(text - q.fraction);
        if (q.fraction_digits == 0)
            return FLAW_NONSENSE;
    }
    if (*text == ' ' && text[1] != '\0')
        text++;
    q.suffix = text;
    *quantity = q;
    return FLAW_NONE;
}

/* whole.fraction * unit, rounded down. *exact tells whether nothing was cut off. The fraction is
 * summed from its last digit, (rest + digit * unit) / 10: there the floor of floors is the floor of
 * the exact value. */
static enum unit_flaw scale(const struct quantity *quantity, uint64_t unit, bool *exact,
                            uint64_t *value)
{
    uint64_t rest = 0;
    *exact = true;
    for (size_t i = quantity->fraction_digits; i > 0; i--) {
        rest += (uint64_t)(quantity->fraction[i - 1] - '0') * unit;
        *exact = *exact && rest % 10 == 0;
        rest /= 10;
    }
    uint64_t total = tdm_size_add(tdm_size_mul(quantity->whole, unit), rest);
    if (total == TDM_SIZE_MAX)
        return FLAW_OVERFLOW;
    *value = total;
    return FLAW_NONE;
}

enum tdm_status tdm_parse_bytes(const char *text, const char *what, uint64_t *bytes,
                                struct tdm_error *err)
{
    static const struct {
        const char *words[3];
        uint64_t bytes;
    } suffixes[] = {
        {{"", "b", "b"}, 1},
        {{"k", "kib", "kb"}, UINT64_C(1) << 10},
        {{"m", "mib", "mb"}, UINT64_C(1) << 20},
        {{"g", "gib", "gb"}, UINT64_C(1) << 30},
        {{"t", "tib", "tb"}, UINT64_C(1) << 40},
    };

    struct quantity quantity;
    enum unit_flaw flaw = split(text, &quantity);
    uint64_t unit = 0;
    for (size_t i = 0; flaw == FLAW_NONE && i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        if (is_word(quantity.suffix, suffixes[i].words[0]) ||
            is_word(quantity.suffix, suffixes[i].words[1]))
            unit = suffixes[i].bytes;
        else if (is_word(quantity.suffix, suffixes[i].words[2])) {
            tdm_fail(err, TDM_USAGE, "%s: \"%s\" could mean powers of 1000 or of 1024", what, text);
            tdm_hint(err, "write it with K, M, G or T, or KiB, MiB, GiB or TiB (all 1024-based)");
            return TDM_USAGE;
        }
    }
    bool exact = true;
    uint64_t value = 0;
    if (flaw == FLAW_NONE)
        flaw = unit == 0 ? FLAW_NONSENSE : scale(&quantity, unit, &exact, &value);
    if (flaw == FLAW_NONE && unit == 1 && !exact)
        flaw = FLAW_FRACTION;

    switch (flaw) {
    case FLAW_NONE:
        *bytes = value;
        return TDM_OK;
    case FLAW_FRACTION:
        return tdm_fail(err, TDM_USAGE, "%s: \"%s\" is not a whole number of bytes", what, text);
    case FLAW_OVERFLOW:
        return tdm_fail(err, TDM_USAGE, "%s: \"%s\" is more bytes than 64 bits count", what, text);
    case FLAW_NONSENSE:
        break;
    }
    return tdm_fail(err, TDM_USAGE,
                    "%s: \"%s\" is not a size; write bytes, or a number with K, M, G or T "
                    "(\"80G\", \"1.5GiB\")",
                    what, text);
}

enum tdm_status tdm_parse_tokens(const char *text, const char *what, uint64_t *tokens,
                                 struct tdm_error *err)
{
    struct quantity quantity;
    enum unit_flaw flaw = split(text, &quantity);
    uint64_t unit = 0;
    if (flaw == FLAW_NONE) {
        if (is_word(quantity.suffix, ""))
            unit = 1;
        else if (is_word(quantity.suffix, "k"))
            unit = UINT64_C(1) << 10;
        else if (is_word(quantity.suffix, "m"))
            unit = UINT64_C(1) << 20;
    }
    bool exact = true;
    uint64_t value = 0;
    if (flaw == FLAW_NONE)
        flaw = unit == 0 ? FLAW_NONSENSE : scale(&quantity, unit, &exact, &value);
    if (flaw == FLAW_NONE && !exact)
        flaw = FLAW_FRACTION;

    switch (flaw) {
    case FLAW_NONE:
        if (value == 0)
            return tdm_fail(err, TDM_USAGE, "%s: \"%s\" is zero tokens; expected at least 1", what,
                            text);
        *tokens = value;
        return TDM_OK;
    case FLAW_FRACTION:
        return tdm_fail(err, TDM_USAGE, "%s: \"%s\" is not a whole number of tokens", what, text);
    case FLAW_OVERFLOW:
        return tdm_fail(err, TDM_USAGE, "%s: \"%s\" is more tokens than 64 bits count", what, text);
    case FLAW_NONSENSE:
        break;
    }
    return tdm_fail(err, TDM_USAGE,
                    "%s: \"%s\" is not a count of tokens; write \"4096\", \"256K\" or \"1M\" "
                    "(1024-based)",
                    what, text);
}

enum tdm_status tdm_parse_count(const char *text, const char *what, uint64_t low, uint64_t high,
                                uint64_t *count, struct tdm_error *err)
{
    struct quantity quantity;
    if (split(text, &quantity) != FLAW_NONE || quantity.fraction != NULL ||
        quantity.suffix[0] != '\0' || quantity.whole == TDM_SIZE_MAX || quantity.whole < low ||
        quantity.whole > high) {
        if (low == 0 && high == UINT64_MAX)
            return tdm_fail(err, TDM_USAGE, "%s: \"%s\" is not a whole number", what, text);
        if (high == UINT64_MAX)
            return tdm_fail(err, TDM_USAGE, "%s: \"%s\" is not a whole number of at least %" PRIu64,
                            what, text, low);
        return tdm_fail(err, TDM_USAGE,
                        "%s: \"%s\" is not a whole number from %" PRIu64 " to %" PRIu64, what, text,
                        low, high);
    }
    *count = quantity.whole;
    return TDM_OK;
}

const char *tdm_format_bytes(uint64_t bytes, char out[TDM_FORMAT_SIZE])
{
    static const char *const suffixes[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    unsigned power = 0;
    /* 1023.995 of a unit would print as 1024.00: take the next one. */
    while (power < 4 && ldexp((double)bytes, -10 * (int)power) >= (power == 0 ? 1024.0 : 1023.995))
        power++;
    uint64_t unit = UINT64_C(1) << 10 * power;
    if (bytes % unit == 0)
        snprintf(out, TDM_FORMAT_SIZE, "%" PRIu64 " %s", bytes / unit, suffixes[power]);
    else
        snprintf(out, TDM_FORMAT_SIZE, "%.2f %s", (double)bytes / (double)unit, suffixes[power]);
    return out;
}

const char *tdm_format_enough_bytes(uint64_t bytes, char out[TDM_FORMAT_SIZE])
{
    if (bytes < (UINT64_C(1) << 30)) {
        snprintf(out, TDM_FORMAT_SIZE, "%" PRIu64 "M", tdm_size_ceil_div(bytes, 1 << 20));
        return out;
    }
    uint64_t whole = bytes >> 30, rest = bytes & ((UINT64_C(1) << 30) - 1);
    uint64_t hundredths = tdm_size_ceil_div(rest * 100, UINT64_C(1) << 30);
    /* the typed number is read rounded down to a byte */
    if (hundredths * (UINT64_C(1) << 30) / 100 < rest)
        hundredths++;
    snprintf(out, TDM_FORMAT_SIZE, "%" PRIu64 ".%02" PRIu64 "G", whole + hundredths / 100,
             hundredths % 100);
    return out;
}

const char *tdm_format_tokens(uint64_t tokens, char out[TDM_FORMAT_SIZE])
{
    if (tokens != 0 && tokens % (UINT64_C(1) << 20) == 0)
        snprintf(out, TDM_FORMAT_SIZE, "%" PRIu64 "M", tokens >> 20);
    else if (tokens != 0 && tokens % (UINT64_C(1) << 10) == 0)
        snprintf(out, TDM_FORMAT_SIZE, "%" PRIu64 "K", tokens >> 10);
    else
        snprintf(out, TDM_FORMAT_SIZE, "%" PRIu64, tokens);
    return out;
}

const char *tdm_format_seconds(double seconds, char out[TDM_FORMAT_SIZE])
{
    /* The bounds lie half a last digit below the round number, so that 0.99996 s is "1.00 s". */
    double size = fabs(seconds);
    if (seconds == 0 || !isfinite(seconds) || size >= 1e12)
        snprintf(out, TDM_FORMAT_SIZE, "%.4g s", seconds);
    else if (size >= 99.95 * 3600)
        snprintf(out, TDM_FORMAT_SIZE, "%.1f days", seconds / 86400);
    else if (size >= 9999.5)
        snprintf(out, TDM_FORMAT_SIZE, "%.1f h", seconds / 3600);
    else if (size >= 99.995)
        snprintf(out, TDM_FORMAT_SIZE, "%.0f s", seconds);
    else if (size >= 0.99995)
        snprintf(out, TDM_FORMAT_SIZE, "%.2f s", seconds);
    else if (size >= 0.9995e-3)
        snprintf(out, TDM_FORMAT_SIZE, "%.1f ms", seconds * 1e3);
    else if (size >= 0.9995e-6)
        snprintf(out, TDM_FORMAT_SIZE, "%.0f us", seconds * 1e6);
    else
        snprintf(out, TDM_FORMAT_SIZE, "%.3g ns", seconds * 1e9);
    return out;
}
