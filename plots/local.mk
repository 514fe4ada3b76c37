# SPDX-License-Identifier: Apache-2.0
libtidemark_a_SOURCES += \
	plots/compare_plot.c plots/compare_plot.h \
	plots/events_plot.c plots/events_plot.h \
	plots/gnuplot.c plots/gnuplot.h \
	plots/picture.c plots/picture.h \
	plots/plot.c plots/plot.h \
	plots/source.c plots/source.h \
	plots/sweep_plot.c plots/sweep_plot.h \
	plots/timeline.c plots/timeline.h

nobase_dist_pkgdata_DATA += \
	plots/colours.gp \
	plots/compare.gp \
	plots/events.gp \
	plots/page.gp \
	plots/sweep.gp \
	plots/timeline.gp

cmocka_tests += tests/unit_plots tests/unit_sweep_plot
pictures = tests/pictures.c tests/pictures.h
tests_unit_plots_SOURCES = tests/unit_plots.c $(pictures)
tests_unit_sweep_plot_SOURCES = tests/unit_sweep_plot.c $(pictures)
tests_unit_method_plots_SOURCES = tests/unit_method_plots.c $(pictures)
