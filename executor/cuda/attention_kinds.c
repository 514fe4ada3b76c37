/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of attention and of votes. The first one in this order that suits is used. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

#include "executor/cuda/kernels.h"

const struct tdm_attention_kind tdm_cuda_attention_kinds[] = {
#ifdef HAVE_HOPPER
    {"Hopper", tdm_cuda_attention_hopper_suits, tdm_cuda_attention_hopper,
     tdm_cuda_attention_grad_hopper},
#endif
    {"tensor cores", tdm_cuda_attention_suits, tdm_cuda_attention, tdm_cuda_attention_grad},
    {"CUDA cores", NULL, tdm_cuda_attention_plain, tdm_cuda_attention_grad_plain},
};

const struct tdm_votes_kind tdm_cuda_votes_kinds[] = {
#ifdef HAVE_HOPPER
    {"Hopper", tdm_cuda_votes_hopper_suit, tdm_cuda_votes_hopper},
#endif
    {"tensor cores", tdm_cuda_votes_suit, tdm_cuda_votes},
    {"CUDA cores", NULL, tdm_cuda_votes_plain},
};
