#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a step of a small model allocates under settings of PyTorch, peft and other optimizers, by
PyTorch's own profiler on a CPU.

tests/data/step_settings.csv has the figures, tests/methods/unit_settings compares them with
predictions:

    bench/torch_settings.py tests/data/configs/families/{llama,qwen3}.json > tests/data/step_settings.csv

Needs torch, torchao, transformers, peft, adam-mini and galore-torch; exits with 77 without them.
"""
import contextlib
import json
import os
import sys

try:
    import adam_mini  # noqa: F401
    import galore_torch  # noqa: F401
    import peft
    import torch
    import torchao.float8.float8_ops
    import transformers
    from transformers.optimization import Adafactor
except ImportError as error:
    print(f"torch_settings: {error}", file=sys.stderr)
    sys.exit(77)

import torch_parts
from torch_cases import DEFAULTS
from torch_families import highest, made, sizes

TOKENS = 128
RANK = 8

CASES = (
    "lora_rank=8 lora=peft use_dora=yes",
    "lora_rank=8 lora=peft use_dora=yes lora_dropout=0.05",
    "lora_rank=8 lora=peft use_dora=yes autocast=bf16",
    "peft_type=IA3 lora=peft",
    "peft_type=IA3 lora=peft autocast=bf16",
    "peft_type=VERA lora_rank=8 lora=peft",
    "peft_type=VERA lora_rank=8 lora=peft autocast=bf16",
    "peft_type=LN_TUNING lora=peft",
    "peft_type=LOHA lora_rank=8 lora=peft",
    "peft_type=LOHA lora_rank=8 lora=peft autocast=bf16",
    "peft_type=LOKR lora_rank=8 lora=peft",
    "peft_type=LOKR lora_rank=4 decompose_both=yes lora=peft",
    "peft_type=LOKR lora_rank=8 decompose_factor=4 lora=peft autocast=bf16",
    "peft_type=OFT lora=peft",
    "peft_type=OFT oft_block_size=16 block_share=yes lora=peft",
    "peft_type=OFT lora=peft autocast=bf16",
    "peft_type=BOFT lora=peft",
    "peft_type=BOFT boft_block_size=8 lora=peft autocast=bf16",
    "peft_type=PROMPT_TUNING num_virtual_tokens=32",
    "peft_type=P_TUNING num_virtual_tokens=32",
    "peft_type=P_TUNING num_virtual_tokens=32 encoder_hidden_size=512 autocast=bf16",
    "peft_type=PREFIX_TUNING num_virtual_tokens=32",
    "peft_type=PREFIX_TUNING num_virtual_tokens=32 encoder_hidden_size=512 prefix_projection=yes",
    "gradient_accumulation_steps=2",
    "logits=score num_labels=2",
    "logits=parts",
    "optimizer=adamw-foreach",
    "optimizer=adafactor",
    "optimizer=muon",
    "optimizer=muon weights_dtype=fp32",
    "optimizer=adam-mini weights_dtype=fp32",
    "optimizer=galore galore_rank=8",
    "optimizer=galore galore_rank=8 weights_dtype=fp32",
    "float8_recipe=tensorwise",
    "float8_recipe=rowwise",
    "float8_recipe=rowwise_with_gw_hp",
)


def scaled_product(a_data, a_scale, b_data, b_scale, output_dtype, use_fast_accum=False, **others):
    """torchao's addmm_float8_unwrapped as on a GPU: no scratch that only the CPU's product takes, scales by
    rows, which it lacks, and no copies where a product in bf16 is multiplied by fp32 in place."""
    del others
    inverse = [a_scale.reciprocal(), b_scale.reciprocal()]
    after = None
    if a_scale.shape == (a_data.shape[0], 1) and not use_fast_accum:
        after = inverse[0] * inverse[1]
        inverse = [inverse[0].new_ones(()), inverse[1].new_ones(())]
    output = torch.empty(a_data.shape[0], b_data.shape[1], dtype=output_dtype)
    del after
    return output


torchao.float8.float8_ops.addmm_float8_unwrapped = scaled_product


def settings_of(case):
    return dict(pair.split("=", 1) for pair in case.split())


def adapted(settings):
    return "lora_rank" in settings or "peft_type" in settings


def adapters(settings):
    return torch_parts.adapter_config({**DEFAULTS, "lora_rank": RANK, "lora_targets": "all", **settings})


def model_of(config, settings):
    model = made(config)
    if settings.get("logits") == "score":
        model.config.num_labels = int(settings["num_labels"])
        kind = transformers.AutoModelForSequenceClassification
        model = kind.from_config(model.config, attn_implementation="eager", dtype=torch.bfloat16)
    if settings.get("weights_dtype") == "fp32":
        model = model.float()
    if adapted(settings):
        model = peft.get_peft_model(model, adapters(settings))
        if "num_virtual_tokens" in settings:
            model.base_model.lm_head = torch.nn.Identity()
    model.train()
    if "float8_recipe" in settings:
        torch_parts.convert_to_float8(model, settings["float8_recipe"])
    if "checkpointing" in settings:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if adapted(settings):
            model.enable_input_require_grads()
    return model


def optimizers(model, settings):
    name = settings.get("optimizer")
    if name == "adamw-foreach":
        return [torch.optim.AdamW(model.parameters(), foreach=True)]
    if name == "adafactor":
        return [Adafactor(model.parameters(), scale_parameter=False, relative_step=False, lr=1e-3)]
    return [torch_parts.optimizer_by_names(model, name, RANK, 1e-3)] if name else []


def kind_caches(settings):
    return settings["peft_type"] == "PREFIX_TUNING"


def trained(model, settings):
    """Numbers that peft trains."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad) if adapted(settings) else 0


