# SPDX-License-Identifier: Apache-2.0
libtidemark_a_SOURCES += \
	exports/chrome.c \
	exports/csv.c \
	exports/export.h \
	exports/formats.c \
	exports/memory_viz.c \
	exports/pickle.c exports/pickle.h \
	exports/step.c exports/step.h

cmocka_tests += tests/exports/unit_exports
tests_exports_unit_exports_SOURCES = tests/exports/unit_exports.c tests/support/unpickle.c \
	tests/support/unpickle.h tests/support/random_schedule.c tests/support/random_schedule.h \
	tests/support/cases.c tests/support/cases.h tests/support/slot_tensors.h
long_tests += tests/exports/unit_exports
