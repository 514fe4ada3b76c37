# SPDX-License-Identifier: Apache-2.0
# Tests and how they run. To add one, put its name in one of these, here or in a folder's local.mk:
#
#   cmocka_tests   tests/NAME, a cmocka program built from tests/NAME.c; skipped without cmocka
#   plain_tests    tests/NAME, a program built from tests/NAME.c that prints TAP, or only exits with
#                  0 (passed), 77 (skipped; its last line says why) or anything else (failed)
#   script_tests   tests/NAME, an executable script that does the same
#   golden_tests   tests/goldens/NAME.test, commands and what they print; see tests/golden-run
#   gpu_tests      tests/gpu/NAME, as plain_tests, built where there is nvcc; tests/gpu/run runs them
#                  where there is a GPU
#   long_tests     run by `make check-long`, with TDM_LONG=1. Those of the lists above run in `make check`
#                  too, in their short form; long_goldens run only here
#
# NAME begins with the folder, which is named as the folder of the code that is tested. Programs are linked with
# both libraries (LDADD). Sources beyond NAME.c: tests_NAME_SOURCES, with _ for /. What tests share is in
# tests/support.
#
# A test finds in its environment: TDM_SRCDIR and TDM_BUILDDIR (absolute), TIDEMARK_DATA, the built
# programs first on PATH, TDM_LONG=1 if it should be long (run-case sets it for those that TDM_LONG_TESTS names),
# TDM_SANITIZED=1 if built with sanitizers, and TDM_SCRATCH, an empty folder of its own that is removed after it
# passed.

LDADD = $(EXECUTOR_LIBS) $(GLPK_LIBS) $(YAML_LIBS) $(CMOCKA_LIBS)

script_tests += \
	tests/executor/address-space \
	tests/commands/failed-calls \
	tests/executor/calibrate-run \
	tests/executor/checked-kernels \
	tests/executor/closed-streams \
	tests/executor/huggingface-run \
	tests/base/installed \
	tests/base/json-checked \
	tests/executor/killed-calls tests/executor/killed-saves tests/executor/saves-within \
	tests/traces/killed-run \
	tests/executor/left-behind \
	tests/executor/mpi-run \
	tests/executor/power-loss \
	tests/planner/failed-allocations \
	tests/base/links \
	tests/traces/two-writers

# Preloaded into programs by scripts.
preloaded = tests/support/fail_allocation.so tests/support/fast_clock.so
check_DATA = $(preloaded) tests/support/fake_nccl.so
tests/support/fail_allocation.so: tests/support/told_stack.h
$(preloaded): %.so: %.c
	$(AM_V_CCLD)$(MKDIR_P) $(@D) && $(CC) $(CPPFLAGS) -D_GNU_SOURCE -O2 -Wall -Wextra -shared -fPIC $< -o $@
# Runs programs, one of whose system calls fails, or records what they write.
run_by_scripts = tests/support/fail_calls tests/support/replay_crashes
tests_support_fail_calls_SOURCES = tests/support/fail_calls.c tests/support/recorded_call.h \
	tests/support/told_stack.h
tests_support_fail_calls_LDADD =
tests_support_replay_crashes_SOURCES = tests/support/replay_crashes.c tests/support/recorded_call.h
tests_support_replay_crashes_LDADD =
# With the flags of the build: what ranks exchange by it is under its sanitizers, too.
tests/support/fake_nccl.so: tests/support/fake_nccl.c
	$(AM_V_CCLD)$(MKDIR_P) $(@D) && $(CC) $(CPPFLAGS) -D_GNU_SOURCE $(CFLAGS) -Wall -Wextra -shared -fPIC $< -o $@ $(LDFLAGS)
EXTRA_DIST += $(check_DATA:.so=.c)
CLEANFILES += $(check_DATA)

# The reference: a double-precision transformer that other tests compare with, and the tests of itself.
check_LIBRARIES += tests/reference/libreference.a
tests_reference_libreference_a_SOURCES = \
	tests/reference/operations.c tests/reference/operations.h \
	tests/reference/reference.c tests/reference/reference.h

cmocka_tests += \
	tests/reference/finite_differences_test \
	tests/reference/huggingface_test
