# SPDX-License-Identifier: Apache-2.0
# What other systems need: their allocators, their operations, their steps.
libtidemark_a_SOURCES += \
	methods/cost.c methods/cost.h \
	methods/eager.c methods/eager.h methods/eager_parts.h \
	methods/eager_backward.c methods/eager_checkpoint.c \
	methods/kernels.c \
	methods/key.c methods/key.h \
	methods/keys_torch.c \
	methods/method.c methods/method.h \
	methods/ops.c methods/ops.h \
	methods/prediction.c methods/prediction.h \
	methods/remedy.c methods/remedy.h \
	methods/torch_allocator.c methods/torch_allocator.h \
	methods/torch_cache.c \
	methods/torch_ddp.c \
	methods/torch_experts.c \
	methods/torch_fsdp.c \
	methods/torch_inputs.c \
	methods/torch_model.c methods/torch_model.h methods/torch_parts.h \
	methods/torch_optimizer.c \
	methods/torch_run.c methods/torch_run.h \
	methods/torch_system.c

cmocka_tests += tests/unit_torch_allocator tests/unit_methods
