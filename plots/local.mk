# SPDX-License-Identifier: Apache-2.0
libtidemark_a_SOURCES += \
	plots/compare_plot.c plots/compare_plot.h \
	plots/events_plot.c plots/events_plot.h \
	plots/frontier_plot.c plots/frontier_plot.h \
	plots/gnuplot.c plots/gnuplot.h \
	plots/loss_plot.c plots/loss_plot.h \
	plots/picture.c plots/picture.h \
	plots/plot.c plots/plot.h \
	plots/serving_plot.c plots/serving_plot.h \
	plots/source.c plots/source.h plots/source_parts.h \
	plots/source_schedule.c \
	plots/sweep_plot.c plots/sweep_plot.h \
	plots/timeline.c plots/timeline.h

nobase_dist_pkgdata_DATA += \
	plots/colours.gp \
	plots/compare.gp \
	plots/events.gp \
	plots/frontier.gp \
	plots/loss.gp \
	plots/page.gp \
	plots/serving.gp \
	plots/sweep.gp \
	plots/timeline.gp

cmocka_tests += tests/plots/unit_plots tests/plots/unit_sweep_plot
pictures = tests/support/pictures.c tests/support/pictures.h
tests_plots_unit_plots_SOURCES = tests/plots/unit_plots.c $(pictures)
tests_plots_unit_sweep_plot_SOURCES = tests/plots/unit_sweep_plot.c $(pictures)
tests_methods_unit_method_plots_SOURCES = tests/methods/unit_method_plots.c $(pictures)
