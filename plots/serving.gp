# SPDX-License-Identifier: Apache-2.0
#
# A server: sequences that its cache holds over their context, a line for each dtype of K and V. What lies below a line
# fits.
#
# Run by plots/picture.c as `gnuplot -d settings.gp colours.gp page.gp serving.gp`; settings.gp, which serving_plot.c
# writes, says what is set there:
#
#   format output folder width height   picture and where its data lie
#   title subtitle                      texts
#   lines name_I asked_I any_I          how many dtypes, their names, whether the answer is for it, whether it holds any
#   context batch                       what is asked for: a dot
#   x_low x_high y_high ticks           what is drawn, and where "8K" is
#
# Data: lines has a block for each dtype, of contexts and sequences.

left_edge = X(104)
right_edge = 1 - X(60)
bottom_edge = Y(110)
top_edge = 1 - Y(106)
tics_font = font(12) # a function is not taken there
set multiplot

set lmargin at screen 0
set rmargin at screen 1
set bmargin at screen 0
set tmargin at screen 1
unset border
unset tics
unset key
set xrange [0:1]
set yrange [0:1]
set label title at screen left_edge, 1 - Y(36) left font font(19) textcolor rgb colour_text
set label subtitle at screen left_edge, 1 - Y(68) left font font(12.5) textcolor rgb colour_quiet
set label "context of a sequence (tokens)" center at screen (left_edge + right_edge) / 2, bottom_edge - Y(60) \
    font font(13) textcolor rgb colour_text
set label "sequences that the cache holds" center rotate by 90 at screen X(30), (bottom_edge + top_edge) / 2 \
    font font(13) textcolor rgb colour_text
plot -1 notitle
unset label

set border 3 linecolor rgb colour_quiet linewidth scale
set lmargin at screen left_edge
set rmargin at screen right_edge
set bmargin at screen bottom_edge
set tmargin at screen top_edge
set logscale x 2
set logscale y 10
set xrange [x_low:x_high * 1.3]
set yrange [0.8:y_high * 1.6]
set xtics out nomirror scale 0.6 font tics_font textcolor rgb colour_text
eval "set xtics out nomirror (" . ticks . ")"
set ytics out nomirror scale 0.6 format "%g" font tics_font textcolor rgb colour_text
set grid ytics back linetype 1 linecolor rgb colour_grid linewidth scale
set key at graph 0.995, graph 0.98 right top font tics_font textcolor rgb colour_text samplen 3
data = folder . "/lines"
dots_of_lines = "7 5 9 13 11"
asked(i) = value(sprintf("asked_%d", i))
any(i) = value(sprintf("any_%d", i))
dash_of(i) = asked(i) ? 1 : 3
colour_of(i) = asked(i) ? colour_kv : colour_quiet
plot for [i = 1:lines] (any(i) ? data : "/dev/null") index (any(i) ? i - 1 : 0) using 1:2 \
        with linespoints linewidth (asked(i) ? 3 : 1.5) * scale dashtype dash_of(i) \
        pointtype int(word(dots_of_lines, i)) pointsize dot_size * scale linecolor rgb colour_of(i) \
        title value(sprintf("name_%d", i)), \
    "+" every ::0::0 using (context):(batch) with points pointtype 2 pointsize 2.2 * dot_size * scale \
        linewidth 2.5 * scale linecolor rgb colour_gradients title "asked for"
unset multiplot
set output
is_drawn = 1
