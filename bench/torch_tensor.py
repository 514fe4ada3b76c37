#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a step of small models with tensor parallelism beneath fully_shard allocates on rank 0, by PyTorch's
profiler on a CPU. Other ranks are not there: torch's fake process group sends nothing and allocates nothing.
Ranks divide as torchtitan does (tensor_parallel_degree), or by transformers' plans (tp_size).

tests/data/tensor_parallel.csv has the figures, tests/methods/unit_fsdp compares them with predictions:

    bench/torch_tensor.py > tests/data/tensor_parallel.csv

Needs torch, transformers and peft; exits with 77 without them.
"""
import gc
import json
import os
import sys

try:
    import peft
    import torch
    import transformers
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
    from torch.distributed.tensor.parallel import (ColwiseParallel, ParallelStyle, PrepareModuleInput,
                                                   RowwiseParallel, SequenceParallel, loss_parallel,
                                                   parallelize_module)
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism
except ImportError as error:
    print(f"torch_tensor: {error}", file=sys.stderr)
    sys.exit(77)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from torch_families import highest, made, sizes  # noqa: E402

CONFIGS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/data/configs")
SHARDS, RANK = 2, 8
# Families whose plan is compared, beside tensor-parallel.json.
PLANNED = ("apertus arcee cohere cohere2 deepseek_v2 deepseek_v3 dots1 ernie4_5 exaone4 gemma gemma2 gemma3_text "
           "glm glm4 glm4_moe granite llama minimax_m2 ministral3 mixtral olmo olmo2 olmo3 phi phi3 qwen3 seed_oss "
           "smollm3").split()
DIVIDED = "exaone4 gemma gemma2 gemma3_text granite llama olmo qwen3 smollm3".split()


class Adapted(torch.nn.Module):
    """A product with an adapter, as torchtitan's components/lora.py has it."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.a = torch.nn.Linear(base.in_features, RANK, bias=False, dtype=base.weight.dtype)
        self.b = torch.nn.Linear(RANK, base.out_features, bias=False, dtype=base.weight.dtype)

    def forward(self, x):
        y = self.base(x)
        return y + 2.0 * self.b(self.a(x))


class DividedAdapter(ParallelStyle):
    """By columns A is whole and B divided, by rows B is whole and A divided: one sum of both."""

    def __init__(self, columns):
        self.columns = columns

    def _apply(self, module, mesh):
        placements = {"base": Shard(0), "a": Replicate(), "b": Shard(0)} if self.columns else \
            {"base": Shard(1), "a": Shard(1), "b": Replicate()}

        def partition(name, part, _):
            if name in placements:
                for key, value in list(part.named_parameters(recurse=False)):
                    part.register_parameter(key, torch.nn.Parameter(
                        distribute_tensor(value, mesh, [placements[name]]), requires_grad=value.requires_grad))

        def enter(_, inputs, __):
            x = inputs[0]
            if not isinstance(x, DTensor):
                x = DTensor.from_local(x, mesh, [Replicate() if self.columns else Shard(-1)], run_check=False)
            return (x,)

        def leave(_, output, __):
            return output.redistribute(placements=[Shard(-1) if self.columns else Shard(1)]).to_local()
        return distribute_module(module, mesh, partition, enter, leave)


def freeze(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".a." in name or ".b." in name)


def adapt(model):
    for layer in model.model.layers:
        for part, names in ((layer.self_attn, "q_proj k_proj v_proj o_proj"), (layer.mlp, "gate_proj up_proj down_proj")):
            for name in names.split():
                setattr(part, name, Adapted(getattr(part, name)))


