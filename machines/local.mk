# SPDX-License-Identifier: Apache-2.0
libtidemark_a_SOURCES += \
	machines/complete.c \
	machines/local.c \
	machines/machine.c machines/machine.h \
	machines/machine_table.c machines/machine_table.h \
	machines/nccl.c machines/nccl.h \
	machines/parts.h \
	machines/rates.c machines/rates.h \
	machines/topology.c machines/topology.h

nobase_dist_pkgdata_DATA += \
	machines/descriptions/a100-40.json \
	machines/descriptions/a100-80.json \
	machines/descriptions/a10.json \
	machines/descriptions/a10g.json \
	machines/descriptions/a800-80.json \
	machines/descriptions/b200.json \
	machines/descriptions/h100.json \
	machines/descriptions/h20.json \
	machines/descriptions/h200.json \
	machines/descriptions/h200-published.json \
	machines/descriptions/h800.json \
	machines/descriptions/l4.json \
	machines/descriptions/l40s.json \
	machines/descriptions/mi300x.json \
	machines/descriptions/rtx-3090.json \
	machines/descriptions/rtx-4090.json \
	machines/descriptions/rtx-5090.json \
	machines/descriptions/rtx-a6000.json \
	machines/descriptions/t4.json \
	machines/descriptions/v100-32.json

cmocka_tests += tests/machines/unit_machines
