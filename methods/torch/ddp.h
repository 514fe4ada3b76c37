/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of DistributedDataParallel, and of ZeroRedundancyOptimizer with it. */
#ifndef TDM_METHODS_TORCH_DDP_H
#define TDM_METHODS_TORCH_DDP_H

#include <stdbool.h>

struct tdm_ddp_settings {
    bool bucket_views;  /* gradient_as_bucket_view: gradients live in the buckets */
    bool early_buckets; /* the first step's bucket is freed before the second forward */
};

#endif
