# SPDX-License-Identifier: Apache-2.0
libtidemark_a_SOURCES += \
	ops/attention.c ops/attention.h \
	ops/content.c ops/content.h \
	ops/embed.c ops/embed.h \
	ops/head.c ops/head.h \
	ops/kernels.c ops/kernels.h \
	ops/mlp.c ops/mlp.h \
	ops/move.c ops/move.h \
	ops/norm.c ops/norm.h \
	ops/ops.c ops/ops.h \
	ops/product.c ops/product.h \
	ops/rope.c ops/rope.h \
	ops/select.c ops/select.h \
	ops/team.c ops/team.h \
	ops/gate.h ops/pages.h ops/params.h ops/scratch.h \
	ops/selector.c ops/selector.h ops/selector_fields.h \
	ops/update.c ops/update.h \
	ops/weights.c ops/weights.h
