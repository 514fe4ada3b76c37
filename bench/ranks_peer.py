#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of a Qwen2.5 shape in PyTorch on several GPUs, beside bench/ranks: FSDP2 and context parallelism.

    bench/ranks_peer.py [--gpus 2] [--context 32K,64K] [--layers N] [--optimizer none|adamw-bf16|adamw]
                        [--attention cudnn,flash] [--steps 3] [--timeout SECONDS] [--shape 7b|0.5b|tiny]
                        [--rotate allgather|alltoall] [--compile] [--device cuda|cpu] [--no-context-parallel]

One process a GPU. Layers are sharded by fully_shard and checkpointed; the sequence is divided by
torch.distributed.tensor.experimental.context_parallel with its causal balance; attention is cuDNN's, or
FlashAttention's where that fails; the head and the loss run over 4,096 tokens at a time, so no logits of all tokens
exist. Weights are random, nothing is downloaded. Optimizers: adamw-bf16 has weights, gradients and moments in bf16
(the least memory), adamw has them in fp32 and computes in bf16, none leaves gradients in bf16.

A context is a row: seconds of the fastest step after the first, tokens/s of all GPUs, and the peaks of each GPU
(allocated, reserved, and what the driver reports at the end). A row that fails or takes longer than SECONDS is
reported with its last lines, and the next one goes on. With RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its
environment (torchrun) it is one process of one row. Needs torch 2.7 or later; exit status 77 without it.
"""
import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

SHAPES = {  # layers, hidden, intermediate, query heads, KV heads, head dimension, vocabulary
    "7b": (28, 3584, 18944, 28, 4, 128, 152064),
    "0.5b": (24, 896, 4864, 14, 2, 64, 151936),
    "tiny": (2, 128, 256, 4, 2, 32, 512),
}
HEAD_TOKENS = 4096
OUT_OF_MEMORY = 3


def tokens_of(text):
    scale = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:].upper(), 1)
    return int(text[:-1] if scale > 1 else text) * scale


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--context", default="32K", help="tokens of the sequence; several with commas")
    parser.add_argument("--layers", type=int, default=0, help="layers; 0: those of the shape")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="7b")
    parser.add_argument("--optimizer", choices=("none", "adamw-bf16", "adamw"), default="adamw-bf16")
    parser.add_argument("--attention", default="cudnn,flash", help="tried in this order: cudnn, flash, math")
    parser.add_argument("--rotate", choices=("allgather", "alltoall"), default="allgather")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=300, help="seconds of a row")
    parser.add_argument("--compile", action="store_true", help="torch.compile each layer")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--no-context-parallel", action="store_true", help="each GPU has the whole sequence")
    return parser.parse_args()


# ---- one process of one row ----


def build(torch, args):
    """The model: a class for a layer, one for the whole, as plain modules."""
    nn, F = torch.nn, torch.nn.functional
    layers, hidden, inner, heads, kv_heads, dim, vocabulary = SHAPES[args.shape]
    layers = args.layers or layers

    def rotate(x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(hidden))

        def forward(self, x):
            return F.rms_norm(x, (hidden,), self.weight, 1e-6)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.mlp_norm = Norm(), Norm()
            self.q = nn.Linear(hidden, heads * dim)
            self.k = nn.Linear(hidden, kv_heads * dim)
            self.v = nn.Linear(hidden, kv_heads * dim)
            self.o = nn.Linear(heads * dim, hidden, bias=False)
            self.gate = nn.Linear(hidden, inner, bias=False)
            self.up = nn.Linear(hidden, inner, bias=False)
            self.down = nn.Linear(inner, hidden, bias=False)

        def forward(self, x, cos, sin):
            n, (batch, tokens) = self.norm(x), x.shape[:2]
            q = self.q(n).view(batch, tokens, heads, dim).transpose(1, 2)
            k = self.k(n).view(batch, tokens, kv_heads, dim).transpose(1, 2)
            v = self.v(n).view(batch, tokens, kv_heads, dim).transpose(1, 2)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            # context parallelism has no grouped heads
            k = k.repeat_interleave(heads // kv_heads, dim=1)
            v = v.repeat_interleave(heads // kv_heads, dim=1)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(y.transpose(1, 2).reshape(batch, tokens, heads * dim))
            n = self.mlp_norm(x)
            return x + self.down(F.silu(self.gate(n)) * self.up(n))

    class Head(nn.Module):
        """Sum of the losses of some rows."""

        def __init__(self):
            super().__init__()
            self.norm = Norm()
            self.out = nn.Linear(hidden, vocabulary, bias=False)

        def forward(self, x, labels):
            total = 0
            for rows, due in zip(x.flatten(0, 1).split(HEAD_TOKENS), labels.flatten().split(HEAD_TOKENS)):
                total = total + torch.utils.checkpoint.checkpoint(self.loss, rows, due, use_reentrant=False)
            return total

        def loss(self, rows, due):
            return F.cross_entropy(self.out(self.norm(rows)).float(), due, reduction="sum")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(vocabulary, hidden)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.head = Head()

        def forward(self, ids, labels, positions):
            scale = 1e6 ** (-torch.arange(0, dim, 2, device=ids.device, dtype=torch.float32) / dim)
            angles = positions[0, :, None].float() * scale[None, :]
            x = self.embed(ids)
            cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
            for layer in self.layers:
                x = layer(x, cos, sin)
            return self.head(x, labels)

    return Model, vocabulary


def worker(args):
    import torch
    import torch.distributed as dist
    import torch.utils.checkpoint
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.attention import SDPBackend, sdpa_kernel

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cuda = args.device == "cuda"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    mesh = init_device_mesh(args.device, (world,))
    context = tokens_of(args.context)
    stored = torch.float32 if args.optimizer == "adamw" else torch.bfloat16
    Model, vocabulary = build(torch, args)
    with torch.device("meta"):
        model = Model().to(stored)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32 if stored == torch.float32 else None)
    for i, layer in enumerate(model.layers):
        layer = checkpoint_wrapper(layer, preserve_rng_state=False)
        if args.compile:
            layer.compile()
        model.layers[i] = layer
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model.head, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)
    torch.manual_seed(rank)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            local.fill_(1) if "norm" in name else local.zero_() if name.endswith("bias") else local.normal_(0, 0.02)
    optimizer = None
    if args.optimizer != "none":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=cuda)

    kernels = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}
    divided = world > 1 and not args.no_context_parallel
    if divided:
        from torch.distributed.tensor.experimental import _attention

        with contextlib.suppress(Exception):  # the default where it is not known
            _attention.set_rotate_method(args.rotate)

    def step(number):
        generator = torch.Generator().manual_seed(number)
        ids = torch.randint(vocabulary, (1, context + 1), generator=generator).to(device)
        ids, labels = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        positions = torch.arange(context, device=device)[None].contiguous()
        buffers = [ids, labels, positions]
        around = contextlib.nullcontext()
        if divided:
            around = _attention.context_parallel(
                mesh, buffers=buffers, buffer_seq_dims=[1, 1, 1], no_restore_buffers=set(buffers)
            )
        with around, sdpa_kernel(kernels[args.attention]):
            loss = model(ids, labels, positions) / ids.shape[1]
            loss.backward()
        if optimizer is not None:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        return loss.detach()

    seconds = []
    try:
        for number in range(args.steps):
            if cuda:
                torch.cuda.synchronize()
            dist.barrier()
            began = time.monotonic()
            loss = step(number)
            if cuda:
                torch.cuda.synchronize()
            dist.barrier()
            seconds.append(time.monotonic() - began)
    except torch.OutOfMemoryError as error:
        print(f"rank {rank}: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
        os._exit(OUT_OF_MEMORY)  # the others may wait in a collective
    mine = [0, 0, 0]
    if cuda:
        free, total = torch.cuda.mem_get_info()
        mine = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), total - free]
    peaks = [None] * world
    dist.all_gather_object(peaks, mine)
    losses = [None] * world
    dist.all_gather_object(losses, float(loss))
    if rank == 0:
        best = min(seconds[1:] or seconds)
        print("ROW " + json.dumps({
            "seconds": best, "tokens_per_second": context / best, "all_seconds": seconds, "peaks": peaks,
            "loss": sum(losses) / world, "torch": torch.__version__,
            "gpu": torch.cuda.get_device_name() if cuda else "cpu",
        }), flush=True)  # fmt: skip
    dist.barrier()
    dist.destroy_process_group()


# ---- all rows ----


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def kill(processes):
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for process in processes:
        process.wait()


def run_row(args, context, attention):
    """Returns the row's figures, or why there are none."""
    port = free_port()
    command = [
        sys.executable, os.path.abspath(__file__), "--context", context, "--attention", attention,
        "--layers", str(args.layers), "--shape", args.shape, "--optimizer", args.optimizer, "--rotate", args.rotate,
        "--steps", str(args.steps), "--device", args.device,
    ] + ["--compile"] * args.compile + ["--no-context-parallel"] * args.no_context_parallel  # fmt: skip
    processes, files = [], []
    for rank in range(args.gpus):
        environment = dict(
            os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(args.gpus), MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port), NCCL_NVLS_ENABLE="0", TOKENIZERS_PARALLELISM="false",
            PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True", PYTORCH_ALLOC_CONF="expandable_segments:True",
        )  # fmt: skip
        files.append(tempfile.TemporaryFile(mode="w+", errors="replace"))
        processes.append(
            subprocess.Popen(command, env=environment, stdout=files[-1], stderr=subprocess.STDOUT, start_new_session=True)
        )
    ends = time.monotonic() + args.timeout
    late = False
    while any(process.poll() is None for process in processes):
        late = time.monotonic() > ends
        if late or any(process.poll() not in (None, 0) for process in processes):
            time.sleep(0 if late else 2)  # the others may have to say something too
            break
        time.sleep(0.2)
    kill(processes)
    codes = [process.returncode for process in processes]
    texts = []
    for file in files:
        file.seek(0)
        texts.append(file.read())
        file.close()
    for line in texts[0].splitlines():
        if line.startswith("ROW ") and not late:
            return json.loads(line[4:]), ""
    if OUT_OF_MEMORY in codes:
        return None, "out of memory"
    failed = next((i for i, code in enumerate(codes) if code > 0), 0)
    lines = [line for line in texts[failed].splitlines() if line.strip()]
    return None, (f"longer than {args.timeout:g} s; " if late else "") + " | ".join(lines[-4:])[-1200:]


