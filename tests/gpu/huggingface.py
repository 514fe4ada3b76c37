# SPDX-License-Identifier: Apache-2.0
"""Compares training steps with Hugging Face transformers: huggingface.py BACKEND [MODEL [CONTEXT]]

Small random models are saved by transformers and read by `tidemark run --weights`: the loss of a step and
every gradient must be those of PyTorch in fp32. Then tidemark trains, saves, and transformers must find
the same loss in what was saved. With MODEL, a config.json or a directory that holds one, one model of
that shape. Prints TAP; exits with 77 where something is missing.
"""

import json
import os
import subprocess
import sys
import tempfile

try:
    import numpy
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError as missing:
    print(f"no module {missing.name}: this test needs numpy, torch, transformers and safetensors")
    sys.exit(77)

BACKEND = sys.argv[1]
if BACKEND == "cuda" and not torch.cuda.is_available():
    print("no GPU")
    sys.exit(77)
DEVICE = "cuda" if BACKEND == "cuda" else "cpu"
FP32 = [f"dtypes.{name}=fp32" for name in
        ("weights", "activations", "kv", "kv_gradients", "gradients", "logits")]
# loss (relative), 1 - cosine of a gradient, by dtype of what a schedule stores
BOUNDS = {"fp32": (1e-6, 1e-9), "bf16": (5e-3, 1e-3)}
SMALL = {"num_hidden_layers": 3, "hidden_size": 256, "intermediate_size": 448, "vocab_size": 320,
         "max_position_embeddings": 4096, "initializer_range": 0.05}

WINDOW = 70

# model_type, heads, KV heads, head dim, tied, dtype of the files, their size, what a schedule stores, and who has a
# sliding window: nobody, the config, or in its place the schedule's selector
CASES = [
    ("llama", 4, 2, 64, False, "bfloat16", "50GB", "bf16", None),
    ("llama", 2, 2, 128, True, "float32", "1MB", "fp32", None),
    ("qwen2", 4, 1, 64, True, "bfloat16", "1MB", "bf16", None),
    ("qwen2", 6, 2, 64, False, "float32", "50GB", "fp32", None),
    ("qwen3", 4, 2, 128, False, "bfloat16", "1MB", "bf16", None),
    ("qwen3", 8, 2, 64, True, "float16", "50GB", "fp32", None),
    ("qwen3", 4, 4, 64, True, "float32", "1MB", "bf16", None),
    ("llama", 8, 1, 64, True, "float16", "50GB", "bf16", None),
    ("mistral", 4, 2, 64, False, "bfloat16", "1MB", "bf16", "config"),
    ("mistral", 4, 2, 64, False, "float32", "50GB", "fp32", "selector"),
    ("mistral", 2, 1, 128, True, "bfloat16", "50GB", "bf16", "selector"),
    ("qwen2", 4, 2, 64, False, "float32", "1MB", "fp32", "config"),  # in the upper layers
]


def tidemark(*words):
    ran = subprocess.run(["tidemark", *map(str, words)], capture_output=True, text=True)
    if ran.returncode != 0:
        raise RuntimeError(f"tidemark {' '.join(map(str, words))}: {ran.stderr.strip()}")
    return ran.stdout


def plan(output, model, context, optimizer, sets):
    words = [word for pair in sets for word in ("--set", pair)]
    tidemark("plan", model, "--context", context, "--machine", "h200-published", "--optimizer", optimizer,
             "-o", output, "--force", *words)


def run(schedule, text, *words):
    out = tidemark("run", schedule, "--backend", BACKEND, "--tokens", text, "--json", *words)
    return json.loads(out)["runs"][0]


def make_model(config, folder, dtype, shard):
    """A random model, norms and biases too, saved by transformers."""
    torch.manual_seed(1)
    with torch.device(DEVICE), torch.no_grad():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)


def forget_window(folder):
    """The same model as tidemark shall see it: no window."""
    with open(f"{folder}/config.json", encoding="utf-8") as file:
        config = json.load(file)
    config.pop("layer_types", None)
    config["sliding_window"] = None
    copy = f"{folder}-dense"
    os.mkdir(copy)
    for name in os.listdir(folder):
        if name != "config.json":
            os.symlink(f"{folder}/{name}", f"{copy}/{name}")
    with open(f"{copy}/config.json", "w", encoding="utf-8") as file:
        json.dump(config, file)
    return copy


def remember_window(folder, hf):
    """What tidemark saved, with the config of `hf`."""
    with open(f"{hf}/config.json", encoding="utf-8") as file:
        config = file.read()
    with open(f"{folder}/config.json", "w", encoding="utf-8") as file:
        file.write(config)


