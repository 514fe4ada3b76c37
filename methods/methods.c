/* SPDX-License-Identifier: Apache-2.0 */
/* The table of methods: the system of each, its tables of keys, its preset and its check. */
#include "methods/method.h"

#include "methods/chunk/method.h"

#define ONE_GPU .least_gpus = 1, .most_gpus = 1
#define GPUS_FROM(least) .least_gpus = least, .most_gpus = 65536u

/* Hugging Face's models, with or without a wrapper, on whole or divided sequences. */
#define HUGGING_FACE                                                               \
    .system = &tdm_torch_system, .cost = tdm_torch_cost, .check = tdm_torch_check, \
    .assumption = tdm_torch_assumption
#define MEGATRON                                                                            \
    .system = &tdm_megatron_system, .cost = tdm_megatron_cost, .check = tdm_megatron_check, \
    .assumption = tdm_megatron_assumption

/* Those of DeepSpeed have accumulation and clipping of their own. */
static const struct tdm_method_key *const torch_keys[] = {tdm_keys_torch, tdm_keys_adapters, NULL};
/* Those whose ranks have whole models; of one GPU, also with steps in the backward. */
static const struct tdm_method_key *const parallel_keys[] = {tdm_keys_torch,
                                                             tdm_keys_module,
                                                             tdm_keys_adapters,
                                                             tdm_keys_whole,
                                                             tdm_keys_plain,
                                                             tdm_keys_peft,
                                                             tdm_keys_code,
                                                             tdm_keys_in_backward,
                                                             tdm_keys_float8,
                                                             tdm_keys_loop,
                                                             tdm_keys_second,
                                                             tdm_keys_ppo,
                                                             NULL};
static const struct tdm_method_key *const whole_keys[] = {tdm_keys_torch,
                                                          tdm_keys_module,
                                                          tdm_keys_adapters,
                                                          tdm_keys_whole,
                                                          tdm_keys_plain,
                                                          tdm_keys_peft,
                                                          tdm_keys_float8,
                                                          tdm_keys_loop,
                                                          tdm_keys_second,
                                                          tdm_keys_ppo,
                                                          NULL};
static const struct tdm_method_key *const sharded_keys[] = {
    tdm_keys_torch, tdm_keys_module, tdm_keys_adapters,
    tdm_keys_plain, tdm_keys_code,   tdm_keys_float8,
    tdm_keys_loop,  tdm_keys_second, NULL};
static const struct tdm_method_key *const deepspeed_keys[] = {
    tdm_keys_torch, tdm_keys_module, tdm_keys_adapters, tdm_keys_second, NULL};
/* Methods with the key "sharding". */
static const struct tdm_method_key *const sharing_keys[] = {
    tdm_keys_fsdp,   tdm_keys_tensor,   tdm_keys_ddp,
    tdm_keys_torch,  tdm_keys_adapters, tdm_keys_plain,
    tdm_keys_float8, tdm_keys_loop,     NULL};
static const struct tdm_method_key *const burst_keys[] = {tdm_keys_burst, NULL};
static const struct tdm_method_key *const planned_keys[] = {tdm_keys_planned, NULL};
static const struct tdm_method_key *const oomb_keys[] = {tdm_keys_oomb, NULL};
static const struct tdm_method_key *const seco_keys[] = {tdm_keys_seco, NULL};
static const struct tdm_method_key *const longlora_keys[] = {tdm_keys_longlora, tdm_keys_loop,
                                                             NULL};
static const struct tdm_method_key *const tensor_keys[] = {tdm_keys_tensor_parallel,
                                                           tdm_keys_megatron, NULL};
static const struct tdm_method_key *const megatron_cp_keys[] = {tdm_keys_megatron_cp,
                                                                tdm_keys_megatron, NULL};

