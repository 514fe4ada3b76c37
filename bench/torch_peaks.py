#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peak memory of real training steps of Hugging Face models, for bench/accuracy to compare predictions with.

    bench/torch_peaks.py --list
    bench/torch_peaks.py --rows 1gpu|2gpu --output ROWS.csv [--only ID,ID] [--seconds N]
    bench/torch_peaks.py --rows records --output FOLDER
    bench/torch_peaks.py --rows 1gpu|2gpu --predict TIDEMARK --output PREDICTIONS.csv
    bench/torch_peaks.py --rows 1gpu|2gpu --jobs 10 --predictions PREDICTIONS.csv --output ROWS.csv

Cases are in bench/torch_peaks.cases. Each is a process of its own (two with two GPUs) on GPUs that nobody else
uses: random weights, three steps of forward, loss, backward, optimizer step and zero_grad(set_to_none=True) on random
tokens, peaks reset before each step. Rows have the columns of tests/data/measured_peaks.csv and are written as soon
as a case is done; a case that fails does not stop the others. Records are the allocator's own events of one step, as
tests/data/torch_events has them. Needs torch, transformers, GPUs and the libraries that cases name (peft, bitsandbytes,
torchao, galore-torch, adam-mini, trl, cut-cross-entropy); exit status 77 without. Where torchao is, transformers imports
it, and it starts CUDA, so that processes are started anew in place of being forked.
"""
import argparse
import datetime
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # GPUs are counted without a context
os.environ.setdefault("TORCH_SYMBOLIZE_MODE", "fast")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
try:
    import torch
    import transformers
except ImportError as missing:
    torch, absent = None, missing

import torch_parts
from torch_cases import COLUMNS, Case, predict, read_cases, read_predictions

STEPS = 3
MIB = 1 << 20


# ---- the model ----


def materialise(model, device, large_values=False):
    """Memory for a model of the meta device, parameter by parameter in the order in which model.to("cuda") would move
    them; tied parameters stay one. Small random numbers; biases of zeros, as with random ones
    all tokens choose the same experts; buffers of ones, which are always on the GPU."""
    made = {}
    def on_gpu(tensor, random, constant=None):
        if torch_parts.is_quantized(tensor):
            return torch_parts.quantized(tensor, large_values)
        if id(tensor) not in made:
            with torch.no_grad():
                new = torch.empty_like(tensor, device=device if random else torch_parts.DEVICE)
                local = new.to_local() if hasattr(new, "to_local") else new
                local.normal_(0, 0.02) if constant is None else local.fill_(constant)
            made[id(tensor)] = (tensor, torch.nn.Parameter(new, tensor.requires_grad) if random else new)
        return made[id(tensor)][1]
    def visit(module):
        for child in module.children():
            visit(child)
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = on_gpu(parameter, True, 0 if name == "bias" else None)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = on_gpu(buffer, False, 1)
    visit(model)


class Adapter(torch.nn.Module if torch else object):
    """LoRA without a library: adapters in the dtype of the weights."""

    def __init__(self, base, rank):
        super().__init__()
        dtype = base.weight.dtype if base.weight.is_floating_point() else torch.bfloat16
        empty = lambda rows, columns: torch.nn.Parameter(
            torch.empty(rows, columns, device=base.weight.device, dtype=dtype).normal_(0, 0.01))
        self.base, self.down, self.up = base, empty(rank, base.in_features), empty(base.out_features, rank)

    def forward(self, x):
        linear = torch.nn.functional.linear
        return self.base(x) + linear(linear(x, self.down), self.up) * 2.0


def add_adapters(model, case):
    targets = case.set["lora_targets"].split(",")
    if case.set["lora"] == "peft" or case.set["peft_type"] != "LORA":
        return torch_parts.peft_model(model, case)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    if case.set["checkpointing"] != "off":
        model.enable_input_require_grads()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in targets:
                setattr(module, name, Adapter(child, case.lora))
    return model


def shard(model, case):
    """fully_shard on every layer, with the checkpoint inside of it, and on the whole; with units=layers+ends as
    torchtitan does it: also on the embedding, and on last norm and head, together where their weights are tied.
    reshard_after_forward=default is PyTorch's None; of units of the ends it is torchtitan's default, which keeps
    what the backward begins with."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    said = {"yes": True, "no": False, "default": None}[case.set["reshard_after_forward"]]
    settings = {}
    reduced = {"weights": torch.float32 if case.fp32 else None, "bf16": torch.bfloat16, "fp32": torch.float32}
    if case.fp32 or case.set["reduce_dtype"] != "weights":
        settings["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=reduced[case.set["reduce_dtype"]])
    if case.set["offload_policy"] == "cpu":
        settings["offload_policy"] = CPUOffloadPolicy()
    layers = model.model.layers
    for i in range(len(layers)):
        if case.set["compile"] != "no":
            layers[i].compile()
        if case.set["checkpointing"] == "on":
            layers[i] = checkpoint_wrapper(layers[i])
        fully_shard(layers[i], reshard_after_forward=said, **settings)
    if case.set["units"] == "layers+ends":
        last = [model.model.norm, model.lm_head]
        if model.config.tie_word_embeddings:
            last.insert(0, model.model.embed_tokens)
        else:
            fully_shard(model.model.embed_tokens, reshard_after_forward=said, **settings)
        fully_shard(last, reshard_after_forward=bool(said), **settings)
    fully_shard(model, reshard_after_forward=said, **settings)


def enable_checkpoints(model, case):
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={
        "use_reentrant": case.set["checkpointing"] == "on-reentrant"})


