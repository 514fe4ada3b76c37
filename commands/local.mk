# SPDX-License-Identifier: Apache-2.0
# What answers is in the library, for tests too; what prints is in the program.
libtidemark_a_SOURCES += \
	commands/compare_methods.c commands/compare_methods.h \
	commands/compare_schedules.c commands/compare_schedules.h \
	commands/contexts.c commands/contexts.h \
	commands/kind_times.c commands/kind_times.h \
	commands/nest_text.c commands/nest_text.h \
	commands/own_method.c commands/own_method.h \
	commands/own_parts.h \
	commands/own_report.c \
	commands/own_schedule.c commands/own_schedule.h \
	commands/prediction.c commands/prediction.h \
	commands/setting_words.c commands/setting_words.h \
	commands/weights_report.c commands/weights_report.h

command_sources = \
	commands/cmd.c commands/cmd.h \
	commands/cmd_calibrate.c \
	commands/cmd_compare.c commands/cmd_diff.c \
	commands/cmd_doctor.c \
	commands/cmd_machines.c \
	commands/cmd_methods.c \
	commands/cmd_models.c \
	commands/cmd_plan.c \
	commands/cmd_plot.c \
	commands/cmd_predict.c commands/cmd_predict_text.c commands/predict_parts.h \
	commands/predict_json.c \
	commands/cmd_report.c commands/report_parts.h \
	commands/report_json.c commands/report_read.c commands/report_text.c \
	commands/cmd_run.c \
	commands/explain.c commands/explain.h \
	commands/family.c commands/family.h \
	commands/executor_path.c commands/executor_path.h \
	commands/executor_start.c \
	commands/model_inputs.c commands/model_inputs.h \
	commands/print.c commands/print.h \
	commands/schedule_table.c commands/schedule_table.h \
	commands/sweep_report.c commands/sweep_report.h
tidemark_SOURCES += $(command_sources) commands/main.c
tidemark_CPPFLAGS = $(AM_CPPFLAGS) -DTDM_OPENMP_FLAGS='"$(OPENMP_CFLAGS)"'

cmocka_tests += tests/commands/unit_answers tests/commands/unit_text
tests_commands_unit_answers_SOURCES = tests/commands/unit_answers.c tests/support/cases.c tests/support/cases.h

# JSON, by the commands themselves, where memory runs out while it is built.
cmocka_tests += tests/commands/unit_json_memory
tests_commands_unit_json_memory_SOURCES = tests/commands/unit_json_memory.c $(command_sources)
tests_commands_unit_json_memory_CPPFLAGS = $(tidemark_CPPFLAGS)
