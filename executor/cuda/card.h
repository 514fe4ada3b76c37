/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of the calling thread's current device that decide which kernels run and with how many
 * blocks. They are asked of CUDA once for each device. */
#ifndef TDM_EXECUTOR_CUDA_CARD_H
#define TDM_EXECUTOR_CUDA_CARD_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Has the device the instructions of compute capability 9.0 (Hopper)? False if CUDA does not say.
 */
bool tdm_cuda_is_hopper(void);

/* Number of multiprocessors; 1 if CUDA does not say. */
unsigned tdm_cuda_multiprocessors(void);

/* For tests: from now on tdm_cuda_multiprocessors returns at most `most`; 0: what the device has.
 */
void tdm_cuda_limit_multiprocessors(unsigned most);

#ifdef __cplusplus
}
#endif

#endif