def build(case, prepare=None, trained=True, scores=None):
    """The model on the GPU, and how many parameters it has. prepare(model) is called once its layers are there, before
    adapters; a model that is not trained has none. scores: it has a head of one score, whatever the case says."""
    config = case.config()
    if case.strategy == "zero3":
        import torch_deepspeed
        model = torch_deepspeed.divided_model(case, config)
        if case.set["checkpointing"] != "off":
            enable_checkpoints(model, case)
        return model.train(), sum(parameter.ds_numel for parameter in model.parameters())
    version = case.set["transformers"]
    if version != "now" and not transformers.__version__.startswith(version + "."):
        raise RuntimeError(f"{case.id} is of transformers {version}, and this is {transformers.__version__}")
    if scores:
        config.num_labels, config.pad_token_id = 1, 0
    scores = scores or case.set["logits"] == "score"
    kind = transformers.AutoModelForSequenceClassification if scores else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config, dtype=torch.float32 if case.fp32 else torch.bfloat16)
    if config.tie_word_embeddings and not scores:
        model.get_output_embeddings().weight = model.get_input_embeddings().weight
    model.train()
    count = sum(parameter.numel() for parameter in model.parameters())
    if case.set["quantization"] != "none":
        torch_parts.quantize(model, case)
    if case.sharded:
        if case.adapted:
            model = add_adapters(model, case)
        if case.set["checkpointing"] == "selective":
            torch_parts.checkpoint_layers(model, case)
        shard(model, case)
    materialise(model, "cpu" if case.set["offload_policy"] == "cpu" else torch_parts.DEVICE,
                case.set["large_values"] == "yes")
    if prepare:
        prepare(model)
    if not trained:
        return model, count
    if case.sharded:
        return model.train(), count
    if case.set["float8_recipe"] != "none":
        torch_parts.convert_to_float8(model, case.set["float8_recipe"])
    wraps = case.set["checkpointing"] in ("selective", "modules") or case.set["checkpoint_wrapper"] == "yes"
    if wraps or case.set["checkpoint_every"] != "1":
        torch_parts.checkpoint_layers(model, case)
    elif case.set["checkpointing"] != "off":
        enable_checkpoints(model, case)
    if case.set["compile"] != "no":
        torch_parts.compile_parts(model, case)
    if case.adapted:
        model = add_adapters(model, case)
    model.train()
    return model, count


