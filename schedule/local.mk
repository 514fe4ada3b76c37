# SPDX-License-Identifier: Apache-2.0
libtidemark_a_SOURCES += \
	schedule/attend.c \
	schedule/attend.h \
	schedule/buffers.c \
	schedule/cost.c \
	schedule/cost.h \
	schedule/layout.c \
	schedule/layout.h \
	schedule/learning_rate.c \
	schedule/learning_rate.h \
	schedule/lower.c \
	schedule/legality.c schedule/legality.h \
	schedule/lower_backward.c \
	schedule/lower_head.c \
	schedule/lower_kv.c \
	schedule/lower_stream.c \
	schedule/lower_emit.c \
	schedule/lower_layer.c \
	schedule/lower_parts.h \
	schedule/lower_where.c \
	schedule/lowering.h \
	schedule/nest.c \
	schedule/nest.h \
	schedule/operands.c \
	schedule/operands.h \
	schedule/optimizer.c \
	schedule/optimizer.h \
	schedule/order.c \
	schedule/order.h \
	schedule/pack.c \
	schedule/pack.h \
	schedule/pack_graph.c \
	schedule/pack_graph.h \
	schedule/pack_search.c \
	schedule/pack_search.h \
	schedule/program.c \
	schedule/program.h \
	schedule/schedule.c \
	schedule/schedule.h \
	schedule/schedule_json.c \
	schedule/scratch.c \
	schedule/scratch.h \
	schedule/sequence.c \
	schedule/sequence.h \
	schedule/validate.c \
	schedule/validate.h