def reference(folder, tokens, gradients):
    """Loss of PyTorch in fp32 on all tokens, and its gradients by name."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                 attn_implementation="sdpa").to(DEVICE)
    tokens = tokens.to(DEVICE)
    logits = model(tokens[None, :-1], use_cache=False).logits[0]
    loss = torch.nn.functional.cross_entropy(logits, tokens[1:])
    if gradients:
        loss.backward()
    return loss.item(), {name: p.grad.cpu() for name, p in model.named_parameters()
                         if p.grad is not None}


def cosine(a, b):
    a, b = a.double().flatten(), b.double().flatten()
    return (a @ b / (a.norm() * b.norm())).item()


def compare(config, dtype, shard, stored, context, chunk, by_selector=False):
    """Returns what is wrong, and a line of figures."""
    bound_loss, bound_cosine = BOUNDS[stored]
    wrong = []
    sets = [f"chunk={chunk}"] + (FP32 if stored == "fp32" else [])
    with tempfile.TemporaryDirectory(dir=os.environ.get("TDM_SCRATCH")) as folder:
        hf, text = f"{folder}/hf", f"{folder}/tokens.npy"
        make_model(config, hf, dtype, shard)
        ours_of = hf
        if by_selector:
            ours_of = forget_window(hf)
            sets = sets + ["selector=window", f"selector.window={WINDOW}"]
        torch.manual_seed(2)
        # one token more than the context: there is one place where the step can begin
        tokens = torch.randint(0, config.vocab_size, [context + 1])
        numpy.save(text, tokens.numpy())

        plan(f"{folder}/gradients.json", ours_of, context, "none", sets)
        ours = run(f"{folder}/gradients.json", text, "--weights", ours_of, "--save-gradients",
                   f"{folder}/gradients")["first_loss"]
        loss, gradients = reference(hf, tokens, True)
        error = abs(ours / loss - 1)
        if not error <= bound_loss:
            wrong.append(f"loss {ours}, transformers {loss}")
        mine = load_file(f"{folder}/gradients/gradients.safetensors")
        if mine.keys() != gradients.keys():
            wrong.append(f"gradients of {sorted(mine.keys() ^ gradients.keys())}")
        cosines = {name: cosine(mine[name], gradients[name]) for name in mine}
        worst = min(cosines, key=cosines.get)
        norms = max(abs(mine[name].norm() / gradients[name].norm() - 1).item() for name in mine)
        for name, value in cosines.items():
            if not value >= 1 - bound_cosine:
                wrong.append(f"{name}: cosine {value:.6f}")

        plan(f"{folder}/train.json", ours_of, context, "adamw",
             sets + ["optimizer.learning_rate=1e-3"])
        run(f"{folder}/train.json", text, "--weights", ours_of, "--steps", 4, "--save",
            f"{folder}/trained", "--save-shard", "1M" if shard == "1MB" else "5G")
        before = ours
        ours = run(f"{folder}/gradients.json", text, "--weights", f"{folder}/trained")["first_loss"]
        if by_selector:
            remember_window(f"{folder}/trained", hf)
        loss, _ = reference(f"{folder}/trained", tokens, False)
        trained = abs(ours / loss - 1)
        if not trained <= bound_loss:
            wrong.append(f"loss after training {ours}, transformers {loss}")
        if not ours < before:
            wrong.append(f"loss after training {ours}, before {before}")
    return wrong, (f"loss {error:.1e} and {trained:.1e} off; cosines from {worst} "
                   f"1 - {1 - cosines[worst]:.1e}; norms {norms:.1e} off")


def check(number, title, *case):
    wrong, figures = compare(*case)
    for line in wrong:
        print(f"# {line}")
    print(f"{'not ok' if wrong else 'ok'} {number} - {title}: {figures}", flush=True)
    return not wrong


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    if len(sys.argv) > 2:
        config = AutoConfig.from_pretrained(sys.argv[2])
        context = int(sys.argv[3]) if len(sys.argv) > 3 else 2048
        print("1..1")
        return check(1, f"{sys.argv[2]}, {context} tokens", config, "bfloat16", "400MB", "bf16",
                     context, context // 4)
    cases = CASES if os.environ.get("TDM_LONG") == "1" else CASES[:3]
    print(f"1..{len(cases)}")
    good = True
    for number, (kind, heads, kv, dim, tied, dtype, shard, stored, window) in enumerate(cases, 1):
        config = AutoConfig.for_model(kind, num_attention_heads=heads, num_key_value_heads=kv,
                                      head_dim=dim, tie_word_embeddings=tied, **SMALL)
        if kind == "mistral":
            config.sliding_window = WINDOW
        if kind == "qwen2" and window is not None:
            config.use_sliding_window, config.sliding_window = True, WINDOW
            config.max_window_layers = 1
            config.layer_types = ["full_attention"] + ["sliding_attention"] * 2
        if kind == "qwen2":  # its heads share the hidden size
            config.hidden_size = heads * dim
            del config.head_dim
        good &= check(number, f"{BACKEND}, {kind}, {heads}/{kv} heads of {dim}, "
                      f"{'tied' if tied else 'untied'}, {dtype} in files of {shard}, {stored}"
                      + (f", window by the {window}" if window else ""), config, dtype, shard, stored,
                      300, 32 if window else 128, window == "selector")
    return good


sys.exit(0 if main() else 1)
