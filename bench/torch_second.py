#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a step of two small models allocates, by PyTorch's own profiler on a CPU: TRL's DPO, GRPO and
distillation.

TRL's functions run in TRL's order. Its Triton kernels, which a CPU lacks, allocate nothing, so that
functions that do nothing stand for them; so do products into buffers that are there already. What
stays is what a GPU allocates, but for the scratch of kernels. tests/data/second_models.csv has the
figures, tests/methods/unit_second compares them with predictions:

    bench/torch_second.py tests/data/configs/families/{llama,qwen3,gemma2}.json > tests/data/second_models.csv

Needs torch, transformers, trl and peft; exits with 77 without them.
"""
import gc
import json
import os
import sys

try:
    import peft
    import torch
    import transformers
    import trl
    from trl.kernels import chunked_divergence, chunked_logprob
    from trl.trainer import distillation_trainer, utils
except ImportError as error:
    print(f"torch_second: {error}", file=sys.stderr)
    sys.exit(77)

from torch_families import highest, made, sizes

TOKENS = 64
PAIRS = 2
RANK = 8


class Nothing:
    """A kernel that allocates nothing."""

    def __getitem__(self, grid):
        return lambda *arguments, **words: None


def use_kernels():
    """As on a GPU: kernels fold the tiles, and products are written to buffers in their dtype."""
    for module in (chunked_logprob, chunked_divergence, utils, distillation_trainer):
        if hasattr(module, "_use_triton"):
            module._use_triton = lambda device: True
        for name in ("_forward_kernel", "_backward_kernel", "_stats_kernel", "_jsd_kernel"):
            if hasattr(module, name):
                setattr(module, name, Nothing())
        for name in ("_addmm_fp32", "_project"):
            if hasattr(module, name):
                setattr(module, name, lambda *arguments: None)


def frozen(model):
    return model.eval().requires_grad_(False)


def batch(config, sequences):
    ids = torch.randint(1, config["vocab_size"] - 1, (sequences, TOKENS))
    return ids, torch.ones_like(ids)


def reference(model, ref_model, ids, labels):
    """TRL's _compute_loss: without a graph, by the copy or by the base under the adapters."""
    with torch.no_grad():
        if ref_model is not None:
            return ref_model(input_ids=ids, labels=labels, fused_lm_head=True).log_probs
        with model.disable_adapter():
            return model(input_ids=ids, labels=labels, fused_lm_head=True).log_probs


def dpo(model, ref_model, ids, has_reference):
    _, mask = torch.ones_like(ids), torch.ones_like(ids)
    labels = ids.masked_fill(mask == 0, -100)
    policy = model(input_ids=ids, labels=labels, fused_lm_head=True).log_probs.sum(dim=1)
    chosen, rejected = policy.chunk(2)
    if has_reference:
        other = reference(model, ref_model, ids, labels).sum(dim=1).chunk(2)
        chosen, rejected = chosen - other[0], rejected - other[1]
    return -torch.nn.functional.logsigmoid(0.1 * (chosen - rejected)).mean()


def grpo(model, ref_model, ids, has_reference):
    _, mask = torch.ones_like(ids), torch.ones_like(ids)
    labels = ids.masked_fill(mask == 0, -100)
    other = reference(model, ref_model, ids, labels) if has_reference else None
    policy = model(input_ids=ids, labels=labels, fused_lm_head=True).log_probs
    loss = -torch.exp(policy - policy.detach())
    if other is not None:
        loss = loss + 0.04 * (torch.exp(other - policy) - (other - policy) - 1)
    return loss.mean()


def distillation(model, teacher, ids, _):
    _, mask = torch.ones_like(ids), torch.ones_like(ids)[:, 1:]
    student_states = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    with torch.no_grad():
        teacher_states = teacher.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    loss, _, _ = distillation_trainer._chunked_divergence_loss(
        student_states, teacher_states, model.lm_head.weight, teacher.lm_head.weight, mask, 0.5)
    return loss


CASES = (  # name, step, sequences, has a reference, of LoRA
    ("dpo", dpo, 2 * PAIRS, True, False),
    ("dpo-precomputed", dpo, 2 * PAIRS, False, False),
    ("dpo-lora", dpo, 2 * PAIRS, True, True),
    ("grpo", grpo, PAIRS, False, False),
    ("grpo-beta", grpo, PAIRS, True, False),
    ("distillation", distillation, PAIRS, True, False),
)


def measure(config, step, sequences, has_reference, has_lora, checkpointing):
    """Bytes kept by a forward, and most bytes of a forward and backward, above those before."""
    model = made(config)
    utils.add_fused_lm_head(model)
    second = None
    if has_reference and not has_lora:
        second = frozen(made(config))
        utils.add_fused_lm_head(second)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if has_lora:
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        if checkpointing:
            model.enable_input_require_grads()
        model = peft.get_peft_model(model, peft.LoraConfig(r=RANK, target_modules=targets))
    model.train()
    ids, _ = batch(config, sequences)

    def forward():
        with torch.autocast("cpu", torch.bfloat16, enabled=has_lora):
            return step(model, second, ids, has_reference)

    loss = None

    def again():
        nonlocal loss
        loss = forward()  # as in a loop: the last loss is freed once the new one is there

    sizes(again)  # the profiler sees frees only of what it has seen allocated
    sizes(loss.backward)
    model.zero_grad(set_to_none=True)
    gc.collect()  # else models of other cases may be freed in the middle of this one
    _, events = sizes(again)
    kept, first = highest(0, events)
    _, events = sizes(loss.backward)
    _, other = highest(kept, events)
    return kept, max(first, other)


def main():
    gc.disable()
    use_kernels()
    print("# What a step of two small models allocates, by bench/torch_second.py: "
          f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}, trl {trl.__version__}, "
          f"peft {peft.__version__}, on a CPU,")
    print(f"# {TOKENS} tokens, {PAIRS} sequences or pairs, bf16, eager attention, LoRA of rank {RANK} in fp32.")
    print("# kept_bytes: by the forward for the backward; peak_bytes: of both, above those before the step."
          " Gradients are freed before it.")
    print("config,case,checkpointing,kept_bytes,peak_bytes")
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        name = os.path.splitext(os.path.basename(path))[0]
        for case, step, sequences, has_reference, has_lora in CASES:
            for checkpointing in (False, True):
                kept, peak = measure(config, step, sequences, has_reference, has_lora, checkpointing)
                print(name, case, "on" if checkpointing else "off", kept, peak, sep=",", flush=True)


if __name__ == "__main__":
    main()
