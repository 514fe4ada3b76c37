/* SPDX-License-Identifier: Apache-2.0 */
/* Marks small functions that backends share, so that nvcc compiles them for kernels too. */
#ifndef TDM_EXECUTOR_ON_DEVICE_H
#define TDM_EXECUTOR_ON_DEVICE_H

#ifdef __CUDACC__
#define TDM_ON_DEVICE __host__ __device__
#else
#define TDM_ON_DEVICE
#endif

#endif