tests_reference_finite_differences_test_SOURCES = tests/reference/finite_differences_test.c \
	tests/support/cases.c tests/support/cases.h
tests_reference_finite_differences_test_LDADD = tests/reference/libreference.a $(LDADD)
tests_reference_huggingface_test_LDADD = tests/reference/libreference.a $(LDADD)
EXTRA_DIST += tests/reference/huggingface.json tests/reference/huggingface.py

# Random schedules, and what executing them must give.
random_schedule = tests/support/random_schedule.c tests/support/random_schedule.h \
	tests/support/cases.c tests/support/cases.h tests/support/slot_tensors.h
run_steps = tests/support/run_steps.c tests/support/run_steps.h tests/support/step_data.c \
	tests/support/step_data.h \
	$(random_schedule)
cmocka_tests += tests/executor/property_gradients
seen = tests/support/seen.c tests/support/seen.h tests/support/votes.c tests/support/votes.h
tests_executor_property_gradients_SOURCES = tests/executor/property_gradients.c \
	tests/support/bf16.h $(seen) $(run_steps)
tests_executor_property_gradients_LDADD = tests/reference/libreference.a $(LDADD)

# Several ranks against one, in other nests, and with pauses.
cmocka_tests += tests/executor/property_ranks
hindered = tests/support/hindered.c tests/support/hindered.h
async_lanes = tests/support/async_lanes.c tests/support/async_lanes.h
tests_executor_property_ranks_SOURCES = tests/executor/property_ranks.c $(hindered) \
	$(async_lanes) $(run_steps)

# Where ranks meet, and what they do when one fails.
cmocka_tests += tests/base/unit_meeting tests/executor/unit_team
tests_executor_unit_team_SOURCES = tests/executor/unit_team.c $(hindered) \
	tests/support/step_data.c tests/support/step_data.h $(random_schedule)
tests_executor_unit_team_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=pthread_create

# Ranks that NCCL joins, without a GPU.
cmocka_tests += tests/executor/unit_nccl
tests_executor_unit_nccl_SOURCES = tests/executor/unit_nccl.c $(hindered) \
	tests/support/step_data.c tests/support/step_data.h $(random_schedule)

# Which kernel is taken for a product on a Hopper GPU.
cmocka_tests += tests/executor/unit_product_choice
tests_executor_unit_product_choice_SOURCES = tests/executor/unit_product_choice.c \
	executor/cuda/product_choice.c executor/cuda/product_choice.h

# Inputs that parsers must take or refuse: replayed here, searched for with `make fuzz` in a build that was configured
# with --enable-fuzzers.
plain_tests += tests/fuzz/replay
fuzz_targets = tests/fuzz/fuzz.h tests/fuzz/fuzz.c tests/fuzz/parsers.c tests/fuzz/files.c tests/fuzz/from.c \
	tests/fuzz/checkpoint.c tests/fuzz/trace.c \
	tests/support/quiet_run.c tests/support/quiet_run.h
tests_fuzz_replay_SOURCES = tests/fuzz/replay.c $(fuzz_targets)
tests_fuzz_replay_LDADD = libcommands.a $(LDADD)
tests_models_fuzz_safetensors_SOURCES = tests/models/fuzz_safetensors.c $(fuzz_targets)
tests_models_fuzz_safetensors_LDADD = libcommands.a $(LDADD)
EXTRA_PROGRAMS += tests/fuzz/fuzz
tests_fuzz_fuzz_SOURCES = tests/fuzz/libfuzzer.c $(fuzz_targets)
tests_fuzz_fuzz_LDADD = libcommands.a $(LDADD)
tests_fuzz_fuzz_LDFLAGS = $(AM_LDFLAGS) -fsanitize=fuzzer
EXTRA_DIST += tests/fuzz/corpus
if FUZZERS
fuzz: tests/fuzz/fuzz$(EXEEXT)
else
fuzz:
	@echo "fuzz: configure with --enable-fuzzers CC=clang first" >&2; exit 1
endif
.PHONY: fuzz

# What ranks exchange, and many of them.
cmocka_tests += tests/simulator/unit_team
tests_simulator_unit_team_SOURCES = tests/simulator/unit_team.c $(random_schedule)

