/* SPDX-License-Identifier: Apache-2.0 */
/* The methods: which system each is, its tables of keys, what it presets and checks. */
#include "methods/method.h"

#include "methods/chunk/method.h"
#include "methods/deepspeed/method.h"

#define MANY_GPUS 65536u

static void share_by_ddp(struct tdm_method_settings *settings)
{
    settings->torch.sharing = TDM_SHARING_DDP;
}

static void share_by_zero1(struct tdm_method_settings *settings)
{
    settings->torch.sharing = TDM_SHARING_ZERO1;
}

static void share_by_fsdp(struct tdm_method_settings *settings)
{
    settings->torch.sharing = TDM_SHARING_FSDP;
}

enum tdm_status tdm_fsdp_check(const struct tdm_model *model, struct tdm_method_settings *settings,
                               struct tdm_error *err)
{
    (void)model;
    const struct tdm_torch_settings *torch = &settings->torch;
    if (torch->lora_rank > 0 && torch->peft && !torch->fp32_weights)
        return tdm_fail(err, TDM_USAGE,
                        "--set lora: fp32 adapters among bf16 weights are not known of method %s",
                        settings->method->name);
    return TDM_OK;
}

static const struct tdm_method_key *const torch_keys[] = {tdm_keys_torch, NULL};
static const struct tdm_method_key *const ddp_keys[] = {tdm_keys_ddp, tdm_keys_torch, NULL};
static const struct tdm_method_key *const planned_keys[] = {tdm_keys_planned, NULL};
static const struct tdm_method_key *const fsdp_keys[] = {tdm_keys_fsdp, tdm_keys_torch, NULL};

static const struct tdm_method_key *const zero2_keys[] = {tdm_keys_zero2, tdm_keys_alst,
                                                          tdm_keys_torch, NULL};
static const struct tdm_method_key *const zero3_keys[] = {tdm_keys_zero3, tdm_keys_alst,
                                                          tdm_keys_torch, NULL};
static const struct tdm_method_key *const zero3_offload_keys[] = {
    tdm_keys_zero3_offload, tdm_keys_alst, tdm_keys_torch, NULL};
static const struct tdm_method_key *const oomb_keys[] = {tdm_keys_oomb, NULL};
static const struct tdm_method_key *const seco_keys[] = {tdm_keys_seco, NULL};
static const struct tdm_method_key *const longlora_keys[] = {tdm_keys_longlora, NULL};
static const struct tdm_method_key *const tensor_keys[] = {tdm_keys_tensor_parallel,
                                                           tdm_keys_megatron, NULL};
static const struct tdm_method_key *const megatron_cp_keys[] = {tdm_keys_megatron_cp,
                                                                tdm_keys_megatron, NULL};

