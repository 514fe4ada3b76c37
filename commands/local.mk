# SPDX-License-Identifier: Apache-2.0
# In libtidemark.a: what answers, for tests too; and the options of what tidemark-executor carries out.
libtidemark_a_SOURCES += \
	commands/cmd_calibrate.c \
	commands/cmd_run.c \
	commands/common_options.c commands/common_options.h \
	commands/compare_methods.c commands/compare_methods.h \
	commands/compare_schedules.c commands/compare_schedules.h \
	commands/contexts.c commands/contexts.h \
	commands/kind_times.c commands/kind_times.h \
	commands/nest_text.c commands/nest_text.h \
	commands/option_texts.c commands/option_texts.h \
	commands/options.c commands/options.h \
	commands/own_method.c commands/own_method.h \
	commands/own_parts.h \
	commands/own_report.c \
	commands/own_schedule.c commands/own_schedule.h \
	commands/prediction.c commands/prediction.h \
	commands/run_arguments.h \
	commands/run_texts.c commands/run_texts.h \
	commands/setting_words.c commands/setting_words.h \
	commands/weights_report.c commands/weights_report.h

# The commands of tidemark, which print.
noinst_LIBRARIES += libcommands.a
libcommands_a_SOURCES = \
	commands/answers.h \
	commands/bash_completion.c \
	commands/cmd.c commands/cmd.h \
	commands/cmd_compare.c commands/cmd_diff.c \
	commands/cmd_data.c \
	commands/cmd_doctor.c \
	commands/cmd_export.c \
	commands/cmd_machines.c \
	commands/cmd_methods.c \
	commands/cmd_models.c \
	commands/cmd_plan.c \
	commands/cmd_plot.c \
	commands/cmd_predict.c commands/cmd_predict_text.c commands/predict_parts.h \
	commands/predict_from.c commands/predict_from.h \
	commands/from_axolotl.c commands/from_changes.c commands/from_launch.c commands/from_megatron.c \
	commands/from_litgpt.c commands/from_llamafactory.c \
	commands/from_automodel.c commands/from_rules.h commands/from_torchtitan.c \
	commands/from_torchtune.c commands/from_training.c \
	commands/from_apply.c commands/from_file.c commands/from_file.h \
	commands/from_script.c commands/from_serving.c commands/from_swift.c commands/from_shape.c commands/from_shape.h \
	commands/predict_json.c \
	commands/predict_serve.c commands/predict_serve_text.c \
	commands/cmd_report.c commands/report_parts.h \
	commands/report_json.c commands/report_ranks.c commands/report_read.c \
	commands/report_text.c \
	commands/explain.c commands/explain.h \
	commands/family.c commands/family.h \
	commands/executor_path.c commands/executor_path.h \
	commands/executor_start.c \
	commands/model_inputs.c commands/model_inputs.h \
	commands/plan_answer.c commands/plan_answer.h \
	commands/plan_arguments.c commands/plan_arguments.h \
	commands/plan_keys.c \
	commands/print.c commands/print.h \
	commands/ranks_table.c commands/ranks_table.h \
	commands/schedule_table.c commands/schedule_table.h \
	commands/sweep_report.c commands/sweep_report.h
libcommands_a_CFLAGS = $(libtidemark_a_CFLAGS)
libcommands_a_CPPFLAGS = $(AM_CPPFLAGS) -DTDM_OPENMP_FLAGS='"$(OPENMP_CFLAGS)"'
COMMAND_LIBS = libcommands.a $(TIDEMARK_LIBS)
tidemark_SOURCES += commands/main.c

# The commands of tidemark-executor.
tidemark_executor_SOURCES += \
	commands/executor_calibrate.c \
	commands/executor_main.c \
	commands/executor_parts.h \
	commands/executor_run.c \
	commands/run_progress.c commands/run_progress.h

# The manual page and completion for bash, of the tables that the commands are read by.
noinst_PROGRAMS = commands/write_docs
commands_write_docs_SOURCES = commands/write_docs.c
commands_write_docs_LDADD = $(COMMAND_LIBS)
nodist_man_MANS = man/tidemark.1
man/tidemark.1: commands/write_docs$(EXEEXT) man/tidemark.1.in
	$(AM_V_GEN)$(MKDIR_P) man && commands/write_docs man $(srcdir)/man/tidemark.1.in > $@.new && mv $@.new $@
completiondir = $(datadir)/bash-completion/completions
nodist_completion_DATA = commands/completion/tidemark
commands/completion/tidemark: commands/write_docs$(EXEEXT)
	$(AM_V_GEN)$(MKDIR_P) commands/completion && commands/write_docs bash-completion > $@.new && mv $@.new $@
EXTRA_DIST += man/tidemark.1.in
CLEANFILES += man/tidemark.1 commands/completion/tidemark
script_tests += tests/commands/completion tests/commands/every-model tests/commands/man-options

cmocka_tests += tests/commands/unit_answers tests/commands/unit_prediction_schema tests/commands/unit_text
tests_commands_unit_prediction_schema_SOURCES = tests/commands/unit_prediction_schema.c \
	tests/support/json_schema.c tests/support/json_schema.h
tests_commands_unit_prediction_schema_LDADD = libcommands.a $(LDADD)
tests_commands_unit_answers_SOURCES = tests/commands/unit_answers.c tests/support/cases.c tests/support/cases.h

# JSON, by the commands themselves, where memory runs out while it is built.
cmocka_tests += tests/commands/unit_json_memory
tests_commands_unit_json_memory_LDADD = libcommands.a $(LDADD)