def main():
    args = arguments()
    if "RANK" in os.environ:
        worker(args)
        return 0
    try:
        import importlib.util

        missing = importlib.util.find_spec("torch") is None
    except ImportError:
        missing = True
    if missing:
        print("bench/ranks_peer.py: no torch", file=sys.stderr)
        return 77
    layers = args.layers or SHAPES[args.shape][0]
    print(f"PyTorch, FSDP2 and context parallelism: {args.shape} shape, {layers} layers, {args.optimizer}, {args.gpus} GPUs")
    print(f"{'context':>8} {'attention':>9} {'seconds':>9} {'tokens/s':>9} {'allocated':>9} {'reserved':>9} {'used':>9}  GiB of the fullest GPU")
    failures = 0
    for context in args.context.split(","):
        for attention in args.attention.split(","):
            row, why = run_row(args, context, attention)
            if row is not None:
                most = [max(peak[i] for peak in row["peaks"]) / (1 << 30) for i in range(3)]
                print(f"{context:>8} {attention:>9} {row['seconds']:9.3f} {row['tokens_per_second']:9.0f} "
                      f"{most[0]:9.2f} {most[1]:9.2f} {most[2]:9.2f}  loss {row['loss']:.4f}, {row['gpu']}, "
                      f"torch {row['torch']}", flush=True)  # fmt: skip
                break
            print(f"{context:>8} {attention:>9} failed: {why}", flush=True)
            if why == "out of memory":
                break
        failures += row is None
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
