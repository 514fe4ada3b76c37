# SPDX-License-Identifier: Apache-2.0
libtidemark_a_SOURCES += \
	machines/complete.c \
	machines/local.c \
	machines/machine.c machines/machine.h \
	machines/parts.h \
	machines/rates.c machines/rates.h

nobase_dist_pkgdata_DATA += \
	machines/descriptions/a100-80.json \
	machines/descriptions/h100.json \
	machines/descriptions/h200.json \
	machines/descriptions/h200-calibrated.json \
	machines/descriptions/h200-published.json \
	machines/descriptions/l40s.json \
	machines/descriptions/rtx-4090.json

cmocka_tests += tests/unit_machines
