/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of DistributedDataParallel, and of ZeroRedundancyOptimizer with it. */
#ifndef TDM_METHODS_TORCH_DDP_H
#define TDM_METHODS_TORCH_DDP_H

#include <stdbool.h>
#include <stdint.h>

struct tdm_eager_value;
struct tdm_torch_model;

struct tdm_ddp_settings {
    bool bucket_views;  /* gradient_as_bucket_view: gradients live in the buckets */
    bool early_buckets; /* the first step's bucket is freed before the second forward */
};

/* Tensors that a constructor sends to the other ranks: joined into buffers of 250 MiB, of which two
 * are in flight. A single tensor is sent without a copy. A zeroed one is empty; the last send
 * empties it. Source: torch/csrc/distributed/c10d/comm.cpp broadcast_coalesced. */
struct tdm_broadcast {
    struct tdm_eager_value *on_the_way[2];
    uint64_t bytes;
    uint32_t count;
};

void tdm_broadcast_join(struct tdm_broadcast *b, const struct tdm_eager_value *tensor);
void tdm_broadcast_send(struct tdm_torch_model *t, struct tdm_broadcast *b, bool last);

#endif
