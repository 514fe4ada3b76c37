#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a step of a small model of each family allocates, by PyTorch's own profiler on a CPU.

Eager attention runs the same operations on a CPU as on a GPU, so what a forward keeps and how far a
step peaks are those of a GPU, but for the scratch of kernels. Kernels that a CPU lacks (those of gated
DeltaNets and of Mamba-2) allocate what their sources do. tests/data/families.csv has the figures,
tests/methods/unit_families compares them with predictions:

    OMP_NUM_THREADS=1 bench/torch_families.py tests/data/configs/families/*.json > tests/data/families.csv

With transformers before 5 the names have its version (mixtral@4.57): experts were modules of their own.

With several threads products of a CPU take scratch that a GPU does not: OMP_NUM_THREADS=1.
Needs torch and transformers; exits with 77 without them.
"""
import importlib
import json
import os
import sys

try:
    import torch
    import transformers
    from torch.profiler import ProfilerActivity, profile
except ImportError as error:
    print(f"torch_families: {error}", file=sys.stderr)
    sys.exit(77)

TOKENS = 128


def dropout(x, p=0.5, training=True, inplace=False):
    """As on a GPU: the mask is of bytes."""
    return torch.native_dropout(x, p, training)[0] if training and p > 0 else x


torch.nn.functional.dropout = dropout


class Convolution(torch.autograd.Function):
    """What causal_conv1d's function allocates, without numbers."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, grad):
        _, weight = ctx.saved_tensors
        x = torch.empty_like(grad)
        return x, torch.empty_like(weight, dtype=torch.float32).to(weight.dtype)


class DeltaRule(torch.autograd.Function):
    """The same of flash-linear-attention's chunk_gated_delta_rule."""

    @staticmethod
    def states(k, v):
        heads, chunks = k.shape[2], -(-k.shape[1] // 64)
        return (torch.empty_like(k), torch.empty_like(v),
                k.new_empty(k.shape[0], chunks, heads, k.shape[-1], v.shape[-1]), torch.empty_like(v))

    @staticmethod
    def forward(ctx, q, k, v, g, beta):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        q, q_scale = torch.empty_like(q), torch.empty(q.shape[:-1], dtype=torch.float32)
        k, k_scale = torch.empty_like(k), torch.empty(k.shape[:-1], dtype=torch.float32)
        g = torch.empty_like(g)
        inverse = torch.empty(*k.shape[:-1], 64, dtype=k.dtype)
        states = DeltaRule.states(k, v)
        y = torch.empty_like(v)
        del states
        ctx.save_for_backward(q, q_scale, k, k_scale, v, g, beta, inverse)
        return y

    @staticmethod
    def backward(ctx, grad):
        q, _, k, _, v, g, beta, _ = ctx.saved_tensors
        states = DeltaRule.states(k, v)
        dv, dh = torch.empty_like(grad), torch.empty_like(states[2])
        dv = torch.empty_like(v)
        dq, dk = torch.empty_like(q), torch.empty_like(k)
        dg = torch.empty(-(-k.shape[-1] // 64), *g.shape, dtype=torch.float32)
        dw = torch.empty_like(states[0])
        dg = torch.empty_like(g)
        more_k, made_v, more_g, beta = torch.empty_like(k), torch.empty_like(v), torch.empty_like(g), \
            torch.empty_like(beta)
        dv = made_v
        dg = torch.empty_like(g)
        del more_g, more_k, dw, dh, states, made_v
        dq = torch.empty_like(q)
        dk = torch.empty_like(k)
        return dq, dk, dv, dg, beta


class MambaScan(torch.autograd.Function):
    """The same of mamba_ssm's mamba_split_conv1d_scan_combined, on a GPU of 132 multiprocessors."""
    MULTIPROCESSORS = 132

    @staticmethod
    def forward(ctx, zxbcdt, conv_weight, conv_bias, dt_bias, A, D, norm_weight, out_weight, chunk, groups):
        batch, tokens, _ = zxbcdt.shape
        heads, inner, width = D.shape[0], out_weight.shape[1], conv_weight.shape[0]
        ctx.sizes = batch, tokens, heads, inner, width, chunk, groups
        chunks, state = -(-tokens // chunk), (width - inner) // groups // 2
        xBC = zxbcdt.new_empty(batch, tokens, width)
        dt_out = torch.empty(batch, heads, chunks, chunk)
        dA = torch.empty(batch, heads, chunks, chunk)
        states = torch.empty(batch, chunks, inner, state)
        passed, final = zxbcdt.new_empty(batch, chunks, inner, state), torch.empty(batch, inner, state)
        del states
        cb = torch.empty(batch, chunks, groups, chunk, chunk)
        out = zxbcdt.new_empty(batch, tokens, inner)
        out_x, scales = out, None
        if norm_weight is None:
            out_x = zxbcdt.new_empty(batch, tokens, inner)
        del cb
        if norm_weight is not None:
            out = torch.empty_like(out_x)
            scales = torch.empty(groups * batch * tokens)
        out = torch.nn.functional.linear(out, out_weight)
        ctx.save_for_backward(zxbcdt, conv_weight, out_x, A, D, dt_bias, norm_weight, scales, out_weight)
        return out

    @staticmethod
    def backward(ctx, dout):
        zxbcdt, conv_weight, out, A, D, dt_bias, norm_weight, _, out_weight = ctx.saved_tensors
        batch, tokens, heads, inner, width, chunk, groups = ctx.sizes
        chunks, state = -(-tokens // chunk), (width - inner) // groups // 2
        again = torch.empty_like(out)
        xBC = zxbcdt.new_empty(batch, tokens, width)
        dzxbcdt = torch.empty_like(zxbcdt)
        dxBC = zxbcdt.new_empty(batch, tokens, width)
        dmade = torch.nn.functional.linear(dout, out_weight.t())
        dnorm = None
        if norm_weight is not None:
            dx = torch.empty_like(out)
            columns = 1
            while columns < inner // groups:
                columns *= 2
            warps = min(max(columns // 256, 1), 8)
            rows = -(-MambaScan.MULTIPROCESSORS * -(-4 // warps) // groups)
            dnorm = torch.empty(rows, inner).sum(0).to(norm_weight.dtype)

        def by_token(times=1):
            return torch.empty(times * batch * heads * chunks, chunk)

        def splits():
            per = max(min(-(-batch * chunks * heads // MambaScan.MULTIPROCESSORS), heads // groups), 1)
            return -(-(heads // groups) // per)

        def scan():
            dt_in = zxbcdt.new_empty(batch, tokens, heads)
            dt, dA = by_token(), by_token()
            cb = torch.empty(batch, chunks, groups, chunk, chunk)
            states = torch.empty(batch, chunks, inner, state)
            states, last = torch.empty(batch, chunks, inner, state), torch.empty(batch, inner, state)
            gated, tiles, dD = None, -(-chunk // 32), None
            if norm_weight is None:
                dD = torch.empty(tiles, batch, chunks, heads)
                gated, dz = torch.empty_like(out), torch.empty_like(out)
                dD = dD.sum((0, 1, 2)).to(D.dtype)
            dstates = torch.empty(batch, chunks, inner, state)
            narrow, converted = zxbcdt.new_empty(states.shape), zxbcdt.new_empty(states.shape)
            parts = torch.empty(batch, heads, chunks, -(-inner // heads * state // 64)).sum(-1)
            dstates, states = narrow, converted
            from_x = torch.zeros(tiles, batch, chunks, heads, 1)
            ddt = by_token()
            from_x = from_x.sum((0, 1, 2)).sum(-1).to(D.dtype)
            following, db = by_token(), torch.empty(batch, tokens, splits(), groups, state)
            db = db.sum(2)
            dc, previous = torch.empty(batch, tokens, splits(), groups, state), by_token()
            dc = dc.sum(2)
            dcb = torch.empty(batch, chunks, splits(), groups, chunk, chunk)
            dcb = dcb.sum(2)
            before = previous.flip([-1]).cumsum(-1).flip([-1])
            ddA = by_token(tiles).view(tiles, -1).sum(0)
            ddA += following.view(-1) + before.view(-1)
            return gated, torch.empty(heads), torch.empty(heads), from_x if dD is None else dD

        gated, dbias, dA, dD = scan()
        dweight = torch.empty_like(out_weight)
        dkernel, dkernel_bias = torch.zeros(conv_weight.shape), torch.zeros(width)
        return (dzxbcdt, dkernel.to(conv_weight.dtype), dkernel_bias.to(conv_weight.dtype), dbias.to(dt_bias.dtype), dA,
                dD, dnorm, dweight, None, None)


def mamba_scan(zxbcdt, conv_weight, conv_bias, dt_bias, A, D=None, chunk_size=None, rmsnorm_weight=None,
               outproj_weight=None, ngroups=1, **_):
    return MambaScan.apply(zxbcdt, conv_weight, conv_bias, dt_bias, A, D, rmsnorm_weight, outproj_weight, chunk_size,
                           ngroups)


def convolve(x, weight, *_, **__):
    return Convolution.apply(x, weight)


def delta_rule(q, k, v, g, beta, **_):
    return DeltaRule.apply(q, k, v, g, beta), None


def replace_kernels():
    """Puts these functions in place of kernels, in families that this version of transformers has."""
    mamba = {"mamba2_split_conv1d_scan_combined": mamba_scan}
    delta = {"causal_conv1d_fn": convolve, "torch_chunk_gated_delta_rule": delta_rule}
    kernels = {"qwen3_next": delta, "qwen3_5": delta, "qwen3_5_moe": delta,
               "lfm2": {"causal_conv1d_fn": convolve}, "lfm2_moe": {"causal_conv1d_fn": convolve},
               "falcon_h1": mamba, "granitemoehybrid": mamba, "nemotron_h": mamba}
    for family, functions in kernels.items():
        try:
            module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        except ImportError:
            continue
        for name, function in functions.items():
            setattr(module, name, function)


replace_kernels()


def made(config):
    """A model with random weights in bf16."""
    config = dict(config)
    kind = config.pop("model_type")
    config.pop("architectures")
    settings = transformers.AutoConfig.for_model(kind, **config)
    torch.manual_seed(0)
    kinds = transformers.AutoModelForImageTextToText if "vision_config" in config else transformers.AutoModelForCausalLM
    model = kinds.from_config(settings, attn_implementation="eager", dtype=torch.bfloat16)
    for parameter in tower(model):
        parameter.requires_grad_(False)
    return model


def tower(model):
    """The parameters of a vision tower."""
    return [parameter for name, parameter in model.named_parameters() if ".visual." in name]


def picture(config, ids):
    """Makes 16 of the ids those of a picture, and returns what the model takes of it."""
    if "vision_config" not in config:
        return {}
    ids[0, 3], ids[0, 4:20], ids[0, 20] = (
        config[key] for key in ("vision_start_token_id", "image_token_id", "vision_end_token_id"))
    vision = config["vision_config"]
    values = vision["in_channels"] * vision["temporal_patch_size"] * vision["patch_size"] ** 2
    return {"pixel_values": torch.randn(64, values), "image_grid_thw": torch.tensor([[1, 8, 8]]),
            "mm_token_type_ids": (ids == config["image_token_id"]).int()}


def sizes(run):
    """Bytes of all allocations and, negative, frees of a call, in order."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        result = run()
    found = []

    def visit(node):
        if node.tag == torch._C._profiler._EventType.Allocation:
            found.append((node.start_time_ns, node.extra_fields.alloc_size))
        for child in node.children:
            visit(child)

    for node in record.profiler.kineto_results.experimental_event_tree():
        visit(node)
    return result, [size for _, size in sorted(found, key=lambda event: event[0])]


def highest(live, events):
    most = live
    for size in events:
        live += size
        most = max(most, live)
    return live, most


def measure(config, loss, checkpointing):
    """Bytes kept by a forward, and most bytes of a forward and backward, above those before."""
    model = made(config)
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    special = min([config["vocab_size"] - 1] + [config[key] for key in config if key.endswith("_token_id")
                                                and "vision_config" in config])
    ids = torch.randint(0, special, (1, TOKENS))
    pixels = picture(config, ids)
    base = model.model if model.base_model is model else model.base_model

    def forward():
        if loss:
            return model(input_ids=ids, labels=ids, use_cache=False, **pixels).loss
        return base(input_ids=ids, use_cache=False, **pixels).last_hidden_state.mean()

    forward().backward()
    model.zero_grad(set_to_none=True)
    value, events = sizes(forward)
    kept, first = highest(0, events)
    _, events = sizes(value.backward)
    _, second = highest(kept, events)
    parameters = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in tower(model))
    return parameters, kept, max(first, second)


def main():
    print("# What a step of small models allocates, by bench/torch_families.py: "
          f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}, on a CPU, "
          f"{TOKENS} tokens, bf16, eager attention.")
    print("# kept_bytes: by the forward for the backward; peak_bytes: of both, above those before the step."
          " Gradients are freed before it.")
    print("# With checkpointing on, a CPU also keeps its random state, 5,056 bytes for each layer.")
    print("config,parameters,logits,checkpointing,kept_bytes,peak_bytes")
    major, minor = transformers.__version__.split(".")[:2]
    version = f"@{major}.{minor}" if int(major) < 5 else ""
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        name = os.path.splitext(os.path.basename(path))[0] + version
        for loss, checkpointing in ((False, False), (False, True), (True, False)):
            parameters, kept, peak = measure(config, loss, checkpointing)
            print(name, parameters, "hf" if loss else "base", "on" if checkpointing else "off", kept, peak,
                  sep=",", flush=True)


if __name__ == "__main__":
    main()
