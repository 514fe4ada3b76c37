# SPDX-License-Identifier: Apache-2.0
libtidemark_a_SOURCES += \
	base/anywhere.h \
	base/clock.h \
	base/data.c \
	base/digest.c base/digest.h \
	base/directory.c base/directory.h \
	base/dtype.c base/dtype.h \
	base/file.c base/file.h \
	base/inputs.c base/inputs.h \
	base/install.c base/install.h \
	base/json.c base/json.h \
	base/lock.c base/lock.h \
	base/meeting.c base/meeting.h \
	base/names.c base/names.h \
	base/output.c base/output.h \
	base/parallel.c base/parallel.h \
	base/process.c base/process.h \
	base/size.h \
	base/sort.c base/sort.h \
	base/status.c base/status.h \
	base/temporary.c base/temporary.h \
	base/text.c base/text.h \
	base/ticker.c base/ticker.h \
	base/toml.c base/toml.h \
	base/units.c base/units.h \
	base/yaml.c base/yaml.h

cmocka_tests += tests/base/unit_base tests/base/unit_parallel tests/base/unit_settings tests/base/unit_ticker
