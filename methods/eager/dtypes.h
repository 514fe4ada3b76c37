/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of an element of the dtypes that methods use. For source files and parts.h of methods/
 * alone. */
#ifndef TDM_METHODS_EAGER_DTYPES_H
#define TDM_METHODS_EAGER_DTYPES_H

#define BF16 2u
#define FP32 4u
#define INT64 8u
#define BOOL 1u

#endif
