#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a step of a small Llama with tensor parallelism beneath fully_shard allocates on rank 0, by PyTorch's
profiler on a CPU. Other ranks are not there: torch's fake process group sends nothing and allocates nothing.

tests/data/tensor_parallel.csv has the figures, tests/methods/unit_fsdp compares them with predictions:

    bench/torch_tensor.py > tests/data/tensor_parallel.csv

Needs torch and transformers; exits with 77 without them.
"""
import json
import os
import sys

try:
    import torch
    import transformers
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel,
                                                   SequenceParallel, loss_parallel, parallelize_module)
    from torch.testing._internal.distributed.fake_pg import FakeStore
except ImportError as error:
    print(f"torch_tensor: {error}", file=sys.stderr)
    sys.exit(77)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from torch_families import highest, sizes  # noqa: E402

TOKENS, SHARDS = 512, 2


def divide(model, mesh, parallel_loss):
    """torchtitan's apply_tp, with the names of transformers."""
    parallelize_module(model, mesh, {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), use_local_output=not parallel_loss,
                                   output_layouts=Shard(-1) if parallel_loss else Replicate()),
    })
    for layer in model.model.layers:
        parallelize_module(layer, mesh, {
            "input_layernorm": SequenceParallel(use_local_output=True),
            "self_attn": PrepareModuleInput(
                input_kwarg_layouts={"hidden_states": Shard(1)},
                desired_input_kwarg_layouts={"hidden_states": Replicate()}),
            "self_attn.q_proj": ColwiseParallel(),
            "self_attn.k_proj": ColwiseParallel(),
            "self_attn.v_proj": ColwiseParallel(),
            "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
            "post_attention_layernorm": SequenceParallel(use_local_output=True),
            "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "mlp.gate_proj": ColwiseParallel(),
            "mlp.up_proj": ColwiseParallel(),
            "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),
        })


def measure(config, ranks, parallel_loss):
    """Bytes kept by a forward, and most bytes of a forward and backward, above those before."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=SHARDS * ranks)
    mesh = init_device_mesh("cpu", (SHARDS, ranks), mesh_dim_names=("dp", "tp"))
    settings = transformers.LlamaConfig(**config)
    model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation="eager",
                                                          dtype=torch.bfloat16)
    model.train()
    divide(model, mesh["tp"], parallel_loss)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=True)
    fully_shard(model, mesh=mesh["dp"], reshard_after_forward=True)
    ids = torch.randint(0, config["vocab_size"] - 1, (1, TOKENS))
    positions = torch.arange(TOKENS).unsqueeze(0)
    least = torch.finfo(torch.bfloat16).min

    def forward():
        # transformers would make a mask of the embedding's tokens, which are a part of all.
        mask = torch.full((1, 1, TOKENS, TOKENS), least, dtype=torch.bfloat16).triu_(1)
        return model(input_ids=ids, position_ids=positions, attention_mask=mask, labels=ids, use_cache=False).loss

    def step():
        if not parallel_loss:
            return measured(forward)
        with loss_parallel():
            return measured(forward)

    def measured(run):
        value, events = sizes(run)
        kept, first = highest(0, events)
        _, events = sizes(value.backward)
        _, second = highest(kept, events)
        return kept, max(first, second)

    step()
    model.zero_grad(set_to_none=True)
    figures = step()
    torch.distributed.destroy_process_group()
    return figures


def main():
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)),
                           "../tests/data/configs/tensor-parallel.json"), encoding="utf-8") as file:
        config = json.load(file)
    for name in ("model_type", "architectures"):
        config.pop(name)
    print("# What a step of a small Llama with tensor parallelism beneath fully_shard allocates, by "
          f"bench/torch_tensor.py: torch {torch.__version__.split('+')[0]}, transformers "
          f"{transformers.__version__}, on a CPU, {SHARDS} shards, {TOKENS} tokens, bf16, eager attention.")
    print("# kept_bytes: by the forward for the backward; peak_bytes: of both, above those before the step.")
    print("tensor_parallel_degree,disable_loss_parallel,kept_bytes,peak_bytes")
    for ranks, parallel_loss in ((1, False), (2, True), (2, False), (4, True), (4, False)):
        kept, peak = measure(config, ranks, parallel_loss)
        print(ranks, "no" if parallel_loss else "yes", kept, peak, sep=",", flush=True)


if __name__ == "__main__":
    main()