def make_optimizer(model, parameters, case):
    by_names = torch_parts.optimizer_by_names(model, case.set["optimizer"], int(case.set["galore_rank"]), 1e-5)
    if by_names is not None:
        return by_names
    if case.set["cpu_offload_optimizer"] != "no":
        return torch_parts.offloaded_optimizer(parameters, case.set["cpu_offload_optimizer"] == "gradients", 1e-5)
    if case.set["optimizer_in_bwd"] == "yes":
        return torch_parts.step_in_backward(parameters, lambda one: make_plain_optimizer(one, case))
    return make_plain_optimizer(parameters, case)


def make_plain_optimizer(parameters, case):
    kinds = {
        "adamw-fused": (torch.optim.AdamW, {"fused": True}),
        "adamw-foreach": (torch.optim.AdamW, {"foreach": True}),
        "sgd": (torch.optim.SGD, {}),
        "sgd-momentum": (torch.optim.SGD, {"momentum": 0.9}),
    }
    if case.set["optimizer"] == "none":
        return None
    name = case.set["optimizer"]
    kind, settings = kinds[name] if name in kinds else torch_parts.optimizer_kind(name)
    if case.strategy == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        return ZeroRedundancyOptimizer(parameters, optimizer_class=kind, lr=1e-5, **settings)
    return kind(parameters, lr=1e-5, **settings)


# ---- steps ----


def driver_used():
    free, total = torch.cuda.mem_get_info()
    return total - free


def forward(net, ids, case):
    """The loss, and the output object if the loop holds it."""
    cache, logits = case.set["use_cache"] == "yes", case.set["logits"]
    if case.of_trainer:
        return case.of_trainer(net, ids), None
    if logits in torch_parts.LOSSES:
        return torch_parts.LOSSES[logits](net, ids), None
    if logits == "base":
        return net.model(input_ids=ids, use_cache=cache).last_hidden_state.mean(), None
    if logits == "last":
        return net(input_ids=ids, use_cache=cache, logits_to_keep=1).logits.float().mean(), None
    # without a mask transformers 4.57 makes one that keeps packed sequences apart; a Trainer gives ones
    mask = None if case.set["transformers"] == "now" else torch.ones_like(ids)
    output = net(input_ids=ids, attention_mask=mask, labels=ids, use_cache=cache)
    return output.loss, output if logits == "hf-held" else None


class Figures:
    """What a step took: a note of each phase, and the row."""

    def __init__(self):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.before = torch.cuda.memory_allocated()
        self.retries = torch.cuda.memory_stats()["num_alloc_retries"]
        self.start = time.monotonic()
        self.note, self.peaks, self.phase = {}, {}, ""

    def end_phase(self, phase):
        self.peaks[phase] = torch.cuda.max_memory_allocated()
        if phase != "optimizer":
            self.note[f"{phase}_end"] = torch.cuda.memory_allocated()
            self.note[f"{phase}_peak"] = self.peaks[phase]

    def row(self, failed):
        torch.cuda.synchronize()
        stats, note = torch.cuda.memory_stats(), {}
        peak, retries = torch.cuda.max_memory_allocated(), stats["num_alloc_retries"] - self.retries
        if failed:
            note["failed_in"] = self.phase
        else:
            note["peak_in"] = next(phase for phase, bytes_ in self.peaks.items() if bytes_ == peak)
        note.update(self.note)
        note["requested_peak"] = stats["requested_bytes.all.peak"]
        if retries:
            note["alloc_retries"] = retries
        return {
            "allocated_before_bytes": self.before, "peak_allocated_bytes": peak,
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(), "driver_used_bytes": driver_used(),
            "step_seconds": "" if failed else f"{time.monotonic() - self.start:.4f}",
            "status": "oom" if failed else "ok", "note": note,
        }  # fmt: skip


