# SPDX-License-Identifier: Apache-2.0
libtidemark_a_SOURCES += \
	base/data.c \
	base/digest.c base/digest.h \
	base/directory.c base/directory.h \
	base/dtype.c base/dtype.h \
	base/file.c base/file.h \
	base/json.c base/json.h \
	base/size.h \
	base/status.c base/status.h \
	base/units.c base/units.h

cmocka_tests += tests/unit_base