static const struct tdm_method methods[] = {
    {.name = "parallel",
     .summary = "the whole sequence at once on one GPU: PyTorch and Hugging Face transformers",
     .least_gpus = 1,
     .most_gpus = 1,
     .keys = torch_keys,
     .system = &tdm_torch_system,
     .cost = tdm_torch_cost},
    {.name = "ddp",
     .summary = "the same on every GPU: DistributedDataParallel",
     .least_gpus = 2,
     .most_gpus = MANY_GPUS,
     .keys = ddp_keys,
     .system = &tdm_torch_system,
     .cost = tdm_torch_cost,
     .preset = share_by_ddp},
    {.name = "zero1",
     .summary =
         "DistributedDataParallel with ZeroRedundancyOptimizer: optimizer states are divided",
     .least_gpus = 2,
     .most_gpus = MANY_GPUS,
     .keys = ddp_keys,
     .system = &tdm_torch_system,
     .cost = tdm_torch_cost,
     .preset = share_by_zero1},
    {.name = "fsdp",
     .summary =
         "fully_shard on every layer and the whole: parameters, gradients and states are shards",
     .least_gpus = 2,
     .most_gpus = MANY_GPUS,
     .keys = fsdp_keys,
     .system = &tdm_torch_system,
     .cost = tdm_torch_cost,
     .preset = share_by_fsdp,
     .check = tdm_fsdp_check},
    {.name = "zero2",
     .summary = "DeepSpeed ZeRO-2: gradients and optimizer states are divided",
     .least_gpus = 1,
     .most_gpus = MANY_GPUS,
     .keys = zero2_keys,
     .without = tdm_zero_without,
     .system = &tdm_deepspeed_system,
     .cost = tdm_zero_cost,
     .preset = tdm_zero2_preset,
     .check = tdm_zero_check},
    {.name = "zero3",
     .summary = "DeepSpeed ZeRO-3: parameters, gradients and optimizer states are divided",
     .least_gpus = 1,
     .most_gpus = MANY_GPUS,
     .keys = zero3_keys,
     .without = tdm_zero_without,
     .system = &tdm_deepspeed_system,
     .cost = tdm_zero_cost,
     .preset = tdm_zero3_preset,
     .check = tdm_zero_check},
    {.name = "zero3-offload",
     .summary = "DeepSpeed ZeRO-3 with parameters and optimizer in host memory",
     .least_gpus = 1,
     .most_gpus = MANY_GPUS,
     .keys = zero3_offload_keys,
     .without = tdm_zero_without,
     .system = &tdm_deepspeed_system,
     .cost = tdm_zero_cost,
     .preset = tdm_zero3_preset,
     .check = tdm_zero_check},
    {.name = "oomb",
     .summary = "chunk by chunk on one GPU, K and V and their gradients in pages: OOMB",
     .least_gpus = 1,
     .most_gpus = 1,
     .keys = oomb_keys,
     .system = &tdm_chunk_system,
     .cost = tdm_oomb_cost,
     .preset = tdm_oomb_preset,
     .check = tdm_oomb_check},
    {.name = "seco",
     .summary = "chunk by chunk on one GPU, K and V of all chunks joined for each attention: SeCO",
     .least_gpus = 1,
     .most_gpus = 1,
     .keys = seco_keys,
     .system = &tdm_chunk_system,
     .cost = tdm_seco_cost,
     .preset = tdm_seco_preset,
     .check = tdm_seco_check},
    {.name = "longlora",
     .summary = "adapters, norms and embedding, attention in shifted groups, on one GPU: LongLoRA",
     .least_gpus = 1,
     .most_gpus = 1,
     .keys = longlora_keys,
     .system = &tdm_torch_system,
     .cost = tdm_longlora_cost,
     .preset = tdm_longlora_preset,
     .check = tdm_longlora_check},
    {.name = "tensor-parallel",
     .summary = "Megatron-LM: tensor-parallel ranks divide heads, MLP and vocabulary",
     .divides_sequence = true,
     .least_gpus = 1,
     .most_gpus = MANY_GPUS,
     .keys = tensor_keys,
     .system = &tdm_megatron_system,
     .cost = tdm_megatron_cost,
     .check = tdm_megatron_check,
     .assumption = tdm_megatron_assumption},
    {.name = "megatron-cp",
     .summary = "Megatron-LM: context-parallel ranks divide every sequence",
     .divides_sequence = true,
     .least_gpus = 1,
     .most_gpus = MANY_GPUS,
     .keys = megatron_cp_keys,
     .system = &tdm_megatron_system,
     .cost = tdm_megatron_cost,
     .check = tdm_megatron_check,
     .assumption = tdm_megatron_assumption},
    {.name = "ring",
     .summary = "ring attention: a sequence over all GPUs, keys and values go round",
     .divides_sequence = true,
     .least_gpus = 2,
     .most_gpus = MANY_GPUS,
     .keys = tdm_ring_keys,
     .system = &tdm_torch_system,
     .cost = tdm_context_cost,
     .preset = tdm_ring_preset,
     .check = tdm_context_check,
     .assumption = tdm_context_assumption},
    {.name = "double-ring",
     .summary = "LoongTrain's ring of nodes around rings of GPUs, zigzag",
     .divides_sequence = true,
     .least_gpus = 2,
     .most_gpus = MANY_GPUS,
     .keys = tdm_double_ring_keys,
     .system = &tdm_torch_system,
     .cost = tdm_context_cost,
     .preset = tdm_double_ring_preset,
     .check = tdm_context_check,
     .assumption = tdm_context_assumption},
    {.name = "ulysses",
     .summary = "DeepSpeed-Ulysses: all-to-all of a sequence's tokens and heads around attention",
     .divides_sequence = true,
     .least_gpus = 2,
     .most_gpus = MANY_GPUS,
     .keys = tdm_ulysses_keys,
     .system = &tdm_torch_system,
     .cost = tdm_context_cost,
     .preset = tdm_ulysses_preset,
     .check = tdm_context_check,
     .assumption = tdm_context_assumption},
    {.name = "usp",
     .summary = "unified sequence parallelism: Ulysses among some GPUs, rings across them",
     .divides_sequence = true,
     .least_gpus = 2,
     .most_gpus = MANY_GPUS,
     .keys = tdm_usp_keys,
     .system = &tdm_torch_system,
     .cost = tdm_context_cost,
     .preset = tdm_usp_preset,
     .check = tdm_context_check,
     .assumption = tdm_context_assumption},
    {.name = "burst",
     .summary =
         "BurstEngine: BurstAttention, selective checkpointing, fused head and loss, on BMTrain",
     .divides_sequence = true,
     .least_gpus = 2,
     .most_gpus = MANY_GPUS,
     .keys = tdm_burst_keys,
     .system = &tdm_burst_system,
     .cost = tdm_burst_cost,
     .preset = tdm_burst_preset,
     .check = tdm_burst_check,
     .assumption = tdm_burst_assumption},
    {.name = "tidemark",
     .summary = "the schedule that tidemark plan finds; --set takes the knobs of plan too",
     .least_gpus = 1,
     .most_gpus = 1,
     .keys = planned_keys},
    {.name = NULL},
};

const struct tdm_method *tdm_methods(void)
{
    return methods;
}
