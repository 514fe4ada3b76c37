# SPDX-License-Identifier: Apache-2.0
#
# Two sweeps: seconds of a step over the values of one, a line with dots for each value of the other, and below
# it, dashed, the bound: no schedule is faster.
#
# Run by plots/picture.c as `gnuplot -d settings.gp colours.gp page.gp frontier.gp`; settings.gp, which
# frontier_plot.c writes, says what is set there:
#
#   format output folder width height   picture and where its data lie
#   title subtitle x_title              texts
#   tokens                              1: the x axis is logarithmic, and ticks says where "8K" is
#   x_low x_high                        ends of the x axis
#   seconds_low seconds_high            what is drawn
#   lines name_I                        how many, and their names
#
# Data: line_I has x, seconds and the bound; an empty row where nothing fits.

shades = "#0072B2 #D55E00 #009E73 #882255 #E69F00 #332288 #56B4E9 #5A5A5A"
left_edge = X(104)
right_edge = 1 - X(40)

set lmargin at screen left_edge
set rmargin at screen right_edge
set tmargin at screen 1 - Y(106)
set bmargin at screen Y(96)
set label title at screen left_edge, 1 - Y(36) left font font(19) textcolor rgb colour_text
set label subtitle at screen left_edge, 1 - Y(68) left font font(12.5) textcolor rgb colour_quiet
set label x_title center at screen (left_edge + right_edge) / 2, Y(30) font font(13) textcolor rgb colour_text
set label "step (seconds)" center rotate by 90 at screen X(30), 0.5 font font(13) textcolor rgb colour_text
tics_font = font(12) # a function is not taken there
set border 3 linecolor rgb colour_quiet linewidth scale
set xrange [x_low:x_high]
set xtics out nomirror scale 0.6 font tics_font textcolor rgb colour_text
set ytics out nomirror scale 0.6 font tics_font textcolor rgb colour_text
set grid ytics back linetype 1 linecolor rgb colour_grid linewidth scale
if (tokens) {
    set logscale x 2
    eval "set xtics out nomirror (" . ticks . ")"
} else {
    set xtics autofreq format "%g"
}
if (seconds_high > 8 * seconds_low) {
    set logscale y
    set yrange [seconds_low / 1.3:seconds_high * 1.3]
    set ytics format "%g"
} else {
    room = 0.1 * (seconds_high - seconds_low) + 0.01 * seconds_high
    set yrange [seconds_low - room:seconds_high + room]
    set ytics autofreq format "%g"
}
set key at graph 0.995, graph 0.98 right top font tics_font textcolor rgb colour_text samplen 3
plot for [i = 1:lines] folder . sprintf("/line_%d", i) using 1:2 with linespoints linewidth 2 * scale \
        pointtype 7 pointsize dot_size * scale linecolor rgb word(shades, i) title value(sprintf("name_%d", i)), \
    for [i = 1:lines] folder . sprintf("/line_%d", i) using 1:3 with lines linewidth 1.5 * scale dashtype 2 \
        linecolor rgb word(shades, i) title (i == 1 ? "no schedule is faster" : "")
set output
is_drawn = 1
