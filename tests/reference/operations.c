/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of the reference's transformer, see operations.h. */
#include "tests/reference/operations.h"

#include <math.h>
#include <string.h>

/* Uses four partial sums, because with one sum each addition would wait for the one before it. */
static double dot(uint64_t count, const double *a, const double *b)
{
    double sums[4] = {0};
    uint64_t i = 0;

    for (; i + 4 <= count; i += 4)
        for (int j = 0; j < 4; j++)
            sums[j] += a[i + j] * b[i + j];
    for (; i < count; i++)
        sums[0] += a[i] * b[i];
    return sums[0] + sums[1] + sums[2] + sums[3];
}

/* y += factor * x */
static void add_scaled(uint64_t count, double factor, const double *x, double *y)
{
    for (uint64_t i = 0; i < count; i++)
        y[i] += factor * x[i];
}

void tdm_reference_linear(uint64_t tokens, uint64_t inputs, uint64_t outputs, const double *x,
                          const double *weight, const double *bias, double *y)
{
    for (uint64_t t = 0; t < tokens; t++)
        for (uint64_t o = 0; o < outputs; o++)
            y[t * outputs + o] =
                dot(inputs, weight + o * inputs, x + t * inputs) + (bias ? bias[o] : 0);
}

void tdm_reference_linear_backward(uint64_t tokens, uint64_t inputs, uint64_t outputs,
                                   const double *x, const double *weight, const double *dy,
                                   double *dx, double *d_weight, double *d_bias)
{
    for (uint64_t t = 0; t < tokens; t++) {
        for (uint64_t o = 0; o < outputs; o++) {
            double d = dy[t * outputs + o];

            add_scaled(inputs, d, weight + o * inputs, dx + t * inputs);
            add_scaled(inputs, d, x + t * inputs, d_weight + o * inputs);
            if (d_bias)
                d_bias[o] += d;
        }
    }
}

void tdm_reference_rms_norm(uint64_t tokens, uint64_t columns, double epsilon, const double *x,
                            const double *weight, double *scale, double *y)
{
    for (uint64_t t = 0; t < tokens; t++) {
        double squares = 0;

        for (uint64_t i = 0; i < columns; i++)
            squares += x[t * columns + i] * x[t * columns + i];
        scale[t] = 1 / sqrt(squares / (double)columns + epsilon);
        for (uint64_t i = 0; i < columns; i++)
            y[t * columns + i] = weight[i] * x[t * columns + i] * scale[t];
    }
}

/* The scale depends on every x[i] of its row: d scale / d x[i] = -scale^3 x[i] / columns. */
void tdm_reference_rms_norm_backward(uint64_t tokens, uint64_t columns, const double *x,
                                     const double *weight, const double *scale, const double *dy,
                                     double *dx, double *d_weight)
{
    for (uint64_t t = 0; t < tokens; t++) {
        double d_scale = 0, slope;

        for (uint64_t i = 0; i < columns; i++) {
            d_weight[i] += dy[t * columns + i] * x[t * columns + i] * scale[t];
            d_scale += dy[t * columns + i] * weight[i] * x[t * columns + i];
        }
        slope = -scale[t] * scale[t] * scale[t] / (double)columns;
        for (uint64_t i = 0; i < columns; i++)
            dx[t * columns + i] +=
                dy[t * columns + i] * weight[i] * scale[t] + d_scale * slope * x[t * columns + i];
    }
}

/* `direction` is 1, or -1 for the transpose, which rotates in the opposite direction. */
static void rotate(uint64_t tokens, uint64_t heads, uint64_t head_dim,
                   const double *inverse_frequencies, double factor, int direction, double *x)
{
    uint64_t half = head_dim / 2;

    for (uint64_t t = 0; t < tokens; t++) {
        for (uint64_t i = 0; i < half; i++) {
            double angle = (double)t * inverse_frequencies[i];
            double c = factor * cos(angle), s = factor * sin(angle) * direction;

            for (uint64_t h = 0; h < heads; h++) {
                double *head = x + (t * heads + h) * head_dim;
                double a = head[i], b = head[i + half];

                head[i] = a * c - b * s;
                head[i + half] = b * c + a * s;
            }
        }
    }
}

