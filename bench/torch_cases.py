# SPDX-License-Identifier: Apache-2.0
"""The cases of bench/torch_peaks.py and what tidemark predicts of them."""
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
CONFIGS = os.environ.get("TIDEMARK_CONFIGS", os.path.join(HERE, "..", "models", "configs"))
CASE_SECONDS = 60
COMPILE_SECONDS = 120

COLUMNS = (
    "id gpus strategy model params context batch checkpointing attention optimizer weights_dtype logits "
    "allocator_conf lora_rank step phase_note weights_bytes allocated_before_bytes peak_allocated_bytes "
    "peak_reserved_bytes driver_used_bytes context_bytes step_seconds status torch gpu"
).split()
DEFAULTS = {
    "checkpointing": "off", "attention": "sdpa", "optimizer": "none", "weights_dtype": "bf16", "logits": "hf",
    "allocator_conf": "default", "lora_rank": "", "lora": "bf16", "use_cache": "no",
    "lora_targets": "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
    "gradient_as_bucket_view": "no", "reshard_after_forward": "yes", "units": "layers", "reduce_dtype": "weights",
    "record": "0", "quantization": "none", "double_quantization": "no", "modules_to_save": "none", "lora_dropout": "0",
    "use_rslora": "no", "autocast": "weights", "liger": "none", "compile": "no", "checkpoint_every": "1",
    "trainer": "sft", "ref_model": "auto", "precompute_ref_log_probs": "no", "beta": "0", "cpo_alpha": "1", "max_completion_length": "auto",
    "gradient_accumulation_steps": "1", "max_grad_norm": "none", "offload_policy": "none", "large_values": "no",
    "peft_type": "LORA", "use_dora": "no", "decompose_both": "no", "decompose_factor": "-1", "oft_block_size": "32",
    "block_share": "no", "boft_block_size": "4", "num_virtual_tokens": "20", "encoder_hidden_size": "0",
    "prefix_projection": "no", "float8_recipe": "none", "galore_rank": "128", "cpu_offload_optimizer": "no",
    "optimizer_in_bwd": "no", "checkpoint_offload": "no", "num_labels": "1", "loss_held": "yes",
    "checkpoint_wrapper": "no", "transformers": "now", "gpus": "",
}  # fmt: skip

DEEPSPEED = {  # keys of its config, as tidemark predict takes them
    "overlap_comm", "offload_optimizer", "offload_param", "reduce_bucket_size", "reduce_scatter", "contiguous_gradients",
    "communication_data_type", "pin_memory", "stage3_prefetch_bucket_size", "stage3_max_live_parameters",
    "stage3_max_reuse_distance", "stage3_param_persistence_threshold", "sub_group_size",
}  # fmt: skip


# ---- cases ----


class Case:
    def __init__(self, line):
        self.id, self.strategy, self.model, context, batch, *pairs = line.split()
        self.context, self.batch = int(context), int(batch)
        self.said = dict(pair.split("=", 1) for pair in pairs)
        self.set = {**DEFAULTS, **self.said}
        self.deepspeed = self.strategy in ("deepspeed-zero1", "zero2", "zero3")
        if self.deepspeed:
            self.set["optimizer"] = self.said.get("optimizer", "AdamW")
        unknown = self.said.keys() - DEFAULTS.keys() - {"num_hidden_layers", "tie_word_embeddings"}
        if self.deepspeed:
            unknown -= DEEPSPEED
        if unknown or not (self.deepspeed or self.strategy in ("single", "ddp", "zero1", "fsdp2")):
            raise ValueError(f"{self.id}: {' '.join(unknown) or self.strategy} is not known")
        self.gpus = int(self.set["gpus"] or (1 if self.strategy == "single" else 2))
        self.record = int(self.set["record"])
        self.kind = "records" if self.record else f"{self.gpus}gpu"
        self.sharded = self.strategy == "fsdp2"
        self.fp32 = self.set["weights_dtype"] == "fp32"
        cast = {"weights": self.fp32, "bf16": True, "no": False}[self.set["autocast"]]
        self.casts = cast and not self.sharded
        self.micro_batches = int(self.set["gradient_accumulation_steps"])
        self.predicted_bytes = 0
        self.of_trainer = None  # (net, ids) -> loss of one of TRL's trainers
        compiles = self.set["compile"] != "no" or self.set["optimizer"] in ("adamw-4bit", "adamw-fp8", "ao-adamw-8bit")
        self.seconds = COMPILE_SECONDS if self.deepspeed or compiles else CASE_SECONDS
        self.lora = int(self.set["lora_rank"] or 0)
        self.adapted = self.lora > 0 or self.set["peft_type"] != "LORA"

    def sizes(self):
        """The published config, with the case's changes."""
        with open(os.path.join(CONFIGS, self.model + ".json")) as file:
            sizes = json.load(file)
        if "num_hidden_layers" in self.said:
            sizes["num_hidden_layers"] = int(self.said["num_hidden_layers"])
            sizes.pop("layer_types", None)
        if "tie_word_embeddings" in self.said:
            sizes["tie_word_embeddings"] = self.said["tie_word_embeddings"] == "yes"
        return sizes

    def config(self):
        """For transformers; what does not change memory is left at the class's defaults."""
        import transformers
        sizes = self.sizes()
        kind = sizes.pop("model_type")
        for key in list(sizes):
            if re.search("rope|torch_dtype|architectures|version|token_id|auto_map|quantization", key):
                del sizes[key]
        config = transformers.AutoConfig.for_model(kind, **sizes)
        config._attn_implementation = "eager" if self.set["attention"] == "eager" else "sdpa"
        if self.set["logits"] == "score":
            config.num_labels, config.pad_token_id = int(self.set["num_labels"]), 0
        return config


