# SPDX-License-Identifier: Apache-2.0
# Benchmarks: built by `make bench`, never by make or make check. Add programs to bench_programs, or
# to gpu_bench_programs where nvcc is needed.
bench_programs = bench/bounds bench/curves bench/fullsize bench/host_optimizer bench/monotone bench/nests bench/packing bench/packing_programs bench/pins bench/predictions bench/presets bench/ranks bench/retrieval bench/scale bench/selectors bench/step bench/teams
gpu_bench_programs = bench/attention_bench bench/nccl_bench bench/norm_bench bench/product_bench
EXTRA_PROGRAMS = $(bench_programs) $(gpu_bench_programs)
EXTRA_DIST += bench/attention_peer.py bench/beside.py bench/curves.gp bench/gradients.py bench/ranks_peer.py bench/retrieval.gp bench/selectors.gp bench/torch_cases.py bench/torch_deepspeed.py bench/torch_families.py bench/torch_parts.py bench/torch_peaks.cases bench/torch_peaks.py bench/torch_ppo.py bench/torch_second.py bench/torch_settings.py bench/torch_tensor.py
CLEANFILES += $(bench_programs) $(gpu_bench_programs)

bench_attention_bench_SOURCES = bench/attention_bench.c bench/gpu_meter.h
bench_attention_bench_CPPFLAGS = $(gpu_test_cppflags)
bench_attention_bench_LDADD = $(gpu_test_libs)
bench_product_bench_SOURCES = bench/product_bench.c bench/gpu_meter.h
bench_product_bench_CPPFLAGS = $(gpu_test_cppflags)
bench_product_bench_LDADD = $(gpu_test_libs)
bench_nccl_bench_SOURCES = bench/nccl_bench.c
bench_nccl_bench_CPPFLAGS = $(gpu_test_cppflags)
bench_nccl_bench_LDADD = $(EXECUTOR_LIBS)
bench_norm_bench_SOURCES = bench/norm_bench.c
bench_norm_bench_CPPFLAGS = $(gpu_test_cppflags)
bench_norm_bench_LDADD = $(gpu_test_libs)

if HAVE_CUDA
bench: bench/accuracy $(bench_programs) $(gpu_bench_programs)
else
bench: bench/accuracy $(bench_programs)
endif
.PHONY: bench

bench_bounds_SOURCES = bench/bounds.c
bench_bounds_LDADD = $(TIDEMARK_LIBS)
bench_curves_SOURCES = bench/curves.c bench/training.h
bench_curves_LDADD = $(TIDEMARK_LIBS)
bench_fullsize_SOURCES = bench/fullsize.c bench/commands.h
bench_fullsize_LDADD = $(TIDEMARK_LIBS)
bench_host_optimizer_SOURCES = bench/host_optimizer.c
bench_host_optimizer_LDADD = $(EXECUTOR_LIBS)
bench_monotone_SOURCES = bench/monotone.c
bench_monotone_LDADD = $(TIDEMARK_LIBS)
bench_nests_SOURCES = bench/nests.c
bench_nests_LDADD = $(TIDEMARK_LIBS)
bench_ranks_SOURCES = bench/ranks.c bench/commands.h
bench_ranks_LDADD = $(TIDEMARK_LIBS)
bench_retrieval_SOURCES = bench/retrieval.c
bench_retrieval_LDADD = $(EXECUTOR_LIBS)
bench_scale_SOURCES = bench/scale.c
bench_scale_LDADD = $(TIDEMARK_LIBS)
bench_teams_SOURCES = bench/teams.c bench/commands.h
bench_teams_LDADD = $(TIDEMARK_LIBS)
bench_packing_SOURCES = bench/packing.c
bench_packing_LDADD = $(TIDEMARK_LIBS)
bench_packing_programs_SOURCES = bench/packing_programs.c
bench_packing_programs_LDADD = $(TIDEMARK_LIBS)
bench_pins_SOURCES = bench/pins.c
bench_pins_LDADD = $(TIDEMARK_LIBS)
bench_presets_SOURCES = bench/presets.c
bench_presets_LDADD = $(TIDEMARK_LIBS)
bench_selectors_SOURCES = bench/selectors.c bench/training.h
bench_selectors_LDADD = $(TIDEMARK_LIBS)
bench_step_SOURCES = bench/step.c bench/commands.h
bench_step_LDADD = $(TIDEMARK_LIBS)
bench_predictions_SOURCES = bench/predictions.c bench/commands.h
bench_predictions_LDADD = $(TIDEMARK_LIBS)

# A test too: it fails where a bound is broken.
plain_tests += bench/accuracy
bench_accuracy_SOURCES = bench/accuracy.c bench/accuracy_components.c bench/accuracy_measured.c \
	bench/accuracy_published.c bench/accuracy_runs.c bench/accuracy_runs.h bench/accuracy_serving.c \
	bench/accuracy_table.h
bench_accuracy_LDADD = $(TIDEMARK_LIBS)