# Pages gathered from the host.
cmocka_tests += tests/executor/property_gather
gather_cases = tests/support/gather_cases.c tests/support/gather_cases.h \
	tests/support/backend_cases.c tests/support/backend_cases.h \
	$(run_steps)
tests_executor_property_gather_SOURCES = tests/executor/property_gather.c $(gather_cases)

# A place that a machine's description adds.
cmocka_tests += tests/executor/property_places
tests_executor_property_places_SOURCES = tests/executor/property_places.c $(run_steps)

# Documents that a step's text has, against the same documents in the schedule.
cmocka_tests += tests/executor/property_documents
text_documents = tests/support/text_documents.c tests/support/text_documents.h $(run_steps)
tests_executor_property_documents_SOURCES = tests/executor/property_documents.c $(text_documents)

# Selectors that see all, and windows, by schedule or by model.
cmocka_tests += tests/executor/property_selectors
tests_executor_property_selectors_SOURCES = tests/executor/property_selectors.c $(run_steps)

# Evaluations between steps.
cmocka_tests += tests/executor/property_evaluation
tests_executor_property_evaluation_SOURCES = tests/executor/property_evaluation.c $(seen) \
	$(random_schedule)
tests_executor_property_evaluation_LDADD = tests/reference/libreference.a $(LDADD)

# Trainings that stop and go on.
cmocka_tests += tests/executor/property_resume
quiet_run = tests/support/quiet_run.c tests/support/quiet_run.h $(random_schedule)
tests_executor_property_resume_SOURCES = tests/executor/property_resume.c $(quiet_run)

# The op that writes the first value that is not finite.
cmocka_tests += tests/executor/unit_finite
tests_executor_unit_finite_SOURCES = tests/executor/unit_finite.c $(quiet_run)

# Ops in other orders than the program's, and with poison where nothing lives.
cmocka_tests += tests/executor/property_order
tests_executor_property_order_SOURCES = tests/executor/property_order.c tests/support/execution.c \
	tests/support/execution.h \
	$(random_schedule) tests/support/recording.c tests/support/recording.h

# Touched bytes against planned ones.
cmocka_tests += tests/executor/property_memory
tests_executor_property_memory_SOURCES = tests/executor/property_memory.c tests/support/execution.c \
	tests/support/execution.h \
	$(random_schedule)

# What the planner finds, executed.
plan_cases = tests/support/plan_cases.c tests/support/plan_cases.h tests/support/backend_cases.c \
	tests/support/backend_cases.h $(run_steps)
cmocka_tests += tests/planner/property_plans
tests_planner_property_plans_SOURCES = tests/planner/property_plans.c $(plan_cases)

# What plans say, against what their files give.
cmocka_tests += tests/planner/property_teams
tests_planner_property_teams_SOURCES = tests/planner/property_teams.c $(random_schedule)

# What it finds, against exhaustive search.
cmocka_tests += tests/planner/property_search
tests_planner_property_search_SOURCES = tests/planner/property_search.c $(random_schedule)

cmocka_tests += tests/executor/no_allocation
tests_executor_no_allocation_SOURCES = tests/executor/no_allocation.c $(random_schedule)
tests_executor_no_allocation_LDFLAGS = $(AM_LDFLAGS) \
	-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc \
	-Wl,--wrap=posix_memalign,--wrap=strdup,--wrap=mmap

# Steps of minutes on a clock of the test's own.
cmocka_tests += tests/executor/unit_long_steps
tests_executor_unit_long_steps_SOURCES = tests/executor/unit_long_steps.c commands/run_progress.c \
	commands/run_progress.h \
	$(random_schedule)
tests_executor_unit_long_steps_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=clock_gettime

# What drivers report of devices that ranks share.
cmocka_tests += tests/executor/unit_shared_devices
tests_executor_unit_shared_devices_SOURCES = tests/executor/unit_shared_devices.c \
	commands/run_progress.c commands/run_progress.h $(random_schedule)

# What a calibration keeps of a shipped machine.
cmocka_tests += tests/executor/unit_calibrate
tests_executor_unit_calibrate_SOURCES = tests/executor/unit_calibrate.c

# How often a run lowers and simulates.
cmocka_tests += tests/executor/unit_readings
tests_executor_unit_readings_SOURCES = tests/executor/unit_readings.c $(random_schedule)
tests_executor_unit_readings_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=tdm_lower,--wrap=tdm_simulator_new

