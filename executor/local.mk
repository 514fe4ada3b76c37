# SPDX-License-Identifier: Apache-2.0
libexecutor_a_SOURCES += \
	executor/amounts.c \
	executor/amounts.h \
	executor/arenas.c \
	executor/arenas.h \
	executor/backend.h \
	executor/backends.c \
	executor/backends.h \
	executor/batch.c \
	executor/batch.h \
	executor/calibrate.c \
	executor/calibrate.h \
	executor/calibrate_copies.c \
	executor/calibrate_parts.h \
	executor/calibrate_steps.c \
	executor/calibrate_trace.c \
	executor/checkpoint.c executor/checkpoint.h \
	executor/checkpoint_folder.c executor/checkpoint_folder.h \
	executor/checkpoint_parts.h executor/checkpoint_state.c executor/checkpoint_within.c \
	executor/copied.c \
	executor/copied.h \
	executor/evaluate.c \
	executor/evaluate.h \
	executor/events.c executor/events.h \
	executor/examples.c \
	executor/examples.h \
	executor/finite.c executor/finite.h \
	executor/forecast.c \
	executor/forecast.h \
	executor/free_memory.c \
	executor/free_memory.h \
	executor/gather.c executor/gather.h \
	executor/history.c executor/history.h \
	executor/host_arena.c \
	executor/host_arena.h \
	executor/host_memory.c \
	executor/host_memory.h \
	executor/log.c executor/log.h \
	executor/midstep.c \
	executor/midstep.h \
	executor/host_optimizer.c \
	executor/host_optimizer.h \
	executor/host_update_rate.c \
	executor/host_update_rate.h \
	executor/multiplication.h \
	executor/null.c \
	executor/numa.c \
	executor/numa.h \
	executor/observer.c \
	executor/observer.h \
	executor/pattern.h \
	executor/products.c \
	executor/products.h \
	executor/random.c \
	executor/random.h \
	executor/record.c \
	executor/record.h \
	executor/remainder.h \
	executor/rerun.c executor/rerun.h \
	executor/shared_save.c executor/shared_save.h \
	executor/run.c \
	executor/run.h \
	executor/run_parts.h \
	executor/run_paths.c \
	executor/run_paths.h \
	executor/run_weights.c \
	executor/run_weights.h \
	executor/state.c \
	executor/state.h \
	executor/save.c executor/save.h executor/snapshot.c executor/snapshot.h \
	executor/stochastic.h \
	executor/timings.h \
	executor/train.c \
	executor/shares.c executor/shares.h \
	executor/shuffle.c executor/shuffle.h \
	executor/team.c executor/team.h executor/team_walk.c executor/team_walk.h \
	executor/nccl.c executor/nccl.h executor/transport_nccl.c \
	executor/mpi_module.h executor/processes.c executor/processes.h executor/run_join.c \
	executor/transport.c executor/transport.h executor/transport_mpi.c executor/transport_shared.c \
	executor/transports.c executor/transports.h \
	executor/within.c executor/within.h \
	executor/walk.c \
	executor/walk.h \
	executor/weights.c \
	executor/weights.h \
	executor/written.c executor/written.h \
	executor/cpu/arena.c \
	executor/cpu/attention.c \
	executor/cpu/attention.h \
	executor/cpu/attention_grad.c \
	executor/cpu/merge.c \
	executor/cpu/pack_queries.c \
	executor/cpu/gather.c \
	executor/cpu/convert.c \
	executor/convert.h \
	executor/cpu/cpu.c \
	executor/cpu/cpu.h \
	executor/cpu/embed.c \
	executor/cpu/sort_tokens.c executor/cpu/team.c \
	executor/cpu/exp.h \
	executor/cpu/gemm.c \
	executor/cpu/gemm.h \
	executor/cpu/gradient_norm.c \
	executor/cpu/head.c \
	executor/cpu/move.c \
	executor/cpu/multiply.c \
	executor/cpu/multiply.h \
	executor/cpu/norm.c \
	executor/cpu/optimizer.c \
	executor/cpu/products.c \
	executor/cpu/rope.c \
	executor/cpu/select.c \
	executor/simd.h \
	executor/cpu/swiglu.c \
	executor/unit_blocks.h

# The same bits whatever the width of the vectors, and a root that is vectorised.
%host_optimizer.o: CFLAGS += -ffp-contract=off -fno-math-errno

# Single ops of the cpu backend against double.
cmocka_tests += tests/executor/unit_cpu tests/executor/unit_cpu_parts tests/executor/unit_log \
	tests/executor/unit_optimizer
tests_executor_unit_cpu_SOURCES = tests/executor/unit_cpu.c tests/executor/cpu_attention.c \
	tests/executor/cpu_qk_norm.c tests/support/cpu_fixture.c \
	tests/support/cpu_fixture.h tests/support/cases.c tests/support/cases.h
tests_executor_unit_cpu_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS)
tests_executor_unit_cpu_parts_SOURCES = tests/executor/unit_cpu_parts.c tests/support/cpu_fixture.c \
	tests/support/cpu_fixture.h
cmocka_tests += tests/executor/unit_backends
tests_executor_unit_backends_SOURCES = tests/executor/unit_backends.c $(random_schedule)
cmocka_tests += tests/executor/unit_cross_entropy
tests_executor_unit_cross_entropy_SOURCES = tests/executor/unit_cross_entropy.c \
	tests/support/cpu_fixture.c tests/support/cpu_fixture.h
tests_executor_unit_cross_entropy_LDADD = tests/reference/libreference.a $(LDADD)
tests_executor_unit_optimizer_SOURCES = tests/executor/unit_optimizer.c tests/support/bf16.h \
	tests/support/cpu_fixture.c \
	tests/support/cpu_fixture.h

# The module that speaks MPI: a shared object that runs of several processes load.
EXTRA_DIST += executor/mpi_module.c
if HAVE_MPI
modulesdir = $(pkglibdir)
modules_DATA = tidemark-mpi.so
tidemark-mpi.so: executor/mpi_module.c executor/mpi_module.h
	$(AM_V_CCLD)$(CC) $(DEFS) -I. -I$(srcdir) $(CPPFLAGS) $(TDM_CFLAGS) $(MPI_CFLAGS) $(CFLAGS) -shared -fPIC \
		$(srcdir)/executor/mpi_module.c -o $@ $(TDM_LDFLAGS) $(LDFLAGS) $(MPI_LIBS)
CLEANFILES += tidemark-mpi.so
endif
