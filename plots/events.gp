# SPDX-License-Identifier: Apache-2.0
#
# A step of a method: live bytes by category over its allocations and frees, and what its allocator reserves.
#
# Run by plots/picture.c as `gnuplot -d settings.gp colours.gp page.gp events.gp`; settings.gp, which
# events_plot.c writes, says what is set there:
#
#   format output folder width height   picture and where its data lie
#   title subtitle                      texts
#   highest limit limit_text            GiB: what is drawn, and what the device has
#   events                              of the step
#   peak_x peak_y peak_text             the event after which most is allocated
#   phases                              "forward 0 4000 backward 4000 9000": name, begin, end
#   categories                          those that occur, from the bottom up
#
# Data: stack has a block of event and running sum for every category, and one of what is used.

left_edge = X(104)
right_edge = 1 - X(40)
bottom_edge = Y(170)
top_edge = 1 - Y(130)
tics_font = font(12) # a function is not taken there
columns = 7

set multiplot
set style textbox opaque fillcolor rgb "#FFFFFF" noborder margins 0.3, 0.3

# Everything at screen coordinates in one empty plot.
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
set label "allocations and frees of the step" center at screen (left_edge + right_edge) / 2, bottom_edge - Y(56) \
    font font(13) textcolor rgb colour_text
set label "GPU memory (GiB)" center rotate by 90 at screen X(30), (bottom_edge + top_edge) / 2 \
    font font(13) textcolor rgb colour_text
do for [i = 1:words(categories)] {
    category = word(categories, i)
    legend_x = left_edge + ((i - 1) % columns) * X(190)
    legend_y = Y(62 - 26 * ((i - 1) / columns))
    set object i rectangle from screen legend_x, legend_y - Y(7) to screen legend_x + X(16), legend_y + Y(7) \
        fillstyle solid noborder fillcolor rgb value("colour_" . category)
    set label value("label_" . category) at screen legend_x + X(24), legend_y left font font(12) \
        textcolor rgb colour_text
}
plot -1 notitle
unset object
unset label

set border 3 linecolor rgb colour_quiet linewidth scale
set lmargin at screen left_edge
set rmargin at screen right_edge
set tmargin at screen top_edge
set bmargin at screen bottom_edge
set xrange [0:events]
set yrange [0:highest * 1.12]
set xtics out nomirror scale 0.6 font tics_font textcolor rgb colour_text
set ytics out nomirror scale 0.6 font tics_font textcolor rgb colour_text
set grid ytics back linetype 1 linecolor rgb colour_grid linewidth scale
do for [i = 1:words(phases) / 3] {
    phase = word(phases, 3 * i - 2)
    from_x = real(word(phases, 3 * i - 1))
    to_x = real(word(phases, 3 * i))
    if (to_x > from_x) {
        set object i rectangle from first from_x, screen top_edge + Y(3) to first to_x, screen top_edge + Y(23) \
            fillstyle solid noborder fillcolor rgb value("colour_phase_" . phase)
        if ((to_x - from_x) / events * (right_edge - left_edge) / X(1) > 9 * strlen(phase)) {
            set label phase at first (from_x + to_x) / 2, screen top_edge + Y(13) center \
                font font(11.5) textcolor rgb colour_text
        }
        if (from_x > 0) {
            set arrow from first from_x, graph 0 to first from_x, graph 1 nohead front \
                linecolor rgb colour_text linewidth scale dashtype 3
        }
    }
}
if (limit <= highest) {
    set arrow from graph 0, first limit to graph 1, first limit nohead front linecolor rgb colour_limit \
        linewidth 1.5 * scale dashtype 2
    set label limit_text at graph 0.005, first limit offset 0, 0.7 left front font tics_font \
        textcolor rgb colour_limit
}
set label "" at first peak_x, first peak_y front point pointtype 7 pointsize dot_size * scale \
    linecolor rgb colour_text
if (peak_x < events / 2) {
    set label peak_text at first peak_x, first peak_y offset 1, 0 left front boxed font tics_font \
        textcolor rgb colour_text
} else {
    set label peak_text at first peak_x, first peak_y offset -1, 0 right front boxed font tics_font \
        textcolor rgb colour_text
}
set key at graph 0.995, graph 0.99 right top font tics_font textcolor rgb colour_text samplen 2
count = words(categories)
plot for [i = count:1:-1] folder . "/stack" index i - 1 using 1:2 with filledcurves y=0 fillstyle solid noborder \
        linecolor rgb value("colour_" . word(categories, i)) notitle, \
    folder . "/stack" index count using 1:2 with lines linewidth 1.5 * scale linecolor rgb colour_allocator \
        title "reserved by the allocator, and runtime"
unset multiplot
set output
is_drawn = 1