def end_step(optimizer, trained, case):
    if case.set["max_grad_norm"] != "none":
        torch.nn.utils.clip_grad_norm_(trained, float(case.set["max_grad_norm"]))
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def start_allocator(case):
    if case.set["allocator_conf"] != "default":
        torch._C._accelerator_setAllocatorSettings(case.set["allocator_conf"])
    if case.set["attention"] in ("sdpa-flash", "efficient"):
        torch.backends.cuda.enable_cudnn_sdp(False)
    if case.set["attention"] == "efficient":
        torch.backends.cuda.enable_flash_sdp(False)


def measure(case, rank, rendezvous):
    """Rows of a case's steps, or the lines of a record."""
    torch.manual_seed(rank)
    torch.cuda.set_device(rank)
    torch.cuda.init()
    start_allocator(case)
    context = driver_used()
    if case.strategy != "single":
        torch.distributed.init_process_group("nccl", init_method="file://" + rendezvous, rank=rank,
                                             world_size=case.gpus, device_id=torch.device("cuda", rank))
    if case.deepspeed:
        import torch_deepspeed
        torch_deepspeed.start(rank, case.gpus)
    if case.set["liger"] != "none" or case.set["logits"] == "fused":
        torch_parts.use_liger(case, case.config().model_type)
    if case.set["trainer"] == "sft":
        model, count = build(case)
    else:
        model, case.of_trainer = torch_parts.step_of_trainer(case, lambda *how, **more: build(case, *how, **more)[0])
        count = sum(parameter.numel() for parameter in model.parameters())
    local = [p.to_local() if case.sharded else p for p in model.parameters()]
    common = {"params": count, "weights_bytes": sum(p.numel() * p.element_size() for p in local),
              "context_bytes": context, "gpu": torch.cuda.get_device_name()}
    del local
    net = model
    if case.strategy in ("ddp", "zero1"):
        net = torch.nn.parallel.DistributedDataParallel(
            model, device_ids=[rank], gradient_as_bucket_view=case.set["gradient_as_bucket_view"] == "yes")
    if case.deepspeed:
        net = torch_deepspeed.engine(model, case)
    trained = [p for p in net.parameters() if p.requires_grad]
    optimizer = net if case.deepspeed else make_optimizer(net, trained, case)
    common["trained_bytes"] = sum(p.numel() * p.element_size() for p in trained)
    sequences = 2 * case.batch if case.set["trainer"] in torch_parts.OF_PAIRS else case.batch
    ids = torch.randint(0, model.config.vocab_size, (sequences, case.context), device=torch_parts.DEVICE)
    loss = output = None
    if case.set["checkpoint_offload"] == "yes":
        torch_parts.offloading(net).__enter__()  # to the end of this process
    for step in range(1, STEPS + 1):
        figures = Figures()
        if case.record == step:
            torch.cuda.memory._record_memory_history(max_entries=1000000, stacks="all")
        failed = False
        try:
            for _ in range(case.micro_batches):
                figures.phase = "forward"
                with torch.autocast(torch_parts.DEVICE, torch.bfloat16, enabled=case.casts):
                    loss, output = forward(net, ids, case)
                figures.end_phase("forward")
                figures.phase = "backward"
                net.backward(loss) if case.deepspeed else loss.backward()
                if case.set["loss_held"] == "no":
                    loss = None
                figures.end_phase("backward")
                if case.deepspeed:
                    net.step()  # steps after the last micro-batch
            figures.phase = "optimizer"
            if not case.deepspeed:
                end_step(optimizer, trained, case)
            figures.end_phase("optimizer")
        except torch.OutOfMemoryError:
            failed = True
        if case.record == step:
            yield record_lines(torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()])
            return
        if case.record:
            continue
        grads = "held" if step > 1 and (optimizer is None or case.micro_batches > 1) else "none"
        yield {**common, **figures.row(failed), "step": step, "grads": grads}
        if failed:
            return
    if case.set["allocator_conf"] != "default" and not any(
            segment.get("is_expandable") for segment in torch.cuda.memory_snapshot()):
        raise RuntimeError("segments are not expandable")