void tdm_reference_rotate(uint64_t tokens, uint64_t heads, uint64_t head_dim,
                          const double *inverse_frequencies, double factor, double *x)
{
    rotate(tokens, heads, head_dim, inverse_frequencies, factor, 1, x);
}

void tdm_reference_rotate_backward(uint64_t tokens, uint64_t heads, uint64_t head_dim,
                                   const double *inverse_frequencies, double factor, double *dx)
{
    rotate(tokens, heads, head_dim, inverse_frequencies, factor, -1, dx);
}

/* Offset of one head of one token, in [tokens, heads, head_dim]. */
static uint64_t row(uint64_t token, uint64_t heads, uint64_t head, uint64_t head_dim)
{
    return (token * heads + head) * head_dim;
}

/* First token that token t reads. */
static uint64_t first_read(struct tdm_reference_heads shape, uint64_t t)
{
    return shape.window > 0 && t >= shape.window ? t - shape.window + 1 : 0;
}

static bool reads(struct tdm_reference_heads shape, uint64_t kv_head, uint64_t query, uint64_t key)
{
    return shape.sees == NULL ||
           shape.sees(shape.context, shape.layer, kv_head, shape.first + query, shape.first + key);
}

void tdm_reference_attention(struct tdm_reference_heads shape, const double *q, const double *k,
                             const double *v, double *probability, double *out)
{
    uint64_t dim = shape.head_dim;
    double scale = 1 / sqrt((double)dim);

    memset(out, 0, shape.tokens * shape.query_heads * dim * sizeof(*out));
    for (uint64_t h = 0; h < shape.query_heads; h++) {
        uint64_t kv = h / (shape.query_heads / shape.kv_heads);

        for (uint64_t t = 0; t < shape.tokens; t++) {
            uint64_t query = row(t, shape.query_heads, h, dim);
            double *p = probability + (h * shape.tokens + t) * shape.tokens;
            double max = -INFINITY, sum = 0;

            for (uint64_t s = first_read(shape, t); s <= t; s++) {
                p[s] = reads(shape, kv, t, s)
                           ? scale * dot(dim, q + query, k + row(s, shape.kv_heads, kv, dim))
                           : -INFINITY;
                max = fmax(max, p[s]);
            }
            for (uint64_t s = first_read(shape, t); s <= t; s++) {
                p[s] = exp(p[s] - max);
                sum += p[s];
            }
            for (uint64_t s = first_read(shape, t); s <= t; s++) {
                p[s] /= sum;
                add_scaled(dim, p[s], v + row(s, shape.kv_heads, kv, dim), out + query);
            }
        }
    }
}

