# SPDX-License-Identifier: Apache-2.0
libtidemark_a_SOURCES += \
	schedule/attend.c \
	schedule/attend.h \
	schedule/buffers_declare.c \
	schedule/buffers.c schedule/buffers_parts.h \
	schedule/buffers_kv.c \
	schedule/buffers_layout.c \
	schedule/buffers_residuals.c \
	schedule/buffers_units.c \
	schedule/category.c schedule/category.h \
	schedule/conflicts.c schedule/conflicts.h \
	schedule/cost.c \
	schedule/cost.h \
	schedule/kv_row.c \
	schedule/kv_row.h \
	schedule/layout.c \
	schedule/layout.h \
	schedule/learning_rate.c \
	schedule/learning_rate.h \
	schedule/lower.c \
	schedule/legality.c schedule/legality.h \
	schedule/lower_backward.c \
	schedule/lower_head.c \
	schedule/lower_heads.c \
	schedule/lower_kv.c \
	schedule/lower_stream.c \
	schedule/lower_update.c \
	schedule/lower_emit.c \
	schedule/lower_layer.c \
	schedule/lower_layer_ops.c \
	schedule/lower_lists.c \
	schedule/lower_queries.c \
	schedule/lower_ring.c \
	schedule/lower_parts.h \
	schedule/lower_team.c \
	schedule/lower_where.c \
	schedule/lowering.h \
	schedule/nest.c \
	schedule/nest.h \
	schedule/operands.c \
	schedule/operands_parts.h \
	schedule/operands_queries.c \
	schedule/operands_ring.c \
	schedule/operands_team.c \
	schedule/team_check.c schedule/team_check.h \
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
	schedule/program_types.c schedule/program_types.h \
	schedule/ranks.c \
	schedule/ranks.h \
	schedule/queries.c schedule/queries.h \
	schedule/ring.c schedule/ring.h \
	schedule/ranks_sample.c schedule/ranks_sample.h \
	schedule/schedule.c \
	schedule/schedule.h \
	schedule/schedule_check.c schedule/schedule_check.h \
	schedule/schedule_json.c \
	schedule/params.c schedule/params.h \
	schedule/pauses.c schedule/pauses.h \
	schedule/residuals.c schedule/residuals.h \
	schedule/scratch.c \
	schedule/scratch.h \
	schedule/gather.c \
	schedule/gather.h \
	schedule/shared_state.c schedule/shared_state.h \
	schedule/slices.c schedule/slices.h \
	schedule/streams.c schedule/streams.h \
	schedule/tags.c schedule/tags.h \
	schedule/training_settings.c schedule/training_settings.h \
	schedule/sequence.c \
	schedule/sequence.h \
	schedule/validate.c \
	schedule/validate.h \
	schedule/validate_cost.c schedule/validate_cost.h \
	schedule/values.c \
	schedule/values.h \
	schedule/values_predict.c schedule/values_predict.h
