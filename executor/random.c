/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Normal random numbers by the ziggurat (Marsaglia and Tsang, J. Stat. Softw. 5(8), 2000; doubles
 * as Doornik, 2005). LAYERS strips of equal area, the widest first, cover exp(-x^2 / 2). About 99
 * of 100 numbers lie within the width of the next strip, and cost one multiplication. The function
 * itself decides about the others, with further bits from the same counter.
 */
#include "executor/random.h"

#include <math.h>

#define LAYERS 256
/* For 256 strips: where the tail begins, and the area of each strip, also of that with the tail. */
#define TAIL 3.6541528853610088
#define AREA 0.00492867323399

static double height(double x)
{
    return exp(-0.5 * x * x);
}

void tdm_normal_open(struct tdm_normal *normal)
{
    double *x = normal->width;
    x[0] = AREA / height(TAIL); /* as if the lowest strip were a rectangle too */
    x[1] = TAIL;
    for (int i = 2; i < LAYERS; i++)
        x[i] = sqrt(-2.0 * log(AREA / x[i - 1] + height(x[i - 1])));
    x[LAYERS] = 0.0;
}

/* Draws a number beyond TAIL: Marsaglia, Technometrics 6, 1964. */
static double draw_tail(uint64_t bits)
{
    for (;;) {
        double x, y;
        bits = tdm_random_mix(bits);
        x = -log(tdm_random_unit(bits)) / TAIL;
        bits = tdm_random_mix(bits);
        y = -log(tdm_random_unit(bits));
        if (y + y > x * x)
            return TAIL + x;
    }
}

double tdm_normal_draw(const struct tdm_normal *normal, uint64_t bits)
{
    const double *width = normal->width;
    for (;;) {
        unsigned layer = bits & (LAYERS - 1);
        double sign = bits & LAYERS ? -1.0 : 1.0;
        double x = (double)(bits >> 11) * 0x1p-53 * width[layer];
        if (x < width[layer + 1])
            return sign * x;
        bits = tdm_random_mix(bits);
        if (layer == 0)
            return sign * draw_tail(bits);
        double low = height(width[layer]), high = height(width[layer + 1]);
        if (low + tdm_random_unit(bits) * (high - low) < height(x))
            return sign * x;
        bits = tdm_random_mix(bits);
    }
}
