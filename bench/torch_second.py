#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a step of two small models allocates, by PyTorch's own profiler on a CPU: TRL's DPO, KTO, GRPO,
distillation, and CPO, SimPO and ORPO, which have no second model.

TRL's functions run in TRL's order. Its Triton kernels, which a CPU lacks, allocate nothing, so that
functions that do nothing stand for them; so do products into buffers that are there already. What
stays is what a GPU allocates, but for the scratch of kernels. tests/data/second_models.csv has the
figures, tests/methods/unit_second compares them with predictions:

    OMP_NUM_THREADS=1 ONEDNN_MAX_CPU_ISA=AVX2 \
        bench/torch_second.py tests/data/configs/families/{llama,qwen3,gemma2}.json > tests/data/second_models.csv

With several threads or AVX-512 products take scratch that a GPU does not.
Needs torch, transformers, trl and peft; exits with 77 without them.
"""
import collections
import gc
import json
import os
import sys
import types

try:
    import peft
    import torch
    import transformers
    import trl
    from accelerate.utils import convert_outputs_to_fp32
    from trl.experimental.cpo import CPOTrainer
    from trl.experimental.orpo import ORPOTrainer
    from trl.models.utils import disable_gradient_checkpointing
    from trl.kernels import chunked_divergence, chunked_logprob, logprob_entropy
    from trl.trainer import distillation_trainer, utils
    from trl.trainer.kto_trainer import KTOTrainer
    from trl.trainer.reward_trainer import RewardTrainer
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
    utils.is_triton_available = lambda: True
    utils._supports_trl_loss_kernel = lambda *arguments: True
    for module in (chunked_logprob, chunked_divergence, logprob_entropy, utils, distillation_trainer):
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


def rloo(model, ref_model, ids, has_reference):
    """Scores by the policy as it is and by the reference, then the policy's."""
    labels = ids.clone()
    with torch.no_grad(), disable_gradient_checkpointing(model, {"use_reentrant": False}):
        old = model(input_ids=ids, labels=labels, fused_lm_head=True).log_probs
        if has_reference:
            kl = old - reference(model, ref_model, ids, labels)
            del kl
        old = old.sum(dim=1)
    policy = model(input_ids=ids, labels=labels, fused_lm_head=True).log_probs.sum(dim=1)
    return -torch.exp(policy - old).mean()


def distillation(model, teacher, ids, _):
    _, mask = torch.ones_like(ids), torch.ones_like(ids)[:, 1:]
    student_states = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    with torch.no_grad():
        teacher_states = teacher.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    loss, _, _ = distillation_trainer._chunked_divergence_loss(
        student_states, teacher_states, model.lm_head.weight, teacher.lm_head.weight, mask, 0.5)
    return loss


def made_trainer(kind, device, **fields):
    """A trainer without its data: what its loss reads."""
    trainer = object.__new__(kind)
    accelerator = types.SimpleNamespace(device=device, gather=lambda x: x, gather_for_metrics=lambda x: x,
                                        unwrap_model=lambda model: model)
    metrics = collections.defaultdict(lambda: collections.defaultdict(list))
    vars(trainer).update(accelerator=accelerator, aux_loss_enabled=False, beta=0.1, _tp_size=1, _total_train_tokens=0,
                         _metrics=metrics, **fields)
    return trainer


def kto(model, ref_model, ids, has_reference):
    """Of `mismatched` completions too, which the KL is estimated with."""
    mask = torch.ones_like(ids)
    trainer = made_trainer(KTOTrainer, ids.device, model=model, ref_model=ref_model, calculate_KL=True,
                           precompute_ref_logps=not has_reference, loss_type="kto", desirable_weight=1.0,
                           undesirable_weight=1.0,
                           args=types.SimpleNamespace(gradient_checkpointing_kwargs={"use_reentrant": False}))
    inputs = {"input_ids": ids, "attention_mask": mask, "completion_mask": torch.ones_like(ids),
              "KL_input_ids": ids.clone(), "KL_attention_mask": torch.ones_like(ids),
              "KL_completion_mask": torch.ones_like(ids), "label": torch.arange(len(ids)) % 2 == 0}
    if not has_reference:
        zeros = ids.new_zeros(len(ids), dtype=torch.float32)
        inputs.update(ref_logps=zeros, ref_KL_logps=zeros.clone())
    return trainer._compute_loss(model, inputs, False)


