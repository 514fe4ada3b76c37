# SPDX-License-Identifier: Apache-2.0
# What other systems need: their allocators, their operations, their steps.
libtidemark_a_SOURCES += \
	methods/burst.h methods/burst_parts.h \
	methods/burst_attention.c \
	methods/burst_blocks.c \
	methods/burst_layer.c \
	methods/burst_loss.c \
	methods/burst_method.c \
	methods/burst_model.c \
	methods/chunk.h methods/chunk_parts.h \
	methods/chunk_attention.c \
	methods/chunk_layer.c \
	methods/chunk_method.c methods/chunk_method.h \
	methods/chunk_pages.c methods/chunk_rows.c \
	methods/chunk_system.c \
	methods/context.h methods/context_parts.h \
	methods/context_attention.c \
	methods/context_cost.c \
	methods/context_double_ring.c \
	methods/context_flash.c \
	methods/context_method.c \
	methods/context_ring.c \
	methods/context_ulysses.c \
	methods/cost.c methods/cost.h \
	methods/deepspeed.c methods/deepspeed.h methods/deepspeed_parts.h \
	methods/deepspeed_gather.c \
	methods/deepspeed_method.c methods/deepspeed_method.h \
	methods/deepspeed_zero2.c methods/deepspeed_zero3.c \
	methods/divisors.c methods/divisors.h \
	methods/eager.c methods/eager.h methods/eager_parts.h \
	methods/eager_backward.c methods/eager_checkpoint.c methods/eager_peak.c \
	methods/eager_tiles.c methods/eager_tiles.h \
	methods/kernels.c \
	methods/key.c methods/key.h \
	methods/keys_chunk.c \
	methods/keys_megatron.c methods/keys_planned.c methods/keys_torch.c \
	methods/links.c methods/links.h \
	methods/longest.c methods/longest.h \
	methods/longlora.c \
	methods/megatron.h methods/megatron_parts.h \
	methods/megatron_attention.c methods/megatron_buffers.c methods/megatron_context.c \
	methods/megatron_cost.c methods/megatron_layers.c methods/megatron_lora.c \
	methods/megatron_loss.c \
	methods/megatron_ops.c methods/megatron_schedule.c methods/megatron_system.c \
	methods/method.c methods/method.h methods/methods.c \
	methods/ops.c methods/ops.h methods/ops_attention.c methods/ops_products.c \
	methods/prediction.c methods/prediction.h \
	methods/remedy.c methods/remedy.h methods/remedy_parts.h \
	methods/remedy_changes.c \
	methods/spelling.c \
	methods/timeline.c methods/timeline.h \
	methods/torch_allocator.c methods/torch_allocator.h \
	methods/torch_cache.c \
	methods/torch_ddp.c \
	methods/torch_experts.c \
	methods/torch_fsdp.c \
	methods/torch_fsdp_units.c \
	methods/torch_forward.c \
	methods/torch_inputs.c \
	methods/torch_layer.c \
	methods/torch_losses.c \
	methods/torch_model.c methods/torch_model.h methods/torch_parts.h \
	methods/torch_optimizer.c \
	methods/torch_run.c methods/torch_run.h \
	methods/torch_system.c

cmocka_tests += tests/unit_chunks tests/unit_compare tests/unit_context tests/unit_deepspeed \
	tests/unit_fsdp \
	tests/unit_megatron tests/unit_method_plots tests/unit_methods tests/unit_peak \
	tests/property_keys tests/unit_remedies \
	tests/unit_torch_allocator
tests_property_keys_SOURCES = tests/property_keys.c tests/cases.c tests/cases.h