def read_cases():
    with open(os.path.join(HERE, "torch_peaks.cases")) as file:
        return [Case(line) for line in file if line.strip() and not line.startswith("#")]


# ---- predictions ----

# What of a case changes no allocation, or has another name in tidemark's methods.
NO_KEYS = {"record", "large_values", "num_hidden_layers", "tie_word_embeddings", "gpus"}
ALWAYS = ("checkpointing", "attention", "optimizer", "weights_dtype", "logits", "allocator_conf")
PREDICTED = "id,step,peak_allocated_bytes,peak_reserved_bytes,used_bytes"


def pairs_of(case):
    """Settings of the prediction, those that bench/accuracy takes from a measured row."""
    pairs = {key: case.set[key] for key in ALWAYS}
    pairs.update({key: value for key, value in case.said.items() if key not in NO_KEYS})
    if case.lora or not case.adapted:
        pairs["lora_rank"] = str(case.lora)
    if case.micro_batches > 1:
        pairs["gradient_accumulation_steps"] = str(case.micro_batches)
    if case.deepspeed:
        del pairs["weights_dtype"]
        pairs.pop("max_grad_norm", None)  # it clips in place
    if case.sharded:
        pairs.setdefault("reshard_after_forward", case.set["reshard_after_forward"])
        pairs["init_device"] = "meta"
    if case.strategy in ("ddp", "zero1"):
        pairs["empty_cache"] = "no"
    return pairs


def prediction_of(case, program, folder):
    """The JSON of tidemark predict, or its complaint."""
    model = os.path.join(folder, case.id + ".json")
    with open(model, "w") as file:
        json.dump(case.sizes(), file)
    command = [program, "predict", model, "--json", "--context", str(case.context), "--batch", str(case.batch),
               "--method", case.strategy, "--gpus", str(case.gpus)]
    for key, value in pairs_of(case).items():
        command += ["--set", f"{key}={value}"]
    run = subprocess.run(command, capture_output=True, text=True)
    return json.loads(run.stdout) if run.stdout else run.stderr.strip()


def predict(cases, program, output):
    """Writes predictions of the first and the third step. Exit status."""
    status = 0
    with open(output, "w") as file, tempfile.TemporaryDirectory(prefix="torch_cases.") as folder:
        print("# Peaks of cases of bench/torch_peaks.cases as tidemark predict had them before they were measured\n"
              f"# (bench/torch_peaks.py --predict, {datetime.date.today()}). used_bytes is for a card of its own.",
              file=file)
        print(PREDICTED, file=file)
        for case in cases:
            answer = prediction_of(case, program, folder)
            if isinstance(answer, str):
                print(f"{case.id}: {answer}", file=sys.stderr)
                status = 1
                continue
            for step in answer["steps"]:
                print(case.id, step["step"], step["peak_allocated_bytes"], step["peak_reserved_bytes"],
                      step["peak_bytes"], sep=",", file=file)
    return status


def read_predictions(cases, path):
    """How much memory each case is predicted to take of a GPU."""
    with open(path) as file:
        rows = [line.split(",") for line in file if line[0] not in "#i"]
    for case in cases:
        case.predicted_bytes = max((int(row[4]) for row in rows if row[0] == case.id), default=40 << 30)
