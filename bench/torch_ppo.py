#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A step of TRL's PPOTrainer for bench/torch_peaks.py, and what its micro-batches allocate, by PyTorch's own profiler on a CPU, as bench/torch_second.py
does it for other trainers: policy and value model in TRL's own module, its forward and log-softmax. PPO went from TRL
after 1.4, so this needs another TRL than that script. tests/data/ppo_steps.csv has the figures, tests/methods/unit_second
compares them with predictions:

    OMP_NUM_THREADS=1 ONEDNN_MAX_CPU_ISA=AVX2 \\
        bench/torch_ppo.py tests/data/configs/families/{llama,qwen3,gemma2}.json > tests/data/ppo_steps.csv

Needs torch, transformers, trl 1.4 and peft; exits with 77 without them.
"""
import contextlib
import gc
import json
import os
import sys

try:
    import peft
    import torch
    import transformers
    import trl
    from accelerate.utils import convert_outputs_to_fp32
    from trl.experimental.utils import get_reward
    from trl.experimental.ppo.ppo_trainer import PolicyAndValueWrapper, empty_cache, forward, masked_mean
    from trl.trainer.utils import pad, selective_log_softmax
except ImportError as error:
    print(f"torch_ppo: {error}", file=sys.stderr)
    sys.exit(77)

from torch_families import highest, made, sizes

TOKENS = 64
SEQUENCES = 2
RANK = 8
PAD = 0
CASES = (  # name, tokens of a response, LoRA, autocast
    ("ppo", 63, False, False),
    ("ppo-short", 16, False, False),
    ("ppo-lora", 32, True, True),
    ("ppo-autocast", 48, False, True),
)


def scorer(config):
    """A model of one score."""
    sizes_of = {key: value for key, value in config.items() if key != "architectures"}
    kind = sizes_of.pop("model_type")
    for key in list(sizes_of):
        if key.startswith("rope") or "token_id" in key or key in ("torch_dtype", "transformers_version"):
            del sizes_of[key]
    config = transformers.AutoConfig.for_model(kind, **sizes_of)
    config.num_labels, config.pad_token_id, config._attn_implementation = 1, PAD, "eager"
    return transformers.AutoModelForSequenceClassification.from_config(config, dtype=torch.bfloat16)


def micro_batch(model, ids, length):
    """PPOTrainer.train, one micro-batch: what its names refer to lives until the next one."""
    start = ids.shape[1] - length
    mask = torch.zeros(len(ids), length, dtype=torch.bool, device=ids.device)
    old = torch.zeros(len(ids), length, device=ids.device)
    output, values = forward(model, ids, PAD)
    logits = output.logits[:, start - 1 : -1]
    logits /= 0.7 + 1e-7
    probabilities = selective_log_softmax(logits, ids[:, start:])
    probabilities = torch.masked_fill(probabilities, mask, 1.0)
    values = torch.masked_fill(values[:, start - 1 : -1].squeeze(-1), mask, 0)
    clipped = torch.clamp(values, old - 0.2, old + 0.2)
    of_values = 0.5 * masked_mean(torch.max(torch.square(values - old), torch.square(clipped - old)), ~mask)
    ratio = torch.exp(probabilities - old)
    of_policy = masked_mean(torch.max(-old * ratio, -old * torch.clamp(ratio, 0.8, 1.2)), ~mask)
    return of_policy + 0.1 * of_values, output, logits


def rollouts(model, others, ids, length):
    """What PPOTrainer.train does before micro-batches, but that nothing is generated: scores of the policy are fp32,
    stacked and joined, and live as long as their name; the reference, the value and the reward model run."""
    with torch.no_grad():
        shape = len(ids), length, model.policy.config.vocab_size
        parts = [torch.zeros(shape, device=ids.device)]
        scores = torch.stack(parts, 1)
        del parts
        scores = pad([scores.view(shape)], padding_value=0)
        selective_log_softmax(scores.view(shape), ids[:, -length:])
        empty_cache()
        reference, reward = others
        with model.policy.disable_adapter() if reference is None else contextlib.nullcontext():
            output = forward(model.policy if reference is None else reference, ids, PAD)
        logits = output.logits[:, -length - 1 : -1]
        logits /= 0.7 + 1e-7
        selective_log_softmax(logits, ids[:, -length:])
        del output, logits
        empty_cache()
        for scorer_ in (model.value_model, reward):
            get_reward(scorer_, ids, PAD, ids.shape[1] - length)
        empty_cache()
    return scores


def step_of(case, build):
    """The policy with its value model, and a function (net, ids) -> loss."""
    said = case.set
    policy = build(None)
    value = build(None, trained=False, scores=True).requires_grad_(True).train()
    reference = None if case.lora and said["ref_model"] != "copy" else build(None, trained=False)
    reward = build(None, trained=False, scores=True)
    for other in (reference, reward):
        if other is not None:
            other.eval().requires_grad_(False)
    model = PolicyAndValueWrapper(policy, value)
    model.config = policy.config
    if case.casts:
        model.forward = convert_outputs_to_fp32(model.forward)
    held = {"names": None, "scores": None}

    def step(net, ids):
        length = ids.shape[1] - 1 if said["max_completion_length"] == "auto" else int(said["max_completion_length"])
        ids.clamp_(min=PAD + 1)
        held["names"] = None
        with torch.autocast(ids.device.type, enabled=False):
            held["scores"] = rollouts(model, (reference, reward), ids, length)
        held["names"] = micro_batch(net, ids, length)
        return held["names"][0]

    return model, step


def measure(config, length, has_lora, casts, checkpointing):
    """Bytes kept by a forward, and most bytes of a forward and backward, above those before."""
    policy = made(config)
    if checkpointing:
        policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if has_lora:
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        if checkpointing:
            policy.enable_input_require_grads()
        policy = peft.get_peft_model(policy, peft.LoraConfig(r=RANK, target_modules=targets))
    model = PolicyAndValueWrapper(policy, scorer(config))
    if casts:
        model.forward = convert_outputs_to_fp32(model.forward)
    model.train()
    ids = torch.randint(1, config["vocab_size"] - 1, (SEQUENCES, TOKENS))
    names = None

    def step():
        nonlocal names
        names = None  # TRL deletes them
        with torch.autocast("cpu", torch.bfloat16, enabled=casts):
            names = micro_batch(model, ids, length)

    sizes(step)
    sizes(lambda: names[0].backward())
    model.zero_grad(set_to_none=True)
    names = None
    gc.collect()
    _, events = sizes(step)
    kept, first = highest(0, events)
    _, events = sizes(lambda: names[0].backward())
    _, other = highest(kept, events)
    return kept, max(first, other)


def main():
    gc.disable()
    print("# What a micro-batch of TRL's PPO allocates, by bench/torch_ppo.py: "
          f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}, trl {trl.__version__}, "
          f"peft {peft.__version__}, on a CPU,")
    print(f"# {TOKENS} tokens, {SEQUENCES} sequences, bf16, eager attention, LoRA of rank {RANK} in fp32.")
    print("# kept_bytes: by the forward for the backward; peak_bytes: of both, above those before the step."
          " Gradients are freed before it.")
    print("config,case,response,checkpointing,kept_bytes,peak_bytes")
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        name = os.path.splitext(os.path.basename(path))[0]
        for case, length, has_lora, casts in CASES:
            for checkpointing in (False, True):
                kept, peak = measure(config, length, has_lora, casts, checkpointing)
                print(name, case, length, "on" if checkpointing else "off", kept, peak, sep=",", flush=True)


if __name__ == "__main__":
    main()
