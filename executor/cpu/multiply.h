/* SPDX-License-Identifier: Apache-2.0 */
/* Products of stored matrices of any dtype and shape, split into tasks. */
#ifndef TDM_EXECUTOR_CPU_MULTIPLY_H
#define TDM_EXECUTOR_CPU_MULTIPLY_H

#include "executor/cpu/cpu.h"
#include "executor/multiplication.h"

/* Computes `count` (at most 2) multiplications, which write different memory. */
void tdm_multiply(struct tdm_executor *executor, uint32_t count,
                  const struct tdm_multiplication *multiplications);

#endif
