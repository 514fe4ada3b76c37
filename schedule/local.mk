# SPDX-License-Identifier: Apache-2.0
libtidemark_a_SOURCES += \
	schedule/cost.h \
	schedule/layout.h \
	schedule/nest.h \
	schedule/order.h \
	schedule/pack.h \
	schedule/program.h \
	schedule/schedule.h \
	schedule/validate.h
