# SPDX-License-Identifier: Apache-2.0
# What other systems need: their allocators, their operations, their steps.

# What is common: the table of methods, keys, predictions, remedies, links and costs.
libtidemark_a_SOURCES += \
	methods/cost.c methods/cost.h \
	methods/divisors.c methods/divisors.h \
	methods/key.c methods/key.h \
	methods/keys_planned.c \
	methods/links.c methods/links.h \
	methods/longest.c methods/longest.h \
	methods/method.c methods/method.h \
	methods/methods.c \
	methods/prediction.c methods/prediction.h \
	methods/remedy.c methods/remedy.h \
	methods/remedy_changes.c \
	methods/remedy_parts.h \
	methods/spelling.c \
	methods/timeline.c methods/timeline.h

# Values, autograd and its peaks, and the operations on them.
libtidemark_a_SOURCES += \
	methods/eager/backward.c \
	methods/eager/checkpoint.c \
	methods/eager/cut.c methods/eager/cut.h \
	methods/eager/dtypes.h \
	methods/eager/eager.c methods/eager/eager.h \
	methods/eager/kernels.c \
	methods/eager/liger.c methods/eager/liger.h \
	methods/eager/ops.c methods/eager/ops.h \
	methods/eager/ops_attention.c \
	methods/eager/ops_products.c \
	methods/eager/parts.h \
	methods/eager/peak.c \
	methods/eager/float8.c methods/eager/float8.h \
	methods/eager/quantized.c methods/eager/quantized.h \
	methods/eager/te_float8.c methods/eager/te_float8.h \
	methods/eager/xielu.c \
	methods/eager/tiles.c methods/eager/tiles.h

# Serving: weights, the profile run, the cache.
libtidemark_a_SOURCES += \
	methods/serving/cache.c \
	methods/serving/keys.c \
	methods/serving/parts.h \
	methods/serving/profile.c \
	methods/serving/serving.c methods/serving/sglang.c methods/serving/serving.h \
	methods/serving/states.c \
	methods/serving/weights.c

# PyTorch: its allocator, Hugging Face's models, DDP and FSDP.
libtidemark_a_SOURCES += \
	methods/torch/adapter.c methods/torch/adapter.h \
	methods/torch/adapter_keys.c \
	methods/torch/adapter_weights.c \
	methods/torch/adapters.c \
	methods/torch/allocator.c methods/torch/allocator.h \
	methods/torch/attention.c \
	methods/torch/cache.c \
	methods/torch/changes.c \
	methods/torch/compiled.c \
	methods/torch/ddp.c methods/torch/ddp.h \
	methods/torch/delta.c \
	methods/torch/normed_head.c \
	methods/torch/own_scores.c \
	methods/torch/experts.c \
	methods/torch/experts_all.c \
	methods/torch/experts_each.c \
	methods/torch/experts_titan.c \
	methods/torch/forward.c \
	methods/torch/free_blocks.c methods/torch/free_blocks.h \
	methods/torch/fsdp.c methods/torch/fsdp.h \
	methods/torch/fsdp1.c \
	methods/torch/fsdp_units.c \
	methods/torch/heads.c \
	methods/torch/inputs.c \
	methods/torch/keys.c \
	methods/torch/latent.c \
	methods/torch/layer.c \
	methods/torch/litgpt.c \
	methods/torch/lora_kernels.c \
	methods/torch/losses.c \
	methods/torch/mamba.c methods/torch/mamba.h \
	methods/torch/model.c methods/torch/model.h \
	methods/torch/optimizer.c \
	methods/torch/optimizer_single.c \
	methods/torch/prompts.c \
	methods/torch/rotations.c \
	methods/torch/parts.h \
	methods/torch/rounds.c methods/torch/rounds.h \
	methods/torch/run.c methods/torch/run.h \
	methods/torch/scores.c \
	methods/torch/second.c methods/torch/second.h \
	methods/torch/second_keys.c \
	methods/torch/ppo.c \
	methods/torch/vision.c \
	methods/torch/system.c \
	methods/torch/tensor.c methods/torch/tensor.h methods/torch/tensor_plan.c \
	methods/torch/wrapper.c methods/torch/wrapper.h

