# SPDX-License-Identifier: Apache-2.0
# The GPU backend: host code in C, kernels and their launchers in .cu.
cuda_sources = \
	executor/cuda/arena.c \
	executor/cuda/attend.c \
	executor/cuda/attention.cu \
	executor/cuda/attention_grad.cu \
	executor/cuda/attention_kinds.c \
	executor/cuda/attention_plain.cu \
	executor/cuda/card.c executor/cuda/card.h \
	executor/cuda/cuda.c executor/cuda/cuda.h \
	executor/cuda/cuda_error.c executor/cuda/cuda_error.h \
	executor/cuda/attention_grad_pages.cuh \
	executor/cuda/device.cuh \
	executor/cuda/driver_use.c executor/cuda/driver_use.h \
	executor/cuda/embed.cu \
	executor/cuda/gemm.cu \
	executor/cuda/gradients.cuh \
	executor/cuda/head.c \
	executor/cuda/host_lane.c \
	executor/cuda/hopper.cuh executor/cuda/hopper_maps.c executor/cuda/hopper_maps.h \
	executor/cuda/hopper_products.cuh executor/cuda/hopper_tiles.cuh \
	executor/cuda/kernels.h \
	executor/cuda/gather.cu \
	executor/cuda/lists.cu \
	executor/cuda/lanes.c \
	executor/cuda/matmul.c executor/cuda/matmul.h \
	executor/cuda/merge.cu \
	executor/cuda/mma.cuh \
	executor/cuda/norm.cu executor/cuda/norm.h \
	executor/cuda/norm_grad.cu \
	executor/cuda/optimizer.cu \
	executor/cuda/pack_queries.cu \
	executor/cuda/product_choice.c executor/cuda/product_choice.h \
	executor/cuda/pages.cuh \
	executor/cuda/pattern.cu \
	executor/cuda/prepare.c \
	executor/cuda/products.c \
	executor/cuda/rope.cu \
	executor/cuda/rows.c \
	executor/cuda/scores.cuh \
	executor/cuda/shares.cu \
	executor/cuda/select.cu executor/cuda/select.cuh \
	executor/cuda/select_votes.cu \
	executor/cuda/softmax.cu \
	executor/cuda/sums.cu \
	executor/cuda/swiglu.cu \
	executor/cuda/team.c \
	executor/cuda/tiles.cuh

# With instructions that sm_90a alone has.
hopper_sources = \
	executor/cuda/attention_grad_hopper.cu \
	executor/cuda/attention_hopper.cu \
	executor/cuda/select_hopper.cu

if HAVE_CUDA
if HAVE_HOPPER
libexecutor_a_SOURCES += $(hopper_sources)
endif
libexecutor_a_SOURCES += $(cuda_sources)
endif

$(hopper_sources:.cu=.o): NVCC_GENCODE = -gencode arch=compute_90a,code=sm_90a
$(hopper_sources:.cu=.o): NVCC_WRAPPER = $(srcdir)/executor/cuda/nvcc-checked "$(enable_werror)"
$(hopper_sources:.cu=.o): NVCC_OWN_FLAGS = -Xptxas -v
EXTRA_DIST += executor/cuda/nvcc-checked

# The same bits as the cpu backend's optimizers, which round every product.
executor/cuda/optimizer.o: NVCC_OWN_FLAGS = -fmad=false