# ---- records ----


def frame_name(frames):
    """Of the innermost operation and the innermost line of model, optimizer or library code."""
    operation, line = "", ""
    for frame in frames:
        file, function = frame["filename"], frame["name"]
        if file.endswith(".py"):
            if not line and re.search(r"transformers/|peft/|optim/|torch_peaks", file):
                line = f"{os.path.basename(file)[:-3]}:{frame['line']}:{function}"
            continue
        found = re.search(r"autograd::generated::(\w+)::apply|at::_ops::(\w+)::", function) or re.search(
            r"(AccumulateGrad|at::cuda::blas::\w+|getCUDABlasLtWorkspace|getCurrentCUDABlasHandle|run_cudnn\w*)",
            function)
        name = next((group for group in found.groups() if group), "") if found else ""
        if name and name not in operation.split(" "):
            operation += (" " if operation else "") + name
    return " ".join(operation.split(" ")[:3] + operation.split(" ")[3:][-1:]) + (f" @ {line}" if line else "")


def record_lines(trace):
    lines = []
    for event in trace:
        if event["action"] == "alloc":
            name = frame_name(event["frames"]) if event["size"] >= MIB else ""
            lines.append(f"+{event['size']} {name}".rstrip())
        elif event["action"] == "free_requested":
            lines.append(f"-{event['size']}")
    return lines


def write_record(folder, case, lines):
    said = {key: value for key, value in case.said.items() if key not in ("record", "num_hidden_layers")}
    with open(os.path.join(folder, case.id + ".events"), "w") as file:
        cut = f" num_hidden_layers={case.said['num_hidden_layers']}" if "num_hidden_layers" in case.said else ""
        print(f"# model={case.model}{cut}", file=file)
        print(f"# set context={case.context} batch={case.batch}",
              *(f"{key}={value}" for key, value in said.items()), file=file)
        print(f"# step={case.record}", file=file)
        print(f"# the allocator's own record of that step; {versions()}, {datetime.date.today()}", file=file)
        print("# + allocated, - freed: bytes as asked for; from 1 MiB on the operation and the line of code",
              file=file)
        print("\n".join(lines), file=file)


# ---- rows ----


def first_bucket(rows):
    """When rank 0 lost DDP's bucket of the first step, which NCCL's process group held: before the second forward
    or in its backward. That is a race; it shows in what the second forward left beside what the third did."""
    if len(rows) < STEPS:
        return "late"
    more = rows[1]["note"]["forward_end"] - rows[2]["note"]["forward_end"]
    return "late" if more > rows[0]["trained_bytes"] // 2 else "early"


def note_of(case, ranks, at):
    """KEY=VALUE pairs of a row, rank 1's figures among them."""
    row = ranks[0][at]
    note = {"grads": row["grads"], **row["note"]}
    if case.gpus > 1 and len(ranks[1]) > at:
        for name in ("peak_allocated", "peak_reserved", "driver_used"):
            note["rank1_" + name] = ranks[1][at][name + "_bytes"]
    if case.strategy in ("ddp", "zero1"):
        note["gradient_as_bucket_view"] = case.set["gradient_as_bucket_view"]
        note["first_bucket"] = first_bucket(ranks[0])
        note["empty_cache"] = "no"
    if case.sharded:
        note["reshard_after_forward"] = case.set["reshard_after_forward"]
        note["init_device"] = "meta"
    elif case.fp32 and case.casts:
        note["autocast"] = "bf16"
    for key in case.said:
        if key not in COLUMNS and key not in note and key != "record":
            note[key] = case.said[key].replace(",", " ")
    if row["status"] == "oom":
        note["figures"] = "until the failure"
    return ";".join(f"{key}={value}" for key, value in note.items())


