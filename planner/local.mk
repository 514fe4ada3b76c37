# SPDX-License-Identifier: Apache-2.0
libtidemark_a_SOURCES += \
	planner/candidates.c planner/candidates.h \
	planner/candidates_bounds.c \
	planner/candidates_least.c \
	planner/candidates_parts.h \
	planner/candidates_polish.c \
	planner/candidates_recipes.c \
	planner/candidates_rounded.c \
	planner/candidates_run.c \
	planner/candidates_tighten.c \
	planner/candidates_try.c \
	planner/estimate.c planner/estimate.h \
	planner/estimate_bytes.c \
	planner/estimate_chunks.c \
	planner/estimate_costs.c \
	planner/estimate_evaluate.c \
	planner/estimate_parts.h \
	planner/estimate_seconds.c \
	planner/estimate_span.h \
	planner/estimate_lanes.c planner/estimate_lanes.h \
	planner/estimate_lanes_bodies.c \
	planner/estimate_lanes_nest.c \
	planner/estimate_lanes_parts.h \
	planner/estimate_lanes_state.c \
	planner/estimate_state.c \
	planner/estimate_waits.c \
	planner/estimator.c \
	planner/group_lists.c planner/group_lists.h \
	planner/ladder.c planner/ladder.h \
	planner/margin.c planner/margin.h \
	planner/memo.c planner/memo.h \
	planner/nest_cost.c planner/nest_cost.h \
	planner/objective.c planner/objective.h \
	planner/places.h \
	planner/presets.c planner/presets.h \
	planner/recipes.c planner/recipes.h \
	planner/relaxation.c planner/relaxation.h \
	planner/relaxation_ahead.c \
	planner/relaxation_divide.c \
	planner/relaxation_parts.h \
	planner/relaxation_price.c \
	planner/relaxation_program.c \
	planner/relaxation_read.c \
	planner/request.c planner/request.h \
	planner/rounding.c planner/rounding.h \
	planner/rounding_moves.c \
	planner/rounding_parts.h \
	planner/rounding_point.c \
	planner/rounding_search.c \
	planner/rounding_stack.c \
	planner/rounding_travel.c \
	planner/scaling.c planner/scaling.h \
	planner/set_keys.c planner/set_keys.h \
	planner/shortage.c planner/shortage.h \
	planner/solver.c planner/solver.h \
	planner/sweep.c planner/sweep.h \
	planner/ways.h \
	planner/team_choices.c planner/team_choices.h \
	planner/team_least.c planner/team_least.h \
	planner/team_search.c planner/team_search.h

cmocka_tests += tests/planner/unit_planner
tests_planner_unit_planner_SOURCES = tests/planner/unit_planner.c $(random_schedule)

cmocka_tests += tests/planner/unit_bound tests/planner/unit_scaling
tests_planner_unit_bound_SOURCES = tests/planner/unit_bound.c $(random_schedule)

# A solver without memory, and one that gives up.
cmocka_tests += tests/planner/unit_solver_memory
tests_planner_unit_solver_memory_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=glp_add_rows \
	-Wl,--wrap=glp_add_cols -Wl,--wrap=glp_simplex
