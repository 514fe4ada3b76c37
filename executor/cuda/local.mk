# SPDX-License-Identifier: Apache-2.0
# The GPU backend: host code in C, kernels and their launchers in .cu.
cuda_sources = \
	executor/cuda/cuda_error.c executor/cuda/cuda_error.h \
	executor/cuda/norm.cu executor/cuda/norm.h

if HAVE_CUDA
libexecutor_a_SOURCES += $(cuda_sources)
endif