def rows_of(case, ranks, shared):
    """Rows of a case. What the driver reports and times count only where no other process had the GPU."""
    for at, row in enumerate(ranks[0]):
        if row["step"] == 2 and row["status"] == "ok" and case.strategy not in ("ddp", "zero1"):
            continue
        if row["step"] == 1 and case.micro_batches > 1 and not case.deepspeed:
            continue  # its second micro-batch has gradients, which a prediction of a first step lacks
        if shared:
            row["driver_used_bytes"] = row["context_bytes"] = row["step_seconds"] = ""
        if case.deepspeed:
            row["weights_dtype"] = ""
        cells = {**case.set, **row, "id": case.id, "gpus": case.gpus, "strategy": case.strategy,
                 "model": case.model, "context": case.context, "batch": case.batch,
                 "torch": torch.__version__, "phase_note": note_of(case, ranks, at)}
        yield ",".join(str(cells[column]) for column in COLUMNS)


def versions():
    try:
        driver = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                                capture_output=True, text=True).stdout.splitlines()[0]
    except (OSError, IndexError):
        driver = "driver unknown"
    libraries = ""
    for name in ("peft", "bitsandbytes", "liger_kernel", "trl", "deepspeed", "torchao", "galore-torch", "adam-mini",
                 "cut-cross-entropy"):
        try:
            libraries += f", {name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            pass
    return (f"{driver}, CUDA {torch.version.cuda}, torch {torch.__version__}, "
            f"transformers {transformers.__version__}{libraries}")


def write_head(file):
    print("# Peak GPU memory of real training steps, measured by bench/torch_peaks.py "
          f"({datetime.date.today()}).\n# {versions()}.\n"
          "# Columns, rows and notes are those of tests/data/measured_peaks.csv; num_hidden_layers in a note: the "
          "model was cut to that.\n"
          "# first_bucket: early where the bucket of DDP's first step was gone before the second forward (a race). "
          "empty_cache=no: it was not called before the first step.", file=file)
    print(",".join(COLUMNS), file=file, flush=True)


# ---- processes ----


def child(case, rank, rendezvous, sender):
    results, error = [], ""
    try:
        for result in measure(case, rank, rendezvous):
            results.append(result)
    except Exception:
        error = traceback.format_exc()
    sender.send((results, error))
    sender.close()
    os._exit(0)  # without waiting for other ranks


class Running:
    """The processes of a case."""

    def __init__(self, case, context):
        self.case, self.start, self.ranks = case, time.monotonic(), []
        self.folder = tempfile.TemporaryDirectory(prefix="torch_peaks.")
        rendezvous = os.path.join(self.folder.name, "ranks")
        for rank in range(case.gpus):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=child, args=(case, rank, rendezvous, sender))
            process.start()
            sender.close()
            self.ranks.append((process, receiver))

    def seconds(self):
        return time.monotonic() - self.start

    def is_done(self):
        return self.seconds() > self.case.seconds or all(receiver.poll() for _, receiver in self.ranks)

    def end(self):
        """[results of each rank] and what went wrong."""
        results, errors = [], []
        for process, receiver in self.ranks:
            rank_results, error = [], "no answer in time\n"
            try:
                if receiver.poll():
                    rank_results, error = receiver.recv()
            except EOFError:
                error = "the process died\n"
            results.append(rank_results)
            errors.append(error)
        for process, _ in self.ranks:
            process.join(0 if self.seconds() > self.case.seconds else 10)
            if process.is_alive():
                process.kill()
                process.join()
        self.folder.cleanup()
        return results, "".join(errors)


