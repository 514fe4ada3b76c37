# SPDX-License-Identifier: Apache-2.0
"""What steps of bench/torch_peaks.py may have beside PyTorch and transformers: quantized weights, adapters, products of
8 bits, optimizers, losses, kernels, checkpoints by operation, compiled layers and the steps of TRL's trainers. Each part
imports its library in the process of the case, as some libraries start CUDA when they are imported."""
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


def adapter_config(said):
    """peft's config of the adapters that a case has, by keys of tidemark predict."""
    import peft
    kind, rank = said["peft_type"], int(said["lora_rank"] or 0)
    targets = said["lora_targets"]
    targets = "all-linear" if targets == "all" else targets.split(",")
    prompt = {"task_type": "CAUSAL_LM", "num_virtual_tokens": int(said["num_virtual_tokens"])}
    if int(said["encoder_hidden_size"]):
        prompt["encoder_hidden_size"] = int(said["encoder_hidden_size"])
    if kind == "IA3":
        return peft.IA3Config(target_modules=["k_proj", "v_proj", "down_proj"], feedforward_modules=["down_proj"])
    if kind == "VERA":
        return peft.VeraConfig(r=rank, target_modules=targets)
    if kind == "LN_TUNING":
        return peft.LNTuningConfig(target_modules=["input_layernorm", "post_attention_layernorm", "norm"])
    if kind == "LOHA":
        return peft.LoHaConfig(r=rank, target_modules=targets)
    if kind == "LOKR":
        return peft.LoKrConfig(r=rank, target_modules=targets, decompose_both=said["decompose_both"] == "yes",
                               decompose_factor=int(said["decompose_factor"]))
    if kind == "OFT":
        return peft.OFTConfig(target_modules=targets, oft_block_size=int(said["oft_block_size"]),
                              block_share=said["block_share"] == "yes")
    if kind == "BOFT":
        return peft.BOFTConfig(target_modules=targets, boft_block_size=int(said["boft_block_size"]))
    if kind == "PROMPT_TUNING":
        return peft.PromptTuningConfig(**prompt)
    if kind == "P_TUNING":
        return peft.PromptEncoderConfig(**prompt)
    if kind == "PREFIX_TUNING":
        return peft.PrefixTuningConfig(**prompt, prefix_projection=said["prefix_projection"] == "yes")
    saved = said["modules_to_save"]
    return peft.LoraConfig(
        r=rank, target_modules=targets, lora_dropout=float(said["lora_dropout"]), use_dora=said["use_dora"] == "yes",
        use_rslora=said["use_rslora"] == "yes", task_type="SEQ_CLS" if said["logits"] == "score" else "CAUSAL_LM",
        modules_to_save=None if saved == "none" else saved.split(","))


def peft_model(model, case):
    import peft
    if case.set["checkpoint_wrapper"] == "yes":
        model.enable_input_require_grads()  # as peft does where transformers' own checkpoints are on
    return peft.get_peft_model(model, adapter_config(case.set))


# ---- products of 8 bits ----


def convert_to_float8(model, recipe):
    """torchao's layers in place of those whose names end with _proj."""
    if recipe == "blockwise":
        from torchao.prototype.blockwise_fp8_training.linear import Float8BlockwiseLinear
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if name.endswith("_proj"):
                    setattr(module, name, Float8BlockwiseLinear.from_float(child))
        return
    import torchao.float8
    torchao.float8.convert_to_float8_training(
        model, module_filter_fn=lambda _, name: name.endswith("_proj"),
        config=torchao.float8.Float8LinearConfig.from_recipe_name(recipe))


# ---- optimizers ----


class Several:
    """Optimizers that step one after the other."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none=True):
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)


TORCHAO_OPTIMIZERS = {"adamw-4bit": "AdamW4bit", "adamw-fp8": "AdamWFp8", "ao-adamw-8bit": "AdamW8bit"}


def optimizer_kind(name):
    """Class and settings of an optimizer that is not PyTorch's own."""
    if name == "adafactor":
        from transformers.optimization import Adafactor
        return Adafactor, {"scale_parameter": False, "relative_step": False}
    if name in TORCHAO_OPTIMIZERS:
        import torchao.optim as optim
        return getattr(optim, TORCHAO_OPTIMIZERS[name]), {}
    import bitsandbytes.optim as optim
    return {"adamw-8bit": optim.AdamW8bit, "paged-adamw-8bit": optim.PagedAdamW8bit,
            "paged-adamw-32bit": optim.PagedAdamW32bit, "lion-8bit": optim.Lion8bit, "lion-32bit": optim.Lion}[name], {}


def is_of_layers(name, parameter):
    return parameter.ndim == 2 and ".layers." in name


