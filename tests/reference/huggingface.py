#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes huggingface.json: what Hugging Face transformers computes for small models.

    python3 tests/reference/huggingface.py > tests/reference/huggingface.json

Needs torch and transformers; the tests need only the file. Each case has a config, sequences, and
losses before each of four AdamW steps. Weights and tokens are a hash of their place, so that the
test makes the same ones without a file of them. Everything runs in double: transformers asks for
float32 by name in its norms, softmax and RoPE, so the name is made to mean float64 before it loads.
"""

import json
import sys

import torch

torch.float32 = torch.float = torch.float64
torch.Tensor.float = torch.Tensor.double
torch.set_default_dtype(torch.float64)

import transformers  # noqa: E402
from transformers.models.llama import LlamaConfig, LlamaForCausalLM  # noqa: E402
from transformers.models.ministral import MinistralConfig, MinistralForCausalLM  # noqa: E402
from transformers.models.mistral import MistralConfig, MistralForCausalLM  # noqa: E402
from transformers.models.qwen2 import Qwen2Config, Qwen2ForCausalLM  # noqa: E402
from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM  # noqa: E402

KINDS = {
    "LlamaForCausalLM": ("llama", LlamaConfig, LlamaForCausalLM),
    "MinistralForCausalLM": ("ministral", MinistralConfig, MinistralForCausalLM),
    "MistralForCausalLM": ("mistral", MistralConfig, MistralForCausalLM),
    "Qwen2ForCausalLM": ("qwen2", Qwen2Config, Qwen2ForCausalLM),
    "Qwen3ForCausalLM": ("qwen3", Qwen3Config, Qwen3ForCausalLM),
}

MASK = (1 << 64) - 1
LEARNING_RATE, BETA1, BETA2, EPSILON, DECAY, STEPS = 0.02, 0.9, 0.95, 1e-4, 0.1, 4

# In the order of enum tdm_role, whose numbers go into the hash of a weight.
LAYER = {
    "input_layernorm.weight": 0, "self_attn.q_proj.weight": 1, "self_attn.q_proj.bias": 2,
    "self_attn.k_proj.weight": 3, "self_attn.v_proj.weight": 4, "self_attn.k_proj.bias": 5,
    "self_attn.v_proj.bias": 6, "self_attn.o_proj.weight": 7, "post_attention_layernorm.weight": 8,
    "mlp.gate_proj.weight": 9, "mlp.up_proj.weight": 10, "mlp.down_proj.weight": 11,
    "self_attn.q_norm.weight": 15, "self_attn.k_norm.weight": 16,
}
OTHERS = {"model.embed_tokens.weight": 12, "model.norm.weight": 13, "lm_head.weight": 14}

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
CASES = [
    # architecture, tied, layers, hidden, intermediate, heads, KV heads, head dim, RoPE
    ("LlamaForCausalLM", False, 2, 24, 40, 4, 2, 6, None),
    ("LlamaForCausalLM", False, 2, 24, 40, 6, 2, 8, {"rope_type": "linear", "factor": 3.0}),
    ("LlamaForCausalLM", True, 3, 16, 28, 4, 4, 16, LLAMA3),
    ("LlamaForCausalLM", True, 1, 18, 12, 3, 1, 12, YARN),
    ("Qwen2ForCausalLM", True, 2, 24, 32, 4, 2, 6, None),
    ("Qwen2ForCausalLM", False, 2, 32, 40, 8, 2, 4, {"rope_type": "linear", "factor": 2.0}),
    ("Qwen2ForCausalLM", False, 3, 24, 20, 2, 1, 12, LLAMA3),
    ("Qwen2ForCausalLM", True, 2, 36, 44, 6, 3, 6, YARN),
    ("Qwen3ForCausalLM", True, 2, 24, 32, 4, 2, 6, None),
    ("Qwen3ForCausalLM", False, 3, 20, 28, 6, 2, 8, YARN),
]
FULL, SLIDING = "full_attention", "sliding_attention"
WINDOWS = [
    # and fields that say which layers have a sliding window
    ("MistralForCausalLM", False, 2, 24, 40, 4, 2, 6, None, {"sliding_window": 7}),
    ("MistralForCausalLM", False, 2, 24, 40, 4, 2, 6, None, {"sliding_window": None}),
    ("MinistralForCausalLM", True, 3, 24, 32, 6, 3, 8, None,
     {"sliding_window": 4, "layer_types": [FULL, SLIDING, SLIDING]}),
    ("Qwen2ForCausalLM", False, 3, 24, 32, 4, 2, 6, None,
     {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    ("Qwen3ForCausalLM", True, 4, 20, 28, 4, 2, 8, YARN,
     {"use_sliding_window": True, "sliding_window": 3,
      "layer_types": [SLIDING, FULL, SLIDING, FULL]}),
]
LENGTHS, VOCABULARY, THETA = [19, 1, 40], 37, 100.0


def mix(*numbers):
    """Folds numbers into 64 bits with the finalizer of splitmix64."""
    z = 0
    for number in numbers:
        z = (z ^ number) + 0x9E3779B97F4A7C15 & MASK
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        z ^= z >> 31
    return z


def place(name):
    """(unit, role) of a tensor, the unit of what is in no layer being 1000."""
    if name in OTHERS:
        return 1000, OTHERS[name]
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    return int(layer), LAYER[rest]


def fill(parameter, unit, role):
    columns = parameter.shape[-1]
    norm = 1.0 if role in (0, 8, 13, 15, 16) else 0.0
    reach = 1.5 if role == 12 else 0.5 if parameter.dim() == 1 else 2 / columns**0.5
    values = [norm + reach * ((mix(unit, role, i) >> 11) * 2.0**-52 - 1)
              for i in range(parameter.numel())]
    with torch.no_grad():
        parameter.copy_(torch.tensor(values).view(parameter.shape))


def run(architecture, tied, layers, hidden, intermediate, heads, kv_heads, head_dim, rope,
        windows=None):
    model_type, kind, cls = KINDS[architecture]
    config = {
        "architectures": [architecture], "model_type": model_type,
        "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": intermediate,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
        "vocab_size": VOCABULARY, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        "rope_theta": THETA, "rope_scaling": rope, "tie_word_embeddings": tied,
        "hidden_act": "silu", **(windows or {}),
    }
    model = cls._from_config(kind(**json.loads(json.dumps(config))), attn_implementation="eager")
    model = model.double()
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float64
        fill(parameter, *place(name))
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}],
        lr=LEARNING_RATE, betas=(BETA1, BETA2), eps=EPSILON)
    losses = []
    for _ in range(STEPS):
        first, total = 0, 0
        for length in LENGTHS:
            at = range(first, first + length)
            tokens = torch.tensor([[mix(2000, t) % VOCABULARY for t in at]])
            targets = torch.tensor([mix(2001, t) % VOCABULARY for t in at])
            logits = model(tokens, use_cache=False).logits[0]
            assert logits.dtype == torch.float64
            total = total + torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
            first += length
        loss = total / first
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"config": config, "losses": losses}


json.dump({
    "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    "lengths": LENGTHS,
    "adamw": {"learning_rate": LEARNING_RATE, "beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON,
              "weight_decay": DECAY},
    "cases": [run(*case) for case in CASES + WINDOWS],
}, sys.stdout, indent=1)
print()