# DeepSpeed: ZeRO-2 and ZeRO-3.
libtidemark_a_SOURCES += \
	methods/deepspeed/deepspeed.c methods/deepspeed/deepspeed.h \
	methods/deepspeed/gather.c \
	methods/deepspeed/method.c \
	methods/deepspeed/moe.c \
	methods/deepspeed/nvme.c \
	methods/deepspeed/parts.h \
	methods/deepspeed/zero2.c \
	methods/deepspeed/zero3.c \
	methods/deepspeed/zeropp.c

# Megatron-LM.
libtidemark_a_SOURCES += \
	methods/megatron/attention.c \
	methods/megatron/buffers.c \
	methods/megatron/context.c \
	methods/megatron/cost.c \
	methods/megatron/experts.c \
	methods/megatron/float8.c \
	methods/megatron/keys.c \
	methods/megatron/latent.c \
	methods/megatron/layers.c \
	methods/megatron/lora.c \
	methods/megatron/loss.c \
	methods/megatron/mamba.c \
	methods/megatron/megatron.h \
	methods/megatron/ops.c \
	methods/megatron/parts.h \
	methods/megatron/stages.c methods/megatron/schedule.c \
	methods/megatron/system.c

# A sequence over many GPUs: rings, all-to-alls, BurstEngine.
libtidemark_a_SOURCES += \
	methods/context/attention.c \
	methods/context/burst.h \
	methods/context/burst_attention.c \
	methods/context/burst_blocks.c \
	methods/context/burst_layer.c \
	methods/context/burst_loss.c \
	methods/context/burst_method.c \
	methods/context/burst_model.c \
	methods/context/burst_parts.h \
	methods/context/context.h \
	methods/context/cost.c \
	methods/context/double_ring.c \
	methods/context/flash.c \
	methods/context/fpdt.h \
	methods/context/fpdt_attention.c \
	methods/context/fpdt_rows.c \
	methods/context/method.c \
	methods/context/parts.h \
	methods/context/ring.c \
	methods/context/torch_ring.c \
	methods/context/ulysses.c

# Chunk by chunk: OOMB and SeCO; LongLoRA.
libtidemark_a_SOURCES += \
	methods/chunk/attention.c \
	methods/chunk/chunk.h \
	methods/chunk/keys.c \
	methods/chunk/layer.c \
	methods/chunk/longlora.c \
	methods/chunk/method.c methods/chunk/method.h \
	methods/chunk/pages.c \
	methods/chunk/parts.h \
	methods/chunk/rows.c \
	methods/chunk/system.c \
	methods/chunk/tensor.c

cmocka_tests += tests/methods/unit_adapters tests/methods/unit_chunks tests/methods/unit_compare tests/methods/unit_context \
	tests/methods/unit_deepspeed tests/methods/unit_families \
	tests/methods/unit_fpdt tests/methods/unit_fsdp tests/methods/unit_hybrids \
	tests/methods/unit_megatron tests/methods/unit_method_plots tests/methods/unit_methods \
	tests/methods/unit_peak tests/methods/unit_te_float8 \
	tests/methods/property_keys tests/methods/unit_refusals tests/methods/unit_remedies tests/methods/unit_second tests/methods/unit_serving \
	tests/methods/unit_settings \
	tests/methods/unit_torch_allocator
tests_methods_unit_remedies_SOURCES = tests/methods/unit_remedies.c tests/support/cases.c tests/support/cases.h
tests_methods_unit_methods_SOURCES = tests/methods/unit_methods.c tests/support/cases.c tests/support/cases.h
tests_methods_property_keys_SOURCES = tests/methods/property_keys.c tests/support/cases.c tests/support/cases.h
