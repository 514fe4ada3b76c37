/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate of an MLP: activated = gate s up, with
 *
 *     s = 1 / (1 + exp(-k)),  k = gate (linear + cubic gate^2)
 *
 * With linear 1 and cubic 0 this is SwiGLU, silu(gate) up (arXiv 2002.05202, equation 6). GeGLU
 * with the GELU by tanh (arXiv 1606.08415) differs only in the numbers, since (1 + tanh(k / 2)) / 2
 * is the logistic function of k. GPU kernels include this file too.
 */
#ifndef TDM_OPS_GATE_H
#define TDM_OPS_GATE_H

struct tdm_gate {
    float linear, cubic;
};

#define TDM_GATE_SILU ((struct tdm_gate){1, 0})
/* 2 sqrt(2 / pi), and the same times 0.044715 */
#define TDM_GATE_GELU ((struct tdm_gate){1.5957691216F, 0.0713548162726F})

#endif