# How many schedules a refusal lowers.
cmocka_tests += tests/planner/unit_shortage
tests_planner_unit_shortage_SOURCES = tests/planner/unit_shortage.c
tests_planner_unit_shortage_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=tdm_program_measure \
	-Wl,--wrap=tdm_solver_solve -Wl,--wrap=tdm_pack_search_run \
	-Wl,--wrap=tdm_op_seconds -Wl,--wrap=tdm_program_emit

# Lowering, order, packing, simulator and schedule JSON, and what the validator must catch.
cmocka_tests += tests/schedule/unit_schedule tests/schedule/unit_order tests/schedule/unit_pack \
	tests/schedule/unit_schedule_json \
	tests/schedule/unit_schedule_optimizer tests/schedule/validator_mutations
recording = tests/support/recording.c tests/support/recording.h
cmocka_tests += tests/ops/unit_ops
tests_ops_unit_ops_SOURCES = tests/ops/unit_ops.c $(random_schedule)
cmocka_tests += tests/schedule/unit_streams
tests_schedule_unit_streams_SOURCES = tests/schedule/unit_streams.c $(random_schedule)
cmocka_tests += tests/executor/unit_free_memory tests/schedule/unit_scratch tests/schedule/unit_sequence
tests_schedule_unit_sequence_SOURCES = tests/schedule/unit_sequence.c $(random_schedule)
cmocka_tests += tests/schedule/unit_buffers
tests_schedule_unit_buffers_SOURCES = tests/schedule/unit_buffers.c $(random_schedule)
tests_schedule_unit_buffers_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc
cmocka_tests += tests/schedule/unit_ranks
tests_schedule_unit_ranks_SOURCES = tests/schedule/unit_ranks.c $(random_schedule)
cmocka_tests += tests/schedule/unit_team_check
tests_schedule_unit_team_check_SOURCES = tests/schedule/unit_team_check.c $(random_schedule)

cmocka_tests += tests/schedule/unit_kv_row
tests_schedule_unit_kv_row_SOURCES = tests/schedule/unit_kv_row.c $(random_schedule)
tests_schedule_unit_schedule_SOURCES = tests/schedule/unit_schedule.c $(random_schedule)
tests_schedule_unit_order_SOURCES = tests/schedule/unit_order.c $(random_schedule) $(recording)
tests_schedule_unit_pack_SOURCES = tests/schedule/unit_pack.c $(random_schedule)
tests_schedule_unit_schedule_json_SOURCES = tests/schedule/unit_schedule_json.c $(random_schedule)
tests_schedule_unit_schedule_optimizer_SOURCES = tests/schedule/unit_schedule_optimizer.c $(random_schedule)
cmocka_tests += tests/executor/unit_values
tests_executor_unit_values_SOURCES = tests/executor/unit_values.c $(random_schedule)
tests_schedule_validator_mutations_SOURCES = tests/schedule/validator_mutations.c \
	tests/schedule/faults/copies.c tests/schedule/faults/heads.c tests/schedule/faults/host.c \
	tests/schedule/faults/lists.c tests/schedule/faults/memory.c tests/schedule/faults/ops.c \
	tests/schedule/faults/queries.c tests/schedule/faults/ranges.c tests/schedule/faults/rings.c \
	tests/schedule/faults/team.c tests/schedule/faults/team_state.c tests/schedule/faults/trial.c \
	tests/schedule/faults/trial.h $(random_schedule) $(recording)

# One backend against another, op by op.
lockstep = tests/support/lockstep.c tests/support/lockstep.h tests/support/lockstep_slack.c \
	tests/support/lockstep_slack.h \
	tests/support/slack_parts.h tests/support/slack_select.c tests/support/votes.c \
	tests/support/votes.h tests/support/slack_turn.c tests/support/slack_attention.c \
	tests/support/slack_head.c \
	tests/support/lockstep_compare.c tests/support/lockstep_compare.h \
	tests/support/backend_cases.c \
	tests/support/backend_cases.h \
	tests/support/step_data.c tests/support/step_data.h $(random_schedule)

# And that this catches what it is for.
cmocka_tests += tests/executor/lockstep_faults
tests_executor_lockstep_faults_SOURCES = tests/executor/lockstep_faults.c tests/support/jitter.c \
	tests/support/jitter.h $(lockstep)