def optimizer_by_names(model, name, galore_rank, lr):
    """Of an optimizer that takes matrices of layers otherwise than the rest; None: name is not one of them."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    matrices = [parameter for pair in named if is_of_layers(*pair) for parameter in pair[1:]]
    others = [parameter for pair in named if not is_of_layers(*pair) for parameter in pair[1:]]
    if name == "muon":
        return Several(torch.optim.AdamW(others, lr=lr, foreach=True), torch.optim.Muon(matrices, lr=lr))
    if name == "adam-mini":
        import adam_mini
        config = model.config
        return adam_mini.Adam_mini(named, lr=lr, dim=config.hidden_size, n_heads=config.num_attention_heads,
                                   n_kv_heads=config.num_key_value_heads)
    if name in ("galore", "galore-8bit"):
        import galore_torch
        kind = galore_torch.GaLoreAdamW if name == "galore" else galore_torch.GaLoreAdamW8bit
        group = {"params": matrices, "rank": galore_rank, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
        return kind([{"params": others}, group], lr=lr)
    return None


def offloaded_optimizer(parameters, gradients, lr):
    """AdamW in host memory, by torchao."""
    from torchao.optim import CPUOffloadOptimizer
    return CPUOffloadOptimizer(parameters, torch.optim.AdamW, offload_gradients=gradients, lr=lr)


def step_in_backward(parameters, make):
    """Each parameter has an optimizer of its own, that steps it and frees its gradient once that is there."""
    for parameter in parameters:
        def step(parameter, optimizer=make([parameter])):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        parameter.register_post_accumulate_grad_hook(step)
    return Several()


# ---- losses ----


def loss_by_parts(model, ids):
    """torchtune's LinearCrossEntropyLoss: the head and the loss of an eighth of the tokens at a time."""
    hidden = model.base_model(input_ids=ids, use_cache=False)[0].reshape(-1, model.config.hidden_size)
    labels = ids.reshape(-1)
    kept = torch.where(labels != -100)[0]
    hidden, labels = hidden.index_select(0, kept), labels.index_select(0, kept)
    total = torch.tensor(0.0, device=ids.device)
    for part, of_part in zip(hidden.tensor_split(8), labels.tensor_split(8)):
        total += torch.nn.functional.cross_entropy(model.lm_head(part).float(), of_part, reduction="sum")
    return total / kept.numel()


def cut_loss(model, ids):
    """Apple's cut cross entropy, as its patch of transformers calls it."""
    from cut_cross_entropy import linear_cross_entropy
    hidden = model.base_model(input_ids=ids, use_cache=False)[0]
    return linear_cross_entropy(hidden, model.lm_head.weight, ids, shift=True)


def narrow_loss(model, ids):
    """Of the logits as they are."""
    logits = model(input_ids=ids, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


def score_loss(model, ids):
    """Of one label for each sequence."""
    labels = torch.zeros(ids.shape[0], dtype=torch.long, device=ids.device)
    return model(input_ids=ids, labels=labels, use_cache=False).loss


LOSSES = {"parts": loss_by_parts, "cut": cut_loss, "bf16": narrow_loss, "score": score_loss}


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
    """Results of attention, of every second product and the largest values that scale 8 bits are kept, as torchtitan's
    policy by operation does."""
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
    aten = torch.ops.aten
    attention = {aten._scaled_dot_product_cudnn_attention.default, aten._scaled_dot_product_flash_attention.default,
                 aten._scaled_dot_product_efficient_attention.default}
    products = {False: 0, True: 0}
    def policy(context, function, *arguments, **words):
        keeps = function in attention or function == aten.max.default
        if function == aten.mm.default:
            products[context.is_recompute] += 1
            keeps = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE
    return create_selective_checkpoint_contexts(policy)


def checkpoint_layers(model, case):
    """Checkpoints around layers, where transformers' own switch does not do it. What compiles a layer then has its
    checkpoint inside, where transformers' switch has it outside."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    every, layers = int(case.set["checkpoint_every"]), model.model.layers
    if case.set["checkpointing"] == "modules":
        for layer in layers:
            for name in ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp"):
                setattr(layer, name, checkpoint_wrapper(getattr(layer, name), preserve_rng_state=False))
        return
    settings = {"context_fn": selective_context} if case.set["checkpointing"] == "selective" else {}
    for i in range(len(layers)):
        if (i + 1) % every == 0:
            layers[i] = checkpoint_wrapper(layers[i], preserve_rng_state=False, **settings)


def offloading(model):
    """TRL's activation_offloading: while it is entered, what autograd saves goes to host memory."""
    from trl.models.activation_offloading import get_act_offloading_ctx_manager
    return get_act_offloading_ctx_manager(model)


def compile_parts(model, case):
    for layer in model.model.layers:
        layer.compile()
    if case.set["compile"] == "all":
        from transformers.loss.loss_utils import ForCausalLMLoss
        model.loss_function = torch.compile(ForCausalLMLoss)


# ---- steps of TRL's trainers ----

OF_PAIRS = ("dpo", "cpo", "orpo", "reward")


def step_of_trainer(case, build):
    """The model that is trained, and a function (net, ids) -> loss: that of TRL's trainer, with the model that it
    compares with."""
    name, said = case.set["trainer"], case.set
    if name == "ppo":
        import torch_ppo
        return torch_ppo.step_of(case, build)
    import torch_second
    if name == "cpo" and float(said["cpo_alpha"]) == 0:
        name = "simpo"
    step = getattr(torch_second, name)
    beta = case.said.get("beta", "0.05" if name == "rloo" else "0")
    compares = name == "distillation" or float(beta) > 0 or (
        name in ("dpo", "kto") and said["precompute_ref_log_probs"] == "no")
    copies = compares and (not case.lora or said["ref_model"] == "copy" or name == "distillation")
    model = build(None if name == "reward" else lambda made: torch_second.headed(made, step))
    if case.casts and step in torch_second.WIDENED:
        model.forward = torch_second.convert_outputs_to_fp32(model.forward)
    second = torch_second.frozen(build(torch_second.headed, trained=False)) if copies else None
    return model, lambda net, ids: step(net, second, ids, compares)