def measure(config, settings):
    """Bytes kept by a forward, most bytes of a forward and backward, bytes that the first step of the
    optimizer leaves, and most bytes of the second, above those before each; numbers that peft trains."""
    model = model_of(config, settings)
    ids = torch.randint(0, config["vocab_size"] - 1, (1, TOKENS))
    cast = "autocast" in settings or settings.get("weights_dtype") == "fp32"

    def forward():
        if settings.get("logits") == "score":
            return model(input_ids=ids, labels=torch.zeros(1, dtype=torch.long), use_cache=False).loss
        if settings.get("logits") == "parts":
            return torch_parts.loss_by_parts(model, ids)
        with torch.autocast("cpu", torch.bfloat16) if cast else contextlib.nullcontext():
            if "num_virtual_tokens" in settings:
                return model(input_ids=ids, use_cache=kind_caches(settings)).logits.mean()
            return model.base_model(input_ids=ids, use_cache=False)[0].mean() if not adapted(settings) \
                else model.base_model.model.model(input_ids=ids, use_cache=False).last_hidden_state.mean()

    bound = {"loss": forward()}
    bound["loss"].backward()

    def again():  # a training loop binds its loss anew
        bound["loss"] = forward()

    with contextlib.redirect_stdout(sys.stderr):  # Adam-mini tells of its blocks
        stepping = optimizers(model, settings)
        _, events = sizes(lambda: [optimizer.step() for optimizer in stepping])
        state, first = highest(0, events)
        _, events = sizes(lambda: [optimizer.step() for optimizer in stepping])
        _, second = highest(0, events)
    model.zero_grad(set_to_none=True)
    before = 0
    if "gradient_accumulation_steps" in settings:
        again()
        bound["loss"].backward()
        before = sum(p.grad.numel() * p.grad.element_size() for p in model.parameters() if p.grad is not None)
    _, events = sizes(again)
    kept, most = highest(before, events)
    _, events = sizes(bound["loss"].backward)
    _, most_backward = highest(kept, events)
    return kept, max(most, most_backward), state, first, second, trained(model, settings)


def main():
    print("# What a step of small models allocates under settings, by bench/torch_settings.py: "
          f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}, "
          f"peft {peft.__version__}, on a CPU, {TOKENS} tokens, bf16, eager attention.")
    print("# kept_bytes, peak_bytes: of forward and backward, above those before the step. state_bytes: what the"
          " first step of the optimizer leaves; first_bytes, second_bytes: most of its first and second. trained: numbers that peft trains.")
    print("config,settings,kept_bytes,peak_bytes,state_bytes,first_bytes,second_bytes,trained")
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        name = os.path.splitext(os.path.basename(path))[0]
        for case in CASES:
            print(name, case, *measure(config, settings_of(case)), sep=",", flush=True)


if __name__ == "__main__":
    main()
