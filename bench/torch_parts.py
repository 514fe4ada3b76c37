# SPDX-License-Identifier: Apache-2.0
"""What steps of bench/torch_peaks.py may have beside PyTorch and transformers: quantized weights, adapters, optimizers,
kernels, checkpoints by operation, compiled layers and the losses of two models. Each part imports its library in the
process of the case, as some libraries start CUDA when they are imported."""
import inspect

try:
    import torch
except ImportError:
    torch = None

DEVICE = "cuda"


# ---- quantized weights ----


def quantize(model, case):
    """bitsandbytes' layers in place of all linear layers but the head; no memory yet."""
    import bitsandbytes
    kind = case.set["quantization"]
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is not torch.nn.Linear or name == "lm_head":
                continue
            sizes = child.in_features, child.out_features, child.bias is not None
            if kind == "nf4":
                new = bitsandbytes.nn.Linear4bit(
                    *sizes, compute_dtype=torch.bfloat16, quant_type="nf4", device="meta",
                    compress_statistics=case.set["double_quantization"] == "yes")
            else:
                new = bitsandbytes.nn.Linear8bitLt(*sizes, has_fp16_weights=False, threshold=6.0, device="meta")
            new.bias = child.bias
            new.requires_grad_(False)
            setattr(module, name, new)
    model.is_loaded_in_4bit, model.is_loaded_in_8bit = kind == "nf4", kind == "int8"


def is_quantized(tensor):
    return type(tensor).__name__ in ("Params4bit", "Int8Params")


def quantized(tensor, large_values):
    """A parameter of quantize() with random numbers: made in bf16 on the GPU and quantized there, as transformers
    does when it loads a model. int8 finds columns of large values among the inputs that follow from large ones."""
    value = torch.empty(tensor.shape, dtype=torch.bfloat16, device=DEVICE).normal_(0, 0.05 if large_values else 0.002)
    settings = {key: value for key, value in tensor.__dict__.items() if key != "SCB"}
    if type(tensor).__name__ == "Int8Params":
        value = value.to("cpu")
    return type(tensor)(value, requires_grad=False, **settings).to(DEVICE)


def peft_model(model, case):
    import peft
    targets = case.set["lora_targets"]
    saved = case.set["modules_to_save"]
    return peft.get_peft_model(model, peft.LoraConfig(
        r=case.lora, target_modules="all-linear" if targets == "all" else targets.split(","),
        lora_dropout=float(case.set["lora_dropout"]), use_rslora=case.set["use_rslora"] == "yes",
        task_type="CAUSAL_LM", modules_to_save=None if saved == "none" else saved.split(",")))


# ---- optimizers ----


def optimizer_kind(name):
    """Class and settings of an optimizer that is not PyTorch's own."""
    if name == "adafactor":
        from transformers.optimization import Adafactor
        return Adafactor, {"scale_parameter": False, "relative_step": False}
    import bitsandbytes.optim as optim
    return {"adamw-8bit": optim.AdamW8bit, "paged-adamw-8bit": optim.PagedAdamW8bit,
            "paged-adamw-32bit": optim.PagedAdamW32bit, "lion-8bit": optim.Lion8bit, "lion-32bit": optim.Lion}[name], {}


# ---- kernels, checkpoints, compilers ----


def use_liger(case, kind):
    """Liger's kernels in the classes of a family of models, before one is made. Its loss is logits=fused."""
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN
    said = case.set["liger"].split(",")
    wanted = {part: part in said or "all" in said for part in ("rope", "rms_norm", "swiglu")}
    wanted["geglu"] = wanted["swiglu"]
    apply = MODEL_TYPE_TO_APPLY_LIGER_FN[kind]
    known = inspect.signature(apply).parameters
    apply(cross_entropy=False, fused_linear_cross_entropy=case.set["logits"] == "fused",
          **{part: on for part, on in wanted.items() if part in known})


def selective_context():
    """Results of attention and of every second product are kept, as torchtitan's policy by operation does."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
    aten = torch.ops.aten
    attention = {aten._scaled_dot_product_cudnn_attention.default, aten._scaled_dot_product_flash_attention.default,
                 aten._scaled_dot_product_efficient_attention.default}
    products = {False: 0, True: 0}
    def policy(context, function, *arguments, **words):
        keeps = function in attention
        if function == aten.mm.default:
            products[context.is_recompute] += 1
            keeps = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE
    return create_selective_checkpoint_contexts(policy)


def checkpoint_layers(model, case):
    """Checkpoints around layers, where transformers' own switch does not do it."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    every, layers = int(case.set["checkpoint_every"]), model.model.layers
    settings = {"context_fn": selective_context} if case.set["checkpointing"] == "selective" else {}
    for i in range(len(layers)):
        if (i + 1) % every == 0:
            layers[i] = checkpoint_wrapper(layers[i], preserve_rng_state=False, **settings)


def compile_parts(model, case):
    for layer in model.model.layers:
        layer.compile()
    if case.set["compile"] == "all":
        from transformers.loss.loss_utils import ForCausalLMLoss
        model.loss_function = torch.compile(ForCausalLMLoss)


# ---- steps of two models ----


def two_models(case, build):
    """The model that is trained, what it is compared with, and a function ids -> loss."""
    import torch_second
    from trl.trainer import utils
    def headed(model):
        utils.add_fused_lm_head(model)
        return model
    name, beta = case.set["trainer"], float(case.set["beta"])
    compares = name == "distillation" or (name == "dpo" and case.set["precompute_ref_log_probs"] == "no") or beta > 0
    copies = compares and (not case.lora or case.set["ref_model"] == "copy" or name == "distillation")
    model = build(headed)
    second = torch_second.frozen(build(headed, trained=False)) if copies else None
    step = {"dpo": torch_second.dpo, "grpo": torch_second.grpo, "distillation": torch_second.distillation}[name]
    return model, lambda net, ids: step(net, second, ids, compares)