def pairs(kind, **fields):
    """A step of a trainer that makes all logits of a batch of pairs, and has no reference."""
    def step(model, _, ids, __):
        trainer = made_trainer(kind, ids.device, is_encoder_decoder=False, pad_token_id=0, padding_value=0, **fields)
        batch = {}
        for name, part in zip(("chosen", "rejected"), ids.chunk(2)):
            batch.update({f"{name}_input_ids": part, f"{name}_attention_mask": torch.ones_like(part),
                          f"{name}_labels": part.clone()})
        return trainer.get_batch_loss_metrics(model, batch)[0]
    return step


cpo = pairs(CPOTrainer, cpo_alpha=1.0, alpha=0.0, loss_type="sigmoid", label_smoothing=0)
simpo = pairs(CPOTrainer, cpo_alpha=0.0, alpha=0.0, loss_type="simpo", label_smoothing=0, simpo_gamma=0.5)
orpo = pairs(ORPOTrainer)


def reward(model, _, ids, __):
    """Of a model with the head of scores."""
    trainer = made_trainer(RewardTrainer, ids.device, model=model,
                           args=types.SimpleNamespace(center_rewards_coefficient=None))
    return trainer.compute_loss(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})


WIDENED = (cpo, simpo, orpo, reward)  # accelerate makes fp32 of what a forward under autocast returns

CASES = (  # name, step, sequences, has a reference, of LoRA
    ("dpo", dpo, 2 * PAIRS, True, False),
    ("dpo-precomputed", dpo, 2 * PAIRS, False, False),
    ("dpo-lora", dpo, 2 * PAIRS, True, True),
    ("grpo", grpo, PAIRS, False, False),
    ("grpo-beta", grpo, PAIRS, True, False),
    ("rloo", rloo, PAIRS, True, False),
    ("rloo-lora", rloo, PAIRS, True, True),
    ("distillation", distillation, PAIRS, True, False),
    ("kto", kto, PAIRS, True, False),
    ("kto-precomputed", kto, PAIRS, False, False),
    ("kto-lora", kto, PAIRS, True, True),
    ("cpo", cpo, 2 * PAIRS, False, False),
    ("cpo-lora", cpo, 2 * PAIRS, False, True),
    ("simpo", simpo, 2 * PAIRS, False, False),
    ("simpo-lora", simpo, 2 * PAIRS, False, True),
    ("orpo", orpo, 2 * PAIRS, False, False),
    ("orpo-lora", orpo, 2 * PAIRS, False, True),
)


def headed(model, step=None):
    """The model with the head of TRL's trainer; without a step that of a reference."""
    outputs = {kto: ("log_probs", "entropy", "mean_logits"), rloo: ("log_probs", "entropy")}
    utils.add_fused_lm_head(model, outputs=outputs.get(step, ("log_probs",)))
    return model


def measure(config, step, sequences, has_reference, has_lora, checkpointing):
    """Bytes kept by a forward, and most bytes of a forward and backward, above those before."""
    model = headed(made(config), step)
    second = None
    if has_reference and not has_lora:
        second = frozen(headed(made(config)))
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if has_lora:
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        if checkpointing:
            model.enable_input_require_grads()
        model = peft.get_peft_model(model, peft.LoraConfig(r=RANK, target_modules=targets))
    if has_lora and step in WIDENED:
        model.forward = convert_outputs_to_fp32(model.forward)
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