gpu_tests = \
	tests/gpu/attention_test \
	tests/gpu/backend_test \
	tests/gpu/copy_test \
	tests/gpu/documents_test \
	tests/gpu/gather_test \
	tests/gpu/lockstep_test \
	tests/gpu/memory_test \
	tests/gpu/norm_test \
	tests/gpu/plans_test \
	tests/gpu/ranks_test \
	tests/gpu/sparse_test
tests_gpu_attention_test_SOURCES = tests/gpu/attention_test.c tests/gpu/gpu_test.h tests/gpu/noise.h
tests_gpu_attention_test_CPPFLAGS = $(gpu_test_cppflags)
tests_gpu_attention_test_LDADD = $(gpu_test_libs)
tests_gpu_sparse_test_SOURCES = tests/gpu/sparse_test.c tests/gpu/gpu_test.h tests/gpu/noise.h
tests_gpu_sparse_test_CPPFLAGS = $(gpu_test_cppflags)
tests_gpu_sparse_test_LDADD = $(gpu_test_libs)
tests_gpu_backend_test_SOURCES = tests/gpu/backend_test.c tests/gpu/gpu_test.h \
	tests/support/backend_cases.c tests/support/backend_cases.h tests/support/coverage.c \
	tests/support/coverage.h \
	tests/support/jitter.c tests/support/jitter.h \
	$(run_steps)
tests_gpu_backend_test_CPPFLAGS = $(gpu_test_cppflags)
tests_gpu_backend_test_LDADD = $(EXECUTOR_LIBS)
tests_gpu_copy_test_SOURCES = tests/gpu/copy_test.c tests/gpu/gpu_test.h $(random_schedule)
tests_gpu_copy_test_CPPFLAGS = $(gpu_test_cppflags)
tests_gpu_copy_test_LDADD = $(EXECUTOR_LIBS)
tests_gpu_copy_test_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=cudaHostRegister
tests_gpu_documents_test_SOURCES = tests/gpu/documents_test.c tests/gpu/gpu_test.h \
	tests/support/backend_cases.c tests/support/backend_cases.h $(text_documents)
tests_gpu_documents_test_CPPFLAGS = $(gpu_test_cppflags)
tests_gpu_documents_test_LDADD = $(EXECUTOR_LIBS)
tests_gpu_gather_test_SOURCES = tests/gpu/gather_test.c tests/gpu/gpu_test.h $(gather_cases)
tests_gpu_gather_test_CPPFLAGS = $(gpu_test_cppflags)
tests_gpu_gather_test_LDADD = $(EXECUTOR_LIBS)
tests_gpu_lockstep_test_SOURCES = tests/gpu/lockstep_test.c tests/gpu/gpu_test.h \
	tests/support/coverage.c tests/support/coverage.h $(lockstep)
tests_gpu_lockstep_test_CPPFLAGS = $(gpu_test_cppflags)
tests_gpu_lockstep_test_LDADD = $(EXECUTOR_LIBS)
tests_gpu_memory_test_SOURCES = tests/gpu/memory_test.c tests/gpu/gpu_test.h
tests_gpu_memory_test_CPPFLAGS = $(gpu_test_cppflags)
tests_gpu_memory_test_LDADD = $(EXECUTOR_LIBS)
tests_gpu_norm_test_SOURCES = tests/gpu/norm_test.c tests/gpu/gpu_test.h
tests_gpu_norm_test_CPPFLAGS = $(gpu_test_cppflags)
tests_gpu_norm_test_LDADD = $(gpu_test_libs)
tests_gpu_plans_test_SOURCES = tests/gpu/plans_test.c tests/gpu/gpu_test.h $(plan_cases)
tests_gpu_plans_test_CPPFLAGS = $(gpu_test_cppflags)
tests_gpu_plans_test_LDADD = $(EXECUTOR_LIBS) $(GLPK_LIBS) $(YAML_LIBS)

tests_gpu_ranks_test_SOURCES = tests/gpu/ranks_test.c tests/gpu/gpu_test.h \
	tests/support/backend_cases.c tests/support/backend_cases.h $(run_steps)