def warm_up(cases):
    """Imports what the cases need, so that forked processes have it; no GPU is touched. peft would touch one: it
    imports bitsandbytes where that is."""
    for case in cases:
        importlib.import_module(type(case.config()).__module__.replace("configuration_", "modeling_"))
    for name in ("torch.distributed.fsdp", "torch.distributed.optim", "torch._dynamo"):
        try:
            importlib.import_module(name)
        except ImportError:
            print(f"{name} is not there", flush=True)


def report(case, results, error, seconds):
    last = results[0][-1] if results[0] and not case.record else {}
    print(f"{case.id}: {len(results[0])} results, {last.get('status', '')} "
          f"{last.get('peak_allocated_bytes', 0) / MIB:.0f} MiB, {seconds:.1f} s", flush=True)
    if error:
        print("   ", "\n    ".join(error.strip().splitlines()[-8:]), flush=True)


def run_cases(cases, context, options, done):
    """At most options.jobs at once, whose predicted memory fits in options.memory; done(case, results) for each that
    has results. The largest start first."""
    end = time.monotonic() + options.seconds
    waiting, running = list(cases), []
    if options.jobs > 1:
        waiting.sort(key=lambda case: (-case.seconds, -case.predicted_bytes))
    while waiting or running:
        free = options.memory - sum(run.case.predicted_bytes for run in running)
        case = next((case for case in waiting if not running or case.predicted_bytes <= free), None)
        if time.monotonic() > end:
            print("no time left for", *(case.id for case in waiting), flush=True)
            waiting = []
        elif case and len(running) < options.jobs:
            waiting.remove(case)
            running.append(Running(case, context))
            continue
        for run in [run for run in running if run.is_done()]:
            running.remove(run)
            results, error = run.end()
            if "CUDA" in error and ("forked" in error or "initialization error" in error):
                print("processes cannot be forked here: started anew", flush=True)
                context = multiprocessing.get_context("spawn")
                waiting.insert(0, run.case)
                continue
            if results[0]:
                done(run.case, results)
            report(run.case, results, error, run.seconds())
        time.sleep(0.02)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the cases")
    parser.add_argument("--rows", choices=("1gpu", "2gpu", "records"), default="1gpu")
    parser.add_argument("--output", help="a file for rows, a folder for records")
    parser.add_argument("--only", help="ID,ID: those cases")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no case after that")
    parser.add_argument("--jobs", type=int, default=1, help="cases at once; then what the driver reports is left out")
    parser.add_argument("--memory", type=float, default=70, help="GiB of a GPU that cases at once may need together")
    parser.add_argument("--predictions", help="with --jobs: what --predict wrote")
    parser.add_argument("--predict", metavar="TIDEMARK", help="that program's predictions of the cases, to --output")
    options = parser.parse_args()
    options.memory *= 1 << 30
    cases = read_cases()
    if options.list:
        for case in cases:
            print(case.kind, case.id, case.strategy, case.model, case.context, case.batch,
                  *(f"{key}={value}" for key, value in case.said.items()))
        return 0
    cases = [case for case in cases if case.kind == options.rows
             and (not options.only or case.id in options.only.split(","))]
    if options.predict:
        return predict(cases, options.predict, options.output)
    if options.predictions:
        read_predictions(cases, options.predictions)
    if torch is None:
        print(f"skipped: {absent}")
        return 77
    if torch.cuda.device_count() < max([case.gpus for case in cases], default=1):
        print("skipped: too few GPUs")
        return 77
    if not options.output:
        parser.error("--output is missing")
    warm_up(cases)
    context = multiprocessing.get_context("fork")
    if options.rows == "records":
        os.makedirs(options.output, exist_ok=True)
        run_cases(cases, context, options,
                  lambda case, results: write_record(options.output, case, results[0][0]))
        return 0
    with open(options.output, "w") as file:
        write_head(file)
        run_cases(cases, context, options,
                  lambda case, results: print("\n".join(rows_of(case, results, options.jobs > 1)), file=file, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