void tdm_reference_attention_backward(struct tdm_reference_heads shape, uint64_t first,
                                      uint64_t end, const double *q, const double *k,
                                      const double *v, const double *probability, const double *out,
                                      const double *d_out, double *dq, double *dk, double *dv)
{
    uint64_t dim = shape.head_dim, width = shape.query_heads * dim;
    double scale = 1 / sqrt((double)dim);

    memset(dq + first * width, 0, (end - first) * width * sizeof(*dq));
    for (uint64_t h = 0; h < shape.query_heads; h++) {
        uint64_t kv = h / (shape.query_heads / shape.kv_heads);

        for (uint64_t t = first; t < end; t++) {
            uint64_t query = row(t, shape.query_heads, h, dim);
            const double *p = probability + (h * shape.tokens + t) * shape.tokens;
            double expected = dot(dim, d_out + query, out + query);

            for (uint64_t s = first_read(shape, t); s <= t; s++) {
                uint64_t key = row(s, shape.kv_heads, kv, dim);
                double d_probability = dot(dim, d_out + query, v + key);
                double d_score = p[s] * (d_probability - expected) * scale;

                add_scaled(dim, d_score, k + key, dq + query);
                add_scaled(dim, d_score, q + query, dk + key);
                add_scaled(dim, p[s], d_out + query, dv + key);
            }
        }
    }
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

void tdm_reference_swiglu(uint64_t count, const double *gate, const double *up, double *product)
{
    for (uint64_t i = 0; i < count; i++)
        product[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

void tdm_reference_swiglu_backward(uint64_t count, const double *gate, const double *up,
                                   const double *d_product, double *d_gate, double *d_up)
{
    for (uint64_t i = 0; i < count; i++) {
        double s = sigmoid(gate[i]);

        d_gate[i] = d_product[i] * up[i] * (s + gate[i] * s * (1 - s));
        d_up[i] = d_product[i] * gate[i] * s;
    }
}

static double tanh_of_gelu(double x)
{
    return tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x));
}

void tdm_reference_geglu(uint64_t count, const double *gate, const double *up, double *product)
{
    for (uint64_t i = 0; i < count; i++)
        product[i] = 0.5 * gate[i] * (1 + tanh_of_gelu(gate[i])) * up[i];
}

void tdm_reference_geglu_backward(uint64_t count, const double *gate, const double *up,
                                  const double *d_product, double *d_gate, double *d_up)
{
    for (uint64_t i = 0; i < count; i++) {
        double x = gate[i], t = tanh_of_gelu(x);
        double inner = sqrt(2 / acos(-1)) * (1 + 3 * 0.044715 * x * x);

        d_gate[i] = d_product[i] * up[i] * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner);
        d_up[i] = d_product[i] * 0.5 * x * (1 + t);
    }
}

/* log(sum(exp(x))). The largest entry is factored out so that exp does not overflow. */
static double log_sum_exp(uint64_t count, const double *x)
{
    uint64_t largest = 0;
    double sum = 1;

    for (uint64_t i = 1; i < count; i++)
        if (x[i] > x[largest])
            largest = i;
    for (uint64_t i = 0; i < count; i++)
        if (i != largest)
            sum += exp(x[i] - x[largest]);
    return x[largest] + log(sum);
}

/* Sum of exp(x - shift) over all entries but one. */
static double sum_of_others(uint64_t count, const double *x, uint64_t one, double shift)
{
    double sum = 0;

    for (uint64_t i = 0; i < count; i++)
        if (i != one)
            sum += exp(x[i] - shift);
    return sum;
}

/* log(1 / p) of an entry. If the entry is the largest, 1 / p - 1 is the sum over the others. There
 * log_sum_exp(x) - x[target] would cancel where p is nearly 1. */
static double loss_of(uint64_t count, const double *x, uint64_t target)
{
    for (uint64_t i = 0; i < count; i++)
        if (x[i] > x[target])
            return log_sum_exp(count, x) - x[target];
    return log1p(sum_of_others(count, x, target, x[target]));
}

void tdm_reference_cross_entropy(uint64_t tokens, uint64_t vocabulary, const double *logits,
                                 const uint32_t *targets, double *losses)
{
    for (uint64_t t = 0; t < tokens; t++)
        losses[t] =
            targets[t] == UINT32_MAX ? 0 : loss_of(vocabulary, logits + t * vocabulary, targets[t]);
}

void tdm_reference_cross_entropy_backward(uint64_t tokens, uint64_t vocabulary,
                                          const uint32_t *targets, double factor, double *logits)
{
    for (uint64_t t = 0; t < tokens; t++) {
        double *row = logits + t * vocabulary, lse = log_sum_exp(vocabulary, row), of_target;

        if (targets[t] == UINT32_MAX) {
            memset(row, 0, vocabulary * sizeof(*row));
            continue;
        }
        /* p - 1 of the target, computed from the other entries because p itself is nearly 1 */
        of_target = -sum_of_others(vocabulary, row, targets[t], lse);
        for (uint64_t i = 0; i < vocabulary; i++)
            row[i] = factor * (i == targets[t] ? of_target : exp(row[i] - lse));
    }
}
