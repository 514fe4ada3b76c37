# SPDX-License-Identifier: Apache-2.0
# What plans and predicts is in the library, for tests too; what prints is in the program.
libtidemark_a_SOURCES += \
	planner/candidates.c planner/candidates.h \
	planner/compare_methods.c planner/compare_methods.h \
	planner/contexts.c planner/contexts.h \
	planner/compare_schedules.c planner/compare_schedules.h \
	planner/estimate.c planner/estimate.h \
	planner/estimate_bytes.c planner/estimate_span.h \
	planner/estimate_costs.c planner/estimate_parts.h \
	planner/estimate_evaluate.c planner/estimate_seconds.c \
	planner/estimate_waits.c \
	planner/group_lists.c planner/group_lists.h \
	planner/nest_cost.c planner/nest_cost.h \
	planner/nest_text.c planner/nest_text.h \
	planner/margin.c planner/margin.h planner/ways.h \
	planner/objective.c planner/objective.h \
	planner/own_method.c planner/own_method.h \
	planner/own_report.c planner/own_parts.h \
	planner/own_schedule.c planner/own_schedule.h \
	planner/prediction.c planner/prediction.h \
	planner/presets.c planner/presets.h \
	planner/kind_times.c planner/kind_times.h \
	planner/machine_table.c planner/machine_table.h \
	planner/rate_fit.c planner/rate_fit.h \
	planner/recipes.c planner/recipes.h \
	planner/request.c planner/request.h \
	planner/rounding.c planner/rounding.h \
	planner/relaxation.c planner/relaxation.h \
	planner/relaxation_price.c planner/relaxation_parts.h \
	planner/relaxation_program.c \
	planner/relaxation_read.c \
	planner/scaling.c planner/scaling.h planner/solver.c planner/solver.h \
	planner/set_keys.c planner/set_keys.h \
	planner/setting_words.c planner/setting_words.h \
	planner/shortage.c planner/shortage.h \
	planner/simulate.c planner/simulate.h \
	planner/sweep.c planner/sweep.h \
	planner/weights_report.c planner/weights_report.h

command_sources = \
	planner/cmd.c planner/cmd.h \
	planner/cmd_calibrate.c \
	planner/cmd_compare.c planner/cmd_diff.c \
	planner/cmd_doctor.c \
	planner/cmd_machines.c \
	planner/cmd_methods.c \
	planner/cmd_models.c \
	planner/cmd_plan.c \
	planner/cmd_plot.c \
	planner/cmd_predict.c planner/cmd_predict_text.c planner/predict_parts.h \
	planner/predict_json.c \
	planner/cmd_report.c planner/report_parts.h \
	planner/report_json.c planner/report_read.c planner/report_text.c \
	planner/cmd_run.c \
	planner/explain.c planner/explain.h \
	planner/family.c planner/family.h \
	planner/executor_path.c planner/executor_path.h \
	planner/executor_start.c \
	planner/model_inputs.c planner/model_inputs.h \
	planner/print.c planner/print.h \
	planner/schedule_table.c planner/schedule_table.h \
	planner/sweep_report.c planner/sweep_report.h
tidemark_SOURCES += $(command_sources) planner/main.c
tidemark_CPPFLAGS = $(AM_CPPFLAGS) -DTDM_OPENMP_FLAGS='"$(OPENMP_CFLAGS)"'

cmocka_tests += tests/planner/unit_answers tests/planner/unit_planner tests/planner/unit_rate_fit
tests_planner_unit_answers_SOURCES = tests/planner/unit_answers.c tests/support/cases.c tests/support/cases.h
tests_planner_unit_planner_SOURCES = tests/planner/unit_planner.c $(random_schedule)

cmocka_tests += tests/planner/unit_bound tests/planner/unit_scaling
tests_planner_unit_bound_SOURCES = tests/planner/unit_bound.c $(random_schedule)

# JSON, by the commands themselves, where memory runs out while it is built.
cmocka_tests += tests/planner/unit_json_memory
tests_planner_unit_json_memory_SOURCES = tests/planner/unit_json_memory.c $(command_sources)
tests_planner_unit_json_memory_CPPFLAGS = $(tidemark_CPPFLAGS)

# A solver without memory, and one that gives up.
cmocka_tests += tests/planner/unit_solver_memory
tests_planner_unit_solver_memory_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=glp_add_rows \
	-Wl,--wrap=glp_add_cols -Wl,--wrap=glp_simplex
