#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention by cuDNN through PyTorch, for bench/attention_bench to measure beside ours, in the same minutes.

Reads lines "tokens keys query_heads kv_heads head_dim seconds", and answers each with milliseconds forward in bursts and
held, backward in bursts and held; or with "-" and why there are none. As many keys as tokens: causal; more: all see
all, since PyTorch's causal mask of a rectangle begins at its other end. Needs torch with cuDNN and a GPU.
"""
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def timed(call, count):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / count


def burst(call):
    """As meter_burst() of bench/gpu_meter.h: the device clears memory while the host launches the call."""
    times = []
    cleared = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    timed(call, 1)
    for _ in range(5):
        time.sleep(0.02)
        cleared.zero_()
        times.append(timed(call, 1))
    return sorted(times)[2]


def held(call, seconds):
    """As meter_held(): a third of the time does not count, then the median of five parts."""
    count = max(1, min(4096, int(1000 * seconds / 5 / timed(call, 1))))
    timed(call, (count * 5 + 2) // 3)
    return sorted(timed(call, count) for _ in range(5))[2]


def measure(tokens, keys, query_heads, kv_heads, head_dim, seconds):
    def tensor(heads, length):
        x = torch.randn(1, heads, length, head_dim, device="cuda", dtype=torch.bfloat16)
        return x.requires_grad_()

    q, k, v = tensor(query_heads, tokens), tensor(kv_heads, keys), tensor(kv_heads, keys)
    d_out = torch.randn_like(q)

    def forward():
        return F.scaled_dot_product_attention(q, k, v, is_causal=tokens == keys, enable_gqa=True)

    def only_forward():
        with torch.no_grad():
            forward()

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        out = forward()

        def backward():
            torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True)

        return burst(only_forward), held(only_forward, seconds), burst(backward), held(backward, seconds)


for line in sys.stdin:
    fields = line.split()
    try:
        result = measure(*(int(x) for x in fields[:5]), float(fields[5]))
        print(*("%.6f" % x for x in result), flush=True)
    except Exception as error:  # whatever cuDNN cannot do
        print("-", str(error).splitlines()[0], flush=True)
