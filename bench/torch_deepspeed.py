# SPDX-License-Identifier: Apache-2.0
"""Cases of bench/torch_peaks.py that DeepSpeed trains: its config, the model, the engine."""
import os

import torch
import transformers

import torch_parts

STAGES = {"deepspeed-zero1": 1, "zero2": 2, "zero3": 3}
ZERO = {"overlap_comm": str, "reduce_scatter": str, "contiguous_gradients": str, "reduce_bucket_size": float,
        "stage3_prefetch_bucket_size": float, "stage3_max_live_parameters": float, "stage3_max_reuse_distance": float,
        "stage3_param_persistence_threshold": float, "sub_group_size": float}  # fmt: skip
AUTO = {"reduce_bucket_size": lambda hidden: hidden * hidden,
        "stage3_prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
        "stage3_param_persistence_threshold": lambda hidden: 10 * hidden}  # fmt: skip


def engine_config(case):
    """What a user's ds_config.json would say; sizes that are auto are those that transformers fills in."""
    stage, said = STAGES[case.strategy], case.said
    zero = {"stage": stage}
    for key, kind in ZERO.items():
        if key in said:
            value = said[key]
            zero[key] = value == "true" if kind is str else (
                AUTO[key](case.sizes()["hidden_size"]) if value == "auto" else int(float(value)))
    for key in ("offload_optimizer", "offload_param"):
        if said.get(key) == "cpu":
            zero[key] = {"device": "cpu", "pin_memory": said.get("pin_memory", "true") == "true"}
    settings = {"lr": 1e-5}
    if case.set["optimizer"].startswith("torch_adam"):
        settings.update(torch_adam=True, fused=case.set["optimizer"] == "torch_adam_fused")
    config = {"zero_optimization": zero, "bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": settings},
              "train_micro_batch_size_per_gpu": case.batch, "gradient_accumulation_steps": case.micro_batches}
    if case.set["max_grad_norm"] != "none":
        config["gradient_clipping"] = float(case.set["max_grad_norm"])
    if said.get("communication_data_type") == "fp32":
        config["communication_data_type"] = "fp32"
    return config


def divided_model(case, config):
    """A model whose parameters are divided as they are made, as transformers makes it for stage 3. They get small
    random numbers, norms ones."""
    import deepspeed
    from transformers import initialization
    with initialization.no_init_weights(), deepspeed.zero.Init(config_dict_or_path=engine_config(case)):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.tie_weights()
    for name, parameter in model.named_parameters():
        part = parameter.ds_tensor.data
        part.fill_(1) if "norm" in name else part.normal_(0, 0.02)
    return model


def start(rank, gpus):
    import deepspeed
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(gpus), LOCAL_SIZE=str(gpus))
    deepspeed.init_distributed("nccl" if torch_parts.DEVICE == "cuda" else "gloo", verbose=False)


def engine(model, case):
    import deepspeed
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return deepspeed.initialize(model=model, model_parameters=trained, config=engine_config(case))[0]