tests_gpu_ranks_test_CPPFLAGS = $(gpu_test_cppflags)
tests_gpu_ranks_test_LDADD = $(EXECUTOR_LIBS)

# The tests of attention with kernels that wait in random blocks. They take a minute to compile: `make delays-tests`.
if HAVE_HOPPER
delays_tests = tests/gpu/attention_delays_test tests/gpu/sparse_delays_test
EXTRA_PROGRAMS += $(delays_tests)
delayed = tests/gpu/delayed/attention_grad_hopper.o tests/gpu/delayed/attention_hopper.o \
	tests/gpu/delayed/select_hopper.o
tests_gpu_attention_delays_test_SOURCES = $(tests_gpu_attention_test_SOURCES)
tests_gpu_attention_delays_test_CPPFLAGS = $(gpu_test_cppflags)
tests_gpu_attention_delays_test_LDADD = $(delayed) $(gpu_test_libs)
tests_gpu_sparse_delays_test_SOURCES = $(tests_gpu_sparse_test_SOURCES)
tests_gpu_sparse_delays_test_CPPFLAGS = $(gpu_test_cppflags)
tests_gpu_sparse_delays_test_LDADD = $(delayed) $(gpu_test_libs)
$(delayed): NVCC_GENCODE = -gencode arch=compute_90a,code=sm_90a
$(delayed): NVCC_OWN_FLAGS = -DTDM_DELAYS
$(delayed): tests/gpu/delayed/%.o: executor/cuda/%.cu
	$(nvcc_compile)
