/* SPDX-License-Identifier: Apache-2.0 */
/* Marks small functions in headers that C and CUDA C share, so that nvcc compiles them for kernels
 * too. */
#ifndef TDM_BASE_ANYWHERE_H
#define TDM_BASE_ANYWHERE_H

#ifdef __CUDACC__
#define TDM_ANYWHERE static __host__ __device__ __forceinline__
#else
#define TDM_ANYWHERE static inline
#endif

#endif
