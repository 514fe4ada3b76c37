# SPDX-License-Identifier: Apache-2.0
libtidemark_a_SOURCES += \
	planner/simulate.c \
	planner/simulate.h