static const struct tdm_method methods[] = {
    {.name = "parallel",
     .summary = "the whole sequence at once on one GPU: PyTorch and Hugging Face transformers",
     ONE_GPU,
     .keys = parallel_keys,
     HUGGING_FACE},
    {.name = "ddp",
     .summary = "the same on every GPU: DistributedDataParallel",
     GPUS_FROM(2),
     .keys = whole_keys,
     HUGGING_FACE,
     .wrapper = &tdm_ddp_wrapper},
    {.name = "zero1",
     .summary =
         "DistributedDataParallel with ZeroRedundancyOptimizer: optimizer states are divided",
     GPUS_FROM(2),
     .keys = whole_keys,
     HUGGING_FACE,
     .wrapper = &tdm_zero1_wrapper},
    {.name = "fsdp",
     .summary =
         "fully_shard on every layer and the whole: parameters, gradients and states are shards",
     GPUS_FROM(2),
     .runs_on_one = true,
     .keys = sharded_keys,
     HUGGING_FACE,
     .wrapper = &tdm_fsdp_wrapper},
    {.name = "deepspeed-zero1",
     .summary = "DeepSpeed ZeRO-1: optimizer states are divided",
     GPUS_FROM(1),
     .keys = deepspeed_keys,
     HUGGING_FACE,
     .wrapper = &tdm_deepspeed_zero1_wrapper},
    {.name = "zero2",
     .summary = "DeepSpeed ZeRO-2: gradients and optimizer states are divided",
     GPUS_FROM(1),
     .keys = deepspeed_keys,
     HUGGING_FACE,
     .wrapper = &tdm_zero2_wrapper},
    {.name = "zero3",
     .summary = "DeepSpeed ZeRO-3: parameters, gradients and optimizer states are divided",
     GPUS_FROM(1),
     .keys = deepspeed_keys,
     HUGGING_FACE,
     .wrapper = &tdm_zero3_wrapper},
    {.name = "zero3-offload",
     .summary = "DeepSpeed ZeRO-3 with parameters and optimizer in host memory",
     GPUS_FROM(1),
     .keys = deepspeed_keys,
     HUGGING_FACE,
     .wrapper = &tdm_zero3_offload_wrapper},
    {.name = "alst",
     .summary = "Arctic Long Sequence Training: Ulysses over ZeRO-3, tiled MLP and loss, "
                "checkpoints in host memory",
     .divides_sequence = true,
     GPUS_FROM(2),
     .divider = &tdm_alst_divider,
     .keys = torch_keys,
     HUGGING_FACE,
     .wrapper = &tdm_alst_wrapper},
    {.name = "fpdt",
     .summary =
         "Ulysses-Offload (FPDT): Ulysses over ZeRO-3 chunk by chunk, chunks and checkpoints "
         "in host memory",
     .divides_sequence = true,
     GPUS_FROM(2),
     .divider = &tdm_fpdt_divider,
     .keys = torch_keys,
     HUGGING_FACE,
     .preset = tdm_fpdt_preset,
     .wrapper = &tdm_fpdt_wrapper},
    {.name = "oomb",
     .summary = "chunk by chunk, K and V and their gradients in pages, tensor-parallel ranks: OOMB",
     .divides_sequence = true,
     .least_gpus = 1,
     .most_gpus = TDM_CHUNK_RANKS,
     .keys = oomb_keys,
     .system = &tdm_chunk_system,
     .cost = tdm_oomb_cost,
     .preset = tdm_oomb_preset,
     .check = tdm_oomb_check},
    {.name = "seco",
     .summary = "chunk by chunk on one GPU, K and V of all chunks joined for each attention: SeCO",
     ONE_GPU,
     .keys = seco_keys,
     .system = &tdm_chunk_system,
     .cost = tdm_seco_cost,
     .preset = tdm_seco_preset,
     .check = tdm_seco_check},
    {.name = "longlora",
     .summary = "adapters, norms and embedding, attention in shifted groups, on one GPU: LongLoRA",
     ONE_GPU,
     .keys = longlora_keys,
     .system = &tdm_torch_system,
     .cost = tdm_longlora_cost,
     .preset = tdm_longlora_preset,
     .check = tdm_longlora_check},
    {.name = "tensor-parallel",
     .summary = "Megatron-LM: tensor-parallel ranks divide heads, MLP and vocabulary",
     .divides_sequence = true,
     GPUS_FROM(1),
     .keys = tensor_keys,
     MEGATRON},
    {.name = "megatron-cp",
     .summary = "Megatron-LM: context-parallel ranks divide every sequence",
     .divides_sequence = true,
     GPUS_FROM(1),
     .keys = megatron_cp_keys,
     MEGATRON},
    {.name = "ring",
     .summary = "ring attention: a sequence over all GPUs, keys and values go round",
     .divides_sequence = true,
     GPUS_FROM(2),
     .divider = &tdm_ring_divider,
     .keys = sharing_keys,
     HUGGING_FACE},
    {.name = "torch-cp",
     .summary = "PyTorch's own context parallelism: a ring, or keys and values of all GPUs at once",
     .divides_sequence = true,
     GPUS_FROM(2),
     .divider = &tdm_torch_ring_divider,
     .keys = sharing_keys,
     HUGGING_FACE},
    {.name = "double-ring",
     .summary = "LoongTrain's ring of nodes around rings of GPUs, zigzag",
     .divides_sequence = true,
     GPUS_FROM(2),
     .divider = &tdm_double_ring_divider,
     .keys = sharing_keys,
     HUGGING_FACE},
    {.name = "ulysses",
     .summary = "DeepSpeed-Ulysses: all-to-all of a sequence's tokens and heads around attention",
     .divides_sequence = true,
     GPUS_FROM(2),
     .divider = &tdm_ulysses_divider,
     .keys = sharing_keys,
     HUGGING_FACE},
    {.name = "usp",
     .summary = "unified sequence parallelism: Ulysses among some GPUs, rings across them",
     .divides_sequence = true,
     GPUS_FROM(2),
     .divider = &tdm_usp_divider,
     .keys = sharing_keys,
     HUGGING_FACE},
    {.name = "burst",
     .summary =
         "BurstEngine: BurstAttention, selective checkpointing, fused head and loss, on BMTrain",
     .divides_sequence = true,
     GPUS_FROM(1),
     .divider = &tdm_burst_divider,
     .keys = burst_keys,
     .system = &tdm_burst_system,
     .cost = tdm_torch_cost,
     .check = tdm_burst_check,
     .assumption = tdm_burst_assumption},
    {.name = "tidemark",
     .summary = "the schedule that tidemark plan finds; --set takes the knobs of plan too",
     .least_gpus = 1,
     .most_gpus = 1024u,
     .keys = planned_keys},
    {.name = NULL},
};

const struct tdm_method *tdm_methods(void)
{
    return methods;
}
