# SPDX-License-Identifier: Apache-2.0
libtidemark_a_SOURCES += \
	simulator/lanes.c simulator/lanes.h \
	simulator/rate_fit.c simulator/rate_fit.h \
	simulator/simulate.c simulator/simulate.h \
	simulator/team.c simulator/team.h

cmocka_tests += tests/simulator/unit_lanes
cmocka_tests += tests/simulator/unit_rate_fit