MOSTLYCLEANFILES += $(delayed) tests/gpu/delayed/*.d
endif
delays-tests: $(delays_tests)
.PHONY: delays-tests

# GPU tests travel to machines that have a driver and little else: the linker drops what they do not use.
gpu_test_cppflags = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
gpu_test_libs = libexecutor.a libtidemark.a $(OPENMP_CFLAGS) $(CUDA_LIBS) -lm

# What they compare and count, without a GPU.
script_tests += tests/gpu/without-gpu

# Programs on a GPU, as a script, which needs no compiler.
script_tests += tests/gpu/resume_test

# Commands and what they print.
golden_tests += \
	tests/goldens/compare.test \
	tests/goldens/context.test \
	tests/goldens/data.test \
	tests/goldens/diff.test \
	tests/goldens/doctor-nccl.test \
	tests/goldens/doctor-schedules.test \
	tests/goldens/documents.test \
	tests/goldens/evaluate-like.test \
	tests/goldens/evaluate-optimizers.test \
	tests/goldens/export.test \
	tests/goldens/gather.test \
	tests/goldens/gemma.test \
	tests/goldens/help.test \
	tests/goldens/inputs.test tests/goldens/jsonl.test \
	tests/goldens/log.test \
	tests/goldens/machine-rates.test \
	tests/goldens/machine-shipped.test \
	tests/goldens/machines.test \
	tests/goldens/megatron.test \
	tests/goldens/models.test \
	tests/goldens/names.test \
	tests/goldens/output-names.test \
	tests/goldens/peaks.test \
	tests/goldens/places.test \
	tests/goldens/plan-bad-values.test \
	tests/goldens/plan-budget.test \
	tests/goldens/plan-byte-1m.test \
	tests/goldens/plan-evaluate.test \
	tests/goldens/plan-explain.test \
	tests/goldens/plan-json.test \
	tests/goldens/plan-nodes.test \
	tests/goldens/plan-nothing-fits.test \
	tests/goldens/plan-objective.test \
	tests/goldens/plan-optimizers.test \
	tests/goldens/plan-output.test \
	tests/goldens/plan-preset.test \
	tests/goldens/plan-qwen2.5-7b-256K.test \
	tests/goldens/plan-ranks.test \
	tests/goldens/plan-sweep.test \
	tests/goldens/plan-write-lp.test \
	tests/goldens/plot-loss.test tests/goldens/plot-unfinished.test \
	tests/goldens/plot.test \
	tests/goldens/predict-buffers.test \
	tests/goldens/predict-chunks.test \
	tests/goldens/predict-deepspeed.test \
	tests/goldens/predict-dtypes.test \
	tests/goldens/predict-from.test \
	tests/goldens/predict-half.test \
	tests/goldens/predict-modules.test \
	tests/goldens/predict-second.test \
	tests/goldens/predict-serve.test \
	tests/goldens/predict-set.test \
	tests/goldens/predict-tidemark.test \
	tests/goldens/predict.test \
	tests/goldens/progress.test \
	tests/goldens/report-selection.test \
	tests/goldens/report-unfinished.test tests/goldens/report-watch.test \
	tests/goldens/resume-ranks.test \
	tests/goldens/resume.test \
	tests/goldens/run-dry.test \
	tests/goldens/run-evaluate.test \
	tests/goldens/run-optimizers.test \
	tests/goldens/report-ranks.test \
	tests/goldens/run-ranks.test \
	tests/goldens/save-ranks.test \
	tests/goldens/run-ranks-cuda.test \
	tests/goldens/run-set.test \
	tests/goldens/run-without-executor.test \
	tests/goldens/run.test \
	tests/goldens/runner.test \
	tests/goldens/tokens.test \
	tests/goldens/usage-errors.test \
	tests/goldens/weights.test \
	tests/goldens/windows.test
script_tests += tests/golden-listed tests/includes
# Those that take longer than others of `make check` may.
long_goldens = \
	tests/goldens/plan-nothing-fits-7b.test \
	tests/goldens/plan-windows.test
all_goldens = $(golden_tests) $(long_goldens)

# What is longer in `make check-long`.
long_tests += \
	tests/commands/failed-calls \
	tests/models/fuzz_safetensors \
	tests/gpu/without-gpu \
	tests/executor/calibrate-run \
	tests/executor/huggingface-run \
	tests/executor/killed-calls tests/executor/killed-saves tests/executor/saves-within \
	tests/executor/power-loss \
	tests/executor/lockstep_faults \
	tests/executor/no_allocation \
	tests/executor/property_documents \
	tests/executor/property_evaluation \
	tests/executor/property_gather \
	tests/executor/property_gradients \
	tests/methods/property_keys \
	tests/executor/property_memory \
	tests/executor/property_order \
	tests/executor/property_places \
	tests/executor/property_ranks \
	tests/executor/property_resume \
	tests/planner/failed-allocations \
	tests/planner/property_plans \
	tests/planner/property_search \
	tests/planner/property_teams \
	tests/executor/property_selectors \
	tests/reference/finite_differences_test \
	tests/commands/unit_answers \
	tests/executor/unit_finite \
	tests/executor/unit_team \
	tests/simulator/unit_team \
	tests/planner/unit_bound \
	tests/executor/unit_cpu \
	tests/schedule/unit_kv_row \
	tests/schedule/unit_order \
	tests/schedule/unit_pack \
	tests/planner/unit_planner \
	tests/methods/unit_methods tests/methods/unit_remedies \
	tests/models/unit_saving \
	tests/schedule/unit_schedule \
	tests/schedule/unit_schedule_json \
	tests/schedule/unit_sequence \
	tests/schedule/unit_team_check \
	tests/executor/unit_values \
	tests/schedule/validator_mutations \
	$(long_goldens) \
	$(gpu_tests)

check_PROGRAMS = $(plain_tests) $(run_by_scripts)
if HAVE_CMOCKA
check_PROGRAMS += $(cmocka_tests)
TESTS = $(cmocka_tests) $(plain_tests) $(script_tests) $(golden_tests)
AM_CPPFLAGS += $(CMOCKA_CFLAGS)
else
TESTS = $(plain_tests) $(script_tests) $(golden_tests) tests/no-cmocka
endif

if HAVE_CUDA
check_PROGRAMS += $(gpu_tests)
TESTS += $(gpu_tests)
endif

if SANITIZERS
tdm_sanitized = TDM_SANITIZED=1
else
tdm_sanitized = TDM_SANITIZED=
endif

TEST_EXTENSIONS = .test
LOG_DRIVER = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
LOG_COMPILER = $(SHELL) $(top_srcdir)/tests/run-case
TEST_LOG_DRIVER = $(LOG_DRIVER)
TEST_LOG_COMPILER = $(LOG_COMPILER) $(top_srcdir)/tests/golden-run
AM_TESTS_ENVIRONMENT = \
	LC_ALL=C NO_COLOR=1 CMOCKA_MESSAGE_OUTPUT=TAP OMP_WAIT_POLICY=passive \
	OMP_NUM_THREADS="$${OMP_NUM_THREADS-1}" \
	TDM_SRCDIR='$(abs_top_srcdir)' TDM_BUILDDIR='$(abs_top_builddir)' \
	TIDEMARK_DATA='$(abs_top_srcdir)' \
	PATH='$(abs_top_builddir)':"$$PATH" \
	TDM_LONG="$${TDM_LONG-}" TDM_LONG_TESTS="$${TDM_LONG_TESTS-}" TDM_CMOCKA_TESTS='$(cmocka_tests)' \
	TDM_GOLDEN_TESTS='$(all_goldens)' $(tdm_sanitized); \
	export LC_ALL NO_COLOR CMOCKA_MESSAGE_OUTPUT OMP_WAIT_POLICY OMP_NUM_THREADS \
	TDM_SRCDIR TDM_BUILDDIR TIDEMARK_DATA PATH TDM_LONG TDM_LONG_TESTS TDM_CMOCKA_TESTS \
	TDM_GOLDEN_TESTS TDM_SANITIZED;

EXTRA_DIST += $(script_tests) tests/no-cmocka tests/run-case tests/support/waits.sh tests/closing-line tests/gpu/run \
	tests/gpu/sanitize tests/support/largest_weight \
	tests/gpu/huggingface.py tests/gpu/huggingface_test \
	tests/golden-run $(all_goldens) $(all_goldens:.test=.expect) tests/data

# Those that take longest in their long form. They begin first, so that no core is without work at the end.
dearest_tests = \
	tests/planner/unit_planner \
	tests/executor/property_ranks \
	tests/planner/property_search \
	tests/commands/unit_answers
dearest_logs = $(foreach test,$(dearest_tests),$(filter $(test).log,$(TEST_LOGS)))

# Replaces Automake's target of this name: the same tests, and after them one line that counts cases.
# Programs are up to date by then. Without -o, make looks at config.h again for each of them, and meanwhile begins with
# the tests that are no programs.
check-TESTS: $(check_PROGRAMS) $(check_LIBRARIES)
	@rm -f $(TEST_LOGS) $(TEST_LOGS:.log=.trs) $(TEST_SUITE_LOG)
	@status=0; $(MAKE) $(AM_MAKEFLAGS) -o config.h $(dearest_logs) $(TEST_SUITE_LOG) || status=$$?; \
	$(SHELL) $(srcdir)/tests/closing-line $$status $(TEST_LOGS:.log=.trs); \
	exit $$status

# The tests that take minutes, and more cases of others. The tests that are not in this build are left out.
check-long:
	@TDM_LONG=1; export TDM_LONG; \
	$(MAKE) $(AM_MAKEFLAGS) check TESTS='$(filter $(TESTS) $(long_goldens),$(long_tests))'

# All tests, each once: in its long form where it has one.
check-all:
	@TDM_LONG_TESTS='$(long_tests)'; export TDM_LONG_TESTS; \
	$(MAKE) $(AM_MAKEFLAGS) check TESTS='$(TESTS) $(long_goldens)'
.PHONY: check-long check-all

# The property tests alone, with any number of cases: make check-property TDM_CASES=5000 TDM_SEED=7 runs
# cases 7 to 5006 of each; PROPERTY names one of them.
PROPERTY = tests/executor/property_gradients tests/executor/property_evaluation tests/executor/property_order \
	tests/executor/property_documents tests/executor/property_gather tests/methods/property_keys \
	tests/executor/property_memory \
	tests/planner/property_plans tests/planner/property_search tests/planner/property_teams \
	tests/executor/property_ranks tests/executor/property_selectors
check-property: $(PROPERTY)
	@status=0; $(AM_TESTS_ENVIRONMENT) \
	CMOCKA_MESSAGE_OUTPUT=STDOUT TDM_LONG=1 TDM_CASES='$(TDM_CASES)' TDM_SEED='$(TDM_SEED)'; \
	export TDM_LONG TDM_CASES TDM_SEED; \
	for test in $(PROPERTY); do echo "$$test"; ./$$test || status=1; done; exit $$status
.PHONY: check-property

clean-local:
	rm -rf tests/scratch
