/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes per element of the dtypes that methods use. Only for source files and parts.h files of
 * methods/. */
#ifndef TDM_METHODS_EAGER_DTYPES_H
#define TDM_METHODS_EAGER_DTYPES_H

#define BF16 2u
#define FP16 2u
#define INT8 1u
#define INT16 2u
#define FP32 4u
#define INT32 4u
#define INT64 8u
#define BOOL 1u
#define FLOAT8 1u

#endif