def divide(model, mesh, parallel_loss, adapted):
    """torchtitan's apply_tp, with the names of transformers."""
    columns = DividedAdapter(True) if adapted else ColwiseParallel()
    rows = DividedAdapter(False) if adapted else RowwiseParallel(output_layouts=Shard(1))
    parallelize_module(model, mesh, {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), use_local_output=not parallel_loss,
                                   output_layouts=Shard(-1) if parallel_loss else Replicate()),
    })
    for layer in model.model.layers:
        norms = [name for name, _ in layer.named_children() if name.endswith("layernorm")]
        parallelize_module(layer, mesh, {
            **{name: SequenceParallel(use_local_output=True) for name in norms},
            "self_attn": PrepareModuleInput(
                input_kwarg_layouts={"hidden_states": Shard(1)},
                desired_input_kwarg_layouts={"hidden_states": Replicate()}),
            **{f"self_attn.{name}_proj": columns for name in "qkv"},
            "self_attn.o_proj": rows,
            "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "mlp.gate_proj": columns,
            "mlp.up_proj": columns,
            "mlp.down_proj": rows,
        })


def measure(config, key, ranks, parallel_loss, adapted=False):
    """Bytes kept by a forward, and most bytes of a forward and backward, above those before."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=SHARDS * ranks)
    mesh = init_device_mesh("cpu", (SHARDS, ranks), mesh_dim_names=("dp", "tp"))
    model = made(config)
    model.train()
    if adapted and key != "tp_size":
        adapt(model)
    if key == "tp_size":
        apply_tensor_parallelism(model, mesh["tp"])
        model.tie_weights()
        if adapted:
            model = peft.get_peft_model(model, peft.LoraConfig(r=RANK, target_modules="all-linear"),
                                        autocast_adapter_dtype=False).base_model.model
    elif ranks > 1:
        divide(model, mesh["tp"], parallel_loss, adapted)
        model.tie_weights()
        if adapted:  # SequenceParallel makes parameters anew, which are trained
            freeze(model)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=True)
    fully_shard(model, mesh=mesh["dp"], reshard_after_forward=True)
    tokens = 512 if config["vocab_size"] > 1024 else 128
    ids = torch.randint(0, config["vocab_size"] - 1, (1, tokens))
    positions = torch.arange(tokens).unsqueeze(0)
    least = torch.finfo(torch.bfloat16).min

    def forward():
        if key == "tp_size":
            return model(input_ids=ids, labels=ids, use_cache=False).loss
        # transformers would make a mask of the embedding's tokens, which are a part of all.
        mask = torch.full((1, 1, tokens, tokens), least, dtype=torch.bfloat16).triu_(1)
        if "layer_types" in config:
            mask = {"full_attention": mask, "sliding_attention": mask.clone()}
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
    gc.collect()  # hooks leave cycles, which must not be freed in the step that is measured
    figures = step()
    torch.distributed.destroy_process_group()
    return figures


def main():
    print("# What a step with tensor parallelism beneath fully_shard allocates, by bench/torch_tensor.py: "
          f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}, on a CPU, {SHARDS} "
          "shards, bf16, eager attention.")
    print("# 512 tokens of tensor-parallel.json, 128 of the others. kept_bytes: by the forward for the backward; "
          "peak_bytes: of both, above those before the step.")
    print("config,key,ranks,disable_loss_parallel,lora_rank,kept_bytes,peak_bytes", flush=True)
    degree, planned = "tensor_parallel_degree", "tp_size"
    rows = [("tensor-parallel", degree, ranks, loss, False)
            for ranks, loss in ((1, False), (2, True), (2, False), (4, True), (4, False))]
    rows += [("tensor-parallel", degree, 2, True, True), ("tensor-parallel", planned, 2, False, True),
             ("tensor-parallel", planned, 2, False, False),
             ("tensor-parallel", planned, 4, False, False), ("qwen3-moe-small", planned, 2, False, False)]
    rows += [(f"families/{name}", degree, 2, True, False) for name in DIVIDED]
    rows += [(f"families/{name}", planned, 2, False, False) for name in PLANNED]
    for name, key, ranks, parallel_loss, adapted in rows:
        with open(os.path.join(CONFIGS, name + ".json"), encoding="utf-8") as file:
            config = json.load(file)
        kept, peak = measure(config, key, ranks, parallel_loss, adapted)
        print(name, key, ranks, "no" if parallel_loss else "yes", RANK if adapted else 0, kept, peak, sep=",",
              flush=True)


if __name__ == "__main__":
    main()
